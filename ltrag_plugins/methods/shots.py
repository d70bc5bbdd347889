"""Solved examples in front of the question, drawn at random or the nearest by BM25; no retrieval.

References:
    Brown et al., NeurIPS 2020, "Language Models are Few-Shot Learners"; "random sampling" and
    "BM25" (Robertson & Zaragoza, 2009) in Yu et al., NAACL 2025 (DUR), table 1. Our wording.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from ltrag_plugins.dur.prompts import Shot
from ltrag_plugins.dur.shots import Preselector, ShotRanker
from ltrag_plugins.flow import Flow, ask
from ltrag_plugins.methods.method import Method, labelled_questions
from ltrag_plugins.prompts.question import render_question
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.prompts.templates import direct_prompt, filled
from ltrag_plugins.settings import Count, Holds, Settings, Whole
from ltrag_plugins.types import Answer, Question

_SHOTS_PROMPT = "Answer each question in a few words, as the examples do.\n\n{shots}\n\n{question}"
"""`{shots}` and `{question}` are replaced; other braces are left alone."""

_Ranks = Callable[[Sequence[Question]], Sequence[Sequence[Question]]]  # a ShotRanker of examples


@dataclass(frozen=True, slots=True)
class BM25ShotsSettings(Settings):
    """How many examples, and how they are shown."""

    shots: Count = 5
    """Examples to show (paper: 5)."""
    template: Annotated[str, Holds("shots", "question")] = _SHOTS_PROMPT
    """`{shots}` and `{question}` are replaced."""
    context_words: Count = 200
    """A question's context is cut to this many words."""
    max_tokens: Count = 24
    """Longest answer, in tokens."""


@dataclass(frozen=True, slots=True)
class RandomShotsSettings(BM25ShotsSettings):
    """How many examples, how they are shown, and how they are drawn."""

    seed: Whole = 0
    """Of the draw; a question draws the same whatever else is asked."""


def shots_prompt(shots: Sequence[Question], question: Question, settings: BM25ShotsSettings) -> str:
    """The solved examples in their order, then the question; without examples, as in `direct`."""
    query = render_question(question, context_words=settings.context_words)
    if not shots:
        return direct_prompt(query)
    solved = "\n\n".join(
        f"Question: {render_question(shot, context_words=settings.context_words)}\n"
        f"Answer: {shot.answers[0]}"
        for shot in shots
    )
    return filled(settings.template, shots=solved, question=f"Question: {query}\nAnswer:")


def _bm25(examples: Sequence[Question], settings: BM25ShotsSettings) -> ShotRanker:
    """Fewer examples where fewer share a word with the question."""
    found = Preselector(examples, how="bm25", size=settings.shots, fill=False, text=_rendered)
    return ShotRanker(found, settings.shots)


def _random(examples: Sequence[Question], settings: RandomShotsSettings) -> ShotRanker:
    def drawn(questions: Sequence[Question], _: Any, picks: list[np.ndarray]) -> list[np.ndarray]:
        found = []
        for question, others in zip(questions, picks, strict=True):
            rng = random.Random(f"{settings.seed} {render_question(question)}")
            drawn = rng.sample(others.tolist(), min(settings.shots, len(others)))
            found.append(np.array(drawn, dtype=int))
        return found

    return ShotRanker(Preselector(examples, text=_rendered), settings.shots, drawn)


def _rendered(shot: Shot) -> str:
    return render_question(shot) if isinstance(shot, Question) else shot.text


def _row(
    name: str, summary: str, settings: type, ranker: Callable[[Sequence[Question], Any], ShotRanker]
) -> Method:
    def learn(questions: Sequence[Question], settings: Any) -> Flow[ShotRanker]:
        yield from ()
        return ranker(labelled_questions(questions, name), settings)

    def answer(question: Question, settings: Any, learned: _Ranks) -> Flow[Answer]:
        [shots] = learned([question])
        prompt = shots_prompt(shots, question, settings)
        [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
        return Answer(read_reply(reply.text, question.options), trace=(reply,))

    return Method(
        name=name,
        summary=summary,
        source="Yu et al., NAACL 2025, table 1",
        settings=settings,
        answer=answer,
        most_calls=lambda _: 1,
        needs=frozenset({"labelled questions"}),
        spells_out=True,
        learn=learn,
    )


RANDOM_SHOTS = _row(
    "random-shots",
    "solved examples drawn at random in front of the question; no retrieval",
    RandomShotsSettings,
    _random,
)
BM25_SHOTS = _row(
    "bm25-shots",
    "the solved examples nearest by BM25 in front of the question; no retrieval",
    BM25ShotsSettings,
    _bm25,
)
