"""IRCoT: reasoning and retrieval take turns; each sentence of the reasoning fetches for the next.

The model writes a chain of thought over all collected passages until it names the answer or is long
enough. A reader, which does not see the chain, answers from what was collected. After Trivedi et
al., ACL 2023, https://arxiv.org/abs/2212.10509, section 3; our wording, without demonstrations.
"""

from dataclasses import dataclass
from typing import Annotated

from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.prompts.replies import MARKER, next_thought
from ltrag_plugins.prompts.templates import filled, passages_block
from ltrag_plugins.settings import Count, Holds
from ltrag_plugins.types import Answer, Generation, Passage, Question

_THOUGHT_PROMPT = (
    "{passages}\n\nQuestion: {question}\n"
    "Reason towards the answer step by step. Write only the next step: one short sentence with one "
    f'fact from the text above. If the steps so far give the answer, write "{MARKER}" and the '
    "answer.\n"
    "Steps so far: {thoughts}\nNext step:"
)


@dataclass(frozen=True, slots=True)
class IRCoTSettings(ReadingSettings):
    """How long the reasoning may be, and how much it may collect."""

    k: Count = 3
    """Passages to fetch for the question and for each sentence (paper: 2 to 8)."""
    steps: Count = 5
    """Most sentences of reasoning (paper: 8)."""
    most_passages: Count = 15
    """Most passages to collect (paper: 15); the first found stay."""
    thought_template: Annotated[str, Holds("passages", "question", "thoughts")] = _THOUGHT_PROMPT
    """Asks for the next sentence; `{passages}`, `{question}` and `{thoughts}` are replaced."""
    thought_tokens: Count = 64
    """Longest sentence, in tokens."""


def _answer(question: Question, settings: IRCoTSettings, _: None) -> Flow[Answer]:
    """At most `steps` + 1 searches and model calls; fewer where they could change nothing more."""
    collected: dict[tuple[str, str], Passage] = {}
    thoughts, trace, query = list[str](), list[Generation](), question.text
    while True:
        [found] = yield from fetch(query, k=settings.k)
        for passage in found:
            collected.setdefault((passage.title, passage.text), passage)
        shown = list(collected.values())[: settings.most_passages]
        if not shown or len(thoughts) == settings.steps or len(shown) == settings.most_passages:
            break
        prompt = filled(
            settings.thought_template,
            passages=passages_block(shown),
            question=question.text,
            thoughts=" ".join(thoughts) or "(none)",
        )
        [reply] = yield from ask(prompt, max_tokens=settings.thought_tokens, stop=("\n",))
        trace.append(reply)
        query = next_thought(reply.text)
        if not query or query in thoughts:
            break
        thoughts.append(query)
    return (yield from settings.read(question, shown, trace))


METHOD = Method(
    name="ircot",
    summary="each sentence of a chain of thought fetches for the next; a reader reads all",
    source="Trivedi et al., ACL 2023",
    settings=IRCoTSettings,
    answer=_answer,
    most_calls=lambda settings: settings.steps + 1,
)
