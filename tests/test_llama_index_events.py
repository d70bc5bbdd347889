"""What LlamaIndex's instrumentation is told of the gate's decisions."""

import asyncio

import pytest
from llama_index.core.instrumentation.events.llm import LLMCompletionStartEvent
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index_instrumentation import get_dispatcher
from pydantic import Field

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


def gate(kind=FunctionLLM) -> RuleGate:
    return RuleGate(World(llm=LlamaIndexLLM(kind(lambda prompt: "Who knows?"))))


PARTS = {
    "query": lambda gate: GECERouter(gate, engine()),
    "retrieve": lambda gate: GECERetriever(gate, AwaitedRetriever()),
}


def test_a_decision_event_carries_the_decision(trace):
    response = GECERouter(gate(), engine()).query(QUESTION)
    [event] = trace.heard(GECEDecisionEvent)
    told, gece = event.model_dump(), response.metadata["gece"]
    assert (told["question"], told["class_name"]) == (QUESTION, "GECEDecisionEvent")
    for field in ("retrieve", "score", "probability", "tier", "reason"):
        assert told[field] == gece[field]


@pytest.mark.parametrize(
    ("way", "kind"),
    [("", FunctionLLM), ("a", FunctionLLM), ("a", AsyncFunctionLLM)],
    ids=["sync", "async with a sync model", "async"],
)
@pytest.mark.parametrize("name", PARTS)
async def test_the_draft_and_the_decision_lie_under_the_call(trace, name, way, kind):
    part = PARTS[name](gate(kind))
    called = getattr(part, way + name)(QUESTION)
    if way:
        await called
    outer = [f"{type(part).__name__}._{way}{name}", f"{type(part).__name__}.{way}{name}"]
    outer = outer[name == "retrieve" and way == "a" :]  # BaseRetriever has no span at _aretrieve
    [decision] = trace.heard(GECEDecisionEvent)
    assert trace.path(decision) == [f"gece_{way}decide", *outer]
    drafts = [e for e in trace.heard(LLMCompletionStartEvent) if e.prompt == QUESTION]
    assert [trace.path(e)[1:] for e in drafts] == [[f"gece_{way}decide", *outer]]


def test_what_the_engine_does_lies_under_the_router_too(trace):
    GECERouter(gate(), engine()).query(QUESTION)
    reads = [e for e in trace.heard(LLMCompletionStartEvent) if e.prompt != QUESTION]
    assert reads
    outer = ["RetrieverQueryEngine.query", "GECERouter._query", "GECERouter.query"]
    assert all(trace.path(event)[-3:] == outer for event in reads)


async def test_the_selector_tells_its_decisions(trace):
    selector = GECESelector(gate())
    selector.select(["look", "alone"], QUESTION)
    await selector.aselect(["look", "alone"], QUESTION)
    one, two = trace.heard(GECEDecisionEvent)
    assert trace.path(one) == ["gece_decide", "GECESelector._select"]
    assert trace.path(two) == ["gece_adecide", "GECESelector._aselect"]


async def test_queries_side_by_side_do_not_mix_their_spans(trace):
    router = GECERouter(gate(AsyncFunctionLLM), engine())
    await asyncio.gather(*(router.aquery(f"Raoul {i}?") for i in range(20)))
    decisions = trace.heard(GECEDecisionEvent)
    assert len({event.span_id for event in decisions}) == 20
    for event in decisions:
        assert trace.path(event) == ["gece_adecide", "GECERouter._aquery", "GECERouter.aquery"]


class Arguments(BaseSpanHandler):
    """What each span of a decision says it was given."""

    of: list = Field(default_factory=list)

    def new_span(self, id_, bound_args, instance=None, parent_span_id=None, tags=None, **kwargs):
        if "decide" in id_:
            self.of.append((instance, bound_args.arguments))

    def prepare_to_exit_span(self, *told, **more):
        """Say nothing."""

    prepare_to_drop_span = prepare_to_exit_span


async def test_the_span_of_a_decision_has_the_question_and_not_the_gate():
    root, spans = get_dispatcher(), Arguments()
    root.add_span_handler(spans)
    for part, way in (
        (GECERouter(gate(), engine()), "query"),
        (GECERetriever(gate(), AwaitedRetriever()), "retrieve"),
        (GECESelector(gate()), "select"),
    ):
        given = [["look", "alone"]] if way == "select" else []
        getattr(part, way)(*given, QUESTION)
        await getattr(part, f"a{way}")(*given, QUESTION)
    root.span_handlers.remove(spans)
    assert spans.of == [(None, {"question": QUESTION})] * 6
