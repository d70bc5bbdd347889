"""Questions with ten passages, one or two of them gold: what the SGIC benchmarks share."""

import gzip
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrag_plugins.llm.embedded import embedded
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.types import Passage, Question

SETS = ("nq_distractor", "hotpotqa")
WORDS = 60
"""Of each passage; nine in ten gold passages keep the answer."""


@dataclass(frozen=True, slots=True)
class Item:
    """A question, which of its passages are gold, and of what type it is, where its set says."""

    question: Question
    gold: tuple[bool, ...]
    type: str = ""


def items(name: str, split: str, limit: int, type: str = "") -> list[Item]:
    """The first questions, of one type or all, in the order of the hashes of their ids; with a
    limit of 0 every one."""
    root = os.environ.get("LTRAG_DATA")
    if not root:
        sys.exit("set LTRAG_DATA to the folder that holds nq_distractor/ and hotpotqa/")
    path = Path(root) / name / f"{split}.jsonl"
    packed = path.with_suffix(".jsonl.gz")
    if not path.exists() and not packed.exists():
        sys.exit(f"there is no {path}, nor {packed.name}; --split is dev_test or train")
    content = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    every = map(json.loads, content.splitlines())
    rows = [row for row in every if type in ("", row.get("type"))]
    if not rows:
        sys.exit(f"{name}/{split} has no question of the type {type!r}")
    rows.sort(key=lambda row: hashlib.sha256(str(row["id"]).encode()).hexdigest())
    return [_item(row) for row in rows[: limit or None]]


def _item(row: dict) -> Item:
    passages = tuple(Passage(p["text"], title=p["title"]) for p in row["passages"])
    gold = (
        tuple(i == row["gold_index"] for i in range(len(passages)))
        if "gold_index" in row
        else tuple(p.title in row["supporting_titles"] for p in passages)
    )
    question = Question(row["question"], tuple(row["answers"]), str(row["id"]), passages)
    return Item(question, gold, row.get("type") or "")


def model(source: str, *, adapter: str | None = None, dtype: str = "auto") -> TransformersLLM:
    """ "embedded", a folder, or a GGUF file; with an adapter over it, if one is named."""
    if source == "embedded":
        return embedded(adapter=adapter, dtype=dtype)
    return TransformersLLM.load(source, adapter=adapter, dtype=dtype)


def settings(**more: Any) -> SGICSettings:
    """Of all runs: short documents, short answers."""
    return SGICSettings(document_words=WORDS, answer_tokens=16, **more)
