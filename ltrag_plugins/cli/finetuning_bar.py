"""A bar on stderr while a model is fine-tuned."""

from typing import TYPE_CHECKING, Self, final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from ltrag_plugins.sgic.finetune import FinetuneStep


@final
class FinetuneBar:
    """Steps, loss and speed; silent where stderr is no terminal. A context manager."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("fine-tuning"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=3600,  # a step may take minutes
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, told="first step")

    def __call__(self, step: "FinetuneStep") -> None:
        """Take in one step."""
        told = f"loss {step.loss:.3f}, {step.tokens_per_second:,.0f} tokens/s"
        self._progress.update(self._task, completed=step.step, total=step.steps, told=told)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
