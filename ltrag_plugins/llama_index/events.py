"""Decide inside a span, and tell LlamaIndex's instrumentation what was decided."""

from llama_index.core.instrumentation.events import BaseEvent
from llama_index_instrumentation import get_dispatcher

from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.route import DecidingGate

dispatcher = get_dispatcher(__name__)


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


@dispatcher.span
def gece_decide(gate: DecidingGate, question: str) -> Decision:
    """The gate's decision, in a span of its own that the draft's events hang under."""
    return _told(gate.decide(question))


@dispatcher.span
async def gece_adecide(gate: DecidingGate, question: str) -> Decision:
    """As `gece_decide`."""
    return _told(await gate.adecide(question))


def _told(decision: Decision) -> Decision:
    dispatcher.event(
        GECEDecisionEvent(
            question=decision.question,
            retrieve=decision.retrieve,
            score=decision.score,
            probability=decision.probability,
            tier=decision.tier,
            reason=decision.reason,
        )
    )
    return decision
