"""A table as a retriever, a table as a model, and token probabilities by hand."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ltrag_plugins.flow import Flow, Observer, World, run
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.types import Answer, Generation, Passage, Question, Token


def flow_of(name: str, question: str, settings: object = None, learned: object = None) -> Flow:
    """The flow of the method of that name over a question."""
    return METHODS[name].flow(Question(question), settings, learned)


def answer(
    name: str,
    question: str,
    llm: LLM,
    shelf: object = None,
    *,
    learned: object = None,
    encoder: object = None,
    observers: Sequence[Observer] = (),
    **settings: object,
) -> Answer:
    """Of the method of that name, with a model and a retriever, or a table of what it finds."""
    found = shelf if hasattr(shelf, "search") else Library(shelf or {})
    flow = flow_of(name, question, METHODS[name].settings(**settings), learned)
    return run(flow, World(llm=llm, retriever=found, encoder=encoder), observers=observers)


class Shelf:
    """A retriever that finds what lies on it."""

    def __init__(self, *passages: Passage) -> None:
        self.passages, self.asked = list(passages), []

    def search(self, queries, k):
        self.asked.append((tuple(queries), k))
        return [self.passages[:k] for _ in queries]


class Everything:
    """A retriever that finds the query itself."""

    def search(self, queries, k):
        return [[Passage(query)] for query in queries]


class Planes:
    """An encoder that knows vectors for words."""

    name = "planes"

    def __init__(self, **vectors) -> None:
        self.vectors, self.asked = vectors, []

    def encode(self, texts):
        self.asked.append(tuple(texts))
        return np.array([self.vectors[text.rstrip("?")] for text in texts], dtype="float32")


class Library:
    """Finds what stands in its table for a query, nothing for others; remembers the queries."""

    def __init__(self, shelves: Mapping[str, Sequence[Passage]]) -> None:
        self.shelves, self.queries, self.asked_for = shelves, [], []

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.queries += queries
        self.asked_for.append(k)
        return [list(self.shelves.get(query, ()))[:k] for query in queries]


def says(*rows: tuple[str, str | Generation]) -> ScriptedLLM:
    """A model that says what stands in the first row whose text is in the prompt."""

    def reply(prompt: str) -> str | Generation:
        for text, said in rows:
            if text in prompt:
                return said
        raise AssertionError(f"no row of the table is for {prompt!r}")

    return ScriptedLLM(reply)


def spelled(*pieces: str | tuple[str, Mapping[str, float]]) -> Generation:
    """A reply in tokens; a piece may come with the probabilities of the likeliest tokens there."""
    tokens = []
    for piece in pieces:
        text, shares = piece if isinstance(piece, tuple) else (piece, {piece: 1.0})
        ranked = sorted(shares.items(), key=lambda share: -share[1])
        options = tuple((option, math.log(p)) for option, p in ranked)
        tokens.append(Token(text, math.log(shares.get(text, 1.0)), alternatives=options))
    return Generation("".join(token.text for token in tokens), tuple(tokens))
