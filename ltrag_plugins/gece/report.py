"""What a fit says of itself: its figures, and notes for whoever relies on it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.models import FittedGate
from ltrag_plugins.metrics.calibration import (
    Interval,
    auroc,
    bootstrap_interval,
    expected_calibration_error,
    mean_interval,
)


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Outcomes as columns."""

    fails: Int[np.ndarray, " questions"]
    """1 where the direct answer is wrong."""
    quality: Float[np.ndarray, " questions"]
    """METEOR (or chrF, 1 - TER) of the direct answer; 0 everywhere if no references are known."""
    mended: Int[np.ndarray, " questions"] | None = None
    """1 where the answer with retrieval is right; None when nobody tried."""

    def __getitem__(self, rows: Int[np.ndarray, " rows"]) -> "Labels":
        mended = None if self.mended is None else self.mended[rows]
        return Labels(self.fails[rows], self.quality[rows], mended)

    @property
    def gain(self) -> Float[np.ndarray, " questions"]:
        """What retrieval changes: +1, 0 or -1."""
        assert self.mended is not None
        return (self.mended - (1 - self.fails)).astype(float)

    def gated_accuracy(self, scores: Float[np.ndarray, " questions"], rate: float) -> float:
        """Share of right answers when the `rate` of questions with the largest scores retrieve."""
        assert self.mended is not None
        retrieve = np.zeros(len(scores), dtype=bool)
        retrieve[np.argsort(-scores, kind="stable")[: round(rate * len(scores))]] = True
        return float(np.where(retrieve, self.mended, 1 - self.fails).mean())


@dataclass(frozen=True, slots=True)
class FitReport:
    """Figures of a fit. The scores behind them are cross-validated: each question's is of a
    model that was fitted without it. The retrieval rate (or the accuracy) that was asked for is met
    on them by construction; on other questions it comes out a few points beside."""

    questions: int
    tier: Tier
    scorer: str
    objective: str
    """"failure": retrieve where the direct answer is likely wrong; "gain": where retrieval is
    expected to change the answer for the better."""
    target: str
    """What the threshold was set for."""
    threshold: float
    """Minus infinity where everything retrieves, infinity where nothing does."""
    direct_accuracy: float
    """Share of right answers if nothing is ever retrieved, 0 to 1."""
    retrieval_accuracy: float | None
    """Share of right answers if everything is; None when no retrieved answers were given."""
    retrieval_rate: Interval
    """Expected share of questions that retrieve, with its bootstrap interval."""
    accuracy: Interval | None
    """Expected share of right answers behind the gate; None as for `retrieval_accuracy`."""
    kept_accuracy: Interval | None
    """Expected share of right answers among the questions answered directly; None where there
    are none."""
    auroc: Interval
    """How well the gate tells failing direct answers from right ones; 0.5 is chance. The interval
    is over the questions; how far a fit on other folds would have come out is not in it."""
    ece: float
    """Expected calibration error of the probabilities, 0 to 1; each by a calibrator that was
    fitted without its question."""
    signal_aurocs: Mapping[str, float] = field(default_factory=dict)
    """AUROC of each plain signal by itself, on the same questions."""
    curve: tuple[tuple[float, float], ...] = ()
    """(retrieval rate, accuracy) from 0 to 1; empty when no retrieved answers were given."""
    notes: tuple[str, ...] = ()
    """What a user should know before relying on this gate."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite threshold, which JSON cannot say, is None."""
        threshold = self.threshold if math.isfinite(self.threshold) else None
        return asdict(self) | {"threshold": threshold}

    def __str__(self) -> str:
        rows = [
            ("questions", f"{self.questions}"),
            ("tier, scorer, objective", f"{self.tier}, {self.scorer}, {self.objective}"),
            ("threshold", f"{self.threshold:.4g} ({self.target})"),
            ("AUROC, direct answer fails", _interval(self.auroc)),
            ("calibration error (ECE)", f"{self.ece:.3f}"),
            ("retrieval rate", _interval(self.retrieval_rate)),
            ("accuracy, never retrieving", f"{self.direct_accuracy:.3f}"),
            ("accuracy, answered directly", _interval(self.kept_accuracy)),
        ]
        if self.accuracy is not None:
            rows.append(("accuracy, gated", _interval(self.accuracy)))
            rows.append(("accuracy, always retrieving", f"{self.retrieval_accuracy:.3f}"))
        best = sorted(self.signal_aurocs.items(), key=lambda item: -item[1])
        rows += [(f"  AUROC of {name} alone", f"{value:.3f}") for name, value in best]
        lines = [f"{name:<34} {value}" for name, value in rows]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "no such questions"
    return (
        f"{interval.value:.3f}  ({interval.level:.0%} interval {interval.low:.3f} to "
        f"{interval.high:.3f})"
    )


def report_of(
    fitted: FittedGate,
    labels: Labels,
    signals: Float[np.ndarray, "questions signals"],
    *,
    failure: Float[np.ndarray, " questions"],
    scores: Float[np.ndarray, " questions"],
    retrieve: Bool[np.ndarray, " questions"],
    probabilities: Float[np.ndarray, " questions"],
    target: str,
    target_rate: float | None,
    silent: int,
) -> FitReport:
    """The figures of a fit, each question judged by a gate that was fitted without it.

    Args:
        failure: scores for "the direct answer fails".
        scores: what ranks the questions: the above, or expected gains.
        retrieve: the questions that the target sends to retrieval.
        target_rate: what was asked for, if it was a rate.
        silent: how many drafts came without token probabilities.
    """
    seed = fitted.settings.seed
    fails, mended = labels.fails, labels.mended
    kept = 1 - fails[~retrieve]
    areas = {name: auroc(signals[:, i], fails) for i, name in enumerate(fitted.names)}
    gated = None if mended is None else np.where(retrieve, mended, 1 - fails)
    rates = [] if mended is None else np.linspace(0, 1, 21).tolist()
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
        auroc=bootstrap_interval(failure, fails, statistic=auroc, resamples=500, seed=seed),
        ece=expected_calibration_error(probabilities, fails),
        signal_aurocs=areas,
        curve=tuple((rate, labels.gated_accuracy(scores, rate)) for rate in rates),
        notes=(
            *_notes_on_scores(auroc(failure, fails), areas, len(fails)),
            *_notes_on_questions(labels, silent),
            *_notes_on_harm(fitted, gated, fails),
            *_notes_on_ties(float(retrieve.mean()), len(fails), target_rate),
        ),
    )


def _notes_on_scores(own: float, areas: Mapping[str, float], questions: int) -> list[str]:
    best = max(areas, key=lambda name: areas[name])
    notes = []
    if own < areas[best] - 0.005:
        notes.append(
            f"the signal {best!r} alone tells failing answers better than this gate; with "
            f"{questions} questions consider GECESettings(scorer={best!r})"
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
