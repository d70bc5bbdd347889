"""Wrong input on the command line: one line that says what is wrong, and an exit code."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from ltrag_plugins.cli import app, options
from ltrag_plugins.gece import settings

GOOD = {"question": "who wrote Emma?", "answers": ["Jane Austen"]}


def ltrag(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def fit(path: Path, *more: object):
    # there is no such model file, and none is needed: the input is looked at first
    return ltrag("gate", "fit", path, "--out", path.parent / "gate", *more)


def one_line(result) -> str:
    """The only line on stderr; nothing may be on stdout."""
    assert result.exit_code == 1
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line.removeprefix("ltrag: error: ")


def lines_file(folder: Path, *records: object) -> Path:
    path = folder / "questions.jsonl"
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ("{oops}", "line 2, column 2: not JSON"),
        ("[1]", "line 2: expected an object"),
        ({"q": "who?"}, "line 2, field 'question': missing; this line has only 'q'"),
        ({"question": " ", "answers": ["a"]}, "line 2, field 'question': expected a string with"),
        ({"question": 3, "answers": ["a"]}, "line 2, field 'question': expected a string, got int"),
        ({"question": "who?", "answers": "a"}, "line 2, field 'answers': expected a list"),
        ({"question": "who?", "answers": [1]}, "line 2, field 'answers[0]': expected a string"),
        ({"question": "who?"}, "line 2, field 'answers': no accepted answers"),
        ({"question": "?!", "answers": ["a"], "id": "odd"}, "record 2 (id 'odd'): the question"),
        ({"question": "so " * 3000, "answers": ["a"], "id": "long"}, "record 2 (id 'long')"),
    ],
)
def test_a_wrong_record_is_named_with_its_file_and_field(record, says, tmp_path):
    path = lines_file(tmp_path, GOOD, record)
    line = one_line(fit(path))
    assert line.startswith(f"{path}, ")
    assert says in line


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "nowhere.jsonl"
    assert one_line(fit(path)) == f"cannot read {path}: No such file or directory"


def test_an_empty_file_is_named(tmp_path):
    path = lines_file(tmp_path)
    assert one_line(fit(path)).startswith(f"{path}: no questions in it")


def test_half_a_gzip_file_is_named(tmp_path):
    path = tmp_path / "questions.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(GOOD).encode() * 99)[:-20])
    assert f"{path}: not a whole gzip file" in one_line(fit(path))


def test_too_few_questions_are_refused_before_a_model_is_loaded(tmp_path):
    line = one_line(fit(lines_file(tmp_path, GOOD, GOOD)))
    assert "2 calibration questions; a gate needs at least 20" in line


def test_a_wrong_passage_is_named(tmp_path):
    questions = lines_file(tmp_path, *[GOOD] * 20)
    pool = tmp_path / "pool.jsonl"
    pool.write_text('{"text": "a b"}\n{"title": "no text"}\n', encoding="utf-8")
    assert one_line(fit(questions, "--passages", pool)).startswith(
        f"{pool}, line 2, field 'text': missing"
    )


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path):
    questions = lines_file(tmp_path, *[GOOD] * 20)
    assert one_line(ltrag("gate", "fit", questions, "--out", questions)) == (
        f"cannot make the folder {questions}: {questions} is a file"
    )
    nowhere = tmp_path / "no" / "scores.jsonl"
    line = one_line(ltrag("gate", "score", questions, "--out", nowhere))
    assert line == f"cannot write {nowhere}: there is no folder {str(nowhere.parent)!r}"


def test_a_folder_without_a_gate_is_named(tmp_path):
    line = one_line(ltrag("gate", "explain", "who?", "--gate", tmp_path))
    assert line.startswith(f"{tmp_path} holds no readable gate (gate.json: No such file")


def test_a_gate_from_python_asks_for_its_model(tmp_path):
    body = {"llm": "mine@1234", "encoder": "vectors@5678"}
    (tmp_path / "gate.json").write_text(json.dumps(body), encoding="utf-8")
    line = one_line(ltrag("gate", "explain", "who?", "--gate", tmp_path))
    assert "fitted with the model 'mine@1234'" in line
    assert line.endswith("add --model")
    line = one_line(ltrag("gate", "explain", "who?", "--gate", tmp_path, "--model", "embedded"))
    assert "fitted with the encoder 'vectors@5678'" in line
    assert line.endswith("add --encoder")


def test_a_folder_that_is_no_model_is_named(tmp_path):
    questions = lines_file(tmp_path, *[GOOD] * 20)
    line = one_line(fit(questions, "--model", tmp_path))
    assert str(tmp_path) in line
    assert "config.json" in line


def test_a_file_that_only_looks_like_weights_is_named(tmp_path):
    questions = lines_file(tmp_path, *[GOOD] * 20)
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"not a model")
    assert f"cannot load the model {str(fake)!r}" in one_line(fit(questions, "--model", fake))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "nonesuch"], "nonesuch"),
        (["--model", "openai:gpt@ftp://host"], "openai:gpt@ftp://host"),
        (["--model", "openai:gpt@localhost:8000"], "openai:gpt@localhost:8000"),
        (["--model", "openai:"], "openai:"),
        (["--model", ""], "no folder or file"),
        (["--encoder", "nonesuch"], "nonesuch"),
        (["--rate", "1.5"], "--rate"),
        (["--rate", "0.2", "--accuracy", "0.5"], "not both"),
        (["--correct", "roughly"], "--correct"),
        (["--limit", "0"], "--limit"),
        (["--batch", "0"], "--batch"),
        (["--nonesuch"], "--nonesuch"),
    ],
)
def test_wrong_usage_leaves_with_two(arguments, says, tmp_path):
    result = fit(lines_file(tmp_path, GOOD), *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    # the box around the message may break lines
    assert says in "".join(result.stderr.replace("│", "").split()) or says in result.stderr


def test_debug_shows_the_whole_error(tmp_path):
    result = CliRunner().invoke(
        app, ["--debug", "gate", "fit", str(tmp_path / "nowhere"), "--out", str(tmp_path)]
    )
    assert result.exit_code == 1
    assert type(result.exception).__name__ == "InvalidInput"


def test_the_choices_are_those_of_the_settings():
    assert get_args(options.Quality) == get_args(settings.Quality)
    for choice in get_args(options.Gradients):
        assert settings.GECESettings(gradients=choice).gradients == choice


# --- as a program


def program(*arguments: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "ltrag_plugins.cli", *arguments],
        capture_output=True, text=True, check=False, timeout=120, **more,
    )  # fmt: skip


def test_the_program_tells_its_version():
    result = program("--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("ltrag 0.")


@pytest.mark.parametrize("command", [[], ["gate"], ["gate", "fit"], ["gate", "explain"]])
def test_help_loads_nothing_heavy(command):
    code = (
        "import sys, typer.testing, ltrag_plugins.cli as c\n"
        f"r = typer.testing.CliRunner().invoke(c.app, {[*command, '--help']})\n"
        "assert r.exit_code == 0 and 'Usage' in r.stdout, r.output\n"
        "heavy = {'torch', 'sklearn', 'transformers', 'numpy', 'langchain_core', 'llama_index'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_an_error_of_the_program_is_one_line_without_traceback(tmp_path):
    result = program("gate", "fit", str(tmp_path / "nowhere"), "--out", str(tmp_path / "gate"))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "No such file" in result.stderr
    debugged = program("--debug", "gate", "fit", str(tmp_path / "nowhere"), "--out", str(tmp_path))
    assert debugged.returncode == 1
    assert "Traceback" in debugged.stderr
