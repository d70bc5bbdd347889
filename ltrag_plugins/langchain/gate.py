"""A gate before any chain, on a graph's edge, or before a retriever.

The gate's decision is a run of its own (GECEGate), which callbacks and traces can see, and
metadata `gece` of every run after it.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnableSerializable
from langchain_core.runnables.base import RunnableLike, coerce_to_runnable
from langchain_core.runnables.utils import AddableDict, ConfigurableFieldSpec
from langchain_core.runnables.utils import get_unique_config_specs as unique_specs
from pydantic import BeforeValidator, ConfigDict

from ltrag_plugins.errors import InvalidInput, LtragError, checked
from ltrag_plugins.flow import Flow, World, arun, run
from ltrag_plugins.gece.decision import DecidingGate, Decision
from ltrag_plugins.langchain.model import run_merged
from ltrag_plugins.langchain.retriever import asking_for, checked_k

_F = TypeVar("_F", bound=Callable[..., Any])


def question_of(value: Any, key: str = "question") -> str:
    """The question in a string, a message, a prompt, or a mapping or state that holds one.

    A mapping or state gives its entry `key`, else the last human message of its `messages`.
    """
    match value:
        case str():
            return value
        case BaseMessage():
            return str(value.text)
        case PromptValue():
            return _last_human(value.to_messages())
        case Sequence():
            return _last_human(value)
    entries = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    if key in entries:
        return question_of(entries[key], key)
    if "messages" in entries:
        return _last_human(entries["messages"])
    raise InvalidInput(
        f"there is no {key!r} (and no 'messages') in {value!r:.80}. "
        "Pass a string, or name the key that holds the question with question_key."
    )


def _last_human(messages: Sequence[Any]) -> str:
    try:
        read = convert_to_messages(messages)
    except (ValueError, TypeError, NotImplementedError, KeyError) as error:
        raise InvalidInput(f"these are no messages: {messages!r:.80} ({error})") from error
    for message in reversed(read):
        if isinstance(message, HumanMessage):
            return str(message.text)
    raise InvalidInput(f"there is no human message in {messages!r:.80} to take as the question.")


def _inspected(function: _F) -> _F:
    """The function with its signature at hand: LangChain looks at it twice in every call."""
    function.__dict__["__signature__"] = signature(function)
    return function


class _Calls(Runnable[Any, Any]):
    """Calls that are runs of their own: `_invoke`, `_ainvoke` and `_batch` do the work."""

    _invoke: ClassVar[Callable[..., Any]]
    _ainvoke: ClassVar[Callable[..., Any]]
    _batch: ClassVar[Callable[..., list[Any]]]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """What the component puts out for one input."""
        return self._call_with_config(self._invoke, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """As `invoke`; a cancellation stops before the next model call."""
        return await self._acall_with_config(self._ainvoke, input, config, **kwargs)

    def batch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """As `invoke` for each input, with the model calls of all of them merged."""
        together = partial(self._batch, keep_going=return_exceptions)
        return self._batch_with_config(
            together, inputs, config, return_exceptions=return_exceptions, **kwargs
        )


class FlowRunnable(_Calls):
    """A flow as a component; `_shown` says how its answer is put out."""

    def __init__(
        self, flow: Callable[[str], Flow[Any]], world: World, *, name: str, question_key: str
    ) -> None:
        self.flow, self.world = flow, world
        self.name, self.question_key = name, question_key

    def _shown(self, answer: Any) -> Any:
        return answer

    @_inspected
    def _invoke(self, value: Any, **_: Any) -> Any:
        return self._shown(run(self.flow(question_of(value, self.question_key)), self.world))

    async def _ainvoke(self, value: Any, **_: Any) -> Any:
        return self._shown(await arun(self.flow(question_of(value, self.question_key)), self.world))

    def _batch(
        self, values: list[Any], run_manager: Any, config: list[RunnableConfig], **_: Any
    ) -> list[Any]:
        found = [caught(question_of, value, self.question_key) for value in values]
        asked = [i for i, question in enumerate(found) if isinstance(question, str)]
        flows = [self.flow(found[i]) for i in asked]
        answers = run_merged(flows, self.world, [config[i] for i in asked])
        for i, answer in zip(asked, answers, strict=True):
            found[i] = answer if isinstance(answer, Exception) else self._shown(answer)
        return found


def caught(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the call gives, or our error in its place."""
    try:
        return call(*arguments)
    except LtragError as error:
        return error


