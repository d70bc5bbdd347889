"""What a fitted gate learned, applied with numpy; `train` makes it with scikit-learn.

The arrays below are all there is to save, so a gate is stored without pickle and applied
without scikit-learn. A scorer gives the number that a gate thresholds: the fitted model, the
paper's formula, or one signal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.calibration import ProbabilityMap
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece.decision import Decision, Tier
from ltrag_plugins.gece.score import gece_score
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import SIGNALS, Evidence, Features, WordFrequencies, features

_SUREST = 9.0  # log-odds; beyond it a member that fits the questions too well would drown the rest


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear function of standardized columns."""

    mean: Float[np.ndarray, " columns"]
    scale: Float[np.ndarray, " columns"]
    weights: Float[np.ndarray, " columns"]
    intercept: float

    def __call__(self, x: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, " rows"]:
        """The function's value for each row."""
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
        # places in the flattened tables: `take` is quick where there is one row only
        rows = np.arange(len(x))[:, None] * x.shape[1]
        roots = np.arange(len(self.value)) * self.value.shape[1]
        node = np.broadcast_to(roots, (len(x), len(roots)))
        for _ in range(self.depth):
            goes_left = single.take(rows + self.feature.take(node)) <= self.threshold.take(node)
            node = roots + np.where(goes_left, self.left.take(node), self.right.take(node))
        return self.base + self.value.take(node).sum(axis=1)


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

    def __call__(self, columns: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        return self.stack(self.members(columns))

    def members(self, columns: Features) -> Float[np.ndarray, "questions members"]:
        """What each member of the stack says of each question, as log-odds."""
        scalars = columns.scalars
        found = [
            self.signals(columns.signals),
            self.scalars(scalars),
            self.trees(scalars),
            self.single(columns.signals),
        ]
        if self.vectors is not None:
            found.append(self.vectors(columns.vectors))
        if self.consensus is not None:
            found.append(self.consensus(columns.signals))
        return np.clip(np.array(found).T, -_SUREST, _SUREST)


@dataclass(frozen=True, slots=True, eq=False)
class GainModel:
    """Expected change in correctness if the question is answered with retrieval, in [-1, 1]."""

    scalars: Linear
    vectors: Linear | None

    def __call__(self, columns: Features) -> Float[np.ndarray, " questions"]:
        """The expected gain of each question."""
        gain = self.scalars(columns.scalars)
        return gain if self.vectors is None else gain + self.vectors(columns.vectors)


@dataclass(frozen=True, slots=True, eq=False)
class Formula:
    """GECE, eq. 2, at run time: METEOR is estimated from the draft, the rest is known."""

    meteor: Linear
    columns: tuple[int, int, int]
    """Where mean_probability, word_frequency and the gradient signal stand; -1 = not there."""
    settings: GECESettings

    def __call__(self, columns: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        quality = np.clip(self.meteor(columns.scalars), 0.0, 1.0)
        rows = zip(quality.tolist(), columns.signals.tolist(), strict=True)
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

    def __call__(self, columns: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        return columns.signals[:, self.column]


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
    """All that a gate learned; `GECEGate` adds the model that drafts."""

    settings: GECESettings
    tier: Tier
    names: tuple[str, ...]
    frequencies: WordFrequencies
    failure: Scorer
    gain: GainModel | None
    """Thresholded in place of the failure score where the objective is "gain"."""
    calibrator: ProbabilityMap | None
    """None where no answers were judged (`fit_signal`)."""
    threshold: float
    """A score from here on retrieves; minus infinity always does, infinity never."""
    quantiles: Float[np.ndarray, "signals points"]
    """Each signal's quantiles on the calibration questions, for explanations."""
    scores: Float[np.ndarray, " questions"]
    """Of the calibration questions, on the scale of `threshold`, as of questions that were not
    seen; sorted, for pictures."""

    def score(self, evidence: Evidence) -> float:
        """What is compared with the threshold; raises as `judge`."""
        columns = features([evidence], self.names, self.frequencies)
        return float((self.gain or self.failure)(columns)[0])

    def judge(self, evidence: Evidence) -> Decision:
        """Decide from evidence already at hand; asks nobody.

        Where the draft says nothing there is no direct answer to give, so it retrieves, unless
        the gate was fitted to never do.
        """
        columns = features([evidence], self.names, self.frequencies)
        failure = self.failure(columns)
        score = float((failure if self.gain is None else self.gain(columns))[0])
        if self.calibrator is None:
            probability = float(np.mean(self.scores < score))
        else:
            probability = min(1.0, max(0.0, float(self.calibrator(failure)[0])))
        silent = not evidence.draft.text.strip() and not math.isinf(self.threshold)
        return Decision(
            question=evidence.question,
            retrieve=silent or score >= self.threshold,
            score=score,
            probability=probability,
            tier=self.tier,
            reason=_SILENT if silent else self._reason(score, probability),
            draft=evidence.draft,
            ingredients=dict(zip(self.names, columns.signals[0].tolist(), strict=True)),
        )

    def _reason(self, score: float, probability: float) -> str:
        """One sentence: what was found, and what it was compared with."""
        objective = "expected gain of retrieval" if self.gain is not None else "long-tail score"
        fails = f"the direct answer fails with probability {probability:.2f}"
        if math.isinf(self.threshold):
            habit = "always" if self.threshold < 0 else "never"
            return f"{fails}; this gate was fitted to {habit} retrieve"
        side = "at or above" if score >= self.threshold else "below"
        # the fewest significant digits, 3 at least, that tell the numbers apart
        pairs = ((f"{score:.{n}g}", f"{self.threshold:.{n}g}") for n in range(3, 18))
        first, second = next(((a, b) for a, b in pairs if a != b), (f"{score:.17g}",) * 2)
        return f"{fails}; {objective} {first} is {side} the threshold {second}"


_SILENT = "the model's own answer is empty, so there is none to give without retrieval"


def fit_signal(
    evidence: Sequence[Evidence],
    settings: GECESettings,
    *,
    target_rate: float,
    frequencies: WordFrequencies | None = None,
) -> FittedGate:
    """A gate on the one signal that `settings.scorer` names, from drafts that nobody judged.

    The threshold is the signal's quantile at which `target_rate` of these questions retrieve; an
    empty draft counts as the most doubtful. `Decision.probability` is the share of these questions
    with a smaller score: without accepted answers there is nothing to calibrate it on.
    """
    frequencies, signal = frequencies or WordFrequencies(), settings.scorer
    columns = features(evidence, [signal], frequencies)
    scores = columns.signals[:, 0].copy()
    tier = SIGNALS[signal].tier
    if tier != "text":  # these are read from the draft
        silent = np.array([not item.draft.text.strip() for item in evidence])
        scores[silent] = scores.max() + 1.0
    return FittedGate(
        settings=settings,
        tier=tier,
        names=(signal,),
        frequencies=frequencies,
        failure=OneSignal(0),
        gain=None,
        calibrator=None,
        threshold=rate_threshold(scores, target_rate),
        quantiles=np.quantile(columns.signals, np.linspace(0, 1, 21), axis=0).T,
        scores=np.sort(scores),
    )


def rate_threshold(scores: Float[np.ndarray, " questions"], rate: float) -> float:
    """The threshold whose retrieval rate is nearest to `rate`; of two, the lower rate.

    Equal scores go together, so that the rate of a score with many ties may be off.
    """
    ordered = np.sort(scores)
    # how many questions a threshold can leave to the model, most first: ties cannot be parted
    kept = np.append(np.unique(np.searchsorted(ordered, ordered)), len(ordered))[::-1]
    best = int(kept[np.argmin(np.abs(len(scores) - kept - rate * len(scores)))])
    if best in (0, len(ordered)):
        return math.inf if best else -math.inf
    low, high = float(ordered[best - 1]), float(ordered[best])
    middle = low + (high - low) / 2
    return middle if low < middle else high  # between neighbours there is no middle
