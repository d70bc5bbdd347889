"""The threshold: eq. 6 and 10 by worked examples, its bounds by brute force."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.dur.policy import (
    bounded,
    ladder_cost,
    shots_above,
    shots_that_turn,
    turned_sigma,
)

SCORES = np.array([0.10, 0.40, 0.05, 0.25, 0.20])


@pytest.mark.parametrize(
    ("sigma", "most", "shots"),
    [
        (0.0, 5, 5),
        (0.0, 3, 3),
        (0.05, 5, 4),  # above, not at
        (0.2, 5, 2),
        (0.39, 5, 1),
        (0.4, 5, 0),
        (0.2, 1, 1),
    ],
)
def test_as_many_shots_as_scores_above_sigma_and_k_at_most(sigma, most, shots):
    assert shots_above(SCORES, sigma, most) == shots


@pytest.mark.parametrize(
    ("right", "shots"),
    [
        ([], []),
        ([False], []),
        ([True, True, True], []),
        ([False, False, True], []),
        ([True, False], [1]),
        ([False, True, True, False, False], [3]),
        ([True, False, True, False], [1, 3]),
    ],
)
def test_a_turn_is_a_shot_after_which_a_right_answer_is_wrong(right, shots):
    assert shots_that_turn(right) == shots


@pytest.mark.parametrize(("j", "sigma"), [(1, 0.40), (2, 0.25), (3, 0.20), (4, 0.10)])
def test_a_turn_at_shot_j_moves_sigma_to_the_largest_score_of_shots_j_to_k(j, sigma):
    ladder = np.array([0.40, 0.25, 0.20, 0.10])  # best first, so that is S(e_j)
    assert turned_sigma(ladder, j) == sigma


def test_of_shots_that_were_drawn_the_largest_need_not_be_the_jth():
    assert turned_sigma(np.array([0.05, 0.10, 0.40, 0.25]), 2) == 0.40


def test_figure_8_counts_three_hundred_shots_in_a_first_batch_and_promptpg_a_hundred():
    assert 20 * ladder_cost(5) == 300
    assert 20 * ladder_cost(5, last=True) == 100
    assert ladder_cost(0) == 0


shares = st.lists(st.integers(0, 40), min_size=1, max_size=6).map(lambda row: np.array(row) / 40)


def counts(level, scores, most):
    return [min(most, sum(s > level for s in row)) for row in scores]


def allowed(level, scores, most, least_mean, most_cost):
    """(keeps the least number of shots, keeps the cost), each as far as it can be kept at all."""
    told = counts(level, scores, most)
    reachable = np.mean(counts(0.0, scores, most))
    enough = least_mean is None or np.mean(told) >= min(least_mean, reachable)
    cheap = most_cost is None or sum(k * (k + 1) // 2 for k in told) <= most_cost
    return enough, cheap


@given(
    sigma=st.integers(0, 44).map(lambda n: n / 40),
    scores=st.lists(shares, min_size=1, max_size=4),
    most=st.integers(1, 5),
    least_mean=st.none() | st.sampled_from([0.0, 0.5, 1.0, 2.0, 9.0]),
    most_cost=st.none() | st.sampled_from([0.0, 1.0, 3.0, 8.0, 20.0]),
)
def test_the_bounded_threshold_is_the_nearest_that_keeps_the_bounds(
    sigma, scores, most, least_mean, most_cost
):
    told = bounded(sigma, scores, most, least_mean=least_mean, most_cost=most_cost)
    levels = np.unique([0.0, sigma, *np.concatenate(scores)])
    # between two levels nothing changes: one threshold of each interval will do
    steps = [*levels, *(b - 1e-9 for a, b in pairwise(levels)), levels[-1] + 0.1]
    judged = {x: allowed(x, scores, most, least_mean, most_cost) for x in steps}
    both = [x for x in steps if all(judged[x])]
    enough = [x for x in steps if judged[x][0]]
    if both:
        nearest = min(both, key=lambda x: abs(x - sigma))
    else:  # the bounds exclude each other: the least number of shots goes before the cost
        nearest = max(enough)
    assert counts(told, scores, most) == counts(nearest, scores, most)
    if all(judged[sigma]):
        assert told == sigma


def test_without_bounds_sigma_stays_where_it_is():
    assert bounded(0.7, [SCORES], 5, least_mean=None, most_cost=None) == 0.7


def test_the_floor_brings_a_sigma_down_that_would_end_the_training():
    told = bounded(0.9, [SCORES, SCORES], 5, least_mean=1.0, most_cost=None)
    assert counts(told, [SCORES, SCORES], 5) == [1, 1]


def test_the_budget_raises_sigma_until_the_batch_can_be_paid():
    told = bounded(0.0, [SCORES, SCORES], 5, least_mean=1.0, most_cost=6.0)
    assert counts(told, [SCORES, SCORES], 5) == [2, 2]
    assert told == 0.2


def test_a_prompt_that_stands_alone_is_paid_for_alone():
    told = bounded(0.0, [SCORES, SCORES], 5, least_mean=1.0, most_cost=6.0, last=True)
    assert counts(told, [SCORES, SCORES], 5) == [3, 3]
