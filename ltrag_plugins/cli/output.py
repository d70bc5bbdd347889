"""What goes to stdout (data) and to stderr (messages)."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ltrag_plugins.errors import InvalidInput


def say(message: str) -> None:
    """One message for a person, on stderr."""
    typer.echo(f"ltrag: {message}", err=True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr meanwhile, where that is a terminal."""
    console = Console(stderr=True)
    with console.status(what) if console.is_terminal else nullcontext():
        yield


def show(text: str) -> None:
    """Text on stdout; what its encoding cannot say is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def show_json(value: Any, *, indent: int | None = None) -> None:
    """A value on stdout as JSON."""
    unicode = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    show(as_json(value, indent=indent, ensure_ascii=not unicode))


def as_json(value: Any, *, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """A value as JSON, in the standard's own sense: no NaN, no infinities."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def show_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
    """A table on stdout, its first column for text, the others for numbers."""
    console = Console()
    # without a terminal there is no width to keep to, and a narrow guess would fold numbers
    console = console if console.is_terminal else Console(width=120)
    table = Table()
    table.add_column(columns[0])
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file, whole or not at all."""
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    new.replace(path)


def checked_file(path: Path) -> Path:
    """The path, if a file can be written there; tried before the work, not after it.

    Raises:
        InvalidInput: its folder is missing, or it is a folder itself.
        UnwritableArtifact: its folder cannot be written to.
    """
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {str(path.parent)!r}"
        raise InvalidInput(f"cannot write {path}: {why}")
    checked_folder(path.parent)
    return path


def checked_folder(path: Path) -> Path:
    """The path, if a folder can be made and written to there; tried, and left as it was.

    Raises:
        InvalidInput: it, or a part of it, is a file.
        UnwritableArtifact: it cannot be made or written to.
    """
    from ltrag_plugins.artifacts import writing  # it brings numpy, which no --help needs

    # not Path.exists, which raises where a name is too long or a folder is closed
    missing = [*takewhile(lambda part: not os.path.exists(part), (path, *path.parents))]
    there = missing[-1].parent if missing else path
    if os.path.isfile(there):
        raise InvalidInput(f"cannot make the folder {path}: {there} is a file")
    try:
        with writing(path), TemporaryFile(dir=path):
            pass
    finally:
        for part in missing:
            with suppress(OSError):  # not made, or already of use to somebody
                part.rmdir()
    return path
