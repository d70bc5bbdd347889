"""What SGIC reads of a node."""

from llama_index.core.schema import MetadataMode, NodeWithScore

from ltrag_plugins.types import Passage


def read_passage(found: NodeWithScore) -> Passage:
    """The node as it shows itself to language models (`MetadataMode.LLM`).

    Its title is put where a passage has its own, so that a node and the passage it was made
    from are read alike; other metadata stands before the text, as the node's templates say.
    """
    node, hidden = found.node, found.node.excluded_llm_metadata_keys
    title = "" if "title" in hidden else str(node.metadata.get("title") or "")
    untitled = node.model_copy(update={"excluded_llm_metadata_keys": [*hidden, "title"]})
    return Passage(
        untitled.get_content(MetadataMode.LLM),
        id=node.node_id,
        title=title,
        score=found.score,
        metadata=dict(node.metadata),
    )
