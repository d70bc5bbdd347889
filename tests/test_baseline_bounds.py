"""The most calls of each method: no model gets it past its bound, and some model gets it there.

The numbers are worked out by hand, so a bound that is too low or too high is seen either way.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import count

import pytest
from contracts.methods import LABELLED, PASSAGES, Letters, Nothing, taught, too_much
from contracts.methods import world as methods_world

from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.types import Generation, Passage, Question, Token

ASKED = Question("Who wrote Emma?", ("Jane Austen",), "q0")
SURE, UNSURE = -0.01, -6.0


def said(text: str, logprob: float) -> Generation:
    """Its words are tokens; where it is unsure, others are as likely."""
    others = ((" other", min(logprob, UNSURE)), (" another", min(logprob, UNSURE)))
    tokens = (Token(w, logprob, -logprob, ((w, logprob), *others)) for w in text.split())
    return Generation(text, tuple(tokens), 9, len(text.split()))


def numbered(form: str, logprob: float) -> Callable[[], Callable[[str], Generation]]:
    """A model that writes the form, never the same twice."""

    def model() -> Callable[[str], Generation]:
        numbers = count()
        return lambda _: said(form.format(next(numbers)), logprob)

    return model


def always(text: str, logprob: float = SURE) -> Callable[[], Callable[[str], Generation]]:
    return lambda: lambda _: said(text, logprob)


def without_tokens() -> Callable[[str], str]:
    return lambda prompt: f"reply to {len(prompt)}"


MODELS = {
    "unsure": numbered("Perhaps it is number {}.", UNSURE),
    "unsure and stubborn": always("perhaps", UNSURE),
    "sure": numbered("It is number {}.", SURE),
    "thinks on": numbered("Fact {} leads nowhere yet. And on it goes.", SURE),
    "concludes at once": always("So the answer is: Jane Austen."),
    "many candidates": always("\n".join(f"{i}. Author {'x' * i}" for i in range(1, 40))),
    "one candidate": always("Jane Austen"),
    "yes": always("yes"),
    "unsure yes": always("yes", UNSURE),
    "no": always("no"),
    "empty": always(""),
    "blank": always(" \n\n "),
    "an order": always("[2] > [1] > [9] > [2]"),
    "retrieval": always("[Retrieval]"),
    "no retrieval": always("[No Retrieval]"),
    "no tokens": without_tokens,
}


class Fresh:
    """Finds passages that it never found before, as many as are asked for or fewer."""

    def __init__(self, most: int) -> None:
        self.most, self.numbers = most, count()

    def search(self, queries, k):
        return [
            [Passage(f"Passage {next(self.numbers)}.") for _ in range(min(k, self.most))]
            for _ in queries
        ]


class TooMuch:
    search = staticmethod(too_much)


SHELVES = {
    "new ones": lambda: Fresh(100),
    "two new ones": lambda: Fresh(2),
    "too many": TooMuch,
    "a few": lambda: BM25Retriever(PASSAGES),
    "none": Nothing,
}


@dataclass(frozen=True)
class Bound:
    """A method with settings that differ from its defaults, and its most calls by hand."""

    method: str
    most: int
    more: dict[str, object]

    def __str__(self) -> str:
        return f"{self.method} {self.most}"

    @property
    def settings(self) -> object:
        return METHODS[self.method].settings(**self.more)


def bound(name: str, most: int, **more: object) -> Bound:
    return Bound(name, most, more)


REACHED = [
    *(bound(name, 1) for name in ("direct", "single", "skr", "dur", "gate-frequency")),
    *(bound(name, 1) for name in ("random-shots", "bm25-shots", "dur-shots", "promptpg")),
    *(bound(f"gate-{by}", 2) for by in ("logprob", "product", "least", "entropy", "margin")),
    bound("ircot", 5 + 1),  # sentences, then the reader
    bound("ircot", 2 + 1, steps=2),
    bound("iter-retgen", 2),
    bound("iter-retgen", 4, iterations=4),
    bound("adaptive", 2),  # the route of several searches
    bound("adaptive", 3, iterations=3),
    bound("self-rag", 1 + 3 + 3 * 3),  # to search?; an answer a passage; three judgements of each
    bound("self-rag", 1 + 5 + 5 * 3, k=5),
    # one more: a first reply that has no reflection token
    bound("self-rag", 1 + 1 + 3 + 3 * 3, reflection_tokens=True),
    bound("sure", 1 + 2 + 2 + 2),  # the list; summaries; each valid?; each against the other
    bound("sure", 1 + 3 + 3 + 3 * 2, candidates=3),
    bound("listwise", 1 + 1),  # 20 passages are one window; the reader
    bound("listwise", 9 + 1, candidates=100),  # from 81, 71, ..., 11 and 1, twenty each
    bound("listwise", 2 + 1, candidates=21),  # from 2 and 1
    bound("filco", 3 + 1),  # a filter a passage, then the reader
    bound("filco", 1 + 1, k=1),
    bound("k-samples", 5),
    bound("k-samples", 2, samples=2),
    bound("sgic", 5, loop=SGICSettings(max_calls=5)),  # of the first answer, 3 documents, 5 rounds
    bound("sgic", 9, loop=SGICSettings(max_calls=9)),  # all of those
]


@cache
def learned(name: str) -> object:
    """From half-known questions; adaptive from a model that is never right, so to search often."""
    teacher = methods_world((lambda _: "") if name == "adaptive" else taught)
    return METHODS[name].taught(LABELLED, METHODS[name].settings(), teacher)


def calls(one: Bound) -> dict[tuple[str, str], int]:
    """How many prompts each model is sent, with each shelf beside it."""
    row, found = METHODS[one.method], {}
    for model, make in MODELS.items():
        if model == "no tokens" and "probabilities" in row.needs:
            continue
        for shelf, shelved in SHELVES.items():
            llm = ScriptedLLM(make())
            flow = row.flow(ASKED, one.settings, learned(one.method))
            run(flow, World(llm=llm, retriever=shelved(), encoder=Letters()))
            found[model, shelf] = len(llm.prompts)
    return found


@pytest.mark.parametrize("one", REACHED, ids=str)
def test_no_model_gets_past_the_bound_and_one_reaches_it(one):
    asked = calls(one)
    worst = max(asked, key=asked.__getitem__)
    assert asked[worst] == one.most, worst
    assert METHODS[one.method].most_calls(one.settings) == one.most


def test_the_bound_of_sgic_is_its_own_limit_which_no_three_documents_use_up():
    """By default it cannot be reached: one answer, three documents and five rounds are nine."""
    assert max(calls(bound("sgic", 9)).values()) == 1 + 3 + 5
    assert METHODS["sgic"].most_calls(METHODS["sgic"].settings()) == 128
    loop = replace(METHODS["sgic"].settings().loop, max_calls=77)
    assert METHODS["sgic"].most_calls(METHODS["sgic"].settings(loop=loop)) == 77


def test_every_method_is_held_to_its_bound():
    assert {one.method for one in REACHED} == set(METHODS)
