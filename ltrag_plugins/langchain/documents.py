"""LangChain's `Document` to our `Passage` and back; nothing is lost, nothing is shared."""

from numbers import Real
from typing import Any

from langchain_core.documents import Document

from ltrag_plugins.types import Passage

SCORE_KEYS = ("relevance_score", "score")
"""Where LangChain's retrievers and compressors leave a score, the likeliest first."""


def passage_of(document: Document) -> Passage:
    """A document as a passage: its id kept, its metadata copied.

    The score is read from the metadata where it is a number under one of `SCORE_KEYS`, else
    it is None.
    """
    key = _score_key(document.metadata)
    title = document.metadata.get("title")
    return Passage(
        text=document.page_content,
        id=document.id or "",
        title=title if isinstance(title, str) else "",
        score=None if key is None else float(document.metadata[key]),
        metadata=dict(document.metadata),
    )


def document_of(passage: Passage) -> Document:
    """A passage as a new document; its title and score win over older ones in the metadata."""
    metadata = dict(passage.metadata)
    if passage.title:
        metadata["title"] = passage.title
    if passage.score is not None:
        metadata[_score_key(metadata) or SCORE_KEYS[0]] = passage.score
    return Document(id=passage.id or None, page_content=passage.text, metadata=metadata)


def _score_key(metadata: dict[str, Any]) -> str | None:
    for key in SCORE_KEYS:
        value = metadata.get(key)
        if isinstance(value, Real) and not isinstance(value, bool):
            return key
    return None
