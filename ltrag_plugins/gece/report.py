"""What a fit says of itself."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.metrics.interval import Interval


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
