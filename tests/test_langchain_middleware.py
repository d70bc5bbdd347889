"""GECEMiddleware and SGICMiddleware in agents of `create_agent`."""

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, wrap_tool_call
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.langchain import GECEMiddleware, LangChainLLM, SGICCalibrator, SGICMiddleware
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.types import Question
from tests.gates import RuleGate, always, never
from tests.langchain_parts import FunctionChat, Runs, chat_result


@tool
def search(query: str) -> str:
    """Search."""
    return f"found for {query}"


class Agent(FunctionChat):
    """Searches where it may and has not yet."""

    offered: list

    def bind_tools(self, tools, **kwargs):
        return self.bind(tools=[t.name for t in tools])

    def _generate(self, messages, stop=None, run_manager=None, tools=(), **kwargs):
        self.offered.append(list(tools))
        found = [m for m in messages if isinstance(m, ToolMessage)]
        if tools and not found:
            calls = [{"name": "search", "args": {"query": messages[-1].text}, "id": "1"}]
            return chat_result(AIMessage("", tool_calls=calls))
        return chat_result(found[-1].text if found else "from memory")

    async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
        return self._generate(messages, stop, **kwargs)


SAYS = SGICSettings(estimator="agreement", rounds=0)
ASKED = {"messages": [("human", "who keeps the bees?")]}


def agent(*middleware):
    model = Agent(lambda prompt: "", offered=[])
    return create_agent(model, [search], middleware=list(middleware)), model


def test_an_answer_about_a_picture_is_left_alone():
    model = ScriptedLLM(lambda prompt: "I cannot see it")
    middleware = SGICMiddleware(SGICCalibrator(model, settings=SAYS))
    picture = {"type": "image", "url": "http://localhost/a.png"}
    shown = HumanMessage([{"type": "text", "text": "What breed is this dog?"}, picture])
    talk = [shown, AIMessage("A beagle.")]
    assert middleware.after_agent({"messages": talk}, None) is None
    follow_up = [*talk, HumanMessage("What colour is it?"), AIMessage("Brown.")]
    assert middleware.after_agent({"messages": follow_up}, None) is None
    assert model.prompts == []
    other = [*follow_up, HumanMessage("Who keeps the bees?"), AIMessage("Nora.")]
    assert (
        middleware.after_agent({"messages": other}, None)["messages"][0].text == "I cannot see it"
    )


@pytest.mark.parametrize("rule", [always, never])
async def test_where_the_model_knows_the_search_is_not_offered(rule):
    drafting = ScriptedLLM(lambda prompt: "a draft")
    judge = RuleGate(World(llm=drafting), rule)
    compiled, model = agent(GECEMiddleware(judge, ["search"]))
    expected = "found for who keeps the bees?" if rule is always else "from memory"
    assert compiled.invoke(ASKED)["messages"][-1].text == expected
    assert (await compiled.ainvoke(ASKED))["messages"][-1].text == expected
    assert model.offered[0] == (["search"] if rule is always else [])
    assert len(model.offered) == (4 if rule is always else 2)
    assert drafting.prompts == ["who keeps the bees?"] * 2  # not again once a tool has run


async def test_the_draft_can_be_the_answer():
    judge = RuleGate(World(llm=ScriptedLLM(lambda prompt: "a draft")), never)
    compiled, model = agent(GECEMiddleware(judge, ["search"], draft_answers=True))
    for out in (compiled.invoke(ASKED), await compiled.ainvoke(ASKED)):
        assert out["messages"][-1].text == "a draft"
        assert out["messages"][-1].response_metadata["gece"]["retrieve"] is False
    assert model.offered == []


async def test_a_draft_streams_and_is_traced_as_the_answers_of_the_agents_model_are():
    judge = RuleGate(World(llm=LangChainLLM(FunctionChat(lambda prompt: "a draft"))), never)
    compiled, _ = agent(GECEMiddleware(judge, ["search"], draft_answers=True))
    events = [event async for event in compiled.astream_events(ASKED, version="v2")]
    said = [e["data"]["chunk"].text for e in events if e["event"] == "on_chat_model_stream"]
    assert "".join(said) == "a draft"
    runs = Runs()
    compiled.invoke(ASKED, {"callbacks": [runs]})
    [drafted] = runs.named("GECEDraft")
    assert runs.ancestry(drafted) == ["GECEDraft", "model", "LangGraph"]
    for pieces in (
        [*compiled.stream(ASKED, stream_mode="messages")],
        [piece async for piece in compiled.astream(ASKED, stream_mode="messages")],
    ):
        assert "".join(message.text for message, _ in pieces) == "a draft"


