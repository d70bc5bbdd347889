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
until nothing is asked any more: `shot_counts` holds it within a floor and a bound on the cost.

Source: Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 4-7, 9, 10 and section 6.5;
Plackett, "The Analysis of Permutations", Applied Statistics 1975.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.calibration import log_softmax, softmax
from ltrag_plugins.dur.settings import DURSettings

_Scores = Float[np.ndarray, " docs"]
_Picks = Int[np.ndarray, " picks"]


def log_probs(
    scores: _Scores, ranking: _Picks, *, replacement: bool
) -> tuple[Float[np.ndarray, " picks"], Float[np.ndarray, "picks docs"]]:
    """Log-probability of each pick given the picks before it, and its gradient by the scores."""
    found, slopes = np.zeros(len(ranking)), np.zeros((len(ranking), len(scores)))
    left = np.ones(len(scores), dtype=bool)
    for i, pick in enumerate(ranking):
        chances = log_softmax(np.where(left, scores, -np.inf))
        found[i] = chances[pick]
        slopes[i] = -np.exp(chances)
        slopes[i, pick] += 1.0
        left[pick] = replacement
    return found, slopes


def top(scores: _Scores, k: int) -> _Picks:
    """The `k` best, best first; of equal scores the first comes first (eq. 5, 7)."""
    return np.argsort(-scores, kind="stable")[:k]


def draw(scores: _Scores, k: int, random: np.random.Generator) -> _Picks:
    """`k` drawn one after the other without replacement, each by softmax of what is left."""
    # so draws Gumbel noise: Yellott, Journal of Mathematical Psychology 1977
    return top(scores + random.gumbel(size=len(scores)), k)


def chosen_shots(
    scores: Sequence[_Scores], sigma: float, settings: DURSettings, random: np.random.Generator
) -> list[_Picks]:
    """The shots of each question's ladder, first to last."""
    shares = [softmax(row) for row in scores]
    counts, sigma = shot_counts(shares, sigma, settings)
    picks: list[_Picks] = []
    for row, share, k in zip(scores, shares, counts, strict=True):
        if settings.exploration == "top":
            picks.append(top(row, k))
        elif settings.exploration == "cut":
            drawn = draw(row, settings.shots, random)
            picks.append(drawn[share[drawn] > sigma])
        else:
            above = settings.exploration == "above"
            picks.append(draw(np.where(share > sigma, row, -np.inf) if above else row, k, random))
    return picks


def shot_counts(
    scores: Sequence[Float[np.ndarray, " _docs"]], sigma: float, settings: DURSettings
) -> tuple[list[int], float]:
    """k_i of each question of a batch, by the S of its candidates (eq. 6), and the threshold that
    gives them: the nearest to `sigma` within `budget` and, before that, `least_shots`."""
    leading = [np.sort(row)[::-1][: settings.shots] for row in scores]
    levels = np.unique(np.concatenate([[0.0, sigma], *leading]))

    def counts(level: float) -> list[int]:
        return [int((row > level).sum()) for row in leading]

    def cost(level: float) -> int:
        last = settings.rungs == "last"
        return sum(k if last else k * (k + 1) // 2 for k in counts(level))

    if settings.budget is not None:
        most = settings.budget * settings.shots * len(scores)
        # from that level up, all are affordable; above the largest score nothing is asked
        sigma = max(sigma, next(level for level in levels if cost(level) <= most))
    if settings.least_shots is not None:
        reach = min(settings.least_shots, np.mean(counts(0.0)))
        if np.mean(counts(sigma)) < reach:
            sigma = max(level for level in levels if np.mean(counts(level)) >= reach)
    return counts(sigma), float(sigma)
