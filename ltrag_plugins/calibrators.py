"""From a score to a probability; `calibrator_fitting` fits these with scikit-learn."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import expit


@dataclass(frozen=True, slots=True, eq=False)
class Platt:
    r"""p = 1 / (1 + exp(-(slope * score + intercept)))

    References:
        Platt, "Probabilistic Outputs for Support Vector Machines", 1999.
    """

    slope: float
    intercept: float
    logarithm: bool = False
    """Whether log(1 + score) stands in the score's place: GECE spans many powers of ten."""

    def __call__(self, scores: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        """The probability of each score."""
        x = np.log1p(scores) if self.logarithm else scores
        return expit(self.slope * x + self.intercept)


@dataclass(frozen=True, slots=True, eq=False)
class Isotonic:
    """The best non-decreasing step function, joined by straight lines.

    References:
        Zadrozny & Elkan, KDD 2002.
    """

    scores: Float[np.ndarray, " knots"]
    probabilities: Float[np.ndarray, " knots"]

    def __call__(self, scores: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        """The probability of each score."""
        return np.interp(scores, self.scores, self.probabilities)


Calibrator = Platt | Isotonic
