"""How solved examples, passages and the question become a prompt.

Source: Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 1 and table 5.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.prompts.templates import beginning
from ltrag_plugins.settings import Count, Settings
from ltrag_plugins.types import Passage, Question

Shot = Question | Passage
"""What is put in front of the question: a solved example or a passage."""
Encoded = Literal["question", "input", "example"]
"""Of an example: its question, that with statement and options, or all that with its answer."""

_FIELDS = frozenset({"question", "options", "context", "answer", "text", "title"})


@dataclass(frozen=True, slots=True)
class PromptFormat(Settings):
    """Templates with the fields {question}, {options}, {context}, {answer}, {title}, {text}. The
    prompt of a ladder's rung j is the first j shots in rank order, then the question, so that each
    rung shares all shots of the one before."""

    shot: str
    """One example with its {answer}, or one passage with its {title} and {text}."""
    query: str
    """The question, up to where the model goes on; it may not name {answer}."""
    reply: str = " The answer is {answer}"
    """What the model is held to say; its part before {answer} is not scored."""
    separator: str = "\n\n"
    """Between shots, and between the last shot and the question."""
    context_words: Count | None = None
    """Cut each {context} and {text} to this many words; None: never."""
    max_tokens: Count = 16
    """Most tokens of an answer that is written, not scored."""
    best: Literal["first", "last"] = "first"
    """Where the best shot stands. Last, next to the question, no rung begins as the one before."""

    def _check_together(self) -> None:
        # in the query, {answer} would tell the answer
        known = {"shot": _FIELDS, "query": _FIELDS - {"answer"}, "reply": {"answer"}}
        for name, fields in known.items():
            if unknown := _named(getattr(self, name), name) - fields:
                names = f"names {sorted(unknown)}; it may name {sorted(fields)}"
                raise InvalidInput(f"the {name} template {names}")
        if not self.reply.endswith("{answer}"):
            raise InvalidInput("the reply template must end in {answer}, to which it leads")

    def prompt(self, shots: Sequence[Shot], question: Question) -> str:
        """The shots, then the question; InvalidInput if one has no place, or options beyond Z."""
        shown = _named(self.shot, "shot")
        for kind, field, use in ((Question, "answer", "'Q-A'"), (Passage, "text", "'passages'")):
            if field not in shown and any(isinstance(shot, kind) for shot in shots):
                why = f"this prompt format has no place for a {kind.__name__}'s {{{field}}}"
                raise InvalidInput(f"{why}; use format={use}, or shots of another kind")
        parts = [self.shot.format_map(self._fields(shot)) for shot in shots]
        parts = parts if self.best == "first" else parts[::-1]
        return self.separator.join([*parts, self.query.format_map(self._fields(question))])

    def said(self, answer: str) -> str:
        """The reply that gives `answer`."""
        return self.reply.format(answer=answer)

    @property
    def lead(self) -> str:
        """The reply's part before the answer."""
        return self.said("")

    def _fields(self, item: Shot) -> dict[str, str]:
        text = item.text if isinstance(item, Passage) else item.context
        if self.context_words:
            text = beginning(text, self.context_words)
        if isinstance(item, Passage):
            return dict.fromkeys(_FIELDS, "") | {"title": item.title, "text": text}
        if (count := len(item.options)) > 26:
            raise InvalidInput(f"{item.text[:40]!r} has {count} options; there are 26 letters")
        options = zip(string.ascii_uppercase, item.options, strict=False)
        shown = " ".join(f"({letter}) {option}" for letter, option in options)
        fields = {"question": item.text, "options": shown, "context": text, "text": item.text}
        return fields | {"answer": item.answers[0] if item.answers else "", "title": ""}


def text_of(shot: Shot, encoded: Encoded = "question") -> str:
    """What is encoded and searched: title and text of a passage; of an example what `encoded`
    says. A question that is asked comes without its answers."""
    if isinstance(shot, Passage):
        return f"{shot.title}\n{shot.text}" if shot.title else shot.text
    checked(shot, Question, "a candidate", "a Question(text, answers) or a Passage(text)")
    if encoded == "question":
        return shot.text
    answer = shot.answers[:1] if encoded == "example" else ()
    return "\n".join(filter(None, [shot.context, shot.text, " ".join(shot.options), *answer]))


def _named(template: str, name: str) -> set[str]:
    """The fields that a template names."""
    try:
        return {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
    except ValueError as error:
        raise InvalidInput(f"the {name} template cannot be read: {error}") from error


_Q = "Question: {question}\nAnswer:"
_QO = "Question: {question}\nOptions: {options}\nAnswer:"
_SQO = f"Statement: {{context}}\n{_QO}"
FORMATS = {
    "Q-A": PromptFormat(f"{_Q} The answer is {{answer}}", _Q),
    "QO-A": PromptFormat(f"{_QO} The answer is {{answer}}", _QO),
    "SQO-A": PromptFormat(f"{_SQO} The answer is {{answer}}", _SQO),
    "passages": PromptFormat("{title}\n{text}", _Q),
}
"""The paper's three (Q-A, QO-A, SQO-A), and one for passages."""


def format_for(name: str | PromptFormat) -> PromptFormat:
    """The named format, or the given one."""
    if isinstance(name, PromptFormat):
        return name
    if name not in FORMATS:
        raise InvalidInput(f"no prompt format {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[name]
