"""Pictures of many ways to answer: which are named, and what stands at their axes."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Annotation

from ltrag_plugins.evaluate.summary import Row, Summary
from ltrag_plugins.metrics.calibration import Interval
from ltrag_plugins.report.figures import _best_for_cost, pictures
from ltrag_plugins.report.plots import styled


def row(i: int, score: float, ms: float, metric: str = "f1") -> Row:
    return Row(
        name=f"way{i}", questions=10, scores={metric: Interval(score, score, score, 0.95)},
        gains={}, easy={}, hard={}, speed_up=None, failed=0,
        costs={"calls": 1.0, "retrievals": None, "tokens": None, "ms": ms},
    )  # fmt: skip


MOST_NAMED = 12
POINTS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=20)


@given(POINTS, st.sampled_from(["f1", "ter"]))
def test_named_are_those_that_nothing_as_cheap_matches(points, metric):
    rows = [row(i, score, ms, metric) for i, (score, ms) in enumerate(points)]
    sign = {"f1": 1, "ter": -1}[metric]

    ways = [(sign * score, -ms, -i) for i, (score, ms) in enumerate(points)]
    wanted = {f"way{i}" for i, way in enumerate(ways)
              if not any(one > way and one[1] >= way[1] for one in ways)}  # fmt: skip
    found = _best_for_cost(rows, metric, "ms")
    assert {one.name for one in found} == wanted
    costs = [one.costs["ms"] for one in found]
    assert costs == sorted(costs)


@pytest.mark.parametrize("count", [MOST_NAMED, MOST_NAMED + 1])
def test_a_crowd_names_the_best_for_their_cost_and_log_axes_have_plain_numbers(count, tmp_path):
    rows = [row(i, 0.5 if i == 1 else 0.1, 40.0 * 2**i) for i in range(count)]
    run = SimpleNamespace(complete={}, metric="f1", path=tmp_path)
    [calls, ms] = pictures(run, Summary(tuple(rows), "way0", 0.95))["cost"]
    assert (calls.name, ms.name) == ("cost-calls", "cost-ms")
    with styled():
        figure = ms.figure
        figure.canvas.draw()
    [axes] = figure.axes
    named = {one.get_text() for one in axes.get_children() if isinstance(one, Annotation)}
    assert named == ({f"way{i}" for i in range(count)} if count == MOST_NAMED else {"way0", "way1"})
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    values = [float(text.replace(",", "")) for text in ticks if text]
    assert values == list(axes.get_xticks())
    assert {100, 1000, 10000} <= set(np.round(values))
