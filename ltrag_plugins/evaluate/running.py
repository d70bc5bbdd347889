"""Run methods over questions: side by side, one record a question, on after an interruption."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ltrag_plugins.baselines.method import Method
from ltrag_plugins.errors import InvalidInput, LtragError, MissingReferences
from ltrag_plugins.evaluate.costs import CostByFlow
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.metrics import DEFAULT, Metric, chosen
from ltrag_plugins.evaluate.records import Outcome, Record, recorded
from ltrag_plugins.evaluate.tracing import Tracing
from ltrag_plugins.flow import Flow, Observer, World, run, run_many
from ltrag_plugins.gece.route import Gate, decided
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.metrics.cost import Cost, CostCounter
from ltrag_plugins.types import Question

VERSIONED = ("ltrag-plugins", "numpy")


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to answer all questions: a method, its settings, a gate before it or none."""

    method: Method
    settings: Any = None
    """None: the method's defaults."""
    gate: Gate | None = None
    gate_name: str = ""
    """What tells this gate from others; part of the cell's name."""
    seed: int | None = None
    """Put into the settings, where they have a seed."""

    @property
    def name(self) -> str:
        """``method``, ``method+gate``, ``method@seed``; a file name."""
        gate = f"+{self.gate_name or 'gate'}" if self.gate is not None else ""
        return f"{self.method.name}{gate}" + ("" if self.seed is None else f"@{self.seed}")

    @property
    def set(self) -> Any:
        """The settings, with the seed in them."""
        settings = self.method.settings() if self.settings is None else self.settings
        seeded = self.seed is not None and "seed" in {f.name for f in fields(settings)}
        return replace(settings, seed=self.seed) if seeded else settings


def evaluate(
    questions: Sequence[Question],
    cells: Iterable[Cell],
    world: World,
    *,
    out: str | Path,
    metrics: Iterable[str] = DEFAULT,
    labelled: Sequence[Question] = (),
    batch: int = 16,
    trace: bool = False,
    observers: Iterable[Observer] = (),
    on_record: Callable[[str, Record], None] | None = None,
) -> dict[str, list[Record]]:
    """Answer every question in every way, and keep one record of each in `out`.

    A call with equal arguments goes on where the last one ended: what has a record is not asked
    again, and the model's answers are kept in the folder too. A question on which a method fails
    is a record with an error and the worst scores.

    Args:
        questions: with accepted answers, and distinct ids.
        cells: with distinct names.
        world: the model, and what the methods need of retriever and encoder.
        labelled: other questions with accepted answers, for the methods that learn.
        batch: questions that run side by side, at least 1.
        trace: keep every request and reply in the records.
        on_record: told the cell's name and each new record.

    Returns:
        The records of each cell, in the order of the questions.

    Raises:
        InvalidInput: no questions or cells, a name or id twice, a batch below 1, an unknown
            metric, or a method lacks what it needs; another run is writing to the folder.
        MissingReferences: a question has no accepted answers.
        ArtifactMismatch: the folder holds another run.
        UnwritableArtifact: it cannot be written to; the records so far are kept.
    """
    cells, measures = list(cells), chosen(metrics)
    _check(questions, cells, world, labelled, batch)
    folder = RunFolder(Path(out).expanduser())
    with folder.held():
        identity = _identity(questions, cells, world, measures, labelled, trace)
        folder.begin(identity, {"versions": {name: version(name) for name in VERSIONED}})
        llm = None if world.llm is None else CachedLLM(world.llm, folder.path / "answers.sqlite")
        running = _Running(
            folder,
            replace(world, llm=llm),
            measures,
            labelled,
            batch,
            trace,
            (*observers,),
            on_record or (lambda _, __: None),
        )
        return {cell.name: running.cell(cell, questions) for cell in cells}


