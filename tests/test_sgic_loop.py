"""The loop: what is asked in which order, what is shown to whom, when it ends, what is returned."""

import asyncio
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ltrag_plugins.errors import (
    ArtifactMismatch,
    EmptyQuestion,
    InvalidInput,
    ModelFailed,
    NoTokenProbabilities,
    PromptTooLong,
)
from ltrag_plugins.flow import World, arun, run, run_many
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import ScoreScale, SGICSettings, Truth, calibrate
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Token
from tests.sgic_parts import (
    BAY,
    CASTLE,
    QUESTION,
    THREE,
    TOWN,
    answered,
    documents_in,
    model,
    rounds_in,
    said,
)

UNSURE = [said("a", 0.3), said("b", 0.6), said("c", 0.5), said("d", 0.4)]
THREE_ROUNDS = SGICSettings(rounds=3)


def by_document(prompt: str) -> Generation:
    """The castle's document makes sure, the bay's less so, the town's not at all."""
    for word, probability in (("fortress", 0.9), ("coastal", 0.5), ("seaside", 0.1)):
        if word in prompt:
            return said("there", probability)
    raise AssertionError(prompt)


def test_the_algorithm_of_the_paper_step_by_step():
    """Sections 3.1 and 3.2 transcribed: the prompts and scores are computed here by hand."""
    llm = model(UNSURE, by_document)
    answer = answered(llm, settings=THREE_ROUNDS)
    first, alone, *rounds = llm.calls
    assert [documents_in(p) for p in first] == [3]
    assert [documents_in(p) for p in alone] == [1, 1, 1]  # in one request
    assert [len(call) for call in rounds] == [1, 1, 1]
    s_doc = np.array([1 - 0.9, 1 - 0.5, 1 - 0.1])
    shown = 100 * (s_doc - s_doc.min()) / (s_doc.max() - s_doc.min())  # eq. 3
    assert [d.score for d in answer.documents] == pytest.approx(shown)
    assert [d.uncertainty for d in answer.documents] == pytest.approx(s_doc)
    for (prompt,) in rounds:
        for i, (passage, score) in enumerate(zip(THREE, shown, strict=True), 1):
            lead = f"{passage.title}: " if passage.title else ""
            line = f"Document [{i}]: {lead}{passage.text} (Uncertainty Score: {round(score)})"
            assert line in prompt.splitlines()
    lines = [f"Round {n + 1}: {text} (Uncertainty Score: {score})"
             for n, (text, score) in enumerate([("a", 70), ("b", 40), ("c", 50)])]  # fmt: skip
    assert [rounds_in(p) for (p,) in rounds] == [lines[:1], lines[:2], lines[:3]]
    assert [r.text for r in answer.trace] == ["a", "b", "c", "d"]
    assert (answer.text, answer.round, answer.stop) == ("b", 1, "rounds")
    assert answer.uncertainty == pytest.approx(0.4)
    assert answer.score == pytest.approx(40)
    assert answer.calls == len(llm.prompts) == 1 + 3 + 3
    assert answer.tokens == 8 * answer.calls


def test_all_rounds_share_documents_and_question_as_their_beginning():
    llm = model(UNSURE, by_document)
    answered(llm, settings=THREE_ROUNDS)
    rounds = [p for p in llm.prompts if rounds_in(p)]
    upto = [p[: p.index("Round 1:")] for p in rounds]
    assert len(set(upto)) == 1
    assert QUESTION in upto[0]
    assert all(a.removesuffix("Answer:") in b for a, b in pairwise(rounds))


def test_without_document_scores_the_first_prompt_is_shared_too():
    llm = model(UNSURE)
    answered(llm, settings=SGICSettings(rounds=2, documents="none"))
    first, second, third = llm.prompts
    assert second.startswith(first.removesuffix("Answer:"))
    assert third.startswith(first.removesuffix("Answer:"))


def test_a_certain_first_answer_is_left_alone():
    llm = model([said("a", 0.81)])
    answer = answered(llm)
    assert (answer.text, answer.stop, len(llm.prompts)) == ("a", "certain", 1)
    assert [d.score for d in answer.documents] == [None] * 3
    assert [d.passage for d in answer.documents] == list(THREE)


def test_documents_can_be_scored_all_the_same():
    llm = model([said("a", 0.95)], by_document)
    answer = answered(llm, settings=SGICSettings(score_documents="always"))
    assert (answer.stop, answer.calls) == ("certain", 4)
    assert [d.score for d in answer.documents] == pytest.approx([0, 50, 100])


