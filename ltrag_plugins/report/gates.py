"""What the gates of a run decided, and what other thresholds would have come to.

A gate retrieves where its score is at least a threshold. With the scores on record, and the
question answered both ways by the same method, every other threshold can be tried without asking
the model again: above it the answer of the method alone counts, below it the direct one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ltrag_plugins.errors import CalibrationError
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.spec import CellName, direct_of, is_gate
from ltrag_plugins.metrics.calibration import (
    Interval,
    Reliability,
    auroc,
    mean_interval,
    reliability,
)
from ltrag_plugins.report.reading import right

_Records = Mapping[str, Sequence[Record]]


@dataclass(frozen=True, slots=True)
class GatedCell:
    """Accuracy of a method behind a gate, beside always and never."""

    name: str
    rate: float
    """Share of the questions that searched, 0 to 1."""
    accuracy: Interval
    never: float | None
    """Of the direct answers; None where the run has none."""
    always: float | None
    """Of the same method without a gate; None where the run has it not."""
    always_rate: float
    """Share of the questions for which that method searched; 1 where the run has it not."""
    curve: tuple[tuple[float, float], ...]
    """(rate, accuracy) of every threshold, from never to always; empty where a part is missing."""
    others: tuple[tuple[str, float, float], ...] = ()
    """Methods that are gates themselves: name, share of the questions that searched, accuracy."""


@dataclass(frozen=True, slots=True)
class GateScores:
    """The scores of one gate, split by whether the direct answer was right."""

    gate: str
    right: tuple[float, ...]
    wrong: tuple[float, ...]
    threshold: float | None
    """Between the scores that retrieved and those that did not; None where they overlap."""
    auroc: float | None
    """How well the score finds the wrong ones; None where all are of one kind."""


def gated_cells(records: _Records, metric: str) -> list[GatedCell]:
    """Each cell whose records hold decisions."""
    return [_gated(name, records, metric) for name in records if _decided(records[name])]


def gate_scores(records: _Records, metric: str) -> list[GateScores]:
    """The scores of each gate, once; [] without direct answers to split them by."""
    direct = direct_of(records)
    if direct is None:
        return []
    return [
        _scores(gate, records[name], records[direct], metric)
        for gate, name in _first_of_each_gate(records).items()
    ]


def _decided(records: Sequence[Record]) -> bool:
    return any(record.decision is not None for record in records)


def _gated(name: str, records: _Records, metric: str) -> GatedCell:
    always = records.get(CellName.parse(name).alone)
    direct = direct_of(records)
    never = None if direct is None else records[direct]
    searched = np.ones(len(records[name])) if always is None else _searched(always)
    retrieved = [
        r.decision["retrieve"] * one
        for r, one in zip(records[name], searched, strict=True)
        if r.decision is not None
    ]
    return GatedCell(
        name,
        float(np.mean(retrieved)),
        mean_interval(_values(records[name], metric)),
        None if never is None else float(_values(never, metric).mean()),
        None if always is None else float(_values(always, metric).mean()),
        float(searched.mean()),
        () if always is None or never is None else sweep(records[name], always, never, metric),
        _others(records, metric),
    )


def sweep(
    gated: Sequence[Record], always: Sequence[Record], never: Sequence[Record], metric: str
) -> tuple[tuple[float, float], ...]:
    """(share that searches, accuracy) of every threshold between the scores, never to always.

    Questions with equal scores are retrieved for together; those without a decision (the gate
    failed) are left out.
    """
    known = [i for i, record in enumerate(gated) if record.decision is not None]
    scores = np.array([(gated[i].decision or {})["score"] for i in known])
    order = np.argsort(-scores, kind="stable")
    without, with_ = _values(never, metric)[known][order], _values(always, metric)[known][order]
    changes = np.concatenate([[0.0], np.cumsum(with_ - without)])
    ends = [0, *(np.flatnonzero(np.diff(scores[order])) + 1).tolist(), len(known)]
    count = len(known)
    searches = np.concatenate([[0.0], np.cumsum(_searched(always)[known][order])])
    return tuple(
        (float(searches[k] / count), float((without.sum() + changes[k]) / count)) for k in ends
    )


def _scores(
    gate: str, found: Sequence[Record], direct: Sequence[Record], metric: str
) -> GateScores:
    known = [(r.decision, right(d, metric)) for r, d in zip(found, direct, strict=True)]
    pairs = [(d["score"], d["retrieve"], good) for d, good in known if d is not None]
    scores = [score for score, _, _ in pairs]
    try:
        area = auroc(scores, [float(not good) for _, _, good in pairs])
    except CalibrationError:
        area = None
    yes = [score for score, retrieve, _ in pairs if retrieve]
    no = [score for score, retrieve, _ in pairs if not retrieve]
    split = yes and no and max(no) < min(yes)
    return GateScores(
        gate,
        tuple(score for score, _, good in pairs if good),
        tuple(score for score, _, good in pairs if not good),
        (max(no) + min(yes)) / 2 if split else None,
        area,
    )


def _others(records: _Records, metric: str) -> tuple[tuple[str, float, float], ...]:
    return tuple(
        (name, float(_searched(found).mean()), float(_values(found, metric).mean()))
        for name, found in records.items()
        if is_gate(CellName.parse(name).method)
    )


def _searched(records: Sequence[Record]) -> Float[np.ndarray, " n"]:
    """1 for a question that searched; also for one that failed, of which nobody knows."""
    return np.array([float(r.retrievals > 0 or r.error is not None) for r in records])


def _values(records: Sequence[Record], metric: str) -> Float[np.ndarray, " n"]:
    return np.array([record.scores[metric] for record in records])


@dataclass(frozen=True, slots=True)
class Promise:
    """One source of probabilities of being wrong, held against what came true."""

    name: str
    what: str
    """What the number claims to be."""
    reliability: Reliability


def reliabilities(records: _Records, metric: str) -> list[Promise]:
    """One for each gate (with direct answers), and one for each method with uncertainties.

    Gated cells have no diagram of their own: their uncertainty is the gate's on one branch and
    the method's on the other.
    """
    found = []
    direct = direct_of(records)
    for gate, name in () if direct is None else _first_of_each_gate(records).items():
        pairs = zip(records[name], records[direct or ""], strict=True)
        said = [(r.decision["probability"], not right(d, metric)) for r, d in pairs if r.decision]
        found.append(_promise(gate or "gate", "P(direct answer fails), says the gate", said))
    for name, some in records.items():
        own = [(r.uncertainty, not right(r, metric)) for r in some if r.uncertainty is not None]
        if own and not _decided(some):
            found.append(_promise(name, "uncertainty of the answer, 0 to 100 %", own))
    return found


def _first_of_each_gate(records: _Records) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, some in records.items():
        if _decided(some):
            found.setdefault(CellName.parse(name).gate, name)
    return found


def _promise(name: str, what: str, pairs: Sequence[tuple[float, bool]]) -> Promise:
    return Promise(name, what, reliability([p for p, _ in pairs], [bad for _, bad in pairs]))
