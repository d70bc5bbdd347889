"""The local engine beside the simple ways to run the same model, in one run.

    LTRAG_DATA=/path/to/data python benchmarks/engine.py [--model FOLDER_OR_GGUF] [--questions 6]

Jobs: a ladder of 0 to 5 solved examples before the same question (written, and scored), 64 short
questions, ten prompts of one document each, and SGIC's calls for one question. Ways:

    ours       one call of `TransformersLLM`: a pass over the token tree of the prompts
    separate   transformers' `generate`, a prompt at a time
    padded     one `generate`, prompts padded on the left
    common     the same after the tokens that all prompts begin with, computed once
    cropped    a prompt at a time, sorted; the cache is cropped to what the next one shares
    lookup     a prompt at a time with `prompt_lookup_num_tokens=10`

The ways take turns; times are medians over items and repeats, ratios over the same item and
repeat. Texts are compared with those of `separate`.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from distractors import items, model
from sgic_loop import way
from transformers import DynamicCache, GenerationConfig

from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.sgic import calibrate
from ltrag_plugins.types import Generation, GenerationSettings

Ids = list[int]
Call = tuple[list[str], GenerationSettings]
"""What a model is asked in one call."""
Job = list[list[Call]]
"""Items, each the calls that follow one another."""


class Simple:
    """The ways that transformers offers; greedy, a text ends at its first line break."""

    def __init__(self, llm: TransformersLLM) -> None:
        self.model: Any = llm.model
        self.ids, self.decode = llm.prompting.ids, llm.tokenizer.decode
        vocabulary = range(llm.model.config.vocab_size)
        breaks = [i for i in vocabulary if "\n" in llm.tokenizer.decode([i])]
        self.ends = [llm.tokenizer.eos_token_id, *breaks]

    def separate(self, calls: Sequence[Call], **more: Any) -> list[str]:
        return [
            self._written([self.ids(p)], settings, 0, **more)[0]
            for prompts, settings in calls
            for p in prompts
        ]

    def lookup(self, calls: Sequence[Call]) -> list[str]:
        return self.separate(calls, prompt_lookup_num_tokens=10)

    def padded(self, calls: Sequence[Call]) -> list[str]:
        rows = [([self.ids(p) for p in prompts], settings) for prompts, settings in calls]
        return [text for ids, settings in rows for text in self._written(ids, settings, 0)]

    def common(self, calls: Sequence[Call]) -> list[str]:
        rows = [([self.ids(p) for p in prompts], settings) for prompts, settings in calls]
        return [
            text
            for ids, settings in rows
            for text in self._written(ids, settings, shared(*ids) if len(ids) > 1 else 0)
        ]

    def cropped(self, calls: Sequence[Call]) -> list[str]:
        cache, before, written = DynamicCache(config=self.model.config), Ids(), list[str]()
        for prompts, settings in calls:
            rows = sorted((self.ids(p), i) for i, p in enumerate(prompts))
            found = {}
            for ids, i in rows:
                # crop(0) would leave the cache as it is
                if known := shared(before, ids):
                    cache.crop(known - cache.get_seq_length())
                else:
                    cache = DynamicCache(config=self.model.config)
                [found[i]] = self._written([ids], settings, 0, past_key_values=cache)
                before = ids
            written += [found[i] for i in range(len(prompts))]
        return written

    def scores(self, prompts: Sequence[str], gold: Ids, common: bool) -> list[float]:
        rows = [self.ids(p) + gold for p in prompts]
        given = self._padded(rows, shared(*rows) if common else 0)
        cached = given["past_key_values"].get_seq_length()
        ids = given.pop("input_ids")[:, cached:]
        positions = (given["attention_mask"].cumsum(1) - 1)[:, cached:]
        last = len(gold) + 1
        out = self.model(input_ids=ids, position_ids=positions, logits_to_keep=last, **given)
        logprobs = out.logits[:, :-1].log_softmax(-1)
        return logprobs.gather(2, ids[:, -len(gold) :, None]).sum((1, 2)).tolist()

    def _written(
        self, rows: list[Ids], settings: GenerationSettings, known: int, **more: Any
    ) -> list[str]:
        config = GenerationConfig(
            max_new_tokens=settings.max_tokens,
            do_sample=False,
            eos_token_id=self.ends,
            pad_token_id=self.ends[0],
            **{key: more.pop(key) for key in list(more) if key == "prompt_lookup_num_tokens"},
        )
        given = self._padded(rows, known) | more
        out = self.model.generate(**given, generation_config=config)
        new = out[:, given["input_ids"].shape[1] :].tolist()
        return [str(self.decode(row, skip_special_tokens=True)).split("\n")[0] for row in new]

    def _padded(self, rows: list[Ids], known: int) -> dict[str, Any]:
        """Rows padded on the left, but for the first `known` tokens, which are in the cache."""
        longest = max(map(len, rows))
        cache = DynamicCache(config=self.model.config)
        if known:
            self.model(input_ids=torch.tensor([rows[0][:known]]), past_key_values=cache)
            cache.batch_repeat_interleave(len(rows))
        gaps = [longest - len(row) for row in rows]
        ids = [[*r[:known], *[0] * gap, *r[known:]] for r, gap in zip(rows, gaps, strict=True)]
        mask = [[1] * known + [0] * gap + [1] * (longest - gap - known) for gap in gaps]
        return {
            "input_ids": torch.tensor(ids),
            "attention_mask": torch.tensor(mask),
            "past_key_values": cache,
        }


def shared(*rows: Ids) -> int:
    """Tokens that all rows begin with, but for the last one of the shortest."""
    most = min(map(len, rows)) - 1
    same = (len(set(column)) == 1 for column in zip(*rows, strict=False))
    return next((i for i, equal in enumerate(same) if not equal or i >= most), max(0, most))


def ladders(folder: Path, questions: int) -> list[tuple[list[str], str]]:
    """For each post its ladder of prompts and its stance."""
    data = folder / "tweet_eval_stance_climate"
    shots, asked = (
        [json.loads(line) for line in (data / f"{name}.jsonl").read_text().splitlines()]
        for name in ("candidates", "validation")
    )
    head = "Is the stance of the post on climate change none, against or favor?\n\n"
    solved = [f"Post: {s['question']}\nStance: {s['answer']}\n\n" for s in shots[:5]]
    last = [(f"Post: {row['question']}\nStance:", row["answer"]) for row in asked[:questions]]
    return [([head + "".join(solved[:k]) + end for k in range(6)], gold) for end, gold in last]


def rounds(llm: TransformersLLM, questions: int) -> Job:
    """What SGIC asks for each question, all five rounds."""
    recorded = []
    for item in items("nq_distractor", "dev_test", questions):
        recorder = Recorder(llm)
        settings = way("documents", 5)
        run(calibrate(item.question.text, item.question.passages, settings), World(llm=recorder))
        recorded.append(recorder.calls)
    return recorded


class Recorder:
    """A model that keeps what it was asked."""

    def __init__(self, llm: TransformersLLM) -> None:
        self.name, self._llm, self.calls = llm.name, llm, list[Call]()

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        self.calls.append((list(prompts), settings))
        return self._llm.generate(prompts, settings)


def report(
    title: str, ways: dict[str, Callable[[Any], list[Any]]], job: list, repeats: int
) -> None:
    """Medians of each way, and how often its texts (or scores) are others."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    differ = dict.fromkeys(ways, 0)
    for _ in range(repeats):
        for item in job:
            found = {}
            for name, ask in ways.items():
                start = time.perf_counter()
                found[name] = ask(item)
                seconds[name].append(time.perf_counter() - start)
            for name, answers in found.items():
                pairs = zip(answers, found["separate"], strict=True)
                differ[name] += sum(not same(a, b) for a, b in pairs)
    print(f"\n{title}", flush=True)
    for name, taken in seconds.items():
        ratio = statistics.median(t / s for t, s in zip(taken, seconds["ours"], strict=True))
        print(
            f"  {name:12} {1000 * statistics.median(taken):8.0f} ms {ratio:6.2f} x ours"
            f"   {differ[name]} differ",
            flush=True,
        )


