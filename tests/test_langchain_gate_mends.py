"""GECERouter in LangChain: audits after the caller's loop."""

import asyncio

from langchain_core.runnables import RunnableLambda

from ltrag_plugins.flow import World
from ltrag_plugins.langchain import GECERouter
from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.gates import RuleGate, never


def gate(rule=never) -> RuleGate:
    return RuleGate(World(llm=ScriptedLLM(lambda prompt: "City 7")), rule)


async def city(text: str) -> str:
    await asyncio.sleep(0.01)
    return "City 7"


def test_audits_are_made_where_each_call_has_a_loop_that_ends_with_it():
    router = GECERouter(gate(), RunnableLambda(city), audit_rate=1.0)
    for i in range(30):
        asyncio.run(router.ainvoke(f"Which city is number {i}?"))
    assert router.settle(30)
    assert (router.monitor.audits, router.monitor.failed) == (30, 0)


def test_an_audit_is_made_where_the_loop_of_its_call_stands_still():
    asked, loop = list[str](), asyncio.new_event_loop()

    async def chain(text: str) -> str:
        asked.append(text)
        return "City 7"

    router = GECERouter(gate(), RunnableLambda(chain), audit_rate=1.0)
    loop.run_until_complete(router.ainvoke("Which city is number 7?"))
    assert router.settle(30)
    loop.close()
    assert asked == ["Which city is number 7?"]
    assert (router.monitor.audits, router.monitor.failed) == (1, 0)


def test_a_chain_that_cancels_itself_fails_its_audits_and_ends_no_thread():
    async def chain(text: str) -> str:
        raise asyncio.CancelledError

    router = GECERouter(gate(), RunnableLambda(chain), audit_rate=1.0)
    for i in range(4):
        asyncio.run(router.ainvoke(f"Which city is number {i}?"))
    assert router.settle(30)
    assert (router.monitor.audits, router.monitor.failed) == (0, 4)
