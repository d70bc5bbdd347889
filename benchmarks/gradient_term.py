"""The gradient term in batched forward mode beside backward loops, in one run.

    LTRAG_DATA=/path/to/data python benchmarks/gradient_term.py [questions=64] [rounds=5] [threads]
    LTRAG_DATA=/path/to/data python benchmarks/gradient_term.py 16 1 1 FILE.gguf

Questions and first gold answers of nq_open's training file, the embedded model, 2 threads unless
named. The loops take one question at a time, call `loss.backward()`, and hold the gradient of the
last four layers' feed-forward matrices against the same direction:

    all weights     every parameter requires its gradient, as transformers loads a model
    loop            only those matrices do, so that autograd stops at the fourth-last layer
    lean loop       and logits are computed at the positions of the answer only

`ghost` is one backward pass a batch, the products read off each matrix's inputs and output
gradients. The methods take turns; times are medians over the rounds. "float64" is the lean loop
with the model in float64: it tells whose rounding a difference between two methods is. The last
block is what a gate pays at work: the term of a draft beside that draft, one question at a time and
16 at once. Of another model that block alone is measured.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distractors import model as load
from torch import Tensor, nn

from ltrag_plugins.flow import World, run_many
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.gece.signals import drafting, with_gradient_term
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.llm.embedded import embedded
from ltrag_plugins.llm.gradients import (
    FeedForwardTail,
    TokenBatch,
    gradient_agreement,
    mean_gradient,
)
from ltrag_plugins.llm.transformers import TransformersLLM

Pair = tuple[list[int], list[int]]
BATCH = 32
MEGABYTE = 2**20


def main(questions: int = 64, rounds: int = 5, threads: int = 2, *, other: str = "") -> None:
    torch.set_num_threads(threads)
    rows = real_questions(questions)
    if other:
        llm = load(other, dtype="float32")
        pairs = tokens(llm, rows, "chat template")
        batches = [batch_of(pairs[i : i + 8]) for i in range(0, len(pairs), 8)]
        at_work(llm, [question for question, _ in rows], mean_gradient(llm.model, batches))
        return
    llm = embedded()
    model = llm.model
    for kind in ("chat template", "plain prompt"):
        pairs = tokens(llm, rows, kind)
        batches = [batch_of(pairs[i : i + BATCH]) for i in range(0, len(pairs), BATCH)]
        print(
            f"\n{kind}: {len(pairs)} questions, {len(pairs[0][0])} to {len(pairs[-1][0])} tokens, "
            f"of which the first {batches[0].shared_prefix()} are shared; batches of {BATCH}"
        )
        mean = mean_gradient(model, batches)
        methods: dict[str, Callable[[], list[float]]] = {
            "forward mode": lambda b=batches, m=mean: forward_mode(model, b, m),
            "with cosine": lambda b=batches, m=mean: forward_mode(model, b, m, cosine=True),
            "mean gradient": lambda b=batches: [float(len(mean_gradient(model, b)))],
            "ghost": lambda b=batches, m=mean: ghost(model, b, m),
            "lean loop": lambda p=pairs, m=mean: loop(model, p, m, lean=True),
            "loop": lambda p=pairs, m=mean: loop(model, p, m),
            "all weights": lambda p=pairs, m=mean: loop(model, p, m, every_weight=True),
        }
        compare(methods, rounds, float64_loop(model, pairs, mean))
    at_work(llm, [question for question, _ in rows], mean)
    memory(mean)


def at_work(llm: TransformersLLM, questions: list[str], along: Direction) -> None:
    world, settings = World(llm=llm), GECESettings()
    for size in (1, 16):
        drafts, terms = list[float](), list[float]()
        for i in range(0, len(questions), size):
            start = time.perf_counter()
            some = run_many([drafting(q, settings) for q in questions[i : i + size]], world)
            drafts.append(time.perf_counter() - start)
            run_many([with_gradient_term(one, settings, along) for one in some], world)
            terms.append(time.perf_counter() - start - drafts[-1])
        low, middle, high = np.quantile(np.divide(terms, drafts), (0.25, 0.5, 0.75))
        told = f"{middle:.2f} times the draft (a half of the calls {low:.2f} to {high:.2f})"
        print(f"\nat work, {size} at once: the term takes {told}")


def compare(methods: dict[str, Callable[[], list[float]]], rounds: int, exact: list[float]) -> None:
    wall: dict[str, list[float]] = {name: [] for name in methods}
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, method in methods.items():
            start = time.perf_counter()
            found[name] = method()
            wall[name].append(time.perf_counter() - start)
    ours = statistics.median(wall["forward mode"])
    print(f"  {'':14}{'seconds':>9}{'range':>19}{'times forward mode':>20}")
    for name, times in wall.items():
        each = statistics.median(times)
        span = f"{min(times):.2f} to {max(times):.2f}"
        print(f"  {name:14}{each:9.2f}{span:>19}{each / ours:20.2f}")
    print("  relative differences of the products:")
    print(f"  forward mode from loop     {difference(found['forward mode'], found['loop'])}")
    for name in ("forward mode", "ghost", "loop", "lean loop"):
        print(f"  {name:13}from float64  {difference(found[name], exact)}")


def difference(some: list[float], reference: list[float]) -> str:
    """To each product (worst and median), and the worst to the mean size of a product."""
    gap, size = np.abs(np.subtract(some, reference)), np.abs(reference)
    each = gap / np.maximum(size, 1e-12)
    worst = f"max {each.max():.1e}  median {np.median(each):.1e}"
    return f"{worst}  worst to mean size {gap.max() / size.mean():.1e}"


def float64_loop(model: nn.Module, pairs: list[Pair], along: Direction) -> list[float]:
    # lean, because transformers' own loss goes through float32 whatever the model
    exact = loop(model.double(), pairs, along, lean=True)
    model.float()
    return exact


def forward_mode(
    model: nn.Module, batches: list[TokenBatch], along: Direction, *, cosine: bool = False
) -> list[float]:
    found = [gradient_agreement(model, b, along=along, cosine=cosine) for b in batches]
    return [agreement.dot for batch in found for agreement in batch]


def loop(
    model: nn.Module,
    pairs: list[Pair],
    along: Direction,
    *,
    lean: bool = False,
    every_weight: bool = False,
) -> list[float]:
    weights = dict(model.named_parameters())
    direction = {name: torch.as_tensor(array) for name, array in along.items()}
    for name, weight in weights.items():
        weight.requires_grad_(every_weight or name in along)
    products = []
    for prompt, answer in pairs:
        ids = torch.tensor([prompt + answer])
        if lean:
            read = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=read).logits[0]
            loss = nn.functional.cross_entropy(logits, torch.tensor(answer))
        else:
            labels = torch.tensor([[-100] * len(prompt) + answer])
            loss = model(input_ids=ids, use_cache=False, labels=labels).loss
        loss.backward()
        products.append(
            sum(float((torch.as_tensor(weights[n].grad) * d).sum()) for n, d in direction.items())
        )
        model.zero_grad()
    for weight in weights.values():
        weight.requires_grad_(True)
    return products


def ghost(model: nn.Module, batches: list[TokenBatch], along: Direction) -> list[float]:
    tail = FeedForwardTail(model, 4)
    direction = {name: torch.as_tensor(array) for name, array in along.items()}
    seen: list[tuple[str, Tensor, Any]] = []
    for name, linear in tail.linears.items():
        linear.register_forward_hook(lambda _, x, y, name=name: seen.append((name, x[0], y)))
    products: list[float] = []
    for batch in batches:
        seen.clear()
        weights = {name: weight.requires_grad_() for name, weight in tail.weights.items()}
        losses = tail.losses(weights, batch, shared=False)
        deltas = torch.autograd.grad(losses.sum(), [output for _, _, output in seen])
        with torch.no_grad():
            parts = [
                (delta * (inputs @ direction[name].T)).sum((1, 2))
                for (name, inputs, _), delta in zip(seen, deltas, strict=True)
            ]
        products += torch.stack(parts).sum(0).tolist()
    return products


def memory(direction: Direction) -> None:
    """Peak memory of one call above what was held before it, each in a process of its own."""
    one = sum(array.nbytes for array in direction.values()) / MEGABYTE
    print(f"\nmemory: one gradient takes {one:.0f} MB, 64 of them {64 * one:.0f} MB; peak above")
    print("what was held before the call, which holds one tangent besides the direction itself:")
    for size in (8, 32, 64):
        grown = [
            subprocess.run(
                [sys.executable, __file__, "--memory", str(size), method],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()[-1]
            for method in ("dot", "cosine", "mean")
        ]
        print(
            "  batch of {:2}: products {} MB, with cosine {} MB, mean gradient {} MB".format(
                size, *grown
            )
        )


def measure_memory(size: int, method: str) -> None:
    torch.set_num_threads(2)
    llm = embedded()
    pairs = tokens(llm, real_questions(64), "plain prompt")
    along = mean_gradient(llm.model, [batch_of(pairs[:1])])
    # the longest in each batch, so that no batch is longer than another
    batch = batch_of(pairs[-1:] + pairs[: size - 1])
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts afresh
    before = peak()
    if method == "mean":
        mean_gradient(llm.model, [batch])
    else:
        gradient_agreement(llm.model, batch, along=along, cosine=method == "cosine")
    print(f"{(peak() - before) / MEGABYTE:.0f}")


def peak() -> int:
    """Bytes, Linux only."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def tokens(llm: TransformersLLM, rows: list[tuple[str, str]], kind: str) -> list[Pair]:
    """Prompt and answer as tokens, the shortest first."""
    pairs = []
    for question, answer in rows:
        if kind == "chat template":
            said = [{"role": "user", "content": question}]
            prompt = str(
                llm.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
            )
        else:
            prompt, answer = f"{question}?\nAnswer:", f" {answer}"
        pairs.append(
            tuple(llm.tokenizer(t, add_special_tokens=False).input_ids for t in (prompt, answer))
        )
    return sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))


def batch_of(pairs: list[Pair]) -> TokenBatch:
    length = max(len(prompt) + len(answer) for prompt, answer in pairs)
    ids = torch.zeros(len(pairs), length, dtype=torch.long)
    mask, targets = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        mask[row, :end] = 1
        targets[row, len(prompt) : end] = True
    return TokenBatch(ids, mask, targets)


def real_questions(count: int) -> list[tuple[str, str]]:
    folder = os.environ.get("LTRAG_DATA")
    if not folder:
        sys.exit("LTRAG_DATA is not set: give the folder that holds nq_open/train.jsonl.")
    path = Path(folder) / "nq_open" / "train.jsonl"
    if not path.is_file():
        sys.exit(f"{path} is missing: LTRAG_DATA must hold nq_open/train.jsonl.")
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][:count]
    return [(row["question"], row["answers"][0]) for row in rows]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(int(sys.argv[2]), sys.argv[3])
    else:
        main(*map(int, sys.argv[1:4]), other="".join(sys.argv[4:5]))