def same(one: str | float, other: str | float) -> bool:
    """Equal texts, or scores within rounding."""
    if isinstance(one, str):
        return one.strip() == str(other).strip()
    return abs(one - float(other)) < 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--jobs", default="ladder,short,documents,rounds")
    parser.add_argument("--questions", type=int, default=6, help="ladders, and questions of SGIC")
    parser.add_argument("--short", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    data, jobs = Path(os.environ["LTRAG_DATA"]), options.jobs.split(",")
    llm = model(options.model)
    simple = Simple(llm)

    def ours(calls: list[Call]) -> list[str]:
        return [g.text for prompts, settings in calls for g in llm.generate(prompts, settings)]

    written: dict[str, Callable[[Any], list[Any]]] = {
        "ours": ours,
        "separate": simple.separate,
        "padded": simple.padded,
        "common": simple.common,
        "cropped": simple.cropped,
        "lookup": simple.lookup,
    }
    print(f"{llm.name}, {options.threads} threads")
    line = ("\n",)
    if "ladder" in jobs:
        found = ladders(data, options.questions)
        four = GenerationSettings(max_tokens=4, stop=line)
        asked = [[(prompts, four)] for prompts, _ in found]
        report("ladder of six prompts, 4 tokens each", written, asked, options.repeats)
        cut = [(prompts, llm.tokenizer.encode(g, add_special_tokens=False)) for prompts, g in found]
        text = llm.tokenizer.decode
        scored: dict[str, Callable[[Any], list[Any]]] = {
            "ours": lambda item: [
                sum(t.logprob for t in g.tokens or ())
                for g in llm.score(item[0], [str(text(item[1]))] * len(item[0]))
            ],
            "separate": lambda item: [simple.scores([p], item[1], False)[0] for p in item[0]],
            "padded": lambda item: simple.scores(item[0], item[1], False),
            "common": lambda item: simple.scores(item[0], item[1], True),
        }
        report("ladder of six prompts, scored", scored, cut, options.repeats)
    if "short" in jobs:
        asked = items("nq_distractor", "dev_test", options.short)
        prompts = [f"Answer in a few words.\nQuestion: {i.question.text}\nAnswer:" for i in asked]
        job = [[(prompts, GenerationSettings(max_tokens=12, stop=line))]]
        report(f"{options.short} short questions", written, job, options.repeats)
    calls = rounds(llm, options.questions) if {"documents", "rounds"} & {*jobs} else []
    if "documents" in jobs:
        alone = [[call for call in each if len(call[0]) == 10] for each in calls]
        report("ten prompts of one document", written, alone, options.repeats)
    if "rounds" in jobs:
        report("SGIC's calls for one question", written, calls, options.repeats)


if __name__ == "__main__":
    main()
