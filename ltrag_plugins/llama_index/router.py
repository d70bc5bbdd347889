"""A query engine that retrieves only where the model does not know."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.schema import QueryBundle

from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.route import DecidingGate
from ltrag_plugins.llama_index.checks import demand
from ltrag_plugins.llama_index.events import gece_adecide, gece_decide
from ltrag_plugins.llama_index.llm import afree_text, free_text


class GECERouter(BaseQueryEngine):
    """Asks `query_engine` where the gate says retrieve, else answers directly.

    The direct answer is the gate's draft, at no further call, unless `direct` is given. The
    decision is in the response's `metadata["gece"]` and in a `GECEDecisionEvent`.
    """

    def __init__(
        self,
        gate: DecidingGate,
        query_engine: BaseQueryEngine,
        *,
        direct: BaseQueryEngine | BaseLLM | None = None,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        """Put `gate` in front of `query_engine`.

        Args:
            direct: a query engine or an LLM to answer in the draft's place.
            streaming: hand out the draft (or the LLM's answer) as a stream of one piece, for
                callers that read `response_gen`; the engine's own streams pass either way.
            callback_manager: the engine's, by default.

        Raises:
            InvalidInput: one of these is of another type.
        """
        demand(gate, DecidingGate, "gate", "a gate (GECEGate.fit or GECEGate.load gives one)")
        demand(query_engine, BaseQueryEngine, "query_engine", "a LlamaIndex BaseQueryEngine")
        kinds = (BaseQueryEngine, BaseLLM, type(None))
        demand(direct, kinds, "direct", "a LlamaIndex query engine or LLM, or None")
        super().__init__(callback_manager or query_engine.callback_manager)
        self._gate = gate
        self._query_engine = query_engine
        self._direct = direct
        self._streaming = streaming

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        decision = gece_decide(self._gate, query_bundle.query_str)
        engine = self._query_engine if decision.retrieve else self._direct
        if isinstance(engine, BaseQueryEngine):
            return _with(decision, engine.query(query_bundle))
        text = free_text(engine, query_bundle.query_str) if engine else decision.answer
        answer = StreamingResponse(_piece(text)) if self._streaming else Response(text)
        return _with(decision, answer)

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        decision = await gece_adecide(self._gate, query_bundle.query_str)
        engine = self._query_engine if decision.retrieve else self._direct
        if isinstance(engine, BaseQueryEngine):
            return _with(decision, await engine.aquery(query_bundle))
        text = await afree_text(engine, query_bundle.query_str) if engine else decision.answer
        answer = AsyncStreamingResponse(_apiece(text)) if self._streaming else Response(text)
        return _with(decision, answer)

    def _get_prompt_modules(self) -> PromptMixinType:
        direct = self._direct
        engines: PromptMixinType = {"query_engine": self._query_engine}
        return engines | ({"direct": direct} if isinstance(direct, BaseQueryEngine) else {})

    def update_prompts(self, prompts_dict: PromptDictType) -> None:
        """Update prompts under the keys of `get_prompts`.

        LlamaIndex's own method splits a key at every colon and fails on an engine's
        prompts, which lie two levels down.
        """
        below: defaultdict[str, PromptDictType] = defaultdict(dict)
        for key, prompt in prompts_dict.items():
            module, _, rest = key.partition(":")
            below[module][rest] = prompt
        modules = self._get_prompt_modules()
        for module, prompts in below.items():
            if module not in modules:
                raise ValueError(f"Module {module} not found.")
            modules[module].update_prompts(prompts)


def _with(decision: Decision, response: RESPONSE_TYPE) -> RESPONSE_TYPE:
    """The same response, stream and all, in a copy that carries the decision."""
    return replace(response, metadata={**(response.metadata or {}), "gece": decision.as_metadata()})


def _piece(text: str) -> Generator[str, None, None]:
    yield text


async def _apiece(text: str) -> AsyncGenerator[str, None]:
    yield text
