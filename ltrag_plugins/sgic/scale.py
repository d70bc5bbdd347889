"""From uncertainties in [0, 1] to scores, 0-100, and from these to P(wrong); larger: less certain.

Source: Chen et al. (SGIC), eq. 2 (answers) and eq. 3 (documents).
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ltrag_plugins import calibration
from ltrag_plugins.calibration import CalibrationMethod, ProbabilityMap
from ltrag_plugins.errors import ArtifactMismatch, CalibrationError, InvalidInput
from ltrag_plugins.metrics.calibration import auroc, expected_calibration_error
from ltrag_plugins.sgic.answer import Round
from ltrag_plugins.uncertainty import checked_estimator

NOISE = 1e-6
"""Numbers about 1 that differ by no more are equal: eq. 3 would stretch rounding errors of 32 bits
over the whole scale."""
FEWEST = 5
"""Right and wrong answers each, below which no P(wrong) is fitted."""
_EDGE = 1e-6


@dataclass(frozen=True, slots=True)
class ScoreScale:
    r"""Eq. 2: 0 goes to 0, the mean to 50, 1 to 100, straight lines between.

    .. math:: s(u) = 50 u / m \text{ for } u \le m, \quad 50 + 50 (u - m) / (1 - m) \text{ above}

    (The paper prints 1 - m under both, which sends certain answers below 0, and has one mean; only
    that of the first answers is known before a round shows a score.) Uncertainty grows with the
    rounds (section 5.3), so each may have its own mean, in (0, 1) or `InvalidInput` is raised; the
    last serves all rounds after it.
    """

    estimator: str
    means: tuple[float, ...] = (0.5,)
    """Of the answers of round 0, 1, ...; without a fit 0.5, so that a score is 100 times u."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "estimator", checked_estimator(self.estimator))
        if not self.means or not all(0 < mean < 1 for mean in self.means):
            raise InvalidInput(f"a scale needs means inside (0, 1), got {self.means}")

    @classmethod
    def of_rounds(
        cls, estimator: str, traces: Sequence[Sequence[Round]], most: int | None = None
    ) -> Self:
        """The mean uncertainty of each of the first `most` rounds (None: of all) over the questions
        (at least one) that have it."""
        rounds = range(max(map(len, traces)))[:most]
        seen = ([trace[n].uncertainty for trace in traces if n < len(trace)] for n in rounds)
        means = (sum(values) / len(values) for values in seen)
        return cls(estimator, tuple(min(1 - _EDGE, max(_EDGE, mean)) for mean in means))

    def rescored(self, trace: Iterable[Round]) -> tuple[Round, ...]:
        """The same answers with their scores on this scale."""
        return tuple(replace(r, score=self.score(r.uncertainty, r.number)) for r in trace)

    def score(self, uncertainty: float, round: int = 0) -> float:
        """Of an answer of that round, 0-100; `InvalidInput` of no uncertainty in [0, 1]."""
        if not 0 <= uncertainty <= 1:
            raise InvalidInput(f"an uncertainty lies in [0, 1], got {uncertainty}")
        mean = self.means[min(round, len(self.means) - 1)]
        if uncertainty <= mean:
            return 50 * (uncertainty / mean)
        return 50 + 50 * ((uncertainty - mean) / (1 - mean))

    def check(self, estimator: str) -> None:
        """Refuse to serve another estimator, as its uncertainties have other means."""
        if estimator != self.estimator:
            both = f"the scale is of {self.estimator!r}, and the settings name {estimator!r}"
            raise ArtifactMismatch(f"{both}; fit one for that estimator with sgic.fit(...)")


def rounding(uncertainties: Sequence[float], estimator: str) -> float:
    """How far the uncertainties of one question's documents may differ by rounding alone."""
    # products of e^-14 and e^-15 can be told apart, until one minus them is 1
    if estimator != "product" or not uncertainties:
        return NOISE
    return max(sys.float_info.epsilon, NOISE * (1 - min(uncertainties)))


def document_scores(uncertainties: Sequence[float], *, noise: float = NOISE) -> tuple[float, ...]:
    r"""Eq. 3: min-max within the question, 0-100; larger is less certain.

    .. math:: s_i = 100 (u_i - \min u) / (\max u - \min u)

    Each gets 50 where they differ by no more than `noise`. Any finite numbers will do.
    """
    if not all(abs(u) < float("inf") for u in uncertainties):
        raise InvalidInput(f"document scores need finite numbers, got {list(uncertainties)}")
    if not uncertainties:
        return ()
    least, most = min(uncertainties), max(uncertainties)
    if most - least <= noise:
        return (50.0,) * len(uncertainties)
    return tuple(100 * ((u - least) / (most - least)) for u in uncertainties)


@dataclass(frozen=True, slots=True, eq=False)
class WrongnessCalibration:
    """P(wrong) of an answer, from its score on one scale."""

    calibrator: ProbabilityMap
    """Of score / 100."""
    scale: ScoreScale
    answers: int
    """How many it was fitted on."""
    wrong: float
    """The share of them that was wrong, 0 to 1."""
    auroc: float
    """Of the score for "wrong", in [0, 1]; 0.5 is chance."""
    ece: float
    """Expected calibration error of P(wrong), cross-validated, in [0, 1]."""

    @classmethod
    def fit(
        cls,
        scores: Sequence[float],
        wrong: Sequence[bool],
        *,
        scale: ScoreScale,
        method: CalibrationMethod = "platt",
        seed: int = 0,
    ) -> Self:
        """Fit on the scores, 0-100 on this scale, of answers to questions it was not fitted on.
        "platt" keeps the order; "isotonic" wants several hundred answers. Fewer than 5 right or 5
        wrong answers raise `CalibrationError`."""
        given, fails = np.array(scores) / 100, np.array(wrong, dtype=bool).astype(int)
        if not FEWEST <= fails.sum() <= len(fails) - FEWEST:
            found = f"{fails.sum()} of {len(fails)} answers are wrong"
            raise CalibrationError(f"{found}; add questions, to have {FEWEST} right and wrong ones")
        area = auroc(given, fails)
        unseen = calibration.cross_calibrated(given, fails, method, folds=5, seed=seed)
        ece = expected_calibration_error(unseen, fails)
        fitted = calibration.fit_calibrator(given, fails, method)
        return cls(fitted, scale, len(fails), float(fails.mean()), area, ece)

    def probability(self, score: float) -> float:
        """P(wrong), in [0, 1], of an answer with this score, 0-100."""
        return float(np.clip(self.calibrator(np.array([score / 100]))[0], 0.0, 1.0))

    def check(self, scale: ScoreScale) -> None:
        """Refuse another scale than that of the scores it was fitted on."""
        if scale != self.scale:
            raise ArtifactMismatch("P(wrong) is of another scale; hand in the one it came with")
