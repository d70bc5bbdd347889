r"""Self-RAG: search on demand, answer from each passage, keep the answer that critique likes best.

1. Does the question need a search? Only above a threshold is there one.
2. One answer for each passage, from that passage alone.
3. Each is judged: is the passage relevant, does it support the answer, is the answer useful?

.. math:: f = w_p \bar p + w_{rel} s_{rel} + w_{sup} s_{sup} + w_{use} s_{use}

A model that was trained to write reflection tokens judges by these, in the form of its training.
Any other replies to yes-or-no questions: s is the probability of yes, for usefulness 2 p - 1.

After Asai et al., ICLR 2024, https://arxiv.org/abs/2310.11511, table 1, section 3.3, eq. 3-4 and
algorithm 1: all this for each segment of an answer, with a beam of answers in progress, ranked by
the mean f of their segments; one segment for short-form tasks. The yes-or-no questions and the mean
are ours.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from statistics import fmean
from typing import Annotated

from ltrag_plugins.flow import Flow, ask, fetch, together
from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.prompts import templates
from ltrag_plugins.prompts.replies import first_sentence
from ltrag_plugins.settings import Count, Range, Share
from ltrag_plugins.types import Answer, Generation, Passage, Question, Token
from ltrag_plugins.uncertainty import YES_NO_TOKENS, mean_logprob, yes_probability

# each group's reflection tokens and their values
_SUPPORT = ("[No support / Contradictory]", "[Partially supported]", "[Fully supported]")
_REFLECTION: Mapping[str, Mapping[str, float]] = {
    "retrieve": {"[Retrieval]": 1.0, "[No Retrieval]": 0.0},
    "relevant": {"[Relevant]": 1.0, "[Irrelevant]": 0.0},
    "support": {token: i / 2 for i, token in enumerate(_SUPPORT)},
    "useful": {f"[Utility:{i}]": (i - 3) / 2 for i in range(1, 6)},
}
_NOT_ANSWER = re.compile(
    r"<paragraph>.*?(?:</paragraph>|\Z)|\[Continue to Use Evidence\]|"
    + "|".join(re.escape(token) for group in _REFLECTION.values() for token in group),
    re.S,
)
_NEXT_SEGMENT = ("[Retrieval]", "[No Retrieval]", "[Continue to Use Evidence]")
_MODES = ("yes-no texts", "yes-no probabilities", "reflection tokens")
_DECISION_TOKENS = 8  # the reflection token, also where it is spelled in several

_TRAINED_PROMPT = "### Instruction:\n{question}\n\n### Response:\n"
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

_Weight = Annotated[float, Range(0, 1000)]


@dataclass(frozen=True, slots=True)
class SelfRAGSettings(ReadingSettings):
    """When to search, how much to read (paper: `k` up to 10; authors' code: `max_tokens`, in which
    reflection tokens count, 100), and what counts; `template` reads one passage."""

    reflection_tokens: bool = False
    """True for a model that was trained to write them (selfrag_llama2_7b); where it then writes
    none, it is judged by yes and no as any other."""
    threshold: Share = 0.2
    """Search where the probability that it is needed is above this (paper: 0.2); 1: never."""
    segments: Count = 1
    """Most segments of an answer, a sentence each (paper: 1 for short answers)."""
    beam: Count = 2
    """Answers in progress that go on at each segment (paper: 2)."""
    w_likelihood: _Weight = 1.0
    """Weight of the answer's likelihood; all four as in the paper."""
    w_relevance: _Weight = 1.0
    """Weight of the passage's relevance."""
    w_support: _Weight = 1.0
    """Weight of the passage's support for the answer."""
    w_usefulness: _Weight = 0.5
    """Weight of the answer's usefulness."""


@dataclass(frozen=True, slots=True)
class SelfRAGAnswer(Answer):
    """An answer with what was thought of all that could have been given."""

    mode: str = "yes-no probabilities"
    """What the critiques were read from: these, "yes-no texts" or "reflection tokens"."""
    critiques: tuple[tuple[float, ...], ...] = ()
    """For each passage found (of several segments for the one that each was written after),
    likelihood (geometric mean of the token probabilities, 0 without), relevance and support, in
    [0, 1], and usefulness, in [-1, 1]."""