async def test_the_final_answer_is_calibrated_from_what_the_tools_found():
    reader = ScriptedLLM(lambda prompt: "bees" if "found for" in prompt else "no idea")
    compiled, _ = agent(SGICMiddleware(SGICCalibrator(reader, settings=SAYS)))
    for out in (compiled.invoke(ASKED), await compiled.ainvoke(ASKED)):
        last = out["messages"][-1]
        assert last.text == "bees"
        told = last.response_metadata["sgic"]
        assert told.keys() == {"refused", "uncertainty", "score", "p_wrong"}
        assert [m.type for m in out["messages"]] == ["human", "ai", "tool", "ai"]


async def test_where_no_tool_was_called_nothing_is_searched_for():
    asked = list[str]()
    reader = ScriptedLLM(lambda prompt: "bees" if "about" in prompt else "from memory")
    finding = RunnableLambda(lambda query: asked.append(query) or [Document("about bees")])
    sgic = SGICMiddleware(SGICCalibrator(reader, finding, settings=SAYS))
    judge = RuleGate(World(llm=ScriptedLLM(lambda prompt: "a draft")), never)
    compiled, _ = agent(GECEMiddleware(judge, ["search"], draft_answers=True), sgic)
    for out in (compiled.invoke(ASKED), await compiled.ainvoke(ASKED)):
        assert out["messages"][-1].text == "from memory"
    assert asked == []


async def test_only_a_closing_answer_to_a_question_is_calibrated():
    sgic = SGICMiddleware(SGICCalibrator(ScriptedLLM(lambda prompt: "bees"), settings=SAYS))
    calls = [{"name": "search", "args": {"query": "bees"}, "id": "1"}]
    asked, calling = HumanMessage("who keeps the bees?"), AIMessage("", tool_calls=calls)
    returned = [asked, calling, ToolMessage("found", tool_call_id="1", id="2")]
    for messages in (returned, [asked, calling], [AIMessage("hello")], []):
        assert sgic.after_agent({"messages": messages}, None) is None
        assert await sgic.aafter_agent({"messages": messages}, None) is None


def test_a_calibrated_message_keeps_what_else_the_agent_put_on_it():
    sgic = SGICMiddleware(SGICCalibrator(ScriptedLLM(lambda prompt: "bees"), settings=SAYS))
    used = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}
    kept = {"id": "7", "name": "helper", "usage_metadata": used, "additional_kwargs": {"k": 1}}
    said = AIMessage("raw", **kept)
    out = sgic.after_agent({"messages": [HumanMessage("who?"), said]}, None)
    [last] = (out or {})["messages"]
    assert (last.text, said.text) == ("bees", "raw")
    assert {name: getattr(last, name) for name in kept} == kept


async def test_what_a_tool_found_for_an_earlier_question_is_not_read_again():
    reader = ScriptedLLM(lambda prompt: "bees")
    compiled, _ = agent(SGICMiddleware(SGICCalibrator(reader, settings=SAYS, condense=None)))
    before = compiled.invoke(ASKED)["messages"]
    assert "found for" in reader.prompts[-1]
    later = {"messages": [*before, ("human", "and the wasps?")]}
    for out in (compiled.invoke(later), await compiled.ainvoke(later)):
        assert out["messages"][-1].text == "bees"
        assert "found for" not in reader.prompts[-1]


async def test_what_a_failed_tool_says_is_no_document():
    @wrap_tool_call
    async def failing(request, handler):
        return ToolMessage("Error: Bob", tool_call_id=request.tool_call["id"], status="error")

    reader = ScriptedLLM(lambda prompt: "Bob" if "Bob" in prompt else "no idea")
    compiled, _ = agent(failing, SGICMiddleware(SGICCalibrator(reader, settings=SAYS)))
    out = await compiled.ainvoke(ASKED)
    assert [out["messages"][i].text for i in (2, 3)] == ["Error: Bob", "no idea"]


class Structured(FunctionChat):
    def bind_tools(self, tools, **kwargs):
        return self


def test_a_structured_answer_is_not_calibrated():
    schema = {"title": "Answer", "type": "object", "properties": {"who": {"type": "string"}}}
    sgic = SGICMiddleware(SGICCalibrator(ScriptedLLM(lambda prompt: "bees"), settings=SAYS))
    model = Structured(lambda prompt: '{"who": "Ada"}')
    compiled = create_agent(model, middleware=[sgic], response_format=ProviderStrategy(schema))
    out = compiled.invoke(ASKED)
    assert json.loads(out["messages"][-1].text) == out["structured_response"] == {"who": "Ada"}


