"""The loop: what is asked in which order, what is shown to whom, when it ends, what is returned."""

import asyncio
import math
import threading
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
from ltrag_plugins.sgic import ScoreScale, SGICSettings, Truth, calibrate, sampled
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Token
from tests.sgic_parts import (
    BAY,
    CASTLE,
    LOOKING,
    QUESTION,
    THREE,
    TOWN,
    Sampler,
    answered,
    by_document,
    documents_in,
    gone,
    model,
    rounds_in,
    said,
)

UNSURE = [said("a", 0.3), said("b", 0.6), said("c", 0.5), said("d", 0.4)]
THREE_ROUNDS = SGICSettings(rounds=3)


def test_the_algorithm_of_the_paper_step_by_step():
    """Sections 3.1 and 3.2 transcribed: the prompts and scores are computed here by hand."""
    llm, passages = model(UNSURE, by_document), [*THREE]
    answer = answered(llm, passages, settings=THREE_ROUNDS)
    assert passages == [*THREE]  # as it was handed in
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
    assert (answer.uncertainty, answer.score) == pytest.approx((0.4, 40))
    assert answer.calls == len(llm.prompts) == 1 + 3 + 3
    assert answer.tokens == 8 * answer.calls


def test_all_rounds_share_documents_and_question_as_their_beginning():
    llm = model(UNSURE, by_document)
    answered(llm, settings=THREE_ROUNDS)
    rounds = [p for p in llm.prompts if rounds_in(p)]
    [upto] = {p[: p.index("Round 1:")] for p in rounds}
    assert QUESTION in upto
    assert all(a.removesuffix("Answer:") in b for a, b in pairwise(rounds))
    llm = model(UNSURE)
    answered(llm, settings=SGICSettings(rounds=2, documents="none"))
    first, *others = llm.prompts  # without the scores of documents it is shared too
    assert [p.startswith(first.removesuffix("Answer:")) for p in others] == [True] * 2


ANSWERS = SGICSettings.paper("answers")
TIGHT, WIDE = ScoreScale("product", (0.01,)), ScoreScale("product", (0.99,))


@pytest.mark.parametrize(("rounds", "told", "stop", "text", "made"), [
    # certain: at once, in a round, by what the scale says
    ([("a", 0.81)], {}, "certain", "a", 1),
    ([("a", 0.3), ("b", 0.3), ("c", 0.9), ("d", 0.3)], {}, "certain", "c", 3),
    ([("a", 0.9)], {"scale": TIGHT}, "settled", "a", 2),
    ([("a", 0.7)], {"scale": WIDE}, "certain", "a", 1),
    # settled: the same answer again without gain
    ([("East Lothian", 0.5), ("the east lothian.", 0.5)], {}, "settled", "East Lothian", 2),
    ([("a", 0.3), ("a", 0.4), ("a", 0.5), ("a", 0.5)], {}, "settled", "a", 4),
    ([("a", 0.3), ("a", 0.4)], {"settings": replace(LOOKING, least_gain=15)}, "settled", "a", 2),
    ([("a", 0.3)], {"settings": SGICSettings(least_gain=None, rounds=3)}, "rounds", "a", 4),
    # a sign makes another number, other writing does not
    ([("-5", 0.5), ("5", 0.5), ("5.0", 0.5)], {}, "settled", "-5", 3),
    # all rounds were made: of the least uncertain, the last, the one that is repeated
    ([("a", 0.3), ("b", 0.6)], {"settings": SGICSettings(rounds=0)}, "rounds", "a", 1),
    ([("a", 0.99)], {"settings": SGICSettings.paper()}, "rounds", "a", 6),
    ([("a", 0.3), ("b", 0.6), ("c", 0.5)],
     {"settings": SGICSettings(rounds=2, choose="last")}, "rounds", "c", 3),
    ([("a", 0.5), ("b", 0.6), ("A.", 0.1), ("c", 0.9)], {"settings": ANSWERS}, "settled", "A.", 3),
    ([("-5", 0.5), ("5", 0.5), ("1.5", 0.5), ("15", 0.5), ("$5", 0.5)],
     {"settings": ANSWERS}, "settled", "$5", 5),
    ([(t, 0.9) for t in "abcdef"], {"settings": ANSWERS}, "rounds", "f", 6),
])  # fmt: skip
def test_when_it_ends_and_what_is_returned(rounds, told, stop, text, made):
    answer = answered(model([said(*one) for one in rounds]), **told)
    assert (answer.stop, answer.text, len(answer.trace)) == (stop, text, made)
    assert answer.trace[answer.round].text == text


