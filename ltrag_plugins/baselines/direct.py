"""Direct: the model answers from what it knows; no retrieval.

References:
    The "w/o RAG" row of the papers; our wording.
"""

from dataclasses import dataclass

from ltrag_plugins.baselines.method import Method, whole
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, ask
from ltrag_plugins.types import Answer

PROMPT = "Answer the question in a few words, without explanation.\nQuestion: {question}\nAnswer:"
"""`{question}` is replaced; other braces are left alone."""


def direct_prompt(question: str, template: str = PROMPT) -> str:
    """The template with the question in its place.

    Raises:
        InvalidInput: the template has no place for it.
    """
    if "{question}" not in template:
        raise InvalidInput(f"the template must hold '{{question}}', got {template!r}")
    return template.replace("{question}", question)


def direct(question: str, *, template: str = PROMPT, max_tokens: int = 24) -> Flow[Answer]:
    """One model call, no search."""
    [reply] = yield from ask(direct_prompt(question, template), max_tokens=max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), trace=(reply,))


@dataclass(frozen=True, slots=True)
class DirectSettings:
    """How the model is asked without passages.

    Raises:
        InvalidInput: a value is out of its range.
    """

    template: str = PROMPT
    """`{question}` is replaced."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1."""

    def __post_init__(self) -> None:
        direct_prompt("", self.template)
        whole("max_tokens", self.max_tokens)


METHOD = Method(
    name="direct",
    summary="the model answers from what it knows; no retrieval",
    source="-",
    settings=DirectSettings,
    answer=lambda question, settings, _: direct(
        question.text, template=settings.template, max_tokens=settings.max_tokens
    ),
    most_calls=lambda _: 1,
)
