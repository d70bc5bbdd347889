"""Labels without an answer key, targets against always retrieving, and what a gate saves."""

import logging
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ltrag_plugins.errors import CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.gece import GECEGate, GECESettings, fit_outcomes
from ltrag_plugins.gece.labels import answers_agree
from ltrag_plugins.gece.savings import Usage, savings_of
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.types import Answer, Generation, Token
from tests.gece_parts import COLOURS, answer, honest_llm, questions

PRODUCT = GECESettings(scorer="product", folds=2)
TEXTS = [question.text for question in questions()]
CHAIN = [f"It is {COLOURS[i % 8]}." for i in range(60)]
"""What a chain answers that is right, in a sentence."""


@pytest.mark.parametrize(
    ("answer", "other", "same"),
    [
        ("Jane Austen", "jane austen.", True),
        ("John Smith", "John Adams", False),
        ("King George III", "King George IV", False),
        ("on 4 May 1904 in Rome", "4 May 1904", True),
        ("Austen", "It was Jane Austen.", True),
        ("It was Jane Austen, in 1815", "Jane Austen", True),
        ("the big red house", "a big house, red", True),
        ("1912", "in 1913", False),
        ("art", "party", False),
        ("", "Jane Austen", False),
        ("Jane Austen", " ", False),
        ("!!!", "!!!", True),
        ("法国的首都是巴黎。", "巴黎", True),
        ("서울입니다", "부산", False),
    ],
)
def test_short_answers_agree_by_their_words(answer, other, same):
    assert answers_agree(answer, other) is answers_agree(other, answer) is same


def test_where_no_answer_is_accepted_right_means_agreement_with_the_chain():
    gate = GECEGate.fit(TEXTS, llm=honest_llm(), retrieved_answers=CHAIN, settings=PRODUCT)
    known = GECEGate.fit(
        questions(), llm=honest_llm(), retrieved_answers=CHAIN, settings=PRODUCT, target_rate=0.5
    )
    told = gate.report
    assert (told.agreement, known.report.agreement) == (1.0, 0.0)
    assert (told.direct_accuracy, told.retrieval_accuracy) == (0.5, 1.0)
    assert told.auroc == known.report.auroc  # the chain is right, so both labels are the same
    assert "agreement with retrieval on 100%" in str(told)
    assert any("60 of 60 questions have no accepted answers" in note for note in told.notes)


def test_a_mixed_set_uses_both_labels():
    wrong = replace(questions()[0], answers=("purple",))  # the draft says red, as the chain does
    report = GECEGate.fit(
        [wrong, *TEXTS[1:]], llm=honest_llm(), retrieved_answers=CHAIN, settings=PRODUCT
    ).report
    assert report.agreement == pytest.approx(59 / 60)
    assert report.direct_accuracy == pytest.approx(29 / 60)
    assert report.retrieval_accuracy == pytest.approx(59 / 60)


LONG = [
    f"{text} The neighbours who live there say it is {CHAIN[i]}" for i, text in enumerate(TEXTS)
]


def test_a_judge_decides_on_long_answers_alone(caplog):
    seen = []

    def judge(question: str, answer: str, reference: str) -> float:
        seen.append((question, answer, reference))
        return 0.5 if answer == "red" else 0.49

    answers = [*LONG[:30], *CHAIN[30:]]
    fitted = {"llm": honest_llm(), "retrieved_answers": answers, "settings": PRODUCT}
    report = GECEGate.fit(TEXTS, correct=judge, **fitted).report
    assert len(seen) == 30
    assert seen[0] == (TEXTS[0], "red", LONG[0])
    red = sum(i % 8 == 0 for i in range(30))  # the judge's; the last thirty are word against word
    assert report.direct_accuracy == pytest.approx((red + 15) / 60)
    assert "longer than 10 words" not in caplog.text
    GECEGate.fit(TEXTS, **fitted)
    assert "30 of 60 answers to compare with are longer than 10 words" in caplog.text
    for wrong in ("perhaps", None, math.nan, 7):
        with pytest.raises(InvalidInput, match=f"correct= gave {wrong!r}"):
            GECEGate.fit(TEXTS, correct=lambda *_: wrong, **fitted)  # noqa: B023


def test_a_model_as_judge_is_read_by_its_probability_of_yes():
    def unsure(prompt: str) -> Generation:
        yes = 0.6 if "Other answer: red" in prompt else 0.4
        tops = (("no", math.log(1 - yes)), ("yes", math.log(yes)))
        return Generation("no", (Token("no", tops[0][1], alternatives=tops),))

    judge = ScriptedLLM(unsure)
    report = GECEGate.fit(
        TEXTS, llm=honest_llm(), retrieved_answers=LONG, correct=judge, settings=PRODUCT
    ).report
    assert report.direct_accuracy == pytest.approx(sum(i % 8 == 0 for i in range(60)) / 60)


