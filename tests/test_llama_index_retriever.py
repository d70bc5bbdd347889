import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import NodeWithScore, TextNode

from ltrag_plugins.errors import InvalidInput, RetrieverFailed
from ltrag_plugins.flow import World
from ltrag_plugins.llama_index import (
    GECERetriever,
    LlamaIndexEncoder,
    LlamaIndexRetriever,
    LtragLLM,
    PassageRetriever,
    node_of,
    passage_of,
)
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.retrieval.base import AsyncRetriever
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage
from tests.gates import RuleGate, always, never
from tests.llama_index_parts import FACTS, AwaitedRetriever, KeywordRetriever, engine

QUERIES = ["Who wrote Emma?", "nothing of the kind", "Paris or Emma?"]
PASSAGES = [Passage(text, id=key, title=key.title()) for key, text in FACTS.items()]


def test_a_node_becomes_a_passage_with_its_bare_text_title_id_and_score():
    node = TextNode(id_="n1", text="Emma is a novel.", metadata={"title": "Emma", "year": 1815})
    passage = passage_of(NodeWithScore(node=node, score=0.25))
    assert passage == Passage(
        "Emma is a novel.", "n1", "Emma", 0.25, {"title": "Emma", "year": 1815}
    )
    passage.metadata["year"] = 0
    assert node.metadata["year"] == 1815


def test_a_passage_survives_the_way_to_a_node_and_back():
    for score in (None, 0.0, -1.5):
        passage = Passage("text", "p1", "Title", score, {"title": "Title", "page": 3})
        assert passage_of(node_of(passage)) == passage


def test_passages_without_ids_get_equal_ids_exactly_when_they_are_equal():
    ids = [node_of(Passage(text, title=title)).node_id for text, title in ["ab", "ab", "ac", "bb"]]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("kind", [KeywordRetriever, AwaitedRetriever])
async def test_sync_and_async_search_find_the_same_passages_in_the_order_of_the_queries(kind):
    retriever = LlamaIndexRetriever(kind())
    found = retriever.search(QUERIES, k=5)
    assert [[p.id for p in passages] for passages in found] == [["emma"], [], ["emma", "paris"]]
    assert await retriever.asearch(QUERIES, k=5) == found
    assert isinstance(retriever, AsyncRetriever)


async def test_a_retriever_without_async_of_its_own_is_kept_off_the_event_loop():
    keywords = KeywordRetriever()
    await LlamaIndexRetriever(keywords).asearch(QUERIES, k=5)
    gate = RuleGate(World(llm=ScriptedLLM(lambda prompt: "?")), always)
    await GECERetriever(gate, keywords).aretrieve(QUERIES[0])
    assert sorted(keywords.queries) == sorted([*QUERIES, QUERIES[0]])
    assert keywords.blocked_the_loop == []


def test_at_most_k_passages_and_the_retrievers_own_nodes_are_left_alone():
    keywords = KeywordRetriever()
    before = [node.model_dump() for node in keywords.nodes]
    [[passage]] = LlamaIndexRetriever(keywords).search(["Emma in Paris"], k=1)
    assert passage.id == "emma"
    assert [node.model_dump() for node in keywords.nodes] == before


def test_no_queries_find_nothing():
    assert LlamaIndexRetriever(KeywordRetriever()).search([], k=3) == []


def test_a_vector_index_is_searched_through_its_retriever():
    nodes = [TextNode(id_=p.id, text=p.text) for p in PASSAGES]
    index = VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=4))
    found = LlamaIndexRetriever(index.as_retriever(similarity_top_k=3)).search(["Emma"], k=2)
    assert len(found[0]) == 2
    assert {p.text for p in found[0]} <= set(FACTS.values())


def test_our_bm25_serves_a_llama_index_query_engine():
    retriever = PassageRetriever(BM25Retriever(PASSAGES), k=1)
    response = engine(retriever=retriever).query("Who has played Raoul?")
    assert str(response) == f"read: {FACTS['raoul']}"
    [source] = response.source_nodes
    assert source.node.node_id == "raoul"
    assert source.node.metadata == {"title": "Raoul"}
    assert source.score > 0


