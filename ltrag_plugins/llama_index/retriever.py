"""LlamaIndex's retrievers and nodes as our retrievers and passages, and ours as LlamaIndex's."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, Literal
from uuid import NAMESPACE_OID, uuid5

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeWithScore,
    QueryBundle,
    QueryType,
    TextNode,
)

from ltrag_plugins.errors import InvalidInput, checked, listed
from ltrag_plugins.flow import World, arun, fetch, run
from ltrag_plugins.llm.concurrency import amapped, inherits
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Passage

EITHER_RETRIEVER = "a LlamaIndex BaseRetriever or an ltrag_plugins.retrieval Retriever"
_logger = logging.getLogger(__name__)


class _Metadata(dict[str, Any]):
    """A copy of a node's metadata that keeps the node, for `node_of`."""

    node: BaseNode | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # pickling may take parts out of a node


def passage_of(found: NodeWithScore) -> Passage:
    """The node's bare text, its id, its score and a copy of its metadata, `title` among it."""
    metadata = _Metadata(found.node.metadata)
    metadata.node = found.node
    return Passage(
        text=found.node.get_content(MetadataMode.NONE),
        id=found.node.node_id,
        title=str(found.node.metadata.get("title") or ""),
        score=found.score,
        metadata=metadata,
    )


def shown_passage(found: NodeWithScore, mode: MetadataMode) -> Passage:
    """The node as it shows itself to language models (`LLM`) or embedding models (`EMBED`), its
    title where a passage has its own; other metadata stands before the text, by its templates."""
    node = found.node
    key = f"excluded_{mode.value}_metadata_keys"
    hidden = getattr(node, key)
    title = "" if "title" in hidden else str(node.metadata.get("title") or "")
    untitled = node.model_copy(update={key: [*hidden, "title"]})
    return replace(passage_of(found), text=untitled.get_content(mode), title=title)


def with_scores(nodes: Iterable[NodeWithScore | BaseNode]) -> list[NodeWithScore]:
    """Bare nodes among them without a score."""
    wanted = "LlamaIndex nodes"
    return [
        found
        if isinstance(found, NodeWithScore)
        else NodeWithScore(node=checked(found, BaseNode, "nodes", wanted))
        for found in checked(nodes, Iterable, "nodes", wanted)
    ]


def node_of(passage: Passage) -> NodeWithScore:
    """A new node with the passage's text, title, metadata and score; without an id it gets one made
    from title and text, as LlamaIndex drops nodes whose ids repeat. One that was a node keeps all
    that the node had, unless its text or id is another now."""
    metadata = dict(passage.metadata)
    node = passage.metadata.node if isinstance(passage.metadata, _Metadata) else None
    if passage.title and passage.title != str(metadata.get("title")):
        metadata["title"] = passage.title
    if node and (node.node_id, node.get_content(MetadataMode.NONE)) == (passage.id, passage.text):
        node = node.model_copy(update={"metadata": metadata})
    else:
        made = str(uuid5(NAMESPACE_OID, f"{passage.title}\n{passage.text}"))
        node = TextNode(id_=passage.id or made, text=passage.text, metadata=metadata)
    return NodeWithScore(node=node, score=passage.score)


class LlamaIndexRetriever:
    """A LlamaIndex retriever as ours. `k` only cuts: how many nodes LlamaIndex looks for is set
    where its retriever is built (`similarity_top_k`); the log says once where that is less.

    Args:
        name: tells it from searches over other documents in an evaluation's records, which the
            name of its class does not.
        shown: reads a node as it shows itself, metadata and all, to language models ("llm", as
            `SGICCalibrator` does) or embedding models ("embed", as `DURReranker` does): for the
            fit of a calibration or a head. None: its bare text.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        *,
        name: str | None = None,
        shown: Literal["llm", "embed"] | None = None,
    ) -> None:
        self._retriever: BaseRetriever = checked_retriever(retriever, BaseRetriever)
        if shown not in ("llm", "embed", None):
            raise InvalidInput(f"shown must be 'llm', 'embed' or None, got {shown!r}.")
        self._shown, self._said = shown and MetadataMode(shown), False
        self.name: str = name or ":".join(filter(None, (type(retriever).__name__, shown)))

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages per query, as the retriever orders them; `InvalidInput` where one
        string stands for the queries."""
        found = [self._retriever.retrieve(query) for query in listed(queries, "queries")]
        return self._passages(found, k)

    async def asearch(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """As `search`."""
        asked = listed(queries, "queries")
        return self._passages(await amapped(partial(aretrieve, self._retriever), asked, most=8), k)

    def _passages(self, found: list[list[NodeWithScore]], k: int) -> list[list[Passage]]:
        most = getattr(self._retriever, "similarity_top_k", None)
        if isinstance(most, int) and most < k and not self._said:
            self._said = True
            _logger.warning(
                "%s looks for %d nodes a query, and %d are asked for; build it with "
                "index.as_retriever(similarity_top_k=%d)",
                *(type(self._retriever).__name__, most, k, k),
            )
        mode = self._shown
        read = partial(shown_passage, mode=mode) if mode else passage_of
        return [[read(node) for node in nodes[:k]] for nodes in found]


def retriever_of(retriever: Any) -> Retriever | None:
    """A LlamaIndex retriever wrapped, one of ours (or None) as it is."""
    if isinstance(retriever, BaseRetriever):
        return LlamaIndexRetriever(retriever)
    return checked_retriever(retriever, Retriever | None, EITHER_RETRIEVER)


def checked_retriever(value: Any, kind: Any, wanted: str = "a LlamaIndex BaseRetriever") -> Any:
    """The retriever itself, if it is a `kind`; else what to pass where an index came."""
    wanted += " (pass index.as_retriever())" * hasattr(value, "as_retriever")
    return checked(value, kind, "retriever", wanted)


class PassageRetriever(BaseRetriever):
    """Our `Retriever` as a LlamaIndex retriever of at most `k` nodes."""

    def __init__(self, retriever: Retriever, *, k: int = 5) -> None:
        wanted = "an ltrag_plugins.retrieval Retriever"
        self._retriever = checked(retriever, Retriever, "retriever", wanted)
        if not isinstance(k, Integral) or k < 1:
            raise InvalidInput(f"k must be at least 1, got {k!r}.")
        super().__init__()
        self._k = k

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        [found] = run(fetch(query_bundle.query_str, k=self._k), World(retriever=self._retriever))
        return [*map(node_of, found)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        flow = fetch(query_bundle.query_str, k=self._k)
        [found] = await arun(flow, World(retriever=self._retriever))
        return [*map(node_of, found)]


async def aretrieve(retriever: BaseRetriever, query: QueryType) -> list[NodeWithScore]:
    """Retrieve without blocking the loop: BaseRetriever's own `_aretrieve` runs sync code there."""
    if inherits(retriever, BaseRetriever, "_aretrieve"):
        return await asyncio.to_thread(retriever.retrieve, query)
    return await retriever.aretrieve(query)
