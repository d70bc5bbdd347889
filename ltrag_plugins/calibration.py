"""From scores to probabilities: softmax, Platt's curve, an isotonic step function, and how the last
two are fitted.

Only the functions that fit import scikit-learn: a saved gate or scale is loaded and used without,
and without scipy, which has the first few lines too.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import require, unknown_name

if TYPE_CHECKING:
    from sklearn.model_selection import StratifiedKFold


def expit(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """1 / (1 + exp(-x)): from log-odds to a probability."""
    with np.errstate(over="ignore"):  # 1 / (1 + infinity) is 0, as it should be
        return 1 / (1 + np.exp(-np.asarray(x, dtype=float)))


def log_softmax(x: Float[np.ndarray, "*rows options"]) -> Float[np.ndarray, "*rows options"]:
    """x - log(sum(exp(x))) of each row; NaN where all of a row is minus infinity."""
    above = x - x.max(axis=-1, keepdims=True)
    return above - np.log(np.exp(above).sum(axis=-1, keepdims=True))


def softmax(x: Float[np.ndarray, "*rows options"]) -> Float[np.ndarray, "*rows options"]:
    """exp(x) / sum(exp(x)) of each row."""
    shares = np.exp(x - x.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


@dataclass(frozen=True, slots=True, eq=False)
class Platt:
    """p = 1 / (1 + exp(-(slope * score + intercept))), after Platt, "Probabilistic Outputs for
    Support Vector Machines", 1999."""

    slope: float
    intercept: float
    logarithm: bool = False
    """Whether log(1 + |score|), with the score's sign, stands in its place: GECE spans many powers
    of ten."""

    def __call__(self, scores: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        """The probability of each score."""
        x = _signed_log(scores) if self.logarithm else scores
        return expit(self.slope * x + self.intercept)


@dataclass(frozen=True, slots=True, eq=False)
class Isotonic:
    """The best non-decreasing step function, in straight lines (Zadrozny & Elkan, KDD 2002)."""

    scores: Float[np.ndarray, " knots"]
    probabilities: Float[np.ndarray, " knots"]

    def __call__(self, scores: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        """The probability of each score."""
        return np.interp(scores, self.scores, self.probabilities)


def _signed_log(scores: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    return np.sign(scores) * np.log1p(np.abs(scores))


ProbabilityMap = Platt | Isotonic
CalibrationMethod = Literal["platt", "isotonic"]


def fit_calibrator(
    scores: Float[np.ndarray, " rows"],
    fails: Int[np.ndarray, " rows"],
    method: CalibrationMethod,
    *,
    logarithm: bool = False,
) -> ProbabilityMap:
    """Fit on scores that were cross-validated, so that they are not too sure of themselves."""
    require("fit")
    from sklearn.isotonic import IsotonicRegression
    from sklearn.linear_model import LogisticRegression

    if method not in get_args(CalibrationMethod):
        raise unknown_name("calibration", method, get_args(CalibrationMethod))
    if method == "isotonic":
        model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores, fails)
        return Isotonic(model.X_thresholds_.astype(float), model.y_thresholds_.astype(float))
    x = _signed_log(scores) if logarithm else scores
    mean, scale = x.mean(), x.std() if x.std() > 1e-9 else 1.0
    model = LogisticRegression(C=100.0, max_iter=2000).fit(((x - mean) / scale)[:, None], fails)
    slope = float(model.coef_[0, 0] / scale)
    return Platt(slope, float(model.intercept_[0]) - slope * float(mean), logarithm)


def cross_calibrated(
    scores: Float[np.ndarray, " rows"],
    fails: Int[np.ndarray, " rows"],
    method: CalibrationMethod,
    *,
    logarithm: bool = False,
    folds: int,
    seed: int,
) -> Float[np.ndarray, " rows"]:
    """The probability of each score by a calibrator that was fitted without it."""
    found = np.zeros(len(scores))
    for train, test in stratified(fails, folds, seed).split(scores, fails):
        calibrator = fit_calibrator(scores[train], fails[train], method, logarithm=logarithm)
        found[test] = calibrator(scores[test])
    return found


def stratified(fails: Int[np.ndarray, " rows"], folds: int, seed: int) -> "StratifiedKFold":
    """Folds with the rarer outcome in every one; fewer than asked for if it is rarer than that."""
    require("fit")
    from sklearn.model_selection import StratifiedKFold

    rarer = int(min(fails.sum(), len(fails) - fails.sum()))
    return StratifiedKFold(min(folds, rarer), shuffle=True, random_state=seed)
