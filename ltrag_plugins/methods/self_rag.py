r"""Self-RAG: search on demand, answer from each passage, keep the answer that critique likes best.

1. Does the question need a search? Only above a threshold is there one.
2. One answer for each passage, from that passage alone.
3. Each is judged: is the passage relevant, does it support the answer, is the answer useful?

.. math:: f = w_p \bar p + w_{rel} s_{rel} + w_{sup} s_{sup} + w_{use} s_{use}

with p the geometric mean of the answer's token probabilities (0 without) and the critiques s: in a
model that was trained to write reflection tokens, from these (`reflection`); in any other from its
replies to yes-or-no questions, s the probability of yes, for usefulness 2 p - 1 in [-1, 1].

References:
    Asai et al., ICLR 2024, "Self-RAG: Learning to Retrieve, Generate, and Critique through
    Self-Reflection", https://arxiv.org/abs/2310.11511, section 3.3, eq. 3-4 (one segment, as their
    short-form tasks); the yes-or-no questions are ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.methods import reflection
from ltrag_plugins.methods.critique import Critique, judged, judging_prompts, reflected
from ltrag_plugins.methods.direct import direct
from ltrag_plugins.methods.method import Method, whole
from ltrag_plugins.prompts.templates import READING_PROMPT, filled, reading_prompt
from ltrag_plugins.types import Answer, Generation, Passage
from ltrag_plugins.uncertainty import YES_NO_TOKENS, yes_probability

SEARCH = (
    "Question: {question}\nWould you have to look something up to be sure of the answer? "
    "Reply yes or no.\nReply:"
)
"""`{question}` is replaced."""

Mode = Literal["reflection tokens", "yes-no probabilities", "yes-no texts"]
"""What the critiques were read from."""


@dataclass(frozen=True, slots=True)
class SelfRAGSettings:
    """When to search, how much to read, and what counts.

    Raises:
        InvalidInput: a value is out of its range, or the template lacks a place.
    """

    reflection_tokens: bool = False
    """True for a model that was trained to write them (selfrag_llama2_7b); where it then writes
    none, it is judged by yes and no as any other."""
    threshold: float = 0.2
    """Search where the probability that it is needed is above this, 0-1 (paper: 0.2); 1: never."""
    k: int = 3
    """Passages to answer from, at least 1 (paper: up to 10)."""
    w_likelihood: float = 1.0
    """Weight of the answer's likelihood, 0-1000; all four as in the paper."""
    w_relevance: float = 1.0
    """Weight of the passage's relevance."""
    w_support: float = 1.0
    """Weight of the passage's support for the answer."""
    w_usefulness: float = 0.5
    """Weight of the answer's usefulness."""
    template: str = READING_PROMPT
    """Reads one passage, without reflection tokens: `{passages}` and `{question}` are replaced."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1; reflection tokens count (authors' code: 100)."""

    def __post_init__(self) -> None:
        if not isinstance(self.reflection_tokens, bool):
            raise InvalidInput(f"reflection_tokens is True or False, got {self.reflection_tokens}")
        _number("threshold", self.threshold, 1.0)
        for name in ("w_likelihood", "w_relevance", "w_support", "w_usefulness"):
            _number(name, getattr(self, name), 1000.0)
        whole("k", self.k)
        whole("max_tokens", self.max_tokens)
        reading_prompt("", (), self.template)


@dataclass(frozen=True, slots=True)
class SelfRAGAnswer(Answer):
    """An answer with what was thought of all that could have been given."""

    mode: Mode = "yes-no probabilities"
    critiques: tuple[Critique, ...] = ()
    """One for each passage, in the order of the search; empty where there was none."""


