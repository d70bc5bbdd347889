"""How documents, their scores, earlier answers and the question become a prompt.

The layout puts the documents before the question and the question before the earlier answers,
so that the prompts of all rounds begin alike and a model that shares prefixes computes the
documents once. All text from outside is `neutral`: it cannot pass for a field of the prompt.

References:
    Chen et al. (SGIC), tables 1, 11 and 12; the field labels are the paper's, the wording ours.
"""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.prompts.templates import DIRECT_PROMPT, direct_prompt
from ltrag_plugins.sgic.sanitize import neutral, one_line
from ltrag_plugins.types import Generation, Token

_FIELDS: Mapping[str, tuple[set[str], set[str]]] = {
    "layout": (
        {"instruction", "documents", "question", "earlier"},
        {"instruction", "documents", "question", "earlier"},
    ),
    "document": ({"key", "text", "score"}, {"number", "key", "text", "score"}),
    "score": ({"score"}, {"score"}),
    "answer": ({"text", "score"}, {"round", "text", "score"}),
    "about_keys": (set(), {"mark"}),
}


@dataclass(frozen=True, slots=True)
class PromptTemplates:
    """Templates with the fields that their docstrings name; other braces are doubled.

    Raises:
        InvalidInput: a template names a field it does not have, or lacks one it needs.
    """

    layout: str = "{instruction}\n\n{documents}\n\nQuestion: {question}\n{earlier}Answer:"
    """The whole prompt: {instruction}, {documents}, {question}, {earlier}."""
    document: str = "Document [{number}]: {key}{text}{score}"
    """One document: {number}, {key} (the mark, or nothing), {text}, {score}."""
    score: str = " (Uncertainty Score: {score})"
    """What {score} is where there is one, 0 to 100: {score}."""
    heading: str = "Previous Generated Answer:\n"
    """Before the earlier answers, where there are any."""
    answer: str = "Round {round}: {text}{score}\n"
    """One earlier answer: {round} (1 is the first answer), {text}, {score}."""
    nothing: str = "(nothing)"
    """In the place of a blank earlier answer."""
    mark: str = "<<<KEY>>>"
    """What {key} is before the documents that matter most (table 11)."""
    bare: str = DIRECT_PROMPT
    """The whole prompt where there are no documents: {question}; other braces stay."""
    instruction: str = "Use the documents to answer the question in a few words, no explanation."
    """The instruction; no fields."""
    about_scores: str = (
        " The number behind a text, 0 to 100, is how uncertain it is: trust low ones most."
    )
    """Added to the instruction where documents have scores, else to `about_answers` where answers
    have; no fields."""
    about_keys: str = " Documents that begin with {mark} matter most."
    """Added to the instruction where documents are marked: {mark}."""
    about_answers: str = (
        "Keep an earlier answer if the documents bear it out; otherwise give a better one."
    )
    """A line before the heading of the earlier answers; no fields."""

    def __post_init__(self) -> None:
        for name, (needed, known) in _FIELDS.items():
            named = _named(getattr(self, name), name)
            if not needed <= named <= known:
                raise InvalidInput(
                    f"the {name} template must name {sorted(needed)} and may name {sorted(known)}; "
                    f"it names {sorted(named)}"
                )

        direct_prompt("", self.bare)  # raises where it has no place for the question

    def without_echo(self, answer: str) -> str:
        """An answer without the label before it and the score behind it, if it repeats them.

        Small models copy the form of the earlier answers. Nothing is read from what is removed.
        """
        start, end = self._own(answer)
        return answer[start:end]

    def said(self, answer: Generation) -> Generation:
        """An answer without its echo, in text and tokens; as it is where it has none."""
        start, end = self._own(answer.text)
        text, tokens = answer.text[start:end], answer.tokens
        if text == answer.text.strip():
            return answer
        if tokens is not None and "".join(token.text for token in tokens) == answer.text:
            tokens = tuple(_within(tokens, start, end)) if text else ()
        return replace(answer, text=text, tokens=tokens)

    def _own(self, answer: str) -> tuple[int, int]:
        """Where the answer's own words begin and end."""
        lead = _spelled(self.answer.partition("{text}")[0])
        before, _, after = (re.escape(part.strip()) for part in self.score.partition("{score}"))
        # the token limit may have cut the score short; brackets alone may be the answer's own
        told = any(map(str.isalpha, self.score.partition("{score}")[0]))
        tail = rf"{before}\s*\d*\s*(?:{after})?" if told else ""
        start, end = _stripped(answer, 0, len(answer))
        if echoed := re.compile(lead).match(answer, start, end):
            start = echoed.end()
        if echoed := re.compile(rf"{tail}$").search(answer, start, end):
            end = echoed.start()
        return _stripped(answer, start, end)

    def outside(self, text: str, *, lines: bool = False) -> str:
        """Text from outside as it may stand in the prompt; see `neutral`.

        Args:
            lines: keep its line breaks (a question's); a document or answer is one line.
        """
        fields = (self.layout, self.document, self.score, self.heading, self.answer)
        return neutral(text.strip() if lines else one_line(text), fields, self.mark)


