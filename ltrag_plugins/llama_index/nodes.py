"""LlamaIndex's nodes as passages, and passages as nodes."""

from uuid import NAMESPACE_OID, uuid5

from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

from ltrag_plugins.types import Passage


def passage_of(found: NodeWithScore) -> Passage:
    """The node's bare text, its id, its score and a copy of its metadata.

    The title is the metadata's `title`; other metadata stays beside the text, not in it.
    """
    return Passage(
        text=found.node.get_content(MetadataMode.NONE),
        id=found.node.node_id,
        title=str(found.node.metadata.get("title") or ""),
        score=found.score,
        metadata=dict(found.node.metadata),
    )


def node_of(passage: Passage) -> NodeWithScore:
    """A new node with the passage's text, title, metadata and score.

    A passage without an id gets one made from its title and text: LlamaIndex drops nodes
    whose ids repeat, so equal passages must have equal ids and others must not.
    """
    metadata = dict(passage.metadata) | ({"title": passage.title} if passage.title else {})
    made = str(uuid5(NAMESPACE_OID, f"{passage.title}\n{passage.text}"))
    node = TextNode(id_=passage.id or made, text=passage.text, metadata=metadata)
    return NodeWithScore(node=node, score=passage.score)
