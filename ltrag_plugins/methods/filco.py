"""FILCO: passages are filtered, sentence by sentence, before they are read.

The filter is a prompt to the model that then reads: one model does both. `filter_examples` makes
data to train it to filter, whose targets are the sentences that an oracle measure
(`filco_measures`) finds useful. Each example's `chat` is a line of chat JSON, as `ltrag sgic
finetune` and other trainers take them; the weights or the adapter that come of it also read.

References:
    Wang et al., 2023, "Learning to Filter Context for Retrieval-Augmented Generation",
    https://arxiv.org/abs/2311.08377. There filter and reader are two models, both trained; our
    wording.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.methods.direct import direct
from ltrag_plugins.methods.filco_measures import sentences
from ltrag_plugins.methods.method import Method, whole
from ltrag_plugins.prompts.templates import (
    MOST_WORDS,
    READING_PROMPT,
    beginning,
    filled,
    passages_block,
    reading_prompt,
)
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Answer, Passage

FILTER_PROMPT = (
    "{passage}\n\nCopy, word for word, only those sentences of the text above that help to answer "
    "the question. If no sentence helps, write: none\nQuestion: {question}\nSentences:"
)
"""`{passage}` and `{question}` are replaced; other braces are left alone."""

NONE = "none"
"""What the filter writes where no sentence helps."""

_FEWEST_WORDS = 4  # a shorter piece of a sentence may stand anywhere by chance


def filter_prompt(question: str, passage: Passage, template: str = FILTER_PROMPT) -> str:
    """What the filter is asked about one passage, of which it sees the first 200 words.

    Raises:
        InvalidInput: the template has no place for passage or question.
    """
    return filled(template, passage=passages_block([as_shown(passage)]), question=question)


def as_shown(passage: Passage) -> Passage:
    """The passage with no more of its text than the filter sees: its first 200 words."""
    if len(passage.text.split()) <= MOST_WORDS:
        return passage
    return replace(passage, text=beginning(passage.text))


def kept_sentences(reply: str, text: str) -> tuple[str, ...] | None:
    """The sentences of `text` that the filter copied, in their order; compared as `words`.

    One is copied if the reply holds it, or holds, as a sentence, a piece of it of at least 4 words.

    Returns:
        Nothing, (), where the filter said "none"; None where its reply is of no use.
    """
    said = _padded(reply)
    pieces = [_padded(s) for s in sentences(reply) if len(words(s)) >= _FEWEST_WORDS]
    kept = tuple(
        sentence
        for sentence in sentences(text)
        for own in [_padded(sentence)]
        if own.strip() and (own in said or any(piece in own for piece in pieces))
    )
    if kept or words(reply)[:1] == [NONE]:
        return kept
    return None


def filtered(passages: Sequence[Passage], replies: Sequence[str]) -> list[Passage]:
    """Copies of the passages with what the filter kept of each.

    A passage is left out if the filter said "none", and whole if its reply is of no use. Where the
    filter leaves out all of them, they all come back whole, as in the authors' code.
    """
    left = []
    for passage, reply in zip(passages, replies, strict=True):
        kept = kept_sentences(reply, as_shown(passage).text)
        if kept is None:
            left.append(passage)
        elif kept:
            left.append(replace(passage, text=" ".join(kept)))
    return left or list(passages)


@dataclass(frozen=True, slots=True)
class FILCOSettings:
    """How much is fetched, how it is filtered, and how it is read.

    Raises:
        InvalidInput: a value is out of its range.
    """

    k: int = 3
    """Passages to filter, at least 1; each costs a call."""
    filter_template: str = FILTER_PROMPT
    """`{passage}` and `{question}` are replaced."""
    filter_tokens: int = 128
    """Longest reply of the filter to one passage, in tokens, at least 1."""
    template: str = READING_PROMPT
    """`{passages}` and `{question}` are replaced."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1."""

    def __post_init__(self) -> None:
        filled(self.filter_template, passage="", question="")
        reading_prompt("", (), self.template)
        for name in ("k", "filter_tokens", "max_tokens"):
            whole(name, getattr(self, name))


def filco(question: str, settings: FILCOSettings | None = None) -> Flow[Answer]:
    """One search, one request with a prompt for each passage, one answer from what was kept.

    Where nothing is found, the question is asked as in `direct`.
    """
    settings = settings or FILCOSettings()
    [found] = yield from fetch(question, k=settings.k)
    if not found:
        return (yield from direct(question, max_tokens=settings.max_tokens))
    replies = yield from ask(
        *(filter_prompt(question, passage, settings.filter_template) for passage in found),
        max_tokens=settings.filter_tokens,
        stop=("\n\n",),
    )
    shown = filtered(found, [reply.text for reply in replies])
    prompt = reading_prompt(question, shown, settings.template)
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), passages=tuple(shown), trace=(*replies, reply))


def _padded(text: str) -> str:
    return f" {' '.join(words(text))} "


METHOD = Method(
    name="filco",
    summary="one search; the model copies the sentences that help, and answers from those",
    source="Wang et al., 2023, arXiv 2311.08377",
    settings=FILCOSettings,
    answer=lambda question, settings, _: filco(question.text, settings),
    most_calls=lambda settings: settings.k + 1,
    needs=frozenset({"retriever"}),
)