def self_rag(question: str, settings: SelfRAGSettings | None = None) -> Flow[SelfRAGAnswer]:
    """At most one search; its `passages` hold the one that the answer is from.

    By reflection tokens at most 1 + `k` model calls, by yes and no 1 + 4 `k`. Where nothing is
    found, the model answers as if it had seen no need to search (by yes and no: as in `direct`).
    """
    settings = settings or SelfRAGSettings()
    if not settings.reflection_tokens:
        return (yield from _judging(question, settings, ()))
    prompt = reflection.trained_prompt(question)
    [first] = yield from ask(prompt, max_tokens=_DECISION_TOKENS)
    need = reflection.value(first, reflection.RETRIEVE)
    if need is None:
        return (yield from _judging(question, settings, (first,)))
    found = (yield from _search(question, settings)) if need > settings.threshold else []
    without = [f"{prompt}[No Retrieval]"]
    prompts = [reflection.with_passage(prompt, passage) for passage in found] or without
    replies = yield from ask(*prompts, max_tokens=settings.max_tokens)
    if not found:
        text = reflection.answer_text(replies[0])
        return SelfRAGAnswer(text, trace=(first, *replies), mode="reflection tokens")
    critiques = [reflected(*pair) for pair in zip(found, replies, strict=True)]
    return _best(critiques, settings, "reflection tokens", (first, *replies))


def _judging(
    question: str, settings: SelfRAGSettings, trace: tuple[Generation, ...]
) -> Flow[SelfRAGAnswer]:
    [need] = yield from ask(filled(SEARCH, question=question), max_tokens=YES_NO_TOKENS)
    trace = (*trace, need)
    wanted = yes_probability(need) > settings.threshold
    found = (yield from _search(question, settings)) if wanted else []
    if not found:
        known = yield from direct(question, max_tokens=settings.max_tokens)
        return SelfRAGAnswer(known.text, trace=(*trace, *known.trace), mode=_mode([need]))
    prompts = [reading_prompt(question, [passage], settings.template) for passage in found]
    drafts = yield from ask(*prompts, max_tokens=settings.max_tokens, stop=("\n",))
    questions = [
        prompt
        for passage, draft in zip(found, drafts, strict=True)
        for prompt in judging_prompts(question, passage, draft.text.strip())
    ]
    replies = yield from ask(*questions, max_tokens=YES_NO_TOKENS)
    critiques = [
        judged(passage, draft, replies[3 * i : 3 * i + 3])
        for i, (passage, draft) in enumerate(zip(found, drafts, strict=True))
    ]
    mode = _mode([need, *replies])
    return _best(critiques, settings, mode, (*trace, *drafts, *replies))


def _search(question: str, settings: SelfRAGSettings) -> Flow[list[Passage]]:
    [found] = yield from fetch(question, k=settings.k)
    return found


def _score(critique: Critique, settings: SelfRAGSettings) -> float:
    if not critique.text:
        return -math.inf
    return (
        settings.w_likelihood * critique.likelihood
        + settings.w_relevance * critique.relevance
        + settings.w_support * critique.support
        + settings.w_usefulness * critique.usefulness
    )


def _best(
    critiques: Sequence[Critique],
    settings: SelfRAGSettings,
    mode: Mode,
    trace: tuple[Generation, ...],
) -> SelfRAGAnswer:
    best = max(critiques, key=lambda critique: _score(critique, settings))
    return SelfRAGAnswer(
        best.text, passages=(best.passage,), trace=trace, mode=mode, critiques=tuple(critiques)
    )


def _mode(replies: Sequence[Generation]) -> Mode:
    known = all(reply.tokens is not None for reply in replies)
    return "yes-no probabilities" if known else "yes-no texts"


def _number(name: str, value: object, most: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) <= most:
        raise InvalidInput(f"{name} must be a number in [0, {most:g}], got {value!r}")


_DECISION_TOKENS = 8
"""The reflection token, also where it is spelled in several."""

METHOD = Method(
    name="self-rag",
    summary="searches on demand, answers from each passage, keeps what critique likes best",
    source="Asai et al., ICLR 2024",
    settings=SelfRAGSettings,
    answer=lambda question, settings, _: self_rag(question.text, settings),
    most_calls=lambda settings: 1 + 4 * settings.k + settings.reflection_tokens,
    needs=frozenset({"retriever"}),
)
