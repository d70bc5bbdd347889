"""BM25 scores through bm25s (extra `fast`): all scores are computed when the index is built."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from ltrag_plugins.errors import missing_extra

try:
    import bm25s
except ImportError as error:
    raise missing_extra("bm25s", "fast") from error


def scorer(documents: Sequence[list[str]], *, k1: float, b: float) -> "bm25s.BM25":
    """An index of the documents' words; see `scores`."""
    # ATIRE's term weight and Lucene's idf, in float64: rank-bm25's numbers to the last bit
    index = bm25s.BM25(k1=k1, b=b, method="atire", idf_method="lucene", dtype="float64")
    index.index(list(documents), show_progress=False)
    return index


def scores(index: "bm25s.BM25", query: list[str]) -> Float64[np.ndarray, " documents"]:
    """The query's score with each document."""
    return index.get_scores(query)
