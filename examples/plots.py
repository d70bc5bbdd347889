"""The demo's two pictures: where the scores lie, and what retrieval buys."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from ltrag_plugins.gece import GECEGate

INK, QUIET, LOUD = "#1f2933", "#9fb3c8", "#c2410c"


def score_picture(gate: GECEGate, path: Path) -> None:
    """Cross-validated scores of the calibration questions, with the threshold."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    scores, threshold = gate.fitted.scores, gate.fitted.threshold
    counts, edges, bars = axes.hist(scores, bins=24, color=QUIET)
    for left, bar in zip(edges, bars, strict=False):
        if left >= threshold:
            bar.set_color(LOUD)
    axes.axvline(threshold, color=INK, linewidth=1.2)
    axes.annotate(
        f"threshold {threshold:.3g}\nretrieves {(scores >= threshold).mean():.0%}",
        (threshold, counts.max()),
        xytext=(6, -4),
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
            xytext=(6, -12) if name != "always" else (-6, -14),
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
