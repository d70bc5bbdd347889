"""A retriever that finds nothing where the model already knows."""

from typing import Annotated, Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from pydantic import BeforeValidator, ConfigDict

from ltrag_plugins.gece.route import DecidingGate
from ltrag_plugins.langchain.gate import GateStep, checked_gate, told
from ltrag_plugins.langchain.retriever import asking_for, checked_k


class GECERetriever(BaseRetriever):
    """Asks the gate first: `[]` when the model knows, else the inner retriever's documents.

    For chains that write their own prompt from what was found. Where the draft itself should
    be the answer, take `GECERouter`: here it is paid for and not used.
    """

    gate: Annotated[DecidingGate, BeforeValidator(checked_gate)]
    """Decides; a fitted `ltrag_plugins.gece.GECEGate`."""
    retriever: Runnable[str, list[Document]]
    """Finds the documents; a `BaseRetriever` or any Runnable from a query to documents."""
    k: int | None = None
    """Most documents to return, also as `invoke(query, k=...)`; None leaves it to the inner
    retriever. It is asked for as many where it can be (see `asking_for`)."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        k = checked_k(self.k if k is None else k, least=0)
        config: Any = {"callbacks": run_manager.get_child()}
        decision = GateStep(self.gate).invoke(query, config).decision
        if not decision.retrieve:
            return []
        return asking_for(self.retriever, k).invoke(query, told(config, decision))[:k]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        k = checked_k(self.k if k is None else k, least=0)
        config: Any = {"callbacks": run_manager.get_child()}
        decision = (await GateStep(self.gate).ainvoke(query, config)).decision
        if not decision.retrieve:
            return []
        return (await asking_for(self.retriever, k).ainvoke(query, told(config, decision)))[:k]
