r"""Self-RAG: search on demand, answer from each passage, keep the answer that critique likes best.

1. Does the question need a search? Only above a threshold is there one.
2. One answer for each passage, from that passage alone.
3. Each is judged: is the passage relevant, does it support the answer, is the answer useful?

.. math:: f = w_p \bar p + w_{rel} s_{rel} + w_{sup} s_{sup} + w_{use} s_{use}

with p the geometric mean of the answer's token probabilities (0 without) and the critiques s: in a
model that was trained to write reflection tokens, from these; in any other from its replies to
yes-or-no questions, s the probability of yes, for usefulness 2 p - 1 in [-1, 1]. The tokens and the
form of their prompt are those that such models were trained on.

References:
    Asai et al., ICLR 2024, "Self-RAG: Learning to Retrieve, Generate, and Critique through
    Self-Reflection", https://arxiv.org/abs/2310.11511, table 1; section 3.3, eq. 3-4 (one segment,
    as their short-form tasks); the yes-or-no questions are ours.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.prompts.templates import (
    READING_PROMPT,
    ReadingTemplate,
    answer_from,
    beginning,
    filled,
    passages_block,
    reading_prompt,
)
from ltrag_plugins.settings import Count, Range, Share
from ltrag_plugins.types import Answer, Generation, Passage, Token
from ltrag_plugins.uncertainty import YES_NO_TOKENS, mean_logprob, yes_probability

RETRIEVE = {"[Retrieval]": 1.0, "[No Retrieval]": 0.0}
RELEVANT = {"[Relevant]": 1.0, "[Irrelevant]": 0.0}
SUPPORT = {
    "[Fully supported]": 1.0,
    "[Partially supported]": 0.5,
    "[No support / Contradictory]": 0.0,
}
USEFUL = {f"[Utility:{i}]": (i - 3) / 2 for i in range(1, 6)}
"""Each group's reflection tokens and their values; usefulness runs from -1 to 1."""

_TOKENS = [*RETRIEVE, *RELEVANT, *SUPPORT, *USEFUL, "[Continue to Use Evidence]"]
_NOT_ANSWER = re.compile(
    "|".join([r"<paragraph>.*?(?:</paragraph>|\Z)", *map(re.escape, _TOKENS)]), re.S
)
_DECISION_TOKENS = 8  # the reflection token, also where it is spelled in several

_SEARCH_PROMPT = (
    "Question: {question}\nWould you have to look something up to be sure of the answer? "
    "Reply yes or no.\nReply:"
)
_RELEVANT_PROMPT = (
    "{passage}\n\nQuestion: {question}\n"
    "Does the text above help to answer the question? Reply yes or no.\nReply:"
)
_SUPPORT_PROMPT = (
    "{passage}\n\nQuestion: {question}\nAnswer: {answer}\n"
    "Does the text above say that this answer is right? Reply yes or no.\nReply:"
)
_USEFUL_PROMPT = (
    "Question: {question}\nAnswer: {answer}\n"
    "Is this a useful answer to the question? Reply yes or no.\nReply:"
)

_Mode = Literal["reflection tokens", "yes-no probabilities", "yes-no texts"]
"""What the critiques were read from."""
_Weight = Annotated[float, Range(0, 1000)]


@dataclass(frozen=True, slots=True)
class SelfRAGSettings(ReadingSettings):
    """When to search, how much to read, and what counts."""

    k: Count = 3
    """Passages to answer from (paper: up to 10)."""
    template: ReadingTemplate = READING_PROMPT
    """Reads one passage, without reflection tokens: `{passages}` and `{question}` are replaced."""
    max_tokens: Count = 24
    """Longest answer, in tokens; reflection tokens count (authors' code: 100)."""
    reflection_tokens: bool = False
    """True for a model that was trained to write them (selfrag_llama2_7b); where it then writes
    none, it is judged by yes and no as any other."""
    threshold: Share = 0.2
    """Search where the probability that it is needed is above this (paper: 0.2); 1: never."""
    w_likelihood: _Weight = 1.0
    """Weight of the answer's likelihood; all four as in the paper."""
    w_relevance: _Weight = 1.0
    """Weight of the passage's relevance."""
    w_support: _Weight = 1.0
    """Weight of the passage's support for the answer."""
    w_usefulness: _Weight = 0.5
    """Weight of the answer's usefulness."""


