"""Pictures of DUR's training: shots against a fixed number of them, loss and reward, turns.

Each function takes the `history` of a `TrainingResult` and returns the path of the picture,
whose suffix says the format (.png, .svg, .pdf). A report draws them of `RUN/learned/CELL.json`,
what a method kept of its training, and of `RUN/dur_history.json`, what `ltrag dur train --json`
printed.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", figures 3, 8 and 9.
"""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from ltrag_plugins.dur.batch import Batch, by_epoch
from ltrag_plugins.errors import InvalidInput, UnreadableArtifact, missing_extra
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.report.escaping import slug, visible
from ltrag_plugins.report.plots import (
    INK,
    ORANGE,
    QUIET,
    Picture,
    as_percent,
    canvas,
    saved,
    styled,
)

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise missing_extra("matplotlib", "plots") from error

_LABELLED = 12  # bars; more of them would have their figures overlap


@styled()
def shots_picture(history: Sequence[Batch], path: str | Path, *, shots: int) -> Path:
    """Shots in all prompts of each batch, and each epoch's share of PromptPG's (figure 8).

    Args:
        shots: K, with which PromptPG asks about every question.
    """
    figure, [left, right] = _canvas(history, 1, 2, size=(9.0, 3.8))
    numbers = range(1, len(history) + 1)
    left.plot(numbers, [batch.shots for batch in history], color=ORANGE, label="this training")
    fixed = [shots * batch.questions for batch in history]
    left.plot(
        numbers, fixed, color=INK, linestyle="--", linewidth=1.2, label=f"PromptPG, K = {shots}"
    )
    _batch_axis(left, history)
    left.set_ylabel("shots in all prompts of a batch")
    left.set_ylim(0, 1.25 * max([*fixed, *(batch.shots for batch in history)]))
    left.set_title("Shots by batch", loc="left")
    left.legend(loc="upper right")
    shares = [epoch.share for epoch in by_epoch(history, shots=shots)]
    bars = right.bar(range(1, len(shares) + 1), shares, color=ORANGE)
    if len(shares) <= _LABELLED:
        right.bar_label(
            bars, [f"{share:.0%}" for share in shares], color=INK, padding=2, fontsize=8
        )
    right.axhline(1, color=INK, linestyle="--", linewidth=1.2)
    _epoch_axis(right, len(shares))
    as_percent(right.yaxis)
    right.set_ylim(0, 1.2 * max(1.0, *shares))
    right.set_ylabel("shots, PromptPG = 100 %")
    right.set_title("Shots by epoch", loc="left")
    return saved(figure, path)


@styled()
def loss_picture(history: Sequence[Batch], path: str | Path) -> Path:
    """The loss of each batch (figure 9), and below it the mean reward.

    The loss of a policy gradient only gives the direction of a step: whether the answers get
    better, the reward tells.
    """
    figure, [above, below] = _canvas(history, 2, 1, size=(6.4, 5.2))
    numbers = range(1, len(history) + 1)
    above.plot(numbers, [batch.loss for batch in history], color=INK)
    above.set_ylabel("loss")
    above.set_title("Loss and reward by batch", loc="left")
    below.plot(numbers, [batch.reward for batch in history], color=ORANGE)
    below.set_ylabel("mean reward, all shots shown")
    _batch_axis(above, history)
    _batch_axis(below, history)
    above.set_xlabel("")
    above.axhline(0, color=QUIET, linewidth=1)
    figure.align_ylabels()
    return saved(figure, path)


