"""Our encoders as LlamaIndex's embedding models, for its indexes, and LlamaIndex's as ours."""

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseComponent
from pydantic import PrivateAttr

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.flow import wrap_provider_errors
from ltrag_plugins.llm.base import Encoder, embedded_rows, encoder_name, texts_to_embed

_CALLS = {f"{a}get_text_embedding{s}" for a in ("_", "_a") for s in ("", "s")}


def state_of(component: BaseComponent, needed: str) -> dict[str, Any]:
    """What is pickled of a component, which raises where its `needed` part cannot be. LlamaIndex
    takes what cannot be out of the very object; here out of a copy."""
    state = BaseComponent.__getstate__(component.model_copy())
    if needed not in {**state["__dict__"], **(state["__pydantic_private__"] or {})}:
        pickle.dumps(getattr(component, needed))
    return state


class LtragEmbedding(BaseEmbedding):
    """An `Encoder` as a LlamaIndex embedding model; queries and texts are encoded alike."""

    _encoder: Encoder = PrivateAttr()

    def __init__(self, encoder: Encoder, **fields: Any) -> None:
        checked(encoder, Encoder, "encoder", "an ltrag_plugins Encoder")
        super().__init__(**{**fields, "model_name": encoder.name})
        self._encoder = encoder

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self, "_encoder")

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


class LlamaIndexEncoder:
    """A LlamaIndex embedding model as our `Encoder`; texts are embedded as texts, not queries.

    Args:
        name: what caches, heads and gates know it by; equal names must mean equal vectors.
    """

    def __init__(self, embedding: BaseEmbedding, *, name: str | None = None) -> None:
        wanted, self._name = "a LlamaIndex BaseEmbedding", name
        self._embedding = checked(embedding, BaseEmbedding, "embedding", wanted)

    @property
    def name(self) -> str:
        """As given; else class, model name, and a digest of what else can change the vectors."""
        if self._name:
            return self._name
        name = f"{type(self._embedding).__name__}:{self._embedding.model_name}"
        return encoder_name(self._embedding, name)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """One row per text, float32; shape (0, 0) for no texts. A blank text is not sent, and its
        row is of zeros.

        Raises:
            ModelFailed: the model's own call raised; its exception is the cause.
        """
        with wrap_provider_errors("encoder"):
            found = self._embedding.get_text_embedding_batch(texts_to_embed(texts))
            return embedded_rows(texts, found)

    async def aencode(self, texts: Sequence[str]) -> np.ndarray:
        """As `encode`, by the model's own async call; a model that has none encodes in a thread."""
        # LlamaIndex's default blocks the loop; an inherited call may be that of another model
        kinds = [vars(kind).keys() & _CALLS for kind in type(self._embedding).__mro__]
        if not next(filter(None, kinds)) - {"_get_text_embedding", "_get_text_embeddings"}:
            return await asyncio.to_thread(self.encode, texts)
        with wrap_provider_errors("encoder"):
            found = await self._embedding.aget_text_embedding_batch(texts_to_embed(texts))
            return embedded_rows(texts, found)


def encoder_of(encoder: Encoder | BaseEmbedding | None) -> Encoder:
    """A LlamaIndex embedding model (None: that of `Settings`) wrapped, one of ours as it is."""
    try:
        encoder = Settings.embed_model if encoder is None else encoder
    except (ImportError, ValueError) as error:
        raise InvalidInput(f"this needs encoder=..., or Settings.embed_model: {error}") from error
    if isinstance(encoder, BaseEmbedding):
        return LlamaIndexEncoder(encoder)
    wanted = "an ltrag_plugins Encoder (embedded_encoder(), ...) or a LlamaIndex BaseEmbedding"
    return checked(encoder, Encoder, "encoder", wanted)
