"""Any LlamaIndex embedding model as our encoder."""

from collections.abc import Sequence

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding

from ltrag_plugins.llama_index.checks import demand


class LlamaIndexEncoder:
    """A LlamaIndex embedding model as our `Encoder`; texts are embedded as texts, not queries."""

    def __init__(self, embedding: BaseEmbedding) -> None:
        """Wrap `embedding`.

        Raises:
            InvalidInput: it is no LlamaIndex embedding model.
        """
        demand(embedding, BaseEmbedding, "embedding", "a LlamaIndex BaseEmbedding")
        self._embedding = embedding

    @property
    def name(self) -> str:
        """The class and model name."""
        return f"{type(self._embedding).__name__}:{self._embedding.model_name}"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """One row per text, float32; shape (0, 0) for no texts."""
        rows = self._embedding.get_text_embedding_batch(list(texts))
        return np.asarray(rows, dtype=np.float32).reshape(len(rows), len(rows[0]) if rows else 0)
