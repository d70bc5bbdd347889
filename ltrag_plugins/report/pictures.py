"""Which pictures a run has, by section of the page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ltrag_plugins.evaluate.metrics import LOWER_IS_BETTER
from ltrag_plugins.evaluate.summary import Summary
from ltrag_plugins.report import drawing
from ltrag_plugins.report.costs import CROWD
from ltrag_plugins.report.gates import GatedCell, GateScores, gate_scores, gated_cells
from ltrag_plugins.report.picture import Picture
from ltrag_plugins.report.reading import Run
from ltrag_plugins.report.reliability import Reliability, reliabilities
from ltrag_plugins.report.rounds import round_pictures
from ltrag_plugins.report.training import training_pictures
from ltrag_plugins.report.words import slug, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSTS = {"calls": "model calls", "retrievals": "searches", "tokens": "tokens", "ms": "time"}


def pictures(run: Run, summary: Summary) -> Mapping[str, Sequence[Picture]]:
    """All that can be drawn, by section: cost, gates, calibration, rounds, training."""
    records, metric = run.complete, run.metric
    gates = [_rate(cell, metric) for cell in gated_cells(records, metric)]
    gates += [_scores(found) for found in gate_scores(records, metric)]
    return {
        "cost": [_cost(summary, metric, name) for name in COSTS if _known(summary, name)],
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


def _cost(summary: Summary, metric: str, cost: str) -> Picture:
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
