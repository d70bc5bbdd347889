"""Decisions in words."""

import numpy as np

from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.fitting import FittedGate
from ltrag_plugins.gece.signals import SIGNALS


def reason(fitted: FittedGate, score: float, probability: float) -> str:
    """One sentence: what was found, what it was held against."""
    objective = "expected gain of retrieval" if fitted.gain is not None else "long-tail score"
    side = "at or above" if score >= fitted.threshold else "below"
    return (
        f"the direct answer fails with probability {probability:.2f}; {objective} {score:.3g} is "
        f"{side} the threshold {fitted.threshold:.3g}"
    )


def explanation(fitted: FittedGate, decision: Decision) -> str:
    """The decision, its reason, and where each signal stands among the calibration questions."""
    lines = [
        f"{'retrieve' if decision.retrieve else 'answer directly'}: {decision.reason}",
        f"draft: {decision.answer!r}",
    ]
    for i, (name, value) in enumerate(decision.ingredients.items()):
        share = float(np.mean(fitted.quantiles[i] < value))
        about = SIGNALS[name].about if name in SIGNALS else "your own signal"
        lines.append(f"  {name:<18} {value:9.3g}  above {share:4.0%} of the calibration: {about}")
    return "\n".join(lines)
