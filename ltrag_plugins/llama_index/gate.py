"""A gate before a query engine or a retriever, and as a router's selector.

The decision has a span of its own, and LlamaIndex's instrumentation gets it as an event.
"""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from os import PathLike
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Literal

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.base_selector import BaseSelector, SelectorResult, SingleSelection
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.response import schema
from llama_index.core.bridge.pydantic import Field
from llama_index.core.evaluation.base import BaseEvaluator
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.prompts.mixin import PromptDictType, PromptMixin, PromptMixinType
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.tools import ToolMetadata
from llama_index_instrumentation import get_dispatcher

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.flow import arun, run
from ltrag_plugins.gece.decision import (
    NOT_TEXT,
    DecidingGate,
    Decision,
    checked_gate,
    guarded,
    warn_of_learning,
)
from ltrag_plugins.gece.monitor import Watch, WatchedRouter
from ltrag_plugins.gece.savings import PAUSE, Usage, awaited_in
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.llama_index.embeddings import encoder_of
from ltrag_plugins.llama_index.model import LlamaIndexLLM, model_of
from ltrag_plugins.llama_index.retriever import aretrieve, checked_retriever, node_of
from ltrag_plugins.llm.base import LLM, Encoder

_OnError = Literal["retrieve", "raise"]
EMPTY_RESPONSE = "Empty Response"
"""What LlamaIndex's engines say where nothing was found."""
_decided: ContextVar[tuple[Any, QueryBundle, Decision] | None]
_decided = ContextVar("gece_decided", default=None)
"""What a selector's gate decided of a query, for the direct tool: both run in one context."""
_dispatcher = get_dispatcher(__name__)
_logger = logging.getLogger(__name__)


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


def gece_decide(gate: DecidingGate, question: str, on_error: _OnError) -> Decision:
    """The gate's decision, in a span of its own that the draft's events hang under. A span keeps
    all arguments, so that it gets the question and not the gate's weights."""

    def decide(question: str) -> Decision:
        return _published(run(guarded(question, gate, on_error), gate.world))

    decide.__qualname__ = "gece_decide"  # the span's name
    return _dispatcher.span(decide)(question)


async def gece_adecide(gate: DecidingGate, question: str, on_error: _OnError) -> Decision:
    """As `gece_decide`."""

    async def decide(question: str) -> Decision:
        return _published(await arun(guarded(question, gate, on_error), gate.world))

    decide.__qualname__ = "gece_adecide"
    return await _dispatcher.span(decide)(question)


def question_in(query: QueryBundle) -> str:
    """The text, with a mark where it is about an image."""
    return query.query_str + NOT_TEXT * bool(query.image_path)


def _taken(gate: DecidingGate, query: QueryBundle) -> Decision | None:
    """The decision of the selector before, where it is this gate's and of this very query, and not
    of an earlier one in the same words; once."""
    held, decided, decision = _decided.get() or (None, None, None)
    if held is not gate or decided is not query:
        return None
    _decided.set(None)
    return decision


def _published(decision: Decision) -> Decision:
    fields = {name: getattr(decision, name) for name in GECEDecisionEvent.__annotations__}
    _dispatcher.event(GECEDecisionEvent(**fields))
    return decision


class NoPrompts(PromptMixin):
    """For components that have no prompts of LlamaIndex's kind."""

    def _get_prompts(self) -> PromptDictType:
        return {}

    def _update_prompts(self, prompts_dict: PromptDictType) -> None:
        if own := [key for key in prompts_dict if ":" not in key]:  # the others are its parts'
            raise InvalidInput(
                f"{type(self).__name__} has no LlamaIndex prompts to update, got {sorted(own)}. "
                "Ours are in GECESettings(prompt=) and SGICSettings(templates=PromptTemplates())."
            )


