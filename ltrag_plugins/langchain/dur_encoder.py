"""The encoder that a caller hands to a DUR component, as ours."""

from langchain_core.embeddings import Embeddings

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.langchain.encoder import LangChainEncoder
from ltrag_plugins.llm.base import Encoder


def encoder_of(encoder: Encoder | Embeddings) -> Encoder:
    """LangChain embeddings wrapped, an encoder of ours as it is.

    Raises:
        InvalidInput: it is neither.
    """
    if isinstance(encoder, Embeddings):
        return LangChainEncoder(encoder)
    if not isinstance(encoder, Encoder):
        raise InvalidInput(
            "encoder must be an ltrag_plugins Encoder (embedded_encoder(), ...) or a "
            f"langchain_core.embeddings.Embeddings, got {type(encoder).__name__} {encoder!r:.60}."
        )
    return encoder
