"""Nodes in the order in which they help the model."""

from base64 import b64decode, b64encode
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import CallbackManager
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index_instrumentation import get_dispatcher

from ltrag_plugins.dur.ranker import DURRanker, HeadHolder, Ranked
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llama_index.embeddings import encoder_of, state_of
from ltrag_plugins.llama_index.retriever import shown_passage, with_scores
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.types import Passage

_RETRIEVAL_SCORE = "retrieval_score"  # in the metadata: the score that a node came with
_dispatcher = get_dispatcher(__name__)


class DURReranker(HeadHolder, BaseNodePostprocessor):
    """Reranks nodes by a trained head; for `node_postprocessors=[...]`.

    A node is read as it shows itself to embedding models. Those put out are new, with the score
    they came with in their metadata as `retrieval_score`, which no model is shown.

    Args:
        ranker: from `DURTrainer` or `DURRanker.load`; see also `from_pretrained`.
        encoder, untrained: "encoder" ranks by plain similarity of an encoder's (None: LlamaIndex's
            `Settings.embed_model`), without a head.
        top_n: most nodes, at least 1; None: all above sigma. Their scores sum to 1.
        sigma: leave out what has a score of at most this, 0 to 1; at 0 nothing.
    """

    ranker: DURRanker = Field(exclude=True, description="The trained head and its encoder.")
    top_n: int | None = Field(default=None, description="Most nodes; None: all above sigma.")
    sigma: float = Field(default=0.0, description="Leave out scores of at most this, 0 to 1.")
    _encoder_of = staticmethod(encoder_of)

    def __init__(
        self,
        ranker: DURRanker | None = None,
        *,
        encoder: Encoder | BaseEmbedding | None = None,
        untrained: Literal["encoder"] | None = None,
        top_n: int | None = None,
        sigma: float = 0.0,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        if ranker is None and untrained is not None:
            encoder = encoder_of(encoder)
        ranker = self._chosen(ranker, encoder, untrained, top_n=top_n, sigma=sigma)
        fields: dict[str, Any] = {"ranker": ranker, "top_n": top_n, "sigma": sigma}
        super().__init__(callback_manager=callback_manager or CallbackManager(), **fields)

    @classmethod
    def class_name(cls) -> str:
        """The class's name in LlamaIndex's traces."""
        return "DURReranker"

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self, "ranker")

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """The fields, and under `head` what `save` writes; `to_json` goes by it too."""
        with TemporaryDirectory() as folder:
            self.save(folder)
            files = sorted(Path(folder).iterdir())
            head = {file.name: b64encode(file.read_bytes()).decode() for file in files}
        return super().to_dict(**kwargs) | {"head": head}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """From what `to_dict` gave and `encoder=`; raises as `from_pretrained`."""
        given = {name: value for name, value in {**data, **kwargs}.items() if name != "class_name"}
        with TemporaryDirectory() as folder:
            for name, content in given.pop("head", {}).items():
                # a name is no path
                (Path(folder) / Path(name).name).write_bytes(b64decode(content))
            return cls.from_pretrained(folder, **given)

    def as_langchain(self) -> Any:
        """The same reranker as `ltrag_plugins.langchain.DURReranker` (else `MissingExtra`)."""
        # imported when asked for: this room works where LangChain is absent
        room = import_module("ltrag_plugins.langchain")
        return room.DURReranker(self.ranker, top_n=self.top_n, sigma=self.sigma)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        nodes = with_scores(nodes)
        query = self._begun(nodes, query_bundle)
        ranked = self.ranker.rank(query, _read(nodes), top_n=self.top_n, sigma=self.sigma)
        return _ended(nodes, ranked)

    @_dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        nodes = with_scores(nodes)  # theirs may change meanwhile
        query = self._begun(nodes, query_bundle)
        ranked = await self.ranker.arank(query, _read(nodes), top_n=self.top_n, sigma=self.sigma)
        return _ended(nodes, ranked)

    def _begun(self, nodes: list[NodeWithScore], query: QueryBundle | None) -> str:
        if query is None:
            remedy = "Pass query_bundle= or query_str= to postprocess_nodes."
            raise InvalidInput(f"DURReranker ranks nodes by a query, and was given none. {remedy}")
        most, name = self.top_n or len(nodes), self.ranker.encoder.name
        event = ReRankStartEvent(query=query, nodes=nodes, top_n=most, model_name=name)
        _dispatcher.event(event)
        return query.query_str


def _read(nodes: list[NodeWithScore]) -> list[Passage]:
    return [shown_passage(found, MetadataMode.EMBED) for found in nodes]


def _ended(nodes: list[NodeWithScore], ranked: list[Ranked]) -> list[NodeWithScore]:
    best = [_rescored(nodes[place.index], place.score) for place in ranked]
    _dispatcher.event(ReRankEndEvent(nodes=best))
    return best


def _rescored(found: NodeWithScore, score: float) -> NodeWithScore:
    """A copy with the new score; the old one goes to the copied node's metadata."""
    node = found.node
    update: dict[str, Any] = {"metadata": {**node.metadata, _RETRIEVAL_SCORE: found.score}}
    for key in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys"):
        update[key] = list(dict.fromkeys([*getattr(node, key), _RETRIEVAL_SCORE]))
    return found.model_copy(update={"node": node.model_copy(update=update), "score": score})
