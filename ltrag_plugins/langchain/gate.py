"""A gate before any chain, on a graph's edge, or before a retriever.

The gate's decision is a run of its own (GECEGate), which callbacks and traces can see, and
metadata `gece` of every run after it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from os import PathLike
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun as AsyncRetrieverRun
from langchain_core.callbacks import CallbackManagerForRetrieverRun as RetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompt_values import PromptValue, StringPromptValue
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.base import RunnableLike, coerce_to_runnable
from langchain_core.runnables.config import (
    ensure_config,
    merge_configs,
    patch_config,
    var_child_runnable_config,
)
from langchain_core.runnables.graph import Graph
from langchain_core.runnables.utils import AddableDict
from pydantic import BeforeValidator, ConfigDict, create_model

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow
from ltrag_plugins.gece.decision import (
    DecidingGate,
    Decision,
    checked_gate,
    guarded,
    warn_of_learning,
)
from ltrag_plugins.gece.monitor import Watch, WatchedRouter
from ltrag_plugins.gece.savings import PAUSE, awaited_in
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.langchain.component import (
    Asked,
    Asking,
    Component,
    FlowRunnable,
    Shape,
    conversation,
    history_ids,
    in_graph,
    plain,
)
from ltrag_plugins.langchain.embeddings import encoder_of
from ltrag_plugins.langchain.model import model_of, own_call, unbound
from ltrag_plugins.langchain.retriever import asking_for, checked_k, document_of, documents_in
from ltrag_plugins.llm.base import LLM, Encoder

_logger = logging.getLogger(__name__)
_OnError = Literal["retrieve", "raise"]


def _gate_step(
    gate: DecidingGate, asking: Asking, on_error: _OnError, *, searches: bool = False
) -> FlowRunnable:
    """Question in, verdict out; a run named GECEGate, the model's runs its children."""
    checked_gate(gate, on_error)

    def flow(asked: Asked) -> Flow[Decision]:
        how: Any = {"history": asked.history, "failed": asked.failed, "searches": searches}
        return guarded(asked.question, gate, on_error, **how)

    asking = replace(asking, on_error=on_error)
    return FlowRunnable(flow, gate.world, asking, _Verdict, "GECEGate")


class _Verdict(dict[str, Any]):
    """The decision as plain values, for traces, with the `Decision` itself at hand."""

    def __init__(self, decision: Decision, *_: Any) -> None:
        super().__init__(decision.as_metadata())
        self.decision = decision

    def with_decision_metadata(self, config: RunnableConfig) -> RunnableConfig:
        """The config for what follows the decision."""
        return {**config, "metadata": {**config.get("metadata", {}), "gece": {**self}}}

    @property
    def draft(self) -> "_Draft":
        """A model that replies with the draft."""
        said = {"asked": self.decision.question, "text": self.decision.answer}
        return _DRAFT.model_copy(update={**said, "about": {**self}})

    @property
    def document(self) -> Document:
        """The draft in a document's place."""
        return document_of(self.decision.as_passage())


class _Draft(BaseChatModel):
    """Replies with the draft: streams and traces hear it as they hear a chain's own model."""

    asked: str = ""
    text: str = ""
    about: Any = None
    cache: Any = False

    @property
    def _llm_type(self) -> str:
        return "ltrag-draft"

    def _convert_input(self, model_input: Any) -> PromptValue:
        return StringPromptValue(text=self.asked)  # any input of a chain will do

    @property
    def _message(self) -> AIMessage:
        return AIMessage(self.text, response_metadata={"gece": self.about})

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        """The draft; a run of its own, at 0.1 ms, where a callback listens."""
        return super().invoke(input, config, **kwargs) if _heard(config) else self._message

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AIMessage:
        """As `invoke`."""
        return await super().ainvoke(input, config, **kwargs) if _heard(config) else self._message

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._message)])

    async def _agenerate(self, *_: Any, **__: Any) -> ChatResult:
        return self._generate()

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        told = self._message.response_metadata
        chunk = AIMessageChunk(content=self.text, response_metadata=told, chunk_position="last")
        yield ChatGenerationChunk(message=chunk)