async def test_our_model_and_our_retriever_together_serve_a_query_engine_sync_and_async():
    async def read(prompt):
        return "Austen" if FACTS["emma"] in prompt else "?"

    def ask(prompt):
        return "Austen" if FACTS["emma"] in prompt else "?"

    retriever = PassageRetriever(BM25Retriever(PASSAGES), k=2)
    answered = engine(LtragLLM(ScriptedLLM(ask)), retriever).query("Who wrote Emma?")
    awaited = await engine(LtragLLM(ScriptedLLM(read)), retriever).aquery("Who wrote Emma?")
    assert str(answered) == str(awaited) == "Austen"
    assert answered.source_nodes == awaited.source_nodes


class AsyncSearch:
    """Our `AsyncRetriever`; its sync search must not be used from an event loop."""

    def search(self, queries, k):
        raise AssertionError("the sync search was called")

    async def asearch(self, queries, k):
        return [PASSAGES[:k] for _ in queries]


async def test_our_async_retriever_is_awaited():
    found = await PassageRetriever(AsyncSearch(), k=2).aretrieve("anything")
    assert [node.node_id for node in found] == ["emma", "raoul"]


def test_wrong_retrievers_and_sizes_are_refused():
    with pytest.raises(
        InvalidInput, match="retriever must be a LlamaIndex BaseRetriever, got BM25"
    ):
        LlamaIndexRetriever(BM25Retriever(PASSAGES))
    with pytest.raises(InvalidInput, match="retriever must be an ltrag_plugins"):
        PassageRetriever(KeywordRetriever())
    with pytest.raises(InvalidInput, match="k must be at least 1, got 0"):
        PassageRetriever(BM25Retriever(PASSAGES), k=0)


class LetterEmbedding(MockEmbedding):
    """Counts of a, b and c."""

    def _get_text_embedding(self, text):
        return [float(text.count(letter)) for letter in "abc"]


def test_an_embedding_model_is_an_encoder_with_one_row_per_text_in_order():
    encoder = LlamaIndexEncoder(LetterEmbedding(embed_dim=3, model_name="letters"))
    assert isinstance(encoder, Encoder)
    assert encoder.name == "LetterEmbedding:letters"
    rows = encoder.encode(["abca", "", "cc"] * 10)  # more than one of LlamaIndex's batches
    assert rows.dtype == np.float32
    assert rows.tolist() == [[2, 1, 1], [0, 0, 0], [0, 0, 2]] * 10
    assert encoder.encode([]).shape == (0, 0)
    with pytest.raises(InvalidInput, match="embedding must be a LlamaIndex BaseEmbedding"):
        LlamaIndexEncoder("letters")


@pytest.mark.parametrize(("rule", "found"), [(always, ["emma"]), (never, [])])
async def test_the_gated_retriever_finds_nothing_where_the_model_knows(rule, found):
    keywords = AwaitedRetriever()
    gate = RuleGate(World(llm=ScriptedLLM(lambda prompt: "x")), rule)
    gated = GECERetriever(gate, keywords, known="nothing")
    nodes = gated.retrieve("Who wrote Emma?")
    assert [node.node_id for node in nodes] == found
    assert await gated.aretrieve("Who wrote Emma?") == nodes
    assert len(keywords.queries) == 2 * len(found)


def test_the_gated_retriever_hands_on_the_nodes_with_their_own_scores():
    keywords = KeywordRetriever()
    before = [node.model_dump() for node in keywords.nodes]
    gate = RuleGate(World(llm=ScriptedLLM(lambda prompt: "x")), always)
    nodes = GECERetriever(gate, keywords).retrieve("Emma in Paris")
    assert [(node.node_id, node.score) for node in nodes] == [("emma", 0.5), ("paris", 0.5)]
    assert [node.model_dump() for node in keywords.nodes] == before


def test_the_gated_retriever_refuses_wrong_parts():
    gate = RuleGate(World(llm=ScriptedLLM(lambda prompt: "x")))
    with pytest.raises(InvalidInput, match="gate must be a gate"):
        GECERetriever(lambda question: True, KeywordRetriever())
    with pytest.raises(InvalidInput, match="retriever must be a LlamaIndex BaseRetriever"):
        GECERetriever(gate, engine())


async def test_what_a_retriever_of_ours_raises_is_a_named_error():
    class Lost:
        def search(self, queries, k):
            raise LookupError("index")

    found = PassageRetriever(Lost())
    with pytest.raises(RetrieverFailed, match="index"):
        found.retrieve("x")
    with pytest.raises(RetrieverFailed, match="index"):
        await found.aretrieve("x")
