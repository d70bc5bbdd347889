"""How many shots: eq. 6 by worked examples, the bounds on the threshold by brute force."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.dur import DURSettings
from ltrag_plugins.dur.policy import shot_counts

FREE = DURSettings(least_shots=None, budget=None)
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
    assert shot_counts([SCORES], sigma, replace(FREE, shots=most))[0] == [shots]


shares = st.lists(st.integers(0, 40), min_size=1, max_size=6).map(lambda row: np.array(row) / 40)


def counts(level, scores, most):
    return [min(most, sum(s > level for s in row)) for row in scores]


def allowed(level, scores, most, least, budget):
    """(keeps the least number of shots, keeps the cost), each as far as it can be kept at all."""
    told = counts(level, scores, most)
    reachable = np.mean(counts(0.0, scores, most))
    enough = least is None or np.mean(told) >= min(least, reachable)
    # PromptPG asks each question once, with K shots
    fixed = most * len(scores)
    cheap = budget is None or sum(k * (k + 1) // 2 for k in told) <= budget * fixed
    return enough, cheap


@given(
    sigma=st.integers(0, 44).map(lambda n: n / 40),
    scores=st.lists(shares, min_size=1, max_size=4),
    most=st.integers(1, 5),
    least=st.none() | st.sampled_from([0.0, 0.5, 1.0, 2.0, 9.0]),
    budget=st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]),
)
def test_the_threshold_is_the_nearest_that_keeps_the_bounds(sigma, scores, most, least, budget):
    settings = DURSettings(shots=most, least_shots=least, budget=budget)
    told, level = shot_counts(scores, sigma, settings)
    assert [min(most, int((row > level).sum())) for row in scores] == told
    levels = np.unique([0.0, sigma, *np.concatenate(scores)])
    # between two levels nothing changes: one threshold of each interval will do
    steps = [*levels, *(b - 1e-9 for a, b in pairwise(levels)), levels[-1] + 0.1]
    judged = {x: allowed(x, scores, most, least, budget) for x in steps}
    both = [x for x in steps if all(judged[x])]
    enough = [x for x in steps if judged[x][0]]
    if both:
        nearest = min(both, key=lambda x: abs(x - sigma))
    else:  # the bounds exclude each other: the least number of shots goes before the cost
        nearest = max(enough)
    assert told == counts(nearest, scores, most)
    if all(judged[sigma]):
        assert told == counts(sigma, scores, most)


@pytest.mark.parametrize(
    ("sigma", "bounds", "shots"),
    [
        (0.9, {}, 0),
        (0.9, {"least_shots": 1.0}, 1),  # the floor brings down a sigma that would end the training
        (0.0, {"least_shots": 1.0, "budget": 0.6}, 2),  # of 10 shots
        # a prompt that stands alone is paid for alone
        (0.0, {"least_shots": 1.0, "budget": 0.6, "rungs": "last", "credit": "outcome"}, 3),
    ],
)
def test_bounds_worked_by_hand(sigma, bounds, shots):
    assert shot_counts([SCORES, SCORES], sigma, replace(FREE, **bounds))[0] == [shots] * 2
