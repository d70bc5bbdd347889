"""All that a question asks, in the place of its text, for methods that know texts alone."""

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from typing import TypeVar

from ltrag_plugins.flow import Embed, Fetch, Flow, Request, changing
from ltrag_plugins.types import Question

_T = TypeVar("_T")


def render_question(question: Question, *, context_words: int = 200) -> str:
    """All that a question asks: its text, what it is about, what it offers, a line each.

    Args:
        context_words: what it is about is cut to this many words.
    """
    lines = [question.text]
    if question.context:
        lines.append(f"Text: {' '.join(question.context.split()[:context_words])}")
    if question.options:
        lines.append(f"Options: {'; '.join(question.options)}")
    return "\n".join(lines)


def spelled_out(question: Question) -> Question:
    """The same with everything in its text."""
    return replace(question, text=render_question(question), options=(), context="")


def searching_for(questions: Iterable[Question], flow: Flow[_T]) -> Flow[_T]:
    """Let a flow over questions that are spelled out search and encode by their texts alone."""
    texts = {whole: q.text for q in questions if (whole := render_question(q)) != q.text}
    if not texts:
        return (yield from flow)
    longest = sorted(texts, key=len, reverse=True)  # one may begin with another

    def cut(wanted: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(reduce(lambda text, w: text.replace(w, texts[w]), longest, t) for t in wanted)

    def short(request: Request) -> Request:
        match request:
            case Fetch():
                return replace(request, queries=cut(request.queries))
            case Embed():
                return replace(request, texts=cut(request.texts))
            case _:
                return request

    return (yield from changing(flow, short))
