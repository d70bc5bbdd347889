"""From features to the number a gate thresholds: fitted, the paper's formula, or one signal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ltrag_plugins.gece.features import Features
from ltrag_plugins.gece.learners import FailureModel, Linear
from ltrag_plugins.gece.score import gece_score
from ltrag_plugins.gece.settings import GECESettings


@dataclass(frozen=True, slots=True, eq=False)
class Formula:
    """GECE, eq. 2, at run time: METEOR is estimated from the draft, the rest is known."""

    meteor: Linear
    columns: tuple[int, int, int]
    """Where mean_probability, word_frequency and the gradient signal stand; -1 = not there."""
    settings: GECESettings

    def __call__(self, features: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        quality = np.clip(self.meteor(features.scalars), 0.0, 1.0)
        rows = zip(quality.tolist(), features.signals.tolist(), strict=True)
        return np.array([self._value(*row) for row in rows])

    def _value(self, quality: float, signals: Sequence[float]) -> float:
        probability, frequency, gradient = self.columns
        return gece_score(
            meteor=quality,
            mean_probability=-signals[probability],
            word_frequency=10.0 ** -signals[frequency],
            gradient_agreement=None if gradient < 0 else -signals[gradient],
            settings=self.settings,
        ).value


@dataclass(frozen=True, slots=True, eq=False)
class OneSignal:
    """One plain signal as it is."""

    column: int

    def __call__(self, features: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        return features.signals[:, self.column]


Scorer = FailureModel | Formula | OneSignal
"""Gives each question a number; larger means retrieve."""
