"""Scores and outcomes to a calibrator, with scikit-learn."""

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from ltrag_plugins.calibrators import Calibrator, Isotonic, Platt
from ltrag_plugins.errors import InvalidInput

Method = Literal["platt", "isotonic"]


def fit_calibrator(
    scores: Float[np.ndarray, " rows"],
    fails: Int[np.ndarray, " rows"],
    method: Method,
    *,
    logarithm: bool = False,
) -> Calibrator:
    """Fit on scores that were cross-validated, so that they are not too sure of themselves.

    Raises:
        InvalidInput: an unknown method.
    """
    if method not in get_args(Method):
        raise InvalidInput(f"calibration is {' or '.join(get_args(Method))}, got {method!r}")
    if method == "isotonic":
        model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores, fails)
        return Isotonic(model.X_thresholds_.astype(float), model.y_thresholds_.astype(float))
    x = np.log1p(scores) if logarithm else scores
    mean, deviation = x.mean(), x.std()
    scale = deviation if deviation > 1e-9 else 1.0
    model = LogisticRegression(C=100.0, max_iter=2000).fit(((x - mean) / scale)[:, None], fails)
    slope = float(model.coef_[0, 0] / scale)
    return Platt(slope, float(model.intercept_[0]) - slope * float(mean), logarithm)


def cross_calibrated(
    scores: Float[np.ndarray, " rows"],
    fails: Int[np.ndarray, " rows"],
    method: Method,
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


def stratified(fails: Int[np.ndarray, " rows"], folds: int, seed: int) -> StratifiedKFold:
    """Folds with the rarer outcome in every one; fewer than asked for if it is rarer than that."""
    rarer = int(min(fails.sum(), len(fails) - fails.sum()))
    return StratifiedKFold(min(folds, rarer), shuffle=True, random_state=seed)