@dataclass(frozen=True, slots=True)
class _Critique:
    """One passage, what the model answered from it, and what it thinks of both."""

    passage: Passage
    text: str
    """The answer, without reflection tokens."""
    likelihood: float
    """Geometric mean of the answer's token probabilities, in [0, 1]; 0 without."""
    relevance: float
    """In [0, 1]; larger is better, as in all of them."""
    support: float
    """In [0, 1]."""
    usefulness: float
    """In [-1, 1]."""


@dataclass(frozen=True, slots=True)
class SelfRAGAnswer(Answer):
    """An answer with what was thought of all that could have been given."""

    mode: _Mode = "yes-no probabilities"
    critiques: tuple[_Critique, ...] = ()
    """One for each passage, in the order of the search; empty where there was none."""


def self_rag(question: str, settings: SelfRAGSettings | None = None) -> Flow[SelfRAGAnswer]:
    """At most one search; its `passages` hold the one that the answer is from.

    By reflection tokens at most 1 + `k` model calls, by yes and no 1 + 4 `k`. Where nothing is
    found, the model answers as if it had seen no need to search (by yes and no: as in `direct`).
    """
    settings = settings or SelfRAGSettings()
    if not settings.reflection_tokens:
        return (yield from _judging(question, settings, ()))
    prompt = f"### Instruction:\n{question}\n\n### Response:\n"
    [first] = yield from ask(prompt, max_tokens=_DECISION_TOKENS)
    need = reflection_value(first, RETRIEVE)
    if need is None:
        return (yield from _judging(question, settings, (first,)))
    found = (yield from _search(question, settings)) if need > settings.threshold else []
    prompts = [
        f"{prompt}[Retrieval]<paragraph>{passage.title}\n{beginning(passage.text)}</paragraph>"
        for passage in found
    ] or [f"{prompt}[No Retrieval]"]
    replies = yield from ask(*prompts, max_tokens=settings.max_tokens)
    if not found:
        return SelfRAGAnswer(_text(replies[0]), trace=(first, *replies), mode="reflection tokens")
    critiques = [_reflected(*pair) for pair in zip(found, replies, strict=True)]
    return _best(critiques, settings, "reflection tokens", (first, *replies))


def _judging(
    question: str, settings: SelfRAGSettings, trace: tuple[Generation, ...]
) -> Flow[SelfRAGAnswer]:
    [need] = yield from ask(filled(_SEARCH_PROMPT, question=question), max_tokens=YES_NO_TOKENS)
    trace = (*trace, need)
    wanted = yes_probability(need) > settings.threshold
    found = (yield from _search(question, settings)) if wanted else []
    if not found:
        known = yield from answer_from(question, (), max_tokens=settings.max_tokens, trace=trace)
        return SelfRAGAnswer(known.text, trace=known.trace, mode=_mode([need]))
    prompts = [reading_prompt(question, [passage], settings.template) for passage in found]
    drafts = yield from ask(*prompts, max_tokens=settings.max_tokens, stop=("\n",))
    pairs = [*zip(found, drafts, strict=True)]
    questions = [prompt for pair in pairs for prompt in _judging_prompts(question, *pair)]
    replies = yield from ask(*questions, max_tokens=YES_NO_TOKENS)
    critiques = [_judged(*pair, replies[3 * i : 3 * i + 3]) for i, pair in enumerate(pairs)]
    return _best(critiques, settings, _mode([need, *replies]), (*trace, *drafts, *replies))


def _search(question: str, settings: SelfRAGSettings) -> Flow[list[Passage]]:
    [found] = yield from fetch(question, k=settings.k)
    return found


