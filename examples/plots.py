"""The demo's pictures: where the gate's scores lie, what retrieval buys, what certainty buys."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from ltrag_plugins.gece import GECEGate
from ltrag_plugins.report.plots import (
    BLUE,
    INK,
    ORANGE,
    QUIET,
    as_percent,
    canvas,
    label_points,
    save_figure,
    styled,
)


@styled()
def score_picture(gate: GECEGate, path: Path) -> None:
    """Cross-validated scores of the calibration questions, with the threshold."""
    figure, [axes] = canvas(size=(6.4, 3.6))
    scores, threshold = gate.fitted.scores, gate.fitted.threshold
    # the threshold is an edge, so that no bar is on both sides of it
    width = (scores.max() - scores.min()) / 24 or 1.0
    below = -(-(threshold - scores.min()) // width)
    above = -(-(scores.max() - threshold) // width)
    edges = threshold + width * np.arange(-max(below, 1), max(above, 1) + 1)
    counts, _ = np.histogram(scores, bins=edges)
    retrieves = edges[:-1] > threshold - width / 2
    axes.bar(edges[:-1], counts, width, align="edge", color=np.where(retrieves, ORANGE, QUIET))
    told = f"threshold {threshold:.3g}: retrieves {(scores >= threshold).mean():.0%}"
    axes.axvline(threshold, color=INK, linewidth=1.3, linestyle="--", label=told)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    gain = gate.report.objective == "gain"
    axes.set_xlabel("expected gain of retrieval" if gain else "score: the direct answer fails")
    axes.set_ylabel("calibration questions")
    axes.set_title("Who needs retrieval?")
    figure.legend(loc="outside upper right")
    save_figure(figure, path)


@styled()
def curve_picture(gate: GECEGate, measured: dict[str, dict[str, float]], path: Path) -> None:
    """Accuracy against retrieval rate: the fit's curve, chance, and what was measured."""
    figure, [axes] = canvas(size=(7.2, 4.4))
    rates, accuracies = zip(*gate.report.curve, strict=True)
    told = "gate, calibration questions (cross-validated)"
    axes.plot(rates, accuracies, color=ORANGE, label=told)
    chance = np.linspace((0, accuracies[0]), (1, accuracies[-1]), 51)
    axes.plot(*chance.T, "--", color=QUIET, label="random choice")
    points = [(row["retrieval rate"], row["contains"]) for row in measured.values()]
    axes.plot(*zip(*points, strict=True), "o", color=BLUE, label="other questions, measured")
    axes.set(xlim=(-0.03, 1.4), ylim=(0, 1.25 * max(*accuracies, *(y for _, y in points), 0.1)))
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    as_percent(axes.xaxis)
    axes.set(xlabel="share of questions that retrieve", ylabel="answers that contain a gold answer")
    axes.set_title("What each component buys")
    axes.legend(loc="lower right")
    names = [f"{name} {y:.2f}" for name, (_, y) in zip(measured, points, strict=True)]
    label_points(axes, points, names, [*gate.report.curve, *map(tuple, chance)])
    save_figure(figure, path)


@styled()
def certainty_picture(
    known: Sequence[tuple[float, bool]], always: float, path: Path, least: int = 4
) -> None:
    """How many answers are right if only the surest are given.

    Args:
        known: P(wrong) of each answer, and whether it is right.
        always: share of right answers with retrieval for every question and nothing more.
        least: answers below which a share says nothing.
    """
    right = np.array([ok for _, ok in sorted(known, key=lambda one: one[0])], dtype=float)
    given = np.arange(1, len(right) + 1)
    shares = np.cumsum(right) / given
    figure, [axes] = canvas(size=(6.4, 3.8))
    shown = given >= min(least, len(right))
    axes.plot(
        given[shown] / len(right), shares[shown], color=ORANGE, label="the surest, by P(wrong)"
    )
    axes.axhline(shares[-1], color=QUIET, linestyle="--", label=f"all answers {shares[-1]:.2f}")
    axes.axhline(always, color=INK, linestyle=":", label=f"always retrieving {always:.2f}")
    axes.set(xlim=(0, 1.02), ylim=(0, min(1.02, 1.5 * max(*shares[shown], always, 0.1))))
    as_percent(axes.xaxis)
    axes.set_xlabel(f"share of the {len(right)} answers that is given, the surest first")
    axes.set_ylabel("right among them")
    axes.set_title("What it buys to refuse")
    axes.legend(loc="upper right")
    save_figure(figure, path)
