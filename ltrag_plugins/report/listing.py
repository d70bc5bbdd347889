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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.report.reading import Run

_BLOCK = 500_000
"""Characters of traces that the page reads at once."""
_TRACES = 64_000_000
"""Characters of traces in a page; those of the questions after that are left out."""
_SHORTEST = 40  # characters of a passage that is worth a number


@dataclass
class _Listing:
    """What the list of questions needs."""

    questions: list[dict[str, Any]] = field(default_factory=list)
    passages: list[tuple[str, str, str]] = field(default_factory=list)
    blocks: list[dict[int, dict[int, Any]]] = field(default_factory=list)
    left_out: int = 0
    """Questions whose traces found no room."""
    _numbers: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _by_id: dict[str, int] = field(default_factory=dict)
    """The first passage of an id."""
    _in_block: int = 0
    _kept: int = 0

    def add(self, found: Mapping[int, Record], metric: str, most: int) -> None:
        """Take up a question with its answers by cell, and their traces while there is room."""
        first, place = next(iter(found.values())), len(self.questions)
        row: dict[str, Any] = {"i": first.id, "q": first.question, "a": list(first.answers)}
        traced = {cell: record.trace for cell, record in found.items() if record.trace}
        if traced and self._kept > most:
            self.left_out += 1
        elif traced:
            near: dict[str, int] = {}
            packed = {cell: [self._step(x, near) for x in trace] for cell, trace in traced.items()}
            size = len(json.dumps(packed))
            if not self.blocks or self._in_block + size > _BLOCK:
                self.blocks.append({})
                self._in_block = 0
            self._in_block += size
            self._kept += size
            self.blocks[-1][place] = packed
            row["t"] = len(self.blocks) - 1
        row["r"] = {cell: self._answer(record, metric) for cell, record in found.items()}
        self.questions.append(row)

    def _answer(self, record: Record, metric: str) -> dict[str, Any]:
        answer = {
            "p": record.prediction,
            "ok": int(record.right(metric)),
            "s": [_short(score) for score in record.scores.values()],
            "c": [record.calls, record.retrievals, record.tokens, _short(record.ms)],
        }
        more: dict[str, Any] = {
            "g": [self._named(passage) for passage in record.passages],
            "u": record.uncertainty,
            "e": record.error,
            "m": record.mode,
            "n": len(record.trace) if record.trace is not None else None,
        }
        if (decision := record.decision) is not None:
            signals = decision.get("ingredients") or {}
            more["d"] = {
                "on": decision["retrieve"],
                "s": _short(decision["score"]),
                "p": _short(decision["probability"]),
                "why": str(decision.get("reason", "")),
                "x": {name: _short(v) for name, v in signals.items() if isinstance(v, int | float)},
            }
        return answer | {key: value for key, value in more.items() if value not in (None, [])}

    def _named(self, passage: Mapping[str, Any]) -> list[Any]:
        """A passage of an answer, with the number of its text where a trace has it."""
        name, title, score = (passage.get(key) for key in ("id", "title", "score"))
        row = [str(title or ""), str(name or ""), score if isinstance(score, int | float) else None]
        number = self._by_id.get(str(name or ""))
        return row if number is None else [*row, number]

    def _step(self, step: Mapping[str, Any], near: dict[str, int]) -> Any:
        """A step with its passages as numbers, by which later prompts show them too.

        Args:
            near: long passages of the question at hand, by text; new ones are added.
        """
        if "fetched" in step:
            found = [
                {
                    "query": one["query"],
                    "passages": [self._number(p, near) for p in one["passages"]],
                }
                for one in step["fetched"]
            ]
            return {"fetched": found}
        if "asked" in step:
            return {
                "asked": [{**one, "prompt": _cut(one["prompt"], near)} for one in step["asked"]]
            }
        return step

    def _number(self, passage: Mapping[str, Any], near: dict[str, int]) -> int:
        name, title, text = (str(passage.get(part, "")) for part in ("id", "title", "text"))
        key = (name, title, text)
        if key not in self._numbers:
            self._numbers[key] = len(self.passages)
            if name:
                self._by_id.setdefault(name, len(self.passages))
            self.passages.append(key)
            self._kept += len(text)
        if len(text) >= _SHORTEST:
            near[text] = self._numbers[key]
        return self._numbers[key]


def listing(run: Run, *, most: int = _TRACES) -> _Listing:
    """All questions with all their answers, also those of unfinished cells.

    Args:
        most: characters of traces.
    """
    rows: dict[str, dict[int, Record]] = {}
    for number, records in enumerate(run.records.values()):
        for record in records:
            rows.setdefault(record.id, {})[number] = record
    found = _Listing()
    for answers in rows.values():
        found.add(answers, run.metric, most)
    return found


def _cut(prompt: str, near: Mapping[str, int]) -> str | list[str | int]:
    """The prompt with the passages of its question as numbers."""
    mark = "\0"
    if mark in prompt:
        return prompt
    cut = prompt
    for text in sorted(near, key=len, reverse=True):
        cut = cut.replace(text, f"{mark}{near[text]}{mark}")
    pieces = enumerate(cut.split(mark))
    numbered = [int(piece) if place % 2 else piece for place, piece in pieces if piece]
    return prompt if cut == prompt else numbered


def _short(value: float) -> float:
    return float(f"{value:.4g}")
