from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binomtest, bootstrap
from sklearn.metrics import brier_score_loss, roc_auc_score

from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.metrics.calibration import (
    Reliability,
    auroc,
    bootstrap_interval,
    expected_calibration_error,
    paired_bootstrap,
    wilson_interval,
)

probabilities = arrays(float, 12, elements=st.floats(0, 1))
outcomes = arrays(float, 12, elements=st.sampled_from([0.0, 1.0]))


def ece_in_a_loop(p, y, bins):
    total = 0.0
    for i in range(bins):
        last = i == bins - 1
        members = [j for j in range(len(p)) if i <= p[j] * bins and (p[j] * bins < i + 1 or last)]
        if members:
            accuracy = sum(y[j] for j in members) / len(members)
            confidence = sum(p[j] for j in members) / len(members)
            total += len(members) / len(p) * abs(accuracy - confidence)
    return total


@given(probabilities, probabilities, st.integers(1, 15))  # outcomes may be degrees of success
def test_ece_is_the_sum_over_bins_written_as_a_loop(p, y, bins):
    assert expected_calibration_error(p, y, bins) == pytest.approx(ece_in_a_loop(p, y, bins))


@given(probabilities, outcomes)
def test_brier_is_scikit_learns(p, y):
    assert Reliability.of(p, y).brier == pytest.approx(brier_score_loss(y, p, labels=[0, 1]))


@given(arrays(float, 8, elements=st.sampled_from([-2.0, 0.0, 0.5, 3.0])), st.integers(1, 7))
def test_auroc_is_the_share_of_pairs_in_the_right_order(scores, positives):
    y = np.arange(8) < positives
    pairs = list(product(scores[y], scores[~y]))
    won = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)
    assert auroc(scores, y) == pytest.approx(won / len(pairs))
    assert auroc(scores, y) == pytest.approx(roc_auc_score(y, scores))


def test_auroc_takes_infinite_scores():
    assert auroc([-np.inf, 0.0, 1.0, np.inf], [0, 0, 1, 1]) == 1


ALL = [expected_calibration_error, Reliability.of, auroc, paired_bootstrap]


@pytest.mark.parametrize(
    ("metrics", "columns", "settings", "error", "why"),
    [
        (ALL, ([0.5], [1, 0]), {}, InvalidInput, "one length"),
        (ALL, ([], []), {}, InvalidInput, "at least 1 long"),
        (ALL, ([[0.5]], [[1]]), {}, InvalidInput, "shapes"),
        (ALL, ([0.5, float("nan")], [1, 0]), {}, InvalidInput, "NaN"),
        (ALL[:2], ([0.5, 1.5], [1, 0]), {}, InvalidInput,
         r"probabilities must lie in \[0, 1\].* to 1\.5"),
        (ALL[:2], ([0.5, 0.5], [1, 2]), {}, InvalidInput, "outcomes must lie"),
        (ALL[:1], ([0.5], [1]), {"bins": 0}, InvalidInput, "at least 1 bin"),
        ([bootstrap_interval], ([1.0, 2.0],), {"level": 95.0}, InvalidInput, "0 < level < 1"),
        ([auroc], ([0.5, 0.6], [0.2, 1]), {}, InvalidInput, "0 or 1"),
        ([auroc], ([0.1, 0.2, 0.3], [1, 1, 1]), {}, CalibrationError, r"all 3 are 1\. Add quest"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(metrics, columns, settings, error, why):
    for metric in metrics:
        with pytest.raises(error, match=why):
            metric(*columns, **settings)


def test_the_interval_of_a_mean_is_scipys_percentile_interval():
    x = np.random.default_rng(1).normal(size=80)
    theirs = bootstrap((x,), np.mean, method="percentile", n_resamples=4000, rng=2)
    ours = bootstrap_interval(x, resamples=4000)
    looped = bootstrap_interval(x, statistic=np.mean, resamples=4000)
    expected = pytest.approx(tuple(theirs.confidence_interval), abs=0.02)
    assert (ours.low, ours.high) == expected
    assert (looped.low, looped.high) == expected
    assert ours.value == looped.value == x.mean()


def test_a_narrower_level_gives_a_narrower_interval():
    x = np.arange(30.0)
    wide, narrow = bootstrap_interval(x, level=0.95), bootstrap_interval(x, level=0.5)
    assert wide.low < narrow.low < x.mean() < narrow.high < wide.high


def test_rows_are_resampled_together():
    # a statistic of pairs that is constant over questions stays constant in every resample
    x = np.arange(20.0)
    interval = bootstrap_interval(x, x + 3, statistic=lambda a, b: (b - a).mean(), resamples=50)
    assert (interval.low, interval.value, interval.high) == (3, 3, 3)


def test_the_seed_decides():
    x = np.arange(20.0)
    one, again, other = (bootstrap_interval(x, seed=seed) for seed in (1, 1, 2))
    assert one == again != other


def test_a_long_column_is_resampled_in_parts_that_make_no_difference():
    x = np.random.default_rng(0).normal(size=3000)
    rng = np.random.default_rng(0)
    means = [x[rng.integers(3000, size=3000)].mean() for _ in range(1000)]
    interval = bootstrap_interval(x, resamples=1000)
    assert (interval.low, interval.high) == pytest.approx(np.quantile(means, [0.025, 0.975]))


def test_resamples_without_both_outcomes_are_left_out_of_the_interval_of_auroc():
    scores, y = [0.1, 0.2, 0.3, 0.9], [0, 0, 0, 1]  # (3/4)^4 = 32 % of resamples have no 1
    interval = bootstrap_interval(scores, y, statistic=auroc, resamples=400)
    assert (interval.value, interval.low, interval.high) == (1, 1, 1)


def test_a_statistic_that_seldom_exists_has_no_interval():
    def seldom(column):
        if column[0] != 0:  # 3 of 4 resamples
            raise CalibrationError("no zero in front")
        return 1.0

    with pytest.raises(CalibrationError, match=r"only .* of 200 resamples of 4 questions"):
        bootstrap_interval(range(4), statistic=seldom, resamples=200)


def test_a_paired_difference_is_the_mean_of_the_differences():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=60), rng.normal(size=60)
    result = paired_bootstrap(a, b)
    assert result.value == pytest.approx(a.mean() - b.mean())
    assert result == bootstrap_interval(a - b)


@pytest.mark.parametrize(("right", "count"), [(0, 1), (3, 9), (50, 50), (2, 400)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_wilson_is_that_of_scipy(right, count, level):
    found = wilson_interval(right / count, count, level)
    wanted = binomtest(right, count).proportion_ci(level, method="wilson")
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)
    assert (found.value, found.level) == (right / count, level)
