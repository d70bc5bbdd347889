"""One question, answered one way: a record, and the line of JSON that keeps it."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from ltrag_plugins.errors import BadRecord
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.metrics.cost import Cost
from ltrag_plugins.types import Answer, Passage, Question


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
    uncertainty: float | None = None
    """0 to 1; None where the method gives none."""
    decision: Mapping[str, Any] | None = None
    """The gate's, as `Decision.as_metadata`; None without a gate."""
    calls: int = 0
    prompt_tokens: int | None = 0
    """None: the model did not say."""
    completion_tokens: int | None = 0
    retrievals: int = 0
    ms: float = 0.0
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

    def as_line(self) -> str:
        """One line of JSON, without the line's end."""
        line = json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)
        return line.encode(errors="backslashreplace").decode()  # half an emoji: JSON's own escape

    @classmethod
    def from_line(cls, line: bytes | str, where: str = "record") -> Self:
        """What `as_line` wrote.

        Raises:
            BadRecord: it is not; names `where`.
        """
        try:
            values = json.loads(line)
            for name in ("answers", "passages"):
                values[name] = tuple(values[name])
            if values.get("trace") is not None:
                values["trace"] = tuple(values["trace"])
            return cls(**values)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadRecord(f"{where}: no record of a run ({type(error).__name__}: {error})") from (
                error
            )


def _named(passage: Passage) -> dict[str, Any]:
    return {"id": passage.id, "title": passage.title, "score": _finite(passage.score)}


def _finite(value: Any) -> float | None:
    """A number of any kind as JSON has it; None for what it has not."""
    return float(value) if value is not None and math.isfinite(value) else None


def recorded(
    question: Question,
    answer: Answer,
    decision: Decision | None,
    cost: Cost,
    scores: Mapping[str, float],
    error: Exception | None = None,
    trace: tuple[Mapping[str, Any], ...] | None = None,
    rounds: Mapping[str, Any] | None = None,
) -> Record:
    """A record of an answer, or of what was raised instead of one."""
    return Record(
        question.id,
        question.text,
        question.answers,
        answer.text,
        scores,
        tuple(map(_named, answer.passages)),
        _finite(answer.uncertainty),
        None if decision is None else decision.as_metadata(),
        cost.calls,
        cost.prompt_tokens,
        cost.completion_tokens,
        cost.retrievals,
        round(1000 * cost.seconds, 3),
        None if error is None else f"{type(error).__name__}: {error}",
        trace,
        getattr(answer, "mode", None),
        rounds,
    )
