"""Documents and retrievers of LangChain as ours, and GECERetriever."""

import asyncio
import copy
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

from ltrag_plugins.errors import EmptyQuestion, InvalidInput
from ltrag_plugins.flow import World
from ltrag_plugins.langchain import (
    GECERetriever,
    LangChainLLM,
    LangChainRetriever,
    PassageRetriever,
    document_of,
    passage_of,
)
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage
from tests.gates import RuleGate, always, never
from tests.langchain_parts import FunctionChat, Runs, soon

POOL = [
    Document(id=f"d{i}", page_content=f"tea number {i} " + "leaf " * i, metadata={"tags": ["hot"]})
    for i in range(8)
]


class Pool(BaseRetriever):
    """Finds all that it has."""

    documents: list[Document] = POOL

    def _get_relevant_documents(self, query, *, run_manager):
        return self.documents


class Five(Pool):
    """Finds five, unless the field `k` says otherwise."""

    k: int = 5

    def _get_relevant_documents(self, query, *, run_manager):
        return self.documents[: self.k]


class FiveOnSyncCall(Pool):
    """Declares `k` for its sync search only, which LangChain's async default then refuses."""

    def _get_relevant_documents(self, query, *, run_manager, k: int = 5):
        return self.documents[:k]


class FiveOnCall(FiveOnSyncCall):
    """Finds five, unless called with `k`."""

    async def _aget_relevant_documents(self, query, *, run_manager, k: int = 5):
        return self._get_relevant_documents(query, run_manager=run_manager.get_sync(), k=k)


def store(k: int = 4) -> BaseRetriever:
    vectors = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    vectors.add_documents(POOL)
    return vectors.as_retriever(search_kwargs={"k": k})


GATE = RuleGate(World(llm=ScriptedLLM(lambda question: "draft")), always)
OURS = BM25Retriever([passage_of(document) for document in POOL])


class TestTheStandardSuite(RetrieversIntegrationTests):
    retriever_constructor = GECERetriever
    retriever_constructor_params = {"gate": GATE, "retriever": Pool()}  # noqa: RUF012
    retriever_query_example = "tea leaf"


class TestTheStandardSuiteOverAVectorStore(TestTheStandardSuite):
    retriever_constructor_params = {"gate": GATE, "retriever": store(k=1)}  # noqa: RUF012


class TestTheStandardSuiteForOurRetrieversAsLangChains(TestTheStandardSuite):
    retriever_constructor = PassageRetriever
    retriever_constructor_params = {"retriever": OURS}  # noqa: RUF012


@pytest.mark.parametrize("inner", [Five(), FiveOnCall(), store()])
async def test_k_is_asked_of_the_inner_retriever_and_not_dropped(inner):
    plain = GECERetriever(gate=GATE, retriever=inner)
    own = len(inner.invoke("tea leaf"))
    assert len(plain.invoke("tea leaf")) == own
    for k in (1, 7):
        assert len(plain.invoke("tea leaf", k=k)) == k
        assert len(await plain.ainvoke("tea leaf", k=k)) == k
        assert len(GECERetriever(gate=GATE, retriever=inner, k=k).invoke("tea leaf")) == k
        assert len(LangChainRetriever(inner).search(["tea leaf"], k)[0]) == k
    assert len(inner.invoke("tea leaf")) == own


async def test_an_inner_retriever_that_cannot_be_asked_the_same_way_twice_is_only_cut():
    retriever = GECERetriever(gate=GATE, retriever=FiveOnSyncCall())
    for k, count in {2: 2, 7: 5}.items():
        found = retriever.invoke("tea leaf", k=k)
        assert len(found) == count
        assert await retriever.ainvoke("tea leaf", k=k) == found


async def test_the_k_of_a_call_wins_and_what_cannot_be_asked_is_refused():
    retriever = GECERetriever(gate=GATE, retriever=Pool(), k=2)
    assert len(retriever.invoke("tea leaf", k=6)) == 6
    assert retriever.invoke("tea leaf", k=0) == []
    with pytest.raises(InvalidInput, match="at least 0"):  # and none dropped from the end
        retriever.invoke("tea leaf", k=-1)
    with pytest.raises(InvalidInput, match="at least 0"):
        await retriever.ainvoke("tea leaf", k=-1)
    with pytest.raises(TypeError, match="filter"):
        retriever.invoke("tea", filter="x")


async def test_gate_and_inner_retriever_are_child_runs_of_the_retriever():
    model = FunctionChat(lambda question: "draft")
    judge = RuleGate(World(llm=LangChainLLM(model)), always)
    retriever = GECERetriever(gate=judge, retriever=Pool())
    sync, native = Runs(), Runs()
    retriever.invoke("tea", {"callbacks": [sync]})
    await retriever.ainvoke("tea", {"callbacks": [native]})
    for runs in (sync, native):
        names = [run["name"] for run in runs.by_id.values()]
        assert names == ["GECERetriever", "GECEGate", "ltrag_call", "Pool"]
        [asked], [found] = runs.named("ltrag_call"), runs.named("Pool")
        assert runs.ancestry(asked) == ["ltrag_call", "GECEGate", "GECERetriever"]
        assert runs.ancestry(found) == ["Pool", "GECERetriever"]
        assert found["metadata"]["gece"] == judge.decide("tea").as_metadata()