class GECERouter(WatchedRouter, BaseQueryEngine):
    """Asks `query_engine` where the gate says retrieve, else answers directly.

    The direct answer is the gate's draft, at no further call, unless `direct` is given. The
    decision is in the response's `metadata["gece"]` and in a `GECEDecisionEvent`.

    Args:
        direct: a query engine or an LLM to answer in the draft's place.
        streaming: hand out the draft (or the LLM's answer) as a stream of one piece, for callers
            that read `response_gen`; None: as the engine does. Its own streams pass either way.
        on_error: "retrieve": ask `query_engine` where the gate's model fails (see `guarded`); the
            decision says why. "raise": raise the `ModelError`.
        audit_rate: probability, 0 to 1, that the engine answers too, in the background, what was
            answered directly: `monitor` estimates from that how often the two agree.
        store: path of a SQLite file that keeps what was decided, for all processes and for
            `ltrag gate watch`; made where there is none.
        correct: judges audited answers that are longer than ten words, as for `fit`.
    """

    def __init__(
        self,
        gate: DecidingGate,
        query_engine: BaseQueryEngine,
        *,
        direct: BaseQueryEngine | BaseLLM | None = None,
        streaming: bool | None = None,
        on_error: _OnError = "retrieve",
        audit_rate: float = 0.0,
        store: str | PathLike[str] | None = None,
        correct: Callable[[str, str, str], Any] | LLM | BaseLLM | BaseEvaluator | None = None,
    ) -> None:
        self._gate = checked_gate(gate, on_error)
        self._on_error: _OnError = on_error
        wanted = "a LlamaIndex BaseQueryEngine"
        wanted += " (pass index.as_query_engine())" * hasattr(query_engine, "as_query_engine")
        self._query_engine = checked(query_engine, BaseQueryEngine, "query_engine", wanted)
        kinds = BaseQueryEngine | BaseLLM | None
        checked(direct, kinds, "direct", "a LlamaIndex query engine or LLM, or None")
        if (kind := _output_class(query_engine)) and not isinstance(direct, BaseQueryEngine):
            raise InvalidInput(
                f"query_engine answers in {kind.__name__} objects, and a model's draft is text. "
                "Give direct= a query engine that answers in them too."
            )
        super().__init__(query_engine.callback_manager)
        if isinstance(direct, BaseLLM):  # which answers under its own settings
            self._direct = LlamaIndexLLM(direct, keywords={}, logprobs=None)
        else:
            self._direct = direct
        self._streaming = _streams(query_engine) if streaming is None else streaming
        if correct is not None:
            from ltrag_plugins.llama_index.fitting import judge_of  # at work it needs none

            correct = judge_of(correct)
        self._watch = Watch(gate, audit_rate=audit_rate, store=store, correct=correct)

    @classmethod
    def fit(
        cls,
        query_engine: BaseQueryEngine,
        *,
        llm: LLM | BaseLLM | None = None,
        questions: Sequence[Any],
        target_rate: float | None = None,
        target_accuracy: float | Literal["always"] | None = None,
        budget: float | None = None,
        correct: Callable[[str, str, str], Any] | LLM | BaseLLM | BaseEvaluator | None = None,
        encoder: Encoder | BaseEmbedding | None = None,
        settings: GECESettings | None = None,
        max_concurrency: int = 4,
        **options: Any,
    ) -> "GECERouter":
        """A router before your query engine, from questions alone: each is drafted by the model and
        answered by the engine, and the gate learns where the two disagree; `router.gate.report`
        says what to expect.

        Args:
            llm: drafts; LlamaIndex's (None: the engine's own, else that of `Settings`) or ours.
            questions: at least 20, better 200: texts, `QueryBundle`s, `Question`s, or mappings with
                `question` and `answers` (a text or texts), which are accepted and then the labels.
            target_rate, target_accuracy, budget: as for `GECEGate.fit`; one of them.
            correct: judges answers longer than ten words: a function of question, answer and
                reference, a model to ask, or an evaluator such as `CorrectnessEvaluator`.
            encoder: embeddings of question and draft sharpen the gate.
            max_concurrency: most queries at once, from threads.
            options: as for `GECERouter`.

        Raises:
            CalibrationError, InvalidInput: as `GECEGate.fit`; the engine failed on more than half.
        """
        from ltrag_plugins.llama_index.fitting import fit_from_engine  # at work it needs none

        untried: Any = SimpleNamespace(world=None, deciding=guarded)  # for the gate to come
        cls(untried, query_engine, correct=correct, **options)  # a wrong one is refused at no cost
        gate = fit_from_engine(
            query_engine,
            model_of(_own_llm(query_engine) if llm is None else llm),
            questions,
            most=max_concurrency,
            correct=correct,
            encoder=None if encoder is None else encoder_of(encoder),
            target_rate=target_rate,
            target_accuracy=target_accuracy,
            budget=budget,
            settings=settings,
        )
        return cls(gate, query_engine, correct=correct, **options)

    @classmethod
    def learning(
        cls,
        query_engine: BaseQueryEngine,
        *,
        llm: LLM | BaseLLM | None = None,
        store: str | PathLike[str],
        warm_up: int = 100,
        audit_rate: float = 0.05,
        target_rate: float | None = None,
        target_accuracy: float | Literal["always"] | None = None,
        budget: float | None = None,
        encoder: Encoder | BaseEmbedding | None = None,
        settings: GECESettings | None = None,
        **options: Any,
    ) -> "GECERouter":
        """A router before your query engine that starts with nothing and learns while it serves;
        see `ltrag_plugins.langchain.GECERouter.learning`, whose arguments are these; `llm` as
        for `fit`.

        Raises:
            InvalidInput: a setting is out of range.
            ArtifactMismatch: the store was begun with another model or encoder.
            CacheUnreadable: the file is no decision store, or cannot be made.
        """
        from ltrag_plugins.gece.learning import LearningGate

        gate = LearningGate(
            model_of(_own_llm(query_engine) if llm is None else llm),
            store,
            warm_up=warm_up,
            encoder=None if encoder is None else encoder_of(encoder),
            target_rate=target_rate,
            target_accuracy=target_accuracy,
            budget=budget,
            settings=settings,
        )
        return cls(gate, query_engine, audit_rate=audit_rate, **options)

    @property
    def gate(self) -> DecidingGate:
        """What decides."""
        return self._gate

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """What the engine finds, whatever the gate would say."""
        return self._query_engine.retrieve(query_bundle)

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """As `retrieve`, in a thread where the engine has no async call for it."""
        awaited = getattr(self._query_engine, "aretrieve", None)  # BaseQueryEngine has none
        if awaited is None:
            return await asyncio.to_thread(self.retrieve, query_bundle)
        return await awaited(query_bundle)

    def synthesize(self, *args: Any, **kwargs: Any) -> schema.RESPONSE_TYPE:
        """The engine's answer from nodes, without the gate."""
        return self._query_engine.synthesize(*args, **kwargs)

    async def asynthesize(self, *args: Any, **kwargs: Any) -> schema.RESPONSE_TYPE:
        """As `synthesize`."""
        return await self._query_engine.asynthesize(*args, **kwargs)

    def _query(self, query_bundle: QueryBundle) -> schema.RESPONSE_TYPE:
        gate, question = self._gate, question_in(query_bundle)
        decision = _taken(gate, query_bundle) or gece_decide(gate, question, self._on_error)
        engine, began = self._query_engine if decision.retrieve else self._direct, perf_counter()
        if isinstance(engine, BaseQueryEngine):
            response = engine.query(query_bundle)
            return self._seen(decision, query_bundle, response, began=began)
        text = engine.generate([question])[0].text if engine else decision.answer
        response = written(text, streaming=self._streaming)
        return self._seen(decision, query_bundle, response)

    async def _aquery(self, query_bundle: QueryBundle) -> schema.RESPONSE_TYPE:
        gate, question, loop = self._gate, question_in(query_bundle), asyncio.get_running_loop()
        decision = _taken(gate, query_bundle) or await gece_adecide(gate, question, self._on_error)
        engine, began = self._query_engine if decision.retrieve else self._direct, perf_counter()
        if isinstance(engine, BaseQueryEngine):
            response = await engine.aquery(query_bundle)
            return self._seen(decision, query_bundle, response, loop, began)
        text = (await engine.agenerate([question]))[0].text if engine else decision.answer
        response = written(text, streaming=self._streaming, awaited=True)
        return self._seen(decision, query_bundle, response, loop)

    def _seen(
        self,
        decision: Decision,
        query: QueryBundle,
        response: schema.RESPONSE_TYPE,
        loop: asyncio.AbstractEventLoop | None = None,
        began: float | None = None,
    ) -> schema.RESPONSE_TYPE:
        """The response with its decision, of which the watch hears; of a stream when it ends, or is
        left."""

        def saw(text: str | None = None) -> None:
            learned = self._watch.learns and decision.retrieve
            seconds = None if began is None else perf_counter() - began
            cost = Usage(seconds=seconds) if learned else None
            retrieved = (lambda: text) if text is not None else None
            if not decision.retrieve:
                retrieved = partial(asked, self._query_engine, query, loop, PAUSE)
            self._watch.saw(decision, retrieved, cost)

        pieces = getattr(response, "response_gen", None)
        if decision.retrieve and pieces is not None and not getattr(response, "response_txt", None):
            teed: Any = _ateed if isinstance(response, schema.AsyncStreamingResponse) else _teed
            return _with(decision, response, response_gen=teed(pieces, saw))
        saw(answer_of(response) if decision.retrieve else None)
        return _with(decision, response)

    def _get_prompt_modules(self) -> PromptMixinType:
        direct = self._direct
        engines: PromptMixinType = {"query_engine": self._query_engine}
        return engines | ({"direct": direct} if isinstance(direct, BaseQueryEngine) else {})


