"""The pictures of an evaluation: accuracy against cost, gates, and what probabilities promised.

References:
    Li et al., ACL 2024 (GECE), figures 4 and 5; Guo et al., ICML 2017, figure 1.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.evaluate.spec import LOWER_IS_BETTER
from ltrag_plugins.evaluate.summary import Row, Summary
from ltrag_plugins.report.dur_figures import training_pictures
from ltrag_plugins.report.escaping import slug, visible
from ltrag_plugins.report.gates import (
    GatedCell,
    GateScores,
    Promise,
    gate_scores,
    gated_cells,
    reliabilities,
)
from ltrag_plugins.report.plots import (
    BLUE,
    INK,
    LARGE,
    ORANGE,
    QUIET,
    Picture,
    as_percent,
    canvas,
    hatched,
    label_points,
    reliability_figure,
    saved,
    whiskers,
)
from ltrag_plugins.report.reading import Run
from ltrag_plugins.report.sgic_figures import round_pictures

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter
except ImportError as error:
    raise missing_extra("matplotlib", "plots") from error

_COSTS = {
    "calls": ("model calls", "model calls a question"),
    "retrievals": ("searches", "searches a question"),
    "tokens": ("tokens", "tokens a question"),
    "ms": ("time", "milliseconds a question"),
}
_CROWD = 12
"""So many ways find room for a name each in one picture."""
_LOG_FROM = 20
"""Times the smallest cost; less fits a linear axis."""


def pictures(run: Run, summary: Summary) -> Mapping[str, Sequence[Picture]]:
    """All that can be drawn, by section: cost, gates, calibration, rounds, training."""
    records, metric = run.complete, run.metric
    known = [name for name in _COSTS if all(row.costs[name] is not None for row in summary.rows)]
    gates = [_rate(cell, metric) for cell in gated_cells(records, metric)]
    gates += [_scores(found) for found in gate_scores(records, metric)]
    return {
        "cost": [_cost(summary, metric, name) for name in known],
        "gates": gates,
        "calibration": [_reliability(found) for found in reliabilities(records, metric)],
        "rounds": round_pictures(run.path, records),
        "training": training_pictures(run.path, records),
    }


def _drawn(figure: Callable[..., Figure], *parts: Any) -> Callable[[Path], Path]:
    return lambda path: saved(figure(*parts), path)


def _cost(summary: Summary, metric: str, cost: str) -> Picture:
    up = "Down" if metric in LOWER_IS_BETTER else "Up"
    named = " Named: what nothing cheaper matches." if len(summary.rows) > _CROWD else ""
    return Picture(
        f"cost-{cost}",
        f"Accuracy against {_COSTS[cost][0]}",
        f"{up} and to the left is better.{named} Whiskers: {summary.level:.0%} intervals of the"
        " mean.",
        _drawn(cost_figure, summary.rows, metric, cost),
    )


def _rate(cell: GatedCell, metric: str) -> Picture:
    told = f"{cell.rate:.0%} of the questions retrieve behind the gate."
    if cell.curve:
        told += " The line: every other threshold, tried on the records."
    return Picture(
        f"rate-{slug(cell.name)}",
        visible(cell.name),
        told,
        _drawn(rate_figure, cell, metric),
    )


def _scores(found: GateScores) -> Picture:
    area = "" if found.auroc is None else f" AUROC {found.auroc:.2f} (0.5: chance, 1: perfect)."
    return Picture(
        f"scores-{slug(found.gate or 'gate')}",
        f"Scores of the gate {visible(found.gate)}".rstrip(),
        f"Does a larger score find the questions that the model gets wrong alone?{area}",
        _drawn(_scores_figure, found),
    )


def _reliability(found: Promise) -> Picture:
    figures = found.reliability
    return Picture(
        f"reliability-{slug(found.name)}",
        f"{visible(found.name)}: said, and true",
        f"How often were answers wrong, by {found.what}? ECE {figures.ece:.3f}, "
        f"Brier {figures.brier:.3f} (0 is best), {figures.count} answers.",
        _drawn(reliability_figure, figures, found.what),
    )


def cost_figure(rows: Sequence[Row], metric: str, cost: str) -> Figure:
    """Mean of a measure against a mean cost, with name and interval of those that are told."""
    figure, [axes] = canvas(size=LARGE)
    told = {row.name for row in _named_rows(rows, metric, cost)}
    points = {}
    for row in rows:
        score, x = row.scores[metric], float(row.costs[cost] or 0)
        colour, mark = (ORANGE, "D") if "+" in row.name else (BLUE, "o")
        if row.name in told:
            whiskers(axes, x, score.value, score.low, score.high)
        axes.plot(x, score.value, mark, color=colour, markeredgecolor="#ffffff", zorder=3)
        points[row.name] = (x, score.value)
    axes.plot([], [], "o", color=BLUE, label="without a gate")
    axes.plot([], [], "D", color=ORANGE, label="behind a gate")
    costs = [x for x, _ in points.values()]
    if min(costs) > 0 and max(costs) / min(costs) > _LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")  # no formula: see style
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.15)
    else:
        axes.set_xlim(-0.06 * (max(costs) or 1), 1.15 * (max(costs) or 1))
    axes.set_xlabel(_COSTS[cost][1])
    axes.set_ylabel(f"{metric}, mean")
    axes.margins(y=0.14)
    if any("+" in row.name for row in rows):
        figure.legend(loc="outside upper left", ncols=2)
    others = [point for name, point in points.items() if name not in told]
    named = {name: point for name, point in points.items() if name in told}
    label_points(axes, list(named.values()), [visible(name) for name in named], others)
    return figure


def rate_figure(cell: GatedCell, metric: str) -> Figure:
    """Accuracy against the share of questions that retrieve (GECE, figure 4)."""
    figure, [axes] = canvas()
    points, names = [(cell.rate, cell.accuracy.value)], ["gate"]
    if cell.curve:
        rates, accuracies = zip(*cell.curve, strict=True)
        axes.plot(rates, accuracies, color=ORANGE, label="every threshold", zorder=2)
    if cell.never is not None and cell.always is not None:
        axes.plot(
            [0, cell.always_rate], [cell.never, cell.always], "--", color=QUIET, label="by chance"
        )
    ends = ((0.0, cell.never, "never"), (cell.always_rate, cell.always, "always"))
    for x, y, name in ends:
        if y is not None:
            axes.plot(x, y, "o", color=BLUE, zorder=3, clip_on=False)
            points.append((x, y))
            names.append(name)
    for name, rate, accuracy in cell.others:
        axes.plot(rate, accuracy, "s", color=QUIET, zorder=3, clip_on=False)
        points.append((rate, accuracy))
        names.append(visible(name))
    value = cell.accuracy
    whiskers(axes, cell.rate, value.value, value.low, value.high)
    axes.plot(cell.rate, value.value, "D", color=ORANGE, markeredgecolor="#ffffff", zorder=4)
    axes.set_xlim(-0.04, 1.04)
    as_percent(axes.xaxis)
    axes.set_xlabel("questions that retrieve")
    axes.set_ylabel(f"{metric}, mean")
    axes.margins(y=0.2)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper left", ncols=2)
    # the names leave the curve and the line of chance uncovered
    covered = list(cell.curve[:: 1 + len(cell.curve) // 100])
    if cell.never is not None and cell.always is not None:
        gain = cell.always - cell.never
        covered += [(cell.always_rate * i / 50, cell.never + gain * i / 50) for i in range(51)]
    label_points(axes, points, names, covered)
    return figure


def _scores_figure(found: GateScores) -> Figure:
    """Gate scores of questions that the direct answer got right, and wrong."""
    figure, [axes] = canvas()
    edges = np.histogram_bin_edges([*found.right, *found.wrong], bins=20)
    for name, scores, bad in (("right", found.right, False), ("wrong", found.wrong, True)):
        if scores:
            shares = np.histogram(scores, edges)[0] / len(scores)
            label = f"direct answer {name}: {len(scores)}"
            hatched(axes, shares.tolist(), edges.tolist(), bad=bad, label=label)
    if found.threshold is not None:
        axes.axvline(found.threshold, color=INK, linewidth=1.3, linestyle="--", label="threshold")
    axes.set_xlabel("gate score (larger: rather retrieve)")
    axes.set_ylabel("share of each kind")
    as_percent(axes.yaxis)
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def best_for_cost(rows: Sequence[Row], metric: str, cost: str) -> list[Row]:
    """Rows better than all that cost as much or less (of equals the first), cheapest first."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    ranked = sorted(
        rows, key=lambda row: (float(row.costs[cost] or 0), -sign * row.scores[metric].value)
    )
    found: list[Row] = []
    for row in ranked:
        if not found or sign * (row.scores[metric].value - found[-1].scores[metric].value) > 0:
            found.append(row)
    return found


def _named_rows(rows: Sequence[Row], metric: str, cost: str) -> Sequence[Row]:
    """Those to name in a picture: all, or in a crowd the best for their cost."""
    return rows if len(rows) <= _CROWD else best_for_cost(rows, metric, cost)
