"""Single retrieval: one search with the question, one answer from what it found.

References:
    Lewis et al., NeurIPS 2020, https://arxiv.org/abs/2005.11401; our wording.
"""

from dataclasses import dataclass

from ltrag_plugins.flow import Flow
from ltrag_plugins.methods.direct import direct
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.prompts.templates import DIRECT_PROMPT, READING_PROMPT, DirectTemplate
from ltrag_plugins.types import Answer, Question


@dataclass(frozen=True, slots=True)
class SingleSettings(ReadingSettings):
    """How much is fetched, and how it is read."""


@dataclass(frozen=True, slots=True)
class RoutingSettings(ReadingSettings):
    """For methods that answer one question directly and read for another."""

    direct_template: DirectTemplate = DIRECT_PROMPT
    """Asks for the answer without passages; `{question}` is replaced."""

    def directly(self, question: Question) -> Flow[Answer]:
        """As `direct` answers."""
        return direct(question.text, template=self.direct_template, max_tokens=self.max_tokens)


def single_retrieval(
    question: str, *, k: int = 3, template: str = READING_PROMPT, max_tokens: int = 24
) -> Flow[Answer]:
    """One search, one model call; where nothing is found, the question is asked as in `direct`."""
    return SingleSettings(k, template, max_tokens).searching(Question(question))


METHOD = Method(
    name="single",
    summary="one search with the question, one answer from what it found",
    source="Lewis et al., NeurIPS 2020",
    settings=SingleSettings,
    answer=lambda question, settings, _: settings.searching(question),
    needs=frozenset({"retriever"}),
)
