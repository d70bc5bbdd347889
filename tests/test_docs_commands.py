"""Every `ltrag` command that README and docs show is one that the command line takes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ltrag_plugins.cli import app

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^ *```(?:console|sh|bash)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(file: Path) -> Iterator[str]:
    """Each line that calls `ltrag`, with the lines that it goes on with."""
    for block in BLOCK.finditer(file.read_text(encoding="utf-8")):
        whole = block[1].replace("\\\n", " ")
        for line in re.split(r"\n|&&", whole):
            if found := re.match(r"\s*(?:\$ )?(?:\.venv/bin/)?ltrag ([a-z].*)", line):
                yield found[1].partition(" > ")[0]


def parsed(words: list[str]) -> list[dict]:
    """The arguments that the command would be called with."""
    taken: list[dict] = []

    def silenced(command: Any) -> None:
        inner = getattr(command, "commands", {}).values()
        for one in inner:
            silenced(one)
        if not inner:
            command.callback = lambda **named: taken.append(named)

    whole = get_command(app)
    silenced(whole)
    whole.main(words, standalone_mode=False)
    return taken


SHOWN = [
    pytest.param(line, id=f"{file.stem}: {line[:40]}") for file in FILES for line in commands(file)
]


def test_there_are_some_of_each_room():
    first = {shlex.split(line.values[0])[0] for line in SHOWN}
    assert first >= {"gate", "rerank", "calibrate", "evaluate", "methods", "report"}


@pytest.mark.parametrize("line", SHOWN)
def test_a_command_that_is_shown_is_taken(line, tmp_path, monkeypatch):
    (tmp_path / "adapter").mkdir()  # these two are looked for while options are read
    (tmp_path / "FILE.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert len(parsed(shlex.split(line, comments=True))) == 1


@pytest.mark.parametrize("line", ["evaluate a.jsonl --no-such-option", "gate fits a.jsonl"])
def test_one_that_does_not_exist_is_not(line):
    with pytest.raises(Exception, match="No such") as raised:
        parsed(shlex.split(line))
    assert getattr(raised.value, "exit_code", 0) == 2


def test_the_table_of_papers_names_files_and_names_that_are_there():
    package, table = ROOT / "ltrag_plugins", (ROOT / "docs/papers.md").read_text("utf-8")
    named = re.findall(r"`((?:\w+/)*\w+\.py)`((?:,? `\w+`)*)", table)
    assert len(named) > 30
    for file, names in named:
        text = (package / file).read_text("utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"\b{name}\b", text), (file, name)
