"""Listwise reranking: the model itself puts texts in order, a window at a time.

The window moves from the end of the list to its front by less than its own length, so that what is
best wanders forward. After Sun et al., EMNLP 2023, https://arxiv.org/abs/2304.09542, section 3.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.prompts.templates import ReadingTemplate, filled, passages_block
from ltrag_plugins.settings import Count, Range
from ltrag_plugins.types import Answer, Generation, Question

RANKING_PROMPT = (
    "{passages}\n\nPut the numbered passages in order: first the one that helps most to answer the "
    "question, last the one that helps least. Write nothing but their numbers, each once, in this "
    "form: [2] > [3] > [1]\nQuestion: {question}\nOrder:"
)

_NUMBER = r"[0-9]{1,6}"
# no part of a longer number, of a range, nor negative; but the 2 of "Passage-2"
_BEHIND = "|".join(f"(?<={word}-)" for word in ("passage", "document", "doc", "text", "example"))
_PLACE = re.compile(rf"(?:(?<![0-9.-])|{_BEHIND}){_NUMBER}(?![0-9])", re.I)
_COUNT = re.compile(
    rf"\b(?:all|the|these|top)\s+{_NUMBER}\b"
    rf"|\b{_NUMBER}\s+(?:(?:\w+ed|given)\s+){{0,2}}(?:passages|paragraphs|texts|examples)\b",
    re.I,
)
_ITEM = re.compile(rf"^[ \t]*({_NUMBER})[.):][ \t]+(.*)", re.M)
_NAMED = r"\b(?:passage|document|doc|text|example)\b"
_LATER_ITEM = re.compile(rf"[ \t](?={_NUMBER}[.):][ \t]+{_NAMED})", re.I)


@dataclass(frozen=True, slots=True)
class ListwiseSettings(ReadingSettings):
    """How much is fetched, how it is put in order, how much of it is read."""

    candidates: Count = 20
    """Passages to fetch and put in order, at least `k` (paper: 100)."""
    window: Annotated[int, Range(2)] = 20
    """Passages in one prompt (paper: 20)."""
    step: Count = 10
    """How far the window moves, less than `window` (paper: 10)."""
    max_words: Count = 100
    """A passage is cut to this in the ranking prompt (authors' code: 300)."""
    ranking_template: ReadingTemplate = RANKING_PROMPT
    """Asks for the order; `{passages}` and `{question}` are replaced."""

    def _check_together(self) -> None:
        if self.candidates < self.k:
            raise InvalidInput(f"candidates must be at least k, {self.k}, got {self.candidates}")
        if self.step >= self.window:  # what is best could not be carried on to the next window
            raise InvalidInput(f"step must be below the window, {self.window}, got {self.step}")


def windows(count: int, window: int = 20, step: int = 10) -> list[tuple[int, int]]:
    """(start, end) of each window over `count` passages, from back to front; none over one."""
    starts = [*range(count - window, 0, -step), 0] if count > 1 else []
    return [(start, min(start + window, count)) for start in starts]


def _places(reply: str, count: int) -> list[int]:
    """The order in a reply, as indices from 0: each of `count` once, those not named last. Numbers
    in brackets count, or without any all but "the 3 passages" and a list's own: "1. Passage 3"."""
    named = re.findall(rf"\[\s*({_NUMBER})\s*\]", reply)
    if not named:
        reply = _COUNT.sub(" ", reply)
        by_lines = _LATER_ITEM.sub("\n", reply)
        items = _ITEM.findall(by_lines)
        # of the items that name a passage, which all of them must
        numbers = [int(n) for n, text in items if _indices(_PLACE.findall(text), count)]
        if len(items) > 1 and numbers == [*range(1, len(items) + 1)]:
            reply = _ITEM.sub(r"\2", by_lines)
        named = _PLACE.findall(reply)
    return list(dict.fromkeys([*_indices(named, count), *range(count)]))


def _indices(numbers: Sequence[str], count: int) -> list[int]:
    return [int(number) - 1 for number in numbers if 1 <= int(number) <= count]


def listwise_order(
    question: str, texts: Sequence[str], template: str, *, window: int = 20, step: int = 10
) -> Flow[tuple[list[int], list[Generation]]]:
    """The model's order of texts that it sees by their numbers: one call a window, none for one.

    Returns:
        The indices of the texts, each once, best first; and the replies.
    """
    order, replies = [*range(len(texts))], []
    # a reference such as "[2]" in a text must not pass for a text's number
    plain = [re.sub(r"\[(\d+)\]", r"(\1)", text) for text in texts]
    for start, end in windows(len(order), window, step):
        part = order[start:end]
        numbered = "\n".join(f"[{i}] {plain[j]}" for i, j in enumerate(part, 1))
        prompt = filled(template, passages=numbered, question=question)
        # "[12] > " is five tokens or fewer; all windows ask for as many, so that they merge
        [reply] = yield from ask(prompt, max_tokens=6 * window + 16)
        order[start:end] = [part[i] for i in _places(reply.text, len(part))]
        replies.append(reply)
    return order, replies


def _answer(question: Question, settings: ListwiseSettings, _: None) -> Flow[Answer]:
    """One search, the passages put in order, one answer from the best `k`, scored 1 / place."""
    [found] = yield from fetch(question.text, k=settings.candidates)
    shown = [passages_block([passage], max_words=settings.max_words) for passage in found]
    order, trace = yield from listwise_order(
        question.text, shown, settings.ranking_template, window=settings.window, step=settings.step
    )
    best = [replace(found[j], score=1 / i) for i, j in enumerate(order[: settings.k], 1)]
    return (yield from settings.read(question, best, trace))


METHOD = Method(
    name="listwise",
    summary="the model puts the passages in order, then answers from the best",
    source="Sun et al., EMNLP 2023",
    settings=ListwiseSettings,
    answer=_answer,
    most_calls=lambda s: len(windows(s.candidates, s.window, s.step)) + 1,
)
