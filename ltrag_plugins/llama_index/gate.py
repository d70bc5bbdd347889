"""A gate before a query engine or a retriever, and as a router's selector.

The decision has a span of its own, and LlamaIndex's instrumentation gets it as an event.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.base_selector import BaseSelector, SelectorResult, SingleSelection
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.response import schema
from llama_index.core.callbacks import CallbackManager
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.prompts.mixin import PromptDictType, PromptMixin, PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.tools import ToolMetadata
from llama_index_instrumentation import get_dispatcher

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.gece.decision import DecidingGate, Decision
from ltrag_plugins.llama_index.model import LlamaIndexLLM
from ltrag_plugins.llama_index.retriever import aretrieve

_GATE = "a gate (GECEGate.fit or GECEGate.load gives one)"
_dispatcher = get_dispatcher(__name__)


class GECEDecisionEvent(BaseEvent):
    """A gate decided; the fields are those of `Decision`."""

    question: str
    retrieve: bool
    score: float
    probability: float
    tier: str
    reason: str

    @classmethod
    def class_name(cls) -> str:
        """The event's name in traces."""
        return "GECEDecisionEvent"


@_dispatcher.span
def gece_decide(gate: DecidingGate, question: str) -> Decision:
    """The gate's decision, in a span of its own that the draft's events hang under."""
    return _published(gate.decide(question))


@_dispatcher.span
async def gece_adecide(gate: DecidingGate, question: str) -> Decision:
    """As `gece_decide`."""
    return _published(await gate.adecide(question))


def _published(decision: Decision) -> Decision:
    fields = {name: getattr(decision, name) for name in GECEDecisionEvent.__annotations__}
    _dispatcher.event(GECEDecisionEvent(**fields))
    return decision


class NoPrompts(PromptMixin):
    """For components that have no prompts of LlamaIndex's kind."""

    def _get_prompts(self) -> PromptDictType:
        return {}

    def _update_prompts(self, prompts_dict: PromptDictType) -> None:
        pass


class GECERouter(BaseQueryEngine):
    """Asks `query_engine` where the gate says retrieve, else answers directly.

    The direct answer is the gate's draft, at no further call, unless `direct` is given. The
    decision is in the response's `metadata["gece"]` and in a `GECEDecisionEvent`.

    Args:
        direct: a query engine or an LLM to answer in the draft's place.
        streaming: hand out the draft (or the LLM's answer) as a stream of one piece, for callers
            that read `response_gen`; the engine's own streams pass either way.
        callback_manager: the engine's, by default.
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
        self._gate = checked(gate, DecidingGate, "gate", _GATE)
        wanted = "a LlamaIndex BaseQueryEngine"
        self._query_engine = checked(query_engine, BaseQueryEngine, "query_engine", wanted)
        kinds = BaseQueryEngine | BaseLLM | None
        checked(direct, kinds, "direct", "a LlamaIndex query engine or LLM, or None")
        super().__init__(callback_manager or query_engine.callback_manager)
        if isinstance(direct, BaseLLM):  # which answers under its own settings
            self._direct = LlamaIndexLLM(direct, keywords={}, logprobs=None)
        else:
            self._direct = direct
        self._streaming = streaming

    def _query(self, query_bundle: QueryBundle) -> schema.RESPONSE_TYPE:
        question = query_bundle.query_str
        decision = gece_decide(self._gate, question)
        engine = self._query_engine if decision.retrieve else self._direct
        if isinstance(engine, BaseQueryEngine):
            return _with(decision, engine.query(query_bundle))
        text = engine.generate([question])[0].text if engine else decision.answer
        return _with(decision, written(text, streaming=self._streaming))

    async def _aquery(self, query_bundle: QueryBundle) -> schema.RESPONSE_TYPE:
        question = query_bundle.query_str
        decision = await gece_adecide(self._gate, question)
        engine = self._query_engine if decision.retrieve else self._direct
        if isinstance(engine, BaseQueryEngine):
            return _with(decision, await engine.aquery(query_bundle))
        text = (await engine.agenerate([question]))[0].text if engine else decision.answer
        return _with(decision, written(text, streaming=self._streaming, awaited=True))

    def _get_prompt_modules(self) -> PromptMixinType:
        direct = self._direct
        engines: PromptMixinType = {"query_engine": self._query_engine}
        return engines | ({"direct": direct} if isinstance(direct, BaseQueryEngine) else {})

    def update_prompts(self, prompts_dict: PromptDictType) -> None:
        """Update prompts by the keys of `get_prompts`; LlamaIndex's own fails two levels down."""
        modules = self._get_prompt_modules()
        for key, prompt in prompts_dict.items():
            module, _, rest = key.partition(":")
            if module not in modules:
                raise ValueError(f"Module {module} not found.")
            modules[module].update_prompts({rest: prompt})


