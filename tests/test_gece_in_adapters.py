"""A gate that was fitted, in each adapter: other tests of theirs have a rule in its place."""

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode

from ltrag_plugins import langchain, llama_index
from ltrag_plugins.gece import GECEGate, GECESettings
from ltrag_plugins.langchain import LangChainLLM
from ltrag_plugins.llama_index import LlamaIndexLLM
from tests.gece_parts import answer, honest_llm, knows, questions
from tests.langchain_parts import FunctionChat
from tests.llama_index_parts import FunctionLLM

NEW = [f"What is the colour of house {i}?" for i in range(100, 112)]
DRAFT = {question: answer(f"Question: {question}\nAnswer:").text for question in NEW}
EXPECTED = [DRAFT[q] if knows(q) else f"looked up: {q}" for q in NEW]


@pytest.fixture(scope="module")
def gate() -> GECEGate:
    settings = GECESettings(scorer="product")
    return GECEGate.fit(questions(), llm=honest_llm(), target_rate=0.5, settings=settings)


class Engine(CustomQueryEngine):
    def custom_query(self, query_str: str) -> str:
        return f"looked up: {query_str}"


def looked_up(question: str) -> str:
    return f"looked up: {question}"


async def test_langchains_router_answers_what_the_gate_knows_in_every_way_of_calling(gate):
    router = langchain.GECERouter(gate, RunnableLambda(looked_up))
    assert [router.invoke(q) for q in NEW] == EXPECTED
    assert [await router.ainvoke(q) for q in NEW] == EXPECTED
    assert router.batch(NEW) == await router.abatch(NEW) == EXPECTED
    assert ["".join(router.stream(q)) for q in NEW] == EXPECTED


async def test_langchains_retriever_and_edge_follow_the_gate(gate):
    found = RunnableLambda(lambda query: [Document(query)])
    retriever = langchain.GECERetriever(gate=gate, retriever=found, known="nothing")
    edge = langchain.gece_edge(gate, question_key="question")
    for question in NEW:
        expected = [] if knows(question) else [Document(question)]
        assert retriever.invoke(question) == await retriever.ainvoke(question) == expected
        assert edge.invoke({"question": question}) == ("direct" if knows(question) else "retrieve")


async def test_llamaindexs_router_and_retriever_follow_the_gate(gate):
    router = llama_index.GECERouter(gate, Engine())
    assert [str(router.query(q)) for q in NEW] == EXPECTED
    assert [str(await router.aquery(q)) for q in NEW] == EXPECTED

    class Shelf(BaseRetriever):
        def _retrieve(self, query_bundle):
            return [NodeWithScore(node=TextNode(text=query_bundle.query_str))]

    retriever = llama_index.GECERetriever(gate, Shelf(), known="nothing")
    for question in NEW:
        expected = [] if knows(question) else [question]
        assert [node.text for node in retriever.retrieve(question)] == expected
        assert [node.text for node in await retriever.aretrieve(question)] == expected


@pytest.mark.parametrize(
    "wrapped",
    [
        LangChainLLM(FunctionChat(lambda prompt: answer(prompt).text)),
        LlamaIndexLLM(FunctionLLM(lambda prompt: answer(prompt).text)),
    ],
    ids=["langchain", "llama_index"],
)
async def test_a_gate_is_fitted_and_decides_through_either_framework(wrapped):
    gate = GECEGate.fit(questions(), llm=wrapped, target_rate=0.5, settings=GECESettings(folds=2))
    assert gate.report.tier == "text"
    decided = gate.decide_many(NEW)
    assert [decision.retrieve for decision in decided] == [not knows(q) for q in NEW]
    assert [await gate.adecide(q) for q in NEW] == decided
