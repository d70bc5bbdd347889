"""Questions side by side (`run_many`), and an answer with its samples, beside one after another.

    python benchmarks/run_many.py [questions=64] [rounds=3] [sampled=8] [server=0]

Natural Questions of `examples/data`, asked directly and with one BM25 retrieval of three passages:
with the embedded model, whose prompts then share batches, and with a scripted model that waits
50 ms a call, however many prompts the call has (there with both engines of BM25, as their time
then shows). No answer cache. The ways take turns; times are medians over the rounds, and answers
must be the same.

The last rows ask one of `sampled` questions at a time, with five samples at a temperature of 0.7:
all at once, one after the other, and the answer alone. With `server` 1 these are asked of llama.cpp
with two slots, whose texts may differ; it is started anew for each way, as it keeps what it read.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.local_server import llama_cpp_server
from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.flow import Flow, World, run, run_many
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.llm.embedded import embedded
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.direct import direct, single_retrieval
from ltrag_plugins.prompts.templates import direct_prompt, reading_prompt
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Answer, Generation, GenerationSettings
from ltrag_plugins.uncertainty import measured

DATA = Path(__file__).parent.parent / "examples" / "data"
WAIT = 0.05
WAYS: dict[str, tuple[Callable[[str], Flow[Answer]], Any]] = {
    "direct": (direct, "auto"),
    "single, rank-bm25": (single_retrieval, "rank-bm25"),
    "single, bm25s": (single_retrieval, "bm25s"),
}


class Waiting:
    """A server that needs as long for many prompts as for one."""

    name = "waiting"

    def __init__(self) -> None:
        self._llm = ScriptedLLM(lambda prompt: f"answer {len(prompt)}")

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        time.sleep(WAIT)
        return self._llm.generate(prompts, settings)  # pyright: ignore[reportArgumentType]


def timed(world: World, flow: Callable[[str], Flow[Answer]], texts: list[str], rounds: int) -> str:
    wall: dict[str, list[float]] = {"one": [], "many": []}
    said: dict[str, list[str]] = {}
    for _ in range(rounds):
        start = time.perf_counter()
        said["one"] = [run(flow(text), world).text for text in texts]
        wall["one"].append(time.perf_counter() - start)
        start = time.perf_counter()
        said["many"] = [answer.text for answer in run_many(map(flow, texts), world)]
        wall["many"].append(time.perf_counter() - start)
    ratios = [one / many for one, many in zip(wall["one"], wall["many"], strict=True)]
    same = sum(a == b for a, b in zip(said["one"], said["many"], strict=True))
    return (
        f"{statistics.median(ratios):6.1f} times as fast ({min(ratios):.1f} to {max(ratios):.1f}), "
        f"{same} of {len(texts)} answers the same"
    )


class ByItself:
    """A model without its calls that take settings for each prompt: each setting is a call."""

    def __init__(self, llm: LLM) -> None:
        self.name, self.generate = llm.name, llm.generate


@contextmanager
def served() -> Iterator[LLM]:
    """A server that has read nothing yet."""
    with llama_cpp_server(threads=2, context=4096) as url:
        yield OpenAICompatibleLLM(model="local", base_url=url, api_key="none")


def timed_samples(
    model: Callable[[], AbstractContextManager[LLM]], prompts: Sequence[str], rounds: int
) -> str:
    """A question with its samples at once, one by one, and without any, in turns."""
    wall: dict[str, list[float]] = {"at once": [], "one by one": [], "alone": []}
    said: dict[str, list[list[str]]] = {}
    for _ in range(rounds):
        for way in wall:
            estimator = "product" if way == "alone" else "agreement"
            with model() as llm:
                world = World(llm=ByItself(llm) if way == "one by one" else llm)
                start, said[way] = time.perf_counter(), []
                for prompt in prompts:
                    [one] = run(measured(prompt, estimator=estimator, stop="\n"), world)
                    said[way].append([reply.text for reply in (one.generation, *one.samples)])
                wall[way].append(time.perf_counter() - start)
    ratios = [one / many for one, many in zip(wall["one by one"], wall["at once"], strict=True)]
    more = statistics.median(wall["at once"]) / statistics.median(wall["alone"])
    same = sum(a == b for a, b in zip(said["at once"], said["one by one"], strict=True))
    return (
        f"{statistics.median(ratios):6.1f} times as fast ({min(ratios):.1f} to {max(ratios):.1f}), "
        f"{more:.1f} times as long as the answer alone, {same} of {len(prompts)} the same"
    )


def main(questions: int = 64, rounds: int = 3, sampled: int = 8, server: int = 0) -> None:
    pool = read_passages(DATA / "nq_passages.jsonl.gz")
    texts = [one.text for one in read_questions(DATA / "nq_calibration.jsonl", pool=pool)]
    local = embedded()
    models: dict[str, tuple[LLM, list[str]]] = {
        "embedded model": (local, ["direct", "single, rank-bm25"]),
        "scripted, 50 ms a call": (Waiting(), [*WAYS]),
    }
    if questions:
        print(f"{questions} questions, {rounds} rounds; side by side against one after another")
    for name, (llm, kinds) in models.items() if questions else ():
        for kind in kinds:
            flow, engine = WAYS[kind]
            world = World(llm=llm, retriever=BM25Retriever(pool, engine=engine))
            told = timed(world, flow, texts[:questions], rounds)
            print(f"{name:<24}{kind:<18}{told}", flush=True)
    texts = texts[:sampled]
    shown = zip(texts, BM25Retriever(pool).search(texts, 3), strict=True)
    asked = {"direct": [*map(direct_prompt, texts)]}
    asked["single, rank-bm25"] = [reading_prompt(text, found) for text, found in shown]
    if sampled:
        print(f"{sampled} questions with five samples, {rounds} rounds; at once against one by one")
    name, load = (
        ("llama.cpp, two slots", served)
        if server
        else ("embedded model", lambda: nullcontext(local))
    )
    for kind, prompts in asked.items() if sampled else ():
        print(f"{name:<24}{kind:<18}{timed_samples(load, prompts, rounds)}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
