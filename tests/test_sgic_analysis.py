"""Figures of a run, beside scikit-learn, enumeration and counts by hand."""

import errno
import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
from sklearn.metrics import roc_auc_score

from ltrag_plugins.errors import BadRecord, InvalidInput, MissingReferences, UnwritableArtifact
from ltrag_plugins.metrics.answer import contains
from ltrag_plugins.sgic import (
    CalibratedAnswer,
    LabelledAnswer,
    Round,
    ScoredDocument,
    SGICSettings,
    Truth,
    analyse,
    labelled,
    r_at_k,
    read_run,
    write_run,
)
from ltrag_plugins.sgic.analysis import as_record, from_record
from ltrag_plugins.types import Generation, Passage
from tests.sgic_parts import BAY, CASTLE, QUESTION, answered, model, said


def one(right: str, uncertainties, *, chosen: int | None = None, documents=(), relevant="", **more):
    """A judged answer: "10" is right in round 0 and wrong in round 1. Returned is the least
    uncertain, or `chosen`; `documents` are uncertainties."""
    trace = tuple(
        Round(n, f"answer {n}", u, 100 * u, Generation(f"answer {n}"))
        for n, u in enumerate(uncertainties)
    )
    best = trace[uncertainties.index(min(uncertainties)) if chosen is None else chosen]
    scored = tuple(ScoredDocument(Passage(f"text {i}"), u) for i, u in enumerate(documents))
    about = best.text, best.uncertainty, best.score, best.number, "rounds", "product"
    answer = replace(CalibratedAnswer(*about, documents=scored, trace=trace), **more)
    labels = (tuple(letter == "1" for letter in letters) for letters in (right, relevant))
    return LabelledAnswer(answer, *labels, "q")


def drawn(count: int = 60, rounds: int = 4) -> list[LabelledAnswer]:
    """Random answers, some of which stop early; ties among their uncertainties."""
    dice = Random(0)
    found = []
    for _ in range(count):
        length = dice.randint(1, rounds)
        right = "".join(dice.choice("01") for _ in range(length))
        helps = [dice.choice("001") for _ in range(5)]
        uncertainties = [dice.randint(0, 10) / 10 for _ in range(length)]
        more = {"documents": [dice.randint(0, 4) / 4 for _ in range(5)], "relevant": "".join(helps)}
        found.append(one(right, uncertainties, p_wrong=dice.randint(0, 20) / 20, **more))
    return found


FOUR = [
    one("011", [0.9, 0.4, 0.3]),  # mended in round 1
    one("101", [0.2, 0.6, 0.1]),  # kept, with a wrong turn
    one("100", [0.5, 0.4, 0.7]),  # spoiled
    one("000", [0.8, 0.9, 1.0]),  # failed
]


# --- rounds (A.5, figures 4 and 5)


def test_the_auroc_of_each_round_is_scikit_learns():
    answers = drawn()
    found = analyse(answers)
    for n, row in enumerate(found.rounds):
        there = [a for a in answers if len(a.right) > n]
        wrong = [not a.right[n] for a in there]
        uncertainties = [a.answer.trace[n].uncertainty for a in there]
        assert row.answers == len(there)
        assert row.auroc == pytest.approx(roc_auc_score(wrong, uncertainties))
        assert row.right == pytest.approx(1 - sum(wrong) / len(wrong))
        assert row.uncertainty == pytest.approx(sum(uncertainties) / len(there))
    returned = [not a.right[a.answer.round] for a in answers]
    expected = roc_auc_score(returned, [a.answer.uncertainty for a in answers])
    assert found.returned.auroc == pytest.approx(expected)


def test_scores_of_several_rounds_stand_on_scales_of_their_own():
    # 0.6 is more certain than usual in round 1, 0.5 less than usual in round 0
    late = one("01", [0.9, 0.6], chosen=1)
    scored = replace(late.answer.trace[1], score=30.0)
    late = replace(late, answer=replace(late.answer, trace=(late.answer.trace[0], scored)))
    row = analyse([late, one("0", [0.5])]).returned
    assert (row.auroc, row.score_auroc) == (0.0, 1.0)