@dataclass(frozen=True, slots=True)
class Shown:
    """A document as a prompt shows it."""

    text: str
    """As it came from `PromptTemplates.outside`."""
    score: float | None = None
    """0 to 100; None: without a score."""
    key: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """An earlier answer as a prompt shows it."""

    text: str
    """As the model wrote it."""
    score: float | None = None


def render(
    templates: PromptTemplates,
    question: str,
    documents: Sequence[Shown],
    earlier: Sequence[Said] = (),
) -> str:
    """One prompt; what it shows decides what it explains.

    Whatever has to do with earlier answers stands after the question: where documents are shown
    without scores, the rounds share even the first prompt's documents.
    """
    t, asked = templates, templates.outside(question, lines=True)
    if not documents:
        return direct_prompt(asked, t.bare)
    return t.layout.format(
        instruction=_instruction(t, documents),
        documents="\n".join(_document(t, i, shown) for i, shown in enumerate(documents, 1)),
        question=asked,
        earlier=_earlier(t, documents, earlier),
    )


def _instruction(t: PromptTemplates, documents: Sequence[Shown]) -> str:
    scores = t.about_scores if _scored(documents) else ""
    keys = t.about_keys.format(mark=t.mark) if any(d.key for d in documents) else ""
    return t.instruction + scores + keys


def _earlier(t: PromptTemplates, documents: Sequence[Shown], earlier: Sequence[Said]) -> str:
    if not earlier:
        return ""
    scores = t.about_scores if _scored(earlier) and not _scored(documents) else ""
    answers = "".join(_answer(t, i, said) for i, said in enumerate(earlier, 1))
    return f"{t.about_answers}{scores}\n{t.heading}{answers}"


def _scored(shown: Sequence[Shown] | Sequence[Said]) -> bool:
    return any(one.score is not None for one in shown)


def _document(t: PromptTemplates, number: int, document: Shown) -> str:
    key = f"{t.mark} " if document.key else ""
    score = _score(t, document.score)
    return t.document.format(number=number, key=key, text=document.text, score=score)


def _answer(t: PromptTemplates, number: int, said: Said) -> str:
    text = t.outside(said.text) or t.nothing
    return t.answer.format(round=number, text=text, score=_score(t, said.score))


def _score(t: PromptTemplates, score: float | None) -> str:
    return "" if score is None else t.score.format(score=round(score))


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The same part of the text without white space at its ends."""
    left = end - len(text[start:end].lstrip())
    return left, left + len(text[left:end].rstrip())


def _within(tokens: Sequence[Token], start: int, end: int) -> Iterator[Token]:
    """The tokens that write something between two places of the text."""
    place = 0
    for token in tokens:
        if place < end and place + len(token.text) > start:
            yield token
        place += len(token.text)


def _spelled(template: str) -> str:
    """A pattern of the template with numbers in its fields."""
    parts = string.Formatter().parse(template)
    return "".join(re.escape(text.strip()) + (r"\s*\d+\s*" if f else "") for text, f, _, _ in parts)


def _named(template: str, name: str) -> set[str]:
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InvalidInput(
            f"the {name} template is malformed ({error}); double its braces"
        ) from error
    return {field for _, field, _, _ in parsed if field is not None}


STEPS = PromptTemplates(
    layout="{instruction}\n\nQuestion: {question}\nReasoning Steps:\n{documents}\n"
    "{earlier}Final Answer:",
    document="{number}. {key}{text}{score}",
    instruction="Use the reasoning steps to answer the question; give the final answer alone.",
    about_answers="Keep an earlier answer if the steps bear it out; otherwise give a better one.",
)
"""Reasoning steps in the place of documents (table 12)."""
