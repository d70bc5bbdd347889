"""Bars on stderr. Alone in a file, as `--help` must not wait for what progress reads."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def bars(label: str, told: str | None = None) -> Progress:
    """Bars on stderr with counts and times; silent where that is no terminal.

    Args:
        label: what stands before a bar, in rich's terms.
        told: what stands behind its count.
    """
    console = Console(stderr=True)
    return Progress(
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        *([] if told is None else [TextColumn(told)]),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=3600,  # one step may take minutes
        disable=not console.is_terminal,
    )
