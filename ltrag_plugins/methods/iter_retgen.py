"""ITER-RETGEN: what the model wrote last joins the question as the next query, a few times over.

Each round reads only what it found, and writes a chain of thought; the last names the answer. After
Shao et al., Findings of EMNLP 2023, https://arxiv.org/abs/2305.15294, section 3.2; our wording.
"""

from dataclasses import dataclass

from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.methods.direct import direct
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.prompts.replies import MARKER, concluded
from ltrag_plugins.prompts.templates import ReadingTemplate, reading_prompt
from ltrag_plugins.settings import Count
from ltrag_plugins.types import Answer, Generation, Passage, Question

_THINKING_PROMPT = (
    "{passages}\n\nThink about the question in one to three short sentences, with the help of the "
    f'text above. Then end with "{MARKER}" and the answer in a few words.\n'
    "Question: {question}\nThoughts:"
)


@dataclass(frozen=True, slots=True)
class IterRetGenSettings(ReadingSettings):
    """How often, and with how much to read in each round (paper: `k` 5)."""

    template: ReadingTemplate = _THINKING_PROMPT
    """`{passages}` and `{question}` are replaced."""
    max_tokens: Count = 96
    """Longest chain of thought with its answer, in tokens."""
    iterations: Count = 2
    """Most rounds of search and writing (paper: up to 7, little gained after 2)."""


def _answer(question: Question, settings: IterRetGenSettings, _: None) -> Flow[Answer]:
    """At most `iterations` searches and model calls; fewer where the same or nothing is found."""
    read, trace = list[Passage](), list[Generation]()
    prompt, query = "", question.text
    for _round in range(settings.iterations):
        [found] = yield from fetch(query, k=settings.k)
        asking = reading_prompt(question.text, found, settings.template)
        if not found or asking == prompt:
            break
        read, prompt = found, asking
        [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n\n",))
        trace.append(reply)
        query = f"{reply.text.strip()} {question.text}"
    if not trace:
        return (yield from direct(question.text))
    return Answer(concluded(trace[-1].text), passages=tuple(read), trace=tuple(trace))


METHOD = Method(
    name="iter-retgen",
    summary="what the model wrote last joins the question as the next query",
    source="Shao et al., Findings of EMNLP 2023",
    settings=IterRetGenSettings,
    answer=_answer,
    most_calls=lambda settings: settings.iterations,
)
