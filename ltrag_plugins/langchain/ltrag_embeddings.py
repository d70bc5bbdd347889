"""Our encoders as LangChain's embeddings: for its vector stores."""

from typing import final

from langchain_core.embeddings import Embeddings

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llm.base import Encoder


@final
class LtragEmbeddings(Embeddings):
    """An `Encoder` as a LangChain `Embeddings`; queries and documents are encoded alike.

    Raises:
        InvalidInput: it is no encoder.
    """

    def __init__(self, encoder: Encoder) -> None:
        if not isinstance(encoder, Encoder):
            raise InvalidInput(f"LtragEmbeddings takes an Encoder, got {encoder!r:.60}.")
        self.encoder = encoder

    @property
    def model(self) -> str:
        """The encoder's name."""
        return self.encoder.name

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector a text."""
        return self.encoder.encode(texts).tolist() if texts else []

    def embed_query(self, text: str) -> list[float]:
        """The vector of one text."""
        return self.encoder.encode([text])[0].tolist()
