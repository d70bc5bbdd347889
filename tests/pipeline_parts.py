"""A street of houses: a model that knows some colours, and reads others from the right passage."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ltrag_plugins.evaluate import LongTailRAG, LongTailSettings
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.types import Generation, Passage, Question, Token

COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "pink")
ASKED = re.compile(r"house (\d+)\?")
TOLD = re.compile(r"House (\d+) is painted")


def houses(count: int = 80) -> list[Question]:
    return [Question(f"What is the colour of house {i}?", (COLOURS[i % 8],)) for i in range(count)]


def unlabelled(count: int = 80) -> list[str]:
    return [question.text for question in houses(count)]


@dataclass
class House:
    """The model's world, and its retriever; of the passages the one at `place` is of the house."""

    knows: Callable[[int], bool] = lambda house: house % 2 == 0
    reads: Callable[[int], bool] = lambda house: True
    place: int = 0
    says_how_sure: bool = True
    name: str = "houses"
    model: ScriptedLLM | None = None
    searched: list[str] = field(default_factory=list)

    def llm(self) -> ScriptedLLM:
        self.model = ScriptedLLM(self.write, name=self.name)
        return self.model

    def write(self, prompt: str) -> Generation:
        if "Rewrite the last question" in prompt:
            return self._said("What is the colour of house 7?", 0.9, prompt)
        house = int(ASKED.findall(prompt)[-1])
        told = str(house) in TOLD.findall(prompt)
        right = self.reads(house) if told else self.knows(house)
        # as sure as it is right, but for some noise
        chance = (0.9 if right else 0.4) + house % 10 / 200
        return self._said(COLOURS[(house + (0 if right else 3)) % 8], chance, prompt)

    def _said(self, text: str, chance: float, prompt: str) -> Generation:
        counts = len(prompt.split()), len(text.split())
        tokens = (Token(text, math.log(chance), 0.5, ((text, math.log(chance)), ("x", -9.0))),)
        return Generation(text, tokens if self.says_how_sure else None, *counts)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.searched += queries
        return [self._found(int(ASKED.findall(query)[-1]), k) for query in queries]

    def _found(self, house: int, k: int) -> list[Passage]:
        street = "It stands in a long street, and the neighbours have nothing to say about it."
        others = [
            Passage(f"Gardens number {house + i} are green. {street}", id=f"garden-{house}-{i}")
            for i in range(10)
        ]
        colour = COLOURS[house % 8]
        own = Passage(f"House {house} is painted {colour}. {street}", id=f"house-{house}")
        return [*others[: self.place], own, *others[self.place :]][:k]


class Letters:
    """Tells houses from gardens, and one number from another."""

    name = "houses and gardens"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.array(
            [
                [text.lower().count("house"), text.count("Garden"), *map(text.count, "0123456789")]
                for text in texts
            ],
            dtype=np.float32,
        )


def fitted(house: House, **given: Any) -> LongTailRAG:
    """A pipeline of three passages, fitted with one look after the first answer."""
    parts = {"questions": houses(), "retriever": house, "settings": settings(), **given}
    return LongTailRAG.fit(llm=parts.pop("llm", None) or house.llm(), **parts)


def settings(**more: Any) -> LongTailSettings:
    # one signal, as a fit of all of them takes seconds
    gate = GECESettings(scorer="product")
    return LongTailSettings(gate=gate, reading=SGICSettings(rounds=1), **more)
