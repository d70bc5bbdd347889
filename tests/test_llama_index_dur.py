"""DURReranker as a LlamaIndex node postprocessor: metadata, dictionaries, engines, events."""

import json
import pickle
import sys
import tempfile

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.schema import ImageNode, IndexNode, MetadataMode, NodeWithScore, TextNode

from ltrag_plugins.errors import ArtifactMismatch, InvalidInput, MissingExtra, UnreadableArtifact
from ltrag_plugins.llama_index import DURReranker, LlamaIndexEncoder, PassageRetriever
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage
from tests.framework_parts import Letters, LlamaIndexLetters, dumped, trained
from tests.llama_index_parts import FACTS, engine, on_an_event_loop, traced

QUESTION = "Who has played Raoul?"
TEXTS = [*FACTS.values(), "zinc", "Raoul", "a b c"]


def nodes(**metadata) -> list[NodeWithScore]:
    texts = [TextNode(id_=f"n{i}", text=t, metadata=dict(metadata)) for i, t in enumerate(TEXTS)]
    return [NodeWithScore(node=node, score=1.0 - i / 8) for i, node in enumerate(texts)]


def reranked(given, **settings) -> list[NodeWithScore]:
    return DURReranker(trained(), **settings).postprocess_nodes(given, query_str=QUESTION)


def read(node: TextNode) -> str:
    """What the encoder is given for a node."""
    encoder = Letters()
    DURReranker(trained(encoder)).postprocess_nodes([NodeWithScore(node=node)], query_str="q")
    return encoder.encoded[0][1]


def test_a_node_is_read_as_it_shows_itself_to_embedding_models():
    node = TextNode(
        text="The text.",
        metadata={"year": 1815, "secret": "not for embedding", "note": "shown"},
        excluded_embed_metadata_keys=["secret"],
        excluded_llm_metadata_keys=["year", "note"],
        text_template="{metadata_str} | {content}",
        metadata_separator="; ",
    )
    assert read(node) == node.get_content(MetadataMode.EMBED)
    assert read(node) == "year: 1815; note: shown | The text."
    # a title stands where a passage's title stands, unless it is hidden
    node = TextNode(text="The text.", metadata={"title": "Emma", "year": 1815})
    assert read(node) == "Emma\nyear: 1815\n\nThe text."
    hidden = node.model_copy(update={"excluded_embed_metadata_keys": ["title", "year"]})
    assert read(hidden) == "The text."


def test_the_score_a_node_came_with_is_in_its_metadata_and_shown_to_neither_model():
    given = nodes()
    given[4].score = None
    found = reranked(given)
    by_id = {n.node_id: n for n in given}
    for n in found:
        assert n.metadata["retrieval_score"] == by_id[n.node_id].score
        for mode in (MetadataMode.LLM, MetadataMode.EMBED):
            assert n.get_content(mode) == by_id[n.node_id].get_content(mode)
        assert "retrieval_score: " in n.get_content(MetadataMode.ALL)
        n.node.excluded_llm_metadata_keys.append("changed later")
    assert all(n.node.excluded_llm_metadata_keys == [] for n in given)
    twice = reranked(reranked(nodes()))
    assert [(n.node_id, n.score) for n in twice] == [(n.node_id, n.score) for n in found]
    assert [n.metadata["retrieval_score"] for n in twice] == [n.score for n in found]
    assert twice[0].node.excluded_llm_metadata_keys == ["retrieval_score"]


def test_other_scores_in_the_metadata_change_nothing_and_those_of_other_rerankers_stay():
    stale = nodes(retrieval_score=0.999)
    for n in stale:
        n.node.excluded_embed_metadata_keys = ["retrieval_score"]
    assert dumped(reranked(stale)) == dumped(reranked(nodes()))
    assert {n.metadata["relevance_score"] for n in reranked(nodes(relevance_score=0.7))} == {0.7}


def test_other_kinds_of_nodes_stay_what_they_are():
    kinds = [
        ImageNode(id_="image", text="a picture of Raoul", image_path="raoul.png"),
        IndexNode(id_="index", text="Raoul's table", index_id="t1", obj=object()),
    ]
    by_id = {n.node_id: n.node for n in reranked([NodeWithScore(node=node) for node in kinds])}
    assert by_id["image"].image_path == "raoul.png"
    assert by_id["index"].obj is kinds[1].obj


async def test_a_query_is_needed():
    for given in (nodes(), []):
        with pytest.raises(InvalidInput, match="query_bundle= or query_str="):
            DURReranker(trained()).postprocess_nodes(given)
        with pytest.raises(InvalidInput, match="query_bundle= or query_str="):
            await DURReranker(trained()).apostprocess_nodes(given)


async def test_bare_nodes_are_ranked_and_what_are_no_nodes_is_refused():
    reranker, given = DURReranker(trained()), nodes()
    bare = [found.node for found in given]
    ranked = [n.node_id for n in reranker.postprocess_nodes(given, query_str=QUESTION)]
    assert [n.node_id for n in reranker.postprocess_nodes(bare, query_str=QUESTION)] == ranked
    for wrong in (None, [None], "text"):
        with pytest.raises(InvalidInput, match="nodes must be LlamaIndex nodes, got"):
            reranker.postprocess_nodes(wrong, query_str=QUESTION)
        with pytest.raises(InvalidInput, match="nodes must be LlamaIndex nodes, got"):
            await reranker.apostprocess_nodes(wrong, query_str=QUESTION)


