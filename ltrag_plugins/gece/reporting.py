"""Draw up the report of a fit."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from ltrag_plugins.gece.fitted import FittedGate
from ltrag_plugins.gece.labels import Labels
from ltrag_plugins.gece.report import FitReport
from ltrag_plugins.gece.thresholds import gated_accuracy
from ltrag_plugins.metrics.calibration import (
    auroc,
    bootstrap_interval,
    expected_calibration_error,
    mean_interval,
)


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The calibration questions, each judged by a gate that was fitted without it."""

    labels: Labels
    signals: Float[np.ndarray, "questions signals"]
    failure: Float[np.ndarray, " questions"]
    """Scores for "the direct answer fails"."""
    scores: Float[np.ndarray, " questions"]
    """What ranks them: the above, or expected gains."""
    retrieve: Bool[np.ndarray, " questions"]
    """Those that the target sends to retrieval."""
    probabilities: Float[np.ndarray, " questions"]


def report(
    fitted: FittedGate, judged: Judged, target: str, *, target_rate: float | None, silent: int
) -> FitReport:
    """The figures of a fit.

    Args:
        silent: how many drafts came without token probabilities.
    """
    labels, seed = judged.labels, fitted.settings.seed
    fails, mended = labels.fails, labels.mended
    retrieve = judged.retrieve
    kept = 1 - fails[~retrieve]
    signals = {n: auroc(judged.signals[:, i], fails) for i, n in enumerate(fitted.names)}
    gated = None if mended is None else np.where(retrieve, mended, 1 - fails)
    rates = np.linspace(0, 1, 21).tolist()
    return FitReport(
        questions=len(fails),
        tier=fitted.tier,
        scorer=fitted.settings.scorer,
        objective="failure" if fitted.gain is None else "gain",
        target=target,
        threshold=fitted.threshold,
        direct_accuracy=float(1 - fails.mean()),
        retrieval_accuracy=None if mended is None else float(mended.mean()),
        retrieval_rate=mean_interval(retrieve, seed=seed),
        accuracy=None if gated is None else mean_interval(gated, seed=seed),
        kept_accuracy=mean_interval(kept, seed=seed) if kept.size else None,
        auroc=bootstrap_interval(judged.failure, fails, statistic=auroc, resamples=500, seed=seed),
        ece=expected_calibration_error(judged.probabilities, fails),
        signal_aurocs=signals,
        curve=()
        if mended is None
        else tuple((r, gated_accuracy(judged.scores, labels, r)) for r in rates),
        notes=(
            *_notes_on_scores(judged, signals),
            *_notes_on_questions(labels, silent),
            *_notes_on_harm(fitted, gated, fails),
            *_notes_on_ties(float(retrieve.mean()), len(fails), target_rate),
        ),
    )


def _notes_on_scores(judged: Judged, signals: dict[str, float]) -> list[str]:
    best = max(signals, key=lambda name: signals[name])
    own = auroc(judged.failure, judged.labels.fails)
    notes = []
    if own < signals[best] - 0.005:
        notes.append(
            f"the signal {best!r} alone tells failing answers better than this gate; with "
            f"{len(judged.failure)} questions consider GECESettings(scorer={best!r})"
        )
    if own < 0.5:
        notes.append("larger scores go with right answers here: do not rely on this gate")
    return notes


def _notes_on_questions(labels: Labels, silent: int) -> list[str]:
    questions, notes = len(labels.fails), []
    if 0 < silent < questions:
        notes.append(
            f"{silent} of {questions} drafts came without token probabilities, so the gate reads "
            "none; if the provider can send them, fit again"
        )
    if labels.mended is not None and labels.mended.mean() <= 1 - labels.fails.mean():
        notes.append(
            "always retrieving is no better than never: look at the retriever or the prompt first"
        )
    if questions < 100:
        notes.append(f"{questions} questions leave wide intervals; 200 or more are better")
    return notes


def _notes_on_harm(fitted: FittedGate, gated: np.ndarray | None, fails: np.ndarray) -> list[str]:
    notes = []
    if fitted.gain is not None and fitted.threshold < 0:
        notes.append(
            f"at this rate the gate retrieves where it expects harm (threshold "
            f"{fitted.threshold:.3f} below 0); a lower target_rate should answer better"
        )
    if gated is not None and gated.mean() < 1 - fails.mean():
        notes.append(
            f"never retrieving is right more often ({1 - fails.mean():.3f}) than this gate "
            f"({gated.mean():.3f}): choose a lower target_rate, or look at the retriever"
        )
    return notes


def _notes_on_ties(rate: float, questions: int, target: float | None) -> list[str]:
    if target is None or abs(rate - target) * questions <= 1:
        return []
    return [f"many scores are equal, so {rate:.1%} retrieve; the target was {target:.1%}"]
