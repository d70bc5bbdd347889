from dataclasses import replace

import pytest
from method_parts import flow_of

from ltrag_plugins.errors import ModelFailed
from ltrag_plugins.flow import World, ask, changing, run, run_many, together
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.direct import direct, single_retrieval
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage

WORLD = World(
    llm=ScriptedLLM(lambda prompt: f"the answer is {len(prompt)}"),
    retriever=BM25Retriever([Passage("who wrote emma"), Passage("the answer is 42")]),
)


def flows():
    return [
        direct("who?"),
        flow_of("iter-retgen", "who wrote it?"),
        single_retrieval("who?"),
        flow_of("iter-retgen", "no such thing"),
    ]


def test_flows_in_a_flow_return_what_run_many_returns_for_them_and_their_requests_merge():
    alone = [run(flow, WORLD) for flow in flows()]
    assert run(together(flows()), WORLD) == run_many(flows(), WORLD) == alone
    llm = ScriptedLLM(lambda _: "x")
    run(together([direct("a?"), direct("b?"), direct("c?")]), World(llm=llm))
    assert [len(call) for call in llm.calls] == [3]
    assert run(together([]), World()) == []


def test_what_the_model_raises_ends_all_of_them():
    closed = []

    def careful(text):
        try:
            yield from ask(text)
        finally:
            closed.append(text)

    def fails(_):
        raise OSError("down")

    with pytest.raises(ModelFailed, match="down"):
        run(together([careful("a"), careful("b")]), World(llm=ScriptedLLM(fails)))
    assert sorted(closed) == ["a", "b"]


def shout(request):
    return replace(request, prompts=tuple(prompt.upper() for prompt in request.prompts))


def test_a_changed_flow_asks_otherwise_and_goes_on_with_the_reply():
    echo = World(llm=ScriptedLLM(lambda prompt: f"<{prompt}>"))

    def twice():
        [first] = yield from ask("emma")
        [second] = yield from ask(first.text)
        return second.text

    assert run(twice(), echo) == "<<emma>>"
    assert run(changing(twice(), shout), echo) == "<<EMMA>>"
    assert run(changing(twice(), lambda request: request), echo) == "<<emma>>"


def test_errors_reach_the_changed_flow_which_may_go_on():
    def fails(prompt):
        if prompt == "EMMA":
            raise OSError("down")
        return prompt

    def careful():
        try:
            yield from ask("emma")
        except ModelFailed:
            [reply] = yield from ask("walden")
            return reply.text

    assert run(changing(careful(), shout), World(llm=ScriptedLLM(fails))) == "WALDEN"
    with pytest.raises(ModelFailed):
        run(changing(ask("emma"), shout), World(llm=ScriptedLLM(fails)))


def test_a_changed_flow_is_closed_with_the_one_around_it():
    closed = []

    def open_ended():
        try:
            yield from ask("emma")
        finally:
            closed.append(True)

    flow = changing(open_ended(), shout)
    next(flow)
    flow.close()
    assert closed == [True]
