"""Do the probabilities on record keep what they promise? Said and true shares of wrong answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ltrag_plugins.evaluate.naming import CellName, direct_of
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.metrics.calibration import brier, expected_calibration_error
from ltrag_plugins.report.reading import right

BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers whose said probability lies in one bin of equal width."""

    said: float
    """Mean of what was said, 0 to 1."""
    wrong: float
    """Share of wrong answers, 0 to 1."""
    count: int


@dataclass(frozen=True, slots=True)
class Reliability:
    """One source of probabilities, held against what came true."""

    name: str
    what: str
    """What the number claims to be."""
    bins: tuple[Bin, ...]
    """Those that are not empty, lowest first."""
    ece: float
    """Expected calibration error, 0 to 1; 0 is best."""
    brier: float
    """0 to 1; always saying 0.5 scores 0.25."""
    answers: int


def reliabilities(records: Mapping[str, Sequence[Record]], metric: str) -> list[Reliability]:
    """One for each gate (with direct answers), and one for each method with uncertainties.

    Gated cells have no diagram of their own: their uncertainty is the gate's on one branch and
    the method's on the other.
    """
    found = []
    direct = direct_of(records)
    for name in () if direct is None else _gates(records).values():
        pairs = zip(records[name], records[direct or ""], strict=True)
        said = [(r.decision["probability"], not right(d, metric)) for r, d in pairs if r.decision]
        gate = CellName.parse(name).gate or "gate"
        found.append(_of(gate, "P(direct answer fails), says the gate", said))
    for name, some in records.items():
        own = [(r.uncertainty, not right(r, metric)) for r in some if r.uncertainty is not None]
        if own and not any(record.decision for record in some):
            found.append(_of(name, "uncertainty of the answer, 0 to 100 %", own))
    return found


def _gates(records: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """The first cell of each gate."""
    found: dict[str, str] = {}
    for name, some in records.items():
        if any(record.decision for record in some):
            found.setdefault(CellName.parse(name).gate, name)
    return found


def _of(name: str, what: str, pairs: Sequence[tuple[float, bool]]) -> Reliability:
    p, wrong = np.array([said for said, _ in pairs]), np.array([float(bad) for _, bad in pairs])
    bin_of = np.minimum((p * BINS).astype(int), BINS - 1)
    bins = tuple(
        Bin(float(p[inside].mean()), float(wrong[inside].mean()), int(inside.sum()))
        for number in range(BINS)
        if (inside := bin_of == number).any()
    )
    error = expected_calibration_error(p, wrong, bins=BINS)
    return Reliability(name, what, bins, error, brier(p, wrong), len(pairs))
