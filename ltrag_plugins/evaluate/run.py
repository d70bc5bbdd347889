"""Run methods over questions: side by side, one record a question, on after an interruption."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral
from pathlib import Path
from platform import python_version
from typing import Any

from ltrag_plugins import flow as requests
from ltrag_plugins.artifacts import identity_of, write_json
from ltrag_plugins.data import check_labelled, digest_of
from ltrag_plugins.errors import (
    CacheUnreadable,
    InvalidInput,
    LtragError,
    MissingExtra,
    ModelUnavailable,
    checked,
    listed,
    path_of,
)
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.spec import LOWER_IS_BETTER, METRICS, Cell, metrics_named
from ltrag_plugins.flow import Flow, Request, Step, World, check_world, run_many
from ltrag_plugins.gece.decision import Decision, decided
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.methods.method import picked
from ltrag_plugins.methods.sgic import SGICAnswer
from ltrag_plugins.metrics.cost import Cost, CostCounter
from ltrag_plugins.prompts.templates import render_question
from ltrag_plugins.sgic.analysis import as_record, labelled
from ltrag_plugins.sgic.documents import Truth
from ltrag_plugins.types import Answer, Question

# each further question would end in them too
ENDS = (CacheUnreadable, MissingExtra, ModelUnavailable)


class FlowWatch:
    """Watches `run_many`: each flow's cost (of merged requests its share), its steps on request."""

    def __init__(self, trace: bool) -> None:
        self._costs: defaultdict[int, CostCounter] = defaultdict(CostCounter)
        self._steps: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        self._traces = trace

    def __call__(self, step: Step) -> None:
        """Count one step for each of its flows, as the flow would have seen it alone."""
        whole, start = len(requests.items(step.request)), 0
        lists = ("prompts", "continuations", "queries", "texts")
        lists = [name for name in lists if hasattr(step.request, name)]
        for flow, share in zip(step.flows, step.shares or (whole,), strict=True):
            part = slice(start, start + share)
            request = replace(step.request, **{n: getattr(step.request, n)[part] for n in lists})
            reply = None if step.reply is None else step.reply[part]
            seconds = step.seconds * share / max(1, whole)
            self._costs[flow](Step(step.kind, request, reply, seconds))
            if self._traces and step.kind == "reply":
                self._steps[flow].append(_traced(request, () if reply is None else reply))
            start += share

    def seen(self, flow: int = 0) -> tuple[Cost, tuple[dict[str, Any], ...] | None]:
        """What that flow cost, and its steps; None where none are kept."""
        return self._costs[flow].cost, tuple(self._steps[flow]) if self._traces else None


def _traced(request: Request, reply: Sequence[Any]) -> dict[str, Any]:
    match request:
        case requests.Ask(prompts):
            pairs = zip(prompts, reply, strict=True)
            return {"asked": [{"prompt": prompt, "reply": said.text} for prompt, said in pairs]}
        case requests.Fetch(queries):
            rows = [[{"id": p.id, "title": p.title, "text": p.text} for p in ps] for ps in reply]
            pairs = zip(queries, rows, strict=True)
            return {"fetched": [{"query": query, "passages": found} for query, found in pairs]}
        case requests.Score(prompts, texts):
            sums = [sum(token.logprob for token in said.tokens or ()) for said in reply]
            rows = zip(prompts, texts, sums, strict=True)
            return {"scored": [{"prompt": p, "text": t, "logprob": total} for p, t, total in rows]}
        case requests.Embed(texts):
            return {"embedded": list(texts)}
        case requests.Compute():
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

    def records(self, some: Sequence[Question], *, again: bool = True) -> list[Record]:
        """A record of each question, in order; also of one that failed, by itself too (`again`), by
        the model or the retriever. A mistake in a method is raised, and what ends a run."""
        watch = FlowWatch(self.trace)
        flows = [self._flow(question) for question in some]
        found = run_many(flows, self.world, observers=[watch], return_exceptions=True)
        records: list[Record] = []
        for i, (question, outcome) in enumerate(zip(some, found, strict=True)):
            if not isinstance(outcome, Exception):
                records.append(self._record(question, outcome, *watch.seen(i)))
            elif not isinstance(outcome, LtragError) or isinstance(outcome, ENDS):
                raise outcome
            elif again:
                records += self.records([question], again=False)
            else:
                records.append(self.failed(question, outcome, watch))
        return records

    def failed(
        self, question: Question, error: LtragError, watch: FlowWatch | None = None
    ) -> Record:
        """The record of a question that got no answer: the worst scores, and why."""
        worst = {name: float(name in LOWER_IS_BETTER) for name in self.metrics}
        cost, trace = (watch or FlowWatch(False)).seen()
        told = {"error": f"{type(error).__name__}: {error}", "trace": trace}
        return Record.of(question, Answer(""), None, cost, scores=worst, **told)

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

    def _record(
        self, question: Question, outcome: tuple[Answer, Decision | None], cost: Cost, trace: Any
    ) -> Record:
        answer, decision = outcome
        first, rounds = self.metrics[0], None
        scores = {name: _score(name, answer.text, question) for name in self.metrics}

        def quality(text: str, _: Sequence[str]) -> float:
            score = _score(first, picked(Answer(text), question.options).text, question)
            return 1 - score if first in LOWER_IS_BETTER else score

        if isinstance(answer, SGICAnswer) and answer.calibrated is not None:
            truths, texts = [Truth((), question.answers)], [question.text]
            [one] = labelled([answer.calibrated], truths, questions=texts, measure=quality)
            rounds = as_record(one)
        told = {"scores": scores, "trace": trace, "rounds": rounds}
        return Record.of(question, answer, decision, cost, **told)