class _GateStep(FlowRunnable):
    """Question in, decision out; a run named GECEGate, the model's runs its children."""

    def __init__(self, gate: DecidingGate, question_key: str = "question") -> None:
        super().__init__(gate.deciding, gate.world, name="GECEGate", question_key=question_key)

    def _shown(self, answer: Decision) -> "_Verdict":
        return _Verdict(answer)


class _Verdict(dict[str, Any]):
    """The decision as plain values, for traces, with the `Decision` itself at hand."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.as_metadata())
        self.decision = decision

    def with_decision_metadata(self, config: RunnableConfig) -> RunnableConfig:
        """The config for what follows the decision."""
        return {**config, "metadata": {**config.get("metadata", {}), "gece": {**self}}}


class _Draft(_Calls):
    """The draft as a branch, so that it too is a run that carries the decision."""

    name = "GECEDraft"
    batch = Runnable.batch

    def __init__(self, text: str) -> None:
        self.text = text

    @_inspected
    def _invoke(self, _: Any, **__: Any) -> str:
        return self.text

    async def _ainvoke(self, _: Any, **__: Any) -> str:
        return self.text


class Component(_Calls, RunnableSerializable[Any, Any]):
    """A component that streams: `_stream` and `_astream` give the chunks."""

    _stream: ClassVar[Callable[..., Iterator[Any]]]
    _astream: ClassVar[Callable[..., AsyncIterator[Any]]]

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """The output in chunks, as they come."""
        yield from self._transform_stream_with_config(iter([input]), self._stream, config, **kwargs)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """As `stream`."""

        async def inputs() -> AsyncIterator[Any]:
            yield input

        chunks = self._atransform_stream_with_config(inputs(), self._astream, config, **kwargs)
        async for chunk in chunks:
            yield chunk


class GECERouter(Component):
    """Sends a question to the retrieving chain, or answers it with the gate's own draft.

    In `batch` the gate's model calls are merged into one; `abatch` runs side by side. Arguments
    beyond the config go to the chosen chain.

    Args:
        gate: decides; a fitted `ltrag_plugins.gece.GECEGate`.
        retrieving: the chain for questions that need retrieval; gets the original input.
        direct: the chain for the others; without one the answer is the draft that the
            decision was read from, and costs no further call.
        question_key: where the question is in an input that is a mapping (see `question_of`).
        return_decision: put out `{"output": ..., "decision": Decision}`.
    """

    gate: DecidingGate
    retrieving: Runnable[Any, Any]
    direct: Runnable[Any, Any] | None = None
    question_key: str = "question"
    return_decision: bool = False

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __init__(
        self,
        gate: DecidingGate,
        retrieving: RunnableLike[Any, Any],
        direct: RunnableLike[Any, Any] | None = None,
        *,
        question_key: str = "question",
        return_decision: bool = False,
        name: str | None = None,
    ) -> None:
        fields: dict[str, Any] = {
            "gate": _checked_gate(gate),
            "retrieving": coerce_to_runnable(retrieving),
            "direct": None if direct is None else coerce_to_runnable(direct),
            "question_key": question_key,
            "return_decision": return_decision,
            "name": name,
        }
        super().__init__(**fields)

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What can be configured in the chains behind the gate."""
        chains = (self.retrieving, self.direct)
        return unique_specs(spec for c in chains if c is not None for spec in c.config_specs)

    @_inspected
    def _invoke(self, value: Any, run_manager: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        branch, decision, config = self._chosen(self._gate.invoke(value, config), config)
        return self._shown(decision, branch.invoke(value, config, **kwargs))

    async def _ainvoke(
        self, value: Any, run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> Any:
        branch, decision, config = self._chosen(await self._gate.ainvoke(value, config), config)
        return self._shown(decision, await branch.ainvoke(value, config, **kwargs))

    def _stream(
        self, values: Iterator[Any], run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> Iterator[Any]:
        for value in values:
            branch, decision, told = self._chosen(self._gate.invoke(value, config), config)
            if self.return_decision:
                yield AddableDict(decision=decision)
            for chunk in branch.stream(value, told, **kwargs):
                yield AddableDict(output=chunk) if self.return_decision else chunk

    async def _astream(
        self, values: AsyncIterator[Any], run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> AsyncIterator[Any]:
        async for value in values:
            branch, decision, told = self._chosen(await self._gate.ainvoke(value, config), config)
            if self.return_decision:
                yield AddableDict(decision=decision)
            async for chunk in branch.astream(value, told, **kwargs):
                yield AddableDict(output=chunk) if self.return_decision else chunk

    def _batch(
        self,
        values: list[Any],
        run_manager: Any,
        config: list[RunnableConfig],
        *,
        keep_going: bool,
        **kwargs: Any,
    ) -> list[Any]:
        outputs = self._gate.batch(values, config, return_exceptions=keep_going)
        chosen, groups = {}, defaultdict[int, list[int]](list)
        for i, verdict in enumerate(outputs):
            if isinstance(verdict, _Verdict):  # errors stay in their places
                chosen[i] = self._chosen(verdict, config[i])
                groups[id(chosen[i][0])].append(i)
        for members in groups.values():
            answers = chosen[members[0]][0].batch(
                [values[i] for i in members],
                [chosen[i][2] for i in members],
                return_exceptions=keep_going,
                **kwargs,
            )
            for i, answer in zip(members, answers, strict=True):
                failed = isinstance(answer, Exception)
                outputs[i] = answer if failed else self._shown(chosen[i][1], answer)
        return outputs

    @property
    def _gate(self) -> _GateStep:
        return _GateStep(self.gate, self.question_key)

    def _chosen(
        self, verdict: _Verdict, config: RunnableConfig
    ) -> tuple[Runnable[Any, Any], Decision, RunnableConfig]:
        """The branch that answers, what was decided, and the branch's config."""
        decision, branch = verdict.decision, self.retrieving
        if not decision.retrieve:
            branch = _Draft(decision.answer) if self.direct is None else self.direct
        return branch, decision, verdict.with_decision_metadata(config)

    def _shown(self, decision: Decision, output: Any) -> Any:
        return {"output": output, "decision": decision} if self.return_decision else output


def gece_edge(
    gate: DecidingGate,
    *,
    retrieve: str = "retrieve",
    direct: str = "direct",
    question_key: str = "question",
    question: Callable[[Any], str] | None = None,
) -> Runnable[Any, str]:
    """What `add_conditional_edges` takes as its path, for sync and async runs alike.

    ::

        graph.add_conditional_edges(START, gece_edge(gate), ["retrieve", "direct"])

    An edge chooses and writes nothing: the draft is not handed to the next node. Where it
    should be the answer, let the node before call `gate.decide` and keep the decision in the
    state, or make a router one node: `GECERouter(gate, chain) | (lambda text: {"answer": text})`.

    Args:
        retrieve, direct: what the edge returns, names of nodes.
        question_key: where the question is in the state (see `question_of`).
        question: from the state to the question, where it lies elsewhere.
    """
    step = _GateStep(_checked_gate(gate), question_key)
    read = question or partial(question_of, key=question_key)

    def choose(state: Any, config: RunnableConfig) -> str:
        return retrieve if step.invoke(read(state), config).decision.retrieve else direct

    async def achoose(state: Any, config: RunnableConfig) -> str:
        verdict = await step.ainvoke(read(state), config)
        return retrieve if verdict.decision.retrieve else direct

    choose.__annotations__["return"] = Literal[retrieve, direct]  # LangGraph draws it
    return RunnableLambda(choose, achoose, name="gece_edge")


def _checked_gate(gate: Any) -> DecidingGate:
    return checked(gate, DecidingGate, "gate", "a gate (GECEGate.fit or GECEGate.load gives one)")


class GECERetriever(BaseRetriever):
    """Asks the gate first: `[]` when the model knows, else the inner retriever's documents.

    For chains that write their own prompt from what was found. Where the draft itself should
    be the answer, take `GECERouter`: here it is paid for and not used.
    """

    gate: Annotated[DecidingGate, BeforeValidator(_checked_gate)]
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
        verdict = _GateStep(self.gate).invoke(query, {"callbacks": run_manager.get_child()})
        if not verdict.decision.retrieve:
            return []
        config = verdict.with_decision_metadata({"callbacks": run_manager.get_child()})
        return asking_for(self.retriever, k).invoke(query, config)[:k]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        k = checked_k(self.k if k is None else k, least=0)
        verdict = await _GateStep(self.gate).ainvoke(query, {"callbacks": run_manager.get_child()})
        if not verdict.decision.retrieve:
            return []
        config = verdict.with_decision_metadata({"callbacks": run_manager.get_child()})
        return (await asking_for(self.retriever, k).ainvoke(query, config))[:k]
