"""FILCO: passages are filtered, sentence by sentence, before they are read.

The filter is a prompt to the world's filter, or where it has none to the model that then reads (in
Wang et al., 2023, https://arxiv.org/abs/2311.08377, section 2, two trained models).
`filter_examples` makes data to train a filter: lines of chat JSON. Our wording.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import islice
from typing import Annotated, Any, Literal

from ltrag_plugins.data import check_labelled
from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.flow import Flow, ask, fetch, score, together
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.metrics.answer import contains, f1
from ltrag_plugins.prompts import templates
from ltrag_plugins.settings import Count, Holds, Settings
from ltrag_plugins.tokenize import length, words
from ltrag_plugins.types import Answer, Passage, Question
from ltrag_plugins.uncertainty import checked_tokens

_FILTER_PROMPT = (
    "{passage}\n\nCopy, word for word, only those sentences of the text above that help to answer "
    "the question. If no sentence helps, write: none\nQuestion: {question}\nSentences:"
)
_FilterTemplate = Annotated[str, Holds("passage", "question")]
_NONE = "none"  # what the filter writes where no sentence helps
_FEWEST_WORDS = 4  # a shorter piece of a sentence may stand anywhere by chance

_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？।॥؟۔]+[」』”）]*|\n")
_UNFINISHED = re.compile(
    r"(?:[^\W\d_]\.)*[^\W\d_]"  # an initial: J, U.S, e.g
    r"|mr|mrs|ms|dr|prof|st|jr|sr|gen|col|lt|capt|rev|hon|no|vol|fig|vs|etc|inc|ltd|co|corp"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|ca|approx|dept|est|cf",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FILCOSettings(ReadingSettings):
    """How much is fetched, how it is filtered, and how it is read."""

    filter_template: _FilterTemplate = _FILTER_PROMPT
    """Asks for the sentences to keep; `{passage}` and `{question}` are replaced."""
    filter_tokens: Count = 128
    """Longest reply of the filter to one passage, in tokens."""


@dataclass(frozen=True, slots=True)
class FilterDataSettings(Settings):
    """Which sentences a filter is taught to keep."""

    measure: Literal["inclusion", "overlap", "cxmi"] = "inclusion"
    """"inclusion" of an accepted answer (paper: for short answers), lexical "overlap" with one
    (dialogue), or "cxmi" (several steps), for a model that tells how likely a text is."""
    threshold: float = 0.0
    """A sentence is kept only above it: 0 to 1, for "cxmi" in nats."""
    most: Count = 1
    """Sentences to keep of a passage, the best first (authors' code: 1)."""
    template: _FilterTemplate = _FILTER_PROMPT
    """The filter's prompt; `{passage}` and `{question}` are replaced."""


def _answer(question: Question, settings: FILCOSettings, _: None) -> Flow[Answer]:
    """One search, a prompt for each passage, one answer from what was kept; if nothing, of all."""
    [found] = yield from fetch(question.text, k=settings.k)
    prompts = [_filter_prompt(question.text, p, settings.filter_template) for p in found]
    asked = ask(*prompts, max_tokens=settings.filter_tokens, stop=("\n\n",), filters=True)
    replies, left = (yield from asked) if found else [], []
    for passage, reply in zip(found, replies, strict=True):
        kept = _kept_sentences(reply.text, _as_shown(passage))
        if kept is None:
            left.append(passage)
        elif kept:
            left.append(replace(passage, text=" ".join(kept)))
    return (yield from settings.read(question, left or found, replies))


def _filter_prompt(question: str, passage: Passage, template: str) -> str:
    return templates.filled(
        template, passage=templates.passages_block([passage]), question=question
    )


def _as_shown(passage: Passage) -> str:
    shown = templates.beginning(passage.text)
    return passage.text if shown.split() == passage.text.split() else shown


def _kept_sentences(reply: str, text: str) -> list[str] | None:
    """The sentences of `text` that the reply holds whole or in part; None: it is of no use."""
    said, kept = _padded(reply), []
    pieces = [_padded(s) for s in _sentences(reply) if length(s) >= _FEWEST_WORDS]
    for sentence in _sentences(text):
        own = _padded(sentence)
        if own.strip() and (own in said or any(piece in own for piece in pieces)):
            kept.append(sentence)
    return kept if kept or words(reply)[:1] == [_NONE] else None


def _padded(text: str) -> str:
    return f" {' '.join(words(text))} "


def _sentences(text: str) -> list[str]:
    """The sentences of a text; initials, common abbreviations and small letters after end none."""
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


def filter_examples(
    questions: Sequence[Question], settings: FilterDataSettings | None = None
) -> Flow[list[dict[str, Any]]]:
    """An example for each question and passage of its own, a line of chat JSON: the prompt, and the
    wanted reply, which is "none" for a passage with no sentence above the threshold."""
    settings = settings or FilterDataSettings()
    if not questions:
        raise CalibrationError("filco's filter learns from labelled questions and got none")
    check_labelled(questions)
    made = yield from together([_examples(question, settings) for question in questions])
    return [example for examples in made for example in examples]


def _examples(question: Question, settings: FilterDataSettings) -> Flow[list[dict[str, Any]]]:
    # a prompt has single spaces, and the filter is to copy it
    split = [[" ".join(s.split()) for s in _sentences(_as_shown(p))] for p in question.passages]
    found = [sentence for own in split for sentence in own]
    if settings.measure == "cxmi":
        values = yield from _cross_mutual_information(question.text, question.answers[0], found)
    else:
        measure = contains if settings.measure == "inclusion" else f1
        values = [measure(sentence, question.answers) for sentence in found]
    rest, examples = iter(values), []
    for passage, own in zip(question.passages, split, strict=True):
        value = [*islice(rest, len(own))]
        helping = [i for i in range(len(own)) if value[i] > settings.threshold]
        best = sorted(nlargest(settings.most, helping, key=value.__getitem__))
        prompt = _filter_prompt(question.text, passage, settings.template)
        reply = {"role": "assistant", "content": " ".join(own[i] for i in best) or _NONE}
        messages = [{"role": "user", "content": prompt}, reply]
        examples.append({"messages": messages, "id": question.id})
    return examples


def _cross_mutual_information(
    question: str, answer: str, found: Sequence[str]
) -> Flow[list[float]]:
    r"""How much likelier each sentence makes the answer: :math:`\log p(a|s, q) - \log p(a|q)`."""
    if not found:
        return []
    if not answer.strip():
        raise InvalidInput("a blank answer has no probability to compare; give its text")
    read = (templates.reading_prompt(question, [Passage(sentence)]) for sentence in found)
    prompts = [templates.direct_prompt(question), *read]
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
)
