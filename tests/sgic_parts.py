"""Documents, and models that answer from a prompt as SGIC lays it out."""

import math
import re
from collections.abc import Callable

from ltrag_plugins.flow import Observer, World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import CalibratedAnswer, calibrate
from ltrag_plugins.types import Generation, Passage, Token

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
