"""GECERouter in LangChain: audits, fits and a batch's failing inputs leave other calls alone."""

import asyncio
from collections import defaultdict

import pytest
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    ConfigurableFieldSpec,
    RunnableBranch,
    RunnableLambda,
    RunnablePassthrough,
)
from langchain_core.runnables.history import RunnableWithMessageHistory
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import World
from ltrag_plugins.gece import savings
from ltrag_plugins.langchain import GECERouter, fitting
from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.gates import RuleGate, always, never


def gate(rule=never) -> RuleGate:
    return RuleGate(World(llm=ScriptedLLM(lambda prompt: "City 7")), rule)


def rare(question, draft) -> bool:
    return "rare" in question


async def city(text: str) -> str:
    await asyncio.sleep(0.01)
    return "City 7"


def test_audits_are_made_where_each_call_has_a_loop_that_ends_with_it():
    router = GECERouter(gate(), RunnableLambda(city), audit_rate=1.0)
    for i in range(30):
        asyncio.run(router.ainvoke(f"Which city is number {i}?"))
    assert router.settle(30)
    assert (router.monitor.audits, router.monitor.failed) == (30, 0)


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_audit_waits_for_a_loop_that_pauses_and_not_for_one_that_is_closed(goes_on):
    asked, loop = list[asyncio.AbstractEventLoop](), asyncio.new_event_loop()

    async def chain(text: str) -> str:
        asked.append(asyncio.get_running_loop())
        return "City 7"

    router = GECERouter(gate(), RunnableLambda(chain), audit_rate=1.0)
    loop.run_until_complete(router.ainvoke("Which city is number 7?"))
    assert not router.settle(0.5)
    if goes_on:  # a connection of the chain's client belongs to it
        loop.run_until_complete(asyncio.sleep(1))
    else:
        loop.close()
    assert router.settle(30)
    assert [one is loop for one in asked] == [goes_on]
    assert (router.monitor.audits, router.monitor.failed) == (1, 0)
    loop.close()


def test_an_audit_in_a_loop_that_is_not_run_any_more_fails(monkeypatch):
    monkeypatch.setattr(savings, "_STILL", 0.5)
    loop = asyncio.new_event_loop()
    router = GECERouter(gate(), RunnableLambda(city), audit_rate=1.0)
    loop.run_until_complete(router.ainvoke("Which city is number 7?"))
    assert router.settle(30)
    assert (router.monitor.audits, router.monitor.failed) == (0, 1)
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()


def test_a_chain_that_cancels_itself_fails_its_audits_and_ends_no_thread():
    async def chain(text: str) -> str:
        raise asyncio.CancelledError

    router = GECERouter(gate(), RunnableLambda(chain), audit_rate=1.0)
    for i in range(4):
        asyncio.run(router.ainvoke(f"Which city is number {i}?"))
    assert router.settle(30)
    assert (router.monitor.audits, router.monitor.failed) == (0, 4)


@pytest.mark.parametrize("ends", [asyncio.CancelledError, SystemExit])
def test_what_ends_a_sync_chain_for_good_fails_its_audits_and_ends_no_thread(ends):
    def chain(text: str) -> str:
        raise ends

    router = GECERouter(gate(), RunnableLambda(chain), audit_rate=1.0)
    for i in range(4):
        assert router.invoke(f"Which city is number {i}?") == "City 7"
    assert router.settle(5)
    assert (router.monitor.audits, router.monitor.failed) == (0, 4)


async def test_settle_says_at_once_that_an_audit_waits_for_the_loop_it_is_called_in(caplog):
    router = GECERouter(gate(), RunnableLambda(city), audit_rate=1.0)
    await router.ainvoke("Which city is number 7?")
    assert not router.settle()
    assert "await asyncio.to_thread(router.settle)" in caplog.text
    assert await asyncio.to_thread(router.settle)
    found = RunnableLambda(lambda text: "City 7")
    other = GECERouter(gate(), found, audit_rate=1.0)
    await other.ainvoke("Which city is number 7?")
    assert other.settle()  # which has a sync call
    assert [one.monitor.audits for one in (router, other)] == [1, 1]


