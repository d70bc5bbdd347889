"""Five rounds of SGIC over ten documents beside five sampled answers over the same documents.

Milliseconds, and tokens that the model really computed, a question at a time, in one run, and both
as ratios to the sampled answers (of the time the median over the questions): the direct answer; K
sampled answers, each a call of its own; SGIC with all K rounds. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/sgic_speed.py --limit 10
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from distractors import Item, items, model
from sgic_loop import way

from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.sgic import SGICSettings, calibrate, sampled

Measured = tuple[float, int]
"""Seconds and tokens of a question."""


class Counted:
    """Tokens that went through the model."""

    def __init__(self, llm: TransformersLLM) -> None:
        self.tokens = 0
        llm.model.base_model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _module: object, _args: object, given: dict) -> None:
        self.tokens += given["input_ids"].numel()


def table(found: Mapping[str, Sequence[Measured]], base: str) -> str:
    """Means a question of each way, and their ratios to those of `base`."""
    lines = [f"{'':<32}{'ms':>8}{'tokens':>8}{'ms, of samples':>18}{'tokens, of samples':>20}"]
    for name, measured in found.items():
        seconds, tokens = (statistics.mean(column) for column in zip(*measured, strict=True))
        share = tokens / statistics.mean(t for _, t in found[base])
        time = statistics.median(
            s / b for (s, _), (b, _) in zip(measured, found[base], strict=True)
        )
        lines.append(f"{name:<32}{1000 * seconds:8.0f}{tokens:8.0f}{time:18.2f}{share:20.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--data", default="nq_distractor")
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    llm = model(options.model)
    counted, world = Counted(llm), World(llm=llm)
    settings = way("documents", options.rounds)
    direct, k = replace(settings, rounds=0), options.rounds

    def apart(item: Item) -> None:
        q = item.question
        for seed in range(k):
            one = replace(settings, seed=seed)
            run(sampled(q.text, q.passages, 1, one), world)

    def looped(item: Item, how: SGICSettings) -> None:
        run(calibrate(item.question.text, item.question.passages, how), world)

    ways: dict[str, Callable[[Item], object]] = {
        "direct": lambda item: looped(item, direct),
        f"{k} samples, a call each": apart,
        f"SGIC, {k} rounds": lambda item: looped(item, settings),
    }
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    for item in items(options.data, "dev_test", options.limit):
        for name, answer in ways.items():
            before, start = counted.tokens, time.perf_counter()
            answer(item)
            found[name].append((time.perf_counter() - start, counted.tokens - before))
    asked = len(found["direct"])
    print(f"{asked} questions of {options.data}, {options.threads} threads")
    print(table(found, f"{k} samples, a call each"))


if __name__ == "__main__":
    main()
