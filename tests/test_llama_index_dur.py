"""DURReranker as a LlamaIndex node postprocessor."""

import asyncio
import copy
import json
import sys
import tempfile
import time

import numpy as np
import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import (
    ImageNode,
    IndexNode,
    MetadataMode,
    NodeWithScore,
    QueryBundle,
    TextNode,
)
from llama_index_instrumentation import get_dispatcher
from pydantic import Field

import ltrag_plugins
from ltrag_plugins.dur import DURRanker, DURSettings
from ltrag_plugins.dur.head import Head
from ltrag_plugins.errors import (
    ArtifactMismatch,
    EmptyQuestion,
    InvalidInput,
    MissingExtra,
    UnreadableArtifact,
)
from ltrag_plugins.llama_index import (
    DURReranker,
    LlamaIndexEncoder,
    PassageRetriever,
    node_of,
)
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage
from tests.llama_index_parts import FACTS, engine, on_an_event_loop

QUESTION = "Who has played Raoul?"
TEXTS = [*FACTS.values(), "zinc", "Raoul", "a b c"]
COMMAND = "ltrag dur train candidates.jsonl validation.jsonl --model ... --out head/"


class Letters:
    """How often each letter comes; notes what it is given, and whether a loop stood still."""

    name = "letters"

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.encoded, self.blocked = seconds, [], 0

    def encode(self, texts):
        self.blocked += on_an_event_loop()
        time.sleep(self.seconds)
        self.encoded.append(list(texts))
        return letters(texts)


