"""From a score to a probability: Platt scaling or isotonic regression, trained by scikit-learn."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression


@dataclass(frozen=True, slots=True, eq=False)
class Platt:
    r"""p = 1 / (1 + exp(-(slope * score + intercept)))

    References:
        Platt, "Probabilistic Outputs for Support Vector Machines", 1999.
    """

    slope: float
    intercept: float

    def __call__(self, scores: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        """The probability of each score."""
        return expit(self.slope * scores + self.intercept)


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


def fit_calibrator(
    scores: Float[np.ndarray, " rows"],
    fails: Int[np.ndarray, " rows"],
    method: Literal["platt", "isotonic"],
) -> Calibrator:
    """Fit on scores that were cross-validated, so that they are not too sure of themselves."""
    if method == "isotonic":
        model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores, fails)
        return Isotonic(model.X_thresholds_.astype(float), model.y_thresholds_.astype(float))
    scale = float(scores.std()) or 1.0
    model = LogisticRegression(C=100.0).fit(scores[:, None] / scale, fails)
    return Platt(float(model.coef_[0, 0]) / scale, float(model.intercept_[0]))
