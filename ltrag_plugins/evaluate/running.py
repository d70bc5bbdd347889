"""Run methods over questions: side by side, one record a question, on after an interruption."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ltrag_plugins.errors import InvalidInput, LtragError, MissingReferences
from ltrag_plugins.evaluate.answering import Cell, Engine, Job, Work, in_process
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.metrics import DEFAULT, chosen
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.flow import Observer, World
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.types import Question

VERSIONED = ("ltrag-plugins", "numpy")


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
    engine: Engine = in_process,
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
        engine: what does the work; `ltrag_plugins.batch.on_ray(...)` does it on Ray.
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
    cells, measures = list(cells), tuple(chosen(metrics))
    _check(questions, cells, world, labelled, batch)
    folder = RunFolder(Path(out).expanduser())
    with folder.held():
        identity = _identity(questions, cells, world, measures, labelled, trace)
        folder.begin(identity, {"versions": {name: version(name) for name in VERSIONED}})
        llm = None if world.llm is None else CachedLLM(world.llm, folder.answers)
        asking = replace(world, llm=llm)
        works = [Work(cell, None, asking, measures, batch, trace, (*observers,)) for cell in cells]
        running = _Running(folder, questions, labelled, on_record or (lambda _, __: None))
        return running.records(works, engine)


@dataclass(frozen=True, slots=True)
class _Running:
    folder: RunFolder
    questions: Sequence[Question]
    labelled: Sequence[Question]
    on_record: Callable[[str, Record], None]
    known: dict[str, dict[str, Record]] = field(default_factory=dict)

    def records(self, works: Sequence[Work], engine: Engine) -> dict[str, list[Record]]:
        """All records of every cell, asking for those that are not there."""
        for work in works:
            name = work.cell.name
            self.known[name] = {record.id: record for record in self.folder.records(name)}
        for name, new in engine(self._jobs(works)):
            self._keep(name, new)
        return {
            name: [found[question.id] for question in self.questions]
            for name, found in self.known.items()
        }

    def _jobs(self, works: Sequence[Work]) -> Iterator[Job]:
        for work in works:
            known = self.known[work.cell.name]
            left = [question for question in self.questions if question.id not in known]
            if not left:
                continue
            try:
                taught = self._taught(work)
            except LtragError as error:  # nothing to learn from: the other methods go on
                self._keep(work.cell.name, [work.failed(question, error) for question in left])
                continue
            yield taught, left

    def _keep(self, name: str, new: Sequence[Record]) -> None:
        self.folder.add(name, new)
        for record in new:
            self.known[name][record.id] = record
            self.on_record(name, record)

    def _taught(self, work: Work) -> Work:
        cell = work.cell
        if not cell.method.learns:
            return work
        learned = cell.method.taught(self.labelled, cell.set, work.world, work.observers)
        return replace(work, learned=learned)


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
    metrics: Sequence[str],
    labelled: Sequence[Question],
    trace: bool,
) -> dict[str, Any]:
    return {
        "cells": [cell.name for cell in cells],
        "settings": {cell.name: _plain(cell.set) for cell in cells},
        "gates": {cell.name: _named(cell.gate) for cell in cells if cell.gate is not None},
        "model": _named(world.llm),
        "retriever": _named(world.retriever),
        "encoder": _named(world.encoder),
        "questions": _digest(questions),
        "labelled": _digest(labelled),
        "metrics": list(metrics),
        "trace": trace,
    }


def _named(part: Any) -> str | None:
    """By its own `name`, else by its kind; None for no part."""
    return None if part is None else getattr(part, "name", None) or type(part).__qualname__


def _digest(questions: Sequence[Question]) -> str:
    content = json.dumps([asdict(question) for question in questions], sort_keys=True)
    return f"{len(questions)} questions, sha256 {hashlib.sha256(content.encode()).hexdigest()[:16]}"


def _plain(settings: Any) -> Any:
    values = asdict(settings) if is_dataclass(settings) and not isinstance(settings, type) else {}
    return json.loads(json.dumps(values, default=lambda v: getattr(v, "__qualname__", repr(v))))