async def test_the_inner_retriever_gets_the_config_of_the_call_alone_and_in_a_chain():
    seen = list[dict[str, Any]]()

    def search(query: str, config: RunnableConfig) -> list[Document]:
        seen.append({name: config.get(name) for name in ("configurable", "tags", "metadata")})
        return POOL[:1]

    retriever = GECERetriever(gate=GATE, retriever=RunnableLambda(search))
    mine: Any = {"configurable": {"tenant": "acme"}, "tags": ["mine"], "metadata": {"user": 1}}
    for asking in (retriever, RunnablePassthrough() | retriever):
        assert asking.invoke("tea leaf", mine) == POOL[:1]
        assert await asking.ainvoke("tea leaf", mine) == POOL[:1]
        assert asking.with_config(mine).batch(["tea leaf"]) == [POOL[:1]]
    runs, own = Runs(), uuid4()
    retriever.invoke("tea leaf", {**mine, "callbacks": [runs], "run_name": "mine", "run_id": own})
    assert [r["name"] for r in runs.by_id.values()] == ["mine", "GECEGate", "search"]
    decision = {"gece": GATE.decide("tea leaf").as_metadata()}
    for told in seen:
        assert told["configurable"] == mine["configurable"]
        assert "mine" in told["tags"]
        assert told["metadata"].items() >= {"user": 1, **decision}.items()
    assert len(seen) == 7


async def test_what_the_inner_retriever_sets_in_the_context_is_there_after_the_call():
    found = ContextVar[str]("found", default="nothing")

    class Searching(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            found.set(query)
            return POOL[:1]

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return self._get_relevant_documents(query, run_manager=run_manager)

    retriever = GECERetriever(gate=GATE, retriever=Searching())
    retriever.invoke("tea leaf")
    assert found.get() == "tea leaf"
    await retriever.ainvoke("green tea leaf")
    assert found.get() == "green tea leaf"


async def test_two_hundred_retrievals_are_in_flight_at_once():
    model = FunctionChat(lambda question: soon("draft"))
    judge = RuleGate(World(llm=LangChainLLM(model, max_concurrency=200)), never)
    retriever = GECERetriever(gate=judge, retriever=Pool())
    await asyncio.gather(*(retriever.ainvoke(f"tea {i}") for i in range(200)))
    assert model.flying == [0, 200]


async def test_errors_of_gate_and_inner_retriever_pass_through():
    def fail(query):
        raise LookupError("index gone")

    retriever = GECERetriever(gate=GATE, retriever=RunnableLambda(fail))
    for question, error in {"": EmptyQuestion, "tea": LookupError}.items():
        with pytest.raises(error):
            retriever.invoke(question)
        with pytest.raises(error):
            await retriever.ainvoke(question)


@pytest.mark.parametrize("found", [None, "tea", [None], [{"page_content": "tea"}]], ids=str)
async def test_what_is_no_list_of_documents_is_a_named_error(found):
    inner = RunnableLambda(lambda query: found)
    gated, ours = GECERetriever(gate=GATE, retriever=inner), LangChainRetriever(inner)
    why = "a list of langchain_core Documents, got"
    with pytest.raises(InvalidInput, match=why):
        gated.invoke("tea")
    with pytest.raises(InvalidInput, match=why):
        await gated.ainvoke("tea")
    with pytest.raises(InvalidInput, match=why):
        ours.search(["tea"], 2)
    with pytest.raises(InvalidInput, match=why):
        await ours.asearch(["tea"], 2)


async def test_documents_that_come_one_by_one_are_found_too():
    inner = RunnableLambda(lambda query: iter(POOL))
    gated, ours = GECERetriever(gate=GATE, retriever=inner, k=2), LangChainRetriever(inner)
    assert gated.invoke("tea") == await gated.ainvoke("tea") == POOL[:2]
    texts = [document.page_content for document in POOL[:2]]
    for [found] in (ours.search(["tea"], 2), await ours.asearch(["tea"], 2)):
        assert [passage.text for passage in found] == texts


def test_documents_keep_ids_order_and_metadata_and_what_is_handed_in_is_not_changed():
    documents = copy.deepcopy(POOL)
    inner, five = RunnableLambda(lambda query: documents), Five()
    found = GECERetriever(gate=GATE, retriever=inner).invoke("tea", k=3)
    assert found == documents[:3]
    [passages] = LangChainRetriever(inner).search(["tea"], 3)
    assert [passage.id for passage in passages] == ["d0", "d1", "d2"]
    assert documents == POOL
    assert all(p.metadata is not d.metadata for p, d in zip(passages, documents, strict=False))
    before = five.model_dump()
    retriever = GECERetriever(gate=GATE, retriever=five)
    retriever.invoke("tea", k=2)
    LangChainRetriever(five).search(["tea"], 7)
    assert retriever.retriever is five
    assert five.model_dump() == before


def test_a_document_comes_back_from_a_passage_as_it_was():
    for document in (
        Document("plain"),
        Document("full", id="7", metadata={"title": "T", "score": 2.5, "more": [1]}),
        Document("ranked", metadata={"relevance_score": 0.3, "score": 9}),
        Document("graded", metadata={"score": "A+", "title": 3, "relevance_score": True}),
    ):
        assert document_of(passage_of(document)) == document


def test_a_score_is_read_where_it_is_one():
    def score(**metadata):
        return passage_of(Document("x", metadata=metadata)).score

    assert score(relevance_score=0.3, score=9) == 0.3
    assert score(score=9) == 9.0
    assert score(score=np.float32(0.5)) == 0.5
    assert score(score="0.9") is score(score=True) is score(rank=1) is None


def test_a_fresh_score_wins_over_a_stale_one_in_the_metadata():
    stale = {"relevance_score": 0.1, "title": "old"}
    fresh = Passage("x", id="p", title="new", score=0.9, metadata=stale)
    assert document_of(fresh) == Document(
        "x", id="p", metadata={"relevance_score": 0.9, "title": "new"}
    )
    assert stale == {"relevance_score": 0.1, "title": "old"}
