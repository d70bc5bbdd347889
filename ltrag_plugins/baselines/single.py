"""Single retrieval: one search with the question, one answer from what it found.

References:
    Lewis et al., NeurIPS 2020, https://arxiv.org/abs/2005.11401; our wording.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ltrag_plugins.baselines.direct import direct_prompt
from ltrag_plugins.baselines.method import Method, whole
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.types import Answer, Passage

PROMPT = (
    "{passages}\n\nAnswer the question in a few words from the text above, without explanation.\n"
    "Question: {question}\nAnswer:"
)
"""`{passages}` and `{question}` are replaced; other braces are left alone."""


MOST_WORDS = 200
"""As much of a passage as is read."""


def beginning(text: str, max_words: int = MOST_WORDS) -> str:
    """The first words of a text, with single spaces between them."""
    return " ".join(text.split()[:max_words])


def passages_block(passages: Sequence[Passage], *, max_words: int = MOST_WORDS) -> str:
    """The passages, one paragraph each with its title, each cut to `max_words` words."""
    return "\n".join(
        f"{passage.title}: {text}" if passage.title else text
        for passage in passages
        for text in [beginning(passage.text, max_words)]
    )


def reading_prompt(question: str, passages: Sequence[Passage], template: str = PROMPT) -> str:
    """The template with passages and question in their places.

    Raises:
        InvalidInput: the template has no place for one of them.
    """
    if "{passages}" not in template or "{question}" not in template:
        raise InvalidInput(
            f"the template must hold '{{passages}}' and '{{question}}', got {template!r}"
        )
    before, _, after = template.partition("{passages}")
    # the question goes in before the passages do, so a passage that says "{question}" stays as is
    return (
        before.replace("{question}", question)
        + passages_block(passages)
        + after.replace("{question}", question)
    )


def single_retrieval(
    question: str, *, k: int = 3, template: str = PROMPT, max_tokens: int = 24
) -> Flow[Answer]:
    """One search, one model call; where nothing is found, the question is asked as in `direct`."""
    [found] = yield from fetch(question, k=k)
    prompt = reading_prompt(question, found, template) if found else direct_prompt(question)
    [reply] = yield from ask(prompt, max_tokens=max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), passages=tuple(found), trace=(reply,))


@dataclass(frozen=True, slots=True)
class SingleSettings:
    """How much is fetched, and how it is read.

    Raises:
        InvalidInput: a value is out of its range.
    """

    k: int = 3
    """Passages to read, at least 1."""
    template: str = PROMPT
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
