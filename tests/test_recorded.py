"""Answers that were given elsewhere, asked for again through flows and gates."""

import gzip
import json

import pytest
from cli_parts import ltrag

from ltrag_plugins.errors import BadRecord, InvalidInput
from ltrag_plugins.evaluate import Cell, Recording, evaluate
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.methods import METHODS
from ltrag_plugins.types import Question

ROWS = [
    {"question": "Who wrote Emma?", "none": "Jane Austen", "bm25": "Austen's aunt"},
    {"question": "Who wrote Emma's sequel?", "none": "nobody", "bm25": None},
    {"question": "Who wrote Middlemarch?", "none": "I forgot", "bm25": "George Eliot"},
]
ANSWERS = ["Jane Austen", "nobody", "George Eliot"]
QUESTIONS = [
    Question(row["question"], (answer,), f"q{i}")
    for i, (row, answer) in enumerate(zip(ROWS, ANSWERS, strict=True))
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "answers.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
    return path


def test_each_flow_gets_the_answer_that_was_given_its_way(file, tmp_path):
    recording = Recording.read([file], ("none", "bm25"))
    cells = [Cell(METHODS["direct"]), Cell(METHODS["single"])]
    found = evaluate(QUESTIONS, cells, recording.world(), out=tmp_path / "run")
    assert [r.prediction for r in found["direct"]] == [row["none"] for row in ROWS]
    assert [r.prediction for r in found["single"]] == [row["bm25"] or "" for row in ROWS]
    assert {(r.calls, r.retrievals) for r in found["direct"]} == {(1, 0)}
    assert {(r.calls, r.retrievals) for r in found["single"]} == {(1, 1)}


def test_a_gate_that_is_fitted_on_them_chooses_between_the_two(tmp_path):
    """Short questions were known, long ones were not: a gate that reads the text can learn it."""
    rows = {}
    for i in range(60):
        whose = "Who" if i % 2 == 0 else "Who of all people on earth"
        told = (f"Author {i}", "noise") if i % 2 == 0 else ("no idea", f"Author {i}")
        rows[f"{whose} wrote book {i}?"] = told
    questions = [Question(text, (f"Author {i}",), f"q{i}") for i, text in enumerate(rows)]
    world, single = Recording(rows).world(), METHODS["single"]
    gate = GECEGate.fit(
        questions[:40],
        llm=world.llm,
        target_rate=0.5,
        retriever=world.retriever,
        retrieving=lambda question: single.answer(Question(question), single.settings(), None),
    )
    [found] = evaluate(questions[40:], [Cell(single, gate=gate)], world, out=tmp_path).values()
    chosen = [rows[r.question][bool(r.decision["retrieve"])] for r in found]
    assert [r.prediction for r in found] == chosen
    never, always = ([rows[r.question][i] in r.answers for r in found] for i in (0, 1))
    assert sum(r.scores["em"] for r in found) > max(sum(never), sum(always))


def test_of_two_questions_in_a_prompt_the_last_one_is_meant_and_the_whole_of_it():
    recording = Recording({"Who wrote Emma?": ("a", ""), "Who wrote Emma? And when?": ("b", "")})
    assert recording.answer("Who wrote Emma? And when?").text == "b"
    assert recording.answer("Who wrote Emma? And when?\nWho wrote Emma?").text == "a"


def test_a_question_without_a_record_is_a_row_with_an_error(file, tmp_path):
    world = Recording.read([file], ("none", "bm25")).world()
    new = Question("Who wrote Walden?", ("Thoreau",), "q9")
    found = evaluate([*QUESTIONS, new], [Cell(METHODS["direct"])], world, out=tmp_path / "run")
    assert "no answer was recorded" in found["direct"][-1].error
    assert [r.error for r in found["direct"][:-1]] == [None] * 3


def test_the_name_tells_recordings_apart(file):
    first = Recording.read([file], ("none", "bm25")).world().llm.name
    assert first == Recording.read([file], ("none", "bm25")).world().llm.name
    assert first != Recording.read([file], ("bm25", "none")).world().llm.name


@pytest.mark.parametrize(
    ("line", "fields", "kind", "said"),
    [
        (json.dumps(ROWS[0]), ("none", "dense"), BadRecord, "line 1, field 'dense': missing"),
        (json.dumps(ROWS[0]), ("none",), InvalidInput, "two fields"),
        ('{"question": "?", "a": 3, "b": "x"}', ("a", "b"), BadRecord, "expected a string or null"),
        ("", ("a", "b"), InvalidInput, "no recorded answers"),
        ('{"question": null, "a": "x", "b": "x"}', ("a", "b"), InvalidInput, "empty question"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path, line, fields, kind, said):
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(kind, match=said):
        Recording.read([path], fields)


def test_the_command_line_takes_them_for_the_model(file, tmp_path):
    asked = tmp_path / "asked.jsonl"
    lines = [{"question": q.text, "answers": list(q.answers), "id": q.id} for q in QUESTIONS]
    asked.write_text("\n".join(map(json.dumps, lines)))
    recorded = ("--set", f"recorded={file}", "--set", "recorded_fields=none,bm25")
    given = (*recorded, "--out", tmp_path / "run")
    result = ltrag("evaluate", asked, *given)
    assert result.exit_code == 0, result.output
    found = RunFolder(tmp_path / "run").records("single")
    assert [r.scores["em"] for r in found] == [0.0, 0.0, 1.0]
    result = ltrag("evaluate", asked, "--methods", "direct,ircot", *given)
    assert result.exit_code == 1
    assert "ircot would ask the model for more" in result.stderr