def test_turns_are_those_counted_by_hand():
    found = analyse(FOUR)
    counts = [[way.answers for way in ways] for ways in found.turns]
    #                 kept, lost, won, never
    assert counts == [[0, 2, 1, 1], [1, 0, 1, 2]]
    counts = [[way.answers for way in ways] for ways in found.turns_from_first]
    assert counts == [[0, 2, 1, 1], [1, 1, 1, 1]]
    [first, second] = found.turns
    assert [way.uncertainty for way in first] == [None, pytest.approx(0.5), 0.4, 0.9]
    assert [way.right for way in first] == [None, 0, 1, 0]
    assert second[3].score == pytest.approx(85)  # 0.7 and 1.0
    assert [way.name for way in first][1:3] == ["right → wrong", "wrong → right"]


@pytest.mark.parametrize("since", ["turns", "turns_from_first"])
def test_every_question_of_a_round_turns_one_way(since):
    figures = analyse(drawn())
    for ways, row in zip(getattr(figures, since), figures.rounds[1:], strict=True):
        assert sum(way.answers for way in ways) == row.answers
        means = [way.answers * way.uncertainty for way in ways if way.answers]
        assert sum(means) / row.answers == pytest.approx(row.uncertainty)
        right = sum(way.answers for way in ways if way.name.endswith("right"))
        assert right / row.answers == pytest.approx(row.right)


# --- spreads (figure 1)


def test_the_spread_of_documents_is_pooled_over_questions():
    answers = drawn()
    found = analyse(answers).documents
    assert found is not None
    pairs = [(document.uncertainty, helps) for a in answers
             for document, helps in zip(a.answer.documents, a.relevant, strict=True)]  # fmt: skip
    values, helps = zip(*pairs, strict=True)
    assert found.auroc == pytest.approx(roc_auc_score([not h for h in helps], values))
    # ten bins of equal width; 1 is in the last
    good = [v for v, h in pairs if h]
    bins = {0: 0, 2: 0.25, 5: 0.5, 7: 0.75, 9: 1}
    assert found.good.counts == tuple(good.count(bins[i]) if i in bins else 0 for i in range(10))
    assert found.good.mean == pytest.approx(sum(good) / len(good))
    assert sum(found.good.counts + found.bad.counts) == len(pairs)


def test_the_spread_of_answers_is_of_the_first():
    first = analyse(FOUR).first
    assert first.good.mean == pytest.approx((0.2 + 0.5) / 2)
    assert sum(first.bad.counts) == 2
    unlabelled = one("1", [0.5], documents=[0.1, 0.2])
    unscored = one("1", [0.5], documents=[None, None], relevant="01")
    assert [analyse([answer]).documents for answer in (unlabelled, unscored)] == [None, None]


def test_reliability_is_counted_bin_by_bin():
    pairs = [("1", 0.1), ("0", 0.15), ("0", 0.9), ("0", 1.0)]
    found = analyse([one(right, [0.5], p_wrong=p) for right, p in pairs]).reliability
    assert found is not None
    low, high = (one for one in found.bins if one.count)
    assert (low.count, low.said, low.wrong) == (2, pytest.approx(0.125), 0.5)
    assert (high.count, high.said, high.wrong) == (2, pytest.approx(0.95), 1.0)
    assert found.ece == pytest.approx(0.5 * 0.375 + 0.5 * 0.05)
    assert found.brier == pytest.approx((0.01 + 0.7225 + 0.01 + 0) / 4)
    assert found.auroc == 1
    assert analyse([one("1", [0.5])]).reliability is None


# --- R@k


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
def test_recall_is_the_mean_over_all_orders_of_what_ties(k):
    dice = Random(k)
    for _ in range(20):
        values = [dice.randint(0, 2) for _ in range(5)]
        relevant = [True, *(dice.random() < 0.4 for _ in range(4))]
        shares = []
        for order in permutations(range(5)):
            # stable: what ties stays in the order of the permutation
            ranked = sorted(order, key=lambda i: -values[i])[:k]
            shares.append(sum(relevant[i] for i in ranked) / sum(relevant))
        expected = pytest.approx(sum(shares) / len(shares))
        assert r_at_k([values], [relevant], (k,)) == {k: expected}


def test_the_least_uncertain_document_ranks_first():
    sure, unsure, none = (one("1", [0.5], documents=[0.9, 0.1, 0.5], relevant=relevant)
                          for relevant in ("010", "100", "000"))  # fmt: skip
    assert analyse([sure]).recall == {1: 1, 2: 1}
    assert analyse([sure, unsure, none]).recall == {1: 0.5, 2: 0.5}
    assert analyse([none]).recall == {}
    # documents that others scored rank by score
    judged = one("1", [0.5], documents=[None, None], relevant="01")
    pairs = zip(judged.answer.documents, (80, 3), strict=True)
    scored = tuple(replace(document, score=score) for document, score in pairs)
    ranked = replace(judged, answer=replace(judged.answer, documents=scored))
    assert analyse([ranked]).recall == {1: 1, 2: 1}


