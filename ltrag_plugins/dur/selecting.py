"""Solved examples that a ranker chooses from, and the ranker that a caller means."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Literal, TypeVar, final

import numpy as np
from jaxtyping import Float

from ltrag_plugins.dur.preselect import Preselector
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.errors import EmptyQuestion, InvalidInput
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.types import Question

T = TypeVar("T")

TRAIN = "ltrag dur train candidates.jsonl validation.jsonl --model ... --out head/"
"""The command that trains a head."""


def chosen_ranker(
    ranker: DURRanker | None,
    encoder: Encoder | None,
    untrained: Literal["encoder"] | None,
    *,
    top_n: int | None,
    sigma: float,
) -> DURRanker:
    """The ranker itself, or plain similarity where that is asked for in so many words.

    Raises:
        InvalidInput: there is no trained head, or too many of the three are given, or `top_n`
            or `sigma` is out of the range of `DURRanker.rank`.
    """
    if ranker is None:
        ranker = _similarity(encoder, untrained)
    elif not isinstance(ranker, DURRanker):
        raise InvalidInput(
            f"ranker must be a DURRanker, got {type(ranker).__name__} {ranker!r:.60}."
        )
    elif encoder is not None or untrained is not None:
        raise InvalidInput(
            "a ranker brings its own encoder: give a ranker, or an encoder and untrained='encoder'."
        )
    nothing = np.zeros((0, 1))
    ranker.rank_vectors(np.zeros(1), nothing, top_n=top_n, sigma=sigma)  # refuses bad ranges
    return ranker


def _similarity(encoder: Encoder | None, untrained: str | None) -> DURRanker:
    if untrained is None:
        raise InvalidInput(
            f"there is no trained head to rank with. Train one with '{TRAIN}' and load it with "
            "from_pretrained('head/', encoder=...). For plain similarity, which knows nothing of "
            "your model, say untrained='encoder'."
        )
    if untrained != "encoder":
        raise InvalidInput(f"untrained must be 'encoder' or None, got {untrained!r}.")
    if encoder is None:
        raise InvalidInput("untrained='encoder' needs encoder=..., by which to rank.")
    return DURRanker.untrained(encoder, settings=DURSettings(preselect="encoder"))


@final
class ExamplePool(Generic[T]):
    """Examples that are encoded once, by their questions; it may grow while it is asked.

    Preselected as in the ranker's training, then ranked by its head, as `learned_shots` does
    for a pool that stays as it is. Calls may come from several threads.
    """

    def __init__(self, ranker: DURRanker) -> None:
        self.ranker = ranker
        self._lock = threading.Lock()
        self._indexed: _Indexed[T] = _Indexed((), (), np.zeros((0, 0)), ranker.settings)

    def add(self, questions: Sequence[str], examples: Sequence[T]) -> None:
        """Put examples under their questions; nothing but these questions is encoded."""
        if not questions:
            return
        rows = self.ranker.encoder.encode(list(questions)).astype(float)
        with self._lock:
            old = self._indexed
            self._indexed = _Indexed(
                (*old.examples, *examples),
                (*old.questions, *(Question(text) for text in questions)),
                np.concatenate([old.vectors, rows]) if old.examples else rows,
                old.settings,
            )

    def choose(self, question: str, *, top_n: int | None = None, sigma: float = 0.0) -> list[T]:
        """The best examples, best first; none whose question is `question` itself.

        Args:
            top_n: most to choose; None: as many as in the ranker's training (K).
            sigma: leave out what has a score of at most this, 0 to 1; at 0 nothing is.

        Raises:
            EmptyQuestion: the question has no words.
        """
        if not question.strip():
            raise EmptyQuestion("the question is empty; there is nothing to choose examples by")
        pool = self._indexed
        if not pool.examples:
            return []
        [vector] = self.ranker.encoder.encode([question]).astype(float)
        try:
            picks = pool.preselector.choose(Question(question), vector)
        except InvalidInput:  # every example is the question itself
            return []
        most = self.ranker.shots if top_n is None else top_n
        ranked = self.ranker.rank_vectors(vector, pool.vectors[picks], top_n=most, sigma=sigma)
        return [pool.examples[picks[r.index]] for r in ranked]

    def __len__(self) -> int:
        return len(self._indexed.examples)


@dataclass(frozen=True, eq=False)
class _Indexed(Generic[T]):
    """A pool at one moment; its index is made when it is first asked."""

    examples: tuple[T, ...]
    questions: tuple[Question, ...]
    vectors: Float[np.ndarray, "examples dim"]
    settings: DURSettings

    @cached_property
    def preselector(self) -> Preselector:
        how, size = self.settings.preselect, self.settings.preselected
        return Preselector(self.questions, self.vectors, how=how, size=size)
