"""How large the page of a large run is: made-up records, with traces of real size.

Every question is answered in several ways, each with a search for ten passages and a prompt that
shows them; the passages come from a pool, so that questions share some. Usage:

    python benchmarks/report_page.py
    python benchmarks/report_page.py --questions 500 --ways 4 --out page/
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.report import write_report

WORDS = [f"word{i}" for i in range(5000)]
PASSAGES, WORDS_EACH = 10, 180


def pool(count: int, draw: random.Random) -> list[dict[str, str]]:
    """Passages of about a thousand characters."""
    return [
        {
            "id": f"p{i}",
            "title": f"Title {i}",
            "text": " ".join(draw.choices(WORDS, k=WORDS_EACH)),
        }
        for i in range(count)
    ]


def record(number: int, found: list[dict[str, str]], draw: random.Random) -> Record:
    """One question, answered after a search."""
    question = f"question {number}, what is {' '.join(draw.choices(WORDS, k=8))}?"
    shown = "\n".join(f"{p['title']}: {p['text']}" for p in found)
    right = draw.random() < 0.5
    return Record(
        f"q{number}", question, (f"answer {number}",),
        f"answer {number}" if right else "something else",
        {"em": float(right), "f1": float(right)},
        tuple({"id": p["id"], "title": p["title"], "score": 1.0} for p in found),
        calls=1, prompt_tokens=1900, completion_tokens=9, retrievals=1, ms=draw.uniform(50, 500),
        trace=(
            {"fetched": [{"query": question, "passages": found}]},
            {"asked": [{"prompt": f"{shown}\n\nQuestion: {question}", "reply": "answer"}]},
        ),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--ways", type=int, default=10)
    parser.add_argument("--out", type=Path, help="keep run and page in this folder")
    options = parser.parse_args()
    draw = random.Random(0)
    known = pool(5 * options.questions, draw)
    searches = [draw.sample(known, PASSAGES) for _ in range(options.questions)]
    with tempfile.TemporaryDirectory() as temporary:
        path = options.out or Path(temporary)
        names = [f"single:way={way}" for way in range(options.ways)]
        folder = RunFolder(path)
        identity = {"cells": names, "questions": f"{options.questions} questions", "model": "none"}
        folder.begin(identity, {"versions": {}})
        for name in names:
            folder.add(name, (record(i, found, draw) for i, found in enumerate(searches)))
        records = sum(folder.file(name).stat().st_size for name in names)
        start = time.process_time()
        written = write_report(path)
        seconds = time.process_time() - start
        print(
            f"{options.questions} questions, {options.ways} ways: {records / 1e6:.0f} MB of "
            f"records, a page of {written.size / 1e6:.0f} MB, {seconds:.0f} s of processor time"
        )


if __name__ == "__main__":
    main()