def test_sentence_long_accepted_answers_are_no_dead_end():
    sentences = [replace(q, answers=(text,)) for q, text in zip(questions(), LONG, strict=True)]
    assert GECEGate.fit(sentences, llm=honest_llm(), settings=PRODUCT).report.direct_accuracy == 0.5


def test_questions_that_the_chain_leaves_without_answer_are_left_out(caplog):
    answers = ["", " ", *CHAIN[2:]]
    fitted = {"llm": honest_llm(), "settings": PRODUCT}
    gate = GECEGate.fit(TEXTS, retrieved_answers=answers, **fitted)
    assert gate.report.questions == 58
    assert "2 of 60 questions are left out" in caplog.text
    with pytest.raises(CalibrationError, match="empty on 31 of 60"):
        GECEGate.fit(TEXTS, retrieved_answers=[*[""] * 31, *CHAIN[31:]], **fitted)
    with pytest.raises(MissingReferences, match="stand in"):
        GECEGate.fit(TEXTS, **fitted)


# --- targets


def outcomes_of(count: int = 200):
    """A signal that knows something, a chain that is right on seven of ten."""
    from ltrag_plugins.gece import Evidence, Outcome
    from tests.gece_parts import said

    rng = np.random.default_rng(3)
    found = []
    for i in range(count):
        sure = rng.random()
        right = bool(rng.random() < 0.2 + 0.5 * sure)
        with_retrieval = bool(rng.random() < 0.7)
        evidence = Evidence(f"question {i}", said("red", math.log(0.05 + 0.9 * sure)))
        found.append(Outcome(evidence, right, with_retrieval))
    return found


def test_the_default_is_as_good_as_always_at_the_fewest_retrievals():
    found = outcomes_of()
    _, report = fit_outcomes(found, settings=PRODUCT)
    order = np.argsort([np.exp(o.evidence.draft.tokens[0].logprob) for o in found])
    right = np.array([o.right for o in found])[order]
    later = np.array([o.right_with_retrieval for o in found])[order]
    accuracies = [np.mean([*later[:n], *right[n:]]) for n in range(len(found) + 1)]
    fewest = next(n for n, accuracy in enumerate(accuracies) if accuracy >= later.mean())
    assert report.target == "as good as always retrieving"
    assert report.retrieval_rate.value == fewest / len(found)
    gained = report.against_always
    assert gained.value == pytest.approx(accuracies[fewest] - later.mean())
    assert gained.low <= 0 <= gained.high


def test_a_rate_that_costs_more_than_chance_says_so_first(caplog):
    found = [replace(o, right_with_retrieval=True) for o in outcomes_of()]
    with caplog.at_level(logging.WARNING):
        _, report = fit_outcomes(found, target_rate=0.3, settings=PRODUCT)
    lost = -report.against_always.value
    assert report.against_always.high < 0
    assert report.notes[0].startswith(f"costly: retrieving for 30% loses {lost:.3f}")
    assert caplog.messages == [report.notes[0]]
    dear = float(report.notes[0].split("from ")[-1].split("%")[0]) / 100
    _, other = fit_outcomes(found, target_rate=dear, settings=PRODUCT)
    assert other.against_always.high >= 0


def test_five_of_a_hundred_that_differ_are_no_loss_where_that_was_asked_for():
    found = [replace(o, right_with_retrieval=True, agreement=True) for o in outcomes_of()]
    _, report = fit_outcomes(found, settings=PRODUCT)
    assert report.against_always.high < 0  # always retrieving agrees with itself
    assert report.accuracy.value >= 0.95
    assert str(report).startswith("pays: ")
    assert "(95 % agree with always retrieving)" in str(report)
    _, other = fit_outcomes(found, target_accuracy=0.9, settings=PRODUCT)
    assert str(other).startswith("loses answers: ")
    # a tenth of the questions without accepted answers
    mixed = [replace(o, agreement=i < 20) for i, o in enumerate(found)]
    _, report = fit_outcomes(mixed, settings=PRODUCT)
    assert report.accuracy.value >= 0.995
    assert "(as good as always retrieving)" in str(report)


def test_always_retrieving_is_an_answer_too():
    found = [
        replace(o, right=i < 4, right_with_retrieval=True) for i, o in enumerate(outcomes_of())
    ]
    _, report = fit_outcomes(found, settings=PRODUCT)
    assert "always retrieve: no gate pays on these questions" in report.notes
    with pytest.raises(InvalidInput, match="'always' compares with retrieval"):
        fit_outcomes(
            [replace(o, right_with_retrieval=None) for o in found],
            target_accuracy="always",
            settings=PRODUCT,
        )


def test_a_budget_is_a_share_of_what_always_retrieving_costs():
    costs = (Usage(calls=1, tokens=30), Usage(calls=1, tokens=300))
    _, report = fit_outcomes(outcomes_of(), budget=0.6, costs=costs, settings=PRODUCT)
    assert report.retrieval_rate.value == pytest.approx(0.5)  # 30 + 0.5 * 300 = 0.6 * 300
    assert (report.gate_cost, report.retrieval_cost) == costs
    assert "budget 0.6" in report.target
    with pytest.raises(CalibrationError, match=r"budget=0\.1 is out of reach.*costs 0\.10"):
        fit_outcomes(outcomes_of(), budget=0.1, costs=costs, settings=PRODUCT)
    with pytest.raises(InvalidInput, match="not measured"):
        fit_outcomes(outcomes_of(), budget=0.5, settings=PRODUCT)