@pytest.mark.parametrize("offered", [
    {"type": "search"},
    {"type": "function", "function": {"name": "search", "parameters": {}}},
    {"name": "search", "description": "Search."},
    search,
])  # fmt: skip
def test_a_providers_own_tools_are_known_by_name_or_type(offered):
    middleware = GECEMiddleware(RuleGate(World(llm=ScriptedLLM(str)), never), ["search"])
    rest = [{"type": "code"}, {"type": "function", "function": {"name": "sum"}}]
    request = Request([HumanMessage("who?")], [*rest, offered])
    assert middleware.wrap_model_call(request, lambda given: given).tools == rest
    empty = Request([], [offered])
    assert middleware.wrap_model_call(empty, lambda given: given) is empty


@dataclass
class Request:
    messages: list
    tools: list
    tool_choice: Any = None

    def override(self, **changes):
        return replace(self, **changes)


async def test_what_the_gate_cannot_read_goes_to_the_agent_as_it_is():
    picture = [{"type": "text", "text": "who?"}, {"type": "image", "url": "http://a/b.png"}]
    judge = RuleGate(World(llm=ScriptedLLM(lambda prompt: "a draft")), never)
    compiled, model = agent(GECEMiddleware(judge, ["search"], draft_answers=True))
    for turns in ([("human", "what do bees eat?"), HumanMessage(picture)], [("human", picture)]):
        assert (await compiled.ainvoke({"messages": turns}))["messages"][-1].text != "a draft"
    assert model.offered == [["search"]] * 4
    assert judge.world.llm.calls == []


def test_a_chat_goes_on_after_a_turn_without_a_word():
    reader = ScriptedLLM(lambda prompt: "bees")
    asked = [Question(f"what is {i * 'very '}old?", (f"thing {i % 2}",)) for i in range(20)]
    drafting = ScriptedLLM(lambda prompt: "thing 1")
    gate = GECEGate.fit(asked, llm=drafting, target_rate=0.5)
    compiled, _ = agent(
        GECEMiddleware(gate, ["search"]), SGICMiddleware(SGICCalibrator(reader, settings=SAYS))
    )
    for turn in ("\N{THUMBS UP SIGN}", "word " * 3000):
        told = compiled.invoke({"messages": [("human", turn)]})["messages"]
        assert [m.type for m in told] == ["human", "ai", "tool", "ai"], turn


def searching(query: str) -> str:
    """Search."""
    return f"found for {query}"


searching.__name__ = "search"


@pytest.mark.parametrize("named", [
    "search", {"search"}, [search], (search,), search, [searching], searching,
    [{"name": "search", "description": "Search."}], {"type": "search"},
])  # fmt: skip
def test_the_tools_that_retrieve_are_given_by_name_or_themselves(named):
    judge = RuleGate(World(llm=ScriptedLLM(lambda prompt: "a draft")), never)
    compiled, model = agent(GECEMiddleware(judge, named))
    compiled.invoke(ASKED)
    assert model.offered == [[]]


@pytest.mark.parametrize("choice", [
    "search",
    {"type": "tool", "name": "search"},
    {"type": "function", "function": {"name": "search"}},
])  # fmt: skip
def test_a_tool_that_is_held_back_is_not_demanded(choice):
    middleware = GECEMiddleware(RuleGate(World(llm=ScriptedLLM(str)), never), ["search"])
    rest = [{"type": "code"}]
    request = Request([HumanMessage("who?")], [*rest, search], choice)
    assert middleware.wrap_model_call(request, lambda given: given) == replace(
        request, tools=rest, tool_choice=None
    )
    other = replace(request, tool_choice="any")
    assert middleware.wrap_model_call(other, lambda given: given).tool_choice == "any"


@pytest.mark.parametrize("wrong", [[partial(print)], [3], 3, None])
def test_what_is_no_tool_is_refused(wrong):
    with pytest.raises(InvalidInput, match="the tools that retrieve, or their names"):
        GECEMiddleware(RuleGate(World(llm=ScriptedLLM(str)), never), wrong)


def test_a_tool_by_a_name_that_the_agent_does_not_know_is_told(caplog):
    judge = RuleGate(World(llm=ScriptedLLM(lambda prompt: "a draft")), never)
    compiled, model = agent(GECEMiddleware(judge, ["serach"]))
    compiled.invoke(ASKED)
    assert model.offered[0] == ["search"]
    assert "no tool of the agent is named serach, so none is held back; its tools: search" in (
        caplog.text
    )


def test_a_structured_answer_is_the_agents_own_where_the_model_knows():
    asked = ModelRequest(
        model=Agent(lambda prompt: "", offered=[]),
        messages=[HumanMessage("who keeps the bees?")],
        tools=[search],
        response_format=ToolStrategy({"title": "Answer", "type": "object", "properties": {}}),
    )
    judge = RuleGate(World(llm=ScriptedLLM(lambda prompt: "a draft")), never)
    middleware = GECEMiddleware(judge, ["search"], draft_answers=True)
    assert middleware.wrap_model_call(asked, lambda request: request).tools == []
