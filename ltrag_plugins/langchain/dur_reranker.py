"""Documents in the order in which they help the model."""

import asyncio
from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, Self

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from pydantic import ConfigDict, Field

from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.selecting import chosen_ranker
from ltrag_plugins.langchain.documents import SCORE_KEYS, passage_of
from ltrag_plugins.langchain.dur_encoder import encoder_of
from ltrag_plugins.llm.base import Encoder


class DURReranker(BaseDocumentCompressor):
    """Reranks documents by a trained head, with the score under `relevance_score`.

    A document is read as its title (metadata `title`) and its text, as in training. The
    documents put out are new ones; ids and other metadata are kept.

    Args:
        ranker: from `DURTrainer` or `DURRanker.load`; see also `from_pretrained`.
        encoder: with `untrained="encoder"`, what to rank by; an `Encoder` of ours, or LangChain
            embeddings.
        untrained: "encoder" ranks by plain similarity, without a trained head.
        top_n: most documents to put out, at least 1; None: all that are above sigma.
        sigma: documents with a score of at most this are left out, 0 to 1; at 0 none is. The
            scores of one call sum to 1.

    Raises:
        InvalidInput: there is no trained head (the message has the command that trains one),
            or a value is out of its range.
    """

    ranker: DURRanker = Field(exclude=True)
    top_n: int | None = None
    sigma: float = 0.0

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __init__(
        self,
        ranker: DURRanker | None = None,
        *,
        encoder: Encoder | Embeddings | None = None,
        untrained: Literal["encoder"] | None = None,
        top_n: int | None = None,
        sigma: float = 0.0,
    ) -> None:
        ours = None if encoder is None else encoder_of(encoder)
        ranker = chosen_ranker(ranker, ours, untrained, top_n=top_n, sigma=sigma)
        fields: dict[str, Any] = {"ranker": ranker, "top_n": top_n, "sigma": sigma}
        super().__init__(**fields)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike[str],
        *,
        encoder: Encoder | Embeddings,
        top_n: int | None = None,
        sigma: float = 0.0,
    ) -> Self:
        """With the head that `save`, `DURRanker.save` or `ltrag dur train` wrote.

        Raises:
            UnreadableArtifact: missing, incomplete or tampered with.
            ArtifactMismatch: trained with another encoder.
        """
        ranker = DURRanker.load(folder, encoder=encoder_of(encoder))
        return cls(ranker, top_n=top_n, sigma=sigma)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the head; `top_n` and `sigma` are not part of it."""
        self.ranker.save(folder)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """New documents, best first, each with its score (0 to 1) as `relevance_score`.

        Raises:
            EmptyQuestion: the query has no words.
        """
        passages = [passage_of(document) for document in documents]
        ranked = self.ranker.rank(query, passages, top_n=self.top_n, sigma=self.sigma)
        return [_rescored(documents[place.index], place.score) for place in ranked]

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """As `compress_documents`; the encoder computes in a thread, not on the event loop."""
        return await asyncio.to_thread(self.compress_documents, list(documents), query)


def _rescored(document: Document, score: float) -> Document:
    """A copy whose score is the new one, whatever its metadata held."""
    return document.model_copy(update={"metadata": {**document.metadata, SCORE_KEYS[0]: score}})