def _heard(config: RunnableConfig | None) -> bool:
    return bool(getattr((config or {}).get("callbacks"), "handlers", True))


_DRAFT = _Draft(name="GECEDraft")
_DRAFT._serialized  # noqa: B018 (LangChain describes a model once, and its copies keep it)


class GECERouter(WatchedRouter, Component):
    """Sends a question to the retrieving chain, or answers it with the gate's own draft.

    In `batch` the gate's model calls are merged into one; `abatch` runs side by side. Arguments
    beyond the config go to the chosen chain.

    The gate asks for the draft as its `GECESettings` say (`prompt`: a short answer, one line;
    `max_tokens`: 24; `stop`). For another direct answer (longer, in your voice) give `direct`: your
    chain without its retriever.

    Args:
        gate: decides; a fitted `ltrag_plugins.gece.GECEGate`.
        retrieving: the chain for questions that need retrieval; gets the original input.
        direct: the chain for the others; None: the draft, at no further call.
        question_key: where the question is in a mapping (see `conversation_of`).
        return_decision: put out `{"output": ..., "decision": Decision}`; in a node of LangGraph the
            decision is a plain dict, as its checkpointers want it.
        answer: the shape of the draft. "auto": the one that the retrieving chain declares; else, of
            a graph's state, a state; else what the chain gave at an earlier call; else text.
            "text"; "message", an AIMessage; a key of a mapping that has the input's entries too
            ("messages": a graph's state); or a function from the `Decision`. As an entry of a
            graph's state the draft is kept in the thread of the call.
        condense: how a follow-up is read. True: the gate's model rewrites it as a question that
            stands alone; a Runnable from the input to the question; None: as it is. A single
            question costs no call.
        on_error: where the gate's model, or a Runnable as `condense`, fails, "retrieve" asks the
            chain, and the decision says why; "raise" raises.
        audit_rate: probability, 0 to 1, that the chain answers too, in the background, what was
            answered directly: `monitor` estimates from that how often the two agree. It gets the
            call's arguments and `configurable`, with a `thread_id` and `session_id` of its own.
            Not for a chain that does more than answer.
        store: path of a SQLite file that keeps what was decided, for all processes and for
            `ltrag gate watch`; made where there is none.
        correct: judges audited answers that are longer than ten words, as for `fit`.

    Raises:
        EmptyQuestion, InvalidInput: in a call; there is no question that can be asked.
        ModelError: in a call, with on_error="raise". What the chains raise comes as it is.
    """

    gate: DecidingGate
    retrieving: Runnable[Any, Any]
    direct: Runnable[Any, Any] | None
    return_decision: bool

    def __init__(
        self,
        gate: DecidingGate,
        retrieving: RunnableLike[Any, Any],
        direct: RunnableLike[Any, Any] | None = None,
        *,
        question_key: str = "question",
        return_decision: bool = False,
        answer: str | Callable[[Decision], Any] = "auto",
        condense: bool | Runnable[Any, Any] | None = True,
        on_error: _OnError = "retrieve",
        name: str | None = None,
        audit_rate: float = 0.0,
        store: str | PathLike[str] | None = None,
        correct: Callable[[str, str, str], Any] | LLM | Runnable[Any, Any] | None = None,
    ) -> None:
        self._gate = _gate_step(gate, Asking(question_key, condense), on_error)
        self.gate, self.retrieving = gate, _runnable(retrieving, "retrieving")
        self.direct = None if direct is None else _runnable(direct, "direct")
        self.return_decision, self.name = return_decision, name
        self._shape, self._answer, self._awaited = Shape(answer, self.retrieving), answer, False
        if self.direct is None:
            self._shape.check()
        keeps = getattr(unbound(self.retrieving), "checkpointer", self._shape.is_graph)  # a server
        if gate.world is not None and keeps and not (direct is None and self._shape.in_state):
            _logger.warning(
                "the graph keeps its conversations (a checkpointer, or a server), but what this "
                "router answers without it is in none of its threads: only drafts are (no direct="
                "), as an entry of the state (answer='auto' or its key) of a StateGraph here"
            )
        if gate.world is not None and history_ids(self.retrieving):
            _logger.warning(
                "the chain keeps a history that does not get what this router answers without it, "
                "and that the gate does not read; put the RunnableWithMessageHistory around the "
                "router"
            )
        if correct is not None:
            from ltrag_plugins.langchain.fitting import judge_of  # at work a router needs none

            correct = judge_of(correct)
        self._watch = Watch(gate, audit_rate=audit_rate, store=store, correct=correct)

    @classmethod
    def fit(
        cls,
        chain: RunnableLike[Any, Any],
        *,
        llm: LLM | Runnable[Any, Any],
        questions: Sequence[Any],
        target_rate: float | None = None,
        target_accuracy: float | Literal["always"] | None = None,
        budget: float | None = None,
        correct: Callable[[str, str, str], Any] | LLM | Runnable[Any, Any] | None = None,
        encoder: Encoder | Embeddings | None = None,
        settings: GECESettings | None = None,
        max_concurrency: int = 8,
        question_key: str = "question",
        condense: bool | Runnable[Any, Any] | None = True,
        answer: str | Callable[[Decision], Any] = "auto",
        **options: Any,
    ) -> "GECERouter":
        """A router before your chain, from questions alone: each is drafted by the model and
        answered by the chain, and the gate learns where the two disagree; `router.gate.report` says
        what to expect.

        Args:
            chain: answers with retrieval; gets each question as in production.
            llm: drafts; LangChain's or ours.
            questions: at least 20, better 200: texts, messages, inputs of the chain, `Question`s. A
                mapping's `answers` (a text or texts) are accepted answers, and then the labels.
            target_rate, target_accuracy, budget: as for `GECEGate.fit`; one of them.
            correct: judges answers longer than ten words: a function of question, answer and
                reference; a model to ask; or a Runnable that takes a mapping of the three and
                gives True or False, a number from 0 to 1, or yes or no, by itself or under
                "correct", "score" or "value". Where it fails, words are compared.
            encoder: embeddings of question and draft sharpen the gate.
            max_concurrency: most runs of the chain at once.
            question_key, condense, answer, options: as for `GECERouter`.

        Raises:
            CalibrationError, InvalidInput: as `GECEGate.fit`; the chain failed on more than half.
        """
        from ltrag_plugins.langchain.fitting import fit_from_chain  # at work a router needs none

        chain = _runnable(chain, "chain")
        untried: Any = SimpleNamespace(world=None, deciding=guarded)  # for the gate to come
        how: dict[str, Any] = {"condense": condense, "answer": answer, "correct": correct}
        how |= {"question_key": question_key, **options}
        tried = cls(untried, chain, **how)  # what is wrong with these is refused before it costs
        gate, example = fit_from_chain(
            chain,
            model_of(llm),
            questions,
            asking=Asking(question_key, condense),
            answer=answer,
            check=None if tried.direct else tried._shape.check,
            most=max_concurrency,
            correct=correct,
            encoder=None if encoder is None else encoder_of(encoder),
            target_rate=target_rate,
            target_accuracy=target_accuracy,
            budget=budget,
            settings=settings,
        )
        router = cls(gate, chain, **how)
        router._shape.note(example)
        return router

    @classmethod
    def learning(
        cls,
        chain: RunnableLike[Any, Any],
        *,
        llm: LLM | Runnable[Any, Any],
        store: str | PathLike[str],
        warm_up: int = 100,
        audit_rate: float = 0.05,
        target_rate: float | None = None,
        target_accuracy: float | Literal["always"] | None = None,
        budget: float | None = None,
        encoder: Encoder | Embeddings | None = None,
        settings: GECESettings | None = None,
        **options: Any,
    ) -> "GECERouter":
        """A router before your chain that starts with nothing and learns while it serves.

        At first everything retrieves. In the background the model drafts an answer to each
        question too, which is compared with the chain's. After `warm_up` questions, and again each
        time that half as many more are known, a gate is fitted, in a process of its own; it decides
        from the moment on that its report allows: `router.monitor` says how far that is. From then
        on a random share of the questions is compared, and a gate that no longer holds is dropped.
        No answer waits for any of that; drafts and audits are calls more to the same model.
        `router.gate.switch(on=False)` stops it.

        Args:
            chain: answers with retrieval.
            llm: drafts; LangChain's or ours.
            store: path of a SQLite file for what was seen; threads, processes and restarts share
                it. It holds questions and drafts.
            warm_up: questions compared before the first fit, at least 20.
            audit_rate: share of the questions compared from then on, 0 to 1.
            target_rate, target_accuracy, budget: as for `GECEGate.fit`; one of them.
            encoder: embeddings of question and draft sharpen the gate.
            options: as for `GECERouter`.

        Raises:
            InvalidInput: a setting is out of range.
            ArtifactMismatch: the store was begun with another model or encoder.
            CacheUnreadable: the file is no decision store, or cannot be made.
        """
        from ltrag_plugins.gece.learning import LearningGate

        gate = LearningGate(
            model_of(llm),
            store,
            warm_up=warm_up,
            encoder=None if encoder is None else encoder_of(encoder),
            target_rate=target_rate,
            target_accuracy=target_accuracy,
            budget=budget,
            settings=settings,
        )
        return cls(gate, chain, audit_rate=audit_rate, **options)

    @property
    def InputType(self) -> Any:
        """What the retrieving chain takes."""
        return self.retrieving.InputType

    @property
    def OutputType(self) -> Any:
        """What the retrieving chain puts out, or a mapping of that and the decision."""
        return dict[str, Any] if self.return_decision else self.retrieving.OutputType

    def get_input_schema(self, config: RunnableConfig | None = None) -> Any:
        """What the retrieving chain takes."""
        return self.retrieving.get_input_schema(config)

    def get_output_schema(self, config: RunnableConfig | None = None) -> Any:
        """What the retrieving chain puts out, or a mapping of that and the decision."""
        inner = self.retrieving.get_output_schema(config)
        if not self.return_decision:
            return inner
        fields: Any = {"output": (inner, ...), "decision": (dict[str, Any], ...)}
        return create_model(self.get_name("Output"), **fields)

    def get_graph(self, config: RunnableConfig | None = None) -> Graph:
        """The gate, and behind it the two branches with all that is in them."""
        graph = Graph()
        start = graph.add_node(self.get_input_schema(config))
        gate, end = graph.add_node(self._gate), graph.add_node(self.get_output_schema(config))
        graph.add_edge(start, gate)
        for label, branch in {"retrieve": self.retrieving, "direct": self.direct or _DRAFT}.items():
            inner = branch.get_graph(config)
            inner.trim_first_node()
            inner.trim_last_node()
            first, last = graph.extend(inner) if branch is not _DRAFT else (None, None)
            if first is None or last is None:  # it has several ways in or out
                first = last = graph.add_node(branch)
            graph.add_edge(gate, first, data=label, conditional=True)
            graph.add_edge(last, end)
        return graph

    def _invoke(self, value: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        # a run that nobody hears costs 0.2 ms
        ask = self._gate.invoke if _heard(config) else self._gate._invoke
        turn = _Turn(value, self._shape.with_thread(value, config))
        branch = self._chosen(ask(turn.whole, config), turn, config)
        output = branch.runnable.invoke(value, branch.config, **kwargs)
        return self._shown(branch, output, kwargs)

    async def _ainvoke(self, value: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        ask = self._gate.ainvoke if _heard(config) else self._gate._ainvoke
        turn = _Turn(value, await self._shape.awith_thread(value, config))
        branch = self._chosen(await ask(turn.whole, config), turn, config)
        output = await branch.runnable.ainvoke(value, branch.config, **kwargs)
        return self._shown(branch, output, kwargs)

    def _stream(
        self, values: Iterator[Any], config: RunnableConfig, **kwargs: Any
    ) -> Iterator[Any]:
        for value in values:
            turn = _Turn(value, self._shape.with_thread(value, config))
            branch = self._chosen(self._gate.invoke(turn.whole, config), turn, config)
            with self._streamed(branch, kwargs) as chunks:
                if self.return_decision:
                    yield AddableDict(decision=branch.shown)
                for chunk in branch.runnable.stream(value, branch.config, **kwargs):
                    chunks.append(chunk)
                    yield self._piece(branch, chunk)

    async def _astream(
        self, values: AsyncIterator[Any], config: RunnableConfig, **kwargs: Any
    ) -> AsyncIterator[Any]:
        async for value in values:
            turn = _Turn(value, await self._shape.awith_thread(value, config))
            branch = self._chosen(await self._gate.ainvoke(turn.whole, config), turn, config)
            with self._streamed(branch, kwargs) as chunks:
                if self.return_decision:
                    yield AddableDict(decision=branch.shown)
                pieces: Any = branch.runnable.astream(value, branch.config, **kwargs)
                left = aclosing(pieces) if hasattr(pieces, "aclose") else nullcontext()
                async with left:  # closed at once, where it is left
                    async for chunk in pieces:
                        chunks.append(chunk)
                        yield self._piece(branch, chunk)

    @contextmanager
    def _streamed(self, branch: "_Branch", kwargs: Any) -> Iterator[list[Any]]:
        """The list that a stream's chunks go into; the watch sees them if it is not left."""
        chunks, whole = list[Any](), None
        try:
            yield chunks
            whole = chunks
            if branch.runnable is self.retrieving:
                self._shape.note_pieces(chunks)
        finally:
            self._saw(branch, whole, kwargs)

    def _batch(
        self, values: list[Any], config: list[RunnableConfig], *, keep_going: bool, **kwargs: Any
    ) -> list[Any]:
        def kept(work: Callable[..., Any], *given: Any) -> Any:
            try:
                return work(*given)
            except Exception as error:
                if not keep_going:
                    raise
                return error

        outputs = [*map(partial(kept, self._shape.with_thread), values, config)]
        turns = [*map(_Turn, values, outputs)]
        read = [i for i, whole in enumerate(outputs) if not isinstance(whole, Exception)]
        asked = [outputs[i] for i in read], [config[i] for i in read]
        verdicts = self._gate.batch(*asked, return_exceptions=keep_going)
        for i, verdict in zip(read, verdicts, strict=True):
            outputs[i] = verdict
        decided = [i for i, one in enumerate(outputs) if isinstance(one, _Verdict)]  # or an error
        branches = {i: self._chosen(outputs[i], turns[i], config[i]) for i in decided}
        groups = defaultdict[int, list[int]](list)
        for i, branch in branches.items():
            groups[id(branch.runnable)].append(i)
            if branch.meter:
                branch.meter.began = None
        # a chain first: of what it gives the draft takes its shape
        for members in sorted(
            groups.values(), key=lambda m: branches[m[0]].runnable is not self.retrieving
        ):
            asked, configs = zip(*((values[i], branches[i].config) for i in members), strict=True)
            runnable = branches[members[0]].runnable
            answers = runnable.batch([*asked], [*configs], return_exceptions=keep_going, **kwargs)
            for i, answer in zip(members, answers, strict=True):
                failed = isinstance(answer, Exception)
                outputs[i] = answer if failed else kept(self._shown, branches[i], answer, kwargs)
        return outputs

    def _chosen(self, verdict: _Verdict, turn: "_Turn", config: RunnableConfig) -> "_Branch":
        decision, config = verdict.decision, verdict.with_decision_metadata(config)
        if decision.retrieve:
            meter = None
            if self._watch.learns:
                from ltrag_plugins.langchain.fitting import Meter

                meter = Meter()
                config = merge_configs(config, {"callbacks": [meter]})
            return _Branch(self.retrieving, decision, config, turn, meter)
        if self.direct is not None:
            return _Branch(self.direct, decision, config, turn)
        draft: Any = verdict.draft
        if self._shape.is_graph:
            draft = self._shape.as_graph(draft, turn.given, decision)
        return _Branch(draft, decision, {**config, "run_name": "GECEDraft"}, turn)

    def _piece(self, branch: "_Branch", chunk: Any) -> Any:
        if branch.is_draft:
            chunk = self._shape.of(chunk, branch.turn.given, branch.decision)
        return AddableDict(output=chunk) if self.return_decision else chunk

    def _shown(self, branch: "_Branch", output: Any, kwargs: Any) -> Any:
        self._saw(branch, [output], kwargs)
        if branch.is_draft:
            output = self._shape.of(output, branch.turn.given, branch.decision)
        elif branch.runnable is self.retrieving:
            self._shape.note(output)
        return {"output": output, "decision": branch.shown} if self.return_decision else output

    def _saw(self, branch: "_Branch", chunks: list[Any] | None, kwargs: Any) -> None:
        """The chain's answer in pieces, or the direct one, which an audit asks the chain for; None:
        its stream was left, or broke."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None

        audited = not branch.decision.retrieve

        def retrieved() -> str:
            from ltrag_plugins.langchain.fitting import streamed_text

            whole, how = branch.turn.whole, branch.config
            found = [self._audited(whole, how, kwargs, loop)] if audited else chunks or []
            return streamed_text(found, self._answer)

        known = retrieved if audited or chunks is not None else None
        self._watch.saw(branch.decision, known, branch.meter and branch.meter.usage())

    def _audited(
        self,
        value: Any,
        config: RunnableConfig,
        kwargs: Mapping[str, Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> Any:
        """What the chain puts out too, asked in a thread of ours as the call asked, but in a
        conversation of its own, as the answer would go into the caller's; a chain that can only be
        awaited is asked in the loop of the call, while that runs."""
        kept = conversation(self.retrieving, config.get("configurable"))
        how = own_call({"configurable": kept})
        more = {k: v for k, v in kwargs.items() if k not in ("stream_mode", "subgraphs", "version")}
        if not (self._awaited and loop):
            try:
                return self.retrieving.invoke(value, how, **more)
            except (TypeError, NotImplementedError):
                if loop is None:
                    raise

        async def asked() -> Any:
            return await self.retrieving.ainvoke(value, how, **more)

        found = awaited_in(loop, asked, PAUSE)
        self._awaited = True
        return found


def _runnable(chain: Any, name: str) -> Runnable[Any, Any]:
    try:
        return coerce_to_runnable(chain)
    except TypeError as error:
        wanted = "a LangChain Runnable, a function, or a dict of them"
        raise InvalidInput(f"{name} must be {wanted}, got {type(chain).__name__}") from error


class _Turn(NamedTuple):
    """What a call was given, and the same with its conversation before it."""

    given: Any
    whole: Any


class _Branch(NamedTuple):
    """What answers, what was decided, and the config for the answer."""

    runnable: Runnable[Any, Any]
    decision: Decision
    config: RunnableConfig
    turn: _Turn
    meter: Any = None
    """Of what the chain costs, where that is learned."""

    @property
    def is_draft(self) -> bool:
        return isinstance(self.runnable, _Draft)

    @property
    def shown(self) -> Any:
        return plain(self.decision) if in_graph(self.config) else self.decision


def gece_edge(
    gate: DecidingGate,
    *,
    retrieve: str = "retrieve",
    direct: str = "direct",
    question_key: str = "question",
    condense: bool | Runnable[Any, Any] | None = True,
    on_error: _OnError = "retrieve",
) -> Runnable[Any, str]:
    """What `add_conditional_edges` takes as its path, for sync and async runs alike.

    ::

        graph.add_conditional_edges(START, gece_edge(gate), ["retrieve", "direct"])

    An edge writes nothing: where the draft should be the answer, make `GECERouter(gate, chain)` a
    node.

    Args:
        retrieve, direct: what the edge returns, names of nodes.
        question_key: where the question is in the state (see `conversation_of`).
        condense, on_error: as for `GECERouter`.
    """
    step = _gate_step(gate, Asking(question_key, condense), on_error)
    warn_of_learning(gate, "gece_edge")

    def choose(state: Any, config: RunnableConfig) -> str:
        return retrieve if step.invoke(state, config)["retrieve"] else direct

    async def achoose(state: Any, config: RunnableConfig) -> str:
        return retrieve if (await step.ainvoke(state, config))["retrieve"] else direct

    choose.__annotations__["return"] = Literal[retrieve, direct]  # LangGraph draws it
    return RunnableLambda(choose, achoose, name="gece_edge")


@contextmanager
def _inside(config: RunnableConfig | None) -> Iterator[None]:
    """A call's config around what it calls: all but what names its own run."""
    around = ensure_config(config)
    around["callbacks"] = ensure_config().get("callbacks")
    around.pop("run_name", None)
    around.pop("run_id", None)
    token = var_child_runnable_config.set(around)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


class GECERetriever(BaseRetriever):
    """Asks the gate first: one document with the draft when the model knows, else what the inner
    retriever finds.

    For chains and agents that write their own prompt from what was found. The document's metadata
    `gece` (the decision) tells it from one that was found; an agent that got nothing would search
    again. Where the draft itself should be the answer, take `GECERouter`.

    The query may be messages too: a follow-up is made to stand alone, for gate and retriever.
    `condense` and `on_error` are those of `GECERouter`.
    """

    gate: Annotated[DecidingGate, BeforeValidator(checked_gate)]
    """Decides; a fitted `ltrag_plugins.gece.GECEGate`."""
    retriever: Runnable[str, list[Document]]
    """Finds the documents; a `BaseRetriever` or any Runnable from a query to documents."""
    k: int | None = None
    """Most documents to return, also as `invoke(query, k=...)`; None leaves it to the retriever."""
    known: Literal["draft", "nothing"] = "draft"
    """What to return when the model knows: the document with the draft, or no document."""
    condense: Any = True
    on_error: _OnError = "retrieve"

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def model_post_init(self, context: Any, /) -> None:
        """Warn of a gate that learns, which it does not here."""
        warn_of_learning(self.gate, "GECERetriever")

    def invoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """What is found; the inner retriever gets the config of the call."""
        with _inside(config):
            return super().invoke(input, config, **kwargs)

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """As `invoke`."""
        with _inside(config):
            return await super().ainvoke(input, config, **kwargs)

    def _get_relevant_documents(
        self, query: str, *, run_manager: RetrieverRun, k: int | None = None
    ) -> list[Document]:
        k = checked_k(self.k if k is None else k, least=0)
        config = patch_config(None, callbacks=run_manager.get_child())
        verdict = self._gate.invoke(query, config)
        if not verdict.decision.retrieve:
            return [verdict.document][:k] if self.known == "draft" else []
        config = verdict.with_decision_metadata(config)
        found = asking_for(self.retriever, k).invoke(verdict.decision.question, config)
        return documents_in(found)[:k]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncRetrieverRun, k: int | None = None
    ) -> list[Document]:
        k = checked_k(self.k if k is None else k, least=0)
        config = patch_config(None, callbacks=run_manager.get_child())
        verdict = await self._gate.ainvoke(query, config)
        if not verdict.decision.retrieve:
            return [verdict.document][:k] if self.known == "draft" else []
        config = verdict.with_decision_metadata(config)
        found = await asking_for(self.retriever, k).ainvoke(verdict.decision.question, config)
        return documents_in(found)[:k]

    @property
    def _gate(self) -> FlowRunnable:
        return _gate_step(self.gate, Asking(condense=self.condense), self.on_error, searches=True)
