"""IRCoT: reasoning and retrieval take turns; each sentence of the reasoning fetches for the next.

The question fetches the first passages. Then the model writes one sentence of a chain of thought
over all collected passages, the sentence is the next query, and so on, until the chain names the
answer or is long enough. A reader answers from what was collected; it does not see the chain.

References:
    Trivedi et al., ACL 2023, "Interleaving Retrieval with Chain-of-Thought Reasoning for
    Knowledge-Intensive Multi-Step Questions", https://arxiv.org/abs/2212.10509, section 3; our
    wording, without demonstrations (put yours into `thought_template`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.prompts.replies import MARKER, concludes, first_sentence
from ltrag_plugins.prompts.templates import answer_from, filled, passages_block
from ltrag_plugins.settings import Count, Holds
from ltrag_plugins.types import Answer, Generation, Passage

THOUGHT_PROMPT = (
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
    thought_template: Annotated[str, Holds("passages", "question", "thoughts")] = THOUGHT_PROMPT
    """Asks for the next sentence; `{passages}`, `{question}` and `{thoughts}` are replaced."""
    thought_tokens: Count = 64
    """Longest sentence, in tokens."""


def ircot(question: str, settings: IRCoTSettings | None = None) -> Flow[Answer]:
    """Answer from what the question and the reasoning about it have fetched.

    The reasoning also ends where it can change nothing more: a sentence is blank or was said
    before, or there is no room for another passage. Where the question finds nothing, it is asked
    as in `direct`. At most `steps` + 1 model calls and `steps` + 1 searches.
    """
    settings = settings or IRCoTSettings()
    [found] = yield from fetch(question, k=settings.k)
    collected = _joined((), found, settings.most_passages)
    thoughts: list[str] = []
    trace: list[Generation] = []
    while collected and len(thoughts) < settings.steps and len(collected) < settings.most_passages:
        prompt = filled(
            settings.thought_template,
            passages=passages_block(collected),
            question=question,
            thoughts=" ".join(thoughts) or "(none)",
        )
        [reply] = yield from ask(prompt, max_tokens=settings.thought_tokens, stop=("\n",))
        trace.append(reply)
        thought = first_sentence(reply.text)
        if not thought or thought in thoughts or concludes(thought):
            break
        thoughts.append(thought)
        [found] = yield from fetch(thought, k=settings.k)
        collected = _joined(collected, found, settings.most_passages)
    return (
        yield from answer_from(
            question,
            collected,
            template=settings.template,
            max_tokens=settings.max_tokens,
            trace=trace,
        )
    )


def _joined(
    collected: Iterable[Passage], found: Iterable[Passage], most: int
) -> tuple[Passage, ...]:
    """The old ones, then the new ones; a title and text that is there already is left out."""
    by_text: dict[tuple[str, str], Passage] = {}
    for passage in (*collected, *found):
        by_text.setdefault((passage.title, passage.text), passage)
    return tuple(by_text.values())[:most]


METHOD = Method(
    name="ircot",
    summary="each sentence of a chain of thought fetches for the next; a reader reads all",
    source="Trivedi et al., ACL 2023",
    settings=IRCoTSettings,
    answer=lambda question, settings, _: ircot(question.text, settings),
    most_calls=lambda settings: settings.steps + 1,
    needs=frozenset({"retriever"}),
)
