"""Single retrieval: one search with the question, one answer from what it found.

References:
    Lewis et al., NeurIPS 2020, https://arxiv.org/abs/2005.11401; our wording.
"""

from dataclasses import dataclass

from ltrag_plugins.flow import Flow, fetch
from ltrag_plugins.methods.method import Method, whole
from ltrag_plugins.prompts.templates import READING_PROMPT, answer_from, reading_prompt
from ltrag_plugins.types import Answer


def single_retrieval(
    question: str, *, k: int = 3, template: str = READING_PROMPT, max_tokens: int = 24
) -> Flow[Answer]:
    """One search, one model call; where nothing is found, the question is asked as in `direct`."""
    [found] = yield from fetch(question, k=k)
    return (yield from answer_from(question, found, template=template, max_tokens=max_tokens))


@dataclass(frozen=True, slots=True)
class SingleSettings:
    """How much is fetched, and how it is read.

    Raises:
        InvalidInput: a value is out of its range.
    """

    k: int = 3
    """Passages to read, at least 1."""
    template: str = READING_PROMPT
    """`{passages}` and `{question}` are replaced."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1."""

    def __post_init__(self) -> None:
        reading_prompt("", (), self.template)
        whole("k", self.k)
        whole("max_tokens", self.max_tokens)


METHOD = Method(
    name="single",
    summary="one search with the question, one answer from what it found",
    source="Lewis et al., NeurIPS 2020",
    settings=SingleSettings,
    answer=lambda question, settings, _: single_retrieval(
        question.text,
        k=settings.k,
        template=settings.template,
        max_tokens=settings.max_tokens,
    ),
    most_calls=lambda _: 1,
    needs=frozenset({"retriever"}),
)
