import pytest

from ltrag_plugins.baselines import iter_retgen, single_retrieval
from ltrag_plugins.baselines.direct import direct
from ltrag_plugins.baselines.together import together
from ltrag_plugins.errors import ModelFailed
from ltrag_plugins.flow import World, ask, run, run_many
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage

WORLD = World(
    llm=ScriptedLLM(lambda prompt: f"the answer is {len(prompt)}"),
    retriever=BM25Retriever([Passage("who wrote emma"), Passage("the answer is 42")]),
)


def flows():
    return [
        direct("who?"),
        iter_retgen("who wrote it?"),
        single_retrieval("who?"),
        iter_retgen("no such thing"),
    ]


def test_flows_in_a_flow_return_what_run_many_returns_for_them():
    assert run(together(flows()), WORLD) == run_many(flows(), WORLD)
    assert run(together(flows()), WORLD) == [run(flow, WORLD) for flow in flows()]


def test_their_requests_merge():
    llm = ScriptedLLM(lambda _: "x")
    run(together([direct("a?"), direct("b?"), direct("c?")]), World(llm=llm))
    assert [len(call) for call in llm.calls] == [3]


def test_no_flows_need_nothing():
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
