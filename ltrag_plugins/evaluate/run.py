"""Run methods over questions: side by side, one record a question, on after an interruption."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

from ltrag_plugins.errors import CacheUnreadable, InvalidInput, LtragError, MissingReferences
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.records import Record, recorded
from ltrag_plugins.evaluate.spec import DEFAULT_METRICS, LOWER_IS_BETTER, Cell, metrics_named
from ltrag_plugins.flow import (
    Ask,
    Compute,
    Embed,
    Fetch,
    Flow,
    Observer,
    Request,
    Score,
    Step,
    World,
    run,
    run_many,
)
from ltrag_plugins.flow.requests import items
from ltrag_plugins.gece.decision import Decision, decided
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.methods.method import picked
from ltrag_plugins.methods.sgic import SGICAnswer
from ltrag_plugins.metrics.cost import Cost, CostCounter
from ltrag_plugins.prompts.question import render_question
from ltrag_plugins.sgic.documents import Truth
from ltrag_plugins.sgic.records import as_record, labelled
from ltrag_plugins.types import Answer, Question


class FlowWatch:
    """An observer of `run` and `run_many`: the cost of each flow, and its steps on request.

    Seconds of a merged request are shared out by the number of items, so those of all flows add
    up to the time that was waited.

    Args:
        trace: keep every request with its replies.
    """

    def __init__(self, trace: bool = False) -> None:
        self._costs: defaultdict[int, CostCounter] = defaultdict(CostCounter)
        self._steps: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
        self._traces = trace

    def __call__(self, step: Step) -> None:
        """Count one step for each of its flows, as the flow would have seen it alone."""
        whole, start = items(step.request), 0
        for flow, share in zip(step.flows, step.shares or (len(whole),), strict=True):
            part = slice(start, start + share)
            request = _cut(step.request, part)
            reply = None if step.reply is None else step.reply[part]
            seconds = step.seconds * share / max(1, len(whole))
            self._costs[flow](Step(step.kind, request, reply, seconds))
            if self._traces and step.kind == "reply":
                self._steps[flow].append(_traced(request, () if reply is None else reply))
            start += share

    def cost(self, flow: int = 0) -> Cost:
        """What that flow cost so far."""
        return self._costs[flow].cost

    def trace(self, flow: int = 0) -> tuple[Mapping[str, Any], ...] | None:
        """The steps of that flow, first to last; None where none are kept."""
        return tuple(self._steps[flow]) if self._traces else None


def _cut(request: Request, part: slice) -> Request:
    names = [n for n in ("prompts", "continuations", "queries", "texts") if hasattr(request, n)]
    return replace(request, **{name: getattr(request, name)[part] for name in names})


def _traced(request: Request, reply: Sequence[Any]) -> dict[str, Any]:
    match request:
        case Ask(prompts=prompts):
            pairs = zip(prompts, reply, strict=True)
            return {"asked": [{"prompt": prompt, "reply": said.text} for prompt, said in pairs]}
        case Fetch(queries=queries):
            return {
                "fetched": [
                    {
                        "query": query,
                        "passages": [{"id": p.id, "title": p.title, "text": p.text} for p in found],
                    }
                    for query, found in zip(queries, reply, strict=True)
                ]
            }
        case Score(prompts=prompts, continuations=texts):
            return {
                "scored": [
                    {
                        "prompt": prompt,
                        "text": text,
                        "logprob": sum(token.logprob for token in said.tokens or ()),
                    }
                    for prompt, text, said in zip(prompts, texts, reply, strict=True)
                ]
            }
        case Embed(texts=texts):
            return {"embedded": list(texts)}
        case Compute():
            return {"computed": getattr(request.function, "__qualname__", "something")}
        case _:
            return {"held against the data set's gradient": list(request.prompts)}


@dataclass(frozen=True, slots=True)
class Work:
    """What turns questions into the records of a cell."""

    cell: Cell
    learned: Any
    world: World
    metrics: tuple[str, ...]
    batch: int
    """Questions that run side by side."""
    trace: bool = False
    observers: tuple[Observer, ...] = ()

    def records(self, some: Sequence[Question]) -> list[Record]:
        """A record of each question, in their order.

        An error of the model or the retriever becomes a record; a mistake in a method is raised,
        and so is `CacheUnreadable`: with a full disk, no answer could be kept.
        """
        watch = FlowWatch(self.trace)
        found = run_many(
            [self._flow(question) for question in some],
            self.world,
            observers=(watch, *self.observers),
            return_exceptions=True,
        )
        return [
            self._alone(question, outcome)
            if isinstance(outcome, Exception)
            else self._record(question, *outcome, watch, i)
            for i, (question, outcome) in enumerate(zip(some, found, strict=True))
        ]

    def failed(
        self, question: Question, error: LtragError, watch: FlowWatch | None = None
    ) -> Record:
        """The record of a question that got no answer: the worst scores, and why."""
        watch = watch or FlowWatch()
        worst = {name: float(name in LOWER_IS_BETTER) for name in self.metrics}
        return recorded(question, Answer(""), None, watch.cost(), worst, error, watch.trace())

    def _flow(self, question: Question) -> Flow[tuple[Answer, Decision | None]]:
        cell, settings = self.cell, self.cell.set
        if cell.gate is None:
            return (yield from cell.method.flow(question, settings, self.learned)), None
        answer, decision = yield from decided(
            render_question(question),
            cell.gate,
            lambda _: cell.method.flow(question, settings, self.learned),
        )
        drafted = not decision.retrieve  # by no method, so it was read by none
        return (picked(answer, question.options) if drafted else answer), decision

    def _alone(self, question: Question, failed: Exception) -> Record:
        """Ask again, by itself: what failed may have been another question of the batch."""
        if not isinstance(failed, LtragError) or isinstance(failed, CacheUnreadable):
            raise failed
        watch = FlowWatch(self.trace)
        try:
            answer, decision = run(
                self._flow(question), self.world, observers=(watch, *self.observers)
            )
        except CacheUnreadable:
            raise
        except LtragError as error:
            return self.failed(question, error, watch)
        return self._record(question, answer, decision, watch)

    def _record(
        self,
        question: Question,
        answer: Answer,
        decision: Decision | None,
        watch: FlowWatch,
        flow: int = 0,
    ) -> Record:
        text, metrics = answer.text, metrics_named(self.metrics)
        scores = {name: float(m(text, question.answers)) for name, m in metrics.items()}
        rounds = self._rounds(question, answer)
        cost, trace = watch.cost(flow), watch.trace(flow)
        return recorded(question, answer, decision, cost, scores, trace=trace, rounds=rounds)

    def _rounds(self, question: Question, answer: Answer) -> Mapping[str, Any] | None:
        if not isinstance(answer, SGICAnswer) or answer.calibrated is None:
            return None
        [(name, measure)] = metrics_named(self.metrics[:1]).items()

        def quality(text: str, answers: Sequence[str]) -> float:
            score = float(measure(picked(Answer(text), question.options).text, answers))
            return 1 - score if name in LOWER_IS_BETTER else score

        truth = Truth((), question.answers)
        [one] = labelled([answer.calibrated], [truth], questions=[question.text], measure=quality)
        return as_record(one)


Job = tuple[Work, Sequence[Question]]
"""What is to be done for one cell."""
Engine = Callable[[Iterable[Job]], Iterable[tuple[str, list[Record]]]]
"""Does the jobs, and hands back the cell's name with its records, some at a time and in the order
of its questions."""


def in_process(jobs: Iterable[Job]) -> Iterator[tuple[str, list[Record]]]:
    """The jobs here and now, one after another, `work.batch` questions at a time."""
    for work, questions in jobs:
        for start in range(0, len(questions), work.batch):
            yield work.cell.name, work.records(questions[start : start + work.batch])


_VERSIONED = (
    "ltrag-plugins", "numpy", "torch", "transformers", "sentence-transformers", "ray",
    "langchain-core", "llama-index-core",
)  # fmt: skip
"""Packages whose versions a run notes, where they are installed."""


def evaluate(
    questions: Sequence[Question],
    cells: Iterable[Cell],
    world: World,
    *,
    out: str | Path | RunFolder,
    metrics: Iterable[str] = DEFAULT_METRICS,
    labelled: Sequence[Question] = (),
    batch: int = 16,
    trace: bool = False,
    engine: Engine = in_process,
    observers: Iterable[Observer] = (),
    on_record: Callable[[str, Record], None] | None = None,
    told: Mapping[str, Any] | None = None,
) -> dict[str, list[Record]]:
    """Answer every question in every way, and keep one record of each in `out`.

    A call with equal arguments goes on where the last one ended: what has a record is not asked
    again, and the model's answers are kept in the folder too. A question on which a method fails
    is a record with an error and the worst scores; the next call tries it again.

    Args:
        questions: with accepted answers, and distinct ids.
        cells: with distinct names.
        world: the model, and what the methods need of retriever and encoder.
        labelled: other questions with accepted answers, for the methods that learn.
        out: a folder; a `RunFolder` that the caller holds stays held.
        batch: questions that run side by side, at least 1.
        engine: what does the work; `ltrag_plugins.batch.on_ray(...)` does it on Ray.
        trace: keep every request and reply in the records.
        observers: told of every request and reply, in this process; not on Ray.
        on_record: told the cell's name and each new record.
        told: more to note in run.json, as plain values; no part of what makes a run the same.

    Returns:
        The records of each cell, in the order of the questions.

    Raises:
        InvalidInput: no questions or cells, a name or id twice, a batch below 1, an unknown
            metric, or a method lacks what it needs; another run is writing to the folder.
        MissingReferences: a question has no accepted answers.
        ArtifactMismatch: the folder holds another run.
        UnwritableArtifact: it cannot be written to; the records so far are kept.
        CacheUnreadable: its answers cannot be read or written, as on a full disk.
    """
    cells, measures = list(cells), tuple(metrics_named(metrics))
    _check(questions, cells, world, labelled, batch)
    folder = out if isinstance(out, RunFolder) else RunFolder(Path(out).expanduser())
    with folder.held():
        identity = _identity(questions, cells, world, measures, labelled, trace)
        folder.begin(identity, {"versions": _versions(), "told": {"batch": batch, **(told or {})}})
        llm = None if world.llm is None else CachedLLM(world.llm, folder.answers)
        asking = replace(world, llm=llm)
        works = [Work(cell, None, asking, measures, batch, trace, (*observers,)) for cell in cells]
        running = _Running(folder, questions, labelled, on_record or (lambda _, __: None))
        return running.records(works, engine)


def _versions() -> dict[str, str]:
    """Of Python and of the packages that may change an answer, as far as they are installed."""
    found = {"python": python_version()}
    for name in _VERSIONED:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def check_begun(
    folder: RunFolder,
    questions: Sequence[Question],
    cells: Sequence[Cell],
    world: World,
    *,
    metrics: Iterable[str] = DEFAULT_METRICS,
    labelled: Sequence[Question] = (),
    trace: bool = False,
) -> None:
    """Refuse, before the cells' gates are there, what `evaluate` would refuse then."""
    _check(questions, cells, world, labelled, batch=1)
    identity = _identity(questions, cells, world, tuple(metrics_named(metrics)), labelled, trace)
    folder.check({name: value for name, value in identity.items() if name != "gates"})


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
            left = [q for q in self.questions if q.id not in known or known[q.id].error]
            if not left:
                continue
            try:
                taught = self._taught(work)
            except CacheUnreadable:
                raise
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
        if cell.method.told is not None:
            self.folder.tell(cell.name, cell.method.told(learned))
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
    check_questions(questions)
    check_distinct("method", [cell.name for cell in cells])
    for cell in cells:
        cell.method.check(world, labelled)


