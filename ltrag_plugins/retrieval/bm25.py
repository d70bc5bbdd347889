r"""BM25 over a list of passages.

.. math::
    s(q, d) = \sum_{w \in q} \ln\left(1 + \frac{N - n_w + 0.5}{n_w + 0.5}\right)
    \frac{f_{w,d} (k_1 + 1)}{f_{w,d} + k_1 (1 - b + b |d| / \overline{|d|})}

with n_w of N passages holding the word w, f of it in d. The idf is Lucene's, which is positive
for every word; the original's is negative for words in more than half of the passages.

Source: Robertson & Zaragoza, 2009; Kamphuis et al., ECIR 2020 (table 1, the variants' idf).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Literal, final, get_args

import numpy as np
from jaxtyping import Float64
from rank_bm25 import BM25Okapi

from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.retrieval.base import PassagePool
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Passage

_Engine = Literal["rank-bm25", "bm25s", "auto"]
_LARGE_POOL = 5_000


@final
class BM25Retriever(PassagePool):
    """Finds passages by the query's words; a `Retriever`. Title and text are indexed as `words`.
    Passages that share no word with the query are left out, so there may be fewer than `k`.

    Args:
        passages: the pool; at least one of them with words.
        k1: how fast repeated words stop counting, at least 0.
        b: how much long passages are held back, 0 to 1.
        engine: "rank-bm25" scores the whole pool at each query; "bm25s" (extra `fast`) looks scores
            up; "auto" takes bm25s, where it is installed, from 5,000 passages. All rank alike; the
            attribute `engine` tells which one is at work.

    Raises:
        InvalidInput: no passages, none with words, or settings out of range.
        MissingExtra: bm25s was asked for and is not installed.
    """

    def __init__(
        self,
        passages: Iterable[Passage],
        *,
        k1: float = 1.5,
        b: float = 0.75,
        engine: _Engine = "rank-bm25",
    ) -> None:
        super().__init__(passages, f"bm25:{k1:g}:{b:g}")
        documents = [words(f"{p.title} {p.text}") for p in self.passages]
        if not any(documents):
            got = f"{len(documents) or 'no'} passages and no word in them"
            raise InvalidInput(f"BM25Retriever got {got}; give it at least one passage with words")
        if k1 < 0 or not 0 <= b <= 1:
            raise InvalidInput(f"BM25 needs k1 >= 0 and b in [0, 1], got k1={k1} and b={b}")
        if engine not in get_args(_Engine):
            raise InvalidInput(f"engine must be one of {get_args(_Engine)}, got {engine!r}")
        if engine == "auto":
            large = len(documents) >= _LARGE_POOL and find_spec("bm25s") is not None
            engine = "bm25s" if large else "rank-bm25"
        self.engine = engine
        self._known = frozenset(word for document in documents for word in document)
        index = _bm25s if engine == "bm25s" else _LuceneIdf
        # at 0 rank-bm25 divides 0 by 0 for each word that a passage lacks
        self._index = index(documents, k1=k1 or 1e-300, b=b)

    def _scores(self, queries: Sequence[str]) -> Iterator[Float64[np.ndarray, " passages"]]:
        for query in queries:
            known = [word for word in words(query) if word in self._known]
            scores = self._index.get_scores(known) if known else np.zeros(len(self.passages))
            yield np.where(scores > 0, scores, -np.inf)


class _LuceneIdf(BM25Okapi):
    def _calc_idf(self, nd: dict[str, int]) -> None:
        n = self.corpus_size
        self.idf = {word: math.log(1 + (n - df + 0.5) / (df + 0.5)) for word, df in nd.items()}


def _bm25s(documents: list[list[str]], k1: float, b: float) -> Any:
    try:
        import bm25s  # an extra, wanted for large pools only
    except ImportError as error:
        raise missing_extra("bm25s", "fast") from error
    # ATIRE's term weight and Lucene's idf, in float64: rank-bm25's numbers to the last bit
    index = bm25s.BM25(k1=k1, b=b, method="atire", idf_method="lucene", dtype="float64")
    index.index(documents, show_progress=False)
    return index
