"""Direct: the model answers from what it knows; no retrieval.

References:
    The "w/o RAG" row of the papers; our wording.
"""

from dataclasses import dataclass

from ltrag_plugins.flow import Flow, ask
from ltrag_plugins.methods.method import Method
from ltrag_plugins.prompts.templates import DIRECT_PROMPT, DirectTemplate, direct_prompt
from ltrag_plugins.settings import Count, Settings
from ltrag_plugins.types import Answer


@dataclass(frozen=True, slots=True)
class DirectSettings(Settings):
    """How the model is asked without passages."""

    template: DirectTemplate = DIRECT_PROMPT
    """`{question}` is replaced."""
    max_tokens: Count = 24
    """Longest answer, in tokens."""


def direct(question: str, *, template: str = DIRECT_PROMPT, max_tokens: int = 24) -> Flow[Answer]:
    """One model call, no search."""
    [reply] = yield from ask(direct_prompt(question, template), max_tokens=max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), trace=(reply,))


METHOD = Method(
    name="direct",
    summary="the model answers from what it knows; no retrieval",
    source="-",
    settings=DirectSettings,
    answer=lambda question, settings, _: direct(
        question.text, template=settings.template, max_tokens=settings.max_tokens
    ),
)
