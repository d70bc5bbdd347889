"""IRCoT: reasoning and retrieval take turns; each sentence of the reasoning fetches for the next.

The question fetches the first passages. Then the model writes one sentence of a chain of thought
over all collected passages, the sentence is the next query, and so on, until the chain names the
answer or is long enough. A reader answers from what was collected; it does not see the chain.

References:
    Trivedi et al., ACL 2023, "Interleaving Retrieval with Chain-of-Thought Reasoning for
    Knowledge-Intensive Multi-Step Questions", https://arxiv.org/abs/2212.10509, section 3; our
    wording, without demonstrations (put yours into `thought_template`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.methods.method import Method, whole
from ltrag_plugins.prompts.replies import MARKER, concludes, first_sentence
from ltrag_plugins.prompts.templates import (
    READING_PROMPT,
    direct_prompt,
    filled,
    passages_block,
    reading_prompt,
)
from ltrag_plugins.types import Answer, Generation, Passage

THOUGHT = (
    "{passages}\n\nQuestion: {question}\n"
    "Reason towards the answer step by step. Write only the next step: one short sentence with one "
    f'fact from the text above. If the steps so far give the answer, write "{MARKER}" and the '
    "answer.\n"
    "Steps so far: {thoughts}\nNext step:"
)
"""`{passages}`, `{question}` and `{thoughts}` are replaced; other braces are left alone."""


@dataclass(frozen=True, slots=True)
class IRCoTSettings:
    """How long the reasoning may be, and how much it may collect.

    Raises:
        InvalidInput: a value is out of its range, or a template lacks a place.
    """

    steps: int = 5
    """Most sentences of reasoning, at least 1 (paper: 8)."""
    k: int = 3
    """Passages to fetch for the question and for each sentence, at least 1 (paper: 2 to 8)."""
    most_passages: int = 15
    """Most passages to collect, at least 1 (paper: 15); the first found stay."""
    thought_template: str = THOUGHT
    """`{passages}`, `{question}` and `{thoughts}` are replaced."""
    template: str = READING_PROMPT
    """The reader's: `{passages}` and `{question}` are replaced."""
    thought_tokens: int = 64
    """Longest sentence, in tokens, at least 1."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1."""

    def __post_init__(self) -> None:
        thought_prompt("", (), (), self.thought_template)
        reading_prompt("", (), self.template)
        for name in ("steps", "k", "most_passages", "thought_tokens", "max_tokens"):
            whole(name, getattr(self, name))


def thought_prompt(
    question: str,
    passages: Sequence[Passage],
    thoughts: Sequence[str],
    template: str = THOUGHT,
) -> str:
    """What asks for the next sentence.

    Raises:
        InvalidInput: the template lacks a place.
    """
    so_far = " ".join(thoughts) or "(none)"
    return filled(template, passages=passages_block(passages), question=question, thoughts=so_far)


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
        prompt = thought_prompt(question, collected, thoughts, settings.thought_template)
        [reply] = yield from ask(prompt, max_tokens=settings.thought_tokens, stop=("\n",))
        trace.append(reply)
        thought = first_sentence(reply.text)
        if not thought or thought in thoughts or concludes(thought):
            break
        thoughts.append(thought)
        [found] = yield from fetch(thought, k=settings.k)
        collected = _joined(collected, found, settings.most_passages)
    read = reading_prompt(question, collected, settings.template)
    prompt = read if collected else direct_prompt(question)
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), passages=collected, trace=(*trace, reply))


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
