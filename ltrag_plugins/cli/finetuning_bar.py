"""A bar on stderr while a model is fine-tuned."""

from typing import TYPE_CHECKING, Self, final

from ltrag_plugins.cli.bars import bars

if TYPE_CHECKING:
    from ltrag_plugins.training import FinetuneStep


@final
class FinetuneBar:
    """Steps, loss and speed; silent where stderr is no terminal. A context manager."""

    def __init__(self) -> None:
        self._progress = bars("fine-tuning", "{task.fields[told]}")
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