@dataclass(frozen=True, slots=True)
class _Running:
    folder: RunFolder
    world: World
    metrics: Mapping[str, Metric]
    labelled: Sequence[Question]
    batch: int
    trace: bool
    observers: tuple[Observer, ...]
    on_record: Callable[[str, Record], None]

    def cell(self, cell: Cell, questions: Sequence[Question]) -> list[Record]:
        """All records of a cell, asking for those that are not there."""
        known = {record.id: record for record in self.folder.records(cell.name)}
        left = [question for question in questions if question.id not in known]
        if left:
            learned = self._learned(cell)
            for start in range(0, len(left), self.batch):
                new = self._answered(cell, learned, left[start : start + self.batch])
                self.folder.add(cell.name, new)
                for record in new:
                    known[record.id] = record
                    self.on_record(cell.name, record)
        return [known[question.id] for question in questions]

    def _learned(self, cell: Cell) -> Any:
        if cell.method.learn is None:
            return None
        flow = cell.method.learn(self.labelled, cell.set)
        return run(flow, self.world, observers=self.observers)

    def _answered(self, cell: Cell, learned: Any, some: Sequence[Question]) -> list[Record]:
        costs, tracing = CostByFlow(), Tracing(self.trace)
        watching = (costs, tracing, *self.observers)
        found = run_many(
            [answering(cell, learned, question) for question in some],
            self.world,
            observers=watching,
            return_exceptions=True,
        )
        records = []
        for i, (question, outcome) in enumerate(zip(some, found, strict=True)):
            if isinstance(outcome, Exception):
                records.append(self._alone(cell, learned, question, outcome))
            else:
                records.append(self._record(question, outcome, costs.of(i), tracing.of(i)))
        return records

    def _alone(self, cell: Cell, learned: Any, question: Question, failed: Exception) -> Record:
        """Ask again, by itself: what failed may have been another question of the batch."""
        if not isinstance(failed, LtragError):
            raise failed  # a mistake in a method, not a failure of the model
        cost, tracing = CostCounter(), Tracing(self.trace)
        watching = (cost, tracing, *self.observers)
        try:
            flow = answering(cell, learned, question)
            outcome = run(flow, self.world, observers=watching)
        except LtragError as error:
            worst = {name: float(name == "ter") for name in self.metrics}
            return recorded(question, None, cost.cost, worst, error, tracing.of(0))
        return self._record(question, outcome, cost.cost, tracing.of(0))

    def _record(
        self,
        question: Question,
        outcome: Outcome,
        cost: Cost,
        trace: tuple[Mapping[str, Any], ...] | None,
    ) -> Record:
        text = outcome.answer.text
        scores = {name: float(m(text, question.answers)) for name, m in self.metrics.items()}
        return recorded(question, outcome, cost, scores, trace=trace)


def answering(cell: Cell, learned: Any, question: Question) -> Flow[Outcome]:
    """A question on its way through a cell."""
    settings = cell.set
    if cell.gate is None:
        answer = yield from cell.method.flow(question, settings, learned)
        return Outcome(answer)
    answer, decision = yield from decided(
        question.text, cell.gate, lambda _: cell.method.flow(question, settings, learned)
    )
    return Outcome(answer, decision)


def _check(
    questions: Sequence[Question],
    cells: Sequence[Cell],
    world: World,
    labelled: Sequence[Question],
    batch: int,
) -> None:
    if not questions or not cells:
        raise InvalidInput("an evaluation needs questions and methods; one of them is empty")
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}")
    _check_distinct("question id", [question.id for question in questions])
    _check_distinct("method", [cell.name for cell in cells])
    for question in questions:
        if not question.answers:
            raise MissingReferences(
                f"the question {question.id!r} has no accepted answers to hold a prediction "
                "against; add them or leave it out"
            )
    for cell in cells:
        cell.method.check(world, labelled)


def _check_distinct(what: str, names: Sequence[str]) -> None:
    twice = (
        {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
    )
    if twice:
        raise InvalidInput(f"the {what} {min(twice)!r} comes twice; records are told apart by it")


def _identity(
    questions: Sequence[Question],
    cells: Sequence[Cell],
    world: World,
    metrics: Mapping[str, Metric],
    labelled: Sequence[Question],
    trace: bool,
) -> dict[str, Any]:
    return {
        "cells": [cell.name for cell in cells],
        "settings": {cell.name: _plain(cell.set) for cell in cells},
        "model": None if world.llm is None else world.llm.name,
        "questions": _digest(questions),
        "labelled": _digest(labelled),
        "metrics": list(metrics),
        "trace": trace,
    }


def _digest(questions: Sequence[Question]) -> str:
    content = json.dumps([asdict(question) for question in questions], sort_keys=True)
    return f"{len(questions)} questions, sha256 {hashlib.sha256(content.encode()).hexdigest()[:16]}"


def _plain(settings: Any) -> Any:
    values = asdict(settings) if is_dataclass(settings) and not isinstance(settings, type) else {}
    return json.loads(json.dumps(values, default=lambda v: getattr(v, "__qualname__", repr(v))))
