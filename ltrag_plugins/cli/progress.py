"""Progress on stderr: a bar for each part of the work, fed by replies that have come."""

from dataclasses import dataclass
from typing import Self

from ltrag_plugins.cli.bars import bars
from ltrag_plugins.flow import Request, Step


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the work, done by requests of one kind."""

    label: str
    kind: type[Request]
    total: int
    """Prompts or texts; 0: this part is left out."""


class StageBars:
    """An observer that shows how many replies have come; silent where stderr is no terminal.

    Use it as a context manager. A reply counts for the first stage of its kind that is not
    full, so stages of one kind stand in the order of the work.
    """

    def __init__(self, *stages: Stage) -> None:
        self._progress = bars("{task.description:>14}")
        self._tasks = [
            (stage.kind, self._progress.add_task(stage.label, total=stage.total, start=False))
            for stage in stages
            if stage.total
        ]

    def __call__(self, step: Step) -> None:
        """Take in one step."""
        going = (
            task
            for kind, task in self._tasks
            if isinstance(step.request, kind) and not self._progress.tasks[task].finished
        )
        if (task := next(going, None)) is None:
            return
        if step.reply is None:
            self._progress.start_task(task)
        else:
            self._progress.advance(task, len(step.reply))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
