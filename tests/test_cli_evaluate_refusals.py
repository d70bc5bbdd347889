"""What `ltrag evaluate` refuses, and when: the model of these tests cannot be loaded."""

import json
from pathlib import Path

import pytest
from test_cli_gate import ltrag

from ltrag_plugins.evaluate.folder import RunFolder

MODEL, ENCODER = "has no config.json", "cannot load the encoder"
"""What is said as soon as the model here is loaded, or the encoder before it."""


@pytest.fixture
def place(tmp_path):
    """Questions with passages, without any, and others to learn from; a folder of nothing."""
    rows = [
        {"id": f"q{i}", "question": f"who wrote book {i}?", "answers": [f"Author {i}"]}
        for i in range(8)
    ]
    for name, some in (("asked", rows[:2]), ("others", rows[2:])):
        told = [row | {"passages": [{"text": f"Author {row['id']}"}]} for row in some]
        lines = "\n".join(map(json.dumps, told))
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "bare.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "empty").mkdir()
    return tmp_path


def evaluated(place: Path, *more: object, asked: str = "asked", out: str = "run"):
    weights = ("--model", place / "empty")
    return ltrag("evaluate", place / f"{asked}.jsonl", *weights, "--out", place / out, *more)


def refused(result, *said: str) -> None:
    assert result.exit_code == 1
    for words in said:
        assert words in result.stderr
    assert MODEL not in result.stderr
    assert ENCODER not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len([line for line in lines if "left out: " not in line]) == 1


def test_what_is_in_order_gets_as_far_as_the_model(place):
    for more in (("--methods", "direct"), ("--methods", "single"), ("--methods", "all,direct")):
        result = evaluated(place, *more)
        assert result.exit_code == 1
        assert MODEL in result.stderr


@pytest.mark.parametrize("methods", ["direct", "single", "all", "random-shots"])
def test_a_gate_that_is_not_there_is_refused_at_once(place, methods):
    told = ("--methods", methods, "--labelled", place / "others.jsonl")
    gone = place / "nogate"
    refused(evaluated(place, *told, "--gate", gone), f"there is no gate in {gone}", "none, gece or")
    refused(evaluated(place, *told, "--gate", place / "empty"), "there is no gate in", "empty")
    refused(evaluated(place, *told, "--gate", place / "asked.jsonl"), "there is no gate in")
    assert not (place / "run").exists()


def test_a_gate_that_is_there_is_read_when_the_model_is(place):
    (place / "gate").mkdir()
    (place / "gate" / "gate.json").write_text("{}")
    assert MODEL in evaluated(place, "--gate", place / "gate").stderr


@pytest.mark.parametrize("methods", ["dur", "direct", "all"])
def test_a_head_that_is_not_there_is_refused_at_once(place, methods):
    told = ("--methods", methods, "--encoder", place / "empty", "--head", place / "nohead")
    refused(evaluated(place, *told), f"there is no head in {place / 'nohead'}", "ltrag dur train")
    assert not (place / "run").exists()
    (place / "nohead").mkdir()
    (place / "nohead" / "dur.json").write_text("{}")
    assert ENCODER in evaluated(place, *told).stderr


@pytest.mark.parametrize("out", ["asked.jsonl", "asked.jsonl/run"])
@pytest.mark.parametrize("methods", ["direct", "single", "all"])
def test_a_folder_that_cannot_be_written_to_is_refused_at_once(place, out, methods):
    refused(evaluated(place, "--methods", methods, out=out), f"cannot write to {place / out}")


def test_a_folder_that_another_run_writes_to_is_refused_at_once(place):
    with RunFolder(place / "run").held():
        refused(evaluated(place), "another run is writing to")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--methods", "single"], "the method single needs a retriever"),
        (["--methods", "direct,all,single"], "the method single needs a retriever"),
        (["--methods", "dur"], "the method dur needs an encoder"),
        (["--methods", ","], "name at least one method"),
        (["--methods", "all,direct,direct"], "the method 'direct' comes twice"),
        (["--methods", "all,dirct"], "did you mean direct"),
        (["--methods", "all,skr"], "add --labelled"),
    ],
)
def test_what_a_method_lacks_is_said_at_once(place, more, said):
    refused(evaluated(place, *more, asked="bare"), said)
    assert not (place / "run").exists()


def test_what_gains_are_over_is_held_against_the_rows_of_all_too(place):
    result = evaluated(place, "--methods", "all", "--compare", "nobody")
    refused(result, "--compare 'nobody' is no row; there will be direct, single")


def rows_of(place: Path, methods: str, *more: object) -> list[str]:
    """The rows of a run over answers that were recorded."""
    answers = [
        {"question": f"who wrote book {i}?", "direct": "nobody", "retrieved": f"Author {i}"}
        for i in range(2)
    ]
    path = place / "recorded.jsonl"
    path.write_text("\n".join(map(json.dumps, answers)), encoding="utf-8")
    told = ("--recorded", path, "--methods", methods, "--json", *more)
    result = ltrag("evaluate", place / "asked.jsonl", "--out", place / methods, *told)
    assert result.exit_code == 0, result.output
    return [row["name"] for row in json.loads(result.stdout)["rows"]]


def test_all_may_stand_among_others_and_runs_none_of_them_twice(place):
    assert rows_of(place, "all") == ["direct", "single"]
    assert rows_of(place, "all,direct") == ["direct", "single"]
    assert rows_of(place, "all,all") == ["direct", "single"]
    assert rows_of(place, "single,all") == ["single", "direct"]
    assert rows_of(place, "all,single:k=5") == ["direct", "single", "single:k=5"]
