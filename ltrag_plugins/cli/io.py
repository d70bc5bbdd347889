"""What commands print, and where they write: text, JSON, tables, progress (on terminals only)."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from shutil import get_terminal_size
from tempfile import TemporaryFile
from textwrap import fill
from typing import TYPE_CHECKING, Any

import typer

from ltrag_plugins.errors import InvalidInput

if TYPE_CHECKING:  # numpy and rich's bars would slow --help down
    from rich.progress import Progress

    from ltrag_plugins.dur import Batch
    from ltrag_plugins.flow import Observer, Step


def checked_folder(path: Path) -> Path:
    """The path, if a folder can be made and written to there; tried, and left as it was."""
    from ltrag_plugins.artifacts import tidying, writing  # they bring numpy, which no --help needs

    with tidying(path), writing(path), TemporaryFile(dir=path):
        return path


def checked_page(page: Path | None, pictures: Path | None) -> None:
    """Refuse what a page, or its pictures, cannot be written to, before anything is drawn."""
    if page is not None and page.is_dir():
        raise InvalidInput(f"cannot write {page}: it is a folder; name a file in it")
    for folder in filter(None, (page and page.parent, pictures)):
        checked_folder(folder)


def say(message: str) -> None:
    """One message for a person, on stderr."""
    typer.echo(wrapped(f"ltrag: {message}", sys.stderr), err=True)


def wrapped(text: str, stream: Any) -> str:
    """On a terminal lines go on below their values, and are broken between words alone."""
    width, lines = get_terminal_size().columns, text.split("\n")
    for i, line in enumerate(lines if stream.isatty() else ()):
        if len(line) > width:
            name = re.match(r" *\S+(?: \S+)*  +|", line)
            below = " " * (name.end() if name and 0 < name.end() <= width // 2 else 2)
            how: Any = {"break_long_words": False, "break_on_hyphens": False}
            lines[i] = fill(line, width, subsequent_indent=below, **how)
    return "\n".join(lines)


def show(value: Any, as_data: bool = False, *, indent: int | None = 1) -> None:
    """A value on stdout: its text, a mapping as rows; or (`as_data`) JSON without NaN. What the
    encoding of stdout cannot say is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if as_data:
        value = value.as_dict() if hasattr(value, "as_dict") else value
        plain = encoding.lower().replace("-", "") != "utf8"
        value = json.dumps(value, indent=indent, ensure_ascii=plain, allow_nan=False)
    elif isinstance(value, Mapping):
        wide = 2 + max(map(len, value))
        value = "\n".join(f"{name:<{wide}}{_in_words(one)}" for name, one in value.items())
    text = value if as_data else wrapped(str(value), sys.stdout)
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_in_words, value)) or "none"
    return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def show_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A table on stdout, its first column for names, the others for numbers; a column's title says
    which field of a row it has, in which format: ``{"mean p": "mean:.3f"}``."""
    from ltrag_plugins.metrics.table import table

    fields, (title, *heads) = [field.partition(":") for field in columns.values()], columns
    cells = [["" if r[n] is None else format(r[n], form) for n, _, form in fields] for r in rows]
    show("\n".join(table([(name, row) for name, *row in cells], heads, title=title)))


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with what is kept of the work."""


@contextmanager
def resumable(folder: Path | None, option: str = "--cache") -> Iterator[None]:
    """Tells whoever stops the work where the part that is done is kept; None: nowhere, without
    that option."""
    try:
        yield
    except KeyboardInterrupt as stop:
        kept = f"the same command goes on with what is in {folder}"
        lost = f"nothing is kept, as there is no {option}"
        raise Stopped(kept if folder else lost) from stop


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr meanwhile."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(what) if console.is_terminal else nullcontext():
        yield


def bars(label: str, note: str = "") -> "Progress":
    """Bars with counts and times, between a label and a note in rich's terms."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    return rich.Progress(
        rich.TextColumn(label),
        rich.BarColumn(None if note else 40),  # None: what the note leaves of the line
        rich.MofNCompleteColumn(),
        rich.TextColumn(note),
        rich.TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        speed_estimate_period=3600,  # one step may take minutes
        disable=not console.is_terminal,
    )


@contextmanager
def progress(**totals: int | None) -> "Iterator[Observer]":
    """An observer that shows how many replies have come, of so many: ``Ask=80, Embed=None``."""
    with bars("{task.description:>9}") as shown:
        tasks = {k: shown.add_task(k.lower(), total=n, visible=False) for k, n in totals.items()}

        def observe(step: "Step") -> None:
            if (task := tasks.get(type(step.request).__name__)) is not None:
                done = 0 if step.reply is None else len(step.reply)
                shown.update(task, advance=done, visible=True)

        yield observe


@contextmanager
def answering(total: int, done: int = 0) -> Iterator[Callable[[str, Any], None]]:
    """A bar for `evaluate(on_record=...)`, of so many records, some of which are there."""
    with bars("{task.description:>20}") as bar:
        task = bar.add_task("answering", total=total, completed=done)
        yield lambda cell, _: bar.update(task, description=cell, advance=1)


@contextmanager
def training(epochs: int, batches: int, begun: bool = False) -> Iterator[dict[str, Any]]:
    """What `DURTrainer.fit` takes to show how far it is, of so many batches in each epoch. How far
    a run was that is `begun` is known after a batch."""
    calls, last = 0, ""
    with bars("{task.description}", "{task.fields[note]}") as bar:
        task = bar.add_task("asking", total=None if begun else epochs * batches, note="")

        def on_batch(batch: "Batch") -> None:
            nonlocal last
            last = f"reward {batch.reward:+.2f} sigma {batch.sigma:.3f} shots {batch.shots} "
            done = batch.epoch * batches + batch.number + 1  # also of a run that this one goes on
            epoch = f"epoch {batch.epoch + 1}/{epochs}"
            more = {"total": epochs * batches, "description": epoch}
            bar.update(task, completed=done, note=f"{last}calls {calls}", **more)

        def on_step(step: "Step") -> None:
            nonlocal calls
            if step.kind == "request":
                calls += len(getattr(step.request, "prompts", ()))
            bar.update(task, note=f"{last}calls {calls}")

        yield {"on_batch": on_batch, "observers": [on_step]}
