"""Ways to find passages."""

from ltrag_plugins.retrieval.base import AsyncRetriever, Retriever

__all__ = ["AsyncRetriever", "Retriever"]