def _score(metric: str, text: str, question: Question) -> float:
    """A measure of an answer; of an option that was picked, whether it is the accepted one, and not
    one that only reads alike ("2" and "-2")."""
    accepted = set(question.options) & set(question.answers)
    if accepted and text in question.options and metric in ("em", "contains", "accuracy"):
        return float(text in accepted)
    return float(METRICS[metric](text, question.answers))


Job = tuple[Work, Sequence[Question]]
"""What is to be done for one cell."""
Engine = Callable[[Iterable[Job]], Iterable[tuple[str, list[Record]]]]
"""Does the jobs; hands back the cell's name with some records, in the order of its questions."""


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
    questions: Iterable[Question],
    cells: Iterable[Cell],
    world: World,
    *,
    out: str | Path | RunFolder,
    metrics: Iterable[str] = ("em", "f1", "rouge1", "bleu4"),
    labelled: Iterable[Question] = (),
    batch: int = 16,
    trace: bool = False,
    engine: Engine = in_process,
    on_record: Callable[[str, Record], None] | None = None,
    told: Mapping[str, Any] | None = None,
) -> dict[str, list[Record]]:
    """Answer every question in every way, and keep one record of each in `out`.

    The records of each cell come back, in the order of the questions. A call with equal arguments
    goes on where the last one ended, and asks the model nothing twice. A question on which a method
    fails is a record with an error and the worst scores; the next call tries it again.

    Args:
        questions, cells: with distinct ids and names; questions with accepted answers.
        world: the model, and what the methods need of retriever and encoder.
        labelled: other questions with accepted answers, for the methods that learn.
        out: a folder; a `RunFolder` that the caller holds stays held.
        batch: questions that run side by side, at least 1.
        engine: what does the work; `ltrag_plugins.batch.on_ray(...)` does it on Ray.
        trace: keep every request and reply in the records.
        on_record: told the cell's name and each new record.
        told: more to note in run.json, as plain values; no part of what makes a run the same.

    Raises:
        InvalidInput: no questions or cells, a name or id twice, a batch below 1, an unknown
            metric, or a method lacks what it needs; another run is writing to the folder.
        MissingReferences: a question has no accepted answers.
        ArtifactMismatch, UnwritableArtifact: the folder holds another run, or cannot be written to;
            a head was trained with another encoder.
        CacheUnreadable, ModelUnavailable: the answers cannot be kept, as on a full disk; the server
            refuses the key, or one request after the other failed.
    """
    questions, cells = listed(questions, "questions"), listed(cells, "cells")
    labelled = listed(labelled, "labelled questions")
    measures = tuple(metrics_named(metrics))
    check_world(checked(world, World, "world", "World(llm=..., retriever=...)"))
    for cell in cells:
        checked(cell, Cell, "a cell", "cell_of(word) or Cell(method)")
    asked = {"questions": questions, "cells": cells, "labelled": labelled, "trace": trace}
    identity = _identity(**asked, world=world, metrics=measures)
    if not isinstance(batch, Integral) or batch < 1:
        raise InvalidInput(f"batch must be a whole number, at least 1, got {batch!r}")
    batch = int(batch)
    folder = out if isinstance(out, RunFolder) else RunFolder(path_of(out))
    versions = {"python": python_version()}
    for name in _VERSIONED:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    with folder.held():
        folder.begin(identity, {"versions": versions, "told": {"batch": batch, **(told or {})}})
        asking = remembering(world, folder.answers)
        known = {cell.name: {one.id: one for one in folder.records(cell.name)} for cell in cells}

        def keep(name: str, new: Sequence[Record]) -> None:
            folder.add(name, new)
            for record in new:
                known[name][record.id] = record
                if on_record is not None:
                    on_record(name, record)

        def jobs() -> Iterator[Job]:
            for cell in cells:
                before, method = known[cell.name], cell.method
                left = [q for q in questions if q.id not in before or before[q.id].error]
                if not left:
                    continue
                work = Work(cell, None, asking, measures, batch, trace)
                try:
                    learned = method.taught(labelled, cell.set, asking)
                    if learned is not None and method.told is not None:
                        write_json(folder.learned(cell.name), method.told(learned))
                except ENDS:
                    raise
                except LtragError as error:  # nothing to learn from: the other methods go on
                    keep(cell.name, [work.failed(question, error) for question in left])
                else:
                    yield replace(work, learned=learned), left

        for name, new in engine(jobs()):
            keep(name, new)
        return {name: [found[one.id] for one in questions] for name, found in known.items()}


