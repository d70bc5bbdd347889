"""A table as a retriever, a table as a model, and token probabilities by hand."""

import math
from collections.abc import Mapping, Sequence

from ltrag_plugins.flow import Flow, World
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.types import Generation, Passage, Question, Token


def flow_of(name: str, question: str, settings: object = None, learned: object = None) -> Flow:
    """The flow of the method of that name over a question."""
    return METHODS[name].flow(Question(question), settings, learned)


class Shelf:
    """A retriever that finds what lies on it."""

    def __init__(self, *passages: Passage) -> None:
        self.passages, self.asked = list(passages), []

    def search(self, queries, k):
        self.asked.append((tuple(queries), k))
        return [self.passages[:k] for _ in queries]


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


def world(llm: ScriptedLLM, library: Library) -> World:
    return World(llm=llm, retriever=library)


def spelled(*pieces: str | tuple[str, Mapping[str, float]]) -> Generation:
    """A reply in tokens; a piece may come with the probabilities of the likeliest tokens there."""
    tokens = []
    for piece in pieces:
        text, shares = piece if isinstance(piece, tuple) else (piece, {piece: 1.0})
        ranked = sorted(shares.items(), key=lambda share: -share[1])
        options = tuple((option, math.log(p)) for option, p in ranked)
        tokens.append(Token(text, math.log(shares.get(text, 1.0)), alternatives=options))
    return Generation("".join(token.text for token in tokens), tuple(tokens))
