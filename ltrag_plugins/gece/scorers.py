"""From features to the number a gate thresholds: fitted, the paper's formula, or one signal."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import CalibrationError
from ltrag_plugins.gece.features import Features
from ltrag_plugins.gece.learners import FailureModel, GainModel, Linear, fit_failure, fit_gain
from ltrag_plugins.gece.score import gece_score
from ltrag_plugins.gece.settings import GECESettings


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """What is known of the calibration questions."""

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


class Scorer(Protocol):
    """Gives each question a number; larger means retrieve."""

    def __call__(self, features: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        ...


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
        return np.array([self._value(*row) for row in zip(quality, features.signals, strict=True)])

    def _value(self, quality: float, signals: Float[np.ndarray, " signals"]) -> float:
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


AnyScorer = FailureModel | GainModel | Formula | OneSignal


def fit_scorer(
    features: Features, labels: Labels, names: list[str], settings: GECESettings
) -> FailureModel | Formula | OneSignal:
    """Fit what `settings.scorer` names.

    Raises:
        CalibrationError: the named signal is not at hand on this tier.
    """
    if settings.scorer == "fitted":
        return fit_failure(features, labels.fails, settings.seed)
    if settings.scorer == "gece":
        gradient = _column(names, f"gradient_{settings.agreement}") if settings.semantics else -1
        columns = (_column(names, "mean_probability"), _column(names, "word_frequency"), gradient)
        return Formula(_quality_model(features, labels.quality), columns, settings)
    return OneSignal(_column(names, settings.scorer))


def fit_gain_scorer(features: Features, labels: Labels) -> GainModel:
    """Fit what retrieval is expected to change."""
    return fit_gain(features, labels.gain)


def _quality_model(features: Features, quality: Float[np.ndarray, " questions"]) -> Linear:
    return fit_gain(
        Features(features.signals, features.traits, features.vectors[:, :0]), quality
    ).scalars


def _column(names: list[str], name: str) -> int:
    if name not in names:
        raise CalibrationError(
            f"the scorer needs the signal {name!r}; at hand here are {names}. Use a model that "
            "gives token probabilities (or local weights, for gradients), or another scorer."
        )
    return names.index(name)