def remembering(world: World, answers: str | Path) -> World:
    """The same world, whose models keep their answers in a file."""
    models = {"llm": world.llm, "filter": world.filter}
    kept = {part: CachedLLM(llm, answers) for part, llm in models.items() if llm is not None}
    return replace(world, **kept)


def check_begun(folder: RunFolder, **asked: Any) -> None:
    """Refuse, before the cells' gates are there, what `evaluate` would refuse of what is asked."""
    identity = _identity(**asked)
    folder.check({name: value for name, value in identity.items() if name != "gates"})


def check_asked(questions: Sequence[Question], cells: Sequence[Cell]) -> None:
    """Whether records of them can be told apart and scored."""
    check_labelled(questions)
    names = {"method": [cell.name for cell in cells], "question id": [q.id for q in questions]}
    for what, some in names.items():
        if twice := [name for name, count in Counter(some).items() if count > 1]:
            where = _places(questions, twice[0]) if what == "question id" else ""
            why = "records are told apart by it, so leave one out or name it otherwise"
            raise InvalidInput(f"the {what} {twice[0]!r} comes twice; {where}{why}")


def _places(questions: Sequence[Question], name: str) -> str:
    """Where the first two questions of this id are: one that was made of the text is in no file."""
    (i, one), (j, other), *_ = ((n, q.text) for n, q in enumerate(questions, 1) if q.id == name)
    texts = f"both {one[:60]!r}" if one == other else f"{one[:60]!r} and {other[:60]!r}"
    return f"it is that of questions {i} and {j}, {texts}; "


def _identity(
    *,
    questions: Sequence[Question],
    cells: Sequence[Cell],
    world: World,
    metrics: Iterable[str],
    labelled: Sequence[Question],
    trace: bool,
) -> dict[str, Any]:
    """What makes a run the same, as JSON; what cannot be run is refused."""
    if not questions or not cells:
        raise InvalidInput("an evaluation needs questions and methods; one of them is empty")
    check_asked(questions, cells)
    check_labelled(labelled, answers=False)
    for cell in cells:
        cell.method.check(world, labelled, cell.set)
    return {
        "cells": [cell.name for cell in cells],
        "settings": {cell.name: json.loads(json.dumps(cell.set, default=_plain)) for cell in cells},
        "gates": {cell.name: _named(cell.gate) for cell in cells if cell.gate is not None},
        "model": _named(world.llm),
        "retriever": _named(world.retriever),
        "encoder": _named(world.encoder),
        "filter": _named(world.filter),
        "questions": digest_of(questions),
        "labelled": digest_of(labelled),
        "metrics": list(metrics_named(metrics)),
        "trace": trace,
    }


def _named(part: Any) -> str | None:
    """By its own `name`, else by its kind; None for no part."""
    return None if part is None else getattr(part, "name", None) or type(part).__qualname__


def _plain(value: Any) -> Any:
    """Settings by field, for JSON; a part that is more than values stands there by its name."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if callable(value) and (hasattr(value, "__qualname__") or not hasattr(value, "name")):
        return identity_of(value).removeprefix(f"{value.__module__}.")
    return getattr(value, "name", None) or repr(value)