def test_a_fit_that_asks_the_model_with_retrieval_counts_what_that_costs():
    def retrieving(question: str):
        if False:
            yield
        both = (Generation("", None, 50, 5), Generation("", None, 60, 5))
        return Answer(CHAIN[int(question.split()[-1][:-1])], trace=both)

    llm = honest_llm(change=lambda g: replace(g, prompt_tokens=20, completion_tokens=2))
    gate = GECEGate.fit(
        questions(), llm=llm, retrieving=retrieving, target_rate=0.5, settings=PRODUCT
    )
    assert gate.report.gate_cost == Usage(1, 22)
    assert gate.report.retrieval_cost == Usage(2, 120)
    assert "saved by the gate                  0 calls, 38 tokens" in str(gate.report)
    assert not [note for note in gate.report.notes if "cost" in note]
    always = GECEGate.fit(questions(), llm=llm, retrieving=retrieving, target_rate=0.9)
    assert any("18% of what always retrieving costs" in note for note in always.report.notes)


def test_a_flow_without_a_trace_has_no_cost():
    def retrieving(question: str):
        yield from ()
        return Answer(CHAIN[int(question.split()[-1][:-1])])

    how = {"llm": honest_llm(), "retrieving": retrieving, "settings": PRODUCT}
    report = GECEGate.fit(questions(), target_rate=0.5, **how).report
    assert (report.gate_cost, report.retrieval_cost) == (None, None)
    assert "saved" not in str(report)


def test_a_fit_from_an_answer_cache_counts_the_seconds_that_the_drafts_took(tmp_path):
    def slow(prompt: str) -> Generation:
        time.sleep(0.005)
        return answer(prompt)

    reports, models = [], []
    for _ in range(2):
        models.append(ScriptedLLM(slow, name="slow"))
        gate = GECEGate.fit(
            TEXTS,
            llm=CachedLLM(models[-1], tmp_path / "answers.sqlite"),
            retrieved_answers=CHAIN,
            retrieval_cost=Usage(2, None, 0.007),  # of which a draft is more than half
            target_rate=0.5,
            settings=PRODUCT,
        )
        reports.append(gate.report)
    assert [len(model.prompts) for model in models] == [60, 0]
    assert reports[0].gate_cost == reports[1].gate_cost
    assert [report.pays for report in reports] == [False, False]


def test_observers_hear_of_the_drafts_that_are_timed():
    llm, counter = honest_llm(), CostCounter()
    costs = {"retrieved_answers": CHAIN, "retrieval_cost": Usage(2, 300, 1.5)}
    GECEGate.fit(TEXTS, llm=llm, **costs, settings=PRODUCT, observers=iter([counter]))
    assert counter.cost.calls == len(llm.prompts) == 63


# --- savings


@pytest.mark.parametrize("odd", [None, -1, "12", True, 1.5])
def test_tokens_are_unknown_where_one_reply_gives_no_count(odd):
    assert Usage.counted([100, 50], 3) == Usage(2 / 3, 50.0)
    assert Usage.counted([100, odd], 2) == Usage(1.0, None)
    assert Usage.counted([], 2) == Usage(None, None)


def test_savings_are_what_was_avoided_less_the_gates_own_cost():
    report = SimpleNamespace(gate_cost=Usage(1, 30, 0.2), retrieval_cost=Usage(2, 300, None))
    saved = savings_of(report, 700, 300, price=0.001)
    assert (saved.questions, saved.retrieved) == (1000, 300)
    assert saved.net == Usage(2 * 700 - 1000, 300 * 700 - 30 * 1000, None)
    assert saved.money == pytest.approx(180)
    assert "saved         400 calls, 1.8e+05 tokens" in str(saved)
    audited = savings_of(report, 700, 300, price=0.001, audits=35)
    assert audited.net.tokens == saved.net.tokens - 35 * 300
    assert savings_of(report, 700, 300, None).money is None
    for wrong in (-1.0, math.nan, "1"):
        with pytest.raises(InvalidInput, match=r"price (is|must be a number)"):
            savings_of(report, 700, 300, wrong)
    with pytest.raises(InvalidInput, match=r"GECERouter\.fit"):
        savings_of(SimpleNamespace(), 700, 300, None)


def test_costs_in_the_report_survive_saving(tmp_path):
    gate = GECEGate.fit(
        TEXTS,
        llm=honest_llm(),
        retrieved_answers=CHAIN,
        retrieval_cost=Usage(2, 300, 1.5),
        settings=PRODUCT,
    )
    gate.save(tmp_path)
    assert GECEGate.load(tmp_path, llm=honest_llm()).report == gate.report
    assert gate.report.gate_cost.seconds > 0
