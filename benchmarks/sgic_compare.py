"""Runs of `sgic_loop.py --out` over the same questions: is one better, and at what cost?

For every row that both files have: EM of both, the difference, B minus A, in EM, F1 and "contains",
with the intervals of a paired bootstrap over the questions, and the calls, tokens and milliseconds
of both, where known. With `--rows A/B` one row is held against another; with one file every row
against the first. Where one has fewer questions than the other, these are compared.
`--type` takes the questions of one type alone, where the data set tells types. Usage:

    python benchmarks/sgic_compare.py RUN.jsonl --type bridge
    python benchmarks/sgic_compare.py untuned/nq_documents.jsonl tuned/nq_documents.jsonl
    python benchmarks/sgic_compare.py RUN.jsonl --rows \\
        "16 samples, least uncertain/5 rounds, least uncertain"
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import records

from ltrag_plugins.metrics.calibration import Interval, paired_bootstrap


@dataclass(frozen=True, slots=True)
class Row:
    """One question, answered one way."""

    row: str
    """As the report of a fit names the way."""
    id: str
    text: str
    em: float
    f1: float
    calls: float
    tokens: float | None
    """Read and written; None where a reply did not say."""
    ms: float | None
    """Of the model; None where no answer cache measured it."""
    type: str = ""
    """The question's, where its data set tells types."""
    contains: float | None = None
    """None where it says nothing of answers, as of numbers."""


METRICS = {"em": "EM", "f1": "F1", "contains": "contains"}


def write(rows: Iterable[Row], path: Path) -> None:
    """A JSON line for each; a file that is there is replaced."""
    records.write(path, map(asdict, rows))


def read(path: Path, type: str | None = None) -> dict[str, dict[str, Row]]:
    """Rows by name, then by the question's id, in the order of the file; of all types, or one."""
    found: dict[str, dict[str, Row]] = {}
    for line in records.read(path):
        try:
            row = Row(**line)
        except TypeError:
            sys.exit(f"{path} is of another benchmark; name what sgic_loop.py wrote")
        if type in (None, row.type):
            found.setdefault(row.row, {})[row.id] = row
    if type and not found:
        sys.exit(f"{path} has no question of the type {type!r}")
    return found


def gain(a: dict[str, Row], b: dict[str, Row], metric: str = "em") -> Interval:
    """Mean quality of b minus that of a, question by question.

    Raises:
        SystemExit: they are of other questions.
    """
    if a.keys() != b.keys():
        sys.exit(f"{len(a.keys() ^ b.keys())} questions are in one of the two alone")
    after, before = ([getattr(rows[i], metric) for i in a] for rows in (b, a))
    return paired_bootstrap(after, before)


def shared(a: dict[str, Row], b: dict[str, Row]) -> tuple[dict[str, Row], dict[str, Row]]:
    """Both, where one has all questions of the other, of these alone."""
    few = min(a.keys(), b.keys(), key=len)
    if not few <= a.keys() & b.keys():
        return a, b
    return {i: a[i] for i in a if i in few}, {i: b[i] for i in b if i in few}


def table(pairs: Sequence[tuple[dict[str, Row], dict[str, Row]]]) -> str:
    """A line for each pair; metrics that a row has not, and costs that no row has, are left out."""
    names = [_name(a, b) for a, b in pairs]
    wide = 2 + max(map(len, names))
    costs = [
        (cost, digits, width)
        for cost, digits, width in (("calls", 1, 7), ("tokens", 0, 8), ("ms", 0, 8))
        if any(_mean(rows, cost) is not None for pair in pairs for rows in pair)
    ]
    every = [rows for pair in pairs for rows in pair]
    metrics = [one for one in METRICS if None not in (_mean(rows, one) for rows in every)]
    gains = "".join(f"  {f'gain of B in {METRICS[one]}':<25}" for one in metrics)
    heads = "".join(f"{cost:>{2 * width}}" for cost, _, width in costs)
    lines = [f"{'':<{wide}}{'EM':>14}{gains}{heads}".rstrip()]
    for name, (a, b) in zip(names, pairs, strict=True):
        told = "".join(f"  {gain(a, b, one).signed:<25}" for one in metrics)
        spent = "".join(_shown((a, b), *cost) for cost in costs)
        lines.append(f"{name:<{wide}}{_shown((a, b), 'em', 3, 7)}{told}{spent}".rstrip())
    return "\n".join(lines)


def _name(a: dict[str, Row], b: dict[str, Row]) -> str:
    return "/".join(dict.fromkeys(next(iter(rows.values())).row for rows in (a, b)))


def _shown(pair: Iterable[dict[str, Row]], name: str, digits: int, wide: int) -> str:
    """Both means side by side."""
    values = (_mean(rows, name) for rows in pair)
    return "".join(f"{'-' if x is None else f'{x:.{digits}f}':>{wide}}" for x in values)


def _mean(rows: dict[str, Row], name: str) -> float | None:
    values = [getattr(row, name) for row in rows.values()]
    return None if None in values else sum(values) / len(values)


def _row(rows: dict[str, dict[str, Row]], name: str, path: Path) -> dict[str, Row]:
    if name not in rows:
        sys.exit(f"{path} has no row {name!r}; it has {', '.join(rows)}")
    return rows[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("a", type=Path)
    parser.add_argument("b", type=Path, nargs="?")
    parser.add_argument("--rows", help="one of A and one of B, with / between")
    parser.add_argument("--type", help="of the questions, such as bridge")
    options = parser.parse_args()
    other = options.b or options.a
    a, b = read(options.a, options.type), read(other, options.type)
    if options.rows:
        first, _, second = options.rows.partition("/")
        pairs = [(_row(a, first, options.a), _row(b, second or first, other))]
    elif not options.b:
        every = [*a.values()]
        pairs = [(every[0], rows) for rows in every[1:]]
    else:
        pairs = [(a[name], b[name]) for name in a if name in b]
    if not pairs:
        sys.exit(f"{options.a} and {other} have no two rows to compare")
    pairs = [shared(*pair) for pair in pairs]
    print(f"A: {options.a}\nB: {other}\n{len(pairs[0][0])} questions, 95% intervals")
    print(table(pairs))


if __name__ == "__main__":
    main()
