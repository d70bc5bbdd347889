"""From records to a table: means with intervals, gains over one row, easy and hard questions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.spec import LOWER_IS_BETTER, CellName, direct_of
from ltrag_plugins.metrics.calibration import Interval, mean_interval, paired_bootstrap

_COSTS = {"calls": 2, "retrievals": 2, "tokens": 1, "ms": 1}
"""What is charged, and the digits it is shown with."""
_SPEED_UP = "speed-up"


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
    """Means over the questions that the direct answer got right by the first metric; empty
    without direct answers."""
    hard: Mapping[str, float]
    """Means over the others."""
    costs: Mapping[str, float | None]
    """Means a question: calls, retrievals, tokens (None: unknown) and ms."""
    speed_up: float | None
    """Times as fast as the same method without a gate, by the mean ms; None for rows without a
    gate or without that other row."""


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
        rows: dict[str, list[Row]] = {}
        for row in self.rows:
            cell = CellName.parse(row.name)
            if cell.seed:
                rows.setdefault(str(replace(cell, seed="")), []).append(row)
        return {
            name: {"seeds": len(some), "scores": {m: _spread(some, m) for m in some[0].scores}}
            for name, some in rows.items()
            if len(some) > 1
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"seeds": self.seeds}

    def __str__(self) -> str:
        metrics = list(self.rows[0].scores)
        wide = 2 + max(len(row.name) for row in self.rows)
        names = "".join(_column(name, name) for name in (*metrics, *_COSTS, _SPEED_UP))
        gain = f"  {metrics[0]} over {self.compared}"
        lines = [f"{'':<{wide}}{names}{gain}"]
        lines += [self._line(row, metrics, wide) for row in self.rows]
        for name, found in self.seeds.items():
            told = (f"{m} {mean:.3f} ± {sd:.3f}" for m, (mean, sd) in found["scores"].items())
            lines.append(f"{name}, {found['seeds']} seeds (mean ± sd): {', '.join(told)}")
        failed = [f"{row.name}: {row.failed} of {row.questions}" for row in self.rows if row.failed]
        return "\n".join(lines + ([f"failed: {', '.join(failed)}"] if failed else []))

    def _line(self, row: Row, metrics: Sequence[str], wide: int) -> str:
        scores = "".join(_column(name, f"{row.scores[name].value:.3f}") for name in metrics)
        costs = "".join(
            _column(name, _number(row.costs[name], digits)) for name, digits in _COSTS.items()
        )
        line = f"{row.name:<{wide}}{scores}{costs}{_column(_SPEED_UP, _number(row.speed_up, 2))}"
        if metrics[0] not in row.gains:
            return line
        gain = row.gains[metrics[0]]
        return f"{line}  {gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"


def summarize(
    records: Mapping[str, Sequence[Record]],
    *,
    compared: str | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Summary:
    """Means, intervals and gains of each cell.

    Args:
        records: of each cell, about the same questions.
        compared: the cell that gains are over; None: the first one.
        level: of the intervals, inside (0, 1).

    Raises:
        InvalidInput: there are no records, `compared` is not among them, or cells are about
            different questions.
    """
    compared = _check(records, compared)
    ids = [record.id for record in records[compared]]
    by_id = {name: {record.id: record for record in found} for name, found in records.items()}
    aligned = {name: [found[i] for i in ids] for name, found in by_id.items()}
    how = {"level": level, "resamples": resamples, "seed": seed}
    rows = [_row(name, aligned, compared, how) for name in aligned]
    return Summary(tuple(rows), compared, level)


def _check(records: Mapping[str, Sequence[Record]], compared: str | None) -> str:
    if not records or not all(records.values()):
        raise InvalidInput("a summary needs records; a cell, or all of them, has none")
    first = next(iter(records)) if compared is None else compared
    if first not in records:
        raise InvalidInput(f"there is no row {first!r} to compare with; there are {list(records)}")
    wanted = {record.id for record in records[first]}
    for name, found in records.items():
        if {record.id for record in found} != wanted:
            raise InvalidInput(
                f"{name} and {first} are about different questions; finish the run first"
            )
    return first


def _row(
    name: str, records: Mapping[str, Sequence[Record]], compared: str, how: Mapping[str, Any]
) -> Row:
    found, base = records[name], records[compared]
    scores = {metric: _scores(found, metric) for metric in found[0].scores}
    gains = {
        metric: paired_bootstrap(values, _scores(base, metric), **how).interval
        for metric, values in scores.items()
        if name != compared
    }
    direct = direct_of(records)
    easy = None if direct is None else _easy(records[direct])
    return Row(
        name,
        len(found),
        sum(record.error is not None for record in found),
        {metric: mean_interval(values, **how) for metric, values in scores.items()},
        gains,
        {} if easy is None else _means(scores, easy),
        {} if easy is None else _means(scores, ~easy),
        _costs(found),
        _speed_up(name, records),
    )


def _spread(rows: Sequence[Row], metric: str) -> tuple[float, float]:
    values = [row.scores[metric].value for row in rows]
    return float(np.mean(values)), float(np.std(values, ddof=1))


def _scores(records: Sequence[Record], metric: str) -> np.ndarray:
    return np.array([record.scores[metric] for record in records])


def _easy(direct: Sequence[Record]) -> np.ndarray:
    return np.array([_right(record) for record in direct])


def _right(record: Record) -> bool:
    name, score = next(iter(record.scores.items()))
    return score <= 0.5 if name in LOWER_IS_BETTER else score >= 0.5


def _means(scores: Mapping[str, np.ndarray], which: np.ndarray) -> dict[str, float]:
    return {metric: float(values[which].mean()) for metric, values in scores.items() if which.any()}


def _costs(records: Sequence[Record]) -> dict[str, float | None]:
    tokens = [_tokens(record) for record in records]
    known = [count for count in tokens if count is not None]
    return {
        "calls": float(np.mean([record.calls for record in records])),
        "retrievals": float(np.mean([record.retrievals for record in records])),
        "tokens": float(np.mean(known)) if len(known) == len(tokens) else None,
        "ms": float(np.mean([record.ms for record in records])),
    }


def _tokens(record: Record) -> int | None:
    if record.prompt_tokens is None or record.completion_tokens is None:
        return None
    return record.prompt_tokens + record.completion_tokens


def _speed_up(name: str, records: Mapping[str, Sequence[Record]]) -> float | None:
    cell = CellName.parse(name)
    if not cell.gate or cell.alone not in records:
        return None
    before, now = (np.mean([record.ms for record in records[n]]) for n in (cell.alone, name))
    return float(before / now) if now > 0 else None


def _column(name: str, text: str) -> str:
    return f"{text:>{max(9, len(name) + 2)}}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
