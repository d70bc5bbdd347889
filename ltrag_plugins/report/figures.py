"""The pictures of an evaluation: accuracy against cost, gates (after Li et al., ACL 2024),
and what probabilities promised (Guo et al., ICML 2017, figure 1).

With a gate's scores on record, and each question answered both ways, every other threshold can be
tried without asking the model again.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, compress
from typing import Any

import numpy as np
from jaxtyping import Float

from ltrag_plugins.evaluate.folder import Run
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.spec import LOWER_IS_BETTER, CellName, direct_of
from ltrag_plugins.evaluate.summary import Row, Summary
from ltrag_plugins.metrics.calibration import Reliability, auroc, bootstrap_interval
from ltrag_plugins.report import plots
from ltrag_plugins.report.dur_figures import training_pictures
from ltrag_plugins.report.escaping import slug, visible
from ltrag_plugins.report.sgic_figures import round_pictures

_COSTS = {
    "calls": ("model calls", "model calls a question"),
    "retrievals": ("searches", "searches a question"),
    "tokens": ("tokens", "tokens a question"),
    "ms": ("time", "milliseconds a question"),
}
_CROWD = 12  # so many ways find room for a name each in one picture
_LOG_FROM = 20  # times the smallest cost; less fits a linear axis


@plots.styled()
def pictures(run: Run, summary: Summary) -> dict[str, list[plots.Picture]]:
    """All that can be drawn, by section: cost, gates, calibration, rounds, training."""
    records, metric = run.complete, run.metric
    known = [name for name in _COSTS if all(row.costs[name] is not None for row in summary.rows)]
    gated = [name for name, some in records.items() if any(map(_scored, some))]
    gates, promises = [_rate(name, records, metric) for name in gated], []
    direct, first_of_each = records.get(direct_of(records) or ""), {}
    for name in gated:
        first_of_each.setdefault(CellName.parse(name).gate, name)
    for gate, name in first_of_each.items() if direct is not None else ():
        pairs = zip(records[name], direct or (), strict=True)
        both = [(_scored(one), other.right(metric)) for one, other in pairs]
        found = [(decision, right) for decision, right in both if decision]
        gates.append(_scores(gate, found))
        said = [(decision["probability"], not right) for decision, right in found]
        if CellName.parse(name).has_probability:
            promises.append(_promise(gate or "gate", "P(direct answer fails), says the gate", said))
    # behind a gate, the uncertainty is the gate's on one branch and the method's on the other
    for name, some in records.items():
        said = [(r.uncertainty, not r.right(metric)) for r in some if r.uncertainty is not None]
        if said and name not in gated:
            promises.append(_promise(name, "uncertainty of the answer, 0 to 100 %", said))
    return {
        "cost": [_cost(summary, metric, name) for name in known],
        "gates": gates,
        "calibration": promises,
        "rounds": round_pictures(run.path, records),
        "training": training_pictures(run.path, records),
    }


def _cost(summary: Summary, metric: str, cost: str) -> plots.Picture:
    """Mean of a measure against a mean cost; in a crowd the best for their cost are named."""
    rows = summary.rows
    figure, [axes] = plots.canvas(size=plots.LARGE)
    named = rows if len(rows) <= _CROWD else _best_for_cost(rows, metric, cost)
    points = [(float(row.costs[cost] or 0), row.scores[metric].value) for row in rows]
    for row, (x, y) in zip(rows, points, strict=True):
        if row in named:
            plots.whiskers(axes, x, row.scores[metric])
        colour, mark = (plots.ORANGE, "D") if "+" in row.name else (plots.BLUE, "o")
        axes.plot(x, y, mark, color=colour, markeredgecolor=plots.PAPER, zorder=3)
    axes.plot([], [], "o", color=plots.BLUE, label="no gate in front")
    axes.plot([], [], "D", color=plots.ORANGE, label="behind a gate")
    least, most = min(points)[0], max(points)[0]
    if least > 0 and most / least > _LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(plots.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")  # no formula: see style
        axes.xaxis.set_minor_formatter(plots.ticker.NullFormatter())
        axes.margins(x=0.15)
    else:
        axes.set_xlim(-0.06 * (most or 1), 1.15 * (most or 1))
    axes.set(xlabel=_COSTS[cost][1], ylabel=f"{metric}, mean")
    axes.margins(y=0.14)
    if any("+" in row.name for row in rows):
        figure.legend(loc="outside upper left", ncols=2)
    kept = [row in named for row in rows]
    names = [_short(row.name) for row in compress(rows, kept)]
    others = compress(points, [not one for one in kept])
    plots.label_points(axes, [*compress(points, kept)], names, others)
    crowd = " Named: what nothing cheaper matches." if len(rows) > _CROWD else ""
    told = f"{'Down' if metric in LOWER_IS_BETTER else 'Up'} and to the left is better.{crowd}"
    told += f" Whiskers: {plots.percent(summary.level)} intervals of the mean."
    return plots.Picture(f"cost-{cost}", f"Accuracy against {_COSTS[cost][0]}", told, figure)


def _best_for_cost(rows: Sequence[Row], metric: str, cost: str) -> list[Row]:
    """Rows better than all that cost as much or less (of equals the first), cheapest first."""
    sign = 1 if metric in LOWER_IS_BETTER else -1
    ranked = [(float(row.costs[cost] or 0), sign * row.scores[metric].value, row) for row in rows]
    ranked.sort(key=lambda one: one[:2])
    best = [np.inf, *accumulate((loss for _, loss, _ in ranked), min)]
    return [row for (_, loss, row), before in zip(ranked, best, strict=False) if loss < before]


def _rate(name: str, records: Mapping[str, Sequence[Record]], metric: str) -> plots.Picture:
    """A method behind a gate, between never and always, and methods that are gates
    themselves; all on the questions that the gate decided."""
    known = [i for i, record in enumerate(records[name]) if _scored(record)]
    cells = {"gate": name, "never": direct_of(records), "always": CellName.parse(name).alone}
    cells |= {other: other for other in records if CellName.parse(other).is_gate}
    ways = {
        way: [records[cell][i] for i in known] for way, cell in cells.items() if cell in records
    }
    shares = {way: _searched(some) for way, some in ways.items()} | {"never": np.zeros(len(known))}
    retrieve = np.array([bool((one.decision or {})["retrieve"]) for one in ways["gate"]])
    shares["gate"] = retrieve * shares.get("always", np.ones(len(known)))
    figure, [axes] = plots.canvas()
    told = f"{plots.percent(shares['gate'].mean())} of the questions retrieve behind the gate."
    covered: list[Any] = []  # names leave the curve and the line of chance uncovered
    if "never" in ways and "always" in ways:
        told += " The line: every other threshold, tried on the records."
        curve = _thresholds(ways["gate"], ways["always"], ways["never"], metric)
        axes.plot(*curve.T, color=plots.ORANGE, label="every threshold", zorder=2)
        ends = curve[[0, -1]]
        axes.plot(*ends.T, "--", color=plots.QUIET, label="by chance")
        covered = [*curve[:: 1 + len(curve) // 100], *np.linspace(ends[0], ends[1], 51)]
    if left := len(records[name]) - len(known):
        told += f" Without {left} of {len(records[name])} questions, on which the gate failed."
    points = {}
    for way, some in ways.items():
        x, found = float(shares[way].mean()), bootstrap_interval(_values(some, metric))
        points[way] = x, found.value
        mark, colour = ("o", plots.BLUE) if way in ("never", "always") else ("s", plots.QUIET)
        mark, colour = ("D", plots.ORANGE) if way == "gate" else (mark, colour)
        plots.whiskers(axes, x, found)
        style: Any = {"markeredgecolor": plots.PAPER, "zorder": 4, "clip_on": False}
        axes.plot(x, found.value, mark, color=colour, **style)
    axes.set(xlim=(-0.04, 1.04), xlabel="questions that retrieve", ylabel=f"{metric}, mean")
    plots.as_percent(axes.xaxis)
    axes.margins(y=0.2)
    if covered:
        figure.legend(loc="outside upper left", ncols=2)
    plots.label_points(axes, list(points.values()), list(map(_short, points)), covered)
    return plots.Picture(f"rate-{slug(name)}", visible(name), told, figure)


def _thresholds(
    gated: Sequence[Record], always: Sequence[Record], never: Sequence[Record], metric: str
) -> Float[np.ndarray, "thresholds 2"]:
    """(share that searches, accuracy) of every threshold, never to always, of decided questions."""
    scores = np.array([(record.decision or {})["score"] for record in gated])
    order = np.argsort(-scores, kind="stable")
    without, with_ = _values(never, metric)[order], _values(always, metric)[order]
    changes = np.concatenate([[0.0], np.cumsum(with_ - without)])
    searches = np.concatenate([[0.0], np.cumsum(_searched(always)[order])])
    ends = [0, *(np.flatnonzero(np.diff(scores[order])) + 1).tolist(), len(gated)]
    return np.array([searches[ends] / len(gated), (without.sum() + changes[ends]) / len(gated)]).T


def _scores(gate: str, found: Sequence[tuple[Mapping[str, Any], bool]]) -> plots.Picture:
    """Scores of a gate where the direct answer was right, and where it was wrong."""
    scores, retrieve = (np.array([d[n] for d, _ in found]) for n in ("score", "retrieve"))
    right = np.array([right for _, right in found])
    told = "Does a larger score find the questions that the model gets wrong alone?"
    if 0 < right.sum() < len(right):
        told += f" AUROC {auroc(scores, ~right):.2f} (0.5: chance, 1: perfect)."
    figure, [axes] = plots.canvas()
    # alike but for rounding: NumPy finds no room for bins between them
    alike = np.ptp(scores) <= 1e-9 * np.abs(scores).max()
    edges = np.histogram_bin_edges(scores[:1] if alike else scores, bins=20)
    for name, kind in {"right": right, "wrong": ~right}.items():
        if kind.any():
            shares = np.histogram(scores[kind], edges)[0] / kind.sum()
            label, bad = f"direct answer {name}: {kind.sum()}", name == "wrong"
            plots.hatched(axes, shares.tolist(), edges.tolist(), bad, label)
    below, above = scores[~retrieve], scores[retrieve]
    if below.size and above.size and below.max() < above.min():
        threshold = (below.max() + above.min()) / 2
        axes.axvline(threshold, color=plots.INK, linewidth=1.3, linestyle="--", label="threshold")
    axes.set(xlabel="gate score (larger: rather retrieve)", ylabel="share of each kind")
    plots.as_percent(axes.yaxis)
    figure.legend(loc="outside upper left", ncols=2)
    title = f"Scores of the gate {visible(gate)}".rstrip()
    return plots.Picture(f"scores-{slug(gate or 'gate')}", title, told, figure)


def _promise(name: str, what: str, said: Sequence[tuple[Any, bool]]) -> plots.Picture:
    """Probabilities of being wrong, held against what came true (Guo et al., figure 1)."""
    found = Reliability.of([p for p, _ in said], [wrong for _, wrong in said])
    told = f"How often were answers wrong, by {what}? ECE {found.ece:.3f}, "
    told += f"Brier {found.brier:.3f} (0 is best), {len(said)} answers."
    figure, title = plots.reliability_figure(found, what), f"{visible(name)}: said, and true"
    return plots.Picture(f"reliability-{slug(name)}", title, told, figure)


def _scored(record: Record) -> Mapping[str, Any] | None:
    """A gate's decision by a score; there is none where its model failed."""
    decision = record.decision
    return decision if decision and decision["score"] is not None else None


def _searched(records: Sequence[Record]) -> Float[np.ndarray, " n"]:
    """1 for a question that searched; also for one that failed, of which nobody knows."""
    return np.array([float(r.retrievals > 0 or r.error is not None) for r in records])


def _values(records: Sequence[Record], metric: str) -> Float[np.ndarray, " n"]:
    return np.array([record.scores[metric] for record in records])


def _short(name: str) -> str:
    """The name beside a point: a long one is cut in the middle."""
    text = visible(name)
    return text if len(text) <= 24 else f"{text[:11]}…{text[-11:]}"
