"""Retrieve only where the model does not know: a gate before any chain."""

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnableSerializable
from langchain_core.runnables.base import RunnableLike, coerce_to_runnable
from langchain_core.runnables.utils import (
    AddableDict,
    ConfigurableFieldSpec,
    get_unique_config_specs,
)
from pydantic import ConfigDict

from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.route import DecidingGate
from ltrag_plugins.langchain.gate import GateStep, Verdict, checked_gate, told


class GECERouter(RunnableSerializable[Any, Any]):
    """Sends a question to the retrieving chain, or answers it with the gate's own draft.

    Args:
        gate: decides; a fitted `ltrag_plugins.gece.GECEGate`.
        retrieving: the chain for questions that need retrieval; gets the original input.
        direct: the chain for the others; without one the answer is the draft that the
            decision was read from, and costs no further call.
        question_key: where the question is in an input that is a mapping. A string, a
            message, a prompt, or a mapping with `messages` need none.
        return_decision: put out `{"output": ..., "decision": Decision}`.

    The decision is a run of its own (GECEGate), and metadata `gece` of every run after it.
    In `batch` the gate's model calls are merged into one; `abatch` runs side by side.
    Arguments beyond the config go to the chosen chain.
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
            "gate": checked_gate(gate),
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
        return get_unique_config_specs(s for c in chains if c is not None for s in c.config_specs)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """The chosen branch's output."""
        return self._call_with_config(self._invoke, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """As `invoke`."""
        return await self._acall_with_config(self._ainvoke, input, config, **kwargs)

    def batch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """As `invoke` for each input; the gate asks its model once for all of them."""
        route = partial(self._batch, keep_going=return_exceptions)
        return self._batch_with_config(
            route, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """The chosen branch's chunks as they come."""
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

    def _invoke(self, value: Any, run_manager: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        decision = self._gate.invoke(value, config).decision
        output = self._branch(decision).invoke(value, told(config, decision), **kwargs)
        return self._shown(decision, output)

    async def _ainvoke(
        self, value: Any, run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> Any:
        decision = (await self._gate.ainvoke(value, config)).decision
        output = await self._branch(decision).ainvoke(value, told(config, decision), **kwargs)
        return self._shown(decision, output)

    def _stream(
        self, values: Iterator[Any], run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> Iterator[Any]:
        for value in values:
            decision = self._gate.invoke(value, config).decision
            if self.return_decision:
                yield AddableDict(decision=decision)
            for chunk in self._branch(decision).stream(value, told(config, decision), **kwargs):
                yield AddableDict(output=chunk) if self.return_decision else chunk

    async def _astream(
        self, values: AsyncIterator[Any], run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> AsyncIterator[Any]:
        async for value in values:
            decision = (await self._gate.ainvoke(value, config)).decision
            if self.return_decision:
                yield AddableDict(decision=decision)
            chunks = self._branch(decision).astream(value, told(config, decision), **kwargs)
            async for chunk in chunks:
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
        verdicts = self._gate.batch(values, config, return_exceptions=keep_going)
        outputs: dict[int, Any] = dict(enumerate(verdicts))  # errors stay in their places
        decided = {i: v.decision for i, v in enumerate(verdicts) if isinstance(v, Verdict)}
        for branch, members in self._by_branch(decided):
            answers = branch.batch(
                [values[i] for i in members],
                [told(config[i], decided[i]) for i in members],
                return_exceptions=keep_going,
                **kwargs,
            )
            for i, answer in zip(members, answers, strict=True):
                failed = isinstance(answer, Exception)
                outputs[i] = answer if failed else self._shown(decided[i], answer)
        return [outputs[i] for i in range(len(values))]

    @property
    def _gate(self) -> GateStep:
        return GateStep(self.gate, self.question_key)

    def _branch(self, decision: Decision) -> Runnable[Any, Any]:
        if decision.retrieve:
            return self.retrieving
        return _saying(decision.answer) if self.direct is None else self.direct

    def _by_branch(
        self, decided: Mapping[int, Decision]
    ) -> Iterator[tuple[Runnable[Any, Any], list[int]]]:
        groups: dict[int, tuple[Runnable[Any, Any], list[int]]] = {}
        for i, decision in decided.items():
            branch = self._branch(decision)
            groups.setdefault(id(branch), (branch, []))[1].append(i)
        yield from groups.values()

    def _shown(self, decision: Decision, output: Any) -> Any:
        return {"output": output, "decision": decision} if self.return_decision else output


def _saying(draft: str) -> Runnable[Any, str]:
    """The draft as a branch, so that it too is a run that carries the decision."""

    def say(_: Any, **__: Any) -> str:
        return draft

    async def asay(_: Any, **__: Any) -> str:
        return draft

    return RunnableLambda(say, asay, name="GECEDraft")
