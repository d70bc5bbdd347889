"""FILCO: passages are filtered, sentence by sentence, before they are read.

The filter is a prompt to the model that then reads: one model does both. `filter_examples` makes
data to train it to filter: a prompt about a passage, and the sentences that a measure finds useful.
Each example's `chat` is a line of chat JSON, as `ltrag sgic finetune` and other trainers take them;
the weights or the adapter that come of it also read.

References:
    Wang et al., 2023, "Learning to Filter Context for Retrieval-Augmented Generation", section 2,
    https://arxiv.org/abs/2311.08377. There filter and reader are two models, both trained; our
    wording.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, ask, fetch, score, together
from ltrag_plugins.methods.method import Method, ReadingSettings, labelled_questions
from ltrag_plugins.metrics.answer import contains, f1
from ltrag_plugins.prompts.templates import (
    beginning,
    direct_prompt,
    filled,
    passages_block,
    reading_prompt,
)
from ltrag_plugins.settings import Count, Holds, Settings
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Answer, Passage, Question
from ltrag_plugins.uncertainty import checked_tokens

_FILTER_PROMPT = (
    "{passage}\n\nCopy, word for word, only those sentences of the text above that help to answer "
    "the question. If no sentence helps, write: none\nQuestion: {question}\nSentences:"
)
_FilterTemplate = Annotated[str, Holds("passage", "question")]
_NONE = "none"  # what the filter writes where no sentence helps
_FEWEST_WORDS = 4  # a shorter piece of a sentence may stand anywhere by chance

_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[」』”）]*|\n")
_UNFINISHED = re.compile(
    r"(?:[^\W\d_]\.)*[^\W\d_]"  # an initial: J, U.S, e.g
    r"|mr|mrs|ms|dr|prof|st|jr|sr|gen|col|lt|capt|rev|hon|no|vol|fig|vs|etc|inc|ltd|co|corp"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|ca|approx|dept|est|cf",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FILCOSettings(ReadingSettings):
    """How much is fetched, how it is filtered, and how it is read."""

    k: Count = 3
    """Passages to filter; each costs a call."""
    filter_template: _FilterTemplate = _FILTER_PROMPT
    """Asks for the sentences to keep; `{passage}` and `{question}` are replaced."""
    filter_tokens: Count = 128
    """Longest reply of the filter to one passage, in tokens."""


@dataclass(frozen=True, slots=True)
class FilterDataSettings(Settings):
    """Which sentences a filter is taught to keep."""

    measure: Literal["inclusion", "overlap", "cxmi"] = "inclusion"
    """"inclusion" of an accepted answer, lexical "overlap" with one, or "cxmi" (which needs a
    model that tells how likely a text is). The paper finds the first best for short answers, the
    second for dialogue, the third for questions of several steps."""
    threshold: float = 0.0
    """A sentence is kept only above it; 0 keeps what helps at all. In [0, 1] for "inclusion" and
    "overlap", in nats for "cxmi"."""
    most: Count = 1
    """Sentences to keep of a passage, the best first (authors' code: 1)."""
    k: Count = 3
    """Passages to fetch for a question that has none of its own."""
    template: _FilterTemplate = _FILTER_PROMPT
    """The filter's prompt; `{passage}` and `{question}` are replaced."""


def _answer(question: Question, settings: FILCOSettings, _: None) -> Flow[Answer]:
    """One search, one request with a prompt for each passage, one answer from what was kept.

    A passage is left out if the filter said "none", and whole if its reply is of no use. Where the
    filter leaves out all of them, they all come back whole, as in the authors' code. Where nothing
    is found, the question is asked as in `direct`.
    """
    [found] = yield from fetch(question.text, k=settings.k)
    if not found:
        return (yield from settings.read(question, ()))
    prompts = [_filter_prompt(question.text, p, settings.filter_template) for p in found]
    replies = yield from ask(*prompts, max_tokens=settings.filter_tokens, stop=("\n\n",))
    left = []
    for passage, reply in zip(found, replies, strict=True):
        kept = _kept_sentences(reply.text, _as_shown(passage).text)
        if kept is None:
            left.append(passage)
        elif kept:
            left.append(replace(passage, text=" ".join(kept)))
    return (yield from settings.read(question, left or found, replies))


def _filter_prompt(question: str, passage: Passage, template: str) -> str:
    return filled(template, passage=passages_block([_as_shown(passage)]), question=question)


def _as_shown(passage: Passage) -> Passage:
    shown = beginning(passage.text)
    return passage if shown.split() == passage.text.split() else replace(passage, text=shown)


def _kept_sentences(reply: str, text: str) -> list[str] | None:
    """The sentences of `text` that the filter copied, in their order; compared as `words`.

    One is copied if the reply holds it, or holds, as a sentence, a piece of it of at least 4 words.
    No sentences where the filter said "none"; None where its reply is of no use.
    """
    said = _padded(reply)
    pieces = [_padded(s) for s in sentences(reply) if len(words(s)) >= _FEWEST_WORDS]
    kept = [
        sentence
        for sentence in sentences(text)
        for own in [_padded(sentence)]
        if own.strip() and (own in said or any(piece in own for piece in pieces))
    ]
    return kept if kept or words(reply)[:1] == [_NONE] else None


def _padded(text: str) -> str:
    return f" {' '.join(words(text))} "


def sentences(text: str) -> list[str]:
    """The sentences of a text, in order, without the white space around them.

    One ends at a line's end, and at ".", "!", "?" and their like, but not after an initial ("J.",
    "U.S.") or a common abbreviation, nor before a small letter.
    """
    found, start = [], 0
    for end in _END.finditer(text):
        if end[0].startswith("."):
            before, after = text[start : end.start()].split(), text[end.end() :].lstrip()[:1]
            last = before[-1].lstrip("(\"'“‘[") if before else ""
            if after.islower() or (end[0] == "." and _UNFINISHED.fullmatch(last)):
                continue
        found.append(text[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in [*found, text[start:].strip()] if sentence]


@dataclass(frozen=True, slots=True)
class _FilterExample:
    """What the filter is asked, and what it should write."""

    prompt: str
    reply: str

    @property
    def chat(self) -> dict[str, list[dict[str, str]]]:
        """As one line of chat JSON: a user's message, then an assistant's."""
        said = {"user": self.prompt, "assistant": self.reply}
        return {"messages": [{"role": role, "content": text} for role, text in said.items()]}


def filter_examples(
    questions: Sequence[Question], settings: FilterDataSettings | None = None
) -> Flow[list[_FilterExample]]:
    """An example for each question and passage; at most one search and one request for all.

    Only sentences that the prompt shows are taught, so of a longer passage those of its first 200
    words. A passage with none above the threshold teaches the filter to say "none".
    """
    settings = settings or FilterDataSettings()
    questions = labelled_questions(questions, "filco")
    searching = [question.text for question in questions if not question.passages]
    found = iter((yield from fetch(*searching, k=settings.k)) if searching else ())
    flows = [_examples(q, q.passages or next(found), settings) for q in questions]
    made = yield from together(flows)
    return [example for examples in made for example in examples]


def _examples(
    question: Question, passages: Sequence[Passage], settings: FilterDataSettings
) -> Flow[list[_FilterExample]]:
    # a prompt has single spaces, and the filter is to copy it
    split = [[" ".join(s.split()) for s in sentences(_as_shown(p).text)] for p in passages]
    found = [sentence for own in split for sentence in own]
    if settings.measure == "cxmi":
        values = yield from cross_mutual_information(question.text, question.answers[0], found)
    else:
        measure = contains if settings.measure == "inclusion" else f1
        values = [measure(sentence, question.answers) for sentence in found]
    examples, start = [], 0
    for passage, own in zip(passages, split, strict=True):
        value, start = values[start : start + len(own)], start + len(own)
        helping = [i for i in range(len(own)) if value[i] > settings.threshold]
        best = sorted(sorted(helping, key=lambda i: -value[i])[: settings.most])
        prompt = _filter_prompt(question.text, passage, settings.template)
        examples.append(_FilterExample(prompt, " ".join(own[i] for i in best) or _NONE))
    return examples


def cross_mutual_information(question: str, answer: str, found: Sequence[str]) -> Flow[list[float]]:
    r"""How much likelier each sentence makes the answer, in nats; one request for all.

    .. math:: \log p(a \mid s, q) - \log p(a \mid q)

    Above 0 the sentence helps. The authors' code squeezes the difference through a logistic
    function, which changes no order.
    """
    if not found:
        return []
    if not answer.strip():
        raise InvalidInput("a blank answer has no probability to compare; give its text")
    prompts = [direct_prompt(question), *(reading_prompt(question, [Passage(s)]) for s in found)]
    scored = yield from score(prompts, [f" {answer.strip()}"] * len(prompts))
    without, *with_it = (math.fsum(t.logprob for t in checked_tokens(one)) for one in scored)
    return [one - without for one in with_it]


METHOD = Method(
    name="filco",
    summary="one search; the model copies the sentences that help, and answers from those",
    source="Wang et al., 2023, arXiv 2311.08377",
    settings=FILCOSettings,
    answer=_answer,
    most_calls=lambda settings: settings.k + 1,
    needs=frozenset({"retriever"}),
)