async def test_a_decision_counts_where_no_more_of_its_stream_is_read():
    router = GECERouter(gate(always), RunnableLambda(city), return_decision=True)
    pieces, apieces = router.stream("one"), router.astream("two")
    assert {*next(pieces), *await anext(apieces)} == {"decision"}
    pieces.close()
    await apieces.aclose()
    assert (router.monitor.decisions, router.monitor.retrieved) == (2, 1.0)
    router.stream("three").close()  # of which nothing was asked
    assert router.monitor.decisions == 2


async def test_a_shape_that_fails_for_one_input_of_a_batch_leaves_the_others_theirs():
    def shape(decision) -> str:
        if "bad" in decision.question:
            raise KeyError("no slot")
        return decision.answer

    router = GECERouter(gate(rare), lambda text: f"found for {text}", answer=shape)
    inputs = ["rare one", "bad", "fine"]
    for found in (
        router.batch(inputs, return_exceptions=True),
        await router.abatch(inputs, return_exceptions=True),
    ):
        assert (found[0], found[2]) == ("found for rare one", "City 7")
        assert isinstance(found[1], KeyError)
    with pytest.raises(KeyError):
        router.batch(inputs)


async def test_what_cannot_follow_its_thread_leaves_the_others_of_a_batch_theirs():
    graph = StateGraph(MessagesState).add_node("n", lambda state: {"messages": ["found"]})
    graph = graph.add_edge(START, "n").compile(InMemorySaver())
    router = GECERouter(gate(rare), graph, condense=None)
    first, second = ({"configurable": {"thread_id": name}} for name in "ab")
    given = {"messages": [HumanMessage("a rare one")]}
    router.batch([given, given], [first, second])
    inputs, configs = [{"messages": 5}, given], [first, second]
    for found in (
        router.batch(inputs, configs, return_exceptions=True),
        await router.abatch(inputs, configs, return_exceptions=True),
    ):
        assert isinstance(found[0], InvalidInput)
        assert found[1]["messages"][-1].text == "found"
    with pytest.raises(InvalidInput):
        router.batch(inputs, configs)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("around", [
    lambda chain: chain,
    lambda chain: chain.with_retry() | StrOutputParser(),
    lambda chain: RunnablePassthrough.assign(answer=chain),
    lambda chain: {"answer": chain} | RunnableLambda(lambda out: out["answer"]),
    lambda chain: chain.with_fallbacks([RunnableLambda(str)]),
    lambda chain: RunnableBranch((lambda value: False, RunnableLambda(str)), chain),
])  # fmt: skip
def test_a_history_with_ids_of_its_own_hears_of_no_audit_and_no_fit(around):
    histories, ids = defaultdict(InMemoryChatMessageHistory), ("user_id", "conversation_id")
    prompt = ChatPromptTemplate([("placeholder", "{chat_history}"), ("human", "{question}")])
    chain = RunnableWithMessageHistory(
        prompt | RunnableLambda(lambda prompt: AIMessage("City 7")),
        lambda user_id, conversation_id: histories[user_id, conversation_id],
        input_messages_key="question",
        history_messages_key="chat_history",
        history_factory_config=[
            ConfigurableFieldSpec(id=name, annotation=str, is_shared=True) for name in ids
        ],
    )
    chain = around(chain)
    router = GECERouter(gate(), chain, audit_rate=1.0)
    for _ in range(2):
        router.invoke({"question": "Which city?"}, {"configurable": dict.fromkeys(ids, "mine")})
    assert router.settle(30)
    assert (router.monitor.audits, router.monitor.failed) == (2, 0)
    assert [user for user, _ in histories] == ["mine"] * 2  # who asks stays
    assert ("mine", "mine") not in histories
    fitting._answers_of(chain, [{"question": f"Which city is {i}?"} for i in range(6)], 2, "auto")
    assert [len(kept.messages) for kept in histories.values()] == [2] * 8
