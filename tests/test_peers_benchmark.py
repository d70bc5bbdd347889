"""What the benchmark of neighbouring packages computes, beside sums by hand and enumeration."""

import json
import sys
import warnings
from argparse import Namespace
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from math import log2
from pathlib import Path

import numpy as np
import pytest

from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.dur_parts import Nonsense

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def peers(load):
    return load("peers")


@pytest.fixture(scope="module")
def score():
    """What runs in a peer's environment; it imports nothing of ours."""
    spec = spec_from_file_location("score", BENCHMARKS / "peers" / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(tmp_path, monkeypatch):
    """40 questions of nq_distractor's `train`, each with ten passages."""
    passages = [{"title": f"t{i}", "text": f"words {i}"} for i in range(10)]
    rows = [
        {"id": i, "question": f"who is n{i}n", "answers": ["a"], "gold_index": 0,
         "passages": passages} for i in range(40)
    ]  # fmt: skip
    folder = tmp_path / "nq_distractor"
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setenv("LTRAG_DATA", str(tmp_path))


def row(i: int, fold: int = 0, seconds: tuple[float, ...] = (), **more) -> dict:
    samples = [["s", None, None, None, taken, None] for taken in seconds]
    return {"id": f"q{i}", "question": f"{i}?", "fold": fold, "samples": samples, **more}


@pytest.mark.parametrize(("place", "gain"), [(0, 1), (2, 1 / log2(4)), (4, 1 / log2(6)), (5, 0)])
def test_one_relevant_passage_gains_by_its_place_among_the_first_five(peers, place, gain):
    order = [7, 3, 9, 1, 0, 2, 4, 5, 6, 8]
    assert peers.ndcg(order, gold=order[place]) == pytest.approx(gain)


def test_a_difference_of_aurocs_is_that_of_the_pairs_in_order(peers):
    wrong = np.array([1, 0, 1, 0])
    found = peers.difference(np.array([4.0, 1, 3, 2]), np.array([1.0, 2, 4, 3]), wrong)
    assert found.startswith(f"{4 / 4 - 2 / 4:+.3f} (")


def test_no_question_is_scored_by_what_learned_from_it(peers):
    fold, truth = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2]), np.array([0, 1, 0, 1, 0, 1, 0, 1, 0])

    def fit(known):
        return lambda inside: [float(set(known) == {*range(9)} - {*inside}) for _ in inside]

    scores, _ = peers.unseen(truth, fold, fit)
    assert scores.tolist() == [1.0] * 9


def test_with_one_of_a_kind_to_learn_from_there_is_no_opinion(peers):
    truth, fold = np.array([1, 0, 0, 1, 0, 0]), np.array([0, 0, 0, 1, 1, 1])
    scores, _ = peers.unseen(truth, fold, lambda known: lambda inside: [1.0] * len(inside))
    assert not scores.any()


def test_a_peer_judges_each_question_by_the_other_folds(score):
    rows = [row(i, fold=i % 3) for i in range(6)]

    def judge(known, new):
        return [
            1.0 if len(known) == 4 and one["fold"] not in {k["fold"] for k in known} else 0.0
            for one in new
        ]

    assert score.by_fold(rows, judge) == [1.0] * 6


def test_scores_are_joined_by_the_ids_of_the_questions(peers):
    rows = [row(i, seconds=(0.1, 0.2 * i), wrong=bool(i)) for i in range(2)]
    line = {"name": "n", "by": "b", "part": "direct", "scores": {"q1": 0.7, "q0": 0.2}, "ms": 1.0}
    about, *questions, measure = peers.kept({"model": "m"}, rows, [line])
    assert about == {"model": "m", "samples_ms": pytest.approx(200.0)}
    assert questions == [{"id": f"q{i}", "fold": 0, "wrong": bool(i)} for i in range(2)]
    assert measure["scores"] == [0.2, 0.7]


def test_records_print_each_part_that_they_hold(peers, tmp_path, capsys):
    orders = {"BM25": [1, 0], "MiniLM": [0, 1]}
    rows = [
        row(
            i,
            wrong=i % 2 == 0,
            reading_wrong=i % 4 == 3,
            gold=0,
            orders=orders,
            right={"BM25": False, "MiniLM": True},
        )
        for i in range(8)
    ]
    rising = {f"q{i}": float(i % 2 == 0) for i in range(8)}
    by = {"by": "theirs", "version": "1", "licence": "MIT", "scores": rising, "ms": 2.0}
    measures = [by | {"name": peers.PLAIN, "part": part} for part in ("direct", "gate")]
    measures.append(by | {"name": "decider", "part": "gate", "decides": True})
    about = {"model": "m", "rankers": {"BM25": 1.0, "MiniLM": 20.0}}
    path = tmp_path / "records.jsonl.gz"
    peers.write(path, peers.kept(about, rows, measures))
    peers.table(Namespace(records=path))
    lines = capsys.readouterr().out.splitlines()
    [answers] = [line for line in lines if line.startswith("closed book, 4 of 8 right")]
    assert "AUROC of wrong" in answers
    assert any("1.000 (1.000 to 1.000)" in line for line in lines)  # it tells all failures
    [decided] = [line for line in lines if line.strip().startswith("decider")]
    assert "1.000 at 50%" in decided  # all wrong ones retrieve, and are right then
    [never] = [line for line in lines if line.startswith("whether to retrieve")]
    assert "never 0.500, always 0.750 right" in never
    [last] = [line for line in lines if line.strip().startswith("BM25")]
    assert f"{1 / log2(3):.3f}" in last  # gold comes second
    assert json.loads(json.dumps(peers.read(path)[0]))["samples_ms"] == 0.0