def test_a_round_that_is_certain_is_the_last():
    answer = answered(model([said("a", 0.3), said("b", 0.3), said("c", 0.9), said("d", 0.3)]))
    assert (answer.stop, answer.round, answer.text, len(answer.trace)) == ("certain", 2, "c", 3)


def test_certain_is_what_the_scale_says():
    tight = ScoreScale("product", (0.01,))
    assert answered(model([said("a", 0.9)] * 9), scale=tight).stop != "certain"
    wide = ScoreScale("product", (0.99,))
    assert answered(model([said("a", 0.7)]), scale=wide).stop == "certain"


def test_the_same_answer_again_without_gain_ends_it():
    llm = model([said("East Lothian", 0.5), said("the east lothian.", 0.5)])
    answer = answered(llm)
    assert (answer.stop, answer.round, answer.text) == ("settled", 0, "East Lothian")


def test_the_same_answer_with_a_gain_goes_on():
    more = [said("a", 0.3), said("a", 0.4), said("a", 0.5), said("a", 0.5)]
    assert len(answered(model(more)).trace) == 4
    settings = SGICSettings(least_gain=15)
    assert len(answered(model(more), settings=settings).trace) == 2
    never = SGICSettings(least_gain=None, rounds=3)
    assert answered(model(more), settings=never).stop == "rounds"


def test_no_rounds_is_the_first_answer_measured():
    llm = model(UNSURE)
    answer = answered(llm, settings=SGICSettings(rounds=0))
    assert (answer.text, answer.stop, answer.calls) == ("a", "rounds", 1)
    assert answer.uncertainty == pytest.approx(0.7)


def test_each_round_is_judged_on_the_mean_of_its_own():
    scale = ScoreScale("product", (0.5, 0.9))
    answer = answered(model([said("a", 0.5), said("b", 0.4)]),
                      scale=scale, settings=SGICSettings(rounds=1))  # fmt: skip
    assert [r.score for r in answer.trace] == pytest.approx([50, 100 / 3])
    assert answer.text == "b"  # its raw uncertainty is the larger


def test_a_question_without_documents_is_answered_once():
    llm = ScriptedLLM(lambda prompt: said("a", 0.2))
    answer = answered(llm, ())
    assert (answer.stop, answer.text, answer.documents) == ("no documents", "a", ())
    [prompt] = llm.prompts
    assert "ocument" not in prompt
    assert prompt.endswith(f"Question: {QUESTION}\nAnswer:")


def test_documents_that_say_the_same_are_asked_about_once_and_both_scored():
    llm = model(UNSURE, by_document)
    twin = Passage(CASTLE.text, id="z", title="Castle", metadata={"from": "elsewhere"})
    answer = answered(llm, (CASTLE, TOWN, twin), settings=THREE_ROUNDS)
    assert [len(call) for call in llm.calls][:2] == [1, 2]
    assert [d.score for d in answer.documents] == pytest.approx([0, 100, 0])
    assert [d.passage for d in answer.documents] == [CASTLE, TOWN, twin]
    assert answer.calls == len(llm.prompts)


def test_the_only_document_is_not_asked_about_again():
    llm = ScriptedLLM(lambda p: said("a" if not rounds_in(p) else "b", 0.3))
    answer = answered(llm, (CASTLE,), settings=SGICSettings(rounds=1))
    assert (answer.calls, len(llm.prompts)) == (2, 2)
    [document] = answer.documents
    assert (document.answer, document.score) == ("a", 50.0)
    assert document.uncertainty == pytest.approx(0.7)


def test_many_questions_go_to_the_model_together():
    llm = model(UNSURE, by_document)
    flows = [calibrate(f"{QUESTION} {i}", THREE, settings=THREE_ROUNDS) for i in range(4)]
    together = run_many(flows, World(llm=llm))
    assert [len(call) for call in llm.calls] == [4, 12, 4, 4, 4]
    alone = answered(model(UNSURE, by_document), question=f"{QUESTION} 2", settings=THREE_ROUNDS)
    assert together[2] == alone


def test_cutting_shows_the_most_certain_documents_in_their_order():
    llm = model(UNSURE, by_document)
    settings = SGICSettings(rounds=1, cut_to=2, earlier="none", documents="none")
    answer = answered(llm, (TOWN, BAY, CASTLE), settings=settings)
    [last] = llm.calls[-1]
    assert documents_in(last) == 2
    assert last.index("coastal") < last.index("fortress")
    assert "seaside" not in last
    assert "Uncertainty" not in last
    assert [d.shown for d in answer.documents] == [False, True, True]


