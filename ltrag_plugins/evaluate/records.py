"""One question, answered one way: a record, and the line of JSON that keeps it."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

from ltrag_plugins.errors import BadRecord
from ltrag_plugins.evaluate.spec import LOWER_IS_BETTER
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.metrics.cost import Cost
from ltrag_plugins.settings import Range, Settings, Share, Whole, check_fields
from ltrag_plugins.sgic.analysis import from_record
from ltrag_plugins.types import Answer, Question


@dataclass(frozen=True, slots=True)
class Record:
    """What came of one question. Equal runs give equal records but for `ms`."""

    id: str
    """The question's."""
    question: str
    answers: tuple[str, ...]
    prediction: str
    scores: Mapping[str, float]
    """By metric; 0 (TER: 1) where the method failed."""
    passages: tuple[Mapping[str, Any], ...] = ()
    """Those the answer rests on: id, title, score."""
    uncertainty: Share | None = None
    """0 to 1; None where the method gives none."""
    decision: Mapping[str, Any] | None = None
    """The gate's, as `Decision.as_metadata`; None without a gate."""
    calls: Whole = 0
    prompt_tokens: Whole | None = 0
    """None: the model did not say."""
    completion_tokens: Whole | None = 0
    retrievals: Whole = 0
    ms: Annotated[float, Range(0)] = 0.0
    """Of waiting for model, search and encoder; of merged requests, its share."""
    error: str | None = None
    """What the method raised, if it did."""
    trace: tuple[Mapping[str, Any], ...] | None = None
    """Every request and its replies, on request."""
    mode: str | None = None
    """How it went about it, where the method says so: Self-RAG's reflection tokens, or judged."""
    rounds: Mapping[str, Any] | None = None
    """Of SGIC: all answers with their uncertainties, right or wrong by the first metric, and the
    documents with their scores; `sgic.read_run` reads files of such records."""

    @classmethod
    def of(
        cls, question: Question, answer: Answer, decision: Decision | None, cost: Cost, **more: Any
    ) -> Self:
        """A record of an answer; of an empty one, where `error` says what was raised instead."""
        found = ({"id": p.id, "title": p.title, "score": _finite(p.score)} for p in answer.passages)
        counted = ("calls", "prompt_tokens", "completion_tokens", "retrievals")
        record = cls(
            *(question.id, question.text, question.answers, answer.text),
            passages=tuple(found),
            uncertainty=_finite(answer.uncertainty),
            decision=None if decision is None else decision.as_metadata(),
            ms=round(1000 * cost.seconds, 3),
            mode=getattr(answer, "mode", None),
            **{name: getattr(cost, name) for name in counted},
            **more,
        )
        check_fields(record)  # a line that nobody can read would cost its whole cell
        return record

    @property
    def tokens(self) -> int | None:
        """Read and written; None: not known."""
        counts = self.prompt_tokens, self.completion_tokens
        return None if None in counts else sum(filter(None, counts))

    def right(self, metric: str) -> bool:
        """Whether the answer counts as right: a score of at least 0.5 (TER: at most)."""
        score = self.scores[metric]
        return score <= 0.5 if metric in LOWER_IS_BETTER else score >= 0.5

    def as_line(self) -> str:
        """One line of JSON, without the line's end."""
        line = json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)
        return line.encode(errors="backslashreplace").decode()  # half an emoji: JSON's own escape

    @classmethod
    def from_line(cls, line: bytes | str, where: str = "record") -> Self:
        """What `as_line` wrote; `BadRecord` names `where` and what is wrong with another line."""
        try:
            values = json.loads(line)
            lists = ["answers", "passages", *["trace"] * (values.get("trace") is not None)]
            record = cls(**values | {name: tuple(values[name]) for name in lists})
            record._check()
            return record
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise BadRecord(f"{where}: no record of a run ({why})") from error

    def _check(self) -> None:
        """Refuse what a report or a summary could not read."""
        check_fields(self)
        for name, kind in (("answers", str), ("passages", dict), ("trace", dict)):
            if not all(isinstance(one, kind) for one in getattr(self, name) or ()):
                raise BadRecord(f"{name} must be a list of {kind.__name__}")
        known = [type(s) in (int, float) and math.isfinite(s) for s in self.scores.values()]
        if not known or not all(known):
            raise BadRecord(f"scores must hold a number for each metric, got {self.scores}")
        if self.decision is not None:
            _Decided(*(self.decision[name] for name in ("retrieve", "score", "probability")))
            if not isinstance(self.decision.get("ingredients", {}), dict):
                raise BadRecord("ingredients must be numbers by name")
        if self.rounds is not None:
            from_record(self.rounds)


@dataclass(frozen=True, slots=True)
class _Decided(Settings):
    """What a report reads of a decision."""

    retrieve: bool
    score: Annotated[float, Range()] | None
    probability: Share


def _finite(value: Any) -> float | None:
    """A number of any kind as JSON has it; None for what it has not."""
    return float(value) if value is not None and math.isfinite(value) else None
