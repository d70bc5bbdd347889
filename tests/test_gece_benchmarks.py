"""What the benchmarks of gates keep in their files of records, and what they refuse."""

import argparse
import json
import sys
from itertools import permutations

import numpy as np
import pytest

from tests import gece_parts
from tests.dur_parts import Nonsense
from tests.gece_letters import Local


def drafted(model: str, part: str = "dev_test") -> list[dict]:
    """Rows of `gate_sets.py record`."""
    token = {"text": "x", "logprob": -0.1, "entropy": None, "alternatives": []}
    about = {"model": model, "set": "popqa", "part": part, "accepted": ["elle"], "draft": "x"}
    return [about | {"question": f"who is {i}", "tokens": [token]} for i in range(3)]


def test_rows_of_one_file_are_of_one_model(load, tmp_path, monkeypatch):
    sets, llm, path = load("gate_sets"), Local(), tmp_path / "records.jsonl.gz"
    llm.name = "letters@1a2b/float32/chat-5"
    monkeypatch.setattr(sets, "model", lambda *_, **__: llm)
    monkeypatch.setattr(sets, "embedded_encoder", Nonsense)
    monkeypatch.delenv("LTRAG_DATA", raising=False)
    options = argparse.Namespace(
        records=path, model="m", dtype="auto", data="popqa", answers=tmp_path, questions=3
    )
    # the gradients may be taken in another dtype, whose weights have another digest
    for name, gradients_too in (("letters@3c4d/bfloat16/chat-5", True),
                                ("letters@3c4d/bfloat16/plain", False),
                                ("words@1a2b/float32/chat-5", False)):  # fmt: skip
        sets.write(path, drafted(name))
        before, both = path.read_bytes(), rf"has answers of {name}, not of {llm.name}: give"
        with pytest.raises(SystemExit, match=both):
            sets.record(options)
        if not gradients_too:
            with pytest.raises(SystemExit, match=both):
                sets.gradients(options)
        assert path.read_bytes() == before
    assert not llm.seen
    sets.write(path, drafted("letters@3c4d/bfloat16/chat-5"))
    sets.gradients(options)
    assert all("agreement" in row for row in sets.read(path))
    sets.write(path, drafted(llm.name))
    with pytest.raises(SystemExit, match="set LTRAG_DATA"):  # goes on
        sets.record(options)


def test_a_look_at_the_change_alone_keeps_the_orders_of_the_same_router(
    load, tmp_path, monkeypatch
):
    router, path = load("learning_router"), tmp_path / "records.jsonl"
    monkeypatch.setattr(router, "records", lambda split: [])
    monkeypatch.setattr(router, "Recorded", lambda rows, signals: None)
    for name in ("orders", "change"):
        monkeypatch.setattr(router, name, lambda world, options: vars(options)["rate"])
    first = {"rate": 0.5, "warm_up": 100, "audit_rate": 0.05, "splits": ["train"]}

    def rows(change: bool, **other) -> list[tuple]:
        how = {"records": path, "signals": False, "change": change}
        router.run_all(argparse.Namespace(**how, **first | other))
        return [(row.get("orders"), row["change"]) for row in router.read(path)]

    for other in ({"rate": 0.2}, {"warm_up": 50}, {"audit_rate": 0.1}, {"splits": ["dev_test"]}):
        assert rows(change=False) == [(0.5, 0.5)]
        assert rows(change=True) == [(0.5, 0.5)]
        assert rows(change=True, **other) == [(None, {**first, **other}["rate"])]


def test_equal_scores_are_drawn_by_lot_in_whatever_order_their_rows_stand(load):
    recorded = load("recorded_outcomes")
    values = np.array([3.0, 1, 1, 2, 1, 0, 0])
    right, mended = (np.array([*map(int, bits)], dtype=bool) for bits in ("0011010", "1101000"))
    orders = [[*order] for order in permutations(range(7))]
    line = recorded.at_rates(values, right, mended)
    for order in orders[::500]:
        assert recorded.at_rates(values[order], right[order], mended[order]) == line
    for rate, told in zip(recorded.RATES, line.split(), strict=True):
        found = []
        for order in orders:  # an order of the rows breaks each tie in one of its ways
            first = sorted(order, key=lambda i: -values[i])[: round(rate * 7)]
            found.append(np.mean([(mended if i in first else right)[i] for i in range(7)]))
        assert told == f"{np.mean(found):.4f}"
    assert recorded.most(values, 0.0).tolist() == [0.0] * 7
    assert recorded.most(values, 0.3).tolist() == [1.0, 0, 0, 1.0, 0, 0, 0]  # no tie is cut
    unknown = np.array([np.nan, 2, np.nan, 1])  # after all that have a score
    assert recorded.most(unknown, 0.25).tolist() == [0.0, 1.0, 0, 0]
    assert recorded.most(unknown, 0.75).tolist() == [0.5, 1.0, 0.5, 1.0]


def test_a_first_look_at_few_questions_leaves_the_run_of_all_as_it_is(
    load, tmp_path, monkeypatch, capsys
):
    box, llm = load("white_box"), Local()
    monkeypatch.setattr(box, "model", lambda *_, **__: llm)
    monkeypatch.setattr(box, "embedded_encoder", Nonsense)
    monkeypatch.setenv("LTRAG_DATA", str(tmp_path))
    (tmp_path / "popqa").mkdir()
    for split, some in (
        ("train", gece_parts.questions(24)),
        ("dev_test", gece_parts.questions(30)),
    ):
        rows = [{"id": q.id, "question": q.text, "answers": q.answers} for q in some]
        (tmp_path / "popqa" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def counts(limit: int) -> dict[str, set[int]]:
        """How many values each part has, after a run over so many questions."""
        told = ("--limit", f"{limit}", "--data", "popqa", "--cache", str(tmp_path / "cache"))
        path = tmp_path / f"{limit}.jsonl"
        monkeypatch.setattr(sys, "argv", ["", *told, "--records", str(path)])
        box.main()
        rows = box.read(path)
        return {row["part"]: {len(values) for values in row["scores"].values()} for row in rows}

    parts = ("at run time", "with gradients", "with the reference")
    assert counts(3) == {part: {3} for part in parts}
    assert "no gate on these alone" in capsys.readouterr().out
    assert counts(500) == {part: {30} for part in parts}
    printed, seen = capsys.readouterr().out, len(llm.seen)
    assert "fitted gate, with MiniLM" in printed
    assert "fitted gate, with gradients" in printed
    counts(500)
    assert len(llm.seen) == seen  # all gradients are there


def test_answers_that_are_all_wrong_have_a_table_without_figures(load, capsys):
    box = load("white_box")
    scores = {"product": [0.1, 0.2, 0.3], "entropy": [1.0, 2.0, 3.0]}
    row = {"model": "m", "set": "popqa", "part": "at run time", "views": [0.0] * 3}
    box.table([row | {"scores": scores, "fails": [1, 1, 1]}])
    head, *lines = capsys.readouterr().out.strip().splitlines()[1:]
    assert "popqa, 0 of 3 right" in head
    assert [line.split() for line in lines] == [["product", "-"], ["entropy", "-"]]
