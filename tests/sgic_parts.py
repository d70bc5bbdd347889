"""Documents, and models that answer from a prompt as SGIC lays it out."""

import hashlib
import math
import re
from collections.abc import Callable, Iterator

import numpy as np

from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import CalibratedAnswer, FitReport, SGICSettings, calibrate
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Question, Token

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


def round_of(prompt: str) -> int | None:
    """Of the answer it asks for; None where it asks about one document."""
    alone = documents_in(prompt) == 1 and not rounds_in(prompt)
    return None if alone else len(rounds_in(prompt))


def number(prompt: str) -> int:
    """Of the question, as `asked` numbers them."""
    found = re.search(r"^Question: .*\? (\d+)$", prompt, re.MULTILINE)
    assert found
    return int(found[1])


def by_document(prompt: str) -> Generation:
    """The castle's document makes sure, the bay's less so, the town's not at all: 0.1, 0.5, 0.9."""
    sure = {"fortress": 0.9, "coastal": 0.5, "seaside": 0.1}
    return said("there", next(p for word, p in sure.items() if word in prompt))


def model(
    rounds: list[Generation], alone: Callable[[str], Generation] = lambda _: said("x", 0.5)
) -> ScriptedLLM:
    """Answers round n with `rounds[n]` or the last of them, and single documents with `alone`."""

    def write(prompt: str) -> Generation:
        n = round_of(prompt)
        return alone(prompt) if n is None else rounds[min(n, len(rounds) - 1)]

    return ScriptedLLM(write)


def scripted(text, sure=lambda i, n: 0.5) -> ScriptedLLM:
    """Question i is answered `text(i, n)` in round n, with the probability `sure(i, n)`."""

    def write(prompt):
        i, n = number(prompt), round_of(prompt)
        return by_document(prompt) if n is None else said(text(i, n), sure(i, n))

    return ScriptedLLM(write)


def rights(right, sure=lambda i, n: 0.5) -> ScriptedLLM:
    """Question i is right in round n where `right(i, n)`."""
    return scripted(lambda i, n: "right" if right(i, n) else f"wrong {n}", sure)


def drawn(text: str) -> float:
    """A number in (0, 1) that depends on every letter."""
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) + 1) / (2**32 + 1)


def fickle() -> ScriptedLLM:
    """Right or wrong, sure or not, by what stands in the prompt, scores included."""

    def write(prompt):
        tokens = tuple(Token(part, np.log(drawn(prompt + part)) / 4) for part in "ab")
        text = "right" if drawn(prompt + "right") < 0.4 else f"{drawn(prompt):.1f} right"
        return Generation(text, tokens, prompt_tokens=len(prompt), completion_tokens=2)

    return ScriptedLLM(write)


def gone(llm: ScriptedLLM, when: Callable[[str], bool], error=None) -> ScriptedLLM:
    """The same model, but for prompts at which its server is gone."""

    def write(prompt):
        if when(prompt):
            raise error or ConnectionError("gone")
        return llm.generate([prompt])[0]

    return ScriptedLLM(write)


class Sampler:
    """Says by seed; keeps what it was asked."""

    name = "sampler"

    def __init__(self, by_seed):
        self.by_seed, self.asked = by_seed, []

    def generate(self, prompts, settings=GenerationSettings()):
        self.asked += [(prompt, settings.temperature, settings.seed) for prompt in prompts]
        return [self.by_seed[settings.seed] for _ in prompts]


LOOKING = SGICSettings(rounds=5)
"""The loop of the paper, with our rules when to stop."""


def answered(llm, passages=THREE, *, question=QUESTION, **told) -> CalibratedAnswer:
    return run(calibrate(question, passages, **({"settings": LOOKING} | told)), World(llm=llm))


def asked(count=40, passages=THREE, answers=("right",)):
    return [Question(f"{QUESTION} {i}", answers, f"q{i}", passages) for i in range(count)]


def way(report: FitReport, name: str):
    """The figures of one variant."""
    return {one.name: one for one in report.variants}[name]


def folds(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit on and rows to judge, with the seed 0."""
    for test in np.array_split(np.random.default_rng(0).permutation(count), 5):
        yield np.setdiff1d(np.arange(count), test), test
