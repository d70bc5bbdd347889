r"""The ranking policy: from scores to the probability of a ranking, and its gradient.

Two forms of the same policy :math:`\pi(e) \propto \exp s(e)` (eq. 4):

- with replacement, as the paper's loss has it: each pick has the probability of the full
  softmax, :math:`\log p(r) = \sum_i \log \pi(r_i)` (eq. 9);
- without replacement, as shots are in fact drawn (Plackett-Luce):
  :math:`\log p(r) = \sum_i [s_{r_i} - \log \sum_{j \notin r_{<i}} e^{s_j}]`.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 4, 5, 9;
    Plackett, "The Analysis of Permutations", Applied Statistics 1975.
"""

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
