"""Direct: the model answers from what it knows; no retrieval.

References:
    The "w/o RAG" row of the papers; our wording.
"""

from dataclasses import dataclass

from ltrag_plugins.flow import Flow, ask
from ltrag_plugins.methods.method import Method, whole
from ltrag_plugins.prompts.templates import DIRECT_PROMPT, direct_prompt
from ltrag_plugins.types import Answer


def direct(question: str, *, template: str = DIRECT_PROMPT, max_tokens: int = 24) -> Flow[Answer]:
    """One model call, no search."""
    [reply] = yield from ask(direct_prompt(question, template), max_tokens=max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), trace=(reply,))


@dataclass(frozen=True, slots=True)
class DirectSettings:
    """How the model is asked without passages.

    Raises:
        InvalidInput: a value is out of its range.
    """

    template: str = DIRECT_PROMPT
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
