"""A small world that every row of `METHODS` can be run in."""

import re
from functools import cache

import numpy as np

from ltrag_plugins.flow import World
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Question, Token

PASSAGES = [
    Passage("Emma is a novel by Jane Austen. It was printed in 1815.", id="p0", title="Emma"),
    Passage("Persuasion is the last novel of Jane Austen.", id="p1", title="Persuasion"),
    Passage("Middlemarch is a novel by George Eliot.", id="p2", title="Middlemarch"),
    Passage("Bread is baked from flour.", id="p3", title="Bread"),
]
QUESTIONS = [
    Question("Who wrote Emma?", ("Jane Austen",), "q0"),
    Question("Who wrote Middlemarch?", ("George Eliot",), "q1"),
    Question("What is bread baked from?", ("flour",), "q2"),
]
LABELLED = [
    Question("Who wrote Persuasion?", ("Jane Austen",), "l0"),
    Question("Who wrote Walden?", ("Henry David Thoreau",), "l1"),
    Question("What is paper made from?", ("wood",), "l2"),
    Question("When was Emma printed?", ("1815",), "l3"),
]


class Letters:
    """Texts as counts of letters."""

    name = "letters"

    def encode(self, texts):
        return np.array([[text.lower().count(c) for c in "aeinorst"] for text in texts], "float32")


def plausible(prompt: str) -> str:
    """Knows who wrote Persuasion; else says something that depends on the prompt."""
    if "Who wrote Persuasion?" in prompt:
        return "Jane Austen"
    return ["Jane Austen", "George Eliot", "flour", "yes", "[1] > [2]"][len(prompt) % 5]


def likely(prompt: str, text: str) -> Generation:
    """The text with token probabilities that depend on the prompt."""
    logprob = -0.05 - len(prompt) % 7 / 10
    tokens = [
        Token(piece, logprob, alternatives=((piece, logprob), (" other", logprob - 3)))
        for piece in re.findall(r"\s*\S+|\s+", text)
    ]
    return Generation(text, tuple(tokens), len(prompt.split()), len(tokens))


class Scoring:
    """A function as a model that can also tell how likely a text is."""

    name = "scoring"

    def __init__(self, reply):
        self.writing = ScriptedLLM(lambda prompt: likely(prompt, reply(prompt)))
        self.scored = []

    @property
    def prompts(self):
        """All that it was asked, to write after or to score after."""
        return [*self.writing.prompts, *self.scored]

    def generate(self, prompts, settings=GenerationSettings()):
        return self.writing.generate(prompts, settings)

    def score(self, prompts, continuations):
        self.scored += prompts
        return [likely(p, c) for p, c in zip(prompts, continuations, strict=True)]


class Noting:
    """A retriever that notes what it is asked, and for how many passages."""

    def __init__(self, search):
        self.within, self.queries, self.most = search, [], 0

    def search(self, queries, k):
        self.queries += queries
        self.most = max(self.most, k)
        return self.within(queries, k)


def world(reply=plausible) -> World:
    shelf = Noting(BM25Retriever(PASSAGES).search)
    return World(llm=Scoring(reply), retriever=shelf, encoder=Letters())


def too_much(queries, k):
    """More passages than were asked for, each of 250 words that name it and their place."""
    texts = [" ".join(f"p{i}w{j}" for j in range(250)) for i in range(k + 50)]
    return [[Passage(text, id=str(i)) for i, text in enumerate(texts)] for _ in queries]


def taught(prompt: str) -> str:
    """Knows every other labelled question, so that there is something to learn."""
    known = {question.text: question.answers[0] for question in LABELLED[::2]}
    return next((known[text] for text in known if text in prompt), plausible(prompt))


@cache
def learned(name: str) -> object:
    """What the method of that name learns with its defaults."""
    return METHODS[name].taught(LABELLED, METHODS[name].settings(), world(taught))


class Nothing:
    """A retriever that finds nothing."""

    def search(self, queries, k):
        return [[] for _ in queries]
