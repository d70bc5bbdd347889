"""gece_edge in real LangGraph graphs."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel

from ltrag_plugins.errors import EmptyQuestion, InvalidInput
from ltrag_plugins.flow import World
from ltrag_plugins.langchain import LangChainLLM, gece_edge
from tests.gates import RuleGate
from tests.langchain_parts import FunctionChat, Runs, soon

MODEL = FunctionChat(lambda question: "who knows?" if "rare" in question else "known")
GATE = RuleGate(World(llm=LangChainLLM(MODEL)))


class Asked(TypedDict, total=False):
    question: str
    answer: str


class AskedModel(BaseModel):
    question: str
    answer: str = ""


@dataclass(slots=True)
class AskedWithSlots:
    question: str
    answer: str = ""


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    answer: str


def graph(state, edge, path_map=None, retrieve="retrieve", direct="direct"):
    building = StateGraph(state)
    building.add_node(retrieve, lambda state: {"answer": "looked up"})
    building.add_node(direct, lambda state: {"answer": "from memory"})
    building.add_conditional_edges(START, edge, path_map)
    building.add_edge(retrieve, END)
    building.add_edge(direct, END)
    return building.compile()


async def both(compiled, state):
    answers = {compiled.invoke(state)["answer"], (await compiled.ainvoke(state))["answer"]}
    assert len(answers) == 1
    return answers.pop()


@pytest.mark.parametrize("state", [Asked, AskedModel, AskedWithSlots])
async def test_one_edge_routes_sync_and_async_runs(state):
    compiled = graph(state, gece_edge(GATE))
    assert await both(compiled, {"question": "rare"}) == "looked up"
    assert await both(compiled, {"question": "hi"}) == "from memory"


class Both(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    question: str | None = None
    answer: str = ""


@pytest.mark.parametrize("empty", [None, ""])
async def test_beside_an_empty_question_the_messages_are_read(empty):
    compiled = graph(Both, gece_edge(GATE))
    for text, answer in (("rare", "looked up"), ("hi", "from memory")):
        state = {"messages": [HumanMessage(text)], "question": empty}
        assert await both(compiled, state) == answer


async def test_a_hundred_runs_of_the_graph_decide_side_by_side():
    model = FunctionChat(lambda question: soon("known"))
    compiled = graph(
        Asked, gece_edge(RuleGate(World(llm=LangChainLLM(model, max_concurrency=100))))
    )
    await asyncio.gather(*(compiled.ainvoke({"question": str(i)}) for i in range(100)))
    assert model.flying == [0, 100]


async def test_the_last_human_message_is_the_question():
    for edge in (gece_edge(GATE), gece_edge(GATE, condense=None)):
        compiled = graph(Chat, edge)
        messages = [HumanMessage("rare"), AIMessage("rare?"), HumanMessage("hi")]
        assert await both(compiled, {"messages": messages[:2]}) == "looked up"
    assert await both(compiled, {"messages": messages}) == "from memory"


async def test_nodes_may_have_other_names():
    named = graph(Asked, gece_edge(GATE, retrieve="search", direct="say"), None, "search", "say")
    assert await both(named, {"question": "rare"}) == "looked up"
    mapped = graph(Asked, gece_edge(GATE), {"retrieve": "search", "direct": "say"}, "search", "say")
    assert await both(mapped, {"question": "hi"}) == "from memory"


def test_the_drawn_graph_shows_just_the_two_ways():
    edges = graph(Asked, gece_edge(GATE)).get_graph().edges
    ways = {edge.target for edge in edges if edge.source == START}
    assert ways == {"retrieve", "direct"}


async def test_the_decision_is_a_run_inside_the_graphs_own():
    compiled = graph(Asked, gece_edge(GATE))
    sync, native = Runs(), Runs()
    compiled.invoke({"question": "rare"}, {"callbacks": [sync]})
    await compiled.ainvoke({"question": "rare"}, {"callbacks": [native]})
    for runs in (sync, native):
        [decided], [asked] = runs.named("GECEGate"), runs.named("ltrag_call")
        assert decided["output"]["retrieve"] is True
        assert runs.ancestry(asked)[:3] == ["ltrag_call", "GECEGate", "gece_edge"]
        assert runs.ancestry(asked)[-1] == "LangGraph"


def test_errors_pass_through_the_graph():
    with pytest.raises(EmptyQuestion):
        graph(Asked, gece_edge(GATE)).invoke({"question": " "})
    with pytest.raises(InvalidInput, match="question_key"):
        graph(Asked, gece_edge(GATE)).invoke({"answer": "x"})
