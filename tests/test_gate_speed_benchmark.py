"""Speed-up and score of a gated method at other rates, beside a sum by hand."""

import sys
from dataclasses import replace
from itertools import combinations

import pytest

from ltrag_plugins.evaluate.records import Record


@pytest.fixture
def gate_speed(load):
    return load("gate_speed")


def record(i: int, f1: float, ms: float, decision: dict | None = None) -> Record:
    return Record(f"q{i}", "?", ("a",), "p", {"f1": f1}, ms=ms, decision=decision)


def test_each_rate_charges_the_draft_to_all_and_the_method_to_the_highest_scores(gate_speed):
    scores = (0.1, 0.9, 0.5, 0.3)
    direct = [record(i, f1, 10) for i, f1 in enumerate((0.5, 0.0, 0.0, 1.0))]
    alone = [record(i, f1, 100) for i, f1 in enumerate((0.0, 1.0, 0.0, 0.0))]
    # the draft and the gate take 20 ms; the gate as fitted retrieved for the second question
    gated = [
        record(i, 0, 120 if i == 1 else 20, {"score": s, "retrieve": i == 1})
        for i, s in enumerate(scores)
    ]
    found = dict(
        zip(gate_speed.RATES, gate_speed.at_rates(gated, alone, direct, "f1"), strict=True)
    )
    assert found[0.05] == pytest.approx((1.5 / 4, 400 / 80))  # none of four
    assert found[0.25] == pytest.approx((2.5 / 4, 400 / 180))  # the second
    assert found[0.5] == pytest.approx((2.5 / 4, 400 / 280))  # and the third


def test_questions_of_which_the_gate_has_no_score_are_left_out(gate_speed):
    direct, alone = [record(i, 0.0, 10) for i in (0, 1)], [record(i, 1.0, 90) for i in (0, 1)]
    gated = [record(0, 0, 30, {"score": 0.2, "retrieve": False}), record(1, 0, 500)]
    value, speed = gate_speed.at_rates(gated, alone, direct, "f1")[-1]
    assert (value, speed) == pytest.approx((0.0, 3.0))  # round(0.5) of one question is none


def test_by_lot_each_set_of_as_many_questions_is_as_likely(gate_speed):
    decisions = [{"score": i, "retrieve": i > 2} for i in range(5)]  # two of five
    gated = [record(i, 0, 0, d) for i, d in enumerate(decisions)]
    alone = [record(i, f1, 0) for i, f1 in enumerate((1.0, 0.5, 0.0, 0.25, 0.0))]
    direct = [record(i, f1, 0) for i, f1 in enumerate((0.0, 0.5, 0.75, 0.0, 0.5))]
    drawn = [
        sum((alone if i in chosen else direct)[i].scores["f1"] for i in range(5))
        for chosen in combinations(range(5), 2)
    ]
    expected = gate_speed.at_random(gated, alone, direct, "f1").sum()
    assert expected == pytest.approx(sum(drawn) / len(drawn))


def test_behind_another_gate_a_question_gets_the_methods_answer_or_the_drafts(gate_speed):
    direct = [replace(record(i, i / 4, 10), calls=1) for i in range(4)]
    alone = [replace(record(i, 1 - i / 4, 90), calls=3, retrievals=1) for i in range(4)]
    old = [record(i, 0, 0, {"score": 0, "retrieve": False}) for i in range(4)]
    records = {"direct": direct, "sure": alone, "sure+gate": old, "skr": alone}
    decided = [record(i, 0, 0, {"score": i, "retrieve": i in (0, 3)}) for i in (3, 2, 1, 0)]
    found = gate_speed.behind(records, {"direct": direct, "single:k=1+eq2": decided})
    assert list(found) == ["direct", "sure", "sure+gate", "sure+eq2", "skr"]
    told = [(r.scores["f1"], r.ms, r.calls, r.retrievals) for r in found["sure+eq2"]]
    assert told == [(1.0, 100, 4, 1), (0.25, 10, 1, 0), (0.5, 10, 1, 0), (0.25, 100, 4, 1)]
    assert [r.decision["score"] for r in found["sure+eq2"]] == [0, 1, 2, 3]
    rows = gate_speed.both_ways(found)
    assert [gate_speed.shown(name, rows) for name in rows] == ["sure+gate", "sure+eq2"]
    unknown = [replace(one, prompt_tokens=None) for one in alone]
    failed = [replace(one, decision=None) if one.id == "q3" else one for one in decided]
    found = gate_speed.behind(records | {"sure": unknown}, {"single+eq2": failed})["sure+eq2"]
    assert [r.prompt_tokens for r in found] == [None, 0, 0, 0]  # the last question got its draft
    with pytest.raises(SystemExit, match="other questions"):
        gate_speed.behind(records, {"single+eq2": decided[:3]})
    with pytest.raises(SystemExit, match="no gate"):
        gate_speed.behind(records, {"direct": direct})


def test_rows_behind_a_gate_of_their_own_are_not_replaced_by_those_of_another(gate_speed):
    direct, alone = [record(i, 0, 10) for i in range(2)], [record(i, 1, 90) for i in range(2)]
    chosen = [record(i, i, 50, {"score": i, "retrieve": i == 1}) for i in range(2)]
    other = [record(i, 0, 10, {"score": -i, "retrieve": i == 0}) for i in range(2)]
    for own, name, refused in (
        ("sure+gate", "a+gate", True),
        ("sure+eq2", "a+gate", False),
        ("sure+eq2", "a+eq2", False),
        ("sure+eq2:floor=1e-9", "a+eq2:floor=1e-9", False),
        ("sure+gate", "a+eq2", False),
    ):
        records, others = {"direct": direct, "sure": alone, own: chosen}, {name: other}
        if refused:
            with pytest.raises(SystemExit, match=r"both runs have rows \+gate, of two gates"):
                gate_speed.behind(records, others)
        else:
            found = gate_speed.behind(records, others)[name.replace("a+", "sure+")]
            assert [r.decision for r in found] == [r.decision for r in other]


def test_a_run_has_a_table_of_its_own_with_gains(gate_speed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gate_speed.py", str(tmp_path), "--compare", "single"])
    with pytest.raises(SystemExit):
        gate_speed.main()
    assert "for a run: ltrag report RUN/ --compare ROW" in capsys.readouterr().err


def test_the_metric_that_is_asked_for_leads_the_others(gate_speed):
    one = replace(record(0, 0.5, 1.0), scores={"em": 0.0, "f1": 0.5, "bleu4": 0.25})
    [led] = gate_speed.led_by("f1", {"direct": [one]})["direct"]
    assert [*led.scores.items()] == [("f1", 0.5), ("em", 0.0), ("bleu4", 0.25)]
