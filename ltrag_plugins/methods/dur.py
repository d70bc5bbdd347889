"""DUR (Yu et al., NAACL 2025) over passages in place of solved examples, by a trained head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ltrag_plugins.artifacts import check_part
from ltrag_plugins.dur.prompts import text_of
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.errors import checked
from ltrag_plugins.flow import Flow, World, embed, fetch
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.settings import Count
from ltrag_plugins.types import Answer, Passage, Question


@dataclass(frozen=True, slots=True)
class DURMethodSettings(ReadingSettings):
    """How passages are reranked and read."""

    ranker: DURRanker | None = None
    """A trained head; None: the encoder's own similarity."""
    found: Count = 20
    """Passages to rerank."""

    def _check_together(self) -> None:
        checked(self.ranker, DURRanker | None, "ranker", "a DURRanker or None")
        if self.ranker is not None:  # vectors come from the run's encoder; settings travel
            object.__setattr__(self, "ranker", self.ranker.without_encoder())


def _answer(question: Question, settings: DURMethodSettings, _: None) -> Flow[Answer]:
    """One search, one encoding, one answer from the passages ranked first."""
    [found] = yield from fetch(question.text, k=settings.found)
    if not found:
        return (yield from settings.read(question, ()))
    best = yield from reranked(question.text, found, settings.ranker, settings.k)
    return (yield from settings.read(question, best))


def reranked(
    question: str, found: Sequence[Passage], ranker: DURRanker | None, k: int
) -> Flow[list[Passage]]:
    """The best `k` of some passages, best first, with their scores: one encoding."""
    vectors = np.asarray((yield from embed(question, *map(text_of, found))), float)
    if ranker is not None:
        ranked = ranker.rank_vectors(vectors[0], vectors[1:], top_n=k)
        return [replace(found[one.index], score=one.score) for one in ranked]
    scores = vectors[1:] @ vectors[0]
    order = np.argsort(-scores, kind="stable")[:k]
    return [replace(found[i], score=float(scores[i])) for i in order]


def _refuses(settings: DURMethodSettings, world: World) -> None:
    if settings.ranker is not None and world.encoder is not None:
        check_part("the ranker", "encoder", settings.ranker.encoder.name, world.encoder.name)


METHOD = Method(
    name="dur",
    summary="passages that help this model first: reranked by a trained head, else by similarity",
    source="Yu et al., NAACL 2025",
    settings=DURMethodSettings,
    answer=_answer,
    needs=frozenset({"retriever", "encoder"}),
    refuses=_refuses,
)
