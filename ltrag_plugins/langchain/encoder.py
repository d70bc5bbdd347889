"""Any LangChain embedding model as ours."""

from collections.abc import Sequence
from typing import final

import numpy as np
from langchain_core.embeddings import Embeddings

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.langchain.names import model_name


@final
class LangChainEncoder:
    """Encodes with any `Embeddings`, by its `embed_documents`."""

    def __init__(self, embeddings: Embeddings) -> None:
        if not isinstance(embeddings, Embeddings):
            raise InvalidInput(
                "LangChainEncoder takes a langchain_core.embeddings.Embeddings, "
                f"got {embeddings!r:.60}."
            )
        self._embeddings = embeddings

    @property
    def name(self) -> str:
        """Class and model name of the embeddings."""
        return f"langchain:{type(self._embeddings).__name__}:{model_name(self._embeddings)}"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """One row per text, float32, shape (texts, dim); no texts, shape (0, 0)."""
        rows = self._embeddings.embed_documents(list(texts)) if texts else []
        return np.asarray(rows, dtype=np.float32).reshape(len(rows), -1 if rows else 0)