def test_marks_stand_before_the_documents_that_matter():
    llm = model([said("a", 0.3), said("b", 0.6)], by_document)
    settings = SGICSettings(rounds=1, documents="keys", keys=2, earlier="none")
    answered(llm, (TOWN, CASTLE, BAY), settings=settings)
    [last] = llm.calls[-1]
    marked = [line for line in last.splitlines() if line.startswith("Document [")]
    # the bay's score is 50: no better than the middle, so no key
    assert [("<<<KEY>>>" in line) for line in marked] == [False, True, False]
    assert "Uncertainty" not in last


def test_a_relevance_function_takes_the_place_of_single_answers():
    llm = model(UNSURE)
    asked = []

    def relevance(question, passages):
        asked.append((question, passages))
        return [0.5, 2.5, 1.5]

    settings = SGICSettings(rounds=1, source="relevance")
    answer = answered(llm, settings=settings, relevance=relevance)
    assert asked == [(QUESTION, THREE)]
    assert [d.score for d in answer.documents] == pytest.approx([100, 0, 50])
    assert [d.uncertainty for d in answer.documents] == [None] * 3
    assert answer.calls == 2


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda q, p: [1.0], "gave 1 numbers for 3 passages"),
        (lambda q, p: [math.nan] * 3, "finite"),
        (lambda q, p: 1 / 0, "raised ZeroDivisionError"),
        (None, "needs relevance="),
    ],
)
def test_a_relevance_function_that_fails_is_named(function, match):
    with pytest.raises(InvalidInput, match=match):
        answered(model(UNSURE), settings=SGICSettings(source="relevance"), relevance=function)


def test_an_encoder_scores_by_nearness():
    class Words:
        name = "words"

        def encode(self, texts):
            wanted = ("castle", "coastal", "seaside")
            return np.array([[word in t.lower() for word in wanted] for t in texts], np.float32)

    flow = calibrate(QUESTION, THREE, settings=SGICSettings(rounds=1, source="encoder"))
    answer = run(flow, World(llm=model(UNSURE), encoder=Words()))
    assert [d.score for d in answer.documents] == pytest.approx([0, 100, 100])


def test_oracle_scores_are_low_for_what_is_right_and_high_for_what_is_wrong():
    truth = Truth((True, False, False), ("East Lothian",))
    settings = SGICSettings(source="oracle", certain_below=0, rounds=2)
    llm = model([said("Fife", 0.9), said("east lothian", 0.1), said("Fife", 0.9)])
    answer = answered(llm, settings=settings, truth=truth)
    good, *bad = [d.score for d in answer.documents if d.score is not None]
    assert 0 <= good <= 20
    assert all(80 <= score <= 100 for score in bad)
    assert [r.score <= 20 for r in answer.trace] == [False, True, False]
    assert answer.text == "east lothian"
    assert answered(model([said("Fife")] * 3), settings=settings, truth=truth).trace[0].score == (
        answer.trace[0].score
    )


def test_an_oracle_must_know_every_document():
    settings = SGICSettings(source="oracle")
    with pytest.raises(InvalidInput, match="about 1 passages, and there are 3"):
        answered(model(UNSURE), settings=settings, truth=Truth((True,), ("a",)))
    with pytest.raises(InvalidInput, match="needs truth="):
        answered(model(UNSURE), settings=settings)


def test_steps_stand_in_the_place_of_documents():
    llm = ScriptedLLM(lambda p: said("$70,000", 0.3))
    steps = [Passage("The house cost $80,000."), Passage("So the profit is $<<80-10=70>>70.")]
    answer = answered(llm, steps, question="How much profit?", settings=SGICSettings.steps())
    assert not any("document" in prompt.lower() for prompt in llm.prompts)
    first, one, _, last = llm.prompts
    assert "Reasoning Steps:\n1. The house cost $80,000.\n2. So" in first
    assert "$<<80-10=70>>70." in first
    assert "Reasoning Steps:\n1. The house cost $80,000.\nFinal Answer:" in one
    assert "2. So the profit is $<<80-10=70>>70. (Uncertainty Score: 50)" in last
    assert last.endswith("Round 1: $70,000 (Uncertainty Score: 70)\nFinal Answer:")
    assert answer.stop == "settled"


