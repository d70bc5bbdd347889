"""The demo's pictures: where the gate's scores lie, what retrieval buys, what certainty buys."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from ltrag_plugins.gece import GECEGate

INK, QUIET, LOUD = "#1f2933", "#9fb3c8", "#c2410c"


def score_picture(gate: GECEGate, path: Path) -> None:
    """Cross-validated scores of the calibration questions, with the threshold."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    scores, threshold = gate.fitted.scores, gate.fitted.threshold
    # the threshold is an edge, so that no bar is on both sides of it
    width = (scores.max() - scores.min()) / 24 or 1.0
    below = -(-(threshold - scores.min()) // width)
    above = -(-(scores.max() - threshold) // width)
    edges = threshold + width * np.arange(-max(below, 1), max(above, 1) + 1)
    counts, _ = np.histogram(scores, bins=edges)
    bars = axes.bar(edges[:-1], counts, width, align="edge", color=QUIET)
    for left, bar in zip(edges, bars, strict=False):
        if left > threshold - width / 2:
            bar.set_color(LOUD)
    axes.axvline(threshold, color=INK, linewidth=1.2)
    axes.set_ylim(top=1.25 * counts.max())
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    left_side = threshold > (scores.min() + scores.max()) / 2
    axes.annotate(
        f"threshold {threshold:.3g}\nretrieves {(scores >= threshold).mean():.0%}",
        (threshold, 1.25 * counts.max()),
        xytext=(-6 if left_side else 6, -2),
        ha="right" if left_side else "left",
        textcoords="offset points",
        va="top",
        color=INK,
    )
    gain = gate.report.objective == "gain"
    axes.set_xlabel("expected gain of retrieval" if gain else "score: the direct answer fails")
    axes.set_ylabel("calibration questions")
    axes.set_title("Who needs retrieval?", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def curve_picture(gate: GECEGate, measured: dict[str, dict[str, float]], path: Path) -> None:
    """Accuracy against retrieval rate: the fit's curve, chance, and what was measured."""
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    rates, accuracies = zip(*gate.report.curve, strict=True)
    axes.plot(rates, accuracies, color=LOUD, label="gate, calibration questions (cross-validated)")
    axes.plot(
        [0, 1], [accuracies[0], accuracies[-1]], color=QUIET, linestyle="--", label="random choice"
    )
    points = {name: (row["retrieval rate"], row["contains"]) for name, row in measured.items()}
    axes.plot(*zip(*points.values(), strict=True), "o", color=INK)
    axes.plot([], [], "o", color=INK, label="other questions, measured")
    top = 1.25 * max(*accuracies, *(y for _, y in points.values()), 0.1)
    axes.set(xlim=(-0.03, 1.4), ylim=(0, top))
    for name, y in apart(points, gap=0.06 * top).items():
        axes.annotate(
            f"{name} {points[name][1]:.2f}",
            points[name],
            xytext=(points[name][0] + 0.06, y),
            va="center",
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.8},
        )
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("share of questions that retrieve")
    axes.set_ylabel("answers that contain a gold answer")
    axes.set_title("What each component buys", loc="left")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def apart(points: dict[str, tuple[float, float]], gap: float) -> dict[str, float]:
    """Heights of the labels, none nearer than the gap to one beside it."""
    heights: dict[str, float] = {}
    for name, (x, y) in sorted(points.items(), key=lambda item: item[1][1]):
        beside = [heights[other] for other in heights if abs(points[other][0] - x) < 0.6]
        heights[name] = max([y, *(height + gap for height in beside)])
    return heights


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
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    shown = given >= min(least, len(right))
    axes.plot(given[shown] / len(right), shares[shown], color=LOUD, label="the surest, by P(wrong)")
    axes.axhline(shares[-1], color=QUIET, linestyle="--", label=f"all answers {shares[-1]:.2f}")
    axes.axhline(always, color=INK, linestyle=":", label=f"always retrieving {always:.2f}")
    axes.set(xlim=(0, 1.02), ylim=(0, min(1.02, 1.5 * max(*shares[shown], always, 0.1))))
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel(f"share of the {len(right)} answers that is given, the surest first")
    axes.set_ylabel("right among them")
    axes.set_title("What it buys to refuse", loc="left")
    axes.legend(frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
