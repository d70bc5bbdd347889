"""Which candidates are ranked for a question: C' of algorithm 1, line 8.

A candidate with the question's own text is never chosen: it would hold the answer.
"""

from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.dur.policy import top
from ltrag_plugins.dur.prompts import Shot
from ltrag_plugins.dur.settings import Preselect
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage, Question
from ltrag_plugins.words import words


def text_of(shot: Shot) -> str:
    """What is encoded and searched: the question of an example, title and text of a passage."""
    if isinstance(shot, Passage):
        return f"{shot.title}\n{shot.text}" if shot.title else shot.text
    return shot.text


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
