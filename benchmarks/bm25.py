"""Time per query of the two BM25 engines on one pool, in one run.

    LTRAG_DATA=/path/to/data python benchmarks/bm25.py [passages=50000] [queries=50]

The pool starts with the distinct passages of nq_distractor's training questions. What is missing
to the size asked for is made of them: each made passage is the first half of one and the second
half of another, so that its words and lengths are real and its sense is not.
"""

import gzip
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage

T = TypeVar("T")


def main(size: int = 50_000, queries: int = 50) -> None:
    real, questions = load(Path(os.environ["LTRAG_DATA"]) / "nq_distractor" / "train.jsonl.gz")
    pool = grown(real, size)
    asked = random.Random(0).sample(questions, queries)
    print(f"{len(pool)} passages ({min(len(real), size)} real), {queries} queries, k=10")

    slow_build, slow = timed(lambda: BM25Retriever(pool, engine="rank-bm25"))
    fast_build, fast = timed(lambda: BM25Retriever(pool, engine="bm25s"))
    print(f"index     rank-bm25 {slow_build:8.2f} s    bm25s {fast_build:8.2f} s")

    slow_time, slow_found = timed(lambda: slow.search(asked, 10))
    fast_time, fast_found = timed(lambda: fast.search(asked, 10))
    per = 1000 / queries
    print(
        f"query     rank-bm25 {slow_time * per:8.2f} ms   bm25s {fast_time * per:8.2f} ms   "
        f"ratio {slow_time / fast_time:.0f}"
    )
    print(f"same passages, order and scores: {slow_found == fast_found}")


def load(path: Path) -> tuple[list[Passage], list[str]]:
    """Distinct passages and questions of an nq_distractor file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    pairs = {(p["title"], p["text"]): None for row in rows for p in row["passages"]}
    return [Passage(text, title=title) for title, text in pairs], [row["question"] for row in rows]


def grown(real: list[Passage], size: int) -> list[Passage]:
    rng = random.Random(0)
    pool = real[:size]
    while len(pool) < size:
        one, other = rng.sample(real, 2)
        head, tail = one.text.split(), other.text.split()
        text = " ".join(head[: len(head) // 2] + tail[len(tail) // 2 :])
        pool.append(Passage(text, title=one.title))
    return pool


def timed(work: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
