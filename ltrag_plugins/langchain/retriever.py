"""LangChain's retrievers and documents as our retrievers and passages, and ours as LangChain's."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, final

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun as AsyncRetrieverRun
from langchain_core.callbacks import CallbackManagerForRetrieverRun as RetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStoreRetriever
from pydantic import ConfigDict

from ltrag_plugins.errors import InvalidInput, checked, listed
from ltrag_plugins.flow import World, arun, fetch, run
from ltrag_plugins.langchain.model import runs_of
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Passage

_Searching = Runnable[str, list[Document]]
SCORE_KEYS = ("relevance_score", "score")
"""Where LangChain's retrievers and compressors leave a score, the likeliest first."""


def passage_of(document: Document) -> Passage:
    """A document as a passage: its id kept, its metadata copied, its score read from there."""
    checked(document, Document, "a document", "a LangChain Document")
    key = _score_key(document.metadata)
    title = document.metadata.get("title")
    return Passage(
        text=document.page_content,
        id=document.id or "",
        title=title if isinstance(title, str) else "",
        score=None if key is None else float(document.metadata[key]),
        metadata=dict(document.metadata),
    )


def document_of(passage: Passage) -> Document:
    """A passage as a new document; its title and score win over older ones in the metadata."""
    metadata = dict(passage.metadata)
    if passage.title:
        metadata["title"] = passage.title
    if passage.score is not None:
        metadata[_score_key(metadata) or SCORE_KEYS[0]] = passage.score
    return Document(id=passage.id or None, page_content=passage.text, metadata=metadata)


def _score_key(metadata: dict[str, Any]) -> str | None:
    found = {key: metadata.get(key) for key in SCORE_KEYS}
    numbers = (k for k, v in found.items() if isinstance(v, Real) and not isinstance(v, bool))
    return next(numbers, None)


def documents_in(found: Any, where: str = "from the retriever") -> list[Document]:
    """What was found, or given, as a list; refused where it is none of documents."""
    listable = isinstance(found, Iterable) and not isinstance(found, str | Mapping | Document)
    items: list[Any] = list(found) if listable else [None]
    if all(isinstance(item, Document) for item in items):
        return items
    remedy = "Passages become Documents with ltrag_plugins.langchain.document_of."
    wanted = f"{where} there must be a list of langchain_core Documents"
    raise InvalidInput(f"{wanted}, got {found!r:.80}. {remedy}")


@final
class LangChainRetriever:
    """Searches with any `BaseRetriever`, or any Runnable from a query to documents, which is asked
    for `k` of them where it can be (see `asking_for`); more are cut. `name` tells it from searches
    over other documents in an evaluation's records, which the name of its class does not."""

    def __init__(self, retriever: _Searching, *, name: str | None = None) -> None:
        wanted = "a LangChain retriever or Runnable (RunnableLambda wraps a function)"
        self._retriever = checked(retriever, Runnable, "retriever", wanted)
        self.name: str = name or type(retriever).__name__

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages per query, best first, in the order of the queries."""
        asking, inputs = asking_for(self._retriever, k), [*map(str, listed(queries, "queries"))]
        return _passages(asking.batch(inputs, runs_of(queries)), k)

    async def asearch(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """As `search`, with the retriever's own async call."""
        asking, inputs = asking_for(self._retriever, k), [*map(str, listed(queries, "queries"))]
        return _passages(await asking.abatch(inputs, runs_of(queries)), k)


def _passages(found: list[Any], k: int) -> list[list[Passage]]:
    return [[*map(passage_of, documents_in(documents)[:k])] for documents in found]


def checked_k(k: int | None, least: int = 1) -> int | None:
    """The number itself, if passages can be counted by it."""
    if k is not None and not (isinstance(k, Integral) and k >= least):
        raise InvalidInput(f"k must be at least {least}, or None for all that is found, got {k!r}")
    return k


def asking_for(retriever: _Searching, k: int | None) -> _Searching:
    """The retriever, called with `k` where its searches declare it (and a vector store's), a copy
    where it has a field `k`, or any other as it is."""
    if k is None or not isinstance(retriever, BaseRetriever):
        return retriever
    # the async default of BaseRetriever refuses every argument that the sync search declares
    searches = (retriever._get_relevant_documents, retriever._aget_relevant_documents)
    declared = all("k" in inspect.signature(search).parameters for search in searches)
    if declared or isinstance(retriever, VectorStoreRetriever):
        return retriever.bind(k=k)
    if "k" in type(retriever).model_fields:
        return retriever.model_copy(update={"k": k})
    return retriever


class PassageRetriever(BaseRetriever):
    """Our `Retriever` (BM25 over passages, ...) as a LangChain retriever."""

    retriever: Retriever
    """The retriever; keyword, as all fields."""
    k: int = 4
    """Most documents to return, also as `invoke(query, k=...)`."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def _get_relevant_documents(
        self, query: str, *, run_manager: RetrieverRun, k: int | None = None
    ) -> list[Document]:
        [found] = run(fetch(query, k=self.k if k is None else k), World(retriever=self.retriever))
        return [*map(document_of, found)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncRetrieverRun, k: int | None = None
    ) -> list[Document]:
        flow = fetch(query, k=self.k if k is None else k)
        [found] = await arun(flow, World(retriever=self.retriever))
        return [*map(document_of, found)]
