"""Which variant to keep: the cheapest that is above direct, and what that choice is worth."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from ltrag_plugins.metrics.calibration import Interval, paired_bootstrap
from ltrag_plugins.sgic.fitting.variants import Metric, Variant

Rows = Int[np.ndarray, " rows"]
FOLDS = 5
FEWEST_QUESTIONS = 10
"""Below which a bootstrap over the questions says nothing, and direct is kept."""


def cheapest_that_pays(
    variants: Sequence[Variant],
    direct: Variant,
    *,
    metric: Metric,
    level: float,
    seed: int,
    rows: Rows | None = None,
) -> Variant:
    """The variant of fewest calls whose gain over direct has an interval above 0; else direct.

    Of equally many calls the better answers count, then the order given.

    Args:
        level: of the two-sided interval of the paired bootstrap, inside (0, 1).
        rows: the questions to judge by; None: all.
    """
    rows = np.arange(len(direct.calls)) if rows is None else rows
    kept = [variant for variant in variants if variant.keepable]
    kept.sort(key=lambda v: (v.calls[rows].mean(), -v.quality(metric)[rows].mean()))
    before = direct.quality(metric)[rows]
    for variant in kept:
        after = variant.quality(metric)[rows]
        if after.mean() > before.mean():
            gain = paired_bootstrap(after, before, level=level, seed=seed)
            if gain.interval.low > 0:
                return variant
    return direct


def unseen_gain(
    variants: Sequence[Variant], direct: Variant, *, metric: Metric, level: float, seed: int
) -> Interval | None:
    """What the choice gains over direct on questions that it was not made on.

    With many variants one is above direct by luck; here each question is answered by the variant
    that the other folds chose. The recorded answers and the scale are the same in all folds.

    Returns:
        None for fewer questions than two.
    """
    before = direct.quality(metric)
    if len(before) < 2:
        return None
    found = np.zeros(len(before))
    for train, test in folds(len(before), seed):
        best = cheapest_that_pays(
            variants, direct, metric=metric, level=level, seed=seed, rows=train
        )
        found[test] = best.quality(metric)[test]
    return paired_bootstrap(found, before, level=level, seed=seed).interval


def folds(questions: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """Rows to fit on and rows to judge; a single question is both."""
    order = np.random.default_rng(seed).permutation(questions)
    for test in np.array_split(order, min(FOLDS, questions)):
        train = np.setdiff1d(order, test)
        yield (train if train.size else test), test
