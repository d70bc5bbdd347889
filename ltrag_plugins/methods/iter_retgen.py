"""ITER-RETGEN: what the model wrote last joins the question as the next query, a few times over.

Each iteration searches, reads only what it found just now, and writes a short chain of thought;
the answer is the one the last chain names.

References:
    Shao et al., Findings of EMNLP 2023, "Enhancing Retrieval-Augmented Large Language Models with
    Iterative Retrieval-Generation Synergy", https://arxiv.org/abs/2305.15294, section 3.2; our
    wording, without demonstrations (put yours into `template`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.methods.direct import direct
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.prompts.replies import MARKER, concluded
from ltrag_plugins.prompts.templates import ReadingTemplate, reading_prompt
from ltrag_plugins.settings import Count
from ltrag_plugins.types import Answer, Generation, Passage

THINKING_PROMPT = (
    "{passages}\n\nThink about the question in one to three short sentences, with the help of the "
    f'text above. Then end with "{MARKER}" and the answer in a few words.\n'
    "Question: {question}\nThoughts:"
)


@dataclass(frozen=True, slots=True)
class IterRetGenSettings(ReadingSettings):
    """How often, and with how much to read."""

    k: Count = 3
    """Passages to read in each round (paper: 5)."""
    template: ReadingTemplate = THINKING_PROMPT
    """`{passages}` and `{question}` are replaced."""
    max_tokens: Count = 96
    """Longest chain of thought with its answer, in tokens."""
    iterations: Count = 2
    """Most rounds of search and writing (paper: up to 7, little gained after 2)."""


def iter_retgen(question: str, settings: IterRetGenSettings | None = None) -> Flow[Answer]:
    """At most `iterations` searches and as many model calls.

    It ends earlier where nothing would change: the same passages are found again, so that the
    prompt is the last one, or none. Where the question finds nothing, it is asked as in `direct`.
    """
    settings = settings or IterRetGenSettings()
    read: list[Passage] = []
    trace: list[Generation] = []
    query = question
    for _ in range(settings.iterations):
        [found] = yield from fetch(query, k=settings.k)
        if not found or _texts(found) == _texts(read):
            break
        read = found
        prompt = reading_prompt(question, read, settings.template)
        [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n\n",))
        trace.append(reply)
        query = f"{reply.text.strip()} {question}"
    if not trace:
        return (yield from direct(question))
    return Answer(concluded(trace[-1].text), passages=tuple(read), trace=tuple(trace))


def _texts(passages: Iterable[Passage]) -> list[tuple[str, str]]:
    # the same passage comes back with another score, which the prompt does not show
    return [(passage.title, passage.text) for passage in passages]


METHOD = Method(
    name="iter-retgen",
    summary="what the model wrote last joins the question as the next query",
    source="Shao et al., Findings of EMNLP 2023",
    settings=IterRetGenSettings,
    answer=lambda question, settings, _: iter_retgen(question.text, settings),
    most_calls=lambda settings: settings.iterations,
    needs=frozenset({"retriever"}),
)
