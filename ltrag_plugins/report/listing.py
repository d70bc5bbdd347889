"""The questions of a run as plain values for the page's list: small, and traces apart.

::

    questions  [{"q": question, "a": [accepted], "r": {cell: answer}, "t": block of its traces}]
    answer     {"p": prediction, "ok": right?, "s": [scores], "c": [calls, searches, tokens, ms],
                "g": [[title, id, score, passage]], "d": decision, "u": uncertainty, "e": error,
                "m": mode, "n": steps of its trace}
    passages   [[id, title, text]], each once
    blocks     [{question: {cell: [step]}}]

A prompt repeats the passages it shows; in a trace it is a list of texts and numbers of passages.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.report.reading import Run, right

_BLOCK = 500_000
"""Characters of traces that the page reads at once."""
_TRACES = 64_000_000
"""Characters of traces in a page; those of the questions after that are left out."""
_SHORTEST = 40  # characters of a passage that is worth a number


@dataclass(frozen=True, slots=True)
class Listing:
    """What the list of questions needs."""

    questions: list[dict[str, Any]]
    passages: list[list[str]]
    blocks: list[dict[int, dict[int, Any]]]
    left_out: int
    """Questions whose traces found no room."""


def listing(run: Run, *, most: int = _TRACES) -> Listing:
    """All questions with all their answers, also those of unfinished cells.

    Args:
        most: characters of traces.
    """
    metric, cells = run.metric, list(run.records)
    rows: dict[str, dict[int, Record]] = {}
    for number, cell in enumerate(cells):
        for record in run.records[cell]:
            rows.setdefault(record.id, {})[number] = record
    traces, questions = _Traces(most), []
    for number, found in enumerate(rows.values()):
        first = next(iter(found.values()))
        row: dict[str, Any] = {"i": first.id, "q": first.question, "a": list(first.answers)}
        block = traces.add(number, found)
        if block is not None:
            row["t"] = block
        row["r"] = {cell: _answer(record, metric, traces) for cell, record in found.items()}
        questions.append(row)
    return Listing(questions, traces.passages, traces.blocks, traces.left_out)


def _answer(record: Record, metric: str, traces: "_Traces") -> dict[str, Any]:
    tokens = (record.prompt_tokens, record.completion_tokens)
    known = None if None in tokens else sum(count or 0 for count in tokens)
    answer: dict[str, Any] = {
        "p": record.prediction,
        "ok": int(right(record, metric)),
        "s": [_short(score) for score in record.scores.values()],
        "c": [record.calls, record.retrievals, known, _short(record.ms)],
    }
    more = {
        "g": [traces.named(passage) for passage in record.passages],
        "d": _decision(record.decision),
        "u": record.uncertainty,
        "e": record.error,
        "m": record.mode,
        "n": len(record.trace) if record.trace is not None else None,
    }
    return answer | {key: value for key, value in more.items() if value not in (None, [])}


def _decision(decision: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if decision is None:
        return None
    signals = decision.get("ingredients") or {}
    return {
        "on": decision["retrieve"],
        "s": _short(decision["score"]),
        "p": _short(decision["probability"]),
        "why": str(decision.get("reason", "")),
        "x": {name: _short(v) for name, v in signals.items() if isinstance(v, int | float)},
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass
class _Traces:
    """Collects traces until there are too many."""

    most: int
    passages: list[list[str]] = field(default_factory=list)
    blocks: list[dict[int, dict[int, Any]]] = field(default_factory=list)
    left_out: int = 0
    _numbers: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _by_id: dict[str, int] = field(default_factory=dict)
    _near: dict[str, int] = field(default_factory=dict)
    """Long passages of the question at hand, by text."""
    _in_block: int = 0
    _kept: int = 0

    def add(self, question: int, found: Mapping[int, Record]) -> int | None:
        """Keep the traces of a question; the number of their block, None without any."""
        traced = {cell: record.trace for cell, record in found.items() if record.trace}
        if not traced:
            return None
        if self._kept > self.most:
            self.left_out += 1
            return None
        self._near = {}
        packed = {cell: [self._step(step) for step in trace] for cell, trace in traced.items()}
        size = len(json.dumps(packed))
        if not self.blocks or self._in_block + size > _BLOCK:
            self.blocks.append({})
            self._in_block = 0
        self._in_block += size
        self._kept += size
        self.blocks[-1][question] = packed
        return len(self.blocks) - 1

    def named(self, passage: Mapping[str, Any]) -> list[Any]:
        """A passage of an answer, with the number of its text where a trace has it."""
        name, title, score = (passage.get(key) for key in ("id", "title", "score"))
        row = [str(title or ""), str(name or ""), score if isinstance(score, int | float) else None]
        number = self._by_id.get(str(name or ""))
        return row if number is None else [*row, number]

    def _step(self, step: Mapping[str, Any]) -> Any:
        """A step with its passages as numbers; one of another shape stays as it is."""
        found = step.get("fetched")
        if isinstance(found, list) and all(_is_fetch(one) for one in found):
            return {
                "fetched": [
                    {"query": one["query"], "passages": [*map(self._number, one["passages"])]}
                    for one in found
                ]
            }
        asked = step.get("asked")
        if isinstance(asked, list) and all(_is_asking(one) for one in asked):
            return {"asked": [{**one, "prompt": self._cut(one["prompt"])} for one in asked]}
        return step

    def _number(self, passage: Mapping[str, Any]) -> int:
        name, title, text = (str(passage.get(part, "")) for part in ("id", "title", "text"))
        key = (name, title, text)
        if key not in self._numbers:
            self._numbers[key] = len(self.passages)
            if key[0]:
                self._by_id.setdefault(key[0], len(self.passages))
            self.passages.append(list(key))
            self._kept += len(key[2])
        if len(key[2]) >= _SHORTEST:
            self._near[key[2]] = self._numbers[key]
        return self._numbers[key]

    def _cut(self, prompt: str) -> str | list[str | int]:
        """The prompt with the passages of this question as numbers."""
        pieces: list[str | int] = [prompt]
        for text in sorted(self._near, key=len, reverse=True):
            pieces = [part for piece in pieces for part in _parted(piece, text, self._near[text])]
        return prompt if pieces == [prompt] else pieces


def _parted(piece: str | int, text: str, number: int) -> Iterator[str | int]:
    """The piece with the number wherever the text stood."""
    if isinstance(piece, int):
        yield piece
        return
    for place, between in enumerate(piece.split(text)):
        if place:
            yield number
        if between:
            yield between


def _is_fetch(one: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("passages"), list):
        return False
    return "query" in one and all(isinstance(passage, dict) for passage in one["passages"])


def _is_asking(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("prompt"), str)
