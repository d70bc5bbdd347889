r"""How many shots a question is asked with: the threshold sigma.

.. math::
    k_i = \min(K, |\{e \in C'_i : S(e) > \sigma\}|) \quad (6), \qquad
    \sigma = \max_{e \in E^{k_i} - E^{j-1}} S(e) \quad (10)

sigma moves when an answer turns from right to wrong at shot j. Left to itself it can rise
until nothing is asked any more, so that learning ends: `bounded` keeps it where the questions
of a batch still get a least number of shots, and can hold their cost under a bound.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 6, 10 and section 6.5.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def shots_above(scores: Float[np.ndarray, " docs"], sigma: float, most: int) -> int:
    """k_i: how many of the scores, each in [0, 1], are above sigma; `most` at most (eq. 6)."""
    return min(most, int((scores > sigma).sum()))


def turns(right: Sequence[bool]) -> list[int]:
    """The shots that turned the answer from right to wrong, counted from 1."""
    return [j for j in range(1, len(right)) if right[j - 1] and not right[j]]


def turn(right: Sequence[bool]) -> int | None:
    """The first of the turns; None: there is none."""
    return next(iter(turns(right)), None)


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
