import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.gece import fit_outcomes
from ltrag_plugins.gece.fit import Labels
from ltrag_plugins.gece.models import rate_threshold
from tests.gece_parts import ladder, outcomes

SIZE = 14
tied = arrays(float, SIZE, elements=st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0]))
bits = arrays(int, SIZE, elements=st.integers(0, 1))


def labels(fails, mended=None) -> Labels:
    return Labels(fails=fails, quality=np.zeros(len(fails)), mended=mended)


def every_threshold(scores):
    """All that can make a difference: each score itself, and one above all."""
    return [-math.inf, *np.unique(scores), math.inf]


def accuracy_behind(threshold, scores, fails, mended):
    retrieve = scores >= threshold
    if mended is not None:
        return np.where(retrieve, mended, 1 - fails).mean()
    return (1 - fails[~retrieve]).mean() if not retrieve.all() else None


@given(st.integers(0, 100), st.integers(20, 60))
def test_different_scores_meet_the_rate_within_half_a_question(percent, count):
    scores = np.random.default_rng(count).permutation(count) / 7
    retrieved = (scores >= rate_threshold(scores, percent / 100)).sum()
    assert abs(retrieved - percent / 100 * count) <= 0.5


@given(tied, st.floats(0, 1))
def test_with_ties_no_other_threshold_comes_nearer_to_the_rate(scores, rate):
    def off(threshold):
        return abs((scores >= threshold).mean() - rate)

    best = min(map(off, every_threshold(scores)))
    assert off(rate_threshold(scores, rate)) == pytest.approx(best)


def test_rates_of_none_and_all_hold_for_scores_never_seen():
    scores = np.arange(20.0)
    assert rate_threshold(scores, 0.0) == math.inf
    assert rate_threshold(scores, 1.0) == -math.inf


def test_where_all_scores_are_equal_a_low_rate_retrieves_nothing_rather_than_all():
    scores = np.full(20, 0.7)
    assert not (scores >= rate_threshold(scores, 0.2)).any()
    assert (scores >= rate_threshold(scores, 0.8)).all()


def test_a_threshold_between_neighbouring_floats_still_parts_them():
    low, high = 1.0, math.nextafter(1.0, 2.0)
    scores = np.array([low] * 16 + [high] * 4)
    assert (scores >= rate_threshold(scores, 0.2)).sum() == 4


@given(tied, bits, st.none() | bits, st.floats(0, 1))
def test_the_target_accuracy_is_reached_at_the_lowest_rate_of_all_thresholds(
    scores, fails, mended, target
):
    rows = [
        ((scores >= t).mean(), accuracy_behind(t, scores, fails, mended))
        for t in every_threshold(scores)
    ]
    reaching = [rate for rate, accuracy in rows if accuracy is not None and accuracy >= target]
    if not reaching:
        best = max(accuracy for _, accuracy in rows if accuracy is not None)
        with pytest.raises(CalibrationError, match=f"is {best:.3f}, at"):
            labels(fails, mended).accuracy_threshold(scores, target)
        return
    threshold = labels(fails, mended).accuracy_threshold(scores, target)
    assert (scores >= threshold).mean() == pytest.approx(min(reaching))
    assert accuracy_behind(threshold, scores, fails, mended) >= target


def test_a_target_that_only_always_retrieving_reaches_always_retrieves():
    scores = np.arange(20.0)
    fails, mended = np.ones(20, dtype=int), np.ones(20, dtype=int)
    assert labels(fails, mended).accuracy_threshold(scores, 1.0) == -math.inf


@given(tied, bits, bits, st.floats(0, 1))
def test_gated_accuracy_is_that_of_the_largest_scores_retrieving(scores, fails, mended, rate):
    largest = sorted(range(SIZE), key=lambda i: (-scores[i], i))[: round(rate * SIZE)]
    right = sum(mended[i] if i in largest else 1 - fails[i] for i in range(SIZE))
    assert labels(fails, mended).gated(scores, rate).mean() == pytest.approx(right / SIZE)


@pytest.mark.parametrize("target", [-0.1, 1.1, 20.0, math.nan])
@pytest.mark.parametrize("name", ["target_rate", "target_accuracy"])
def test_a_target_out_of_range_is_refused_by_name(name, target):
    with pytest.raises(InvalidInput, match=f"{name} must be .*a number, from 0 to 1"):
        fit_outcomes(ladder(), **{name: target})


def test_two_targets_at_once_are_refused():
    with pytest.raises(InvalidInput, match="not both"):
        fit_outcomes(ladder(), target_rate=0.2, target_accuracy=0.9)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_a_model_that_is_right_on_two_questions_of_forty_still_retrieves_at_the_rate(rate):
    # each fold knows one right answer at most, has no opinion, and so its scores are all equal
    certainty = [0.9 if i in (3, 17) else 0.2 + i / 100 for i in range(40)]
    gate, report = fit_outcomes(outcomes([c < 0.9 for c in certainty], certainty), target_rate=rate)
    assert report.retrieval_rate.value == pytest.approx(rate, abs=1 / 40)
    assert math.isfinite(gate.threshold)