@pytest.mark.parametrize(("values", "relevant", "k", "why"), [
    ([[1, 2]], [[True]], 1, r"values of \[2\] documents came with labels of \[1\]"),
    ([[1, 2]], [[False, False]], 1, "no relevant document"),
    ([[1, float("nan")]], [[True, False]], 1, "NaN"),
    ([[1, 2]], [[True, False]], 0, "k must be at least 1"),
    ([], [], 1, "at least one question"),
])  # fmt: skip
def test_what_has_no_recall_is_refused(values, relevant, k, why):
    with pytest.raises(InvalidInput, match=why):
        r_at_k(values, relevant, (k,))


# --- mending (5.6)


def test_what_is_mended_failed_and_spoiled_is_counted_by_hand():
    figures = analyse(
        [
            *FOUR,
            one("0001", [0.9, 0.8, 0.7, 0.1]),  # mended, late
            one("00", [0.9, 0.3]),  # failed, surer than before
            one("010", [0.3, 0.9, 0.9]),  # failed, though round 1 had it right
            one("00", [0.5, 0.5]),  # failed, no surer
            one("00", [0.5, 0.6], stop="max_calls"),  # failed, cut short
            one("00", [0.5, 0.2], stop="certain"),  # failed, surer, and halted by it
            one("0", [0.1], stop="certain"),  # never looked at again
            one("000", [0.5, 0.3, 0.9]),  # failed, the last answer less sure than the first
        ]
    )
    found = figures.mending
    assert f"mended{' ' * 30}2 (16.7%): 1 of them within 2 rounds" in str(figures)
    assert (found.kept, found.spoiled, found.mended, found.failed) == (1, 1, 2, 8)
    assert found.mended_early == 1
    assert (found.fell, found.rose, found.stopped) == (2, 4, 2)
    assert found.missed == 1


def test_every_question_is_kept_spoiled_mended_or_failed():
    found = analyse(drawn()).mending
    assert found.kept + found.spoiled + found.mended + found.failed == found.questions == 60
    assert found.fell + found.rose + found.stopped == found.failed


# --- the whole


def test_an_answer_is_right_as_the_measure_says():
    settings = replace(SGICSettings.paper(), rounds=1)
    llm = model([said("it is in Fife", 0.3), said("East Lothian", 0.8)])
    answer = answered(llm, settings=settings)
    truth = Truth((True, False, False), ("Fife",))
    assert labelled([answer], [truth])[0].right == (False, False)
    [loose] = labelled([answer], [truth], measure=contains, questions=[QUESTION])
    assert loose.right == (True, False)
    assert (loose.right[0], loose.returned_right) == (True, False)
    assert (loose.question, loose.relevant) == (QUESTION, (True, False, False))


def test_the_table_says_what_the_figures_are():
    answers = drawn()
    found = analyse(answers)
    table = str(found)
    for row in (*found.rounds, found.returned):
        assert f"{row.name} " in table
        assert f"{row.right:8.3f}{row.uncertainty:13.3f}{row.score:8.1f}" in table
    assert f"failed {' ' * 29}{found.mending.failed} (" in table
    assert f"R@2{' ' * 33}{found.recall[2]:.3f}" in table
    assert "only" in table or not found.notes
    assert any("stopped before the last round" in note for note in found.notes)


def test_an_analysis_is_json():
    found = analyse(FOUR)
    assert found.documents is None
    again = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert again["mending"]["mended"] == 1
    assert again["rounds"][0]["name"] == "round 0"
    assert json.loads(json.dumps(analyse(drawn()).as_dict()))["recall"].keys() == {"R@1", "R@2"}


def test_a_run_of_one_kind_of_answer_is_no_error():
    found = analyse([one("1", [0.2]), one("1", [0.4])])
    assert (found.rounds[0].auroc, found.turns) == (None, ())
    assert "only 0 first answers are wrong" in str(found)


TWO_ROUNDS = one("10", [0.5, 0.4], documents=[0.1, 0.2]).answer


