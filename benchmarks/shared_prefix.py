"""A 5-shot ladder with shared prefixes beside separate prompts, in one run.

    LTRAG_DATA=/path/to/data python benchmarks/shared_prefix.py [questions=8] [rounds=3] [threads=2]

Real posts on climate change with their stance, from tweet_eval_stance_climate: each question of
validation.jsonl is asked with 0, 1, ..., 5 solved examples of candidates.jsonl in front, as DUR
asks. The embedded model, chat template on. Per question, ladder of 6 prompts:

    shared     one call with all six; what they share is computed once
    batched    one call with all six, each computed in full (share_prefixes=False)
    separate   six calls with one prompt each

The ways take turns; times are medians over questions and rounds, ratios over the same question
and round. `score` reads the gold label; `generate` writes at most 4 tokens.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ltrag_plugins.llm.embedded import embedded
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.types import Generation, GenerationSettings

SHOTS = 5
Way = Callable[[list[str], str], list[Generation]]


def main(questions: int = 8, rounds: int = 3, threads: int = 2) -> None:
    torch.set_num_threads(threads)
    shared = embedded(device="cpu")
    apart = TransformersLLM(shared.model, shared.tokenizer, share_prefixes=False)
    ladders = real_ladders(questions)
    lengths = [len(shared.tokenizer.encode(prompt)) for prompt in ladders[0][0]]
    print(f"{shared.name}; {questions} ladders; the first has prompts of {lengths} tokens")
    jobs: dict[str, dict[str, Way]] = {
        "score": {
            "shared": lambda prompts, gold: shared.score(prompts, [gold] * len(prompts)),
            "batched": lambda prompts, gold: apart.score(prompts, [gold] * len(prompts)),
            "separate": lambda prompts, gold: [apart.score([p], [gold])[0] for p in prompts],
        },
        "generate": {
            "shared": lambda prompts, _: shared.generate(prompts, GenerationSettings(max_tokens=4)),
            "batched": lambda prompts, _: apart.generate(prompts, GenerationSettings(max_tokens=4)),
            "separate": lambda prompts, _: [
                apart.generate([p], GenerationSettings(max_tokens=4))[0] for p in prompts
            ],
        },
    }
    for job, ways in jobs.items():
        report(job, ways, ladders, rounds)


def report(
    job: str, ways: dict[str, Way], ladders: Sequence[tuple[list[str], str]], rounds: int
) -> None:
    for way in ways.values():
        way(*ladders[0])
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    furthest, differing = 0.0, 0
    for _ in range(rounds):
        for prompts, gold in ladders:
            replies = {}
            for name, way in ways.items():
                start = time.perf_counter()
                replies[name] = way(prompts, gold)
                seconds[name].append(time.perf_counter() - start)
            for one, other in zip(replies["shared"], replies["separate"], strict=True):
                if one.text != other.text:
                    differing += 1
                    continue
                pairs = zip(one.tokens or (), other.tokens or (), strict=True)
                furthest = max(furthest, *(abs(a.logprob - b.logprob) for a, b in pairs), 0.0)
    print(f"\n{job}")
    for name, taken in seconds.items():
        ratio = statistics.median(t / s for t, s in zip(taken, seconds["shared"], strict=True))
        median = statistics.median(taken)
        print(f"  {name:9} {1000 * median:8.0f} ms a ladder   {ratio:5.2f} x the time of shared")
    print(
        f"  answers that differ: {differing}; largest difference in log-probability: {furthest:.1e}"
    )


def real_ladders(questions: int) -> list[tuple[list[str], str]]:
    """For each question its ladder of prompts and its gold label."""
    folder = os.environ.get("LTRAG_DATA")
    if not folder:
        sys.exit("set LTRAG_DATA to the folder that holds tweet_eval_stance_climate")
    data = Path(folder) / "tweet_eval_stance_climate"
    shots, asked = (rows(data / name) for name in ("candidates.jsonl", "validation.jsonl"))
    return [(ladder(shots[:SHOTS], row["question"]), row["answer"]) for row in asked[:questions]]


def ladder(shots: Sequence[dict[str, str]], question: str) -> list[str]:
    head = "Is the stance of the post on climate change none, against or favor?\n\n"
    solved = [f"Post: {shot['question']}\nStance: {shot['answer']}\n\n" for shot in shots]
    last = f"Post: {question}\nStance:"
    return [head + "".join(solved[:count]) + last for count in range(len(solved) + 1)]


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main(**{key: int(value) for key, value in (part.split("=") for part in sys.argv[1:])})
