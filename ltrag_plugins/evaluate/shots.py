"""Rows of a run that show ranked shots, a trained head's and others (Yu et al., section 6.1)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
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
) -> tuple[list[Cell], Mapping[str, dict[str, float]], Mapping[str, float]]:
    """No shots ("direct"), random ones, BM25's, the nearest, and the head's; by cell and question
    the probability of the right answer, which a run fills in where the model has `scores`; and by
    cell the mean shots of a prompt. Without shared `candidates`, questions have their passages."""
    encoder, settings = ranker.encoder, ranker.settings
    if candidates is None:  # such passages are not preselected in training either
        everything = replace(settings, preselect="none")
        ranker = DURRanker(ranker.head, encoder, everything, sigma=ranker.sigma)
    made = {
        "direct": partial(ShotRanker.random, shots=0),
        "random": partial(ShotRanker.random, shots=shots),
        "BM25": lambda pool, seed: ShotRanker.bm25(pool, shots=shots),
        "nearest": lambda pool, seed: ShotRanker.nearest(pool, shots=shots, encoder=encoder),
        "head": lambda pool, seed: ShotRanker.learned(ranker, pool, shots=shots),
    }
    cells, chances, lengths = [], {name: dict[str, float]() for name in made}, dict[str, float]()
    for name, make in made.items():
        if candidates is not None:
            ranked = make(candidates, seed=0)(questions)
        else:  # a seed each: else chance would take the same places of every list
            ranked = [make(q.passages, seed=i)([q])[0] for i, q in enumerate(questions)]
        lengths[name] = sum(map(len, ranked)) / len(ranked)
        chosen = {question.id: some for question, some in zip(questions, ranked, strict=True)}
        method = _method(name, questions, chosen, settings, scores, chances[name])
        cells.append(Cell(method, settings))
    return cells, chances, lengths


def _method(
    name: str,
    questions: Sequence[Question],
    shots: Mapping[str, Sequence[Shot]],
    settings: DURSettings,
    scores: bool,
    chances: dict[str, float],
) -> Method:
    def read(question: Question) -> Flow[list[Feedback]]:
        return reading(question, [shots[question.id]], settings, scores=scores, both=True)

    def answer(question: Question, _: Any, batch: Sequence[Feedback] | None) -> Flow[Answer]:
        [found] = yield from read(question)
        if batch and found.options is not None:
            [found] = contextual_calibration([found], batch)
        if (found.options, found.gold) != (None, None):
            chances[question.id] = math.exp(found.log_p_gold)
        return Answer(found.answer or "")

    def whole_batch(_: Any, __: Any, world: World) -> list[Feedback]:
        flows = [read(question) for question in questions if question.options]
        return [one for [one] in run_many(flows, world)]

    train = whole_batch if settings.option_calibration == "batch" else None
    about = "few-shot prompts", "Yu et al., NAACL 2025", DURSettings, answer, lambda _: 2
    return Method(name, *about, needs=frozenset(), train=train, spells_out=True)
