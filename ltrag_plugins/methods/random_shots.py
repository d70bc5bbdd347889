"""Random shots: solved examples drawn at random stand in front of the question; no retrieval.

References:
    "Random sampling" in Yu et al., NAACL 2025 (DUR), table 1; our wording.
"""

import random
from dataclasses import dataclass

from ltrag_plugins.flow import Flow
from ltrag_plugins.methods.method import Method, whole
from ltrag_plugins.methods.shots import PROMPT, ShotPool, answer_after, check_shots, shot_pool
from ltrag_plugins.prompts.question import render_question
from ltrag_plugins.types import Answer, Question


@dataclass(frozen=True, slots=True)
class RandomShotsSettings:
    """How many examples, and how they are drawn.

    Raises:
        InvalidInput: a value is out of its range.
    """

    shots: int = 5
    """Examples to show, at least 1 (paper: 5)."""
    seed: int = 0
    """Of the draw, at least 0; a question draws the same whatever else is asked."""
    template: str = PROMPT
    """`{shots}` and `{question}` are replaced."""
    context_words: int = 200
    """A question's context is cut to this many words, at least 1."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1."""

    def __post_init__(self) -> None:
        check_shots(self.shots, self.template, self.context_words, self.max_tokens)
        whole("seed", self.seed, least=0)


def drawn(question: Question, pool: ShotPool, shots: int, seed: int) -> list[Question]:
    """At most `shots` examples, in the order drawn; never the question itself."""
    others = pool.others(question)
    draw = random.Random(f"{seed} {render_question(question)}")
    return [pool.examples[i] for i in draw.sample(others, min(shots, len(others)))]


def random_shots(
    question: Question, pool: ShotPool, settings: RandomShotsSettings | None = None
) -> Flow[Answer]:
    """One model call; where the pool holds nothing but the question, it is asked as in `direct`."""
    settings = settings or RandomShotsSettings()
    return answer_after(
        drawn(question, pool, settings.shots, settings.seed),
        question,
        template=settings.template,
        context_words=settings.context_words,
        max_tokens=settings.max_tokens,
    )


METHOD = Method(
    name="random-shots",
    summary="solved examples drawn at random in front of the question; no retrieval",
    source="Yu et al., NAACL 2025, table 1",
    settings=RandomShotsSettings,
    answer=lambda question, settings, pool: random_shots(question, pool, settings),
    most_calls=lambda _: 1,
    needs=frozenset({"labelled questions"}),
    spells_out=True,
    learn=lambda questions, _: shot_pool(questions, "random-shots"),
)
