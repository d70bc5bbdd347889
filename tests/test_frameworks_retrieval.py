"""Retrievers, passages and embeddings of both frameworks as ours, and ours as theirs."""

import asyncio
from functools import partial

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.schema import NodeWithScore, TextNode

from ltrag_plugins import langchain, llama_index
from ltrag_plugins.errors import InvalidInput, RetrieverFailed
from ltrag_plugins.flow import World, arun, fetch, run
from ltrag_plugins.llama_index import LlamaIndexRetriever, LtragLLM, node_of
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.retrieval.base import AsyncRetriever
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage
from tests.framework_parts import LangChainLetters, LlamaIndexLetters, dumped, letters
from tests.gates import RuleGate, always
from tests.llama_index_parts import FACTS, AwaitedRetriever, KeywordRetriever, engine

PASSAGES = [Passage(text, id=key, title=key.title()) for key, text in FACTS.items()]
QUERIES = ["Who wrote Emma?", "nothing of the kind", "Paris or Emma?"]
GATE = RuleGate(World(llm=ScriptedLLM(lambda prompt: "x")), always)


def by_keyword(query: str) -> list[Document]:
    return [langchain.document_of(p) for p in PASSAGES if p.id in query.lower()]


@pytest.mark.parametrize(
    "retriever",
    [
        langchain.LangChainRetriever(RunnableLambda(by_keyword)),
        LlamaIndexRetriever(KeywordRetriever()),
        LlamaIndexRetriever(AwaitedRetriever()),
    ],
)
async def test_theirs_search_as_ours_in_the_order_of_the_queries(retriever):
    assert isinstance(retriever, AsyncRetriever)
    for k, ids in ((5, [["emma"], [], ["emma", "paris"]]), (1, [["emma"], [], ["emma"]])):
        found = retriever.search(QUERIES, k=k)
        assert [[p.id for p in passages] for passages in found] == ids
        assert await retriever.asearch(QUERIES, k=k) == found
    assert retriever.search([], k=3) == await retriever.asearch([], k=3) == []


async def test_langchains_search_refuses_one_string_which_is_many_letters():
    retriever = langchain.LangChainRetriever(RunnableLambda(by_keyword))
    with pytest.raises(InvalidInput, match="queries came as one string"):
        retriever.search("Who wrote Emma?", k=3)
    with pytest.raises(InvalidInput, match="queries came as one string"):
        await retriever.asearch("Who wrote Emma?", k=3)


class AsyncSearch:
    """Our `AsyncRetriever`; its sync search must not be used from an event loop."""

    def search(self, queries, k):
        raise AssertionError("the sync search was called")

    async def asearch(self, queries, k):
        return [PASSAGES[:k] for _ in queries]


class Lost:
    def search(self, queries, k):
        raise LookupError("index")


@pytest.mark.parametrize(
    "there_and_back",
    [
        lambda o: langchain.LangChainRetriever(langchain.PassageRetriever(retriever=o, k=2)),
        lambda o: LlamaIndexRetriever(llama_index.PassageRetriever(o, k=2)),
    ],
)
async def test_ours_as_theirs_and_back_find_what_ours_find(there_and_back):
    ours = BM25Retriever(PASSAGES)
    back = there_and_back(ours)

    def plain(found):
        return [[(p.text, p.id, p.title, p.score) for p in passages] for passages in found]

    wanted = plain(ours.search(QUERIES[:1], 2))
    assert plain(back.search(QUERIES[:1], 2)) == wanted
    assert plain(await back.asearch(QUERIES[:1], 2)) == wanted
    [found] = await there_and_back(AsyncSearch()).asearch(["x"], 2)
    assert [p.id for p in found] == ["emma", "raoul"]
    with pytest.raises(RetrieverFailed, match="index"):
        there_and_back(Lost()).search(["x"], 2)
    with pytest.raises(RetrieverFailed, match="index"):
        await there_and_back(Lost()).asearch(["x"], 2)


def lost(query):
    raise LookupError("index gone")


class LostNodes(KeywordRetriever):
    _retrieve = staticmethod(lost)


@pytest.mark.parametrize(
    "retriever",
    [langchain.LangChainRetriever(RunnableLambda(lost)), LlamaIndexRetriever(LostNodes())],
)
def test_a_failing_retriever_is_the_cause_of_the_named_error(retriever):
    world = World(retriever=retriever)
    for call in (run, lambda *told: asyncio.run(arun(*told))):
        with pytest.raises(RetrieverFailed, match="index gone") as caught:
            call(fetch("tea", k=1), world)
        assert isinstance(caught.value.__cause__, LookupError)