def test_agreement_serves_models_without_probabilities():
    written = {None: "East Lothian", 0: "East Lothian", 1: "Fife", 2: "in East Lothian"}

    class Sampler:
        name = "sampler"
        seeds: list = []  # noqa: RUF012

        def generate(self, prompts, settings=GenerationSettings()):
            assert (settings.temperature > 0) == (settings.seed is not None)
            self.seeds.append(settings.seed)
            return [Generation(written[settings.seed]) for _ in prompts]

    settings = SGICSettings(estimator="agreement", samples=3, rounds=0)
    answer = run(calibrate(QUESTION, THREE, settings=settings), World(llm=Sampler()))
    f1 = [1.0, 0.0, 2 * 2 / (2 + 3)]
    assert answer.uncertainty == pytest.approx(1 - sum(f1) / 3)
    assert answer.calls == 4
    assert answer.tokens is None
    assert Sampler.seeds == [None, 0, 1, 2]
    assert len(answer.trace[0].samples) == 3


def test_a_model_without_probabilities_is_refused_with_the_remedy():
    with pytest.raises(NoTokenProbabilities, match="estimator='agreement'"):
        answered(ScriptedLLM(lambda p: "East Lothian"), settings=SGICSettings(on_error="best"))


def test_a_blank_answer_is_the_least_certain_and_is_returned_only_if_all_are():
    blank = Generation("  ", (), prompt_tokens=7, completion_tokens=0)
    guess = Generation("bb", (Token("b", -20.0),) * 2, prompt_tokens=7, completion_tokens=2)
    for how in ("least uncertain", "last"):
        settings = SGICSettings(rounds=2, choose=how)
        answer = answered(model([blank, guess, blank]), settings=settings)
        assert [r.score for r in answer.trace] == [100, 100, 100]
        assert answer.text == "bb"
    silent = answered(model([blank] * 6, lambda p: blank))
    assert (silent.text, silent.uncertainty, silent.stop) == ("", 1.0, "settled")
    assert [d.score for d in silent.documents] == [50.0] * 3


def test_the_repeated_answer_is_taken_where_answers_have_no_scores():
    llm = model([said("a", 0.5), said("b", 0.6), said("A.", 0.1), said("c", 0.9)])
    answer = answered(llm, settings=SGICSettings.paper("answers"))
    assert (answer.text, answer.round, answer.stop) == ("A.", 2, "settled")
    assert all("Uncertainty" not in prompt for prompt in llm.prompts)
    assert rounds_in(llm.prompts[-1]) == ["Round 1: a", "Round 2: b"]
    never = answered(
        model([said(t, 0.9) for t in "abcdef"]), settings=SGICSettings.paper("answers")
    )
    assert (never.text, never.stop) == ("f", "rounds")


def test_the_papers_full_form_makes_all_rounds():
    answer = answered(model([said("a", 0.99)] * 6), settings=SGICSettings.paper())
    assert (answer.stop, len(answer.trace), answer.round) == ("rounds", 6, 0)


def test_the_last_answer_can_be_asked_for():
    settings = SGICSettings(rounds=2, choose="last")
    assert answered(model(UNSURE), settings=settings).text == "c"


def broken_at(call: int) -> ScriptedLLM:
    inner = model(UNSURE, by_document)
    made: list[str] = []

    def write(prompt):
        made.append(prompt)
        if len(made) == call:
            raise ConnectionError("gone")
        [reply] = inner.generate([prompt])
        return reply

    return ScriptedLLM(write)


@pytest.mark.parametrize(("call", "rounds"), [(2, 1), (4, 1), (5, 1), (6, 2), (7, 3)])
def test_an_error_after_the_first_answer_leaves_the_best_so_far(call, rounds):
    settings = SGICSettings(rounds=3, on_error="best")
    answer = answered(broken_at(call), settings=settings)
    assert (answer.stop, len(answer.trace)) == ("error", rounds)
    assert str(answer.error).startswith("ModelFailed: the model raised ConnectionError: gone")
    assert answer.text == ("a" if rounds == 1 else "b")
    with pytest.raises(ModelFailed, match="gone"):
        answered(broken_at(call), settings=THREE_ROUNDS)


@pytest.mark.parametrize("together", [False, True])
def test_a_question_that_fails_beside_others_fails_alone(together):
    """The others get what they get by themselves, for one call more: the one they shared."""
    asked = [f"Where is castle {i}?" for i in range(3)]
    settings = SGICSettings(rounds=2, on_error="best")

    def llm():
        inner = model(UNSURE, by_document)

        def write(prompt):
            if rounds_in(prompt) and asked[1] in prompt:
                raise ConnectionError("gone")
            return inner.generate([prompt])[0]

        return ScriptedLLM(write)

    flows = [calibrate(q, THREE, settings) for q in asked]
    answers = run_many(flows, World(llm=llm()), return_exceptions=together)
    alone = [answered(llm(), question=q, settings=settings) for q in asked]
    assert answers == [replace(answer, calls=answer.calls + 1) for answer in alone]
    assert [(a.stop, len(a.trace)) for a in answers] == [("rounds", 3), ("error", 1), ("rounds", 3)]


