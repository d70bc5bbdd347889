"""A small run on disk, and a page as a parser sees it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import html5lib

from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.records import Record

HOSTILE = (
    "</script><script>window.pwned=1</script><img src=x onerror='pwned=2'> \u202egnp.exe\U000e0041"
)
XHTML = "{http://www.w3.org/1999/xhtml}"


def record(number: int, right: bool, **more: Any) -> Record:
    """Question `number`, answered right or wrong."""
    values: dict[str, Any] = {
        "id": f"q{number}", "question": f"who wrote book {number}?",
        "answers": (f"Author {number}",),
        "prediction": f"Author {number}" if right else "somebody else",
        "scores": {"em": float(right), "f1": 1.0 if right else 0.25},
        "calls": 1, "prompt_tokens": 9, "completion_tokens": 2, "ms": 20.0 + number,
    }  # fmt: skip
    return Record(**values | more)


def decision(score: float, retrieve: bool) -> dict[str, Any]:
    """A gate's, whose probability is its score."""
    why = {"tier": "text", "reason": f"score {score}", "ingredients": {"words": 3.0}}
    return {"retrieve": retrieve, "score": score, "probability": score, **why}


def trace(passage: str) -> tuple[dict[str, Any], ...]:
    """A search, and a prompt that shows what was found."""
    found = [{"id": "p0", "title": f"title {HOSTILE}", "text": passage}]
    prompt = f"title: {passage}\n\nQuestion: {HOSTILE}"
    return (
        {"fetched": [{"query": "a query", "passages": found}]},
        {"asked": [{"prompt": prompt, "reply": HOSTILE}]},
    )


PASSAGE = f"A passage long enough to be worth a number of its own. {HOSTILE}"
SCORES = (0.1, 0.2, 0.3, 0.4, 0.55, 0.6, 0.7, 0.7, 0.8, 0.9)
KNOWN = (True, True, False, True, False, True, False, False, False, False)


def cells() -> dict[str, list[Record]]:
    """Ten questions, answered directly, with passages, and behind a gate that opens at 0.5."""
    seen = {"passages": ({"id": "p0", "title": HOSTILE, "score": 1.5},), "retrievals": 1}
    direct = [record(i, known) for i, known in enumerate(KNOWN)]
    doubt = {True: 0.25, False: 0.85}
    single = [
        record(i, right, **seen, uncertainty=doubt[right], trace=trace(PASSAGE))
        for i, right in ((i, i % 4 != 1) for i in range(10))
    ]
    gated = [
        record(i, single[i].scores["em"] == 1 if s > 0.5 else known, decision=decision(s, s > 0.5))
        for i, (s, known) in enumerate(zip(SCORES, KNOWN, strict=True))
    ]
    single[9] = record(9, False, prediction="", error=f"ModelFailed: {HOSTILE}")
    direct[0] = record(0, True, question=HOSTILE, prediction=HOSTILE)
    return {"direct": direct, "single": single, "single+gate": gated}


def run_folder(path: Path, records: dict[str, Sequence[Record]] | None = None, **more: Any) -> Path:
    """A run folder with these records."""
    records = cells() if records is None else records
    folder = RunFolder(path)
    identity = {
        "cells": [*records], "settings": {name: {} for name in records}, "model": HOSTILE,
        "questions": "10 questions, sha256 0", "labelled": "0 questions, sha256 0",
        "metrics": ["em", "f1"], "trace": True,
    }  # fmt: skip
    folder.begin(identity | more, {"versions": {"ltrag-plugins": "0"}})
    for name, some in records.items():
        if some:
            folder.add(name, some)
    return path


class Parsed:
    """A page, parsed by the rules of HTML 5."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.root = html5lib.parse(self.text)
        self.elements = [e for e in self.root.iter() if isinstance(e.tag, str)]

    def named(self, tag: str) -> list[Any]:
        """Elements of HTML of a name, in order."""
        return [e for e in self.elements if e.tag == f"{XHTML}{tag}"]

    def data(self, name: str) -> Any:
        """The value of a data block."""
        [block] = [e for e in self.named("script") if e.get("id") == name]
        return json.loads(block.text)

    def words(self) -> str:
        """All text that a reader may see."""
        hidden = (f"{XHTML}script", f"{XHTML}style")
        return " ".join("".join(self._texts(self.root, hidden)).split())

    def _texts(self, element: Any, hidden: tuple[str, ...]) -> Iterator[str]:
        if element.tag not in hidden and isinstance(element.tag, str):
            yield element.text or ""
            for child in element:
                yield from self._texts(child, hidden)
        yield f" {element.tail or ''}"

    def rows(self, table: str) -> dict[str, list[str]]:
        """What the cells of each row are sorted by."""
        [found] = [e for e in self.named("table") if e.get("id") == table]
        rows = [[cell.get("data-value") for cell in row] for row in found.iter(f"{XHTML}tr")]
        return {name: values for name, *values in rows[1:]}
