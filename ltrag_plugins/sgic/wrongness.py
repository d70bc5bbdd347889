"""From an answer's score to the probability that it is wrong, fitted on labelled answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from ltrag_plugins.calibrator_fitting import Method, cross_calibrated, fit_calibrator
from ltrag_plugins.calibrators import Calibrator
from ltrag_plugins.errors import ArtifactMismatch, CalibrationError, InvalidInput
from ltrag_plugins.metrics.calibration import auroc, expected_calibration_error
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.scale import ScoreScale

FEWEST = 5
"""Right and wrong answers each, below which nothing is fitted."""


@dataclass(frozen=True, slots=True, eq=False)
class WrongnessCalibration:
    """P(wrong) of an answer, from its score on one scale."""

    calibrator: Calibrator
    """Of score / 100."""
    scale: ScoreScale
    """The one the scores were of."""
    answers: int
    """How many it was fitted on."""
    wrong: float
    """The share of them that was wrong."""
    auroc: float
    """Of the score for "wrong", in [0, 1]; 0.5 is chance: then P(wrong) says little."""
    ece: float
    """Expected calibration error of P(wrong), cross-validated, in [0, 1]; 0 is best."""

    @classmethod
    def fit(
        cls,
        answers: Sequence[CalibratedAnswer],
        wrong: Sequence[bool],
        *,
        scale: ScoreScale,
        method: Method = "platt",
        folds: int = 5,
        seed: int = 0,
    ) -> Self:
        """Fit on answers that were calibrated with this scale, on questions it was not fitted on.

        Args:
            wrong: whether each answer is, by whatever measure you hold answers to.
            method: "platt" keeps the order; "isotonic" wants several hundred answers.
            folds: of the cross-validation behind `ece`; fewer where right or wrong ones are rare.

        Raises:
            InvalidInput: there are more answers than labels, or fewer; or fewer than 2 folds.
            CalibrationError: there are fewer than 5 right or 5 wrong answers.
            ArtifactMismatch: an answer is of another estimator than the scale.
        """
        if len(answers) != len(wrong):
            raise InvalidInput(f"{len(answers)} answers came with {len(wrong)} labels")
        if folds < 2:
            raise InvalidInput(f"folds must be at least 2, got {folds}")
        for answer in answers:
            scale.check(answer.estimator)
        scores = np.array([answer.score / 100 for answer in answers])
        fails = np.array([bool(label) for label in wrong], dtype=int)
        if min(fails.sum(), len(fails) - fails.sum()) < FEWEST:
            raise CalibrationError(
                f"{fails.sum()} of {len(fails)} answers are wrong; a calibration needs at least "
                f"{FEWEST} right and {FEWEST} wrong ones. Add questions."
            )
        unseen = cross_calibrated(scores, fails, method, folds=folds, seed=seed)
        return cls(
            fit_calibrator(scores, fails, method),
            scale,
            len(answers),
            float(fails.mean()),
            auroc(scores, fails),
            expected_calibration_error(unseen, fails),
        )

    def probability(self, score: float) -> float:
        """P(wrong), in [0, 1], of an answer with this score, 0-100."""
        return float(np.clip(self.calibrator(np.array([score / 100]))[0], 0.0, 1.0))

    def check(self, scale: ScoreScale) -> None:
        """Refuse another scale.

        Raises:
            ArtifactMismatch: the scores it was fitted on were of another one.
        """
        if scale != self.scale:
            raise ArtifactMismatch(
                "this calibration was fitted on the scores of another scale. Hand in the scale it "
                "came with, or fit it again: WrongnessCalibration.fit(answers, wrong, scale=scale)."
            )