def letters(texts) -> np.ndarray:
    rows = [[t.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for t in texts]
    return np.array(rows, dtype=np.float32).reshape(len(texts), 26)


class LetterEmbedding(MockEmbedding):
    """The same as a LlamaIndex embedding model."""

    def _get_text_embedding(self, text):
        return letters([text])[0].tolist()

    def _get_query_embedding(self, query):
        raise AssertionError("a question is embedded as the nodes are")


def letter_embedding() -> LetterEmbedding:
    return LetterEmbedding(embed_dim=26, model_name="letters")


WEIGHT = np.random.default_rng(0).normal(size=(5, 26)) / 8
BIAS = np.random.default_rng(1).normal(size=5) / 8


def trained(encoder=None, **settings) -> DURRanker:
    return DURRanker(Head(WEIGHT, BIAS), encoder or Letters(), DURSettings(**settings))


def formula(question: str, texts: list[str]) -> np.ndarray:
    """Eq. 4 written out: h(x) = W x + b, the softmax of h(p) . h(e)."""
    asked = WEIGHT @ letters([question])[0] + BIAS
    exps = np.exp([asked @ (WEIGHT @ row + BIAS) for row in letters(texts)])
    return exps / exps.sum()


def nodes() -> list[NodeWithScore]:
    return [
        NodeWithScore(node=TextNode(id_=f"n{i}", text=text), score=1.0 - i / 8)
        for i, text in enumerate(TEXTS)
    ]


def dumped(found) -> list[dict]:
    return [node.model_dump() for node in found]


def test_nodes_come_in_the_order_of_eq_4_with_their_scores():
    wanted = formula(QUESTION, TEXTS)
    found = DURReranker(trained()).postprocess_nodes(nodes(), query_str=QUESTION)
    assert [n.node_id for n in found] == [f"n{i}" for i in np.argsort(-wanted)]
    assert [n.score for n in found] == pytest.approx(sorted(wanted, reverse=True), abs=1e-9)
    assert {type(n.score) for n in found} == {float}


def test_a_node_is_read_as_the_core_reads_the_passage_it_was_made_from():
    passages = [Passage(text, id=str(i), title="Raoul" * (i % 3)) for i, text in enumerate(TEXTS)]
    encoder, plain = Letters(), Letters()
    found = DURReranker(trained(encoder)).postprocess_nodes(
        [node_of(p) for p in passages], query_str=QUESTION
    )
    ranked = trained(plain).rank(QUESTION, passages)
    assert encoder.encoded == plain.encoded
    assert [(int(n.node_id), n.score) for n in found] == [(r.index, r.score) for r in ranked]


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


def test_a_title_stands_where_a_passages_title_stands_unless_it_is_hidden():
    node = TextNode(text="The text.", metadata={"title": "Emma", "year": 1815})
    assert read(node) == "Emma\nyear: 1815\n\nThe text."
    hidden = node.model_copy(update={"excluded_embed_metadata_keys": ["title", "year"]})
    assert read(hidden) == "The text."


async def test_the_callers_nodes_are_left_as_they_were_and_new_ones_carry_the_old_score():
    given = nodes()
    given[2].node.metadata.update(title="Raoul", page=3)
    given[4].score = None
    before = copy.deepcopy(dumped(given))
    old = {n.node_id: n.score for n in given}
    reranker = DURReranker(trained())
    for found in (
        reranker.postprocess_nodes(given, query_str=QUESTION),
        await reranker.apostprocess_nodes(given, query_str=QUESTION),
    ):
        assert len(found) == len(given)
        assert {n.node_id: n.metadata["retrieval_score"] for n in found} == old
        assert not {id(n) for n in found} & {id(n) for n in given}
        assert not {id(n.node) for n in found} & {id(n.node) for n in given}
        for n in found:
            n.node.metadata["page"] = "changed later"
            n.node.excluded_llm_metadata_keys.append("changed later")
            n.score = -1.0
        assert dumped(given) == before


def test_neither_model_is_shown_the_retrieval_score():
    [given] = nodes()[:1]
    [found] = DURReranker(trained()).postprocess_nodes([given], query_str=QUESTION)
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        assert found.get_content(mode) == given.get_content(mode)
    assert "retrieval_score: 1.0" in found.get_content(MetadataMode.ALL)


def test_reranking_twice_scores_alike_and_keeps_the_score_a_node_came_with():
    reranker = DURReranker(trained())
    once = reranker.postprocess_nodes(nodes(), query_str=QUESTION)
    twice = reranker.postprocess_nodes(once, query_str=QUESTION)
    assert [(n.node_id, n.score) for n in twice] == [(n.node_id, n.score) for n in once]
    assert [n.metadata["retrieval_score"] for n in twice] == [n.score for n in once]
    assert twice[0].node.excluded_llm_metadata_keys == ["retrieval_score"]


def test_a_stale_score_in_the_metadata_changes_nothing():
    stale = nodes()
    for n in stale:
        n.node.metadata["retrieval_score"] = 0.999
        n.node.excluded_embed_metadata_keys = ["retrieval_score"]
    reranker = DURReranker(trained())
    found = reranker.postprocess_nodes(stale, query_str=QUESTION)
    fresh = reranker.postprocess_nodes(nodes(), query_str=QUESTION)
    assert dumped(found) == dumped(fresh)


def test_other_kinds_of_nodes_stay_what_they_are():
    kinds = [
        ImageNode(id_="image", text="a picture of Raoul", image_path="raoul.png"),
        IndexNode(id_="index", text="Raoul's table", index_id="t1", obj=object()),
    ]
    found = DURReranker(trained()).postprocess_nodes(
        [NodeWithScore(node=node, score=0.5) for node in kinds], query_str=QUESTION
    )
    by_id = {n.node_id: n.node for n in found}
    assert by_id["image"].image_path == "raoul.png"
    assert by_id["index"].obj is kinds[1].obj


async def test_async_gives_what_sync_gives():
    reranker = DURReranker(trained(), top_n=4, sigma=0.01)
    query = QueryBundle(QUESTION)
    found = reranker.postprocess_nodes(nodes(), query)
    assert dumped(await reranker.apostprocess_nodes(nodes(), query)) == dumped(found)


async def test_a_slow_encoder_never_stops_the_event_loop():
    encoder, turns = Letters(seconds=0.3), 0
    reranking = asyncio.ensure_future(
        DURReranker(trained(encoder)).apostprocess_nodes(nodes(), query_str=QUESTION)
    )
    while not reranking.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert turns > 1
    assert encoder.blocked == 0
    assert len(await reranking) == len(TEXTS)


async def test_two_hundred_calls_at_once_do_not_mix_up_their_questions():
    reranker = DURReranker(trained(Letters(seconds=0.001)), top_n=3)
    questions = [f"{'Raoul ' * (i % 7)}{'zinc ' * (i % 5)}question {i}" for i in range(200)]
    found = await asyncio.gather(
        *(reranker.apostprocess_nodes(nodes(), query_str=q) for q in questions)
    )
    for question, got in zip(questions, found, strict=True):
        wanted = reranker.ranker.rank(question, [Passage(text) for text in TEXTS], top_n=3)
        assert [(n.node_id, n.score) for n in got] == [(f"n{r.index}", r.score) for r in wanted]


async def test_a_list_that_changes_meanwhile_is_ranked_as_it_was():
    given = nodes()
    reranker = DURReranker(trained(Letters(seconds=0.2)))
    reranking = asyncio.ensure_future(reranker.apostprocess_nodes(given, query_str=QUESTION))
    await asyncio.sleep(0.05)
    given.clear()
    assert len(await reranking) == len(TEXTS)


def test_top_n_and_sigma_say_how_many_are_put_out():
    wanted = sorted(formula(QUESTION, TEXTS), reverse=True)
    for n in (1, 2, 6, 50):
        found = DURReranker(trained(), top_n=n).postprocess_nodes(nodes(), query_str=QUESTION)
        assert len(found) == min(n, 6)
    for sigma in (0.0, 0.05, 0.2, 1.0):
        found = DURReranker(trained(), sigma=sigma).postprocess_nodes(nodes(), query_str=QUESTION)
        assert len(found) == sum(score > sigma for score in wanted)


async def test_nothing_in_gives_nothing_out_and_a_query_is_needed():
    reranker = DURReranker(trained())
    assert reranker.postprocess_nodes([], query_str=QUESTION) == []
    assert await reranker.apostprocess_nodes([], query_str=QUESTION) == []
    for given in (nodes(), []):
        with pytest.raises(EmptyQuestion):
            reranker.postprocess_nodes(given, query_str="  \n")
        with pytest.raises(EmptyQuestion):
            await reranker.apostprocess_nodes(given, query_str="")
        with pytest.raises(InvalidInput, match="query_bundle= or query_str="):
            reranker.postprocess_nodes(given)
        with pytest.raises(InvalidInput, match="query_bundle= or query_str="):
            await reranker.apostprocess_nodes(given)


def test_without_a_trained_head_the_refusal_has_the_command_that_trains_one(tmp_path):
    for given in ({}, {"encoder": Letters()}, {"encoder": letter_embedding()}):
        with pytest.raises(InvalidInput) as refused:
            DURReranker(**given)
        assert COMMAND in str(refused.value)
        assert "untrained='encoder'" in str(refused.value)
    with pytest.raises(UnreadableArtifact, match="ltrag dur train"):
        DURReranker.from_pretrained(tmp_path / "none", encoder=Letters())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranker": "head/"}, "ranker must be a DURRanker, got str 'head/'"),
        ({"ranker": trained(), "encoder": Letters()}, "brings its own encoder"),
        ({"untrained": "encoder"}, "needs encoder="),
        ({"untrained": "encoder", "encoder": "MiniLM"}, "BaseEmbedding, got str 'MiniLM'"),
        (
            {"ranker": trained(), "top_n": 0},
            "top_n must be a whole number, at least 1",
        ),
        ({"ranker": trained(), "sigma": 1.5}, "sigma must be a number, from 0 to 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_construction(given, said):
    with pytest.raises(InvalidInput, match=said):
        DURReranker(**given)


def test_it_is_a_genuine_subclass_and_the_packages_own():
    assert isinstance(DURReranker(trained()), BaseNodePostprocessor)
    assert ltrag_plugins.DURReranker is DURReranker


def test_a_saved_head_ranks_as_before_and_knows_one_encoder(tmp_path):
    before = DURReranker(trained(), top_n=3)
    before.save(tmp_path)
    after = DURReranker.from_pretrained(tmp_path, encoder=Letters(), top_n=3)
    found = before.postprocess_nodes(nodes(), query_str=QUESTION)
    assert dumped(after.postprocess_nodes(nodes(), query_str=QUESTION)) == dumped(found)
    with pytest.raises(ArtifactMismatch, match="'letters'"):
        DURReranker.from_pretrained(tmp_path, encoder=letter_embedding())


def test_a_reranker_that_became_a_dictionary_or_json_ranks_as_before(monkeypatch):
    before = DURReranker(trained(LlamaIndexEncoder(letter_embedding())), top_n=3, sigma=0.01)
    found = dumped(before.postprocess_nodes(nodes(), query_str=QUESTION))
    data = before.to_dict()
    kept = json.loads(json.dumps(data))
    assert (data["top_n"], data["sigma"], data["class_name"]) == (3, 0.01, "DURReranker")
    monkeypatch.setattr(Settings, "_embed_model", letter_embedding())
    for after in (
        DURReranker.from_dict(data),
        DURReranker.from_dict(data, encoder=letter_embedding()),
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
        with pytest.raises(UnreadableArtifact, match="ltrag dur train"):
            DURReranker.from_dict({**data, **wrong}, encoder=Letters())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    DURReranker.from_dict({**data, "head": outside}, encoder=Letters())
    assert list(tmp_path.iterdir()) == []  # a name in the dictionary is no path


async def test_an_embedding_model_ranks_as_the_encoder_does_and_is_not_changed():
    embedding = letter_embedding()
    before = embedding.model_dump()
    theirs = DURReranker(encoder=embedding, untrained="encoder", top_n=3)
    ours = DURReranker(encoder=Letters(), untrained="encoder", top_n=3)
    found = ours.postprocess_nodes(nodes(), query_str=QUESTION)
    assert dumped(theirs.postprocess_nodes(nodes(), query_str=QUESTION)) == dumped(found)
    awaited = await theirs.apostprocess_nodes(nodes(), query_str=QUESTION)
    assert dumped(awaited) == dumped(found)
    assert embedding.model_dump() == before


def test_untrained_is_plain_similarity():
    products = letters(TEXTS) @ letters([QUESTION])[0]
    reranker = DURReranker(encoder=Letters(), untrained="encoder", top_n=2)
    found = reranker.postprocess_nodes(nodes(), query_str=QUESTION)
    assert [n.node_id for n in found] == [f"n{i}" for i in np.argsort(-products)[:2]]


def test_as_langchain_ranks_the_same_texts_alike():
    from langchain_core.documents import BaseDocumentCompressor, Document

    theirs = DURReranker(trained(), top_n=4, sigma=0.02)
    compressor = theirs.as_langchain()
    assert isinstance(compressor, BaseDocumentCompressor)
    documents = [Document(id=f"n{i}", page_content=text) for i, text in enumerate(TEXTS)]
    found = compressor.compress_documents(documents, QUESTION)
    wanted = theirs.postprocess_nodes(nodes(), query_str=QUESTION)
    assert [(d.id, d.metadata["relevance_score"]) for d in found] == [
        (n.node_id, n.score) for n in wanted
    ]


@pytest.mark.parametrize("embedded", [False, True])
async def test_a_query_engine_reads_the_best_nodes_alone(embedded):
    pool = [Passage(text, id=key) for key, text in FACTS.items()]
    retriever = PassageRetriever(BM25Retriever(pool), k=3)
    if embedded:
        plain = [TextNode(id_=p.id, text=p.text) for p in pool]
        index = VectorStoreIndex(plain, embed_model=MockEmbedding(embed_dim=4))
        retriever = index.as_retriever(similarity_top_k=3)
    texts = list(FACTS.values())
    best = texts[int(np.argmax(formula("Who played in the novel?", texts)))]
    reranked = engine(retriever=retriever, node_postprocessors=[DURReranker(trained(), top_n=1)])
    answered = reranked.query("Who played in the novel?")
    awaited = await reranked.aquery("Who played in the novel?")
    assert str(answered) == str(awaited) == f"read: {best}"
    assert [n.text for n in answered.source_nodes] == [best]


class Events(BaseEventHandler):
    heard: list = Field(default_factory=list)

    def handle(self, event, **kwargs):
        self.heard.append(event)


class Spans(BaseSpanHandler):
    begun: list = Field(default_factory=list)

    def new_span(self, id_, bound_args, instance=None, parent_span_id=None, tags=None, **kwargs):
        self.begun.append(id_)

    def prepare_to_exit_span(self, id_, bound_args, instance=None, result=None, **kwargs):
        pass

    def prepare_to_drop_span(self, id_, bound_args, instance=None, err=None, **kwargs):
        pass


@pytest.fixture
def heard():
    root, events, spans = get_dispatcher(), Events(), Spans()
    root.add_event_handler(events)
    root.add_span_handler(spans)
    yield events.heard, spans.begun
    root.event_handlers.remove(events)
    root.span_handlers.remove(spans)


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_one_start_event_and_one_end_event_in_one_span(heard, way):
    events, spans = heard
    reranker = DURReranker(trained(), top_n=2)
    if way == "sync":
        found = reranker.postprocess_nodes(nodes(), query_str=QUESTION)
    else:
        found = await reranker.apostprocess_nodes(nodes(), query_str=QUESTION)
    [start, end] = [e for e in events if isinstance(e, ReRankStartEvent | ReRankEndEvent)]
    assert isinstance(start, ReRankStartEvent)
    assert (start.query.query_str, start.top_n, start.model_name) == (QUESTION, 2, "letters")
    assert dumped(start.nodes) == dumped(nodes())
    assert end.nodes == found
    name = "_postprocess_nodes" if way == "sync" else "_apostprocess_nodes"
    [span] = [id_ for id_ in spans if name in id_]
    assert start.span_id == end.span_id == span
    assert span.startswith("DURReranker.")


def test_without_top_n_the_event_says_how_many_nodes_there_are(heard):
    events, _ = heard
    DURReranker(trained()).postprocess_nodes(nodes(), query_str=QUESTION)
    [start] = [e for e in events if isinstance(e, ReRankStartEvent)]
    assert start.top_n == len(TEXTS)


def test_as_langchain_names_the_pip_command_where_langchain_is_absent(monkeypatch):
    room = "ltrag_plugins.langchain"
    for name in [m for m in sys.modules if m.startswith(room)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ltrag-plugins\[langchain\]'"):
        DURReranker(trained()).as_langchain()


class AsyncEmbedding(LetterEmbedding):
    """Has an async call of its own, and nothing else that works."""

    asked: list[str] = Field(default_factory=list)

    def _get_text_embedding(self, text):
        raise AssertionError("the embedding has an async call of its own")

    async def _aget_text_embedding(self, text):
        assert on_an_event_loop()
        self.asked.append(text)
        return letters([text])[0].tolist()


async def test_async_reranking_awaits_the_embeddings_own_async_call():
    embedding = AsyncEmbedding(embed_dim=26, model_name="letters")
    found = await DURReranker(trained(LlamaIndexEncoder(embedding))).apostprocess_nodes(
        nodes(), query_str=QUESTION
    )
    assert embedding.asked == [QUESTION, *TEXTS]
    plain = DURReranker(trained()).postprocess_nodes(nodes(), query_str=QUESTION)
    assert [(n.node_id, n.score) for n in found] == [(n.node_id, n.score) for n in plain]


async def test_an_embedding_with_a_sync_call_alone_never_stops_the_event_loop():
    seen = []

    class Sync(LetterEmbedding):
        def _get_text_embedding(self, text):
            seen.append(on_an_event_loop())
            return super()._get_text_embedding(text)

    encoder = LlamaIndexEncoder(Sync(embed_dim=26, model_name="letters"))
    await DURReranker(trained(encoder)).apostprocess_nodes(nodes(), query_str=QUESTION)
    assert seen == [False] * (len(TEXTS) + 1)


async def test_nodes_are_embedded_once_by_sync_and_async_calls_together():
    encoder = Letters()
    reranker = DURReranker(trained(encoder))
    first = reranker.postprocess_nodes(nodes(), query_str=QUESTION)
    assert await reranker.apostprocess_nodes(nodes(), query_str=QUESTION) == first
    assert encoder.encoded == [[QUESTION, *TEXTS], [QUESTION]]


def test_a_relevance_score_of_another_reranker_stays_where_it_is():
    given = nodes()
    for found in given:
        found.node.metadata["relevance_score"] = 0.7
    for found in DURReranker(trained()).postprocess_nodes(given, query_str=QUESTION):
        assert found.metadata["relevance_score"] == 0.7