def test_each_round_is_judged_on_the_mean_of_its_own():
    told = {"scale": ScoreScale("product", (0.5, 0.9)), "settings": SGICSettings(rounds=1)}
    answer = answered(model([said("a", 0.5), said("b", 0.4)]), **told)
    assert [r.score for r in answer.trace] == pytest.approx([50, 100 / 3])
    assert answer.text == "b"  # its raw uncertainty is the larger


@pytest.mark.parametrize(("settings", "calls", "scores"), [
    (SGICSettings(rounds=5), 1, [None] * 3),
    (SGICSettings(rounds=5, score_documents="always"), 4, [0, 50, 100]),
])  # fmt: skip
def test_beside_a_certain_answer_documents_are_scored_only_if_told_so(settings, calls, scores):
    answer = answered(model([said("a", 0.95)], by_document), settings=settings)
    assert (answer.stop, answer.calls) == ("certain", calls)
    assert [d.score for d in answer.documents] == pytest.approx(scores)
    assert [d.passage for d in answer.documents] == list(THREE)


def test_a_question_without_documents_is_answered_once():
    llm = ScriptedLLM(lambda prompt: said("a", 0.2))
    answer = answered(llm, ())
    assert (answer.stop, answer.text, answer.documents) == ("no documents", "a", ())
    [prompt] = llm.prompts
    assert "ocument" not in prompt
    assert prompt.endswith(f"Question: {QUESTION}\nAnswer:")


def test_a_question_without_a_word_is_asked_as_it_is():
    llm = ScriptedLLM(lambda prompt: said("a", 0.2))
    assert run(calibrate(" 👍", []), World(llm=llm)).text == "a"
    assert llm.prompts[0].endswith("Question: 👍\nAnswer:")


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


def test_cutting_shows_the_most_certain_documents_in_their_order():
    llm = model(UNSURE, by_document)
    settings = SGICSettings(rounds=1, cut_to=2, earlier="none", documents="none")
    answer = answered(llm, (TOWN, BAY, CASTLE), settings=settings)
    [last] = llm.calls[-1]
    assert documents_in(last) == 2
    assert last.index("coastal") < last.index("fortress")
    assert "Uncertainty" not in last
    assert [d.shown for d in answer.documents] == [False, True, True]


@pytest.mark.parametrize(("most", "calls"), [(1, 5), (2, 5), (3, 1), (9, 1)])
def test_a_cut_that_keeps_all_documents_asks_nothing_twice(most, calls):
    settings = SGICSettings(rounds=1, earlier="none", documents="none", cut_to=most)
    llm = model([said("Paris", 0.3)])
    assert answered(llm, settings=settings).calls == len(llm.prompts) == calls
    assert llm.prompts.count(llm.prompts[0]) == 1


@pytest.mark.parametrize(("most", "calls"), [(None, 3), (2, 6), (3, 3), (5, 3)])
def test_rounds_that_show_all_documents_without_a_score_do_not_score_them(most, calls):
    told = {"documents": "none", "certain_below": 0, "least_gain": None}
    settings, llm = SGICSettings(rounds=2, cut_to=most, **told), model(UNSURE, by_document)
    answer = answered(llm, settings=settings)
    assert (answer.calls, len(llm.prompts), len(answer.trace)) == (calls, calls, 3)
    assert [documents_in(prompt) for prompt in llm.prompts[-2:]] == [min(most or 3, 3)] * 2


def test_marks_stand_before_the_documents_that_matter():
    llm = model([said("a", 0.3), said("b", 0.6)], by_document)
    settings = SGICSettings(rounds=1, documents="keys", keys=2, earlier="none")
    answered(llm, (TOWN, CASTLE, BAY), settings=settings)
    [last] = llm.calls[-1]
    marked = [line for line in last.splitlines() if line.startswith("Document [")]
    # the bay's score is 50: no better than the middle, so no key
    assert [("<<<KEY>>>" in line) for line in marked] == [False, True, False]
    assert "Uncertainty" not in last
    # with none to mark a round would ask what was asked
    llm = model([said("a", 0.3)])
    answer = answered(llm, settings=settings)
    assert (answer.stop, len(answer.trace)) == ("rounds", 1)
    assert len(set(llm.prompts)) == len(llm.prompts) == answer.calls == 4


