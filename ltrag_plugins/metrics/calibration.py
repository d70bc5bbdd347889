"""Do probabilities keep what they promise, and how sure is a figure from a few questions?"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ltrag_plugins.errors import CalibrationError, InvalidInput

_Column = Float[np.ndarray, " n"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its percentile bootstrap interval."""

    value: float
    """The statistic on the sample itself."""
    low: float
    high: float
    level: float
    """Share of the resamples between `low` and `high`, 0 to 1."""

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def signed(self) -> str:
        """The text of a difference."""
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def expected_calibration_error(
    probabilities: ArrayLike, outcomes: ArrayLike, bins: int = 10
) -> float:
    r"""Mean distance between probability and outcome, over bins of equal width; 0 is best.

    .. math:: ECE = \sum_i \frac{n_i}{N} |acc(b_i) - conf(b_i)| \in [0, 1]

    Args:
        probabilities: in [0, 1].
        outcomes: 0 or 1, or a degree of success between.
        bins: [0, 1/bins), [1/bins, 2/bins), ...; the last holds 1 as well.

    Source: Li et al., ACL 2024 (GECE), eq. 1; Guo et al., ICML 2017.
    """
    p, y = _columns(probabilities, outcomes)
    for name, column in (("probabilities", p), ("outcomes", y)):
        low, high = column.min(), column.max()
        if low < 0 or high > 1:
            raise InvalidInput(f"{name} must lie in [0, 1]; they go from {low:g} to {high:g}")
    if bins < 1:
        raise InvalidInput(f"ECE needs at least 1 bin, got {bins}")
    bin_of = np.minimum((p * bins).astype(int), bins - 1)
    # n_i |acc - conf| is the absolute sum of the residuals in the bin
    return float(np.abs(np.bincount(bin_of, weights=y - p, minlength=bins)).sum() / p.size)


@dataclass(frozen=True, slots=True)
class _Bin:
    """Probabilities that are alike, and what came true; the last bin holds its upper edge too."""

    low: float
    high: float
    count: int
    said: float | None
    """Mean probability, 0 to 1; None where the bin is empty."""
    wrong: float | None
    """Share of the outcomes that are 1, 0 to 1; None where the bin is empty."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """Whether probabilities of being wrong keep what they promise."""

    bins: tuple[_Bin, ...]
    ece: float
    """`expected_calibration_error` over these bins."""
    brier: float
    """Mean squared distance between probability and outcome, in [0, 1]; 0 is best (Brier, 1950)."""
    auroc: float | None
    """None where all outcomes are alike."""

    @classmethod
    def of(cls, probabilities: ArrayLike, wrong: ArrayLike, bins: int = 10) -> "Reliability":
        """The figures of the reliability diagram: of probabilities of being wrong, and 0 or 1."""
        ece = expected_calibration_error(probabilities, wrong, bins)
        p, y = _columns(probabilities, wrong)
        bin_of, found = np.minimum((p * bins).astype(int), bins - 1), []
        for i in range(bins):
            inside = bin_of == i
            means = [float(x[inside].mean()) if inside.any() else None for x in (p, y)]
            found.append(_Bin(i / bins, (i + 1) / bins, int(inside.sum()), *means))
        area = auroc(p, y) if y.min() < y.max() else None
        return cls(tuple(found), ece, float(np.mean((p - y) ** 2)), area)


def auroc(scores: ArrayLike, outcomes: ArrayLike) -> float:
    """Share of the (positive, negative) pairs in which the positive, of outcome 1, has the larger
    score; in [0, 1], ties count half, 0.5 is chance. Scores may be infinite."""
    s, y = _columns(scores, outcomes)
    if not np.isin(y, (0, 1)).all():
        raise InvalidInput("AUROC needs outcomes that are 0 or 1; set a threshold first")
    if y.min() == y.max():
        alike = f"all {y.size} are {int(y[0])}. Add questions of the other kind."
        raise CalibrationError(f"AUROC needs outcomes of both kinds; {alike}")
    rank = np.unique(s, return_inverse=True)[1]
    positives = np.bincount(rank, weights=y)
    negatives = np.bincount(rank) - positives
    below = np.cumsum(negatives) - negatives / 2  # of each score; its ties count half
    return float(positives @ below / (y.sum() * (y.size - y.sum())))


def bootstrap_interval(
    *columns: ArrayLike,
    statistic: Callable[..., float] | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """How far a statistic could have come out otherwise: percentile bootstrap over questions
    (Efron & Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3).

    Args:
        columns: arrays of one length, resampled together (row i of all is question i).
        statistic: takes as many arrays and gives a number, as `auroc` does. Resamples on which it
            raises `CalibrationError` are left out. None: the mean of one column, which is fast.
    """
    arrays = _columns(*columns)
    if not 0 < level < 1:
        raise InvalidInput(f"a bootstrap interval needs 0 < level < 1, got {level}")
    n, rng, drawn = len(arrays[0]), np.random.default_rng(seed), []
    value = float(statistic(*arrays) if statistic else arrays[0].mean())
    if statistic is None:
        [x] = arrays
        at_once = max(1, 2_000_000 // n)  # bounds the table of indices to 16 MB
        for start in range(0, resamples, at_once):
            rows = rng.integers(n, size=(min(at_once, resamples - start), n))
            drawn += x[rows].mean(axis=1).tolist()
    else:
        for _ in range(resamples):
            rows = rng.integers(n, size=n)
            with suppress(CalibrationError):
                drawn.append(float(statistic(*(column[rows] for column in arrays))))
    if len(drawn) * 2 < resamples:
        some = f"only {len(drawn)} of {resamples} resamples of {n} questions"
        raise CalibrationError(f"the statistic exists on {some}; give more, of both kinds")
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), level)


def wilson_interval(share: float, count: float, level: float = 0.95) -> Interval:
    r"""A share of `count` independent outcomes with Wilson's score interval; where all came out
    alike, it has a width, too.

    .. math:: \frac{\hat p + z^2/2n \pm z\sqrt{\hat p(1-\hat p)/n + z^2/4n^2}}{1 + z^2/n}

    Source: Wilson, JASA 1927.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    spread = math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    half = z * spread / (1 + z**2 / count)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half), level)


def paired_bootstrap(
    a: ArrayLike, b: ArrayLike, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Mean of `a` minus mean of `b`, row i of both the same question (Koehn, EMNLP 2004)."""
    x, y = _columns(a, b)
    return bootstrap_interval(x - y, level=level, resamples=resamples, seed=seed)


def _columns(*columns: ArrayLike) -> tuple[_Column, ...]:
    """The columns as float arrays of one length, with no NaN among them."""
    arrays = tuple(np.asarray(column, dtype=float) for column in columns)
    shapes = [array.shape for array in arrays]
    if not arrays or len(set(shapes)) != 1 or len(shapes[0]) != 1 or not arrays[0].size:
        raise InvalidInput(f"expected lists of one length, at least 1 long; got shapes {shapes}")
    if any(np.isnan(array).any() for array in arrays):
        raise InvalidInput("NaN among the values; leave those questions out, or find its source")
    return arrays
