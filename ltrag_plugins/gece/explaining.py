"""Decisions in words."""

import math

import numpy as np

from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.fitted import FittedGate
from ltrag_plugins.gece.signals import SIGNALS

SILENT = "the model's own answer is empty, so there is none to give without retrieval"
"""The reason where a draft says nothing."""


def reason(fitted: FittedGate, score: float, probability: float) -> str:
    """One sentence: what was found, what it was held against."""
    objective = "expected gain of retrieval" if fitted.gain is not None else "long-tail score"
    fails = f"the direct answer fails with probability {probability:.2f}"
    if math.isinf(fitted.threshold):
        habit = "always" if fitted.threshold < 0 else "never"
        return f"{fails}; this gate was fitted to {habit} retrieve"
    side = "at or above" if score >= fitted.threshold else "below"
    digits = _telling_digits(score, fitted.threshold)
    return (
        f"{fails}; {objective} {score:.{digits}g} is {side} the threshold "
        f"{fitted.threshold:.{digits}g}"
    )


def _telling_digits(a: float, b: float) -> int:
    """Fewest significant digits, 3 at least, that tell the numbers apart."""
    return next((n for n in range(3, 17) if f"{a:.{n}g}" != f"{b:.{n}g}"), 17)


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
