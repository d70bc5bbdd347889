"""Listwise reranking: the model itself puts the passages in order, a window at a time.

The window starts at the end of the list and moves to its front by less than its own length, so
that what is best wanders forward; the last window always starts at the very front.

References:
    Sun et al., EMNLP 2023, "Is ChatGPT Good at Search? Investigating Large Language Models as
    Re-Ranking Agents" (RankGPT), https://arxiv.org/abs/2304.09542, section 3; our wording.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.prompts.templates import ReadingTemplate, answer_from, filled, passages_block
from ltrag_plugins.settings import Count, Range
from ltrag_plugins.types import Answer, Generation, Passage

_RANKING_PROMPT = (
    "{passages}\n\nPut the numbered passages in order: first the one that helps most to answer the "
    "question, last the one that helps least. Write nothing but their numbers, each once, in this "
    "form: [2] > [3] > [1]\nQuestion: {question}\nOrder:"
)

_NUMBER = r"[0-9]{1,6}"
_LABEL = r"\b(?:passage|document|doc|text)"
# no part of a longer number, of a range, nor negative; but the 2 of "Passage-2"
_PLACE = re.compile(
    rf"(?:(?<![0-9.-])|(?<=passage-)|(?<=document-)|(?<=doc-)|(?<=text-)){_NUMBER}(?![0-9])", re.I
)
_COUNT = re.compile(
    rf"\b(?:all|the|these|top)\s+{_NUMBER}\b"
    rf"|\b{_NUMBER}\s+(?:(?:\w+ed|given)\s+)?(?:passages|paragraphs|texts)\b",
    re.I,
)
_ITEM = re.compile(rf"^[ \t]*({_NUMBER})[.):][ \t]+(.*)", re.M)
_LATER_ITEM = re.compile(rf"[ \t](?={_NUMBER}[.):][ \t]+{_LABEL}\b)", re.I)


@dataclass(frozen=True, slots=True)
class ListwiseSettings(ReadingSettings):
    """How much is fetched, how it is put in order, how much of it is read."""

    k: Count = 3
    """The best passages, which are read."""
    candidates: Count = 20
    """Passages to fetch and put in order, at least `k` (paper: 100)."""
    window: Annotated[int, Range(2)] = 20
    """Passages in one prompt (paper: 20)."""
    step: Count = 10
    """How far the window moves, less than `window` (paper: 10)."""
    max_words: Count = 100
    """A passage is cut to this in the ranking prompt (authors' code: 300)."""
    ranking_template: ReadingTemplate = _RANKING_PROMPT
    """Asks for the order; `{passages}` and `{question}` are replaced."""

    def _check_together(self) -> None:
        if self.candidates < self.k:
            raise InvalidInput(f"candidates must be at least k, {self.k}, got {self.candidates}")
        if self.step >= self.window:  # what is best could not be carried on to the next window
            raise InvalidInput(f"step must be below the window, {self.window}, got {self.step}")


def windows(count: int, window: int = 20, step: int = 10) -> list[tuple[int, int]]:
    """(start, end) of each window over `count` passages, from the back to the front.

    None where there are fewer than two passages, which are in order as they are.
    """
    if count < 2:
        return []
    starts = [*range(count - window, 0, -step), 0]
    return [(start, min(start + window, count)) for start in starts]


def places(reply: str, count: int) -> list[int]:
    """The order in a reply, as indices from 0: each of `count` once, whatever was written.

    Numbers in brackets count, or all numbers where none is in brackets, but for "the 3 passages"
    and a list's own: "1. Passage 3". Repeats and numbers that no passage has are left out; passages
    that were not named follow in their old order.
    """
    named = re.findall(rf"\[\s*({_NUMBER})\s*\]", reply)
    named = named or _PLACE.findall(_without_numbering(_COUNT.sub(" ", reply), count))
    return list(dict.fromkeys([*_indices(named, count), *range(count)]))


def _without_numbering(reply: str, count: int) -> str:
    """A list that numbers its items from 1, and names a passage in each, without those numbers."""
    by_lines = _LATER_ITEM.sub("\n", reply)
    items = _ITEM.findall(by_lines)
    from_one = [int(number) for number, _ in items] == [*range(1, len(items) + 1)]
    if len(items) > 1 and from_one and all(_indices(_PLACE.findall(t), count) for _, t in items):
        return _ITEM.sub(r"\2", by_lines)
    return reply


def _indices(numbers: Sequence[str], count: int) -> list[int]:
    return [int(number) - 1 for number in numbers if 1 <= int(number) <= count]


def _ranking_prompt(question: str, passages: Sequence[Passage], settings: ListwiseSettings) -> str:
    shown = [passages_block([passage], max_words=settings.max_words) for passage in passages]
    # a reference such as "[2]" in a passage must not pass for a passage's number
    numbered = [f"[{i}] " + re.sub(r"\[(\d+)\]", r"(\1)", text) for i, text in enumerate(shown, 1)]
    return filled(settings.ranking_template, passages="\n".join(numbered), question=question)


def listwise_rerank(
    question: str, passages: Sequence[Passage], settings: ListwiseSettings | None = None
) -> Flow[list[Passage]]:
    """The passages, best first, each exactly once; `len(windows(...))` model calls.

    They are new passages: their score is one over their place, 1 for the best. Fewer than two are
    handed back without a call.
    """
    return (yield from _ranked(question, passages, settings or ListwiseSettings()))[0]


def _ranked(
    question: str, passages: Sequence[Passage], settings: ListwiseSettings
) -> Flow[tuple[list[Passage], list[Generation]]]:
    order, trace = list(passages), []
    for start, end in windows(len(order), settings.window, settings.step):
        part = order[start:end]
        # "[12] > " is five tokens or fewer; the rest is for a few words before it. The same for all
        # windows, so that they merge across questions
        prompt = _ranking_prompt(question, part, settings)
        [reply] = yield from ask(prompt, max_tokens=6 * settings.window + 16)
        order[start:end] = [part[i] for i in places(reply.text, len(part))]
        trace.append(reply)
    return [replace(passage, score=1 / i) for i, passage in enumerate(order, 1)], trace


def listwise(question: str, settings: ListwiseSettings | None = None) -> Flow[Answer]:
    """One search, the passages put in order, one answer from the best `k`.

    Where nothing is found, the question is asked as in `direct`.
    """
    settings = settings or ListwiseSettings()
    [found] = yield from fetch(question, k=settings.candidates)
    ranked, trace = yield from _ranked(question, found, settings)
    return (
        yield from answer_from(
            question,
            ranked[: settings.k],
            template=settings.template,
            max_tokens=settings.max_tokens,
            trace=trace,
        )
    )


METHOD = Method(
    name="listwise",
    summary="the model puts the passages in order, then answers from the best",
    source="Sun et al., EMNLP 2023",
    settings=ListwiseSettings,
    answer=lambda question, settings, _: listwise(question.text, settings),
    most_calls=lambda settings: (
        len(windows(settings.candidates, settings.window, settings.step)) + 1
    ),
    needs=frozenset({"retriever"}),
)
