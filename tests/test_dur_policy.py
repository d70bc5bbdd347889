"""The policy by enumeration: four documents, two picks, all rankings; so there is no noise."""

from collections import Counter
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ltrag_plugins.dur import DURSettings
from ltrag_plugins.dur.head import Head
from ltrag_plugins.dur.policy import chosen_shots, draw, log_probs, top

DOCS, PICKS = 4, 2
RANDOM = np.random.default_rng(7)
SCORES = RANDOM.normal(size=DOCS)
REWARDS = {r: RANDOM.normal() for r in product(range(DOCS), repeat=PICKS)}


def rankings(replacement: bool) -> list[tuple[int, ...]]:
    """All that can be drawn: 16 where each pick is drawn from all of them, else 12."""
    everything = range(DOCS)
    if replacement:
        return list(product(everything, repeat=PICKS))
    return list(permutations(everything, PICKS))


def probability(scores: np.ndarray, ranking: tuple[int, ...], replacement: bool) -> float:
    """By the definition alone: a share of what is left, pick after pick."""
    found, weights = 1.0, dict(enumerate(np.exp(scores)))
    for pick in ranking:
        found *= weights[pick] / sum(weights.values())
        if not replacement:
            del weights[pick]
    return found


def expected_reward(scores: np.ndarray, replacement: bool) -> float:
    return sum(probability(scores, r, replacement) * REWARDS[r] for r in rankings(replacement))


def expected_gradient(scores: np.ndarray, replacement: bool) -> np.ndarray:
    """What REINFORCE gives on average: reward times the gradient of the log-probability."""
    return sum(
        probability(scores, r, replacement)
        * REWARDS[r]
        * log_probs(scores, np.array(r), replacement=replacement)[1].sum(axis=0)
        for r in rankings(replacement)
    )


