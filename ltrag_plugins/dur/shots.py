"""Ways to choose shots, under one interface: the trained head and what it is compared with.

A ranker takes questions and gives, for each, its shots, best first. The paper compares with
no shots, random ones, BM25 and PromptPG (a head trained with `DURSettings.promptpg()`); nearest
neighbours by the encoder are the plain rival of any trained head.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", section 6.1.

Which candidates are ranked for a question: C' of algorithm 1, line 8.

A candidate with the question's own text is never chosen: it would hold the answer.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar, final

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.dur.policy import top
from ltrag_plugins.dur.prompts import Shot, text_of
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.settings import DURSettings, Preselect
from ltrag_plugins.errors import EmptyQuestion, InvalidInput
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Passage, Question


@final
class Preselector:
    """Chooses from one pool of candidates; indexed once, asked often.

    Args:
        candidates: the pool.
        vectors: of the candidates; needed for "encoder".
        how: BM25, nearness of the vectors, the two in turn ("both"), or all of the pool.
        size: |C'|; fewer come only from a smaller pool.
    """

    def __init__(
        self,
        candidates: Sequence[Shot],
        vectors: Float[np.ndarray, "candidates dim"],
        *,
        how: Preselect,
        size: int,
    ) -> None:
        if not candidates:
            raise InvalidInput("there are no candidates; give at least one example or passage")
        self._texts = [_key(text_of(c)) for c in candidates]
        self._is_example = np.array([isinstance(c, Question) for c in candidates])
        self._vectors = _unit(vectors)
        self._how, self._size = how, size
        self._bm25 = None
        if how in ("bm25", "both"):
            pool = [Passage(text_of(c), id=str(i)) for i, c in enumerate(candidates)]
            self._bm25 = BM25Retriever(pool, engine="auto")

    def choose(
        self, question: Question, vector: Float[np.ndarray, " dim"]
    ) -> Int[np.ndarray, " chosen"]:
        """Indices into the pool, best first.

        Raises:
            InvalidInput: every candidate is the question itself.
        """
        allowed = np.array([text != _key(question.text) for text in self._texts])
        allowed |= ~self._is_example
        order = self._order(question, vector, spare=int((~allowed).sum()))
        chosen = order[allowed[order]]
        if not len(chosen):
            raise InvalidInput(
                f"every candidate is the question {question.text[:40]!r} itself; a question is "
                "never its own example. Add others."
            )
        return chosen if self._how == "none" else chosen[: self._size]

    def _order(
        self, question: Question, vector: Float[np.ndarray, " dim"], *, spare: int
    ) -> Int[np.ndarray, " candidates"]:
        if self._how == "none":
            return np.arange(len(self._texts))
        orders = []
        if self._bm25 is not None:
            orders.append(self._by_words(question, self._size + spare))
        if self._how != "bm25":
            orders.append(top(self._vectors @ _unit(vector[None])[0], len(self._texts)))
        in_turn = np.stack(orders, axis=1).ravel()
        _, first = np.unique(in_turn, return_index=True)
        return in_turn[np.sort(first)]

    def _by_words(self, question: Question, k: int) -> Int[np.ndarray, " candidates"]:
        assert self._bm25 is not None
        [found] = self._bm25.search([question.text], k)
        first = np.array([int(p.id) for p in found], dtype=int)
        # what shares no word with the question comes last, as it was handed in
        return np.concatenate([first, np.setdiff1d(np.arange(len(self._texts)), first)])


def _unit(vectors: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows dim"]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1.0)


def _key(text: str) -> str:
    return " ".join(words(text)) or text.strip()


_T = TypeVar("_T")

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


@final
class ExamplePool(Generic[_T]):
    """Examples that are encoded once, by their questions; it may grow while it is asked.

    Preselected as in the ranker's training, then ranked by its head, as `learned_shots` does
    for a pool that stays as it is. Calls may come from several threads.
    """

    def __init__(self, ranker: DURRanker) -> None:
        self.ranker = ranker
        self._lock = threading.Lock()
        self._indexed: _Indexed[_T] = _Indexed((), (), np.zeros((0, 0)), ranker.settings)

    def add(self, questions: Sequence[str], examples: Sequence[_T]) -> None:
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

    def choose(self, question: str, *, top_n: int | None = None, sigma: float = 0.0) -> list[_T]:
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
class _Indexed(Generic[_T]):
    """A pool at one moment; its index is made when it is first asked."""

    examples: tuple[_T, ...]
    questions: tuple[Question, ...]
    vectors: Float[np.ndarray, "examples dim"]
    settings: DURSettings

    @cached_property
    def preselector(self) -> Preselector:
        how, size = self.settings.preselect, self.settings.preselected
        return Preselector(self.questions, self.vectors, how=how, size=size)