def written(
    text: str,
    sources: Sequence[NodeWithScore] = (),
    metadata: dict[str, Any] | None = None,
    *,
    streaming: bool,
    awaited: bool = False,
) -> schema.RESPONSE_TYPE:
    """The finished text as a response, or as a stream of one piece (to await) in its place."""

    async def pieces() -> AsyncGenerator[str, None]:
        yield text

    if streaming and awaited:
        return schema.AsyncStreamingResponse(pieces(), [*sources], metadata)
    if streaming:
        return schema.StreamingResponse((piece for piece in [text]), [*sources], metadata)
    return schema.Response(text, [*sources], metadata)


def _with(decision: Decision, response: schema.RESPONSE_TYPE) -> schema.RESPONSE_TYPE:
    """The same response, stream and all, in a copy that carries the decision."""
    return replace(response, metadata={**(response.metadata or {}), "gece": decision.as_metadata()})


class GECESelector(NoPrompts, BaseSelector):
    """Chooses between two tools of a `RouterQueryEngine` by the gate's decision.

    Args:
        retrieving: place (0 or 1) of the tool that retrieves.
        direct: place of the tool that answers without retrieval.
    """

    def __init__(self, gate: DecidingGate, *, retrieving: int = 0, direct: int = 1) -> None:
        self._gate = checked(gate, DecidingGate, "gate", _GATE)
        if {retrieving, direct} != {0, 1}:
            raise InvalidInput(
                f"retrieving and direct must be 0 and 1, got {retrieving}, {direct}."
            )
        self._places = {True: retrieving, False: direct}

    def _select(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> SelectorResult:
        question = _for_two(choices, query)
        return self._selection(gece_decide(self._gate, question))

    async def _aselect(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> SelectorResult:
        question = _for_two(choices, query)
        return self._selection(await gece_adecide(self._gate, question))

    def _selection(self, decision: Decision) -> SelectorResult:
        index = self._places[decision.retrieve]
        return SelectorResult(selections=[SingleSelection(index=index, reason=decision.reason)])


def _for_two(choices: Sequence[ToolMetadata], query: QueryBundle) -> str:
    """The question, where there are two choices."""
    if len(choices) == 2:
        return query.query_str
    raise InvalidInput(
        f"GECESelector chooses between two tools, one that retrieves and one that answers "
        f"directly; it was given {len(choices)}. Nest routers where there are more."
    )


class GECERetriever(BaseRetriever):
    """`[]` when the model knows, else what `retriever` finds, untouched.

    For chat engines and pipelines of your own, which answer without nodes. A
    `RetrieverQueryEngine` given none says "Empty Response"; in front of one, put `GECERouter`.
    """

    def __init__(
        self,
        gate: DecidingGate,
        retriever: BaseRetriever,
        *,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        self._gate = checked(gate, DecidingGate, "gate", _GATE)
        wanted = "a LlamaIndex BaseRetriever"
        self._retriever = checked(retriever, BaseRetriever, "retriever", wanted)
        super().__init__(callback_manager or retriever.callback_manager)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"retriever": self._retriever}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        decision = gece_decide(self._gate, query_bundle.query_str)
        return self._retriever.retrieve(query_bundle) if decision.retrieve else []

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        decision = await gece_adecide(self._gate, query_bundle.query_str)
        return await aretrieve(self._retriever, query_bundle) if decision.retrieve else []
