"""Our retrievers as LangChain's."""

import asyncio

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from ltrag_plugins.langchain.documents import document_of
from ltrag_plugins.retrieval.base import AsyncRetriever, Retriever


class PassageRetriever(BaseRetriever):
    """Our `Retriever` (BM25 over passages, ...) as a LangChain retriever."""

    retriever: Retriever
    """The retriever; keyword, as all fields."""
    k: int = 4
    """Most documents to return, also as `invoke(query, k=...)`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        [found] = self.retriever.search([query], self.k if k is None else k)
        return [document_of(passage) for passage in found]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        k = self.k if k is None else k
        if isinstance(self.retriever, AsyncRetriever):
            [found] = await self.retriever.asearch([query], k)
        else:
            [found] = await asyncio.to_thread(self.retriever.search, [query], k)
        return [document_of(passage) for passage in found]
