"""Which ways to answer are worth their cost."""

from collections.abc import Sequence

from ltrag_plugins.evaluate.metrics import LOWER_IS_BETTER
from ltrag_plugins.evaluate.summary import Row

CROWD = 12
"""So many ways find room for a name each in one picture."""


def best_for_cost(rows: Sequence[Row], metric: str, cost: str) -> list[Row]:
    """Rows better than all that cost as much or less (of equals the first), cheapest first."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    ranked = sorted(rows, key=lambda row: (_cost(row, cost), -sign * row.scores[metric].value))
    found: list[Row] = []
    for row in ranked:
        if not found or sign * (row.scores[metric].value - found[-1].scores[metric].value) > 0:
            found.append(row)
    return found


def told_rows(rows: Sequence[Row], metric: str, cost: str) -> Sequence[Row]:
    """Those to name in a picture: all, or in a crowd the best for their cost."""
    return rows if len(rows) <= CROWD else best_for_cost(rows, metric, cost)


def _cost(row: Row, cost: str) -> float:
    return float(row.costs[cost] or 0)
