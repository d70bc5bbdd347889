"""Our encoders as LangChain's embeddings, for its vector stores, and LangChain's as ours."""

from collections.abc import Sequence
from typing import final

import numpy as np
from langchain_core.embeddings import Embeddings

from ltrag_plugins.errors import checked
from ltrag_plugins.flow import wrap_provider_errors
from ltrag_plugins.langchain.model import model_name
from ltrag_plugins.llm.base import Encoder, embedded_rows, encoder_name, texts_to_embed


@final
class LtragEmbeddings(Embeddings):
    """An `Encoder` as a LangChain `Embeddings`; queries and documents are encoded alike."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder: Encoder = checked(encoder, Encoder, "encoder", "an ltrag_plugins Encoder")

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


@final
class LangChainEncoder:
    """Encodes with any `Embeddings`, by its `embed_documents` or `aembed_documents`.

    Args:
        name: what caches, heads and gates know it by; equal names must mean equal vectors.
    """

    def __init__(self, embeddings: Embeddings, *, name: str | None = None) -> None:
        self._embeddings = checked(embeddings, Embeddings, "embeddings", "LangChain Embeddings")
        self._name = name

    @property
    def name(self) -> str:
        """As given; else class, model name, and a digest of what else can change the vectors."""
        if self._name:
            return self._name
        name = f"langchain:{type(self._embeddings).__name__}:{model_name(self._embeddings)}"
        return encoder_name(self._embeddings, name)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """One row per text, float32, shape (texts, dim); no texts, shape (0, 0). A blank text is
        not sent, and its row is of zeros.

        Raises:
            ModelFailed: the embeddings' own call raised; its exception is the cause.
        """
        with wrap_provider_errors("encoder"):
            some = texts_to_embed(texts)
            return embedded_rows(texts, self._embeddings.embed_documents(some) if some else [])

    async def aencode(self, texts: Sequence[str]) -> np.ndarray:
        """As `encode`, by the embeddings' own async call (of LangChain's: a thread)."""
        with wrap_provider_errors("encoder"):
            some = texts_to_embed(texts)
            found = await self._embeddings.aembed_documents(some) if some else []
            return embedded_rows(texts, found)


def encoder_of(encoder: Encoder | Embeddings) -> Encoder:
    """LangChain embeddings wrapped, an encoder of ours as it is."""
    if isinstance(encoder, Embeddings):
        return LangChainEncoder(encoder)
    wanted = "an ltrag_plugins Encoder (embedded_encoder(), ...) or LangChain Embeddings"
    return checked(encoder, Encoder, "encoder", wanted)
