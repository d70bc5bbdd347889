r"""The ranking policy: from scores to shots, their probability, and how many of them.

Two forms of the same policy :math:`\pi(e) \propto \exp s(e)` (eq. 4):

- with replacement, as the paper's loss has it: each pick has the probability of the full
  softmax, :math:`\log p(r) = \sum_i \log \pi(r_i)` (eq. 9);
- without replacement, as shots are in fact drawn (Plackett-Luce):
  :math:`\log p(r) = \sum_i [s_{r_i} - \log \sum_{j \notin r_{<i}} e^{s_j}]`.

The threshold sigma says how many shots a question is asked with:

.. math::
    k_i = \min(K, |\{e \in C'_i : S(e) > \sigma\}|) \quad (6), \qquad
    \sigma = \max_{e \in E^{k_i} - E^{j-1}} S(e) \quad (10)

sigma moves when an answer turns from right to wrong at shot j. Left to itself it can rise
until nothing is asked any more, and learning ends: `bounded` keeps it where the questions of a
batch still get a least number of shots, and can hold their cost under a bound.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 4-7, 9, 10 and section 6.5;
    Plackett, "The Analysis of Permutations", Applied Statistics 1975.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax, logsumexp


def log_probs(
    scores: Float[np.ndarray, " docs"], ranking: Int[np.ndarray, " picks"], *, replacement: bool
) -> Float[np.ndarray, " picks"]:
    """Log-probability of each pick, given the picks before it."""
    if replacement:
        return log_softmax(scores)[ranking]
    left = np.ones(len(scores), dtype=bool)
    found = np.zeros(len(ranking))
    for i, pick in enumerate(ranking):
        found[i] = scores[pick] - logsumexp(scores[left])
        left[pick] = False
    return found


def log_prob_gradients(
    scores: Float[np.ndarray, " docs"], ranking: Int[np.ndarray, " picks"], *, replacement: bool
) -> Float[np.ndarray, "picks docs"]:
    """Gradient of each pick's log-probability with respect to the scores."""
    found = np.zeros((len(ranking), len(scores)))
    left = np.ones(len(scores), dtype=bool)
    for i, pick in enumerate(ranking):
        found[i, left] = -np.exp(scores[left] - logsumexp(scores[left]))
        found[i, pick] += 1.0
        left[pick] = replacement
    return found


def top(scores: Float[np.ndarray, " docs"], k: int) -> Int[np.ndarray, " picks"]:
    """The `k` best, best first; of equal scores the first comes first (eq. 5, 7)."""
    return np.argsort(-scores, kind="stable")[:k]


def draw(
    scores: Float[np.ndarray, " docs"], k: int, random: np.random.Generator
) -> Int[np.ndarray, " picks"]:
    """`k` drawn one after the other without replacement, each by softmax of what is left.

    Adding Gumbel noise to the scores and sorting draws exactly so (Yellott, "The relationship
    between Luce's choice axiom, ...", Journal of Mathematical Psychology 1977).
    """
    return top(scores + random.gumbel(size=len(scores)), k)


def shots_above(scores: Float[np.ndarray, " docs"], sigma: float, most: int) -> int:
    """k_i: how many of the scores, each in [0, 1], are above sigma; `most` at most (eq. 6)."""
    return min(most, int((scores > sigma).sum()))


def shots_that_turn(right: Sequence[bool]) -> list[int]:
    """The shots that turned the answer from right to wrong, counted from 1."""
    return [j for j in range(1, len(right)) if right[j - 1] and not right[j]]


def turned_sigma(scores: Float[np.ndarray, " shots"], j: int) -> float:
    """The largest score among the shots j, ..., k of a ladder, counted from 1 (eq. 10)."""
    return float(scores[j - 1 :].max())


def ladder_cost(shots: int, *, last: bool = False) -> int:
    """Shots in all prompts of a ladder: 0 + 1 + ... + k; k where only the last rung is asked."""
    return shots if last else shots * (shots + 1) // 2


def bounded(
    sigma: float,
    scores: Sequence[Float[np.ndarray, " _docs"]],
    most: int,
    *,
    least_mean: float | None,
    most_cost: float | None,
    last: bool = False,
) -> float:
    """The threshold nearest to `sigma` that keeps within the bounds.

    Args:
        scores: of the candidates of each question of the batch.
        most: K.
        least_mean: shots a question that are left on average; goes before `most_cost`.
        most_cost: shots in all prompts of the batch together.
        last: whether only the last rung of each ladder is asked.
    """
    leading = [np.sort(row)[::-1][:most] for row in scores]
    levels = np.unique(np.concatenate([[0.0, sigma], *leading]))

    def counts(level: float) -> list[int]:
        return [int((row > level).sum()) for row in leading]

    def cost(level: float) -> int:
        return sum(ladder_cost(k, last=last) for k in counts(level))

    if most_cost is not None:
        # costs fall as the level rises
        affordable = [x for x in levels if cost(x) <= most_cost]
        sigma = max(sigma, affordable[0]) if affordable else float(levels[-1])
    if least_mean is not None:
        reach = min(least_mean, np.mean(counts(0.0)))
        if np.mean(counts(sigma)) < reach:
            sigma = float(max((x for x in levels if np.mean(counts(x)) >= reach), default=0.0))
    return float(sigma)
