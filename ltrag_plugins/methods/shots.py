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
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.prompts.templates import direct_prompt, filled, render_question
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


def _answer(question: Question, settings: BM25ShotsSettings, learned: _Ranks) -> Flow[Answer]:
    """One model call: the examples in their order, then the question; without, as in `direct`."""
    [shots] = learned([question])
    query, *others = (
        render_question(one, context_words=settings.context_words) for one in (question, *shots)
    )
    prompt = direct_prompt(query)
    if shots:
        pairs = zip(others, shots, strict=True)
        solved = "\n\n".join(f"Question: {q}\nAnswer: {shot.answers[0]}" for q, shot in pairs)
        asked = f"Question: {query}\nAnswer:"
        prompt = filled(settings.template, shots=solved, question=asked)
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(read_reply(reply.text, question.options), trace=(reply,))


def _row(name: str, how: str, settings: type, ranker: Callable[..., ShotRanker]) -> Method:
    return Method(
        name=name,
        summary=f"{how} in front of the question; no retrieval",
        source="Yu et al., NAACL 2025, table 1",
        settings=settings,
        answer=_answer,
        most_calls=lambda _: 1,
        needs=frozenset({"labelled questions"}),
        spells_out=True,
        train=lambda known, settings, *_: ranker(labelled_questions(known, name), settings),
    )


RANDOM_SHOTS = _row("random-shots", "solved examples drawn at random", RandomShotsSettings, _random)
BM25_SHOTS = _row("bm25-shots", "the solved examples nearest by BM25", BM25ShotsSettings, _bm25)
