"""No settings and no model get past the limits on calls and tokens."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput, ModelFailed
from ltrag_plugins.flow import World, run_many
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import CalibratedAnswer, SGICSettings, calibrate
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Token
from ltrag_plugins.uncertainty import TOKEN_SIGNALS, calls_for
from tests.sgic_parts import CASTLE, THREE, answered, model, said

TEMPLATE = 64
"""Tokens that the docstring of `Budget` grants a chat template."""


def tokens(text: str, probability: float) -> tuple[Token, ...]:
    alternatives = (("x", math.log(probability)), ("y", math.log(1 - probability + 1e-9)))
    logprob = math.log(probability)
    return tuple(Token(w, logprob, alternatives=alternatives) for w in text.split())


@dataclass
class Contrary:
    """A model that is unsure, silent, stubborn, wordy or broken, as `draw` has it.

    It writes all that it may, and its prompts are as long as `size` has it: as a rule a token for
    each byte and a whole chat template, more than which no prompt without a system text has.
    """

    moods: list[tuple[str, float]]
    counts: bool = True
    fails_at: int | None = None
    size: Callable[[str], int] = lambda prompt: len(prompt.encode()) + TEMPLATE
    name = "contrary"
    sent: list[str] = field(default_factory=list)
    costs: list[int] = field(default_factory=list)

    def generate(self, prompts, settings=GenerationSettings()):
        replies = []
        for prompt in prompts:
            self.sent.append(prompt)
            self.costs.append(self.size(prompt) + settings.max_tokens)
            if self.fails_at is not None and len(self.sent) > self.fails_at:
                raise ConnectionError("gone")
            text, probability = self.moods[len(self.sent) % len(self.moods)]
            text = " ".join(text.split()[: settings.max_tokens])
            told = (self.size(prompt), settings.max_tokens) if self.counts else (None, None)
            replies.append(Generation(text, tokens(text, probability), *told))
        return replies


texts = st.sampled_from(["a", "b", "", "Round 1: a", "word " * 200, "Answer: x", "字" * 90])
moods = st.lists(
    st.tuples(texts, st.sampled_from([1e-9, 0.1, 0.5, 0.9, 1.0])), min_size=1, max_size=5
)
documents = st.lists(
    st.sampled_from(["short.", "same.", "A sentence here. " * 30, "x" * 3000, "", "字" * 500]),
    max_size=12,
)


def drawn_settings(draw) -> SGICSettings:
    """Any, but for a limit on tokens."""
    earlier = draw(st.sampled_from(["none", "text", "scores"]))
    return SGICSettings(
        rounds=draw(st.integers(0, 1 if earlier == "none" else 8)),
        estimator=draw(st.sampled_from([*TOKEN_SIGNALS, *["agreement"] * len(TOKEN_SIGNALS)])),
        samples=draw(st.integers(1, 4)),
        earlier=earlier,
        documents=draw(st.sampled_from(["scores", "keys", *(["none"] * (earlier != "none"))])),
        cut_to=draw(st.none() | st.integers(1, 20)),
        score_documents=draw(st.sampled_from(["needed", "always"])),
        certain_below=draw(st.sampled_from([0, 20, 100])),
        least_gain=draw(st.none() | st.sampled_from([0.0, 100.0])),
        choose=draw(st.sampled_from(["least uncertain", "last", "repeated"])),
        document_words=draw(st.none() | st.integers(1, 50)),
        max_calls=draw(st.integers(5, 40)),
        answer_tokens=draw(st.integers(1, 40)),
        on_error=draw(st.sampled_from(["raise", "best"])),
    )


def asked(llm: Contrary, passages, chosen: SGICSettings) -> CalibratedAnswer | None:
    """The answer; None where there is none, for a reason that is among those promised."""
    try:
        return answered(llm, passages, settings=chosen)
    except InvalidInput:
        assert llm.sent == []  # the first prompt does not fit
    except ModelFailed:
        assert chosen.on_error == "raise" or len(llm.sent) <= 1 + chosen.samples
    return None


def near(draw, costs: list[int]) -> int:
    """A limit at which a request fits but for a few tokens, as what it would cost shows."""
    return max(1, draw(st.sampled_from([*accumulate(costs)])) - draw(st.integers(0, 80)))


@settings(max_examples=300)
@given(st.data())
def test_limits_hold_for_any_settings_and_any_model(data):
    draw = data.draw
    free, passages = drawn_settings(draw), [Passage(text) for text in draw(documents)]
    told = (draw(moods), draw(st.booleans()), draw(st.none() | st.integers(0, 20)))
    unlimited, llm = Contrary(*told), Contrary(*told)
    asked(unlimited, passages, free)
    assert len(unlimited.sent) <= free.max_calls

    limit = near(draw, unlimited.costs)
    chosen = replace(free, max_tokens=limit)
    answer = asked(llm, passages, chosen)
    assert len(llm.sent) <= chosen.max_calls
    assert sum(llm.costs) <= limit
    if answer is not None:
        assert len(llm.sent) <= answer.calls <= chosen.max_calls
        assert 1 <= len(answer.trace) <= chosen.rounds + 1
        assert 0 <= answer.uncertainty <= 1
        assert 0 <= answer.score <= 100
        assert (answer.error is not None) == (answer.stop == "error")
        if llm.counts and answer.error is None:
            assert answer.tokens == sum(llm.costs)


@settings(max_examples=200)
@given(st.data())
def test_a_system_text_gets_past_the_limit_with_the_first_answer_alone(data):
    """Whatever a token is, between a word and a byte, and however long the text."""
    draw = data.draw
    free, passages = drawn_settings(draw), [Passage(text) for text in draw(documents)]
    bytes_a_token, beside = draw(st.integers(1, 12)), draw(st.integers(0, 4000))

    def size(prompt: str) -> int:
        pieces = math.ceil(len(prompt.encode()) / bytes_a_token)
        return beside + max(pieces, len(prompt.split()))

    chosen = draw(moods)
    unlimited, llm = Contrary(chosen, size=size), Contrary(chosen, size=size)
    asked(unlimited, passages, free)
    limit = near(draw, unlimited.costs)
    answer = asked(llm, passages, replace(free, max_tokens=limit))
    if answer is not None and sum(llm.costs) > limit:
        # so nothing was sent after it
        assert len(llm.sent) == calls_for(1, free.estimator, free.samples)
        assert any(f"report {sum(llm.costs)} tokens, more than" in one for one in answer.notes)


@settings(max_examples=200)
@given(st.data())
def test_questions_side_by_side_send_no_more_than_each_may(data):
    """Whatever fails: nothing, some prompts, some calls, all of them."""
    draw = data.draw
    questions = [f"Where is castle {i}?" for i in range(draw(st.integers(1, 5)))]
    free = SGICSettings(
        rounds=draw(st.integers(0, 4)),
        max_calls=draw(st.integers(1, 12)),
        certain_below=0,
        on_error=draw(st.sampled_from(["raise", "best"])),
    )
    fails, counts = draw(st.lists(st.booleans(), min_size=1, max_size=12)), draw(st.booleans())

    class Failing(Contrary):
        """Always where the first question is asked, else as drawn."""

        calls = 0

        def generate(self, prompts, settings=GenerationSettings()):
            self.calls += 1
            replies = super().generate(prompts, settings)
            if fails[self.calls % len(fails)] or questions[0] in " ".join(prompts):
                raise ConnectionError("gone")
            return replies

        def costs_of(self, question: str) -> list[int]:
            pairs = zip(self.sent, self.costs, strict=True)
            return [cost for prompt, cost in pairs if question in prompt]

    def asked_together(chosen: SGICSettings):
        llm = Failing([("a", 0.3), ("b", 0.3)], counts)
        flows = [calibrate(q, THREE, chosen) for q in questions]
        return llm, run_many(flows, World(llm=llm), return_exceptions=True)

    unlimited, _ = asked_together(free)
    limit = near(draw, unlimited.costs_of(draw(st.sampled_from(questions))))
    llm, found = asked_together(replace(free, max_tokens=limit))
    for question, one in zip(questions, found, strict=True):
        prompts = [prompt for prompt in llm.sent if question in prompt]
        assert len(prompts) <= free.max_calls
        assert sum(llm.costs_of(question)) <= limit
        assert all(prompts.count(prompt) <= 2 for prompt in prompts)
        if isinstance(one, InvalidInput):
            assert not prompts  # the first does not fit
        elif isinstance(one, Exception):
            assert isinstance(one, ModelFailed)
        else:
            assert len(prompts) == one.calls


@pytest.mark.parametrize(("most", "notes"), [(1000, 1), (4000, 0)])
def test_a_first_answer_that_shows_a_long_system_text_is_the_last(most, notes):
    llm = Contrary([("a", 0.3)], size=lambda prompt: len(prompt.split()) + 3000)
    told = SGICSettings(rounds=5, max_tokens=most, certain_below=0, least_gain=None)
    answer = answered(llm, (CASTLE,), settings=told)
    # 30 words, 3000 beside them, and 32 for the answer
    assert (answer.stop, answer.calls, answer.tokens) == ("max_tokens", 1, 3062)
    assert len(answer.notes) == notes


def test_a_model_that_writes_more_than_it_was_asked_for_ends_the_rounds():
    wordy = Generation("b " * 9000, tokens("b", 0.3), prompt_tokens=100, completion_tokens=9000)
    told = SGICSettings(rounds=5, max_tokens=9500, documents="none")
    answer = answered(ScriptedLLM(lambda p: wordy), settings=told)
    assert (answer.stop, answer.calls) == ("max_tokens", 1)


def unsure() -> ScriptedLLM:
    return model([said(t, 0.3) for t in "abcd"])


@pytest.mark.parametrize(("more", "calls", "stop"), [(0, 4, "rounds"), (-1, 3, "max_tokens")])
def test_what_replies_report_takes_the_place_of_what_they_could_have_cost(more, calls, stop):
    told, free = SGICSettings(rounds=3, documents="none", max_tokens=None), unsure()
    answered(free, settings=told)
    # each answer cost 8 tokens; the last prompt could cost one a byte, a template and an answer
    limit = 3 * 8 + len(free.prompts[-1].encode()) + TEMPLATE + 32
    answer = answered(unsure(), settings=replace(told, max_tokens=limit + more))
    assert (answer.calls, answer.tokens, answer.stop) == (calls, calls * 8, stop)


def test_an_overlong_answer_does_not_swell_the_next_prompt():
    llm = model([said("b " * 9000, 0.3)])
    answered(llm, settings=SGICSettings(rounds=3, least_gain=None, answer_tokens=8))
    assert max(map(len, llm.prompts)) < 1500


@pytest.mark.parametrize(("told", "calls", "stop"), [
    ({"rounds": 3, "max_calls": 1}, 1, "max_calls"),
    ({"rounds": 3, "max_calls": 3}, 3, "max_calls"),
    ({"rounds": 3, "max_calls": 5}, 5, "max_calls"),
    ({"rounds": 3, "max_calls": 7}, 7, "rounds"),
    # where scores are all a round would add it is not made without them
    ({"rounds": 1, "max_calls": 3, "earlier": "none"}, 1, "max_calls"),
    # samples count: 3 + 9 + 3 + 3, and 3 more is 21
    ({"rounds": 5, "max_calls": 20, "estimator": "agreement", "samples": 2, "certain_below": 0,
      "least_gain": None}, 18, "max_calls"),
])  # fmt: skip
def test_the_limit_on_calls_is_met_exactly(told, calls, stop):
    llm = unsure()
    answer = answered(llm, settings=SGICSettings(**({"rounds": 5} | told)))
    assert (answer.calls, len(llm.prompts), answer.stop) == (calls, calls, stop)


def test_documents_that_cannot_be_paid_for_are_left_without_scores_and_the_answer_says_so():
    llm = unsure()
    answer = answered(llm, settings=SGICSettings(rounds=2, max_calls=4))
    assert [len(r) for r in llm.calls] == [1, 1, 1]
    assert answer.notes == (
        "the documents were not scored: one prompt for each would pass max_calls=4",
    )
    assert (
        "Document [1]: Castle: Dirleton Castle is a fortress in East Lothian.\n"
        in (llm.prompts[-1])
    )


@pytest.mark.parametrize(("rounds", "most", "scored"), [(0, 4, True), (0, 3, False), (1, 4, False)])
def test_documents_are_scored_where_they_fit_beside_a_round_that_may_come(rounds, most, scored):
    settings = SGICSettings(rounds=rounds, score_documents="always", max_calls=most)
    answer = answered(unsure(), settings=settings)
    assert all((d.score is not None) == scored for d in answer.documents)
    assert answer.calls <= most
