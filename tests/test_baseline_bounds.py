"""The most calls of each method: no model gets it past its bound, and some model gets it there."""

from collections.abc import Callable
from functools import cache
from itertools import count

import pytest
from contracts.methods import LABELLED, PASSAGES, Letters, Nothing, too_much
from contracts.methods import learned as known
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
    **{text: always(text) for text in ("Doc: 0", "I don't know.", "[9] > [1] > [1]")},
    "no tokens": lambda: lambda prompt: f"reply to {len(prompt)}",
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


REACHED = [
    *((name, 1, {}) for name in ("direct", "single", "skr", "dur", "gate-frequency")),
    *((name, 1, {}) for name in ("random-shots", "bm25-shots", "dur-shots", "promptpg")),
    *((f"gate-{by}", 2, {}) for by in ("logprob", "product", "least", "entropy", "margin")),
    ("ircot", 5 + 1, {}),  # sentences, then the reader
    ("ircot", 2 + 1, {"steps": 2}),
    ("iter-retgen", 2, {}),
    ("iter-retgen", 4, {"iterations": 4}),
    ("adaptive", 2, {}),  # the route of several searches
    ("adaptive", 3, {"iterations": 3}),
    ("self-rag", 1 + 3 + 3 * 3, {}),  # to search?; an answer a passage; three judgements of each
    ("self-rag", 1 + 5 + 5 * 3, {"k": 5}),
    # one more: a first reply that has no reflection token
    ("self-rag", 1 + 1 + 3 + 3 * 3, {"reflection_tokens": True}),
    ("sure", 1 + 2 + 2 + 2, {}),  # the list; summaries; each valid?; each against the other
    ("sure", 1 + 3 + 3 + 3 * 2, {"candidates": 3}),
    ("listwise", 1 + 1, {}),  # 20 passages are one window; the reader
    ("listwise", 9 + 1, {"candidates": 100}),  # from 81, 71, ..., 11 and 1, twenty each
    ("listwise", 2 + 1, {"candidates": 21}),  # from 2 and 1
    ("listwise-shots", 1 + 1, {}),  # the order of 20 examples; the answer after the best
    ("sure-shots", 1 + 2 + 2 + 2, {}),
    ("filco", 3 + 1, {}),  # a filter a passage, then the reader
    ("filco", 1 + 1, {"k": 1}),
    ("k-samples", 5, {}),
    ("k-samples", 2, {"samples": 2}),
    # of the first answer, three documents, five rounds
    *(("sgic", most, {"loop": SGICSettings(rounds=5, max_calls=most)}) for most in (5, 9)),
]


@cache
def learned(name: str) -> object:
    """From half-known questions; adaptive from a model that is never right, so to search often."""
    if name != "adaptive":
        return known(name)
    row = METHODS[name]
    settings = row.settings(unsolved="many")
    return row.taught(LABELLED, settings, methods_world(lambda _: ""))


def calls(name: str, settings: object) -> dict[tuple[str, str], int]:
    """How many prompts each model is sent, with each shelf beside it."""
    row, found = METHODS[name], {}
    for model, make in MODELS.items():
        if model == "no tokens" and "probabilities" in row.needs:
            continue
        for shelf, shelved in SHELVES.items():
            llm = ScriptedLLM(make())
            flow = row.flow(ASKED, settings, learned(name))
            run(flow, World(llm=llm, retriever=shelved(), encoder=Letters()))
            found[model, shelf] = len(llm.prompts)
    return found


@pytest.mark.parametrize(("name", "most", "more"), REACHED)
def test_no_model_gets_past_the_bound_and_one_reaches_it(name, most, more):
    settings = METHODS[name].settings(**more)
    asked = calls(name, settings)
    worst = max(asked, key=asked.__getitem__)
    assert asked[worst] == most, worst
    assert METHODS[name].most_calls(settings) == most


def test_the_bound_of_sgic_is_its_own_limit_which_no_three_documents_use_up():
    """By default it cannot be reached: one answer, three documents and five rounds are nine."""
    row = METHODS["sgic"]
    assert max(calls("sgic", row.settings()).values()) == 1 + 3 + 5
    assert row.most_calls(row.settings()) == 128


def test_every_method_is_held_to_its_bound():
    assert {name for name, *_ in REACHED} == set(METHODS)
