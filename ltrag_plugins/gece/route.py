"""Put any flow behind a gate.

References:
    Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
    Language Models", section 4.2: retrieve for long-tail questions, else answer directly.
"""

from collections.abc import Callable
from typing import Protocol

from ltrag_plugins.flow import Flow
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.types import Answer


class Gate(Protocol):
    """What decides; `GECEGate` is one."""

    def deciding(self, question: str) -> Flow[Decision]:
        """The flow that drafts an answer and decides whether to retrieve."""
        ...


def routed(question: str, gate: Gate, retrieving: Callable[[str], Flow[Answer]]) -> Flow[Answer]:
    """The gate's draft where it is good enough, else the answer of the retrieving flow."""
    decision = yield from gate.deciding(question)
    if decision.retrieve:
        return (yield from retrieving(question))
    return Answer(decision.draft.text, uncertainty=decision.probability, trace=(decision.draft,))