_Critiques = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class _Begun:
    """An answer in progress."""

    text: str = ""
    last: str = ""
    """Its last segment."""
    said: str = ""
    """What stands behind the trained prompt: all segments, with reflection tokens and passages."""
    passages: tuple[Passage, ...] = ()
    critiques: _Critiques = ()
    """Of its segments; those without a passage are not judged."""
    ended: bool = False

    def value(self, weights: Sequence[float]) -> float:
        values = [sum(map(mul, weights, critique)) for critique in self.critiques]
        return fmean(values or (0.0,)) if self.text else -math.inf


def _answer(question: Question, settings: SelfRAGSettings, _: None) -> Flow[SelfRAGAnswer]:
    """A segment takes at most one search, and 1 + 4 `k` calls; by reflection tokens 1 + `k`."""
    begun, trace, modes, judged = [_Begun()], list[Generation](), set[str](), _Critiques()
    weights = settings.w_likelihood, settings.w_relevance, settings.w_support, settings.w_usefulness
    for _number in range(settings.segments):
        going = [one for one in begun if not one.ended]
        grown = yield from together([_grown(question.text, one, settings) for one in going])
        longer = [one for one in begun if one.ended]
        for candidates, critiques, replies, mode in grown:
            judged = critiques
            longer += candidates
            trace += replies
            modes.add(mode)
        ranked = sorted(longer, key=lambda one: one.value(weights), reverse=True)
        distinct = dict[str, _Begun]()
        for one in ranked:  # the best of those that say the same
            distinct.setdefault(one.text, one)
        begun = [*distinct.values()][: settings.beam]
        if all(one.ended for one in begun):
            break
    best, mode = begun[0], next(mode for mode in _MODES if mode in modes)
    judged = best.critiques if settings.segments > 1 else judged
    read = {(passage.title, passage.text): passage for passage in best.passages}
    return SelfRAGAnswer(best.text, None, tuple(read.values()), tuple(trace), mode, judged)


def _grown(
    question: str, begun: _Begun, settings: SelfRAGSettings
) -> Flow[tuple[list[_Begun], _Critiques, list[Generation], str]]:
    """The answer with one segment more, after each passage or after none; the critiques, all
    replies, and what the critiques were read from."""
    need, answering, asked = None, _by_tokens, list[Generation]()
    if settings.reflection_tokens:
        prompt = templates.filled(_TRAINED_PROMPT, question=question) + begun.said
        asked += yield from ask(prompt, max_tokens=_DECISION_TOKENS)
        need = _reflection_value(asked[0], "retrieve")
    if need is None:
        so_far = f"\nAnswer so far: {begun.text}" if begun.text else ""
        prompt = templates.filled(_SEARCH_PROMPT, question=question + so_far)
        asked += yield from ask(prompt, max_tokens=YES_NO_TOKENS)
        need, answering = yes_probability(asked[-1]), _by_yes_and_no
    found: list[Passage] = []
    if need > settings.threshold:
        [found] = yield from fetch(f"{question} {begun.last}".strip(), k=settings.k)
    segments, drafts, values, judged = yield from answering(question, begun, found, settings)
    mode = _MODES[-1]
    if answering is _by_yes_and_no:
        mode = _MODES[all(reply.tokens is not None for reply in (asked[-1], *judged))]
    likely = [math.exp(mean_logprob(draft)) if draft.tokens else 0.0 for draft in drafts]
    critiques = (
        tuple((p, *three) for p, three in zip(likely, values, strict=False)) if found else ()
    )
    longer = []
    for i, one in enumerate(segments):
        if begun.text and (not one.last or one.last in begun.text):
            longer.append(replace(begun, ended=True))  # it has nothing more to say
            continue
        whole = f"{begun.text} {one.last}".strip()
        on = replace(begun, text=whole, last=one.last, said=begun.said + one.said, ended=one.ended)
        if found:
            read, judgements = (*begun.passages, found[i]), (*begun.critiques, critiques[i])
            on = replace(on, passages=read, critiques=judgements)
        longer.append(on)
    return longer, critiques, [*asked, *drafts, *judged], mode


