"""Dense retrieval over a list of passages: exact cosines, after Karpukhin et al., EMNLP 2020."""

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
from jaxtyping import Float

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.retrieval.base import PassagePool
from ltrag_plugins.types import Passage


@final
class DenseRetriever(PassagePool):
    """Finds passages by meaning, with their cosine, -1 to 1, as score; a `Retriever`.

    Every passage is encoded when the retriever is made; a `CachedEncoder` keeps the vectors.

    Args:
        passages: the pool, as title and text.
        encoder: of passages and queries alike.
        batch: passages encoded at once, at least 1.

    Raises:
        InvalidInput: there are no passages, or batch is below 1.
    """

    def __init__(self, passages: Iterable[Passage], encoder: Encoder, *, batch: int = 256) -> None:
        super().__init__(passages, f"dense:{encoder.name}")
        self._encoder = encoder
        if not self.passages or batch < 1:
            raise InvalidInput(
                f"dense retrieval needs passages and a batch of at least 1, got "
                f"{len(self.passages)} and {batch}"
            )
        texts = [f"{p.title}: {p.text}" if p.title else p.text for p in self.passages]
        parts = [encoder.encode(texts[i : i + batch]) for i in range(0, len(texts), batch)]
        self._vectors = unit_rows(np.concatenate([np.asarray(part) for part in parts]))

    def _scores(self, queries: Sequence[str]) -> Iterable[Float[np.ndarray, " passages"]]:
        if not queries:
            return []
        return unit_rows(np.asarray(self._encoder.encode(list(queries)))) @ self._vectors.T


def unit_rows(rows: Float[np.ndarray, "rows size"]) -> Float[np.ndarray, "rows size"]:
    """Each row at length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
