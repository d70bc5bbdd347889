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
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ltrag_plugins.evaluate.folder import Run
from ltrag_plugins.evaluate.records import Record

_BLOCK = 500_000  # characters of traces that the page reads at once
_TRACES = 64_000_000  # of the page; traces of the questions after that are left out
_SHORTEST = 40  # characters of a passage that is worth a number


class _Listing:
    """What the list of questions needs."""

    def __init__(self) -> None:
        self.questions: list[dict[str, Any]] = []
        self.passages: dict[tuple[str, ...], int] = {}  # each with its number
        self.blocks: list[dict[int, dict[int, Any]]] = []
        self.left_out = 0  # questions whose traces found no room
        self._by_id: defaultdict[str, set[int]] = defaultdict(set)
        self._own: dict[str, int] = {}  # of the question that is taken up
        self._in_block = self._kept = 0

    def add(self, found: Mapping[int, Record], metric: str, most: int) -> None:
        """Take up a question with its answers by cell, and their traces while there is room."""
        first, place, self._own = next(iter(found.values())), len(self.questions), {}
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
        answer: dict[str, Any] = {
            "p": record.prediction,
            "ok": int(record.right(metric)),
            "s": [_short(score) for score in record.scores.values()],
            "c": [record.calls, record.retrievals, record.tokens, _short(record.ms)],
            "g": [self._named(passage) for passage in record.passages] or None,
            "u": record.uncertainty,
            "e": record.error,
            "m": record.mode,
            "n": None if record.trace is None else len(record.trace),
        }
        if (decision := record.decision) is not None:
            signals = decision.get("ingredients") or {}
            answer["d"] = {
                "on": decision["retrieve"],
                "s": None if decision["score"] is None else _short(decision["score"]),
                "p": _short(decision["probability"]),
                "why": str(decision.get("reason", "")),
                "x": {name: _short(v) for name, v in signals.items() if isinstance(v, int | float)},
            }
        return {key: v for key, v in answer.items() if v is not None}

    def _named(self, passage: Mapping[str, Any]) -> list[Any]:
        """A passage of an answer, with the number of its text where the question's traces have it,
        or all traces the same one: questions may number their passages themselves."""
        name, score = str(passage.get("id") or ""), passage.get("score")
        score = score if isinstance(score, int | float) else None
        row = [str(passage.get("title") or ""), name, score]
        numbers = {self._own[name]} if name in self._own else self._by_id.get(name, ())
        return [*row, *numbers] if len(numbers) == 1 else row

    def _step(self, step: Mapping[str, Any], near: dict[str, int]) -> Any:
        """A step with its passages as numbers; `near` are the question's long ones, by text."""
        if "fetched" in step:
            numbers = [[self._number(p, near) for p in x["passages"]] for x in step["fetched"]]
            pairs = zip(step["fetched"], numbers, strict=True)
            return {"fetched": [{**x, "passages": some} for x, some in pairs]}
        if "asked" in step:
            return {"asked": [{**x, "prompt": _cut(x["prompt"], near)} for x in step["asked"]]}
        return step

    def _number(self, passage: Mapping[str, Any], near: dict[str, int]) -> int:
        name, _, text = key = tuple(str(passage.get(k, "")) for k in ("id", "title", "text"))
        if key not in self.passages:
            self.passages[key] = len(self.passages)
            self._kept += len(text)
        if name:
            self._by_id[name].add(self._own.setdefault(name, self.passages[key]))
        if len(text) >= _SHORTEST:
            near[text] = self.passages[key]
        return self.passages[key]


def listing(run: Run, *, most: int = _TRACES) -> _Listing:
    """All questions with all answers, also of unfinished cells, and `most` characters of traces."""
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
    if "\0" in prompt:
        return prompt
    cut = prompt
    for text in sorted(near, key=len, reverse=True):
        cut = cut.replace(text, f"\0{near[text]}\0")
    pieces = enumerate(cut.split("\0"))
    numbered = [int(piece) if place % 2 else piece for place, piece in pieces if piece]
    return prompt if cut == prompt else numbered


def _short(value: float) -> float:
    return float(f"{value:.4g}")
