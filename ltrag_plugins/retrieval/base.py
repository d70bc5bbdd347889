"""What every retriever must be able to do, and the search that retrievers over a list share."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.types import Passage


@runtime_checkable
class Retriever(Protocol):
    """Finds passages for queries."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages per query, best first, in the order of the queries."""
        ...


@runtime_checkable
class AsyncRetriever(Retriever, Protocol):
    """A retriever with an async call of its own."""

    async def asearch(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """As `search`."""
        ...


class PassagePool(ABC):
    """A `Retriever` that hands back copies of a list's passages with their score; of equal scores
    the one handed in first comes first."""

    def __init__(self, passages: Iterable[Passage], kind: str) -> None:
        wanted = "Passage(text)s"
        self.passages = tuple(checked(p, Passage, "passages", wanted) for p in passages)
        self._kind = kind

    @abstractmethod
    def _scores(self, queries: Sequence[str]) -> Iterable[Float[np.ndarray, " passages"]]:
        """For each query the scores of all passages; minus infinity for those not found."""

    @cached_property
    def name(self) -> str:
        """Tells it from another kind of search, or one with other settings or passages."""
        digest = hashlib.sha256()
        for passage in self.passages:
            for part in (passage.id, passage.title, passage.text):
                content = part.encode("utf-8", "surrogatepass")
                digest.update(len(content).to_bytes(8, "little") + content)
        return f"{self._kind}@{digest.hexdigest()[:12]}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages per query, best first, in the order of the queries; `InvalidInput`
        is raised of a `k` below 1, or of one string in place of a list."""
        if isinstance(queries, str):
            raise InvalidInput(f"search takes a list of queries, got the string {queries[:40]!r}")
        if not isinstance(k, Integral) or k < 1:
            raise InvalidInput(f"search needs k of at least 1, a whole number, got {k!r}")
        return [
            [replace(self.passages[i], score=float(scores[i])) for i in _best(scores, k)]
            for scores in self._scores(queries)
        ]


def _best(scores: Float[np.ndarray, " n"], k: int) -> Int[np.ndarray, " found"]:
    """Indices of the `k` largest finite scores, largest first, equal ones in order."""
    floor = np.partition(scores, -k)[-k] if k < scores.size else -np.inf
    candidates = np.flatnonzero((scores >= floor) & (scores > -np.inf))
    return candidates[np.argsort(-scores[candidates], kind="stable")][:k]
