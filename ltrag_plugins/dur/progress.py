"""A bar on stderr while a head is trained.

::

    with TrainingBar(epochs=10, batches=8) as bar:
        trainer.fit(candidates, validation, on_batch=bar.on_batch, observers=[bar.on_step])
"""

from typing import Self, final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ltrag_plugins.dur.batch import Batch
from ltrag_plugins.flow import Ask, Score, Step


@final
class TrainingBar:
    """Shows how far a training is: batches, reward, sigma, shots, and what is left of the calls.

    Use it as a context manager. Where stderr is no terminal it is silent, and counts all the
    same.

    Args:
        epochs: as in the settings.
        batches: of an epoch.
        max_calls: as given to `fit`.
    """

    def __init__(self, *, epochs: int, batches: int, max_calls: int | None = None) -> None:
        self.last: Batch | None = None
        """The batch that ended last."""
        self.calls = 0
        """Prompts sent so far; those of an earlier run that this one goes on are not known."""
        self._epochs, self._batches, self._most = epochs, batches, max_calls
        self._goes_on = False
        console = Console(stderr=True)
        wide = console.width >= 100  # else there is room for the numbers alone
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}"),
            *([BarColumn(bar_width=min(30, console.width - 92))] if wide else []),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            *([TimeElapsedColumn(), TimeRemainingColumn(compact=True)] if wide else []),
        ]
        self._progress = Progress(
            *columns,
            console=console,
            speed_estimate_period=3600,  # a batch may take many minutes
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("encoding", total=epochs * batches, told="")

    @property
    def done(self) -> int:
        """Batches that have ended, those of an earlier run that this one goes on with them."""
        last = self.last
        return 0 if last is None else last.epoch * self._batches + last.number + 1

    def on_batch(self, batch: Batch) -> None:
        """Take in a batch that has ended."""
        if self.last is None:
            self._goes_on = (batch.epoch, batch.number) != (0, 0)
        self.last = batch
        self._show()

    def on_step(self, step: Step) -> None:
        """Take in a request to the model; an `Observer`."""
        if step.kind == "request" and isinstance(step.request, Ask | Score):
            self.calls += len(step.request.prompts)
            self._show()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self) -> None:
        epoch = min(self.done // self._batches + 1, self._epochs)
        self._progress.update(
            self._task,
            completed=self.done,
            # before the first batch ends nobody here knows where the run goes on
            description=f"epoch {epoch}/{self._epochs}" if self.last else "asking",
            told=" ".join(self._told()),
        )

    def _told(self) -> list[str]:
        told = [f"calls {self.calls}"]
        if (last := self.last) is not None:
            told = [f"reward {last.reward:+.2f} sigma {last.sigma:.3f} shots {last.shots}", *told]
            if self._most is not None and not self._goes_on:
                told.append(f"({max(0, self._most - self.calls)} left)")
        return told