def test_a_reranker_that_became_a_dictionary_or_json_ranks_as_before(monkeypatch):
    before = DURReranker(trained(LlamaIndexEncoder(LlamaIndexLetters())), top_n=3, sigma=0.01)
    found = dumped(before.postprocess_nodes(nodes(), query_str=QUESTION))
    data = before.to_dict()
    kept = json.loads(json.dumps(data))
    assert (data["top_n"], data["sigma"], data["class_name"]) == (3, 0.01, "DURReranker")
    monkeypatch.setattr(Settings, "_embed_model", LlamaIndexLetters())
    for after in (
        DURReranker.from_dict(data),
        DURReranker.from_dict(data, encoder=LlamaIndexLetters()),
        DURReranker.from_json(before.to_json()),
    ):
        assert dumped(after.postprocess_nodes(nodes(), query_str=QUESTION)) == found
        assert (after.top_n, after.sigma) == (3, 0.01)
    assert data == kept
    with pytest.raises(ArtifactMismatch, match="'letters'"):
        DURReranker.from_dict(data, encoder=Letters())


def test_a_dictionary_without_its_whole_head_is_refused(tmp_path, monkeypatch):
    data = DURReranker(trained()).to_dict()
    head = data.pop("head")
    assert sorted(head) == ["dur.json", "dur.safetensors"]
    swapped = head | {"dur.safetensors": head["dur.json"]}
    outside = {"../" + name: content for name, content in head.items()}
    for wrong in ({}, {"head": {}}, {"head": swapped}):
        with pytest.raises(UnreadableArtifact, match="ltrag rerank train"):
            DURReranker.from_dict({**data, **wrong}, encoder=Letters())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    DURReranker.from_dict({**data, "head": outside}, encoder=Letters())
    assert list(tmp_path.iterdir()) == []  # a name in the dictionary is no path


def test_a_reranker_that_cannot_be_pickled_says_so_and_stays_whole():
    encoder = Letters()
    reranker = DURReranker(trained(encoder))
    wanted = reranker.postprocess_nodes(nodes(), query_str=QUESTION)
    again = pickle.loads(pickle.dumps(reranker))
    assert again.postprocess_nodes(nodes(), query_str=QUESTION) == wanted
    encoder.encode = lambda texts: Letters.encode(encoder, texts)  # which no process can be sent
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(reranker)
    assert reranker.postprocess_nodes(nodes(), query_str=QUESTION) == wanted


def test_as_langchain_ranks_the_same_texts_alike():
    from langchain_core.documents import BaseDocumentCompressor, Document

    compressor = DURReranker(trained(), top_n=4, sigma=0.02).as_langchain()
    assert isinstance(compressor, BaseDocumentCompressor)
    documents = [Document(id=f"n{i}", page_content=text) for i, text in enumerate(TEXTS)]
    found = compressor.compress_documents(documents, QUESTION)
    wanted = [(n.node_id, n.score) for n in reranked(nodes(), top_n=4, sigma=0.02)]
    assert [(d.id, d.metadata["relevance_score"]) for d in found] == wanted


def test_as_langchain_names_the_pip_command_where_langchain_is_absent(monkeypatch):
    for name in [m for m in sys.modules if m.startswith("ltrag_plugins.langchain")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ltrag-plugins\[langchain\]'"):
        DURReranker(trained()).as_langchain()


@pytest.mark.parametrize("embedded", [False, True])
async def test_a_query_engine_reads_the_best_nodes_alone(embedded):
    pool = [Passage(text, id=key) for key, text in FACTS.items()]
    retriever = PassageRetriever(BM25Retriever(pool), k=3)
    if embedded:
        plain = [TextNode(id_=p.id, text=p.text) for p in pool]
        index = VectorStoreIndex(plain, embed_model=MockEmbedding(embed_dim=4))
        retriever = index.as_retriever(similarity_top_k=3)
    [best] = trained().rank("Who played in the novel?", pool, top_n=1)
    reading = engine(retriever=retriever, node_postprocessors=[DURReranker(trained(), top_n=1)])
    answered = reading.query("Who played in the novel?")
    awaited = await reading.aquery("Who played in the novel?")
    assert str(answered) == str(awaited) == f"read: {pool[best.index].text}"
    assert [n.text for n in answered.source_nodes] == [pool[best.index].text]


@pytest.mark.parametrize("top_n", [2, None])
@pytest.mark.parametrize("way", ["postprocess_nodes", "apostprocess_nodes"])
async def test_one_start_event_and_one_end_event_in_one_span(top_n, way):
    with traced() as trace:
        found = getattr(DURReranker(trained(), top_n=top_n), way)(nodes(), query_str=QUESTION)
        found = await found if way[0] == "a" else found
    [start, end] = trace.heard(ReRankStartEvent | ReRankEndEvent)
    assert isinstance(start, ReRankStartEvent)
    most = top_n or len(TEXTS)
    assert (start.query.query_str, start.top_n, start.model_name) == (QUESTION, most, "letters")
    assert dumped(start.nodes) == dumped(nodes())
    assert end.nodes == found
    assert trace.path(start) == trace.path(end)
    assert trace.path(start)[0] == f"DURReranker._{way}"


async def test_an_embedding_with_a_sync_call_alone_never_stops_the_event_loop():
    seen = []

    class Sync(MockEmbedding):
        def _get_text_embedding(self, text):
            seen.append(on_an_event_loop())
            return super()._get_text_embedding(text)

    encoder = LlamaIndexEncoder(Sync(embed_dim=26))
    await DURReranker(trained(encoder)).apostprocess_nodes(nodes(), query_str=QUESTION)
    assert seen == [False] * (len(TEXTS) + 1)
