import asyncio

import pytest
from llama_index.core.instrumentation.events.llm import LLMCompletionStartEvent

from ltrag_plugins.flow import World
from ltrag_plugins.llama_index import (
    GECEDecisionEvent,
    GECERetriever,
    GECERouter,
    GECESelector,
    LlamaIndexLLM,
)
from tests.gates import RuleGate
from tests.llama_index_parts import AsyncFunctionLLM, AwaitedRetriever, FunctionLLM, engine, traced

QUESTION = "Who has played Raoul?"


@pytest.fixture
def trace():
    with traced() as trace:
        yield trace


async def awaited(prompt):
    return "Who knows?"


def sync_gate():
    return RuleGate(World(llm=LlamaIndexLLM(FunctionLLM(lambda prompt: "Who knows?"))))


def async_gate():
    return RuleGate(World(llm=LlamaIndexLLM(AsyncFunctionLLM(awaited))))


CALLS = {
    "router": (lambda g: GECERouter(g, engine()), "query", "aquery"),
    "retriever": (lambda g: GECERetriever(g, AwaitedRetriever()), "retrieve", "aretrieve"),
}


def test_a_decision_event_carries_the_decision(trace):
    response = GECERouter(sync_gate(), engine()).query(QUESTION)
    [event] = trace.heard(GECEDecisionEvent)
    told, gece = event.model_dump(), response.metadata["gece"]
    assert told["question"] == QUESTION
    assert told["class_name"] == "GECEDecisionEvent"
    for field in ("retrieve", "score", "probability", "tier", "reason"):
        assert told[field] == gece[field]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("gate", [sync_gate, async_gate], ids=["sync model", "async model"])
async def test_the_draft_and_the_decision_lie_under_the_async_call(trace, name, gate):
    build, _, call = CALLS[name]
    part = build(gate())
    await getattr(part, call)(QUESTION)
    outer = [f"{type(part).__name__}._{call}", f"{type(part).__name__}.{call}"]
    outer = outer[1:] if name == "retriever" else outer  # BaseRetriever has no span at _aretrieve
    [decision] = trace.heard(GECEDecisionEvent)
    assert trace.path(decision) == ["gece_adecide", *outer]
    drafts = [e for e in trace.heard(LLMCompletionStartEvent) if e.prompt == QUESTION]
    assert [trace.path(e)[1:] for e in drafts] == [["gece_adecide", *outer]]


@pytest.mark.parametrize("name", CALLS)
def test_the_draft_and_the_decision_lie_under_the_sync_call(trace, name):
    build, call, _ = CALLS[name]
    part = build(sync_gate())
    getattr(part, call)(QUESTION)
    outer = [f"{type(part).__name__}._{call}", f"{type(part).__name__}.{call}"]
    [decision] = trace.heard(GECEDecisionEvent)
    assert trace.path(decision) == ["gece_decide", *outer]
    [drafted] = [e for e in trace.heard(LLMCompletionStartEvent) if e.prompt == QUESTION]
    assert trace.path(drafted) == ["FunctionLLM.complete", "gece_decide", *outer]


def test_what_the_engine_does_lies_under_the_router_too(trace):
    GECERouter(sync_gate(), engine()).query(QUESTION)
    reads = [e for e in trace.heard(LLMCompletionStartEvent) if e.prompt != QUESTION]
    assert reads
    for event in reads:
        assert trace.path(event)[-3:] == [
            "RetrieverQueryEngine.query",
            "GECERouter._query",
            "GECERouter.query",
        ]


async def test_the_selector_tells_its_decisions(trace):
    selector = GECESelector(sync_gate())
    selector.select(["look", "alone"], QUESTION)
    await selector.aselect(["look", "alone"], QUESTION)
    one, two = trace.heard(GECEDecisionEvent)
    assert trace.path(one) == ["gece_decide", "GECESelector._select"]
    assert trace.path(two) == ["gece_adecide", "GECESelector._aselect"]


async def test_queries_side_by_side_do_not_mix_their_spans(trace):
    router = GECERouter(async_gate(), engine())
    await asyncio.gather(*(router.aquery(f"Raoul {i}?") for i in range(20)))
    decisions = trace.heard(GECEDecisionEvent)
    assert len({event.span_id for event in decisions}) == 20
    for event in decisions:
        assert trace.path(event) == ["gece_adecide", "GECERouter._aquery", "GECERouter.aquery"]