@styled()
def turns_picture(history: Sequence[Batch], path: str | Path) -> Path:
    """Share of questions whose answer turns as shots are added, by epoch (figure 3).

    Easy questions are right without shots, hard ones wrong (eq. 3).
    """
    figure, [axes] = _canvas(history, 1, 1, size=(6.4, 4.0))
    epochs = by_epoch(history, shots=1)
    parts = [(e.turned_hard, e.turned_easy, e.questions) for e in epochs]
    hard = [turned / asked for turned, _, asked in parts if turned is not None]
    easy = [turned / asked for _, turned, asked in parts if turned is not None]
    if len(hard) < len(epochs) or len(easy) < len(epochs):
        raise InvalidInput(
            "nobody knows whose answers turned: this training asked with all shots only "
            "(rungs='last')"
        )
    numbers = range(1, len(epochs) + 1)
    axes.bar(numbers, hard, color=ORANGE, label="hard: wrong without shots")
    top = axes.bar(numbers, easy, bottom=hard, color=QUIET, label="easy: right without shots")
    both = [a + b for a, b in zip(hard, easy, strict=True)]
    if len(both) <= _LABELLED:
        axes.bar_label(top, [f"{share:.0%}" for share in both], color=INK, padding=2)
    _epoch_axis(axes, len(epochs))
    as_percent(axes.yaxis)
    axes.set_ylim(0, max(0.1, 1.35 * max(both)))
    axes.set_ylabel("questions whose answer turns")
    axes.set_title("Answers that turn as shots are added", loc="left")
    axes.legend(loc="upper right")
    return saved(figure, path)


def dur_pictures(history: Sequence[Batch], folder: str | Path, *, shots: int) -> list[Path]:
    """All that can be drawn of this history, as PNG files; the folder is made."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [
        shots_picture(history, folder / "shots.png", shots=shots),
        loss_picture(history, folder / "loss.png"),
    ]
    if all(batch.turned_hard is not None for batch in history):
        paths.append(turns_picture(history, folder / "turns.png"))
    return paths


def _canvas(
    history: Sequence[Batch], rows: int, columns: int, *, size: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    if not history:
        raise InvalidInput("the history is empty: no batch was trained, so there is no picture")
    return canvas(rows, columns, size=size)


def _batch_axis(axes: Axes, history: Sequence[Batch]) -> None:
    axes.set_xlabel("batch")
    axes.set_xlim(0.5, len(history) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if len(history) == 1:  # a line of one point cannot be seen
        for line in axes.lines:
            line.set_marker("o")


def _epoch_axis(axes: Axes, epochs: int) -> None:
    axes.set_xlabel("epoch")
    margin = 0.6 if epochs > 2 else 1.2
    axes.set_xlim(1 - margin, epochs + margin)
    if epochs <= _LABELLED:
        axes.set_xticks(range(1, epochs + 1))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


_FILE = "dur_history.json"


def training_pictures(run: Path, cells: Iterable[str]) -> list[Picture]:
    """Those of each cell that trained, and of the file, if it is there."""
    folder = RunFolder(run)
    files = [(folder.learned(name), f"dur-{slug(name)}", visible(name)) for name in cells]
    return [
        picture
        for path, name, title in [*files, (run / _FILE, "dur", "DUR")]
        if path.exists()
        for picture in _of(path, name, title)
    ]


def _of(path: Path, name: str, title: str) -> list[Picture]:
    history, shots = _history(path)
    found = [
        Picture(
            f"{name}-shots",
            f"{title}: shots of the training",
            f"Shots in the prompts, against a fixed {shots} for every question.",
            partial(shots_picture, history, shots=shots),
            wide=True,
        ),
        Picture(
            f"{name}-loss",
            f"{title}: loss and reward",
            "By batch. Whether the answers get better, the reward tells.",
            partial(loss_picture, history),
        ),
    ]
    if all(batch.turned_hard is not None for batch in history):
        turns = "Share of questions whose answer turns as shots are added, by epoch."
        draw = partial(turns_picture, history)
        found.append(Picture(f"{name}-turns", f"{title}: answers that turn", turns, draw))
    return found


def _history(path: Path) -> tuple[list[Batch], int]:
    try:
        body = json.loads(path.read_bytes())
        history = [Batch(**batch) for batch in body["history"]]
        if not history:
            raise ValueError("no batch was trained")
        return history, int(body["settings"]["shots"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableArtifact(
            f"{path}: {type(error).__name__}: {error}. Write it with 'ltrag dur train --json', or "
            "take it away."
        ) from error
