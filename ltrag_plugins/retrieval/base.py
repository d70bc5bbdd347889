"""What every retriever must be able to do."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

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
