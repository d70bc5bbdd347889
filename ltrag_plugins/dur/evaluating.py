"""How well a model answers with the shots that a ranker chose.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 3 (easy and hard) and section 6.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import f1_score

from ltrag_plugins.dur.batch import AT_ONCE
from ltrag_plugins.dur.feedback import (
    Reading,
    Wanted,
    balanced,
    is_right,
    log_p_gold,
    prediction,
    reading,
)
from ltrag_plugins.dur.prompts import Shot, format_for
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.flow import Flow, Observer, World, run_many
from ltrag_plugins.llm.base import LLM, ScoringLLM
from ltrag_plugins.types import Question


@dataclass(frozen=True, slots=True)
class Result:
    """What the model made of one question."""

    question: Question
    answer: str
    right: bool
    p_gold: float | None
    """Probability of the right answer, in [0, 1]; of a reference text, of all its tokens
    together. None where the model does not score given text."""
    shots: int


@dataclass(frozen=True, slots=True)
class Scores:
    """Means over questions, each in [0, 1]; None where there is nothing to take a mean of."""

    questions: int
    accuracy: float
    """Share of right answers: the right option, or normalized exact match."""
    macro_f1: float | None
    """Over the options; None for free text."""
    p_gold: float | None
    easy: float | None
    """Accuracy on the questions that are right without shots."""
    hard: float | None
    """Accuracy on the others."""
    shots: float
    """Mean shots a question."""


def answered(
    ranked: Sequence[Sequence[Shot]],
    questions: Sequence[Question],
    llm: LLM,
    settings: DURSettings,
    *,
    observers: Sequence[Observer] = (),
) -> list[Result]:
    """Ask each question with its shots."""
    scores = isinstance(llm, ScoringLLM)
    wanted = Wanted(
        options=scores,
        gold=scores,
        text=True,
        content_free=settings.option_calibration == "content-free",
    )
    form = format_for(settings.format)

    def one(shots: Sequence[Shot], question: Question) -> Flow[Reading]:
        [found] = yield from reading([(shots, question)], form, wanted)
        return found

    flows = [one(s, q) for s, q in zip(ranked, questions, strict=True)]
    found = run_many(flows, World(llm=llm), batch=AT_ONCE, observers=observers)
    if settings.option_calibration == "batch":
        found = balanced(found, questions)
    return [_result(*parts, scores=scores) for parts in zip(found, questions, ranked, strict=True)]


def summed(results: Sequence[Result], *, easy: Sequence[bool] | None = None) -> Scores:
    """The means.

    Args:
        easy: whether each question is right without shots.
    """
    right = np.array([r.right for r in results], dtype=float)
    chances = [r.p_gold for r in results if r.p_gold is not None]
    choice = [r for r in results if r.question.options]
    macro = None
    if choice:
        gold = [_gold(r) for r in choice]
        labels = sorted({o for r in choice for o in r.question.options})
        said = [r.answer for r in choice]
        # a label that nobody says has F1 0; sklearn's stubs know the words alone
        macro = float(
            f1_score(gold, said, labels=labels, average="macro", zero_division=0)  # pyright: ignore[reportArgumentType]
        )
    known = np.array(easy if easy is not None else [], dtype=bool)
    parts = [right[known], right[~known]] if easy is not None else [right[:0], right[:0]]
    return Scores(
        questions=len(results),
        accuracy=float(right.mean()),
        macro_f1=macro,
        p_gold=float(np.mean(chances)) if chances else None,
        easy=float(parts[0].mean()) if len(parts[0]) else None,
        hard=float(parts[1].mean()) if len(parts[1]) else None,
        shots=float(np.mean([r.shots for r in results])),
    )


def _gold(result: Result) -> str:
    """The option that is right; where several are, the one that was said."""
    right = [o for o in result.question.options if o in result.question.answers]
    return result.answer if result.answer in right else right[0]


def _result(found: Reading, question: Question, shots: Sequence[Shot], *, scores: bool) -> Result:
    said = prediction(found, question) or ""
    chance = math.exp(log_p_gold(found, question)) if scores else None
    return Result(question, said, is_right(found, question), chance, len(shots))
