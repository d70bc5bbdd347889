"""From records to a table: means with intervals, gains over one row, easy and hard questions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.spec import CellName, direct_of
from ltrag_plugins.metrics.calibration import Interval, bootstrap_interval, paired_bootstrap
from ltrag_plugins.metrics.table import table

_COSTS = {"calls": 2, "retrievals": 2, "tokens": 1, "ms": 1}  # with the digits they are shown with


@dataclass(frozen=True, slots=True)
class Row:
    """One way to answer, over all questions."""

    name: str
    questions: int
    failed: int
    """Questions on which the method raised; they count with the worst scores."""
    scores: Mapping[str, Interval]
    """Mean of each metric."""
    gains: Mapping[str, Interval]
    """Over the row that is compared with, paired by question; empty for that row itself."""
    easy: Mapping[str, float]
    """Means over the questions that `direct` got right by the first metric; empty without it."""
    hard: Mapping[str, float]
    """Means over the others."""
    costs: Mapping[str, float | None]
    """Means a question: calls, retrievals, tokens (None: unknown) and ms."""
    speed_up: float | None
    """Times as fast as the same method without a gate, by the mean ms; None without either."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All ways to answer, side by side."""

    rows: tuple[Row, ...]
    compared: str
    """The row that gains are over."""
    level: float
    """Of the intervals, 0 to 1."""

    def __getitem__(self, name: str) -> Row:
        """The row of that name."""
        return {row.name: row for row in self.rows}[name]

    @property
    def seeds(self) -> dict[str, dict[str, Any]]:
        """By row without its seed: how many seeds, and (mean, standard deviation) of each metric
        over them; only rows with two or more."""
        rows: defaultdict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            if (cell := CellName.parse(row.name)).seed:
                rows[str(replace(cell, seed=""))].append(row)
        found = {}
        for name, some in rows.items():
            if len(some) > 1:
                values = {m: [row.scores[m].value for row in some] for m in some[0].scores}
                spread = {
                    m: (float(np.mean(v)), float(np.std(v, ddof=1))) for m, v in values.items()
                }
                found[name] = {"seeds": len(some), "scores": spread}
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"seeds": self.seeds}

    def __str__(self) -> str:
        metrics, rows = list(self.rows[0].scores), dict[str, list[str]]()
        costs = _COSTS | {"speed-up": 2} if any(row.speed_up for row in self.rows) else _COSTS
        for row in self.rows:
            gain, spent = row.gains.get(metrics[0]), {**row.costs, "speed-up": row.speed_up}
            rows[row.name] = [f"{row.scores[m].value:.3f}" for m in metrics]
            rows[row.name].append("-" if gain is None else gain.signed)
            values = ((spent[name], digits) for name, digits in costs.items())
            rows[row.name] += ["-" if x is None else f"{x:.{digits}f}" for x, digits in values]
        lines = table(rows.items(), [*metrics, f"{metrics[0]} over {self.compared}"], [*costs])
        for name, found in self.seeds.items():
            told = (f"{m} {mean:.3f} ± {sd:.3f}" for m, (mean, sd) in found["scores"].items())
            lines.append(f"{name}, {found['seeds']} seeds (mean ± sd): {', '.join(told)}")
        failed = [f"{row.name}: {row.failed} of {row.questions}" for row in self.rows if row.failed]
        return "\n".join(lines + ([f"failed: {', '.join(failed)}"] if failed else []))


def summarize(
    records: Mapping[str, Sequence[Record]], *, compared: str | None = None, level: float = 0.95
) -> Summary:
    """Means, intervals (of a level inside (0, 1)) and gains of each cell over the one that is
    `compared` (None: the first); raises as `aligned`."""
    found = aligned(records, compared)
    compared = next(iter(found)) if compared is None else compared
    return Summary(tuple(_row(name, found, compared, level) for name in found), compared, level)


def aligned(
    records: Mapping[str, Sequence[Record]], first: str | None = None
) -> dict[str, list[Record]]:
    """The records of all cells in one order of the questions, that of `first` (None: the first);
    `InvalidInput` for none, none of `first`, or cells about different questions."""
    if not records or not all(records.values()):
        raise InvalidInput("a summary needs records; a cell, or all of them, has none")
    first = next(iter(records)) if first is None else first
    if first not in records:
        raise InvalidInput(f"there is no row {first!r} to compare with; there are {list(records)}")
    wanted = [record.id for record in records[first]]
    found: dict[str, list[Record]] = {}
    for name, some in records.items():
        by_id = {record.id: record for record in some}
        if by_id.keys() != set(wanted):
            trouble = f"{name} and {first} are about different questions"
            raise InvalidInput(f"{trouble}; finish the run first")
        found[name] = [by_id[i] for i in wanted]
    return found


def _row(name: str, records: Mapping[str, Sequence[Record]], compared: str, level: float) -> Row:
    found, metrics = records[name], list(records[name][0].scores)
    scores, others = (
        {m: np.array([record.scores[m] for record in records[cell]]) for m in metrics}
        for cell in (name, compared)
    )
    gains, parts = {}, {}
    if name != compared:
        gains = {m: paired_bootstrap(scores[m], others[m], level=level) for m in metrics}
    if (direct := direct_of(records)) is not None:
        known = np.array([record.right(metrics[0]) for record in records[direct]])
        parts = {
            kind: {m: float(scores[m][which].mean()) for m in metrics}
            for kind, which in (("easy", known), ("hard", ~known))
            if which.any()
        }
    cell, speed_up = CellName.parse(name), None
    columns = {cost: [getattr(record, cost) for record in found] for cost in _COSTS}
    costs = {n: None if None in some else float(np.mean(some)) for n, some in columns.items()}
    if cell.gate and cell.alone in records and costs["ms"]:
        speed_up = float(np.mean([record.ms for record in records[cell.alone]]) / costs["ms"])
    failed = sum(record.error is not None for record in found)
    means = {m: bootstrap_interval(values, level=level) for m, values in scores.items()}
    easy, hard = (parts.get(kind, {}) for kind in ("easy", "hard"))
    return Row(name, len(found), failed, means, gains, easy, hard, costs, speed_up)