def test_a_head_that_is_kept_learned_from_none_of_the_questions_that_it_ranks(
    peers, data, tmp_path, monkeypatch
):
    llm = ScriptedLLM(lambda prompt: "a" if len(prompt) % 3 else "b")
    monkeypatch.setattr(peers, "embedded", lambda: llm)
    monkeypatch.setattr(peers, "embedded_encoder", Nonsense)
    monkeypatch.setattr(peers, "DURSettings", partial(peers.DURSettings, reward="match"))
    learned = list[set[str]]()
    for count, train in ((4, 12), (10, 12), (10, 14), (4, 12)):  # the last is there already
        before, judged = len(llm.prompts), peers.asked(0, count)
        options = Namespace(folder=tmp_path, questions=count, train=train, rankers="DUR")
        assert [*peers.orders(judged, options)] == ["DUR, trained head"]
        told = " ".join(llm.prompts[before:])
        learned.append(
            {one.question.text for one in peers.asked(0, 40) if one.question.text in told}
        )
        assert not learned[-1] & {item.question.text for item in judged}
    assert all(learned[:3])
    assert not learned[3]


def test_scores_of_other_answers_are_not_joined(peers, score, tmp_path, monkeypatch):
    def asked(wrong, model="m"):
        rows = [row(i, wrong=wrong(i)) for i in range(4)]
        peers.write(tmp_path / "asked.jsonl", [{"model": model, "rankers": {}}, *rows])

    def counted(rows, encoder):
        return [score.measure(rows, "place", range(len(rows)), 1.0, part="direct")]

    monkeypatch.setitem(score.PEERS, "numpy", (counted, "BSD"))
    monkeypatch.setattr(sys, "argv", ["score.py", "numpy", str(tmp_path), "--encoder", ""])
    monkeypatch.setattr(peers, "embedded_encoder", Nonsense)
    monkeypatch.setattr(peers, "of_tokens", lambda rows, fold: counted(rows, None))
    monkeypatch.setattr(peers, "of_gate", lambda rows, fold, encoder: [])
    joined = Namespace(folders=[tmp_path], records=tmp_path / "all" / "records.jsonl.gz")
    asked(lambda i: i > 1)
    peers.ours(Namespace(folder=tmp_path))
    score.main()
    asked(lambda i: i > 1, model="the same answers, timed again")
    peers.join(joined)
    kept = peers.read(joined.records)
    assert [line["by"] for line in kept if "by" in line] == ["ltrag-plugins", "numpy"]
    asked(lambda i: i < 2, model="another")
    for name, again in (
        ("ltrag-plugins", lambda: peers.ours(Namespace(folder=tmp_path))),
        ("numpy", score.main),
    ):
        with pytest.raises(SystemExit, match=rf"{name}\.jsonl scores other answers than asked"):
            peers.join(joined)
        again()
    peers.join(joined)
    assert peers.read(joined.records)[0]["model"] == "another"


def test_as_few_questions_are_asked_as_have_folds_whichever_are_right(peers, monkeypatch, capsys):
    def asked(first, count):
        raise InterruptedError(count)

    monkeypatch.setattr(peers, "asked", asked)
    for count in range(10):
        monkeypatch.setattr(sys, "argv", ["peers.py", "ask", "x", "--questions", f"{count}"])
        with pytest.raises(SystemExit if count < 9 else InterruptedError):
            peers.main()
        assert ("must be at least 9 for 5 folds" in capsys.readouterr().err) == (count < 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a kind with fewer than five
        for wrong in range(10):
            rows = peers.folded([row(i, wrong=i < wrong) for i in range(9)])
            assert {one["fold"] for one in rows} == {*range(5)}
        with pytest.raises(ValueError, match="n_splits=5"):
            peers.folded([row(i, wrong=i < 4) for i in range(8)])


def test_a_peer_reads_as_many_alternatives_as_a_reply_has(score, monkeypatch):
    tokens = [["a", -1.0, 1.0, [[letter, -1.0] for letter in "abcde"]]]
    empty, full = (["", None], ["a", tokens])
    asked = set[int]()

    class WhiteBoxUQ:
        def __init__(self, scorers, top_k_logprobs):
            asked.add(top_k_logprobs)
            self.scorers = scorers

        async def score(self, logprobs_results, **_):
            return Namespace(data={name: [0.0] * len(logprobs_results) for name in self.scorers})

    monkeypatch.setitem(sys.modules, "uqlm", Namespace(WhiteBoxUQ=WhiteBoxUQ))
    monkeypatch.setattr(score, "ensemble", lambda rows, lines: {})
    for replies in ((empty, full), (full, empty)):
        score.uqlm([row(i, direct=reply) for i, reply in enumerate(replies)], "")
        assert asked == {5}
    asked.clear()
    score.uqlm([row(0, direct=empty, reading=full)], "")
    assert asked == {5}
