"""Where a command is to write: tried before a model is asked anything, and left as it was."""

import json
import os
from pathlib import Path

import pytest
from openai_server import openai_server
from typer.testing import CliRunner

from ltrag_plugins.cli import app
from ltrag_plugins.cli.output import checked_file, checked_folder
from ltrag_plugins.errors import InvalidInput, UnwritableArtifact

NOWHERE = Path("/proc/ltrag")
"""Nobody, root included, can make a folder here."""
needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")


@pytest.fixture(scope="module")
def server():
    with openai_server(lambda _: ("x", 0.5)) as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "not-a-secret")
        yield found


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    passages = [{"text": "A fortress."}, {"text": "A coast."}]
    lines = [
        {"question": f"who wrote novel {i}?", "answers": [f"Author {i}"], "passages": passages}
        for i in range(24)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def ltrag(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def one_line(result) -> str:
    """The only line on stderr; nothing may be on stdout."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line.removeprefix("ltrag: error: ")


# --- commands


@needs_proc
@pytest.mark.parametrize(
    ("command", "option", "place"),
    [
        ("sgic fit {q}", "--out", NOWHERE / "calibration"),
        ("sgic build {q}", "--out", NOWHERE / "data"),
        ("sgic answer {q}", "--records", NOWHERE / "run.jsonl"),
        ("sgic answer {q}", "--records", Path("/proc/run.jsonl")),
        ("gate fit {q} --encoder none --gradients never", "--out", NOWHERE / "gate"),
        ("gate score {q} --without-semantics", "--out", Path("/proc/scores.jsonl")),
        ("dur train {q} {q} --out {d}/head", "--checkpoint", NOWHERE / "run"),
        ("dur train {q} {q} --out {d}/head", "--pictures", NOWHERE / "pictures"),
        ("dur train {q} {q}", "--out", NOWHERE / "head"),
    ],
)
def test_no_prompt_is_paid_for_where_nothing_can_be_kept(
    command, option, place, questions, server, tmp_path
):
    url, asked = server
    asked.clear()
    words = command.format(q=questions, d=tmp_path).split()
    line = one_line(ltrag(*words, "--model", f"openai:m@{url}", option, place))
    assert line.startswith(f"cannot write to {place.parent if place.suffix else place} (")
    assert line.endswith("Name another folder, or mend this one.")
    assert asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


@needs_proc
@pytest.mark.parametrize(
    "words", ["sgic finetune {d} --out", "report {d} --pictures", "report {d} --out"]
)
def test_a_command_that_asks_no_model_says_the_same(words, tmp_path):
    place = Path("/proc/page.html") if words.startswith("report {d} --out") else NOWHERE / "x"
    # there is neither data nor a run in that folder, and the place is looked at before
    line = one_line(ltrag(*words.format(d=tmp_path).split(), place))
    assert line.startswith("cannot write to /proc")


def test_a_command_that_fails_for_another_reason_leaves_no_folder(questions, tmp_path):
    out = tmp_path / "deep" / "calibration"
    questions.write_text("{oops", encoding="utf-8")
    for words in (("sgic", "fit"), ("sgic", "build"), ("gate", "fit")):
        assert "not JSON" in one_line(ltrag(*words, questions, "--out", out))
    records = ("--records", tmp_path / "new" / "run.jsonl")
    assert "not JSON" in one_line(ltrag("sgic", "answer", questions, *records))
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


def test_records_go_into_a_folder_that_is_made(questions, server, tmp_path):
    told = ["--model", f"openai:m@{server[0]}", "--limit", 2, "--rounds", 0]
    records = tmp_path / "deep" / "new" / "run.jsonl"
    result = ltrag("sgic", "answer", questions, *told, "--records", records)
    assert result.exit_code == 0, result.output
    assert len(records.read_text().splitlines()) == 2


# --- the two checks


def test_trying_a_place_leaves_it_as_it_was(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "kept.txt").write_text("kept")
    before = sorted(tmp_path.rglob("*"))
    times = [path.stat().st_mode for path in before]
    for place in ("there", "new", "there/deep/er", "."):
        assert checked_folder(tmp_path / place) == tmp_path / place
    assert checked_file(tmp_path / "there/kept.txt") == tmp_path / "there/kept.txt"
    assert checked_file(tmp_path / "new.txt") == tmp_path / "new.txt"
    assert sorted(tmp_path.rglob("*")) == before
    assert [path.stat().st_mode for path in before] == times
    assert (tmp_path / "there" / "kept.txt").read_text() == "kept"


def test_a_place_beside_the_program_is_tried_as_well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checked_folder(Path("out")) == Path("out")
    assert checked_file(Path("run.jsonl")) == Path("run.jsonl")
    assert not [*tmp_path.iterdir()]


def test_files_and_folders_in_the_way_are_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for place in (file, file / "x", file / "x" / "y"):
        with pytest.raises(InvalidInput, match=f"cannot make the folder .*{file.name} is a file"):
            checked_folder(place)
    with pytest.raises(InvalidInput, match="there is no folder"):
        checked_file(tmp_path / "no" / "run.jsonl")
    with pytest.raises(InvalidInput, match="it is a folder"):
        checked_file(tmp_path)


def test_a_name_that_no_file_system_takes_is_one_error_and_leaves_nothing(tmp_path):
    for place in (tmp_path / "new" / ("x" * 300), tmp_path / "new" / ("x" * 300) / "y"):
        with pytest.raises(UnwritableArtifact, match="cannot write to"):
            checked_folder(place)
    os.symlink(tmp_path / "gone", tmp_path / "dangling")
    with pytest.raises(UnwritableArtifact, match="cannot write to"):
        checked_folder(tmp_path / "dangling")
    assert [path.name for path in tmp_path.iterdir()] == ["dangling"]