# a segment for each passage (or one), the replies they are from, what was judged of each, by which
_Answered = tuple[list[_Begun], list[Generation], list[list[float]], list[Generation]]


def _by_tokens(
    question: str, begun: _Begun, found: Sequence[Passage], settings: SelfRAGSettings
) -> Flow[_Answered]:
    """A reflection token that the model did not write counts as 0 (authors' code)."""
    shown = [f"{passage.title}\n{templates.beginning(passage.text)}" for passage in found]
    begins = [f"[Retrieval]<paragraph>{text}</paragraph>" for text in shown] or ["[No Retrieval]"]
    before = templates.filled(_TRAINED_PROMPT, question=question) + begun.said
    prompts = [before + begin for begin in begins]
    stop = _NEXT_SEGMENT if settings.segments > 1 else ()
    replies = yield from ask(*prompts, max_tokens=settings.max_tokens, stop=stop)
    groups = ("relevant", "support", "useful")
    read = [[_reflection_value(reply, group) for group in groups] for reply in replies]
    segments = [
        _Begun(
            last=" ".join(_NOT_ANSWER.sub(" ", reply.text).split()),
            said=begin + reply.text,
            ended=useful is not None,
        )
        for begin, reply, (*_, useful) in zip(begins, replies, read, strict=True)
    ]
    return segments, replies, [[value or 0.0 for value in values] for values in read], []


def _by_yes_and_no(
    question: str, begun: _Begun, found: Sequence[Passage], settings: SelfRAGSettings
) -> Flow[_Answered]:
    """A segment is a sentence; what does not end as one ends the answer."""
    read = [templates.reading_prompt(question, [one], settings.template) for one in found]
    after = f" {begun.text}" if begun.text else ""
    prompts = [prompt + after for prompt in read or [templates.direct_prompt(question)]]
    drafts = yield from ask(*prompts, max_tokens=settings.max_tokens, stop=("\n",))
    texts, judging = [draft.text.strip() for draft in drafts], []
    if settings.segments > 1:
        texts = [*map(first_sentence, texts)]
    for passage, text in zip(found, texts, strict=False):
        shown = templates.passages_block([passage])
        whole = f"{begun.text} {text}".strip()
        judging += [
            templates.filled(_RELEVANT_PROMPT, passage=shown, question=question),
            templates.filled(_SUPPORT_PROMPT, passage=shown, question=question, answer=text),
            templates.filled(_USEFUL_PROMPT, question=question, answer=whole),
        ]
    judged = (yield from ask(*judging, max_tokens=YES_NO_TOKENS)) if found else []
    yes = [*map(yes_probability, judged)]
    values = [[yes[i], yes[i + 1], 2 * yes[i + 2] - 1] for i in range(0, len(yes), 3)]
    segments = [_Begun(last=text, said=text, ended=text[-1:].isalnum()) for text in texts]
    return segments, drafts, values, judged


def _reflection_value(reply: Generation, group: str) -> float | None:
    r"""The group's expected value, :math:`\sum_{t \in G} v_t p_t / \sum_{t \in G} p_t`, where the
    reply first has a token of it; by its text without token probabilities; None without any.
    """
    value_of = _REFLECTION[group]
    spelled = [(token.text.strip(), _options(token)) for token in reply.tokens or ()]
    # a special token can be left out of the text; it is then the likeliest alternative
    places = [options for text, options in spelled if (text or next(iter(options))) in value_of]
    opening = spelled[:1] if group in ("retrieve", "relevant") else []
    for options in [*places, *(options for _, options in opening)]:
        shares = {name: p for name, p in options.items() if name in value_of}
        if sum(shares.values()) > 0:
            return sum(value_of[name] * p for name, p in shares.items()) / sum(shares.values())
    named = {reply.text.find(name): v for name, v in value_of.items() if name in reply.text}
    return named[min(named)] if named else None


def _options(token: Token) -> dict[str, float]:
    """The probabilities of the likeliest tokens at this place, or of the one that was written."""
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
    answer=_answer,
    most_calls=lambda settings: (
        (1 + settings.beam * (settings.segments - 1))
        * (1 + 4 * settings.k + settings.reflection_tokens)
    ),
)