def _parts(engine: Any) -> Iterator[Any]:
    """An engine and its synthesizer, and then those of the engine that it wraps."""
    while isinstance(engine, BaseQueryEngine):
        yield from (engine, getattr(engine, "_response_synthesizer", None))
        engine = getattr(engine, "_query_engine", None)


def _streams(engine: BaseQueryEngine) -> bool:
    """Whether an engine hands out streams; False where unknown."""
    found = (getattr(part, "_streaming", None) for part in _parts(engine))
    return next((streaming for streaming in found if isinstance(streaming, bool)), False)


def _synthesizer(engine: Any) -> BaseSynthesizer | None:
    """What writes an engine's answers, where that is known."""
    return next((part for part in _parts(engine) if isinstance(part, BaseSynthesizer)), None)


def _own_llm(engine: Any) -> LLM | BaseLLM | None:
    """The model that writes an engine's answers, as text; None where unknown."""
    made = _synthesizer(engine)
    if ours := getattr(made, "_calibrator", None):  # an SGICCalibrator's
        return ours.llm
    llm = getattr(made, "_llm", None)
    return llm.llm if isinstance(llm, StructuredLLM) else llm


def _output_class(engine: BaseQueryEngine) -> type | None:
    """The class of an engine's answers, where they are no text."""
    made = _synthesizer(engine)
    llm = getattr(made, "_llm", None)  # perhaps a StructuredLLM
    return getattr(made, "_output_cls", None) or getattr(llm, "output_cls", None)


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


