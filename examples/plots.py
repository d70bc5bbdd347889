"""The demo's two pictures: where the scores lie, and what retrieval buys."""

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
    counts, _, bars = axes.hist(scores, bins=edges, color=QUIET)
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
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    rates, accuracies = zip(*gate.report.curve, strict=True)
    axes.plot(rates, accuracies, color=LOUD, label="gate, calibration questions (cross-validated)")
    axes.plot(
        [0, 1], [accuracies[0], accuracies[-1]], color=QUIET, linestyle="--", label="random choice"
    )
    for name, row in measured.items():
        axes.plot(row["retrieval rate"], row["contains"], "o", color=INK)
        axes.annotate(
            f"{name} {row['contains']:.2f}",
            (row["retrieval rate"], row["contains"]),
            xytext={"never": (6, 7), "always": (-6, -14)}.get(name, (6, -12)),
            ha="left" if name != "always" else "right",
            textcoords="offset points",
            color=INK,
        )
    axes.plot([], [], "o", color=INK, label="other questions, measured")
    axes.set_xlabel("share of questions that retrieve")
    axes.set_ylabel("answers that contain a gold answer")
    axes.set_ylim(bottom=0)
    axes.set_title("What retrieval buys", loc="left")
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
