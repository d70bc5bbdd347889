"""Models of sentence-transformers as encoders."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from jaxtyping import Float32

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.llm.local.loading import chosen_device, fingerprint, quiet

try:
    from sentence_transformers import SentenceTransformer
except ImportError as error:
    raise missing_extra("sentence-transformers", "local") from error


@final
class SentenceTransformerEncoder:
    """Texts to vectors of length 1; an `Encoder`. Calls from several threads take turns.

    Texts longer than the model reads are cut at its limit, as sentence-transformers does.

    Args:
        model: the model; it is not changed.
        batch_size: texts computed at once.
        label: what `name` starts with.
    """

    def __init__(
        self, model: SentenceTransformer, *, batch_size: int = 32, label: str = "encoder"
    ) -> None:
        self.model = model
        self._batch_size = batch_size
        self._label = label
        self._name: str | None = None
        self._lock = threading.Lock()

    @classmethod
    def load(cls, source: str | Path, *, device: str = "auto", label: str | None = None) -> Self:
        """From a folder or a hub name; "auto" takes CUDA if there is one, else MPS, else CPU."""
        with quiet():
            model = SentenceTransformer(str(source), device=str(chosen_device(device)))
        return cls(model.eval(), label=label or Path(source).name)

    @property
    def name(self) -> str:
        """Label and fingerprint of the weights."""
        if self._name is None:
            self._name = f"{self._label}@{fingerprint(self.model)}"
        return self._name

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        size: Any = self.model.get_embedding_dimension()
        return int(size)

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """One row of length 1 for each text, in the order of the texts."""
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        with self._lock:
            rows: Any = self.model.encode(
                list(texts),
                batch_size=self._batch_size,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return rows.astype(np.float32, copy=False)

    def __repr__(self) -> str:
        return f"SentenceTransformerEncoder({self._label!r})"
