"""A gate as a conditional edge of a LangGraph graph."""

from collections.abc import Callable
from typing import Any, Literal

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from ltrag_plugins.gece.route import DecidingGate
from ltrag_plugins.langchain.gate import GateStep, Verdict
from ltrag_plugins.langchain.questions import question_of


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
        retrieve: what the edge returns (a node's name) for a question that needs retrieval.
        direct: what it returns for the others.
        question_key: where the question is in the state; without it, the last human message
            of `messages` is the question.
        question: from the state to the question, where it lies elsewhere.
    """
    step = GateStep(gate, question_key)

    def named(verdict: Verdict) -> str:
        return retrieve if verdict.decision.retrieve else direct

    def asked(state: Any) -> Any:
        return question_of(state, question_key) if question is None else question(state)

    def choose(state: Any, config: RunnableConfig) -> str:
        return named(step.invoke(asked(state), config))

    async def achoose(state: Any, config: RunnableConfig) -> str:
        return named(await step.ainvoke(asked(state), config))

    choose.__annotations__["return"] = Literal[retrieve, direct]  # LangGraph draws it
    return RunnableLambda(choose, achoose, name="gece_edge")
