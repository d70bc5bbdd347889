"""What DUR reads of a node, and what it gives back."""

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import MetadataMode, NodeWithScore

from ltrag_plugins.llama_index.checks import demand
from ltrag_plugins.llama_index.encoder import LlamaIndexEncoder
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.types import Passage

RETRIEVAL_SCORE = "retrieval_score"
"""Where in the metadata the score is that a node came with; shown to no model."""


def encoder_of(encoder: Encoder | BaseEmbedding) -> Encoder:
    """A LlamaIndex embedding model wrapped, an encoder of ours as it is.

    Raises:
        InvalidInput: it is neither.
    """
    if isinstance(encoder, BaseEmbedding):
        return LlamaIndexEncoder(encoder)
    wanted = "an ltrag_plugins Encoder (embedded_encoder(), ...) or a LlamaIndex BaseEmbedding"
    demand(encoder, Encoder, "encoder", wanted)
    return encoder


def embedded_passage(found: NodeWithScore) -> Passage:
    """The node as it shows itself to embedding models (`MetadataMode.EMBED`).

    Its title is put where a passage has its own, so that a node and the passage it was made
    from are read alike; other metadata stands before the text, as the node's templates say.
    """
    node, hidden = found.node, found.node.excluded_embed_metadata_keys
    title = "" if "title" in hidden else str(node.metadata.get("title") or "")
    untitled = node.model_copy(update={"excluded_embed_metadata_keys": [*hidden, "title"]})
    return Passage(untitled.get_content(MetadataMode.EMBED), id=node.node_id, title=title)


def rescored(found: NodeWithScore, score: float) -> NodeWithScore:
    """A copy with the new score; the old one goes to the copied node's metadata."""
    node = found.node
    update = {
        "metadata": {**node.metadata, RETRIEVAL_SCORE: found.score},
        "excluded_llm_metadata_keys": _with_ours(node.excluded_llm_metadata_keys),
        "excluded_embed_metadata_keys": _with_ours(node.excluded_embed_metadata_keys),
    }
    return found.model_copy(update={"node": node.model_copy(update=update), "score": score})


def _with_ours(keys: list[str]) -> list[str]:
    return [key for key in keys if key != RETRIEVAL_SCORE] + [RETRIEVAL_SCORE]