def test_without_marks_or_scores_to_show_the_first_prompt_is_not_sent_again():
    settings = SGICSettings(rounds=1, earlier="none", documents="keys")
    llm = model([said("a", 0.3)], lambda _: said("x", 0.5))
    answer = answered(llm, settings=settings)
    assert (answer.stop, len(answer.trace)) == ("rounds", 1)
    assert len(set(llm.prompts)) == len(llm.prompts) == answer.calls == 4
    marked = answered(model([said("a", 0.3)], by_document), settings=settings)
    assert len(marked.trace) == 2


@pytest.mark.parametrize(("rounds", "most", "scored"), [(0, 4, True), (0, 3, False), (1, 4, False)])
def test_documents_are_scored_where_they_fit_beside_a_round_that_may_come(rounds, most, scored):
    settings = SGICSettings(rounds=rounds, score_documents="always", max_calls=most)
    answer = answered(model(UNSURE, by_document), settings=settings)
    assert all((d.score is not None) == scored for d in answer.documents)
    assert answer.calls <= most


def test_long_answers_that_the_product_cannot_tell_apart_are_remarked_on():
    pieces = tuple(Token("w ", -1.0) for _ in range(40))
    llm = ScriptedLLM(lambda _: Generation("w " * 40, pieces))
    told = answered(llm, settings=SGICSettings(rounds=0)).notes
    assert [note.startswith("1 of 1 answers") for note in told] == [True]
    assert "length_normalized" in told[0]
    other = SGICSettings(rounds=0, estimator="length_normalized")
    assert answered(llm, settings=other).notes == ()


def test_an_error_before_the_first_answer_is_raised_always():
    with pytest.raises(ModelFailed, match="gone"):
        answered(broken_at(1), settings=SGICSettings(on_error="best"))


def test_a_prompt_that_grew_too_long_is_such_an_error():
    class Short:
        name = "short"

        def generate(self, prompts, settings=GenerationSettings()):
            if rounds_in(prompts[0]):
                raise PromptTooLong("more than it reads")
            return [said("a", 0.5) for _ in prompts]

    flow = calibrate(QUESTION, THREE, settings=SGICSettings(on_error="best"))
    answer = run(flow, World(llm=Short()))
    assert (answer.text, answer.stop) == ("a", "error")


def test_a_cancelled_question_asks_nothing_more():
    asked = []

    async def slow(prompt):
        asked.append(prompt)
        if len(asked) > 1:
            await asyncio.sleep(60)
        return said("a", 0.5)

    async def cancelled():
        settings = SGICSettings(on_error="best", documents="none")
        flow = calibrate(QUESTION, THREE, settings=settings)
        task = asyncio.create_task(arun(flow, World(llm=ScriptedLLM(slow))))
        while len(asked) < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert len(asked) == 2


def test_the_trace_holds_prompts_where_they_are_asked_for():
    llm = model(UNSURE)
    answer = answered(llm, settings=SGICSettings(rounds=2, keep_prompts=True))
    assert [r.prompt for r in answer.trace] == [llm.prompts[0], *llm.prompts[-2:]]
    assert answered(model(UNSURE)).trace[0].prompt is None


@pytest.mark.parametrize("question", ["", " \n", "?!"])
def test_a_question_without_words(question):
    with pytest.raises(EmptyQuestion, match="has no words"):
        answered(model(UNSURE), question=question)


@pytest.mark.parametrize(
    ("passages", "match"),
    [("text", "passage 1 is a str"), ([CASTLE, "text"], "passage 2 is a str")],
)
def test_passages_that_are_strings(passages, match):
    llm = model(UNSURE)
    with pytest.raises(InvalidInput, match=match):
        answered(llm, passages)
    assert llm.prompts == []


def test_a_scale_of_another_estimator():
    llm = model(UNSURE)
    with pytest.raises(ArtifactMismatch, match=r"'entropy'.*'product'"):
        answered(llm, scale=ScoreScale("entropy", (0.5,)))
    assert llm.prompts == []


def test_nothing_that_was_handed_in_is_changed():
    passages = [CASTLE, BAY, TOWN]
    answered(model(UNSURE), passages)
    assert passages == [CASTLE, BAY, TOWN]
