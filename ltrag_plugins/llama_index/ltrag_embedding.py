"""Our encoders as LlamaIndex's embedding models: for its indexes and vector stores."""

import asyncio
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import PrivateAttr

from ltrag_plugins.llama_index.checks import demand
from ltrag_plugins.llm.base import Encoder


class LtragEmbedding(BaseEmbedding):
    """An `Encoder` as a LlamaIndex embedding model; queries and texts are encoded alike.

    Raises:
        InvalidInput: it is no encoder.
    """

    _encoder: Encoder = PrivateAttr()

    def __init__(self, encoder: Encoder, **fields: Any) -> None:
        demand(encoder, Encoder, "encoder", "an Encoder")
        super().__init__(model_name=encoder.name, **fields)
        self._encoder = encoder

    @classmethod
    def class_name(cls) -> str:
        """As LlamaIndex calls it."""
        return "LtragEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._encoder.encode(texts).tolist() if texts else []

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)
