import math
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput, MissingExtra
from ltrag_plugins.retrieval import bm25 as module
from ltrag_plugins.retrieval.base import _best
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Passage

ENGINES = ["rank-bm25", "bm25s"]
POOL = [
    Passage("The cat sat on the mat.", id="mat"),
    Passage("A dog and a cat; the cat won.", id="won"),
    Passage("Röntgen discovered X rays in Würzburg.", id="rays", metadata={"page": 7}),
    Passage("He was its first laureate.", id="nobel", title="Nobel Prize in Physics"),
]


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


def ids(found):
    return [[passage.id for passage in passages] for passages in found]


def score_by_hand(query, passage, pool, k1=1.5, b=0.75):
    documents = [words(f"{p.title} {p.text}") for p in pool]
    document = words(f"{passage.title} {passage.text}")
    mean_length = sum(map(len, documents)) / len(documents)
    total = 0.0
    for word in words(query):
        holding = sum(word in d for d in documents)
        idf = math.log(1 + (len(pool) - holding + 0.5) / (holding + 0.5))
        f = document.count(word)
        total += idf * f * (k1 + 1) / (f + k1 * (1 - b + b * len(document) / mean_length))
    return total


@pytest.mark.parametrize("how", [{}, {"k1": 0.9, "b": 0.4}], ids=str)
def test_scores_are_the_formula_worked_out(engine, how):
    asked = "the cat, the mat"
    [found] = BM25Retriever(POOL, **how, engine=engine).search([asked], 4)
    wanted = [score_by_hand(asked, passage, POOL, **how) for passage in found]
    assert [p.score for p in found] == pytest.approx(wanted, rel=1e-12)
    assert [p.id for p in found] == ["mat", "won"]


@pytest.mark.parametrize(
    ("queries", "k", "wanted"),
    [
        (["dog", "Würzburg", "cat"], 1, [["won"], ["rays"], ["won"]]),  # in their order
        ([], 3, []),
        (["cat"], 1000, [["won", "mat"]]),
        (["physics"], 2, [["nobel"]]),  # which is in the title
        (["RÖNTGEN?", "ro\u0308ntgen", "WÜRZBURG"], 2, [["rays"]] * 3),
        (["", "?!", "unheard words", "東京"], 3, [[]] * 4),
    ],
)
def test_passages_with_a_word_of_the_query_are_found_best_first(engine, queries, k, wanted):
    assert ids(BM25Retriever(POOL, engine=engine).search(queries, k)) == wanted


def test_a_word_in_every_passage_still_counts(engine):
    # Robertson's idf would be negative here, and the passages lost
    pool = [Passage("cat"), Passage("cat cat"), Passage("cat dog")]
    [found] = BM25Retriever(pool, engine=engine).search(["cat"], 3)
    assert len(found) == 3
    assert all(p.score > 0 for p in found)


def test_equal_scores_keep_the_order_they_were_handed_in(engine):
    pool = [Passage("same text", id=str(i)) for i in range(50)]
    assert ids(BM25Retriever(pool, engine=engine).search(["text"], 7)) == [list("0123456")]


def test_copies_with_new_scores_are_handed_back_and_the_callers_passages_stay(engine):
    pool = [replace(p, score=99.0) for p in POOL]
    [[found]] = BM25Retriever(pool, engine=engine).search(["rays"], 1)
    assert pool == [replace(p, score=99.0) for p in POOL]
    assert found == replace(POOL[2], score=found.score)
    assert found.metadata == {"page": 7}
    assert found.score == pytest.approx(score_by_hand("rays", POOL[2], POOL))


def test_passages_without_words_among_others_do_no_harm(engine):
    pool = [Passage("..."), Passage("cat", id="cat"), Passage("")]
    assert ids(BM25Retriever(pool, engine=engine).search(["cat"], 3)) == [["cat"]]


def synthetic(size):
    """Passages of Zipf-distributed words, with many ties and repeats."""
    rng = random.Random(0)
    vocabulary = [f"w{i}" for i in range(400)]
    weights = [1 / (i + 1) for i in range(400)]
    texts = [" ".join(rng.choices(vocabulary, weights, k=rng.randint(3, 40))) for _ in range(size)]
    queries = [" ".join(rng.choices(vocabulary, weights, k=rng.randint(1, 8))) for _ in range(200)]
    return [Passage(text, id=str(i)) for i, text in enumerate(texts)], queries


def test_both_engines_give_the_same_passages_in_the_same_order_with_the_same_scores():
    pool, queries = synthetic(600)
    slow = BM25Retriever(pool, engine="rank-bm25").search(queries, 20)
    fast = BM25Retriever(pool, engine="bm25s").search(queries, 20)
    assert ids(slow) == ids(fast)
    assert [[p.score for p in f] for f in slow] == [[p.score for p in f] for f in fast]


@given(
    st.lists(st.text("ab c.", max_size=8).filter(lambda t: "a" in t), min_size=1, max_size=8),
    st.text("abc ", max_size=8),
    st.integers(1, 9),
)
def test_both_engines_agree_on_any_small_pool(texts, query, k):
    pool = [Passage(text, id=str(i)) for i, text in enumerate(texts)]
    slow, fast = (BM25Retriever(pool, engine=e).search([query], k) for e in ENGINES)
    assert slow == fast


@given(
    st.lists(st.sampled_from([-math.inf, -0.5, 0.0, 2.0]), min_size=1, max_size=12),
    st.integers(1, 14),
)
def test_the_best_are_those_of_a_full_stable_sort(scores, k):
    ranked = sorted(range(len(scores)), key=lambda i: -scores[i])
    expected = [i for i in ranked if scores[i] > -math.inf][:k]
    assert _best(np.asarray(scores), k).tolist() == expected


def test_auto_takes_bm25s_for_large_pools_only(monkeypatch):
    monkeypatch.setattr(module, "_LARGE_POOL", 4)
    assert BM25Retriever(POOL, engine="auto").engine == "bm25s"
    assert BM25Retriever(POOL[:3], engine="auto").engine == "rank-bm25"


def test_without_bm25s_auto_makes_do_and_the_error_has_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    monkeypatch.setattr(module, "_LARGE_POOL", 4)
    assert ids(BM25Retriever(POOL, engine="auto").search(["dog"], 1)) == [["won"]]
    with pytest.raises(MissingExtra, match=r"pip install 'ltrag-plugins\[fast\]'"):
        BM25Retriever(POOL, engine="bm25s")


@pytest.mark.parametrize(
    ("pool", "settings", "why"),
    [
        ([], {}, "no passages"),
        ([Passage("..."), Passage("")], {}, "2 passages and no word"),
        (POOL, {"k1": -1.0}, "k1=-1"),
        (POOL, {"b": 1.5}, r"b in \[0, 1\]"),
        (POOL, {"engine": "lucene"}, "'rank-bm25', .* got 'lucene'"),
    ],
)
def test_what_cannot_be_indexed_is_refused(pool, settings, why):
    with pytest.raises(InvalidInput, match=why):
        BM25Retriever(pool, **settings)


@pytest.mark.parametrize(("queries", "k", "why"), [("cat", 3, "list"), (["cat"], 0, "at least 1")])
def test_what_cannot_be_searched_is_refused(queries, k, why):
    with pytest.raises(InvalidInput, match=why):
        BM25Retriever(POOL).search(queries, k)
