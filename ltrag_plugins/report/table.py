"""The summary as cells of a table: what is shown, and what it is sorted by."""

from collections.abc import Mapping
from dataclasses import dataclass

from ltrag_plugins.evaluate.summary import Row, Summary
from ltrag_plugins.metrics.calibration import Interval
from ltrag_plugins.report.escaping import visible
from ltrag_plugins.report.reading import LOWER_IS_BETTER


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of numbers."""

    title: str
    unit: str = ""
    """Small, under the title."""
    lower: bool = False
    """Small numbers are good: they come first when sorted."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """One number, with its doubt."""

    value: float | None
    """What the column is sorted by; None comes last."""
    text: str
    small: str = ""
    """Under it: an interval."""
    tone: str = ""
    """"better", "worse", "best", "failed" or ""."""
    track: tuple[float, float, float] | None = None
    """Low, value and high in percent of the width."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One way to answer."""

    name: str
    gated: bool
    compared: bool
    cells: tuple[TableCell, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns and lines."""

    columns: tuple[_Column, ...]
    lines: tuple[_Line, ...]


def main_table(summary: Summary, metric: str) -> _Table:
    """Every measure with its interval, the gain, easy and hard, costs, failures."""
    metrics = list(summary.rows[0].scores)
    columns = (
        *(_Column(name, "mean", name in LOWER_IS_BETTER) for name in metrics),
        _Column("gain", f"{metric} over {visible(summary.compared)}", metric in LOWER_IS_BETTER),
        *(_Column(f"{metric}, {part}", told, metric in LOWER_IS_BETTER) for part, told in _SPLIT),
        _Column("calls", "a\u00a0question", lower=True),
        _Column("searches", "a\u00a0question", lower=True),
        _Column("tokens", "a\u00a0question", lower=True),
        _Column("time", "ms a question", lower=True),
        _Column("speed-up", "over no gate"),
        _Column("failed", f"of {summary.rows[0].questions}", lower=True),
    )
    best = _best(summary, metric)
    lines = (_line(row, [*_main(row, metric, best)], summary) for row in summary.rows)
    return _Table(columns, tuple(lines))


def measures_table(summary: Summary) -> _Table:
    """Gains, easy and hard of every measure."""
    metrics = list(summary.rows[0].scores)
    columns = [
        column
        for name in metrics
        for column in (
            _Column(name, "gain", name in LOWER_IS_BETTER),
            *(_Column(f"{name}, {part}", told, name in LOWER_IS_BETTER) for part, told in _SPLIT),
        )
    ]
    lines = (
        _line(row, [cell for name in metrics for cell in _measured(row, name)], summary)
        for row in summary.rows
    )
    return _Table(tuple(columns), tuple(lines))


_SPLIT = (("easy", "direct\u00a0right"), ("hard", "direct\u00a0wrong"))


def _line(row: Row, cells: list[TableCell], summary: Summary) -> _Line:
    return _Line(visible(row.name), "+" in row.name, row.name == summary.compared, tuple(cells))


def _main(row: Row, metric: str, best: float) -> list[TableCell]:
    cells = [
        _score(interval, name == metric, best if name == metric else None)
        for name, interval in row.scores.items()
    ]
    cells += _measured(row, metric)
    cells += [_plain(row.costs[name], 1) for name in ("calls", "retrievals")]
    cells += [_plain(row.costs[name], 0) for name in ("tokens", "ms")]
    cells.append(_plain(row.speed_up, 2, "×"))
    tone = "failed" if row.failed else ""
    return [*cells, TableCell(row.failed, str(row.failed or "–"), tone=tone)]


def _measured(row: Row, name: str) -> list[TableCell]:
    split = [_plain(part.get(name), 3) for part in (row.easy, row.hard)]
    return [_gain(row.gains, name), *split]


def _score(interval: Interval, tracked: bool, best: float | None) -> TableCell:
    low, high = interval.low, interval.high
    ends = tuple(100 * min(1.0, max(0.0, end)) for end in (low, interval.value, high))
    return TableCell(
        interval.value,
        f"{interval.value:.3f}",
        f"{low:.2f}–{high:.2f}",
        "best" if interval.value == best else "",
        (ends[0], ends[1], ends[2]) if tracked else None,
    )


def _gain(gains: Mapping[str, Interval], name: str) -> TableCell:
    if name not in gains:
        return TableCell(None, "–")
    gain = gains[name]
    sign = -1 if name in LOWER_IS_BETTER else 1
    clear = 0.0 if gain.low <= 0 <= gain.high else gain.value * sign
    tone = "" if not clear else "better" if clear > 0 else "worse"
    small = f"{gain.low:+.2f} to {gain.high:+.2f}".replace("-", "−")
    return TableCell(gain.value, f"{gain.value:+.3f}".replace("-", "−"), small, tone)


def _best(summary: Summary, metric: str) -> float:
    values = [row.scores[metric].value for row in summary.rows]
    return min(values) if metric in LOWER_IS_BETTER else max(values)


def _plain(value: float | None, digits: int, unit: str = "") -> TableCell:
    return TableCell(value, "–" if value is None else f"{value:,.{digits}f}{unit}")