def _teed(pieces: Iterable[str], done: Callable[[str | None], None]) -> Generator[str]:
    said, whole = "", None
    try:
        for piece in pieces:
            said += piece
            yield piece
        whole = said
    finally:
        done(whole)


async def _ateed(
    pieces: AsyncIterable[str], done: Callable[[str | None], None]
) -> AsyncGenerator[str]:
    said, whole = "", None
    try:
        async for piece in pieces:
            said += piece
            yield piece
        whole = said
    finally:
        done(whole)


def answer_of(response: schema.RESPONSE_TYPE) -> str:
    """The text of a response; "" where the engine found nothing."""
    said = str(response)  # "None" where there is none
    left = getattr(response, "response", getattr(response, "response_txt", None))
    return said if left and said != EMPTY_RESPONSE else ""


def asked(
    engine: BaseQueryEngine,
    query: QueryType,
    loop: asyncio.AbstractEventLoop | None,
    pause: float = 0.0,
) -> str:
    """The text of an engine's answer; one that can only be awaited is asked in the loop, while that
    runs."""
    try:
        return answer_of(engine.query(query))
    except NotImplementedError:
        if loop is None:
            raise

    async def whole() -> Any:  # a stream belongs to the loop that it began in
        response = await engine.aquery(query)
        streams = isinstance(response, schema.AsyncStreamingResponse)
        return await response.get_response() if streams else response

    return answer_of(awaited_in(loop, whole, pause))


def _with(decision: Decision, response: Any, **parts: Any) -> schema.RESPONSE_TYPE:
    """The same response, stream and all, in a copy that carries the decision."""
    told = {**(response.metadata or {}), "gece": decision.as_metadata()}
    return replace(response, metadata=told, **parts)


class _Selection(SelectorResult):
    """The tools, and what they were chosen by."""

    decision: Decision = Field(exclude=True, description="The gate's, with its draft.")


