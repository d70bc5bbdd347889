"""Which pictures a run has, by section of the page.

Which ways to answer are worth their cost.

The pictures of an evaluation: accuracy against cost, gates, and what probabilities promised.

References:
    Li et al., ACL 2024 (GECE), figures 4 and 5; Guo et al., ICML 2017, figure 1.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.evaluate.spec import LOWER_IS_BETTER
from ltrag_plugins.evaluate.summary import Row, Summary
from ltrag_plugins.report import figures as drawing
from ltrag_plugins.report.dur_figures import training_pictures
from ltrag_plugins.report.escaping import slug, visible
from ltrag_plugins.report.gates import (
    GatedCell,
    GateScores,
    Reliability,
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
    canvas,
    label_points,
)
from ltrag_plugins.report.reading import Run
from ltrag_plugins.report.sgic_figures import round_pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


COSTS = {"calls": "model calls", "retrievals": "searches", "tokens": "tokens", "ms": "time"}


def pictures(run: Run, summary: Summary) -> Mapping[str, Sequence[Picture]]:
    """All that can be drawn, by section: cost, gates, calibration, rounds, training."""
    records, metric = run.complete, run.metric
    gates = [_rate(cell, metric) for cell in gated_cells(records, metric)]
    gates += [_scores(found) for found in gate_scores(records, metric)]
    return {
        "cost": [_cost_pictures(summary, metric, name) for name in COSTS if _known(summary, name)],
        "gates": gates,
        "calibration": [_reliability(found) for found in reliabilities(records, metric)],
        "rounds": round_pictures(run.path, records),
        "training": training_pictures(run.path, records),
    }


def save_all(found: Iterable[Picture], folder: Path) -> list[Path]:
    """Each as PNG and SVG.

    Raises:
        OSError: the folder cannot be written to.
    """
    return [path for picture in found for path in picture.save(folder)]


def _known(summary: Summary, cost: str) -> bool:
    return all(row.costs[cost] is not None for row in summary.rows)


def _cost_pictures(summary: Summary, metric: str, cost: str) -> Picture:
    up = "Down" if metric in LOWER_IS_BETTER else "Up"
    named = " Named: what nothing cheaper matches." if len(summary.rows) > CROWD else ""
    return Picture(
        f"cost-{cost}",
        f"Accuracy against {COSTS[cost]}",
        f"{up} and to the left is better.{named} Whiskers: {summary.level:.0%} intervals of the"
        " mean.",
        _drawn(drawing.cost_figure, summary.rows, metric, cost),
    )


def _rate(cell: GatedCell, metric: str) -> Picture:
    told = f"{cell.rate:.0%} of the questions retrieve behind the gate."
    if cell.curve:
        told += " The line: every other threshold, tried on the records."
    return Picture(
        f"rate-{slug(cell.name)}",
        visible(cell.name),
        told,
        _drawn(drawing.rate_figure, cell, metric),
    )


def _scores(found: GateScores) -> Picture:
    area = "" if found.auroc is None else f" AUROC {found.auroc:.2f} (0.5: chance, 1: perfect)."
    return Picture(
        f"scores-{slug(found.gate or 'gate')}",
        f"Scores of the gate {visible(found.gate)}".rstrip(),
        f"Does a larger score find the questions that the model gets wrong alone?{area}",
        _drawn(drawing.scores_figure, found),
    )


def _reliability(found: Reliability) -> Picture:
    return Picture(
        f"reliability-{slug(found.name)}",
        f"{visible(found.name)}: said, and true",
        f"How often were answers wrong, by {found.what}? ECE {found.ece:.3f}, "
        f"Brier {found.brier:.3f} (0 is best), {found.answers} answers.",
        _drawn(drawing.reliability_figure, found),
    )


def _drawn(figure: "Callable[..., Figure]", *parts: Any) -> Callable[[Path], Any]:
    def draw(path: Path) -> None:
        undated = {"Date": None} if path.suffix == ".svg" else None
        figure(*parts).savefig(path, metadata=undated)

    return draw


try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter
except ImportError as error:
    raise missing_extra("matplotlib", "report") from error

UNITS = {
    "calls": "model calls a question",
    "retrievals": "searches a question",
    "tokens": "tokens a question",
    "ms": "milliseconds a question",
}
_LOG_FROM = 20  # times the smallest cost; less fits a linear axis


def cost_figure(rows: Sequence[Row], metric: str, cost: str) -> Figure:
    """Mean of a measure against a mean cost, with name and interval of those that are told."""
    figure, [axes] = canvas(LARGE)
    told = {row.name for row in told_rows(rows, metric, cost)}
    points = {}
    for row in rows:
        score, x = row.scores[metric], float(row.costs[cost] or 0)
        colour, mark = (ORANGE, "D") if "+" in row.name else (BLUE, "o")
        if row.name in told:
            _whiskers(axes, x, score.value, score.low, score.high)
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
    axes.set_xlabel(UNITS[cost])
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
    _whiskers(axes, cell.rate, value.value, value.low, value.high)
    axes.plot(cell.rate, value.value, "D", color=ORANGE, markeredgecolor="#ffffff", zorder=4)
    axes.set_xlim(-0.04, 1.04)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("questions that retrieve")
    axes.set_ylabel(f"{metric}, mean")
    axes.margins(y=0.2)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper left", ncols=2)
    label_points(axes, points, names, [*_thinned(cell), *_between(cell)])
    return figure


def _thinned(cell: GatedCell) -> Sequence[tuple[float, float]]:
    return cell.curve[:: 1 + len(cell.curve) // 100]


def _between(cell: GatedCell) -> list[tuple[float, float]]:
    """Points on the line from never to always."""
    if cell.never is None or cell.always is None:
        return []
    return [
        (cell.always_rate * i / 50, cell.never + (cell.always - cell.never) * i / 50)
        for i in range(51)
    ]


def scores_figure(found: GateScores) -> Figure:
    """Gate scores of questions that the direct answer got right, and wrong."""
    figure, [axes] = canvas()
    values = [*found.right, *found.wrong]
    low, high = min(values), max(values)
    width = (high - low) / 20 or 1.0
    edges = [low + width * i for i in range(21)]
    kinds = (("right", found.right, BLUE, ""), ("wrong", found.wrong, ORANGE, "////"))
    for name, scores, colour, hatch in kinds:
        if scores:
            told = f"direct answer {name}: {len(scores)}"
            shares = _shares(scores, low, width)
            axes.stairs(shares, edges, fill=True, facecolor=(colour, 0.28))
            # in SVG a fill that is half transparent would make its own hatching vanish
            axes.stairs(
                shares, edges, fill=True, facecolor="none", edgecolor=colour, hatch=hatch,
                linewidth=1.6, label=told,
            )  # fmt: skip
    if found.threshold is not None:
        axes.axvline(found.threshold, color=INK, linewidth=1.3, linestyle="--", label="threshold")
    axes.set_xlabel("gate score (larger: rather retrieve)")
    axes.set_ylabel("share of each kind")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def reliability_figure(found: Reliability) -> Figure:
    """Said and true shares of wrong answers, and how many answers stand behind each."""
    figure, [above, below] = canvas(heights=(2.4, 1))
    above.plot([0, 1], [0, 1], "--", color=QUIET, label="as promised")
    said, wrong = [one.said for one in found.bins], [one.wrong for one in found.bins]
    above.plot(said, wrong, "o-", color=ORANGE, label="this run", clip_on=False, zorder=3)
    above.set(xlim=(0, 1), ylim=(-0.02, 1.04), ylabel="wrong answers")
    above.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    below.bar(said, [one.count for one in found.bins], 0.05, color=BLUE)
    below.set_ylabel("answers")
    below.set_xlabel(found.what)
    below.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    below.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    figure.align_ylabels()
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def _whiskers(axes: Axes, x: float, value: float, low: float, high: float) -> None:
    spread = [[max(0.0, value - low)], [max(0.0, high - value)]]
    axes.errorbar([x], [value], yerr=spread, color=QUIET, elinewidth=1.3, capsize=3, zorder=1)


def _shares(scores: Sequence[float], low: float, width: float) -> list[float]:
    counts = [0] * 20
    for score in scores:
        counts[min(19, int((score - low) / width))] += 1
    return [count / len(scores) for count in counts]
