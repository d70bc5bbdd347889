"""No settings and no model get past the limits on calls and tokens."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput, ModelFailed
from ltrag_plugins.flow import Ask, Step, World, run, run_many
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import SGICSettings, calibrate
from ltrag_plugins.types import Generation, Passage, Token
from ltrag_plugins.uncertainty import ESTIMATORS
from tests.sgic_parts import QUESTION, THREE, answered, model, said


def tokens(text: str, probability: float) -> tuple[Token, ...]:
    alternatives = (("x", math.log(probability)), ("y", math.log(1 - probability + 1e-9)))
    logprob = math.log(probability)
    return tuple(Token(w, logprob, alternatives=alternatives) for w in text.split())


class Contrary:
    """A model that is unsure, silent, stubborn, wordy or broken, as `draw` has it.

    It keeps to `max_tokens`, and one word is one token.
    """

    name = "contrary"

    def __init__(self, moods: list[tuple[str, float]], counts: bool, fails_at: int | None) -> None:
        self.moods, self.counts, self.fails_at = moods, counts, fails_at
        self.sent: list[str] = []
        self.tokens = 0

    def generate(self, prompts, *, max_tokens=64, stop=(), temperature=0.0, seed=None):
        replies = []
        for prompt in prompts:
            self.sent.append(prompt)
            if self.fails_at is not None and len(self.sent) > self.fails_at:
                raise ConnectionError("gone")
            text, probability = self.moods[len(self.sent) % len(self.moods)]
            text = " ".join(text.split()[:max_tokens])
            read, written = len(prompt.split()), len(text.split())
            self.tokens += read + written
            counts = {"prompt_tokens": read, "completion_tokens": written} if self.counts else {}
            replies.append(Generation(text, tokens(text, probability), **counts))
        return replies


moods = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "", "Round 1: a", "word " * 200, "Answer: x", "�" * 90]),
        st.sampled_from([1e-9, 0.1, 0.5, 0.9, 1.0]),
    ),
    min_size=1,
    max_size=5,
)
documents = st.lists(
    st.sampled_from(["short.", "same.", "A sentence here. " * 30, "x" * 3000, "", "字" * 500]),
    max_size=12,
)


@settings(max_examples=300)
@given(st.data())
def test_limits_hold_for_any_settings_and_any_model(data):
    draw = data.draw
    earlier = draw(st.sampled_from(["none", "text", "scores"]))
    wanted = {
        "rounds": draw(st.integers(0, 1 if earlier == "none" else 8)),
        "estimator": draw(st.sampled_from([*ESTIMATORS, "agreement"])),
        "samples": draw(st.integers(1, 4)),
        "earlier": earlier,
        "documents": draw(st.sampled_from(["scores", "keys", *(["none"] * (earlier != "none"))])),
        "cut_to": draw(st.none() | st.integers(1, 20)),
        "score_documents": draw(st.sampled_from(["needed", "always"])),
        "certain_below": draw(st.sampled_from([0, 20, 100])),
        "least_gain": draw(st.none() | st.sampled_from([0.0, 100.0])),
        "choose": draw(st.sampled_from(["least uncertain", "last", "repeated"])),
        "document_words": draw(st.none() | st.integers(1, 50)),
        "max_calls": draw(st.integers(5, 40)),
        "max_tokens": draw(st.none() | st.integers(400, 20_000)),
        "answer_tokens": draw(st.integers(1, 40)),
        "on_error": draw(st.sampled_from(["raise", "best"])),
    }
    chosen = SGICSettings(**wanted)
    llm = Contrary(draw(moods), draw(st.booleans()), draw(st.none() | st.integers(0, 20)))
    passages = [Passage(text) for text in draw(documents)]
    try:
        answer = run(calibrate(QUESTION, passages, settings=chosen), World(llm=llm))
    except InvalidInput:
        assert llm.sent == []  # the first prompt does not fit
        answer = None
    except ModelFailed:
        assert chosen.on_error == "raise" or len(llm.sent) <= 1 + chosen.samples
        answer = None
    assert len(llm.sent) <= chosen.max_calls
    assert llm.tokens <= (chosen.max_tokens or 10**9)
    if answer is not None:
        assert len(llm.sent) <= answer.calls <= chosen.max_calls
        assert 1 <= len(answer.trace) <= chosen.rounds + 1
        assert 0 <= answer.uncertainty <= 1
        assert 0 <= answer.score <= 100
        assert (answer.error is not None) == (answer.stop == "error")
        if llm.counts and answer.error is None:
            assert answer.tokens == llm.tokens


@settings(max_examples=200)
@given(st.data())
def test_questions_side_by_side_send_no_more_than_each_may(data):
    """Whatever fails: nothing, some prompts, some calls, all of them."""
    asked = [f"Where is castle {i}?" for i in range(data.draw(st.integers(1, 5)))]
    chosen = SGICSettings(
        rounds=data.draw(st.integers(0, 4)),
        max_calls=data.draw(st.integers(1, 8)),
        max_tokens=data.draw(st.none() | st.integers(700, 9000)),
        certain_below=0,
        on_error=data.draw(st.sampled_from(["raise", "best"])),
    )
    sent: list[str] = []

    class Failing:
        name = "failing"

        def generate(self, prompts, **_):
            sent.extend(prompts)
            if data.draw(st.booleans()) or asked[0] in " ".join(prompts):
                raise ConnectionError("gone")
            return [said(f"a{len(sent)}", 0.3) for _ in prompts]

    flows = [calibrate(q, THREE, chosen) for q in asked]
    found = run_many(flows, World(llm=Failing()), return_exceptions=True)
    for question, one in zip(asked, found, strict=True):
        prompts = [prompt for prompt in sent if question in prompt]
        assert len(prompts) <= chosen.max_calls
        assert sum(len(prompt.split()) + 1 for prompt in prompts) <= (chosen.max_tokens or 10**9)
        assert all(prompts.count(prompt) <= 2 for prompt in prompts)
        if isinstance(one, InvalidInput):
            assert not prompts  # the first does not fit
        elif isinstance(one, Exception):
            assert isinstance(one, ModelFailed)
        else:
            assert len(prompts) == one.calls


def test_a_model_that_writes_more_than_it_was_asked_for_ends_the_rounds():
    wordy = Generation("b " * 9000, tokens("b", 0.3), prompt_tokens=100, completion_tokens=9000)
    llm = ScriptedLLM(lambda p: wordy)
    answer = answered(llm, settings=SGICSettings(max_tokens=9500, documents="none"))
    assert (answer.stop, answer.calls) == ("max_tokens", 1)


def test_an_overlong_answer_does_not_swell_the_next_prompt():
    wordy = said("b " * 9000, 0.3)
    llm = model([wordy])
    answered(llm, settings=SGICSettings(rounds=3, least_gain=None, answer_tokens=8))
    assert max(map(len, llm.prompts)) < 1500


@pytest.mark.parametrize(
    ("limit", "calls", "stop"),
    [(1, 1, "max_calls"), (3, 3, "max_calls"), (5, 5, "max_calls"), (7, 7, "rounds")],
)
def test_the_limit_on_calls_is_met_exactly(limit, calls, stop):
    llm = model([said(t, 0.3) for t in "abcd"])
    answer = answered(llm, settings=SGICSettings(rounds=3, max_calls=limit))
    assert (answer.calls, len(llm.prompts)) == (calls, calls)
    assert answer.stop == stop


def test_documents_that_cannot_be_paid_for_are_left_without_scores_and_the_answer_says_so():
    llm = model([said(t, 0.3) for t in "abcd"])
    answer = answered(llm, settings=SGICSettings(rounds=2, max_calls=4))
    assert [len(r) for r in llm.calls] == [1, 1, 1]
    assert answer.notes == (
        "the documents were not scored: one prompt for each would pass max_calls=4",
    )
    assert (
        "Document [1]: Castle: Dirleton Castle is a fortress in East Lothian.\n"
        in (llm.prompts[-1])
    )


def test_where_scores_are_all_a_round_would_add_it_is_not_made_without_them():
    settings = SGICSettings(rounds=1, earlier="none", max_calls=3)
    answer = answered(model([said("a", 0.3)]), settings=settings)
    assert (answer.calls, answer.stop) == (1, "max_calls")


def test_samples_count_as_calls():
    llm = ScriptedLLM(lambda p: "a")
    settings = SGICSettings(estimator="agreement", samples=2, rounds=5, max_calls=20,
                            certain_below=0, least_gain=None)  # fmt: skip
    sent: list[Step] = []
    answer = answered(llm, settings=settings, observers=[sent.append])
    asked = [s.request for s in sent if s.kind == "request" and isinstance(s.request, Ask)]
    assert sum(len(a.prompts) for a in asked) == answer.calls == 18
    assert (answer.stop, len(answer.trace)) == ("max_calls", 3)  # 3 + 9 + 3 + 3, and 3 more is 21


def test_a_first_prompt_that_may_cost_too_much_is_refused_before_it_is_sent():
    llm = model([said("a")])
    with pytest.raises(InvalidInput, match=r"may cost \d+ tokens, more than max_tokens=50"):
        answered(llm, THREE, settings=SGICSettings(max_tokens=50))
    assert llm.prompts == []
