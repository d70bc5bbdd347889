"""A retriever that finds nothing where the model knows the answer."""

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle

from ltrag_plugins.gece.route import DecidingGate
from ltrag_plugins.llama_index.checks import demand
from ltrag_plugins.llama_index.events import gece_adecide, gece_decide
from ltrag_plugins.llama_index.retriever import aretrieve


class GECERetriever(BaseRetriever):
    """`[]` when the model knows, else what `retriever` finds, untouched.

    For chat engines and pipelines of your own, which answer without nodes. A
    `RetrieverQueryEngine` does not: given no nodes it says "Empty Response" without asking
    its model. In front of one, put `GECERouter`.
    """

    def __init__(
        self,
        gate: DecidingGate,
        retriever: BaseRetriever,
        *,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        """Put `gate` in front of `retriever`.

        Raises:
            InvalidInput: one of the two is something else.
        """
        demand(gate, DecidingGate, "gate", "a gate (GECEGate.fit or GECEGate.load gives one)")
        demand(retriever, BaseRetriever, "retriever", "a LlamaIndex BaseRetriever")
        super().__init__(callback_manager or retriever.callback_manager)
        self._gate = gate
        self._retriever = retriever

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"retriever": self._retriever}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        decision = gece_decide(self._gate, query_bundle.query_str)
        return self._retriever.retrieve(query_bundle) if decision.retrieve else []

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        decision = await gece_adecide(self._gate, query_bundle.query_str)
        return await aretrieve(self._retriever, query_bundle) if decision.retrieve else []