def slope(function, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences."""
    found = np.zeros_like(at)
    for i in np.ndindex(at.shape):
        there = np.zeros_like(at)
        there[i] = step
        found[i] = (function(at + there) - function(at - there)) / (2 * step)
    return found


@pytest.mark.parametrize("replacement", [True, False])
def test_the_probabilities_of_all_rankings_sum_to_one(replacement):
    told = [
        np.exp(log_probs(SCORES, np.array(r), replacement=replacement)[0].sum())
        for r in rankings(replacement)
    ]
    assert sum(told) == pytest.approx(1)
    defined = [probability(SCORES, r, replacement) for r in rankings(replacement)]
    assert told == pytest.approx(defined)


@pytest.mark.parametrize("replacement", [True, False])
def test_the_expected_gradient_is_the_gradient_of_the_expected_reward(replacement):
    by_differences = slope(lambda s: expected_reward(s, replacement), SCORES)
    assert np.abs(by_differences).max() > 0.01
    assert np.abs(expected_gradient(SCORES, replacement) - by_differences).max() < 1e-5


@pytest.mark.parametrize("replacement", [True, False])
def test_the_same_holds_for_the_weights_and_the_bias_of_the_head(replacement):
    random = np.random.default_rng(4)
    question, candidates = random.normal(size=5), random.normal(size=(DOCS, 5))
    head = Head(random.normal(size=(3, 5)) * 0.3, random.normal(size=3))

    def reward(weight: np.ndarray, bias: np.ndarray) -> float:
        scores = (candidates @ weight.T + bias) @ (weight @ question + bias)
        return expected_reward(scores, replacement)

    by_scores = expected_gradient(head.scores(question, candidates), replacement)
    told = head.gradient(question, candidates, by_scores)
    by_weight = slope(lambda w: reward(w, head.bias), head.weight)
    by_bias = slope(lambda b: reward(head.weight, b), head.bias)
    assert min(np.abs(by_weight).max(), np.abs(by_bias).max()) > 0.01
    assert np.abs(told.weight - by_weight).max() < 1e-5
    assert np.abs(told.bias - by_bias).max() < 1e-5


def test_the_papers_form_is_biased_where_shots_are_drawn_without_replacement():
    # why the matching log-probability is the default: on the 12 rankings the other one is off
    rewards = {r: REWARDS[r] for r in permutations(range(DOCS), PICKS)}
    mixed = sum(
        probability(SCORES, r, replacement=False)
        * reward
        * log_probs(SCORES, np.array(r), replacement=True)[1].sum(axis=0)
        for r, reward in rewards.items()
    )
    exact = slope(lambda s: expected_reward(s, replacement=False), SCORES)
    assert np.abs(mixed - exact).max() > 0.01


@pytest.mark.parametrize("replacement", [True, False])
@given(scores=st.lists(st.floats(-30, 30), min_size=2, max_size=6).map(np.array), data=st.data())
def test_each_picks_gradient_is_the_slope_of_its_log_probability(replacement, scores, data):
    picks = np.array(data.draw(st.permutations(range(len(scores))))[:3])
    _, told = log_probs(scores, picks, replacement=replacement)
    for i in range(len(picks)):
        by_differences = slope(
            lambda s, i=i: log_probs(s, picks, replacement=replacement)[0][i], scores, 1e-4
        )
        assert told[i] == pytest.approx(by_differences, abs=1e-5)
        assert told[i].sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("replacement", [True, False])
def test_scores_of_a_thousand_overflow_nowhere(replacement):
    scores = np.array([1000.0, -1000.0, 999.0])
    told, slopes = log_probs(scores, np.array([0, 1]), replacement=replacement)
    assert np.isfinite(told).all()
    assert np.isfinite(slopes).all()
    assert told[0] == pytest.approx(-np.log1p(np.exp(-1.0)))


def test_draws_have_the_plackett_luce_distribution():
    random = np.random.default_rng(0)
    draws = 60_000
    counts = dict.fromkeys(rankings(replacement=False), 0)
    for _ in range(draws):
        counts[tuple(draw(SCORES, PICKS, random).tolist())] += 1
    expected = [draws * probability(SCORES, r, replacement=False) for r in counts]
    assert chisquare(list(counts.values()), expected).pvalue > 0.01
    even = [draws / len(counts)] * len(counts)
    assert chisquare(list(counts.values()), even).pvalue < 1e-6


def test_a_draw_of_all_is_a_permutation_and_of_none_is_empty():
    random = np.random.default_rng(0)
    assert sorted(draw(SCORES, DOCS, random)) == [0, 1, 2, 3]
    assert sorted(draw(SCORES, 99, random)) == [0, 1, 2, 3]
    assert draw(SCORES, 0, random).tolist() == []


def test_of_equal_scores_the_first_comes_first():
    assert top(np.array([1.0, 3.0, 3.0, 2.0, 3.0]), 4).tolist() == [1, 2, 4, 3]


def test_drawn_above_the_threshold_or_cut_there():
    scores, random = np.log([0.4, 0.3, 0.2, 0.1]), np.random.default_rng(0)
    free = {"shots": 2, "least_shots": None, "budget": None}

    def often(**settings) -> dict[tuple, float]:
        wanted = DURSettings(**free, **settings)
        found = Counter(
            tuple(chosen_shots([scores], 0.25, wanted, random)[0].tolist()) for _ in range(4000)
        )
        return {picks: count / 4000 for picks, count in found.items()}

    # by hand: 0.4 and 0.3 are above; of two that are drawn of all four, those two stay
    assert often(exploration="above") == pytest.approx({(0, 1): 4 / 7, (1, 0): 3 / 7}, abs=0.03)
    pair = {(0, 1): 0.4 * 0.3 / 0.6, (1, 0): 0.3 * 0.4 / 0.7, (): 0.2 * 0.1 / 0.8 + 0.1 * 0.2 / 0.9}
    alone = {
        (i,): p * 0.3 / (1 - p) + 0.2 * p / 0.8 + 0.1 * p / 0.9 for i, p in [(0, 0.4), (1, 0.3)]
    }
    assert often(exploration="cut") == pytest.approx(pair | alone, abs=0.03)
    assert set(often(exploration="top")) == {(0, 1)}
    assert max(map(max, often(exploration="sample"))) == 3