@pytest.mark.parametrize(("call", "error", "why"), [
    (lambda: analyse([]), InvalidInput, "no answers"),
    (lambda: analyse([one("1", [0.2]), one("1", [0.2], estimator="entropy")]), InvalidInput,
     "estimators entropy, product"),
    (lambda: LabelledAnswer(TWO_ROUNDS, (True,)), InvalidInput, "1 labels came for 2 rounds"),
    (lambda: LabelledAnswer(TWO_ROUNDS, (True, False), (True, False, True)), InvalidInput,
     "3 labels came for 2 documents"),
    (lambda: LabelledAnswer(replace(TWO_ROUNDS, trace=()), ()), InvalidInput, "its trace has 0"),
    (lambda: labelled([TWO_ROUNDS], []), InvalidInput, "1 answers came with 0 truths"),
    (lambda: labelled([TWO_ROUNDS], [Truth((), ())]), MissingReferences, None),
])  # fmt: skip
def test_what_does_not_fit_together_is_refused(call, error, why):
    with pytest.raises(error, match=why):
        call()


# --- records


def test_a_run_read_again_has_the_same_figures(tmp_path):
    answers = [*drawn(), one("1", [0.5], notes=("cut \u2028 here", "\ud800"), error="x")]
    path = write_run(answers, tmp_path / "run.jsonl")
    again = read_run(path)
    assert again == tuple(answers)  # no tokens in these
    assert analyse(again) == analyse(answers)


def test_records_are_without_tokens(tmp_path):
    settings = replace(SGICSettings.paper(), rounds=1, keep_prompts=True)
    answer = answered(model([said("Fife", 0.3)]), settings=settings)
    [whole] = labelled([answer], [Truth((True, False, False), ("Fife",))])
    record = as_record(whole)
    assert "logprob" not in json.dumps(record)
    found = from_record(json.loads(json.dumps(record)))
    assert found.answer.trace[0].generation == Generation("Fife")
    assert found.answer.trace[1].prompt == answer.trace[1].prompt
    assert found.answer.documents == answer.documents
    assert analyse([found]) == analyse([whole])


@pytest.mark.parametrize("score", [float("nan"), float("-inf")])
def test_a_score_of_a_retriever_that_is_no_number_is_read_again_as_none(score, tmp_path):
    passages = [replace(CASTLE, score=score), replace(BAY, score=0.5)]
    run = labelled([answered(model([said("x", 0.5)]), passages)], [Truth((True, False), ("x",))])
    [again] = read_run(write_run(run, tmp_path / "run.jsonl"))
    assert [one.passage.score for one in again.answer.documents] == [None, 0.5]
    assert run[0].answer.documents[0].passage.score is score  # the caller's own is left alone


GOOD = one("10", [0.5, 0.4], documents=[0.5], relevant="1")
NAN = as_record(GOOD)["answer"]
NAN["trace"][0]["uncertainty"] = float("nan")


@pytest.mark.parametrize(("change", "why"), [
    ({"answer": None}, "no judged answer"),
    ({"right": [1, 0]}, "field 'right': expected a list of true and false"),
    ({"right": [True]}, "1 labels came for 2 rounds"),
    ({"answer": {"text": "x"}}, "KeyError.*'documents'"),
    ({"answer": NAN}, r"'uncertainty': expected a number in \[0, 1\], got nan"),
])  # fmt: skip
def test_a_line_that_is_no_record_is_named(change, why, tmp_path):
    good, path = as_record(GOOD), tmp_path / "run.jsonl"
    path.write_text(f"{json.dumps(good)}\n\n{json.dumps(good | change)}\n")
    with pytest.raises(BadRecord, match=f"run.jsonl, line 3: .*{why}"):
        read_run(path)


def test_a_file_that_is_no_run_is_named(tmp_path):
    (tmp_path / "run.jsonl").write_text("{broken")
    with pytest.raises(BadRecord, match="line 1, column 2: not JSON"):
        read_run(tmp_path / "run.jsonl")
    with pytest.raises(InvalidInput, match="cannot read"):
        read_run(tmp_path / "absent.jsonl")


def test_a_run_that_cannot_be_written_leaves_the_older_one_and_nothing_beside_it(
    tmp_path, monkeypatch
):
    path = tmp_path / "deep" / "run.jsonl"
    write_run(FOUR, path)  # the folder is made
    older = path.read_bytes()
    (tmp_path / "taken").mkdir()
    for wrong in (tmp_path / "taken", path / "below.jsonl"):
        with pytest.raises(UnwritableArtifact, match="cannot write to"):
            write_run(FOUR[:1], wrong)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UnwritableArtifact, match=r"cannot write to .*No space left"):
        write_run(FOUR[:1], path)
    assert path.read_bytes() == older
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["deep", "run.jsonl", "taken"]
