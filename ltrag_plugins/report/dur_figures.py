"""Pictures of DUR's training: shots against a fixed number of them, loss and reward, turns.

A report draws them of `RUN/learned/CELL.json`, what a method kept of its training, and of
`RUN/dur_history.json`, what `ltrag dur train --json` printed.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", figures 3, 8 and 9.
"""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from ltrag_plugins.artifacts import writing
from ltrag_plugins.dur.batch import Batch, by_epoch
from ltrag_plugins.errors import InvalidInput, UnreadableArtifact
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.report import plots
from ltrag_plugins.report.escaping import slug, visible

_LABELLED = 12  # bars; more of them would have their figures overlap


def dur_pictures(
    history: Sequence[Batch], folder: str | Path, *, shots: int, formats: Iterable[str] = ("png",)
) -> list[Path]:
    """All that can be drawn of this history, in files; the folder is made.

    Args:
        history: of a `TrainingResult`.
        shots: K, with which PromptPG asks about every question.
        formats: "png", "svg", "pdf", or others that matplotlib writes.

    Raises:
        InvalidInput: the history is empty.
        UnwritableArtifact: the folder cannot be made or written to.
    """
    if not history:
        raise InvalidInput("the history is empty: no batch was trained, so there is no picture")
    with writing(Path(folder)):
        drawn = _pictures(history, shots, "", "DUR")
        return [path for picture in drawn for path in picture.save(Path(folder), [*formats])]


def training_pictures(run: Path, cells: Iterable[str]) -> list[plots.Picture]:
    """Those of each cell that trained, and of the file, if it is there."""
    files = [(RunFolder(run).learned(name), f"dur-{slug(name)}-", visible(name)) for name in cells]
    found = []
    for path, prefix, title in [*files, (run / "dur_history.json", "dur-", "DUR")]:
        if path.exists():
            try:
                body = json.loads(path.read_bytes())
                history = [Batch(**batch) for batch in body["history"]]
                if not history:
                    raise ValueError("no batch was trained")
                shots = int(body["settings"]["shots"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UnreadableArtifact(
                    f"{path}: {type(error).__name__}: {error}. Write it with "
                    "'ltrag dur train --json', or take it away."
                ) from error
            found += _pictures(history, shots, prefix, title)
    return found


def _pictures(history: Sequence[Batch], shots: int, prefix: str, title: str) -> list[plots.Picture]:
    fixed = f"Shots in the prompts, against a fixed {shots} for every question."
    loss = "By batch. Whether the answers get better, the reward tells."
    turns = "Share of questions whose answer turns as shots are added, by epoch."
    kinds = [
        ("shots", "shots of the training", fixed, partial(_shots, history, shots), True),
        ("loss", "loss and reward", loss, partial(_loss, history), False),
    ]
    if all(batch.turned_hard is not None for batch in history):
        kinds.append(("turns", "answers that turn", turns, partial(_turns, history), False))
    return [
        plots.Picture(f"{prefix}{name}", f"{title}: {what}", told, draw, wide)
        for name, what, told, draw, wide in kinds
    ]


def _shots(history: Sequence[Batch], shots: int) -> plots.Figure:
    """Shots in all prompts of each batch, and each epoch's share of PromptPG's (figure 8)."""
    figure, [left, right] = plots.canvas(1, 2, size=(9.0, 3.8))
    numbers, sent = range(1, len(history) + 1), [batch.shots for batch in history]
    fixed = [shots * batch.questions for batch in history]
    dashed = {"color": plots.INK, "linestyle": "--", "linewidth": 1.2}
    left.plot(numbers, sent, color=plots.ORANGE, label="this training")
    left.plot(numbers, fixed, label=f"PromptPG, K = {shots}", **dashed)
    _batch_axis(left, len(history))
    left.set(ylabel="shots in all prompts of a batch", ylim=(0, 1.25 * max(*fixed, *sent)))
    left.set_title("Shots by batch")
    left.legend(loc="upper right")
    shares = [epoch.shots / (shots * epoch.questions) for epoch in by_epoch(history)]
    bars = right.bar(range(1, len(shares) + 1), shares, color=plots.ORANGE)
    if len(shares) <= _LABELLED:
        labels = [f"{share:.0%}" for share in shares]
        right.bar_label(bars, labels, color=plots.INK, padding=2, fontsize=8)
    right.axhline(1, **dashed)
    _epoch_axis(right, len(shares))
    right.set(ylabel="shots, PromptPG = 100 %", ylim=(0, 1.2 * max(1.0, *shares)))
    right.set_title("Shots by epoch")
    return figure


def _loss(history: Sequence[Batch]) -> plots.Figure:
    """The loss of each batch (figure 9), and below it the mean reward.

    The loss of a policy gradient only gives the direction of a step: whether the answers get
    better, the reward tells.
    """
    figure, [above, below] = plots.canvas(2, size=(6.4, 5.2))
    numbers = range(1, len(history) + 1)
    above.plot(numbers, [batch.loss for batch in history], color=plots.INK)
    below.plot(numbers, [batch.reward for batch in history], color=plots.ORANGE)
    for axes in (above, below):
        _batch_axis(axes, len(history))
    above.set(xlabel="", ylabel="loss")
    below.set(ylabel="mean reward, all shots shown")
    above.set_title("Loss and reward by batch")
    above.axhline(0, color=plots.QUIET, linewidth=1)
    figure.align_ylabels()
    return figure


def _turns(history: Sequence[Batch]) -> plots.Figure:
    """Share of questions whose answer turns as shots are added, by epoch (figure 3).

    Easy questions are right without shots, hard ones wrong (eq. 3).
    """
    figure, [axes] = plots.canvas(size=(6.4, 4.0))
    epochs = by_epoch(history)
    hard = [(epoch.turned_hard or 0) / epoch.questions for epoch in epochs]
    easy = [(epoch.turned_easy or 0) / epoch.questions for epoch in epochs]
    both = [a + b for a, b in zip(hard, easy, strict=True)]
    numbers = range(1, len(epochs) + 1)
    axes.bar(numbers, hard, color=plots.ORANGE, label="hard: wrong without shots")
    top = axes.bar(numbers, easy, bottom=hard, color=plots.QUIET, label="easy: right without shots")
    if len(both) <= _LABELLED:
        axes.bar_label(top, [f"{share:.0%}" for share in both], color=plots.INK, padding=2)
    _epoch_axis(axes, len(epochs))
    axes.set(ylabel="questions whose answer turns", ylim=(0, max(0.1, 1.35 * max(both))))
    axes.set_title("Answers that turn as shots are added")
    axes.legend(loc="upper right")
    return figure


def _batch_axis(axes: plots.Axes, batches: int) -> None:
    plots.count_axis(axes, "batch", 1, batches)
    if batches == 1:  # a line of one point cannot be seen
        for line in axes.lines:
            line.set_marker("o")


def _epoch_axis(axes: plots.Axes, epochs: int) -> None:
    plots.count_axis(axes, "epoch", 1, epochs, 0.6 if epochs > 2 else 1.2)
    if epochs <= _LABELLED:
        axes.set_xticks(range(1, epochs + 1))
    plots.as_percent(axes.yaxis)
