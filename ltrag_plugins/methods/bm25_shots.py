"""BM25 shots: the solved examples whose questions are most like this one stand in front of it.

References:
    "BM25" in Yu et al., NAACL 2025 (DUR), table 1; Robertson & Zaragoza, 2009. Our wording.
"""

from dataclasses import dataclass

from ltrag_plugins.flow import Flow
from ltrag_plugins.methods.method import Method
from ltrag_plugins.methods.shots import PROMPT, ShotPool, answer_after, check_shots, shot_pool
from ltrag_plugins.prompts.question import render_question
from ltrag_plugins.types import Answer, Question


@dataclass(frozen=True, slots=True)
class BM25ShotsSettings:
    """How many examples, and how they are shown.

    Raises:
        InvalidInput: a value is out of its range.
    """

    shots: int = 5
    """Examples to show, at least 1 (paper: 5)."""
    template: str = PROMPT
    """`{shots}` and `{question}` are replaced."""
    context_words: int = 200
    """A question's context is cut to this many words, at least 1."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1."""

    def __post_init__(self) -> None:
        check_shots(self.shots, self.template, self.context_words, self.max_tokens)


def nearest(question: Question, pool: ShotPool, shots: int) -> list[Question]:
    """At most `shots` examples, best first; never the question itself.

    Fewer where fewer share a word with the question.
    """
    others = set(pool.others(question))
    spare = len(pool.examples) - len(others)
    [found] = pool.index.search([render_question(question)], shots + spare)
    chosen = [int(p.id) for p in found if int(p.id) in others]
    return [pool.examples[i] for i in chosen[:shots]]


def bm25_shots(
    question: Question, pool: ShotPool, settings: BM25ShotsSettings | None = None
) -> Flow[Answer]:
    """One model call; where no example shares a word, the question is asked as in `direct`."""
    settings = settings or BM25ShotsSettings()
    return answer_after(
        nearest(question, pool, settings.shots),
        question,
        template=settings.template,
        context_words=settings.context_words,
        max_tokens=settings.max_tokens,
    )


METHOD = Method(
    name="bm25-shots",
    summary="the solved examples nearest by BM25 in front of the question; no retrieval",
    source="Yu et al., NAACL 2025, table 1",
    settings=BM25ShotsSettings,
    answer=lambda question, settings, pool: bm25_shots(question, pool, settings),
    most_calls=lambda _: 1,
    needs=frozenset({"labelled questions"}),
    spells_out=True,
    learn=lambda questions, _: shot_pool(questions, "bm25-shots"),
)
