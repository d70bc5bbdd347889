"""What a fitted gate learned, applied with numpy; `train` makes it with scikit-learn.

The arrays below are all there is to save, so a gate is stored without pickle and applied
without scikit-learn. A scorer gives the number that a gate thresholds: the fitted model, the
paper's formula, or one signal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.calibration import Calibrator
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.score import gece_score
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import Evidence, Features, WordFrequencies

_SUREST = 9.0  # log-odds; beyond it a member that fits the questions too well would drown the rest


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear function of standardized columns."""

    mean: Float[np.ndarray, " columns"]
    scale: Float[np.ndarray, " columns"]
    weights: Float[np.ndarray, " columns"]
    intercept: float

    def __call__(self, x: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, " rows"]:
        """The function's value for each row.

        Raises:
            InvalidInput: the rows have another number of columns than the fit saw.
        """
        if x.shape[1] != len(self.weights):
            raise InvalidInput(
                f"this gate was fitted on {len(self.weights)} columns and got {x.shape[1]}. Give "
                "it evidence of the same kind: embeddings (Evidence.vectors) of the same encoder."
            )
        return (x - self.mean) / self.scale @ self.weights + self.intercept


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Boosted regression trees, padded to one size; a leaf points to itself."""

    feature: Int[np.ndarray, "trees nodes"]
    threshold: Float[np.ndarray, "trees nodes"]
    left: Int[np.ndarray, "trees nodes"]
    right: Int[np.ndarray, "trees nodes"]
    value: Float[np.ndarray, "trees nodes"]
    base: float
    depth: int

    def __call__(self, x: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, " rows"]:
        """The sum of the trees for each row: log-odds."""
        single = x.astype(np.float32)  # scikit-learn splits in single precision
        rows, trees = np.arange(len(x))[:, None], np.arange(len(self.value))[None, :]
        node = np.zeros((len(x), len(self.value)), dtype=int)
        for _ in range(self.depth):
            goes_left = single[rows, self.feature[trees, node]] <= self.threshold[trees, node]
            node = np.where(goes_left, self.left[trees, node], self.right[trees, node])
        return self.base + self.value[trees, node].sum(axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class FailureModel:
    """Score, about 0 to 1, for "the direct answer fails"; to be calibrated."""

    signals: Linear
    scalars: Linear
    vectors: Linear | None
    trees: Trees
    consensus: Linear | None
    """The plain mean of the standardized token-probability signals; None without any."""
    single: Linear
    """The plain signal that tells failures best by itself, standardized."""
    stack: Linear

    def __call__(self, features: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        return self.stack(members(self, features))


@dataclass(frozen=True, slots=True, eq=False)
class GainModel:
    """Expected change in correctness if the question is answered with retrieval, in [-1, 1]."""

    scalars: Linear
    vectors: Linear | None

    def __call__(self, features: Features) -> Float[np.ndarray, " questions"]:
        """The expected gain of each question."""
        gain = self.scalars(features.scalars)
        return gain if self.vectors is None else gain + self.vectors(features.vectors)


def members(model: FailureModel, features: Features) -> Float[np.ndarray, "questions members"]:
    """What each member of the stack says of each question, as log-odds."""
    columns = [
        model.signals(features.signals),
        model.scalars(features.scalars),
        model.trees(features.scalars),
        model.single(features.signals),
    ]
    if model.vectors is not None:
        columns.append(model.vectors(features.vectors))
    if model.consensus is not None:
        columns.append(model.consensus(features.signals))
    return np.clip(np.column_stack(columns), -_SUREST, _SUREST)


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