def test_a_node_becomes_a_passage_with_its_bare_text_and_back():
    node = TextNode(id_="n1", text="Emma is a novel.", metadata={"title": "Emma", "year": 1815})
    for score in (None, 0.25, -1.5):
        passage = llama_index.passage_of(NodeWithScore(node=node, score=score))
        assert passage == Passage("Emma is a novel.", "n1", "Emma", score, node.metadata)
        assert llama_index.passage_of(node_of(passage)) == passage
        passage.metadata["year"] = 0
        assert node.metadata["year"] == 1815
    ids = [node_of(Passage(text, title=title)).node_id for text, title in ["ab", "ab", "ac", "bb"]]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


async def test_a_retriever_without_async_of_its_own_is_kept_off_the_event_loop():
    keywords = KeywordRetriever()
    await LlamaIndexRetriever(keywords).asearch(QUERIES, k=5)
    await llama_index.GECERetriever(GATE, keywords).aretrieve(QUERIES[0])
    assert sorted(keywords.queries) == sorted([*QUERIES, QUERIES[0]])
    assert keywords.blocked_the_loop == []


def test_the_gated_retriever_hands_on_the_nodes_with_their_own_scores():
    keywords = KeywordRetriever()
    before = dumped(keywords.nodes)
    nodes = llama_index.GECERetriever(GATE, keywords).retrieve("Emma in Paris")
    assert [(node.node_id, node.score) for node in nodes] == [("emma", 0.5), ("paris", 0.5)]
    assert dumped(keywords.nodes) == before


async def test_our_model_and_our_retriever_together_serve_a_query_engine():
    llm = LtragLLM(ScriptedLLM(lambda p: "Austen" if FACTS["emma"] in p else "?"))
    reading = engine(llm, llama_index.PassageRetriever(BM25Retriever(PASSAGES), k=1))
    answered, awaited = reading.query("Who wrote Emma?"), await reading.aquery("Who wrote Emma?")
    assert str(answered) == str(awaited) == "Austen"
    assert answered.source_nodes == awaited.source_nodes
    [source] = answered.source_nodes
    assert (source.node.node_id, source.node.metadata) == ("emma", {"title": "Emma"})
    assert source.score > 0


@pytest.mark.parametrize(
    "encoder",
    [
        langchain.LangChainEncoder(LangChainLetters()),
        llama_index.LlamaIndexEncoder(LlamaIndexLetters()),
    ],
)
def test_an_embedding_model_is_an_encoder_with_one_row_per_text_in_order(encoder):
    assert isinstance(encoder, Encoder)
    assert "Letters:letters" in encoder.name
    texts = ["abca", "", "cc"] * 10  # more than one of LlamaIndex's batches
    rows = encoder.encode(texts)
    assert rows.dtype == np.float32
    assert rows.tolist() == letters(texts).tolist()
    assert encoder.encode([]).shape == (0, 0)


@pytest.mark.parametrize(
    ("kind", "given", "match"),
    [
        (langchain.LangChainRetriever, [len], "RunnableLambda"),
        (langchain.LangChainEncoder, [len], "Embeddings"),
        (langchain.GECERouter, [RunnableLambda(lost), GATE], "gate must be a gate"),
        (langchain.GECERouter, [GATE, "chain"], "retrieving must be a LangChain Runnable, a func"),
        (partial(langchain.GECERouter, direct=5), [GATE, lost], "direct must be .* got int"),
        (partial(langchain.GECERouter, audit_rate="a"), [GATE, lost], "audit_rate is a share"),
        (langchain.passage_of, ["a text"], "a document must be a LangChain Document, got str"),
        (LlamaIndexRetriever, [Lost()], "must be a LlamaIndex BaseRetriever, got Lost"),
        (llama_index.PassageRetriever, [KeywordRetriever()], "must be an ltrag_plugins"),
        (llama_index.LlamaIndexEncoder, ["letters"], "embedding must be a LlamaIndex"),
        (llama_index.GECERetriever, [len, KeywordRetriever()], "gate must be a gate"),
        (llama_index.GECERetriever, [GATE, engine()], "must be a LlamaIndex BaseRetriever"),
        (partial(llama_index.PassageRetriever, k=0), [Lost()], "k must be at least 1, got 0"),
    ],
)
def test_what_is_no_part_is_refused(kind, given, match):
    with pytest.raises(InvalidInput, match=match):
        kind(*given)
    with pytest.raises(ValueError, match="GECEGate"):  # pydantic's own
        langchain.GECERetriever(gate=len, retriever=RunnableLambda(lost))
