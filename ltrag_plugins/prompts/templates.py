"""The prompts of the papers' rows "w/o RAG" and "RAG", in our wording, and what fills them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, TypeVar

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Embed, Fetch, Flow, Request, ask, changing
from ltrag_plugins.settings import Holds
from ltrag_plugins.tokenize import PIECE, words
from ltrag_plugins.types import Answer, Generation, Passage, Question
from ltrag_plugins.uncertainty import yes_probability

DIRECT_PROMPT = (
    "Answer the question in a few words, without explanation.\nQuestion: {question}\nAnswer:"
)
READING_PROMPT = (
    "{passages}\n\nAnswer the question in a few words from the text above, without explanation.\n"
    "Question: {question}\nAnswer:"
)
_CONDENSE_PROMPT = (
    "{history}\n\nRewrite the last question so that it can be understood without what was said "
    "before it: put names in the place of words like 'she' or 'there'. Write the question alone.\n"
    "Last question: {question}\nRewritten question:"
)
_JUDGE_PROMPT = (
    "Question: {question}\nReference answer: {reference}\nOther answer: {answer}\n\nDoes the other "
    "answer say the same as the reference answer? Reply with yes or no only.\nReply:"
)
NEEDS_RETRIEVAL = (
    "Would a language model that answers this question from memory, without looking anything up, "
    "answer it wrongly?"
)
"""What a decision model is asked about a question."""
NOT_TEXT = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands in a question for what is no text, as an image or a command to a graph."""
DirectTemplate = Annotated[str, Holds("question")]
ReadingTemplate = Annotated[str, Holds("passages", "question")]

_MOST_WORDS = 200  # of a passage or turn that a prompt shows
_TURNS = 10  # the last ones, that a follow-up is read with
_ROOM = 64  # tokens to rewrite each 16 words of one; in steps, as equal ones share a call
_CUT = ("length", "max_tokens")  # finish reasons, in lower case
_MARK = re.compile("Text:|Options:")  # of what `render_question` puts behind a question's text
_T = TypeVar("_T")


def filled(template: str, **parts: str) -> str:
    """The template with each `{name}` replaced; other braces, and those in the parts, stay."""
    missing = [f"'{{{name}}}'" for name in parts if f"{{{name}}}" not in template]
    if missing:
        raise InvalidInput(f"the template must hold {' and '.join(missing)}, got {template!r}")
    places = "|".join(map(re.escape, parts))
    return re.sub(rf"\{{({places})\}}", lambda found: parts[found[1]], template)


def direct_prompt(question: str, template: str = DIRECT_PROMPT) -> str:
    """What asks for an answer without passages; raises as `filled`."""
    return filled(template, question=question)


def beginning(text: str, max_words: int = _MOST_WORDS) -> str:
    """The first words of a text, with single spaces between them; see `tokenize.PIECE`."""
    whole = " ".join(text.split())
    ends = [0, *(found.end() for found in islice(PIECE.finditer(whole), max_words))]
    return whole[: ends[-1]]


def passages_block(passages: Sequence[Passage], *, max_words: int = _MOST_WORDS) -> str:
    """The passages, one paragraph each with its title, each cut to `max_words` words."""
    shown = [(f"{p.title}: " if p.title else "") + beginning(p.text, max_words) for p in passages]
    return "\n".join(shown)


def reading_prompt(
    question: str, passages: Sequence[Passage], template: str = READING_PROMPT
) -> str:
    """What asks for an answer from passages; raises as `filled`."""
    return filled(template, passages=passages_block(passages), question=question)


def answer_from(
    question: str,
    passages: Sequence[Passage],
    *,
    template: str = READING_PROMPT,
    max_tokens: int = 24,
    trace: Sequence[Generation] = (),
) -> Flow[Answer]:
    """One model call that reads the passages; without any, the question is asked directly."""
    prompt = reading_prompt(question, passages, template) if passages else direct_prompt(question)
    [reply] = yield from ask(prompt, max_tokens=max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), passages=tuple(passages), trace=(*trace, reply))


def standalone(question: str, history: Sequence[tuple[str, str]] = ()) -> Flow[str]:
    """A follow-up as a question that stands alone: one model call, none without a history. It
    stays as it is where the model's reply is empty, or cut.

    Args:
        history: the turns before it, oldest first: who spoke, and the text.
    """
    if not history:
        return question
    spoken = ((who, beginning(text.replace(NOT_TEXT, ""))) for who, text in history[-_TURNS:])
    said = "\n".join(f"{who}: {text}" for who, text in spoken)
    prompt = filled(_CONDENSE_PROMPT, history=said, question=question)
    room = _ROOM * (1 + len(words(question)) // 16)
    [reply] = yield from ask(prompt, max_tokens=room, stop=("\n",))
    cut = (reply.finish_reason or "").lower() in _CUT
    return (not cut and reply.text.strip()) or question


def judging(question: str, answer: str, reference: str) -> Flow[float]:
    """The probability, 0 to 1, that a model sees the answer say what the reference says."""
    parts = {"question": question, "answer": answer, "reference": reference}
    [reply] = yield from ask(filled(_JUDGE_PROMPT, **parts), max_tokens=4)
    return yes_probability(reply)


def render_question(question: Question, *, context_words: int = 200) -> str:
    """All that a question asks, a line each: text, first words of the context, options."""
    lines = [question.text]
    if question.context:
        lines.append(f"Text: {beginning(question.context, context_words)}")
    if question.options:
        lines.append(f"Options: {'; '.join(question.options)}")
    return "\n".join(lines)


def searching_for(questions: Iterable[Question], flow: Flow[_T]) -> Flow[_T]:
    """Let a flow over questions that are spelled out search and encode by their texts alone."""
    texts = {whole.strip(): q.text for q in questions if (whole := render_question(q)) != q.text}
    if not texts:
        return (yield from flow)
    longest = sorted(texts, key=len, reverse=True)  # one may begin with another
    begins: dict[str, list[int]] = {}
    for place, whole in enumerate(longest):
        begins.setdefault(_MARK.split(whole, maxsplit=1)[0], []).append(place)
    lengths = {*map(len, begins)}

    def places(text: str) -> Iterator[int]:
        """Of the spelled-out questions in a text: each has its first mark behind its own text."""
        for mark in _MARK.finditer(text):
            for start in (mark.start() - length for length in lengths):
                same = begins.get(text[start : mark.start()], ()) if start >= 0 else ()
                yield from (place for place in same if text.startswith(longest[place], start))

    def cut_one(wanted: str) -> str:
        if wanted in texts:
            return texts[wanted]
        last = -1
        while (last := min((i for i in places(wanted) if i > last), default=-1)) >= 0:
            wanted = wanted.replace(longest[last], texts[longest[last]])
        return wanted

    def cut(wanted: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(cut_one, wanted))

    def short(request: Request) -> Request:
        if isinstance(request, Fetch):
            return replace(request, queries=cut(request.queries))
        return replace(request, texts=cut(request.texts)) if isinstance(request, Embed) else request

    return (yield from changing(flow, short))