async def test_a_relevance_function_takes_the_place_of_single_answers():
    """It may be a cross-encoder: under an event loop it runs in a thread of its own."""
    asked, threads = [], []

    def relevance(question, passages):
        asked.append((question, passages))
        threads.append(threading.current_thread())
        return [0.5, 2.5, 1.5]

    settings = SGICSettings(rounds=1, source="relevance")
    answer = answered(model(UNSURE), settings=settings, relevance=relevance)
    assert [d.score for d in answer.documents] == pytest.approx([100, 0, 50])
    assert [d.uncertainty for d in answer.documents] == [None] * 3
    assert answer.calls == 2
    flow = calibrate(QUESTION, THREE, settings, relevance=relevance)
    assert await arun(flow, World(llm=model(UNSURE))) == answer
    assert asked == [(QUESTION, THREE)] * 2
    assert [one is threading.main_thread() for one in threads] == [True, False]


@pytest.mark.parametrize(("function", "match"), [
    (lambda q, p: [1.0], "gave 1 numbers for 3 passages"),
    (lambda q, p: [math.nan] * 3, "finite"),
    (lambda q, p: 1 / 0, "raised ZeroDivisionError"),
])  # fmt: skip
def test_a_relevance_function_that_fails_is_named(function, match):
    with pytest.raises(InvalidInput, match=match):
        answered(model(UNSURE), settings=replace(LOOKING, source="relevance"), relevance=function)


def test_an_encoder_scores_by_nearness():
    class Words:
        name = "words"

        def encode(self, texts):
            wanted = ("castle", "coastal", "seaside")
            return np.array([[word in t.lower() for word in wanted] for t in texts], np.float32)

    flow = calibrate(QUESTION, THREE, settings=SGICSettings(rounds=1, source="encoder"))
    answer = run(flow, World(llm=model(UNSURE), encoder=Words()))
    assert [d.score for d in answer.documents] == pytest.approx([0, 100, 100])


def test_an_oracle_draws_low_scores_for_what_is_right_and_others_with_another_seed():
    """From 0 to 20 for a right answer or a relevant document, for the others from 80 to 100."""
    llm = model([said("Fife", 0.9), said("east lothian", 0.1), said("Fife", 0.9)])
    truth = Truth((True, False, False), ("East Lothian",))
    free = SGICSettings(source="oracle", rounds=2, certain_below=0, least_gain=None)
    answers = [answered(llm, settings=replace(free, seed=i), truth=truth) for i in range(20)]
    assert {answer.text for answer in answers} == {"east lothian"}
    drawn = [[one.score for one in (*a.trace, *a.documents)] for a in answers]
    columns = [*zip(*drawn, strict=True)]
    assert [len(set(scores)) for scores in columns] == [20] * 6
    assert [len(set(scores)) for scores in drawn] == [6] * 20
    for n, scores in enumerate(columns):
        low = 0 if n in (1, 3) else 80
        assert low <= min(scores) < low + 5 < low + 15 < max(scores) <= low + 20
    again = answered(model([said("Fife", 0.3)]), settings=replace(free, seed=7), truth=truth)
    assert again.trace[0].score == drawn[7][0]


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


def test_long_answers_that_the_product_cannot_tell_apart_are_remarked_on():
    pieces = tuple(Token("w ", -1.0) for _ in range(40))
    llm = ScriptedLLM(lambda _: Generation("w " * 40, pieces))
    [told] = answered(llm, settings=SGICSettings(rounds=0)).notes
    assert told.startswith("1 of 1 answers")
    assert "length_normalized" in told
    other = SGICSettings(rounds=0, estimator="length_normalized")
    assert answered(llm, settings=other).notes == ()


def test_the_trace_holds_prompts_where_they_are_asked_for():
    llm = model(UNSURE)
    answer = answered(llm, settings=SGICSettings(rounds=2, keep_prompts=True))
    assert [r.prompt for r in answer.trace] == [llm.prompts[0], *llm.prompts[-2:]]
    assert answered(model(UNSURE)).trace[0].prompt is None


# --- samples


