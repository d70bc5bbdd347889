"""The two plain ways: the model answers from what it knows ("w/o RAG" in the papers), or after one
search (Lewis et al., NeurIPS 2020, https://arxiv.org/abs/2005.11401). Our wording.
"""

from dataclasses import dataclass

from ltrag_plugins.flow import Flow, ask
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.prompts import templates
from ltrag_plugins.settings import Count, Settings
from ltrag_plugins.types import Answer, Question


@dataclass(frozen=True, slots=True)
class DirectSettings(Settings):
    """How the model is asked without passages."""

    template: templates.DirectTemplate = templates.DIRECT_PROMPT
    """`{question}` is replaced."""
    max_tokens: Count = 24
    """Longest answer, in tokens."""


@dataclass(frozen=True, slots=True)
class RoutingSettings(ReadingSettings):
    """For methods that answer one question directly and read for another."""

    direct_template: templates.DirectTemplate = templates.DIRECT_PROMPT
    """Asks for the answer without passages; `{question}` is replaced."""

    def directly(self, question: Question) -> Flow[Answer]:
        """As `direct` answers."""
        return direct(question.text, template=self.direct_template, max_tokens=self.max_tokens)


def direct(
    question: str, *, template: str = templates.DIRECT_PROMPT, max_tokens: int = 24
) -> Flow[Answer]:
    """One model call, no search."""
    prompt = templates.direct_prompt(question, template)
    [reply] = yield from ask(prompt, max_tokens=max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), trace=(reply,))


def single_retrieval(question: str, *, k: int = 3) -> Flow[Answer]:
    """One search, one model call; where nothing is found, the question is asked as in `direct`."""
    return ReadingSettings(k).searching(Question(question))


DIRECT = Method(
    name="direct",
    summary="the model answers from what it knows; no retrieval",
    source="-",
    settings=DirectSettings,
    answer=lambda q, s, _: direct(q.text, template=s.template, max_tokens=s.max_tokens),
    needs=frozenset(),
)
SINGLE = Method(
    name="single",
    summary="one search with the question, one answer from what it found",
    source="Lewis et al., NeurIPS 2020",
    settings=ReadingSettings,
    answer=lambda question, settings, _: settings.searching(question),
)
