"""Dense retrieval over a list of passages: exact cosines, after Karpukhin et al., EMNLP 2020."""

from collections.abc import Iterable, Iterator, Sequence
from typing import final

import numpy as np
from jaxtyping import Float

from ltrag_plugins.errors import InvalidInput, ModelError
from ltrag_plugins.llm.base import Encoder, checked_vectors
from ltrag_plugins.retrieval.base import PassagePool
from ltrag_plugins.types import Passage

_BATCH = 256  # texts encoded at once, and rows of scores held


@final
class DenseRetriever(PassagePool):
    """Finds passages by meaning, with their cosine, -1 to 1, as score; a `Retriever`. Every passage
    (at least one, or `InvalidInput` is raised) is encoded, as title and text, when the retriever is
    made; a `CachedEncoder` keeps the vectors."""

    def __init__(self, passages: Iterable[Passage], encoder: Encoder) -> None:
        super().__init__(passages, f"dense:{encoder.name}")
        self._encoder = encoder
        if not self.passages:
            raise InvalidInput("dense retrieval needs at least one passage, got none")
        texts = [f"{p.title}: {p.text}" if p.title else p.text for p in self.passages]
        self._vectors = np.concatenate([*self._encoded(texts)])

    def _scores(self, queries: Sequence[str]) -> Iterable[Float[np.ndarray, " passages"]]:
        for vectors in self._encoded(list(queries)):
            yield from vectors @ self._vectors.T

    def _encoded(self, texts: list[str]) -> Iterator[Float[np.ndarray, "texts size"]]:
        """Their vectors, at length 1, in parts of `_BATCH`."""
        for start in range(0, len(texts), _BATCH):
            some = texts[start : start + _BATCH]
            vectors = self._encoder.encode(some)
            yield unit_rows(checked_vectors(vectors, len(some), self._encoder.name))


def unit_rows(rows: Float[np.ndarray, "rows size"]) -> Float[np.ndarray, "rows size"]:
    """Each row at length 1; a row of zeros stays. Float16, in which the squares of a length above
    256 are infinite, becomes float32."""
    rows = np.asarray(finite_rows(rows))
    rows = rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def finite_rows(rows: Float[np.ndarray, "rows size"]) -> Float[np.ndarray, "rows size"]:
    """The vectors, if they are numbers."""
    if not np.isfinite(rows).all():
        why = "the encoder gave NaN or infinity for a text. Check its weights"
        raise ModelError(f"{why}, and that it was not run in a precision too low for it.")
    return rows
