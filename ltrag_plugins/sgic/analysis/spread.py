"""How uncertainty lies over right and wrong answers, over documents that help and that do not.

References:
    Chen et al. (SGIC), figure 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.metrics.calibration import auroc, brier, expected_calibration_error
from ltrag_plugins.sgic.analysis.judged import Judged
from ltrag_plugins.sgic.analysis.rounds import auroc_or_none, mean_or_none


@dataclass(frozen=True, slots=True)
class Histogram:
    """Numbers in [0, 1], counted in bins of equal width; the last holds 1 as well."""

    counts: tuple[int, ...]
    mean: float | None
    """0 to 1; None of nothing."""

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Spread:
    """The uncertainty of two kinds."""

    good: Histogram
    """Right answers, or documents that help."""
    bad: Histogram
    """Wrong answers, or documents that do not."""
    auroc: float | None
    """Of the uncertainty for the bad kind, 0 to 1; None where one kind is missing."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers whose P(wrong) is alike."""

    low: float
    high: float
    """The last bin holds its upper edge as well."""
    count: int
    said: float | None
    """Mean P(wrong), 0 to 1; None where the bin is empty."""
    wrong: float | None
    """Share of wrong ones, 0 to 1; None where the bin is empty."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """Whether P(wrong) keeps what it promises."""

    bins: tuple[Bin, ...]
    ece: float
    """Expected calibration error over these bins, 0 to 1; 0 is best."""
    brier: float
    """Mean squared distance from the outcome, 0 to 1; 0 is best."""
    auroc: float | None
    """Of P(wrong) for "wrong", 0 to 1; None where all are right, or all wrong."""


def answer_spread(run: Sequence[Judged], *, returned: bool = False, bins: int = 10) -> Spread:
    """Of the first answers (figure 1), or of those returned.

    Raises:
        InvalidInput: `bins` is below 1.
    """
    answers = [
        (one.returned.uncertainty, one.returned_right)
        if returned
        else (one.first.uncertainty, one.first_right)
        for one in run
    ]
    return _spread([u for u, _ in answers], [right for _, right in answers], bins)


def document_spread(run: Sequence[Judged], *, bins: int = 10) -> Spread | None:
    """Of all documents that were asked about alone and are known to help or not (figure 1).

    None where there are none: documents were not scored, or by other means than uncertainty.

    Raises:
        InvalidInput: `bins` is below 1.
    """
    found = [
        (document.uncertainty, helps)
        for one in run
        if one.relevant
        for document, helps in zip(one.answer.documents, one.relevant, strict=True)
        if document.uncertainty is not None
    ]
    return _spread([u for u, _ in found], [helps for _, helps in found], bins) if found else None


def reliability(run: Sequence[Judged], *, bins: int = 10) -> Reliability | None:
    """P(wrong) of the answers returned, beside how many were wrong; None where none has one.

    Raises:
        InvalidInput: `bins` is below 1.
    """
    found = [
        (one.answer.p_wrong, not one.returned_right)
        for one in run
        if one.answer.p_wrong is not None
    ]
    if not found:
        return None
    said, wrong = [p for p, _ in found], [w for _, w in found]
    places = _places(said, bins)
    return Reliability(
        tuple(_bin(said, wrong, places, i, bins) for i in range(bins)),
        expected_calibration_error(said, wrong, bins),
        brier(said, wrong),
        auroc(said, wrong) if len(set(wrong)) == 2 else None,
    )


def _bin(
    said: Sequence[float], wrong: Sequence[bool], places: Sequence[int], i: int, bins: int
) -> Bin:
    members = [j for j, place in enumerate(places) if place == i]
    return Bin(
        i / bins,
        (i + 1) / bins,
        len(members),
        mean_or_none([said[j] for j in members]),
        mean_or_none([wrong[j] for j in members]),
    )


def _spread(values: Sequence[float], good: Sequence[bool], bins: int) -> Spread:
    kinds = [[v for v, g in zip(values, good, strict=True) if g is kind] for kind in (True, False)]
    return Spread(
        _histogram(kinds[0], bins),
        _histogram(kinds[1], bins),
        auroc_or_none(values, [not g for g in good]),
    )


def _histogram(values: Sequence[float], bins: int) -> Histogram:
    counts = np.bincount(_places(values, bins), minlength=bins)
    return Histogram(tuple(int(count) for count in counts), mean_or_none(values))


def _places(values: Sequence[float], bins: int) -> list[int]:
    if bins < 1:
        raise InvalidInput(f"bins must be at least 1, got {bins}")
    return [min(int(value * bins), bins - 1) for value in values]