def _judging_prompts(question: str, passage: Passage, draft: Generation) -> list[str]:
    shown, answer = passages_block([passage]), draft.text.strip()
    return [
        filled(_RELEVANT_PROMPT, passage=shown, question=question),
        filled(_SUPPORT_PROMPT, passage=shown, question=question, answer=answer),
        filled(_USEFUL_PROMPT, question=question, answer=answer),
    ]


def _judged(passage: Passage, draft: Generation, replies: Sequence[Generation]) -> _Critique:
    relevant, supported, useful = map(yes_probability, replies)
    text = draft.text.strip()
    return _Critique(passage, text, _likelihood(draft), relevant, supported, 2 * useful - 1)


def _reflected(passage: Passage, reply: Generation) -> _Critique:
    """A reflection token that the model did not write counts as 0 (authors' code)."""
    values = [reflection_value(reply, group) or 0.0 for group in (RELEVANT, SUPPORT, USEFUL)]
    return _Critique(passage, _text(reply), _likelihood(reply), *values)


def _likelihood(reply: Generation) -> float:
    return math.exp(mean_logprob(reply)) if reply.tokens else 0.0


def _score(critique: _Critique, settings: SelfRAGSettings) -> float:
    if not critique.text:
        return -math.inf
    return (
        settings.w_likelihood * critique.likelihood
        + settings.w_relevance * critique.relevance
        + settings.w_support * critique.support
        + settings.w_usefulness * critique.usefulness
    )


def _best(
    critiques: Sequence[_Critique],
    settings: SelfRAGSettings,
    mode: _Mode,
    trace: tuple[Generation, ...],
) -> SelfRAGAnswer:
    best = max(critiques, key=lambda critique: _score(critique, settings))
    return SelfRAGAnswer(
        best.text, passages=(best.passage,), trace=trace, mode=mode, critiques=tuple(critiques)
    )


def _mode(replies: Sequence[Generation]) -> _Mode:
    known = all(reply.tokens is not None for reply in replies)
    return "yes-no probabilities" if known else "yes-no texts"


def reflection_value(reply: Generation, group: Mapping[str, float]) -> float | None:
    r"""The expected value of a group's tokens, in the range of their values.

    .. math:: \sum_{t \in G} v_t p_t / \sum_{t \in G} p_t

    with the probabilities where the reply first has a token of the group; where it has none, of
    RETRIEVE and RELEVANT, which open a reply, with those at its start. Without token probabilities
    the value of the token that the text names first. None where there is none.
    """
    spelled = [(token.text.strip(), _options(token)) for token in reply.tokens or ()]
    # a special token can be left out of the text; it is then the likeliest alternative
    places = [options for text, options in spelled if (text or next(iter(options))) in group]
    if group in (RETRIEVE, RELEVANT):
        places += [options for _, options in spelled[:1]]
    for options in places:
        shares = {name: p for name, p in options.items() if name in group}
        if sum(shares.values()) > 0:
            return sum(group[name] * p for name, p in shares.items()) / sum(shares.values())
    named = {reply.text.find(name): v for name, v in group.items() if name in reply.text}
    return named[min(named)] if named else None


def _text(reply: Generation) -> str:
    """The reply without reflection tokens and passages."""
    return " ".join(_NOT_ANSWER.sub(" ", reply.text).split())


def _options(token: Token) -> dict[str, float]:
    shares: dict[str, float] = {}
    for text, logprob in token.alternatives or ((token.text, token.logprob),):
        checked_token(Token(text, logprob), "the model")
        shares[text.strip()] = shares.get(text.strip(), 0.0) + math.exp(min(0.0, logprob))
    return shares


METHOD = Method(
    name="self-rag",
    summary="searches on demand, answers from each passage, keeps what critique likes best",
    source="Asai et al., ICLR 2024",
    settings=SelfRAGSettings,
    answer=lambda question, settings, _: self_rag(question.text, settings),
    most_calls=lambda settings: 1 + 4 * settings.k + settings.reflection_tokens,
    needs=frozenset({"retriever"}),
)