def check_questions(questions: Sequence[Question]) -> None:
    """Whether records of them can be told apart and scored."""
    known: dict[str, Question] = {}
    for question in questions:
        if question.id in known:
            raise InvalidInput(
                f"the question id {question.id!r} comes twice ({known[question.id].text[:60]!r} "
                f"and {question.text[:60]!r}); records are told apart by it"
            )
        known[question.id] = question
        if not question.answers:
            raise MissingReferences(
                f"the question {question.id!r} has no accepted answers to hold a prediction "
                "against; add them or leave it out"
            )


def check_distinct(what: str, names: Sequence[str]) -> None:
    """Refuse a name that comes twice."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidInput(f"the {what} {twice[0]!r} comes twice; records are told apart by it")


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
        "questions": digest_of(questions),
        "labelled": digest_of(labelled),
        "metrics": list(metrics),
        "trace": trace,
    }


def _named(part: Any) -> str | None:
    """By its own `name`, else by its kind; None for no part."""
    return None if part is None else getattr(part, "name", None) or type(part).__qualname__


def digest_of(questions: Sequence[Question]) -> str:
    """How many they are, and a hash of all that stands in them."""
    content = json.dumps([asdict(question) for question in questions], sort_keys=True)
    return f"{len(questions)} questions, sha256 {hashlib.sha256(content.encode()).hexdigest()[:16]}"


def _plain(value: Any) -> Any:
    """Settings as JSON; a part that is more than values stands there by its name."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", None) or getattr(value, "name", None) or repr(value)