class GECESelector(NoPrompts, BaseSelector):
    """Chooses among the tools of a `RouterQueryEngine` or `RouterRetriever` by a gate's decision.

    The selection that comes out has the `decision`, with its draft; in a `RouterQueryEngine`'s
    response it is `metadata["selector_result"].decision`.

    Args:
        retrieving: place of the tool that retrieves, or places of several; None: all but `direct`.
        direct: place of the tool that answers without retrieval. A `GECERouter` with the same gate
            there answers with the draft, at no further call.
        among: chooses among several retrieving tools (`LLMSingleSelector(...)`, ...); None: the
            first is taken.
        on_error: "retrieve" or "raise", as for `GECERouter`.

    Raises:
        InvalidInput: the places overlap, or there are not so many tools.
    """

    def __init__(
        self,
        gate: DecidingGate,
        *,
        retrieving: int | Sequence[int] | None = None,
        direct: int = 1,
        among: BaseSelector | None = None,
        on_error: _OnError = "retrieve",
    ) -> None:
        self._gate = checked_gate(gate, on_error)
        self._on_error: _OnError = on_error
        warn_of_learning(gate, "GECESelector")
        self._among = checked(among, BaseSelector | None, "among", "a LlamaIndex selector, or None")
        places = [retrieving] if isinstance(retrieving, int) else [*(retrieving or ())]
        whole = all(isinstance(place, int) and place >= 0 for place in (direct, *places))
        if direct in places or not whole:
            raise InvalidInput(
                f"retrieving and direct must be places of different tools, counted from 0; got "
                f"{retrieving!r} and {direct!r}."
            )
        self._places, self._direct = places, direct

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"among": self._among} if self._among else {}

    def _select(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> SelectorResult:
        places = self._retrieving(choices)
        decision, theirs = gece_decide(self._gate, question_in(query), self._on_error), None
        if self._among and decision.retrieve:
            theirs = self._among.select([choices[place] for place in places], query)
        _decided.set(None if decision.retrieve else (self._gate, query, decision))
        return self._selection(decision, places, theirs)

    async def _aselect(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> SelectorResult:
        places = self._retrieving(choices)
        decision, theirs = await gece_adecide(self._gate, question_in(query), self._on_error), None
        if self._among and decision.retrieve:
            theirs = await self._among.aselect([choices[place] for place in places], query)
        _decided.set(None if decision.retrieve else (self._gate, query, decision))
        return self._selection(decision, places, theirs)

    def _retrieving(self, choices: Sequence[ToolMetadata]) -> list[int]:
        """Places of the tools that retrieve, if there are that many tools."""
        places = self._places or [i for i in range(len(choices)) if i != self._direct]
        if places and max(self._direct, *places) < len(choices):
            return places
        raise InvalidInput(
            f"GECESelector was given {len(choices)} tools, and wants one that answers directly at "
            f"place {self._direct} and retrieving ones at {self._places or 'the others'}."
        )

    def _selection(
        self, decision: Decision, places: list[int], theirs: SelectorResult | None
    ) -> SelectorResult:
        ours = SingleSelection(index=0, reason="")
        selections = [
            SingleSelection(
                index=places[one.index] if decision.retrieve else self._direct,
                reason=f"{decision.reason} {one.reason}".strip(),
            )
            for one in (theirs.selections if theirs else [ours])
        ]
        return _Selection(selections=selections, decision=decision)


class GECERetriever(BaseRetriever):
    """What `retriever` finds, untouched; where the model knows, one node with the gate's draft.

    For query engines, chat engines and agents, which go on from the draft as from any node. Its
    metadata has the decision under `gece`, which no model is shown; its score is 1, so that no
    cutoff drops it.

    Args:
        known: "nothing" gives `[]` where the model knows; LlamaIndex's engines then say "Empty
            Response".
        on_error: "retrieve" or "raise", as for `GECERouter`.
    """

    def __init__(
        self,
        gate: DecidingGate,
        retriever: BaseRetriever,
        *,
        known: Literal["draft", "nothing"] = "draft",
        on_error: _OnError = "retrieve",
    ) -> None:
        self._gate, self._known = checked_gate(gate, on_error), known
        self._on_error: _OnError = on_error
        warn_of_learning(gate, "GECERetriever")
        if known not in ("draft", "nothing"):
            raise InvalidInput(f"known must be 'draft' or 'nothing', got {known!r}.")
        self._retriever: BaseRetriever = checked_retriever(retriever, BaseRetriever)
        # which its own `__init__` sets, or its first search
        super().__init__(getattr(retriever, "callback_manager", None))

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"retriever": self._retriever}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        decision = gece_decide(self._gate, question_in(query_bundle), self._on_error)
        return self._retriever.retrieve(query_bundle) if decision.retrieve else self._of(decision)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        decision = await gece_adecide(self._gate, question_in(query_bundle), self._on_error)
        if decision.retrieve:
            return await aretrieve(self._retriever, query_bundle)
        return self._of(decision)

    def _of(self, decision: Decision) -> list[NodeWithScore]:
        if self._known == "nothing":
            return []
        found = node_of(replace(decision.as_passage(), score=1.0))
        found.node.excluded_llm_metadata_keys = found.node.excluded_embed_metadata_keys = ["gece"]
        return [found]
