"""How well a model answers with the shots that a ranker chose.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 3 (easy and hard) and section 6.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import f1_score

from ltrag_plugins.dur.feedback import (
    PROMPTS_AT_ONCE,
    Feedback,
    Wanted,
    contextual_calibration,
    option_prior,
    read_feedback,
)
from ltrag_plugins.dur.prompts import Shot, format_for
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.flow import Observer, World, run_many
from ltrag_plugins.llm.base import LLM, ScoringLLM
from ltrag_plugins.types import Question


@dataclass(frozen=True, slots=True)
class _ShotScores:
    """Means over questions, each in [0, 1]; None where there is nothing to take a mean of."""

    questions: int
    accuracy: float
    """Share of right answers: the right option, or normalized exact match."""
    macro_f1: float | None
    """Over the options; None for free text."""
    p_gold: float | None
    """Probability of the right answer; of a reference text, of all its tokens together. None
    where the model does not score given text."""
    easy: float | None
    """Accuracy on the questions that are right without shots."""
    hard: float | None
    """Accuracy on the others."""
    shots: float
    """Mean shots a question."""


def answer_with(
    ranked: Sequence[Sequence[Shot]],
    questions: Sequence[Question],
    llm: LLM,
    settings: DURSettings,
    *,
    observers: Sequence[Observer] = (),
) -> list[Feedback]:
    """Ask each question with its shots."""
    scores = isinstance(llm, ScoringLLM)
    free = settings.option_calibration == "content-free"
    wanted = Wanted(options=scores, gold=scores, text=True, content_free=free)
    form = format_for(settings.format)
    flows = [
        read_feedback(q, [shots], form, wanted) for q, shots in zip(questions, ranked, strict=True)
    ]
    found = [
        f for [f] in run_many(flows, World(llm=llm), batch=PROMPTS_AT_ONCE, observers=observers)
    ]
    if settings.option_calibration == "batch":
        found = contextual_calibration(found, option_prior(found))
    return found


def summed(
    found: Sequence[Feedback],
    ranked: Sequence[Sequence[Shot]],
    *,
    easy: Sequence[bool] | None = None,
) -> _ShotScores:
    """The means.

    Args:
        ranked: the shots that each question was asked with.
        easy: whether each question is right without shots.
    """
    right = np.array([f.right for f in found], dtype=float)
    known = np.array([] if easy is None else easy, dtype=bool)
    parts = [right[:0]] * 2 if easy is None else [right[known], right[~known]]
    chances = [math.exp(f.log_p_gold) for f in found if (f.options, f.gold) != (None, None)]
    choice = [f for f in found if f.question.options]
    return _ShotScores(
        questions=len(found),
        accuracy=float(right.mean()),
        macro_f1=_macro_f1(choice) if choice else None,
        p_gold=float(np.mean(chances)) if chances else None,
        easy=float(parts[0].mean()) if len(parts[0]) else None,
        hard=float(parts[1].mean()) if len(parts[1]) else None,
        shots=float(np.mean([len(shots) for shots in ranked])),
    )


def _macro_f1(choice: Sequence[Feedback]) -> float:
    labels = sorted({o for f in choice for o in f.question.options})
    gold, said = [_gold(f) for f in choice], [f.answer or "" for f in choice]
    # a label that nobody says has F1 0; sklearn's stubs know the words alone
    return float(
        f1_score(gold, said, labels=labels, average="macro", zero_division=0)  # pyright: ignore[reportArgumentType]
    )


def _gold(found: Feedback) -> str:
    """The option that is right; where several are, the one that was said."""
    right = [o for o in found.question.options if o in found.question.answers]
    said = found.answer
    return said if said in right else right[0]
