"""DUR over passages: those that help this model stand first, ranked by a trained head.

References:
    Yu et al., NAACL 2025 (DUR), over passages in place of solved examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ltrag_plugins.dur.prompts import text_of
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, ask, embed, fetch
from ltrag_plugins.methods.direct import direct
from ltrag_plugins.methods.method import Method, whole
from ltrag_plugins.prompts.templates import READING_PROMPT, reading_prompt
from ltrag_plugins.types import Answer, Passage


@dataclass(frozen=True, slots=True)
class DURMethodSettings:
    """How passages are reranked and read.

    Raises:
        InvalidInput: a value is out of its range.
    """

    ranker: DURRanker | None = None
    """A trained head; None: the encoder's own similarity."""
    found: int = 20
    """Passages to rerank, at least 1."""
    k: int = 3
    """Of them, those to read, at least 1."""
    template: str = READING_PROMPT
    """`{passages}` and `{question}` are replaced."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1."""

    def __post_init__(self) -> None:
        for name in ("found", "k", "max_tokens"):
            whole(name, getattr(self, name))
        reading_prompt("", (), self.template)
        if not isinstance(self.ranker, DURRanker | None):
            raise InvalidInput(f"ranker must be a DURRanker or None, got {self.ranker!r:.60}")
        if self.ranker is not None:  # vectors come from the run's encoder; settings travel
            object.__setattr__(self, "ranker", self.ranker.without_encoder())


def reranked(question: str, settings: DURMethodSettings) -> Flow[Answer]:
    """One search, one encoding, one answer from the passages ranked first."""
    [found] = yield from fetch(question, k=settings.found)
    if not found:
        return (yield from direct(question, max_tokens=settings.max_tokens))
    vectors = yield from embed(question, *map(text_of, found))
    best = _ranked(np.asarray(vectors, float), found, settings)
    prompt = reading_prompt(question, best, settings.template)
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), passages=tuple(best), trace=(reply,))


def _ranked(
    vectors: np.ndarray, found: Sequence[Passage], settings: DURMethodSettings
) -> list[Passage]:
    if settings.ranker is None:
        scores = vectors[1:] @ vectors[0]
        order = np.argsort(-scores, kind="stable")[: settings.k]
        return [replace(found[i], score=float(scores[i])) for i in order]
    ranked = settings.ranker.rank_vectors(vectors[0], vectors[1:], top_n=settings.k)
    return [replace(found[one.index], score=one.score) for one in ranked]


METHOD = Method(
    name="dur",
    summary="passages that help this model first: reranked by a trained head, else by similarity",
    source="Yu et al., NAACL 2025",
    settings=DURMethodSettings,
    answer=lambda question, settings, _: reranked(question.text, settings),
    most_calls=lambda _: 1,
    needs=frozenset({"retriever", "encoder"}),
)