def test_agreement_serves_models_without_probabilities():
    said_by_seed = {None: "East Lothian", 0: "East Lothian", 1: "Fife", 2: "in East Lothian"}
    llm = Sampler({seed: Generation(text) for seed, text in said_by_seed.items()})
    settings = SGICSettings(estimator="agreement", samples=3, rounds=0)
    answer = answered(llm, settings=settings)
    f1 = [1.0, 0.0, 2 * 2 / (2 + 3)]
    assert answer.uncertainty == pytest.approx(1 - sum(f1) / 3)
    assert (answer.calls, answer.tokens, len(answer.trace[0].samples)) == (4, None, 3)
    assert [how for _, *how in llm.asked] == [[0.0, None], *([0.7, seed] for seed in range(3))]
    with pytest.raises(NoTokenProbabilities, match="estimator='agreement'"):
        answered(llm, settings=SGICSettings(rounds=5, on_error="best"))


def test_samples_that_are_all_the_answer_are_remarked_on():
    settings = SGICSettings(estimator="agreement", rounds=0)
    same = answered(Sampler(dict.fromkeys([None, *range(5)], said("Paris"))), settings=settings)
    assert same.uncertainty == 0.0
    assert any("does not heed the temperature" in note for note in same.notes)
    one_other = dict.fromkeys([None, *range(5)], said("Paris")) | {1: said("Rome")}
    assert answered(Sampler(one_other), settings=settings).notes == ()


FOUR = {7: said("a", 0.3), 8: said("b", 0.8), 9: said("", 0.99), 10: said("d", 0.5)}
SEVEN = SGICSettings(rounds=5, seed=7, max_tokens=None)


def drawn_by(llm, samples, settings):
    return run(sampled(QUESTION, THREE, samples, settings), World(llm=llm))


def test_the_least_uncertain_sample_of_the_first_prompt_wins_and_a_blank_one_does_not():
    llm, first = Sampler(FOUR), model([said("a", 0.99)])
    answer = drawn_by(llm, 4, SEVEN)
    assert (answer.text, answer.round, answer.calls, answer.stop) == ("b", 1, 4, "rounds")
    assert answer.uncertainty == pytest.approx(0.2)
    assert [r.uncertainty for r in answer.trace] == pytest.approx([0.7, 0.2, 1.0, 0.5])
    assert answer.tokens == 4 * 8
    answered(first)
    assert llm.asked == [(first.prompts[0], 0.7, seed) for seed in (7, 8, 9, 10)]


def test_samples_are_ranked_by_the_likeliest_token_where_it_is_told():
    def draw(text: str, own: float, best: float) -> Generation:
        tops = (("x", math.log(best)), (text, math.log(own)))
        return Generation(text, (Token(text, math.log(own), alternatives=tops),))

    answer = drawn_by(
        Sampler({0: draw("a", 0.1, 0.9), 1: draw("b", 0.3, 0.7)}), 2, SGICSettings(rounds=5)
    )
    assert [r.uncertainty for r in answer.trace] == pytest.approx([0.1, 0.3])
    assert answer.text == "a"


def test_samples_stop_before_a_limit():
    llm = Sampler(FOUR)
    answer = drawn_by(llm, 4, SGICSettings(rounds=5, seed=7, max_calls=2))
    assert (len(llm.asked), answer.calls, answer.stop) == (2, 2, "max_calls")
    with pytest.raises(InvalidInput, match="max_tokens"):
        drawn_by(llm, 4, SGICSettings(rounds=5, max_tokens=5))


def test_agreement_holds_each_sample_against_the_others_without_another_call():
    texts = {0: "East Lothian", 1: "Fife", 2: "in East Lothian"}
    llm = Sampler({seed: Generation(text) for seed, text in texts.items()})
    answer = drawn_by(llm, 3, SGICSettings(rounds=5, estimator="agreement"))
    alone = 1 - 2 * 2 / (2 + 3) / 2
    assert [r.uncertainty for r in answer.trace] == pytest.approx([alone, 1.0, alone])
    assert (answer.text, len(llm.asked)) == ("East Lothian", 3)


@pytest.mark.parametrize("samples", [0, True, 2.0])
@pytest.mark.parametrize("estimator", ["product", "agreement"])
def test_a_number_of_samples_that_makes_no_sense_is_refused(samples, estimator):
    llm = Sampler(FOUR)
    with pytest.raises(InvalidInput, match="samples must be a whole number"):
        drawn_by(llm, samples, SGICSettings(rounds=5, estimator=estimator))
    assert llm.asked == []


# --- errors


def broken_at(call: int) -> ScriptedLLM:
    made: list[str] = []
    return gone(model(UNSURE, by_document), lambda prompt: made.append(prompt) or len(made) == call)


