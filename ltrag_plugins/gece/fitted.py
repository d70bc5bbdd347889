"""What goes into a fit, and what comes out."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ltrag_plugins.calibrators import Calibrator
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.frequency import WordFrequencies
from ltrag_plugins.gece.learners import GainModel
from ltrag_plugins.gece.scorers import Scorer
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import Evidence


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A calibration question: what was seen before retrieval, and what came of it."""

    evidence: Evidence
    right: bool
    """Whether the direct answer is right."""
    right_with_retrieval: bool | None = None
    """Whether the answer with retrieval is; None when nobody tried."""
    quality: float = 0.0
    """METEOR (or chrF, 1 - TER) of the direct answer; only the formula needs it."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedGate:
    """All that a gate learned; applied by `GECEGate`."""

    settings: GECESettings
    tier: Tier
    names: tuple[str, ...]
    frequencies: WordFrequencies
    failure: Scorer
    gain: GainModel | None
    """Thresholded in place of the failure score where the objective is "gain"."""
    calibrator: Calibrator
    threshold: float
    """A score from here on retrieves; minus infinity always does, infinity never."""
    quantiles: Float[np.ndarray, "signals points"]
    """Each signal's quantiles on the calibration questions, for explanations."""
    scores: Float[np.ndarray, " questions"]
    """Of the calibration questions, on the scale of `threshold`, as of questions that were not
    seen; sorted, for pictures."""
