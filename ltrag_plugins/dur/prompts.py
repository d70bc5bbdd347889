"""How solved examples, passages and the question become a prompt.

The three formats of the paper's table 5 and one for passages are in `FORMATS`; a `PromptFormat`
of one's own takes their place anywhere.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 1 and table 5.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass

from ltrag_plugins.errors import InvalidInput, MissingReferences
from ltrag_plugins.prompts.templates import beginning
from ltrag_plugins.settings import Count, Settings
from ltrag_plugins.types import Passage, Question

Shot = Question | Passage
"""What is put in front of the question: a solved example or a passage."""

_FIELDS = frozenset({"question", "options", "context", "answer", "text", "title"})


@dataclass(frozen=True, slots=True)
class PromptFormat(Settings):
    """Templates with the fields {question}, {options}, {context}, {answer}, {title}, {text}.

    The prompt of a ladder's rung j is the first j shots in rank order, then the question, so
    that each rung shares all shots of the one before.
    """

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

    def _check_together(self) -> None:
        for name, template, known in (
            ("shot", self.shot, _FIELDS),
            ("query", self.query, _FIELDS),
            ("reply", self.reply, {"answer"}),
        ):
            unknown = _named(template, name) - known
            if unknown:
                raise InvalidInput(
                    f"the {name} template names {sorted(unknown)}; it may name {sorted(known)}"
                )
        if "answer" in _named(self.query, "query"):
            raise InvalidInput("the query template names {answer}: the prompt would hold it")
        if not self.reply.endswith("{answer}"):
            raise InvalidInput("the reply template must end in {answer}, to which it leads")

    def prompt(self, shots: Sequence[Shot], question: Question) -> str:
        """The shots in their order, then the question.

        Raises:
            InvalidInput: a passage where the format has no {text}, a solved example where it has no
                {answer}, or options beyond Z.
        """
        if "answer" not in _named(self.shot, "shot") and any(
            isinstance(s, Question) for s in shots
        ):
            raise InvalidInput(
                "this prompt format shows no {answer} of a solved example; use format='Q-A', "
                "'QO-A' or 'SQO-A', or hand texts in as Passage"
            )
        parts = [self.shot.format_map(self._fields(shot)) for shot in shots]
        return self.separator.join([*parts, self.query.format_map(self._fields(question))])

    def said(self, answer: str) -> str:
        """The reply that gives `answer`."""
        return self.reply.format(answer=answer)

    @property
    def lead(self) -> str:
        """The reply's part before the answer."""
        return self.said("")

    def _cut(self, text: str) -> str:
        return text if self.context_words is None else beginning(text, self.context_words)

    def _fields(self, item: Shot) -> dict[str, str]:
        if isinstance(item, Passage):
            if "text" not in _named(self.shot, "shot"):
                raise InvalidInput(
                    "this prompt format has no place for a passage's {text}; use format='passages'"
                )
            text = self._cut(item.text)
            return dict.fromkeys(_FIELDS, "") | {"title": item.title, "text": text}
        if len(item.options) > len(string.ascii_uppercase):
            raise InvalidInput(
                f"{item.text[:40]!r} has {len(item.options)} options; there are 26 letters for them"
            )
        named = zip(string.ascii_uppercase, item.options, strict=False)
        letters = [f"({letter}) {option}" for letter, option in named]
        return {
            "question": item.text,
            "options": " ".join(letters),
            "context": self._cut(item.context),
            "answer": item.answers[0] if item.answers else "",
            "text": item.text,
            "title": "",
        }


def text_of(shot: Shot) -> str:
    """What is encoded and searched: the question of an example, title and text of a passage."""
    if isinstance(shot, Passage):
        return f"{shot.title}\n{shot.text}" if shot.title else shot.text
    return shot.text


def checked_candidates(candidates: Sequence[Shot]) -> None:
    """Refuse an empty list, solved examples without an answer, and ids that come twice."""
    if not candidates:
        raise InvalidInput("there are no candidates; give at least one example or passage")
    seen: dict[str, int] = {}
    for i, candidate in enumerate(candidates):
        if not isinstance(candidate, Question | Passage):
            raise InvalidInput(
                f"candidate {i + 1} is a {type(candidate).__name__}; give a solved example as "
                "Question(text, answers), a text as Passage(text)"
            )
        if isinstance(candidate, Question) and not candidate.answers:
            raise MissingReferences(
                f"candidate {i + 1} ({candidate.text[:40]!r}) has no answer; a solved example "
                "needs one. Add it, or hand texts in as Passage."
            )
        if candidate.id and candidate.id in seen:
            raise InvalidInput(
                f"candidates {seen[candidate.id] + 1} and {i + 1} have the same id "
                f"{candidate.id!r}. Give each its own, or leave ids empty."
            )
        seen[candidate.id] = i


def _named(template: str, name: str) -> set[str]:
    try:
        return {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
    except ValueError as error:
        raise InvalidInput(f"the {name} template cannot be read: {error}") from error


_ANSWER = "Answer: The answer is {answer}"

FORMATS = {
    "Q-A": PromptFormat(f"Question: {{question}}\n{_ANSWER}", "Question: {question}\nAnswer:"),
    "QO-A": PromptFormat(
        f"Question: {{question}}\nOptions: {{options}}\n{_ANSWER}",
        "Question: {question}\nOptions: {options}\nAnswer:",
    ),
    "SQO-A": PromptFormat(
        f"Statement: {{context}}\nQuestion: {{question}}\nOptions: {{options}}\n{_ANSWER}",
        "Statement: {context}\nQuestion: {question}\nOptions: {options}\nAnswer:",
    ),
    "passages": PromptFormat(
        "{title}\n{text}",
        "Question: {question}\nAnswer:",
    ),
}
"""The paper's three (Q-A, QO-A, SQO-A), and one for passages."""


def format_for(name: str | PromptFormat) -> PromptFormat:
    """The named format, or the given one."""
    if isinstance(name, PromptFormat):
        return name
    if name not in FORMATS:
        raise InvalidInput(f"no prompt format {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[name]
