"""Documents, and models that answer from a prompt as SGIC lays it out."""

import math
import re
from collections.abc import Callable, Iterator

import numpy as np

from ltrag_plugins.flow import Observer, World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import CalibratedAnswer, FitReport, calibrate
from ltrag_plugins.types import Generation, Passage, Question, Token

QUESTION = "Where is Dirleton Castle?"
CASTLE = Passage("Dirleton Castle is a fortress in East Lothian.", id="a", title="Castle")
BAY = Passage("Yellowcraig is a coastal area.", id="b", title="Bay")
TOWN = Passage("North Berwick is a seaside town.", id="c")
THREE = (CASTLE, BAY, TOWN)


def said(text: str, probability: float = 0.9) -> Generation:
    """An answer of one token, so that its uncertainty is one minus the probability."""
    tokens = (Token(text, math.log(probability)),)
    return Generation(text, tokens, prompt_tokens=7, completion_tokens=1)


def documents_in(prompt: str) -> int:
    return len(re.findall(r"^Document \[\d+\]: ", prompt, re.MULTILINE))


def rounds_in(prompt: str) -> list[str]:
    """The lines of earlier answers."""
    return re.findall(r"^Round \d+: .*$", prompt, re.MULTILINE)


def model(
    rounds: list[Generation], alone: Callable[[str], Generation] = lambda _: said("x", 0.5)
) -> ScriptedLLM:
    """Answers round n with `rounds[n]` or the last of them, and single documents with `alone`."""

    def write(prompt: str) -> Generation:
        if documents_in(prompt) == 1 and not rounds_in(prompt):
            return alone(prompt)
        return rounds[min(len(rounds_in(prompt)), len(rounds) - 1)]

    return ScriptedLLM(write)


def answered(
    llm: ScriptedLLM, passages=THREE, *, question=QUESTION, observers: list[Observer] | None = None,
    **told,
) -> CalibratedAnswer:  # fmt: skip
    flow = calibrate(question, passages, **told)
    return run(flow, World(llm=llm), observers=observers or [])


def asked(count=40, passages=THREE):
    return [Question(f"{QUESTION} {i}", ("right",), f"q{i}", passages) for i in range(count)]


def number(prompt: str) -> int:
    found = re.search(r"^Question: .*\? (\d+)$", prompt, re.MULTILINE)
    assert found
    return int(found[1])


def round_of(prompt: str) -> int | None:
    """Of the answer it asks for; None where it asks about one document."""
    alone = documents_in(prompt) == 1 and not rounds_in(prompt)
    return None if alone else len(rounds_in(prompt))


def rights(right, sure=lambda i, n: 0.5) -> ScriptedLLM:
    """Question i is right in round n where `right(i, n)`; documents help the less the later."""

    def write(prompt):
        i, n = number(prompt), round_of(prompt)
        if n is None:
            return said("x", 0.9 if "fortress" in prompt else 0.5 if "coastal" in prompt else 0.1)
        return said("right" if right(i, n) else f"wrong {n}", sure(i, n))

    return ScriptedLLM(write)


def way(report: FitReport, name: str):
    """The figures of one variant."""
    return {one.name: one for one in report.variants}[name]


def folds(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit on and rows to judge, with the seed 0."""
    for test in np.array_split(np.random.default_rng(0).permutation(count), 5):
        yield np.setdiff1d(np.arange(count), test), test
