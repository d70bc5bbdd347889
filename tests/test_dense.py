"""Dense retrieval beside sklearn's nearest neighbours."""

import numpy as np
import pytest
from contracts.methods import PASSAGES, Letters
from sklearn.neighbors import NearestNeighbors

from ltrag_plugins.errors import InvalidInput, ModelError
from ltrag_plugins.retrieval.dense import DenseRetriever
from ltrag_plugins.types import Passage

QUERIES = ["Who wrote Emma?", "What is bread made of?", "novel"]


def test_it_ranks_as_exact_nearest_neighbours_do():
    found = DenseRetriever(PASSAGES, Letters()).search(QUERIES, 3)
    texts = [f"{p.title}: {p.text}" for p in PASSAGES]
    neighbours = NearestNeighbors(n_neighbors=3, metric="cosine").fit(Letters().encode(texts))
    distances, places = neighbours.kneighbors(Letters().encode(QUERIES))
    assert [[p.id for p in row] for row in found] == [
        [PASSAGES[i].id for i in row] for row in places
    ]
    np.testing.assert_allclose([[p.score for p in row] for row in found], 1 - distances, atol=1e-6)


def test_a_pool_of_several_batches_is_searched_to_its_end():
    pool = [Passage("a tea")] * 599 + [Passage("bread", id="last")]
    [[found]] = DenseRetriever(pool, Letters()).search(["bread"], 1)
    assert found.id == "last"


def test_many_queries_reach_the_encoder_in_parts_and_find_what_each_finds_alone():
    sizes = []

    class Counted(Letters):
        def encode(self, texts):
            sizes.append(len(texts))
            return super().encode(texts)

    retriever = DenseRetriever(PASSAGES, Counted())
    queries = [f"{QUERIES[i % 3]} {'aeinorst'[i % 8] * (i % 11)}" for i in range(600)]
    sizes.clear()
    found = retriever.search(queries, 2)
    assert sum(sizes) == 600
    assert max(sizes) <= 256
    for some in (0, 255, 256, 511, 512, 599):
        [alone] = retriever.search([queries[some]], 2)
        assert [p.id for p in found[some]] == [p.id for p in alone]
        assert [p.score for p in found[some]] == pytest.approx([p.score for p in alone], abs=1e-6)


def test_the_pool_is_not_changed_and_equal_passages_keep_their_order():
    twice = [Passage("a tea", id="1"), Passage("a tea", id="2"), Passage("", id="3")]
    [found] = DenseRetriever(twice, Letters()).search(["tea"], 5)
    assert [p.id for p in found] == ["1", "2", "3"]
    assert twice[0].score is None
    assert found[2].score == 0


def test_what_cannot_be_searched_is_refused():
    retriever = DenseRetriever(PASSAGES, Letters())
    assert retriever.search([], 3) == []
    assert len(retriever.search(["a"], np.int64(2))[0]) == 2
    for queries, k in (("a query", 3), (["a"], 0), (["a"], "2")):
        with pytest.raises(InvalidInput):
            retriever.search(queries, k)
    with pytest.raises(InvalidInput):
        DenseRetriever([], Letters())
    with pytest.raises(InvalidInput, match=r"passages must be Passage\(text\)s, got str 'tea'"):
        DenseRetriever(["tea"], Letters())


@pytest.mark.parametrize("broken", ["a pool's text", "tea"])
def test_vectors_that_are_no_numbers_are_named(broken):
    class Overflows(Letters):
        def encode(self, texts):
            rows = super().encode(texts)
            rows[[text == broken for text in texts], 2] = np.nan
            return rows

    with pytest.raises(ModelError, match="encoder gave NaN or infinity"):
        DenseRetriever([Passage("a pool's text"), Passage("oats")], Overflows()).search(["tea"], 1)


@pytest.mark.parametrize("scale", [1, 8, 100])
def test_half_precision_vectors_of_any_length_find_themselves_with_a_cosine(scale):
    rows = (scale * np.random.default_rng(0).normal(size=(20, 1024))).astype(np.float16)

    class Halves:
        name = "halves"

        def encode(self, texts):
            return rows[[int(text) for text in texts]]

    texts = [str(i) for i in range(20)]
    found = DenseRetriever(map(Passage, texts), Halves()).search(texts, 20)
    assert [row[0].text for row in found] == texts
    exact = rows.astype(float) / np.linalg.norm(rows.astype(float), axis=1, keepdims=True)
    for one, row in zip(exact, found, strict=True):
        scores = {p.text: p.score for p in row}
        assert max(scores.values()) <= 1 + 1e-6
        np.testing.assert_allclose([scores[text] for text in texts], exact @ one, atol=1e-6)


@pytest.mark.parametrize(
    ("gives", "shape"),
    [
        (lambda rows, texts: rows[[bool(text.strip()) for text in texts]], r"\(2, 8\) for 3"),
        (lambda rows, texts: np.concatenate([rows, rows]), r"\(6, 8\) for 3"),
        (lambda rows, texts: rows[0], r"\(8,\) for 3"),
    ],
)
@pytest.mark.parametrize("of", ["passages", "queries"])
def test_an_encoder_without_a_row_for_each_text_is_named(of, gives, shape):
    class Odd(Letters):
        name = "odd"

        def encode(self, texts):
            rows = super().encode(texts)
            return gives(rows, texts) if "tea" in texts else rows

    texts = ["tea", " ", "bread"]
    pool = texts if of == "passages" else ["oats"]
    with pytest.raises(ModelError, match=f"the encoder odd gave an array of shape {shape} texts"):
        DenseRetriever(map(Passage, pool), Odd()).search(texts, 3)
