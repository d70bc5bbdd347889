"""Any encoder, its vectors kept: no text is encoded twice."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, Self, final

import numpy as np
from jaxtyping import Float32

from ltrag_plugins.errors import CacheUnreadable, ModelError
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.store import VectorStore


@final
class CachedEncoder:
    """An encoder whose vectors are kept in a SQLite file, by encoder name and text.

    Many threads and processes may share the file; it is never overwritten.

    Args:
        encoder: the encoder; its `name` must tell its weights from others'.
        path: the SQLite file; made, with its folder, where there is none.

    Raises:
        CacheUnreadable: the file is corrupt, no vector cache, or cannot be made.
    """

    def __init__(self, encoder: Encoder, path: str | os.PathLike[str]) -> None:
        self.encoder = encoder
        self.store = VectorStore(path)

    @property
    def name(self) -> str:
        """The wrapped encoder's: their vectors are the same."""
        return self.encoder.name

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """One row per text, in the order of the texts.

        Raises:
            ModelError: the encoder gave more or fewer rows than it was asked for, or NaN.
            CacheUnreadable: the file was damaged, or holds vectors of different lengths.
        """
        if not texts:
            return self.encoder.encode([])
        keys = [_key(self.name, text) for text in texts]
        known = self.store.get(keys)
        missing = {k: text for k, text in zip(keys, texts, strict=True) if k not in known}
        self._check_lengths(known.values())
        if missing:
            fresh = dict(zip(missing, self._encoded(list(missing.values())), strict=True))
            self._check_lengths([*known.values(), *fresh.values()])
            self.store.put(fresh)
            known |= fresh
        return np.stack([known[key] for key in keys])

    def _encoded(self, texts: list[str]) -> Float32[np.ndarray, "texts dim"]:
        rows = np.asarray(self.encoder.encode(texts), dtype=np.float32)
        if len(rows) != len(texts):
            raise ModelError(f"{self.name} gave {len(rows)} vectors for {len(texts)} texts")
        for text, row in zip(texts, rows, strict=True):
            if not np.isfinite(row).all():
                raise ModelError(
                    f"{self.name} gave NaN or infinity for {text[:40]!r}; nothing was kept"
                )
        return rows

    def _check_lengths(self, vectors: Iterable[np.ndarray]) -> None:
        lengths = {len(vector) for vector in vectors}
        if len(lengths) > 1:
            raise CacheUnreadable(
                f"the vectors of {self.name} in {self.store.path} are of different lengths "
                f"({sorted(lengths)}): the file is corrupt, or the encoder has changed under its "
                "name. It was left as it is; choose another path."
            )

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # travels to worker processes as what it was made from; open files do not
        return CachedEncoder, (self.encoder, self.store.path)

    def __repr__(self) -> str:
        return f"CachedEncoder({self.encoder!r}, {str(self.store.path)!r})"


def _key(name: str, text: str) -> bytes:
    return hashlib.sha256(json.dumps(["encode", name, text]).encode()).digest()
