"""The page on gates for a 1.5B model says what the kept answers say."""

import gzip
import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_counts_as_the_records_do():
    with gzip.open(ROOT / "benchmarks/results/gate_sets.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    page = (ROOT / "docs/results/gate-sets.md").read_text(encoding="utf-8")
    told = re.findall(
        r"## (\w+): (\d+) questions to fit, (\d+) to judge; never ([\d.]+) .*?"
        r"always ([\d.]+) .*?either ([\d.]+)",
        page,
    )
    assert [name for name, *_ in told] == [*dict.fromkeys(row["set"] for row in rows)]
    for name, fitted, judged, *shares in told:
        own = [row for row in rows if row["set"] == name]
        asked = [row for row in own if row["part"] == "dev_test"]
        assert (int(fitted), int(judged)) == (len(own) - len(asked), len(asked))
        right = [(_holds(r["draft"], r), _holds(r["answer"], r)) for r in asked]
        counts = sum(a for a, _ in right), sum(b for _, b in right), sum(a or b for a, b in right)
        assert [*shares] == [f"{count / len(asked):.3f}" for count in counts]


def _holds(answer: str, row: dict) -> bool:
    """Whether an accepted answer is among the words; articles and punctuation aside."""
    return any(f" {_plain(one)} " in f" {_plain(answer)} " for one in row["accepted"])


def _plain(text: str) -> str:
    text = re.sub(r"[^\w\s]", "", text.lower())
    return " ".join(word for word in text.split() if word not in ("a", "an", "the"))
