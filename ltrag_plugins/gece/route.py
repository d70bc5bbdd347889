"""Put any flow behind a gate.

References:
    Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
    Language Models", section 4.2: retrieve for long-tail questions, else answer directly.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, overload, runtime_checkable

from ltrag_plugins.flow import Flow, Observer, World
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.types import Answer


class Gate(Protocol):
    """What decides; `GECEGate` is one."""

    def deciding(self, question: str) -> Flow[Decision]:
        """The flow that drafts an answer and decides whether to retrieve."""
        ...


@runtime_checkable
class DecidingGate(Gate, Protocol):
    """A gate that holds its model and runs its own flow; what the adapters build on."""

    @property
    def world(self) -> World:
        """The model (and encoder) the gate drafts with."""
        ...

    def decide(self, question: str, *, observers: Iterable[Observer] = ()) -> Decision:
        """Draft an answer and decide whether to retrieve."""
        ...

    async def adecide(self, question: str, *, observers: Iterable[Observer] = ()) -> Decision:
        """As `decide`, on an event loop."""
        ...

    @overload
    def decide_many(
        self,
        questions: Sequence[str],
        *,
        observers: Iterable[Observer] = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[Decision]: ...
    @overload
    def decide_many(
        self,
        questions: Sequence[str],
        *,
        observers: Iterable[Observer] = ...,
        return_exceptions: Literal[True],
    ) -> list[Decision | Exception]: ...
    def decide_many(
        self,
        questions: Sequence[str],
        *,
        observers: Iterable[Observer] = (),
        return_exceptions: bool = False,
    ) -> list[Decision] | list[Decision | Exception]:
        """As `decide` for each question, their model calls merged, in the order given."""
        ...


def routed(question: str, gate: Gate, retrieving: Callable[[str], Flow[Answer]]) -> Flow[Answer]:
    """The gate's draft where it is good enough, else the answer of the retrieving flow."""
    return (yield from decided(question, gate, retrieving))[0]


def decided(
    question: str, gate: Gate, retrieving: Callable[[str], Flow[Answer]]
) -> Flow[tuple[Answer, Decision]]:
    """As `routed`, with the decision."""
    decision = yield from gate.deciding(question)
    if decision.retrieve:
        return (yield from retrieving(question)), decision
    draft = Answer(decision.answer, uncertainty=decision.probability, trace=(decision.draft,))
    return draft, decision
