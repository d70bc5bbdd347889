"""Questions through one cell, side by side, into records: the part of a run that a worker does."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ltrag_plugins.errors import CacheUnreadable, LtragError
from ltrag_plugins.evaluate.costs import CostByFlow
from ltrag_plugins.evaluate.metrics import LOWER_IS_BETTER, chosen
from ltrag_plugins.evaluate.naming import CellName
from ltrag_plugins.evaluate.records import Outcome, Record, recorded
from ltrag_plugins.evaluate.tracing import Tracing
from ltrag_plugins.flow import Flow, Observer, World, run, run_many
from ltrag_plugins.gece.decision import Gate, decided
from ltrag_plugins.llm.cached import Remembering
from ltrag_plugins.methods.method import Method, picked
from ltrag_plugins.methods.sgic import SGICAnswer
from ltrag_plugins.metrics.cost import Cost, CostCounter
from ltrag_plugins.prompts.question import render_question
from ltrag_plugins.sgic.documents import Truth
from ltrag_plugins.sgic.judged import as_record, judged
from ltrag_plugins.types import Answer, Question


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to answer all questions: a method, its settings, a gate before it or none.

    Raises:
        InvalidInput: a label or a gate's name that no name can be put together with.
    """

    method: Method
    settings: Any = None
    """None: the method's defaults."""
    gate: Gate | None = None
    gate_name: str = ""
    """What tells this gate from others; part of the cell's name."""
    seed: int | None = None
    """Put into the settings, where they have a seed."""
    label: str = ""
    """What tells these settings from others; part of the cell's name."""

    def __post_init__(self) -> None:
        _ = self.name  # cannot be made of every label

    @property
    def name(self) -> str:
        """``method:label+gate@seed``, as far as the cell has them (`CellName`)."""
        gate = "" if self.gate is None else self.gate_name or "gate"
        seed = "" if self.seed is None else str(self.seed)
        return str(CellName(self.method.name, self.label, gate, seed))

    @property
    def set(self) -> Any:
        """The settings, with the seed in them."""
        settings = self.method.settings() if self.settings is None else self.settings
        seeded = self.seed is not None and "seed" in {f.name for f in fields(settings)}
        return replace(settings, seed=self.seed) if seeded else settings


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
        costs, tracing = CostByFlow(), Tracing(self.trace)
        found = run_many(
            [self._flow(question) for question in some],
            self.world,
            observers=(costs, tracing, *self.observers),
            return_exceptions=True,
        )
        return [
            self._alone(question, outcome)
            if isinstance(outcome, Exception)
            else self._record(question, outcome, costs.of(i), tracing.of(i))
            for i, (question, outcome) in enumerate(zip(some, found, strict=True))
        ]

    def start(self) -> None:
        """Let the model forget the cells before: what it remembers would flatter this one's ms."""
        if isinstance(self.world.llm, Remembering):
            self.world.llm.forget()

    def failed(
        self,
        question: Question,
        error: LtragError,
        cost: Cost | None = None,
        trace: tuple[Mapping[str, Any], ...] | None = None,
    ) -> Record:
        """The record of a question that got no answer: the worst scores, and why."""
        worst = {name: float(name in LOWER_IS_BETTER) for name in self.metrics}
        return recorded(question, None, cost or Cost(), worst, error, trace)

    def _flow(self, question: Question) -> Flow[Outcome]:
        cell, settings = self.cell, self.cell.set
        if cell.gate is None:
            return (yield from _ungated(cell.method.flow(question, settings, self.learned)))
        answer, decision = yield from decided(
            render_question(question),
            cell.gate,
            lambda _: cell.method.flow(question, settings, self.learned),
        )
        drafted = not decision.retrieve  # by no method, so it was read by none
        return Outcome(picked(answer, question.options) if drafted else answer, decision)

    def _alone(self, question: Question, failed: Exception) -> Record:
        """Ask again, by itself: what failed may have been another question of the batch."""
        if not isinstance(failed, LtragError) or isinstance(failed, CacheUnreadable):
            raise failed
        cost, tracing = CostCounter(), Tracing(self.trace)
        watching = (cost, tracing, *self.observers)
        try:
            outcome = run(self._flow(question), self.world, observers=watching)
        except CacheUnreadable:
            raise
        except LtragError as error:
            return self.failed(question, error, cost.cost, tracing.of(0))
        return self._record(question, outcome, cost.cost, tracing.of(0))

    def _record(
        self,
        question: Question,
        outcome: Outcome,
        cost: Cost,
        trace: tuple[Mapping[str, Any], ...] | None,
    ) -> Record:
        text, metrics = outcome.answer.text, chosen(self.metrics)
        scores = {name: float(m(text, question.answers)) for name, m in metrics.items()}
        rounds = self._rounds(question, outcome.answer)
        return recorded(question, outcome, cost, scores, trace=trace, rounds=rounds)

    def _rounds(self, question: Question, answer: Answer) -> Mapping[str, Any] | None:
        if not isinstance(answer, SGICAnswer) or answer.calibrated is None:
            return None
        [(name, measure)] = chosen(self.metrics[:1]).items()

        def quality(text: str, answers: Sequence[str]) -> float:
            score = float(measure(picked(Answer(text), question.options).text, answers))
            return 1 - score if name in LOWER_IS_BETTER else score

        truth = Truth((), question.answers)
        [one] = judged([answer.calibrated], [truth], questions=[question.text], measure=quality)
        return as_record(one)


Job = tuple[Work, Sequence[Question]]
"""What is to be done for one cell."""
Engine = Callable[[Iterable[Job]], Iterable[tuple[str, list[Record]]]]
"""Does the jobs, and hands back the cell's name with its records, some at a time and in the order
of its questions."""


def in_process(jobs: Iterable[Job]) -> Iterator[tuple[str, list[Record]]]:
    """The jobs here and now, one after another, `work.batch` questions at a time."""
    for work, questions in jobs:
        work.start()
        for start in range(0, len(questions), work.batch):
            yield work.cell.name, work.records(questions[start : start + work.batch])


def _ungated(flow: Flow[Any]) -> Flow[Outcome]:
    return Outcome((yield from flow))
