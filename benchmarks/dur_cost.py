"""What training and reranking cost beside the language model.

    LTRAG_DATA=/path/to/data python benchmarks/dur_cost.py

Training: one epoch over 200 validation questions and 1,000 candidates of Natural Questions (the
split of nq_open/dur_split.json), a scripted model that is right in a third of the prompts, MiniLM;
BM25 preselects. Once as `DURTrainer.fit` does it, its vectors computed in the run and again with
the vectors in their file, and once by the same batches in a loop that encodes the candidates at
every batch and builds BM25 at every question.

Reranking: 20 passages of nq_distractor for a question, their vectors at hand, against a
cross-encoder of MiniLM-L6's size (random weights: only its time counts).
"""

import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from ltrag_plugins.data import read_questions
from ltrag_plugins.dur import DURRanker, DURSettings, DURTrainer
from ltrag_plugins.dur.batch import TrainingCase, trained_batch
from ltrag_plugins.dur.head import Adam, initial_head
from ltrag_plugins.dur.prompts import text_of
from ltrag_plugins.dur.shots import Preselector
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.cached import CachedEncoder
from ltrag_plugins.llm.embedded import embedded_encoder
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Passage, Question

SETTINGS = DURSettings(epochs=1, reward="match", initial="random", held_out=0.0, preselect="bm25")


def data() -> Path:
    root = os.environ.get("LTRAG_DATA")
    if not root:
        sys.exit("set LTRAG_DATA to the folder that holds nq_open/ and nq_distractor/")
    return Path(root)


def split() -> tuple[list[Question], list[Question]]:
    named = json.loads((data() / "nq_open/dur_split.json").read_text())
    questions = {q.id: q for q in read_questions(data() / "nq_open/train.jsonl")}
    return tuple([questions[i] for i in named[p]] for p in ("candidates", "validation"))  # type: ignore[return-value]


def scripted(questions: list[Question]) -> ScriptedLLM:
    """Right or wrong by the length of the prompt: its time is next to nothing."""
    known = {q.text: q.answers[0] for q in questions}

    def answer(prompt: str) -> str:
        asked = prompt.rpartition("Question: ")[2].partition("\n")[0]
        return "no" if len(prompt) % 3 else known[asked]

    return ScriptedLLM(answer)


def ours(candidates: list[Question], validation: list[Question], encoder: Encoder) -> np.ndarray:
    llm = scripted(validation)
    result = DURTrainer(encoder, llm, settings=SETTINGS).fit(candidates, validation)
    return result.ranker.head.weight


def naive(candidates: list[Question], validation: list[Question], encoder: Encoder) -> np.ndarray:
    """The same batches; candidates encoded at every batch, BM25 built at every question."""
    texts = [text_of(c) for c in candidates]
    order = np.random.default_rng([SETTINGS.seed, 3, 0]).permutation(len(validation))
    adam, sigma, llm = None, 0.0, scripted(validation)
    for number, first in enumerate(range(0, len(validation), SETTINGS.batch_size)):
        members = [validation[i] for i in order[first : first + SETTINGS.batch_size]]
        vectors = encoder.encode(texts).astype(float)
        asked = encoder.encode([q.text for q in members]).astype(float)
        cases = []
        for question, vector in zip(members, asked, strict=True):
            chooser = Preselector(candidates, vectors, how="bm25", size=SETTINGS.preselected)
            picks = chooser.choose(question, vector)
            cases.append(
                TrainingCase(question, vector, tuple(candidates[i] for i in picks), vectors[picks])
            )
        start = initial_head(vectors, SETTINGS)
        adam, batch = trained_batch(
            cases,
            adam or Adam.start(start),
            llm,
            SETTINGS,
            start=start,
            sigma=sigma,
            place=(0, number),
        )
        sigma = batch.sigma
    assert adam is not None
    return adam.head.weight


def seconds(call: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def training() -> None:
    candidates, validation = split()
    encoder = embedded_encoder()
    encoder.encode(["warm up"])
    with tempfile.TemporaryDirectory() as folder:
        cached = CachedEncoder(encoder, Path(folder, "vectors.sqlite"))
        start = time.perf_counter()
        head = ours(candidates, validation, cached)
        first = time.perf_counter() - start
        again = seconds(lambda: ours(candidates, validation, cached), 3)
        start = time.perf_counter()
        other = naive(candidates, validation, encoder)
        loop = time.perf_counter() - start
    print(f"one epoch, {len(validation)} questions, {len(candidates)} candidates")
    print(f"  the loop that computes all anew   {loop:7.2f} s")
    print(f"  DURTrainer, vectors computed      {first:7.2f} s   {loop / first:6.1f} times as fast")
    print(f"  DURTrainer, vectors in their file {again:7.2f} s   {loop / again:6.1f} times as fast")
    start = initial_head(np.zeros((2, head.shape[1])), SETTINGS).weight
    print(f"  largest difference of the heads: {np.abs(head - other).max():.1e}; the largest step")
    print(f"  of a weight from where it began: {np.abs(head - start).max():.1e}")


def reranking(questions: int = 50) -> None:
    with gzip.open(data() / "nq_distractor/train.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(2 * questions), strict=False)]
    pools = [
        [Passage(p["text"], title=p["title"]) for row in rows[i : i + 2] for p in row["passages"]]
        for i in range(0, 2 * questions, 2)
    ]
    asked = [row["question"] for row in rows[::2]]
    encoder = embedded_encoder()
    tokenizer = encoder.model.tokenizer
    torch.manual_seed(0)
    cross = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
            num_labels=1,  # pyright: ignore[reportCallIssue]
        )
    ).eval()
    with tempfile.TemporaryDirectory() as folder:
        cached = CachedEncoder(encoder, Path(folder, "vectors.sqlite"))
        for pool in pools:
            cached.encode([text_of(p) for p in pool])
        head = initial_head(np.zeros((2, 384)), SETTINGS)
        ranker = DURRanker(head, cached, replace(SETTINGS))
        ranked, crossed = [], []
        for question, pool in zip(asked, pools, strict=True):
            ranked.append(seconds(lambda q=question, p=pool: ranker.rank(q, p, top_n=5), 1))

            def read(q: str = question, p: list[Passage] = pool) -> None:
                tokens = tokenizer(
                    [q] * len(p),
                    [text_of(x) for x in p],
                    padding=True,
                    truncation=True,
                    max_length=512,
                    return_tensors="pt",
                )
                with torch.inference_mode():
                    cross(**tokens)

            crossed.append(seconds(read, 1))
    ratio = statistics.median(c / r for c, r in zip(crossed, ranked, strict=True))
    print(f"20 passages, {len(asked)} questions new to the encoder, passages in its file")
    print(f"  DURRanker      {1000 * statistics.median(ranked):8.1f} ms a question")
    print(
        f"  cross-encoder  {1000 * statistics.median(crossed):8.1f} ms, {ratio:.0f} times as long"
    )


if __name__ == "__main__":
    training()
    reranking()
