"""What every retriever must be able to do."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from ltrag_plugins.errors import InvalidInput
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


def check_search(queries: Sequence[str], k: int) -> None:
    """Refuse one string in place of a list, and a `k` below 1."""
    if isinstance(queries, str):
        raise InvalidInput(f"search takes a list of queries, got the string {queries[:40]!r}")
    if k < 1:
        raise InvalidInput(f"search needs k of at least 1, got {k}")


def pool_name(kind: str, passages: Iterable[Passage]) -> str:
    """A name that another kind of search, or one over other passages, does not have."""
    digest = hashlib.sha256()
    for passage in passages:
        for part in (passage.id, passage.title, passage.text):
            content = part.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "little") + content)
    return f"{kind}@{digest.hexdigest()[:12]}"
