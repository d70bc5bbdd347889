"""What commands read and print: questions, places to write to, text, JSON, tables, progress.

Data goes to stdout, messages and progress to stderr; progress only where that is a terminal.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Self, final

import typer

from ltrag_plugins.data import read_passages
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.types import Passage, Question

if TYPE_CHECKING:  # numpy and rich's bars would slow --help down
    from rich.progress import Progress

    from ltrag_plugins.dur import Batch
    from ltrag_plugins.flow import Observer, Step


def check_records(
    path: Path, questions: Sequence[Question], check: Callable[[Question], object]
) -> None:
    """Refuse a file of which `check` does not let pass each question."""
    for number, question in enumerate(questions, start=1):
        try:
            check(question)
        except InvalidInput as error:
            raise type(error)(f"{path}, record {number} (id {question.id!r}): {error}") from error


def check_passages(question: Question) -> None:
    """Refuse a question that brings no passages, for `check_records`."""
    if not question.passages:
        raise InvalidInput(
            "no passages of its own; add 'passages', or 'passage_ids' and the pool that has them"
        )


def pool_of(path: Path | None, questions: Sequence[Question]) -> list[Passage]:
    """The passages of a file, or else those of the questions, each once.

    Questions may number their own passages; where an id then means several texts, all but the
    first get one of their own."""
    if path is not None:
        return read_passages(path)
    found: dict[tuple[str, str, str], Passage] = {}
    texts: Counter[str] = Counter()
    for passage in (passage for question in questions for passage in question.passages):
        key = (passage.id, passage.title, passage.text)
        if key not in found:
            texts[passage.id] += 1
            again = f"{passage.id}#{texts[passage.id]}"
            found[key] = passage if texts[passage.id] == 1 else replace(passage, id=again)
    return list(found.values())


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} where there is none that can be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def checked_file(path: Path) -> Path:
    """The path, if a file can be written there; tried before the work, not after it."""
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {str(path.parent)!r}"
        raise InvalidInput(f"cannot write {path}: {why}")
    checked_folder(path.parent)
    return path


def checked_folder(path: Path) -> Path:
    """The path, if a folder can be made and written to there; tried, and left as it was."""
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


def say(message: str) -> None:
    """One message for a person, on stderr."""
    typer.echo(f"ltrag: {message}", err=True)


def show(value: Any, *, indent: int | None = 1) -> None:
    """Text on stdout; any other value as JSON, without NaN and infinities.

    What the encoding of stdout cannot say is escaped.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if not isinstance(value, str):
        plain = encoding.lower().replace("-", "") != "utf8"
        value = json.dumps(value, indent=indent, ensure_ascii=plain, allow_nan=False)
    typer.echo(value.encode(encoding, "backslashreplace").decode(encoding))


def show_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
    """A table on stdout, its first column for text, the others for numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr meanwhile."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(what) if console.is_terminal else nullcontext():
        yield


def bars(label: str, note: str | None = None) -> "Progress":
    """Bars with counts and times; a context manager.

    Args:
        label: what stands before a bar, in rich's terms.
        note: what stands behind its count.
    """
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    wide = note is None or console.width >= 100  # else there is room for the numbers alone
    columns: list[rich.ProgressColumn] = [rich.TextColumn(label)]
    columns += [rich.BarColumn(min(40, console.width - 92) if note else 40)] * wide
    columns += [rich.MofNCompleteColumn()]
    columns += [rich.TextColumn(note)] if note else []
    columns += [rich.TimeElapsedColumn(), rich.TimeRemainingColumn(compact=bool(note))] * wide
    return rich.Progress(
        *columns,
        console=console,
        speed_estimate_period=3600,  # one step may take minutes
        disable=not console.is_terminal,
    )


@contextmanager
def stages(*parts: tuple[str, type, int]) -> "Iterator[Observer]":
    """An observer that shows how many replies have come, a bar for each part that has begun.

    A reply counts for the first part of its kind that is not full, so parts of one kind stand in
    the order of the work.

    Args:
        parts: label, kind of request, and count of its prompts or texts.
    """
    with bars("{task.description:>14}") as progress:
        tasks = [
            (kind, progress.add_task(label, total=total, start=False, visible=False))
            for label, kind, total in parts
            if total
        ]

        def observe(step: "Step") -> None:
            for kind, task in tasks:
                if isinstance(step.request, kind) and not progress.tasks[task].finished:
                    if step.reply is None:
                        progress.start_task(task)
                        progress.update(task, visible=True)
                    else:
                        progress.advance(task, len(step.reply))
                    return

        yield observe


@final
class TrainingBar:
    """Shows how far a training of DUR is; a context manager.

    ::

        with TrainingBar(epochs=10, batches=8) as bar:
            trainer.fit(candidates, validation, on_batch=bar.on_batch, observers=[bar.on_step])

    Args:
        epochs: as in the settings.
        batches: of an epoch.
        max_calls: as given to `fit`.
    """

    def __init__(self, *, epochs: int, batches: int, max_calls: int | None = None) -> None:
        self.last: Batch | None = None
        """The batch that ended last."""
        self.calls = 0
        """Prompts sent so far, without those of an earlier run that this one goes on."""
        self._epochs, self._batches, self._most = epochs, batches, max_calls
        self._goes_on = False
        self._progress = bars("{task.description}", "{task.fields[note]}")
        self._task = self._progress.add_task("encoding", total=epochs * batches, note="")

    @property
    def done(self) -> int:
        """Batches that have ended, with those of an earlier run that this one goes on."""
        last = self.last
        return 0 if last is None else last.epoch * self._batches + last.number + 1

    def on_batch(self, batch: "Batch") -> None:
        """Take in a batch that has ended."""
        if self.last is None:
            self._goes_on = (batch.epoch, batch.number) != (0, 0)
        self.last = batch
        self._show()

    def on_step(self, step: "Step") -> None:
        """Take in a request to the model; an `Observer`."""
        from ltrag_plugins.flow import Ask, Score

        if step.kind == "request" and isinstance(step.request, Ask | Score):
            self.calls += len(step.request.prompts)
            self._show()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self) -> None:
        note, last = f"calls {self.calls}", self.last
        if last is not None:
            note = f"reward {last.reward:+.2f} sigma {last.sigma:.3f} shots {last.shots} {note}"
            if self._most is not None and not self._goes_on:
                note += f" ({max(0, self._most - self.calls)} left)"
        epoch = min(self.done // self._batches + 1, self._epochs)
        self._progress.update(
            self._task,
            completed=self.done,
            # before the first batch ends nobody here knows where the run goes on
            description=f"epoch {epoch}/{self._epochs}" if last else "asking",
            note=note,
        )
