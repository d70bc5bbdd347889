"""Ways to choose shots, under one interface: the trained head and what it is compared with.

A ranker takes questions and gives, for each, its shots, best first. The paper compares with
no shots, random ones, BM25 and PromptPG (a head trained with `DURSettings.promptpg()`); nearest
neighbours by the encoder are the plain rival of any trained head.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", section 6.1.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ltrag_plugins.dur.preselect import Preselector, text_of
from ltrag_plugins.dur.prompts import Shot
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.settings import Preselect
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.types import Question

ShotRanker = Callable[[Sequence[Question]], list[list[Shot]]]
"""From questions to the shots of each, best first."""


def no_shots() -> ShotRanker:
    """Zero-shot."""
    return lambda questions: [[] for _ in questions]


def random_shots(candidates: Sequence[Shot], *, shots: int, seed: int) -> ShotRanker:
    """Drawn evenly, for each question anew; the question itself left out."""

    def rank(questions: Sequence[Question]) -> list[list[Shot]]:
        random = np.random.default_rng(seed)
        chooser = Preselector(candidates, np.zeros((len(candidates), 1)), how="none", size=0)
        found = []
        for question in questions:
            allowed = chooser.choose(question, np.zeros(1))
            found.append([candidates[i] for i in random.permutation(allowed)[:shots]])
        return found

    return rank


def preselected_shots(
    candidates: Sequence[Shot], *, how: Preselect, shots: int, encoder: Encoder
) -> ShotRanker:
    """The first of the preselection: BM25's ("bm25"), or the nearest neighbours ("encoder")."""
    vectors = encoder.encode([text_of(c) for c in candidates])
    chooser = Preselector(candidates, vectors, how=how, size=shots)

    def rank(questions: Sequence[Question]) -> list[list[Shot]]:
        asked = encoder.encode([q.text for q in questions])
        chosen = [chooser.choose(q, v) for q, v in zip(questions, asked, strict=True)]
        return [[candidates[i] for i in picks[:shots]] for picks in chosen]

    return rank


def learned_shots(
    ranker: DURRanker,
    candidates: Sequence[Shot],
    *,
    shots: int | None = None,
    sigma: float = 0.0,
) -> ShotRanker:
    """Preselected as in the ranker's training, then ranked by its head."""
    settings = ranker.settings
    vectors = ranker.encoder.encode([text_of(c) for c in candidates]).astype(float)
    chooser = Preselector(candidates, vectors, how=settings.preselect, size=settings.preselected)

    def rank(questions: Sequence[Question]) -> list[list[Shot]]:
        asked = ranker.encoder.encode([q.text for q in questions]).astype(float)
        found: list[list[Shot]] = []
        for question, vector in zip(questions, asked, strict=True):
            picks = chooser.choose(question, vector)
            ranked = ranker.rank_vectors(
                vector, vectors[picks], top_n=shots or ranker.shots, sigma=sigma
            )
            found.append([candidates[picks[r.index]] for r in ranked])
        return found

    return rank