@pytest.mark.parametrize(("call", "rounds"), [(1, 0), (2, 1), (4, 1), (5, 1), (6, 2), (7, 3)])
def test_an_error_after_the_first_answer_leaves_the_best_so_far(call, rounds):
    settings = SGICSettings(rounds=3, on_error="best")
    with pytest.raises(ModelFailed, match="gone"):
        answered(broken_at(call), settings=settings if call == 1 else THREE_ROUNDS)
    if call > 1:
        answer = answered(broken_at(call), settings=settings)
        assert (answer.stop, len(answer.trace)) == ("error", rounds)
        assert str(answer.error).startswith("ModelFailed: the model raised ConnectionError: gone")
        assert answer.text == ("a" if rounds == 1 else "b")


def test_a_sample_that_fails_leaves_those_before_it():
    class Broken(Sampler):
        def generate(self, prompts, settings=GenerationSettings()):
            if settings.seed == self.at:
                raise ConnectionError("gone")
            return super().generate(prompts, settings)

    llm = Broken(FOUR)
    for llm.at, on_error in ((7, "best"), (9, "raise")):  # of the first there is nothing to return
        with pytest.raises(ModelFailed, match="gone"):
            drawn_by(llm, 4, replace(SEVEN, on_error=on_error))
    answer = drawn_by(llm, 4, replace(SEVEN, on_error="best"))
    assert (answer.text, answer.stop, len(answer.trace)) == ("b", "error", 2)
    assert str(answer.error).startswith("ModelFailed: the model raised ConnectionError: gone")


def test_a_prompt_that_grew_too_long_is_such_an_error():
    error = PromptTooLong("more than it reads")
    llm = gone(model([said("a", 0.5)]), lambda prompt: bool(rounds_in(prompt)), error)
    answer = answered(llm, settings=SGICSettings(rounds=5, on_error="best"))
    assert (answer.text, answer.stop, answer.error) == ("a", "error", f"PromptTooLong: {error}")


@pytest.mark.parametrize("together", [False, True])
def test_a_question_that_fails_beside_others_fails_alone(together):
    """The others get what they get by themselves, for one call more: the one they shared."""
    asked = [f"Where is castle {i}?" for i in range(3)]
    settings = SGICSettings(rounds=2, on_error="best")

    def llm():
        return gone(model(UNSURE, by_document), lambda p: bool(rounds_in(p)) and asked[1] in p)

    flows = [calibrate(q, THREE, settings) for q in asked]
    answers = run_many(flows, World(llm=llm()), return_exceptions=together)
    alone = [answered(llm(), question=q, settings=settings) for q in asked]
    assert answers == [replace(answer, calls=answer.calls + 1) for answer in alone]
    assert [(a.stop, len(a.trace)) for a in answers] == [("rounds", 3), ("error", 1), ("rounds", 3)]


async def test_a_cancelled_question_asks_nothing_more():
    asked = []

    async def slow(prompt):
        asked.append(prompt)
        if len(asked) > 1:
            await asyncio.sleep(60)
        return said("a", 0.5)

    flow = calibrate(QUESTION, THREE, SGICSettings(rounds=5, on_error="best", documents="none"))
    task = asyncio.create_task(arun(flow, World(llm=ScriptedLLM(slow))))
    while len(asked) < 2:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asked) == 2


ORACLE = SGICSettings(rounds=5, source="oracle")


@pytest.mark.parametrize(("told", "error", "match"), [
    ({"question": ""}, EmptyQuestion, "is empty"),
    ({"question": " \n"}, EmptyQuestion, "is empty"),
    ({"passages": "text"}, InvalidInput, "passage 1 is a str"),
    ({"passages": None}, InvalidInput, "passages must be a list of.*an empty one, got NoneType"),
    ({"passages": [CASTLE, "text"]}, InvalidInput, "passage 2 is a str"),
    ({"scale": ScoreScale("entropy")}, ArtifactMismatch, "'entropy'.*'product'"),
    ({"settings": ORACLE, "truth": Truth((True,), ("a",))}, InvalidInput, "about 1 .* are 3"),
    ({"settings": ORACLE}, InvalidInput, "needs truth="),
    ({"settings": SGICSettings(rounds=5, source="relevance")}, InvalidInput, "needs relevance="),
    ({"settings": SGICSettings(rounds=5, max_tokens=50)}, InvalidInput, "could pass max_tokens=50"),
])  # fmt: skip
def test_what_cannot_be_answered_is_refused_before_a_call(told, error, match):
    llm = model(UNSURE)
    with pytest.raises(error, match=match):
        answered(llm, **told)
    assert llm.prompts == []
