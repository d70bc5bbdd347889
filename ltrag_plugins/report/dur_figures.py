"""Pictures of DUR's training, as figures 3, 8 and 9 of Yu et al., NAACL 2025."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ltrag_plugins.artifacts import reading
from ltrag_plugins.dur.batch import Batch, by_epoch
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.report import plots
from ltrag_plugins.report.escaping import slug, visible

_LABELLED = 12  # bars; more of them would have their figures overlap


def dur_pictures(
    history: Sequence[Batch], folder: str | Path, *, shots: int, formats: Iterable[str] = ("png",)
) -> list[Path]:
    """All that can be drawn of a `TrainingResult`'s history, in files ("png", "svg", "pdf");
    `shots` is K, with which PromptPG asks about every question.

    Raises:
        InvalidInput: the history is empty.
        UnwritableArtifact: the folder cannot be made or written to.
    """
    if not history:
        raise InvalidInput("the history is empty: no batch was trained, so there is no picture")
    return plots.save_pictures(_pictures(history, shots, "", "DUR"), folder, formats)


def training_pictures(run: Path, cells: Iterable[str]) -> list[plots.Picture]:
    """Those of each cell that kept its training, and of a printed `ltrag rerank train --json`."""
    files = [(RunFolder(run).learned(name), f"dur-{slug(name)}-", visible(name)) for name in cells]
    files, found = [*files, (run / "dur_history.json", "dur-", "DUR")], []
    for path, prefix, title in (file for file in files if file[0].exists()):
        with reading(f"{path}: no training", "Write 'ltrag rerank train --json', or take it away."):
            body = json.loads(path.read_bytes())
            history = [Batch(**batch) for batch in body["history"]]
            if not history:
                raise ValueError("no batch was trained")
            shots = int(body["settings"]["shots"])
        found += _pictures(history, shots, prefix, title)
    return found


@plots.styled()
def _pictures(history: Sequence[Batch], shots: int, prefix: str, title: str) -> list[plots.Picture]:
    fixed = f"Shots in the prompts, against a fixed {shots} for every question."
    loss = "By batch. Whether the answers get better, the reward tells."
    turns = "Share of questions whose answer turns as shots are added, by epoch."
    kinds: list[tuple[Any, ...]] = [
        ("shots", "shots of the training", fixed, _shots(history, shots), True),
        ("loss", "loss and reward", loss, _loss(history)),
    ]
    if all(batch.turned_hard is not None for batch in history):
        kinds.append(("turns", "answers that turn", turns, _turns(history)))
    return [plots.Picture(f"{prefix}{name}", f"{title}: {what}", *x) for name, what, *x in kinds]


def _shots(history: Sequence[Batch], shots: int) -> plots.Figure:
    """Shots in all prompts of each batch, and each epoch's share of PromptPG's (figure 8)."""
    figure, [left, right] = plots.canvas(1, 2, size=(9.0, 3.8))
    sent = [batch.shots for batch in history]
    fixed = [shots * batch.questions for batch in history]
    dashed: Any = {"color": plots.INK, "linestyle": "--", "linewidth": 1.2}
    _by_batch(left, sent, color=plots.ORANGE, label="this training")
    _by_batch(left, fixed, label=f"PromptPG, K = {shots}", **dashed)
    highest = 1.25 * max(*fixed, *sent)
    left.set(title="Shots by batch", ylabel="shots in all prompts of a batch", ylim=(0, highest))
    left.legend(loc="upper right")
    shares = [epoch.shots / (shots * epoch.questions) for epoch in by_epoch(history)]
    bars = right.bar(range(1, len(shares) + 1), shares, color=plots.ORANGE)
    _epoch_axis(right, bars, shares, fontsize=8)
    right.axhline(1, **dashed)
    highest = 1.2 * max(1.0, *shares)
    right.set(title="Shots by epoch", ylabel="shots, PromptPG = 100 %", ylim=(0, highest))
    return figure


def _loss(history: Sequence[Batch]) -> plots.Figure:
    """The loss of each batch (figure 9), and below it the mean reward."""
    figure, [above, below] = plots.canvas(2, size=(6.4, 5.2))
    _by_batch(above, [batch.loss for batch in history], color=plots.INK)
    _by_batch(below, [batch.reward for batch in history], color=plots.ORANGE)
    above.set(title="Loss and reward by batch", xlabel="", ylabel="loss")
    below.set(ylabel="mean reward, all shots shown")
    above.axhline(0, color=plots.QUIET, linewidth=1)
    figure.align_ylabels()
    return figure


def _turns(history: Sequence[Batch]) -> plots.Figure:
    """Share of questions whose answer turns as shots are added, by epoch (figure 3; eq. 3)."""
    figure, [axes] = plots.canvas(size=(6.4, 4.0))
    epochs = by_epoch(history)
    hard, easy = (
        [(getattr(epoch, f"turned_{kind}") or 0) / epoch.questions for epoch in epochs]
        for kind in ("hard", "easy")
    )
    both, numbers = [*map(sum, zip(hard, easy, strict=True))], range(1, len(hard) + 1)
    axes.bar(numbers, hard, color=plots.ORANGE, label="hard: wrong without shots")
    top = axes.bar(numbers, easy, bottom=hard, color=plots.QUIET, label="easy: right without shots")
    _epoch_axis(axes, top, both)
    highest, title = max(0.1, 1.35 * max(both)), "Answers that turn as shots are added"
    axes.set(title=title, ylabel="questions whose answer turns", ylim=(0, highest))
    axes.legend(loc="upper right")
    return figure


def _by_batch(axes: plots.Axes, values: Sequence[float], **style: Any) -> None:
    """A line over the batches; a single point, which no line shows, has a mark."""
    marker = "o" if len(values) == 1 else ""
    axes.plot(range(1, len(values) + 1), values, marker=marker, **style)
    plots.count_axis(axes, "batch", 1, len(values))


def _epoch_axis(axes: plots.Axes, bars: Any, shares: Sequence[float], **more: Any) -> None:
    """Epochs below the bars, and each share above its bar while there is room."""
    epochs = len(shares)
    plots.count_axis(axes, "epoch", 1, epochs, 0.6 if epochs > 2 else 1.2)
    plots.as_percent(axes.yaxis)
    if epochs <= _LABELLED:
        axes.set_xticks(range(1, epochs + 1))
        labels = [plots.percent(share, int(share < 0.1)) for share in shares]
        axes.bar_label(bars, labels, color=plots.INK, padding=2, **more)
