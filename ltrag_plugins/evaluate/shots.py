"""Rows of a run that show ranked shots: a trained head's, and those of plain rankers.

References:
    Yu et al., NAACL 2025 (DUR), section 6.1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ltrag_plugins.dur.feedback import Feedback, contextual_calibration, reading
from ltrag_plugins.dur.prompts import Shot
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.dur.shots import ShotRanker
from ltrag_plugins.evaluate.spec import Cell
from ltrag_plugins.flow import Flow, World, run_many
from ltrag_plugins.methods import Method
from ltrag_plugins.types import Answer, Question


def shot_cells(
    ranker: DURRanker,
    candidates: Sequence[Shot] | None,
    questions: Sequence[Question],
    *,
    scores: bool,
    shots: int,
    seed: int = 0,
) -> tuple[list[Cell], Mapping[str, dict[str, float]]]:
    """No shots ("direct"), random ones, BM25's, the nearest, and the head's.

    Args:
        candidates: that all questions share; None: each has passages of its own.
        scores: whether the model scores given text.
        shots: most in a prompt.
        seed: of the random ones.

    Returns:
        The cells, and by cell and question's id the probability of the right answer, which running
        them fills in where the model tells it.
    """
    encoder, settings = ranker.encoder, ranker.settings
    if candidates is None:  # such passages are not preselected in training either
        everything = replace(settings, preselect="none")
        ranker = DURRanker(ranker.head, encoder, everything, sigma=ranker.sigma)
    made: dict[str, Callable[[Sequence[Shot], int], ShotRanker]] = {
        "direct": lambda pool, seed: ShotRanker.random(pool, shots=0, seed=seed),
        "random": lambda pool, seed: ShotRanker.random(pool, shots=shots, seed=seed),
        "BM25": lambda pool, _: ShotRanker.bm25(pool, shots=shots),
        "nearest": lambda pool, _: ShotRanker.nearest(pool, shots=shots, encoder=encoder),
        "head": lambda pool, _: ShotRanker.learned(ranker, pool, shots=shots),
    }
    cells, chances = [], {}
    for name, make in made.items():
        if candidates is not None:
            ranked = make(candidates, seed)(questions)
        else:  # a seed each: else chance would take the same places of every list
            ranked = [make(q.passages, seed + i)([q])[0] for i, q in enumerate(questions)]
        chosen = {question.id: some for question, some in zip(questions, ranked, strict=True)}
        chances[name] = {}
        cells.append(_cell(name, chosen, questions, settings, scores, chances[name]))
    return cells, chances


def _cell(
    name: str,
    shots: Mapping[str, Sequence[Shot]],
    questions: Sequence[Question],
    settings: DURSettings,
    scores: bool,
    chances: dict[str, float],
) -> Cell:
    def read(question: Question) -> Flow[list[Feedback]]:
        return reading(question, [shots[question.id]], settings, scores=scores, both=True)

    def answer(question: Question, _: Any, batch: Sequence[Feedback] | None) -> Flow[Answer]:
        [found] = yield from read(question)
        if batch and found.options is not None:
            [found] = contextual_calibration([found], batch)
        if found.options is not None or found.gold is not None:
            chances[question.id] = math.exp(found.log_p_gold)
        return Answer(found.answer or "")

    def whole_batch(_: Any, __: Any, world: World, observers: Any) -> list[Feedback]:
        flows = [read(question) for question in questions if question.options]
        return [one for [one] in run_many(flows, world, observers=observers)]

    method = Method(
        name=name,
        summary="shots of this ranker in front of the question",
        source="Yu et al., NAACL 2025",
        settings=DURSettings,
        answer=answer,
        most_calls=lambda _: 2,
        train=whole_batch if settings.option_calibration == "batch" else None,
        spells_out=True,
    )
    return Cell(method, settings)
