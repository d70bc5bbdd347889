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
        if (f := document.count(word)) == 0:
            continue
        total += idf * f * (k1 + 1) / (f + k1 * (1 - b + b * len(document) / mean_length))
    return total


@pytest.mark.parametrize("settings", [{}, {"k1": 0.9, "b": 0.4}, {"k1": 0.0}], ids=str)
def test_scores_are_the_formula_worked_out(engine, settings):
    pool = [replace(passage, score=99.0) for passage in POOL]  # an old score is replaced
    [found] = BM25Retriever(pool, **settings, engine=engine).search(["the cat, the mat"], 4)
    for passage in found:
        expected = score_by_hand("the cat, the mat", passage, POOL, **settings)
        assert passage.score == pytest.approx(expected, rel=1e-12)
    assert [p.id for p in found] == ["mat", "won"]


def test_queries_keep_their_order_and_k_is_a_most(engine):
    retriever = BM25Retriever(POOL, engine=engine)
    found = retriever.search(["dog", "Würzburg", "cat"], 1)
    assert ids(found) == [["won"], ["rays"], ["won"]]
    assert retriever.search([], 3) == []


@pytest.mark.parametrize(
    ("query", "k", "found"),
    [
        ("physics", 2, ["nobel"]),  # the title is searched too
        *((query, 2, ["rays"]) for query in ("RÖNTGEN?", "ro\u0308ntgen", "WÜRZBURG")),
        ("cat", 1000, ["won", "mat"]),
        *((query, 3, []) for query in ("", "?!", "unheard words", "東京")),
    ],
)
def test_passages_are_found_by_their_words_whatever_their_case_and_script(engine, query, k, found):
    pool = [*POOL, Passage("..."), Passage("")]  # without words they do no harm
    assert ids(BM25Retriever(pool, engine=engine).search([query], k)) == [found]


@pytest.mark.parametrize(
    ("query", "best", "other"),
    [
        ("法国的首都是哪里？", "巴黎是法国的首都。", "东京是日本的首都。"),
        ("フランスの首都はどこですか", "パリはフランスの首都です。", "東京は日本の首都です。"),
        ("เมืองหลวงของฝรั่งเศสคืออะไร", "ปารีสเป็นเมืองหลวงของฝรั่งเศส", "ช้างเป็นสัตว์ใหญ่"),
        ("프랑스의 수도는 어디입니까?", "파리는 프랑스에 있는 수도이다", "도쿄는 일본에 있다"),
        ("फ्रांस की राजधानी", "पेरिस फ्रांस में है", "वर्णमाला में क, न, फ, र, स हैं"),
    ],
)
def test_a_question_in_any_script_finds_its_passage(engine, query, best, other):
    pool = [Passage(other, id="other"), Passage(best, id="best")]
    assert ids(BM25Retriever(pool, engine=engine).search([query], 1)) == [["best"]]


def test_a_word_in_every_passage_still_counts(engine):
    # Robertson's idf would be negative here, and the passages lost
    pool = [Passage("cat"), Passage("cat cat"), Passage("cat dog")]
    [found] = BM25Retriever(pool, engine=engine).search(["cat"], 3)
    assert len(found) == 3
    assert all(p.score > 0 for p in found)


def test_equal_scores_keep_the_order_they_were_handed_in(engine):
    pool = [Passage("same text", id=str(i)) for i in range(50)]
    assert ids(BM25Retriever(pool, engine=engine).search(["text"], 7)) == [list("0123456")]


def test_copies_are_handed_back_and_the_callers_passages_stay_as_they_were(engine):
    before = [replace(p) for p in POOL]
    [[found]] = BM25Retriever(POOL, engine=engine).search(["rays"], 1)
    assert before == POOL
    assert found.score is not None
    assert found == replace(POOL[2], score=found.score)
    assert found.metadata == {"page": 7}


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
    st.sampled_from([0.0, 1.5]),
)
def test_both_engines_agree_on_any_small_pool(texts, query, k, k1):
    pool = [Passage(text, id=str(i)) for i, text in enumerate(texts)]
    slow, fast = (BM25Retriever(pool, k1=k1, engine=e).search([query], k) for e in ENGINES)
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


@pytest.fixture
def without_bm25s(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)


def test_without_bm25s_the_error_has_the_command_that_installs_it(without_bm25s):
    with pytest.raises(MissingExtra, match=r"pip install 'ltrag-plugins\[fast\]'"):
        BM25Retriever(POOL, engine="bm25s")


def test_without_bm25s_auto_makes_do_with_rank_bm25(without_bm25s, monkeypatch):
    monkeypatch.setattr(module, "_LARGE_POOL", 4)
    assert ids(BM25Retriever(POOL, engine="auto").search(["dog"], 1)) == [["won"]]


@pytest.mark.parametrize(
    ("pool", "settings", "queries", "k", "why"),
    [
        ([], {}, ["cat"], 1, "no passages"),
        ([Passage("..."), Passage("")], {}, ["cat"], 1, "2 passages and no word"),
        (POOL, {"k1": -1.0}, ["cat"], 1, "k1=-1"),
        (POOL, {"b": 1.5}, ["cat"], 1, r"b in \[0, 1\]"),
        (POOL, {"engine": "lucene"}, ["cat"], 1, r"'rank-bm25', .* got 'lucene'"),
        (POOL, {}, "cat", 3, "list"),
        (POOL, {}, ["cat"], 0, "at least 1"),
    ],
)
def test_what_cannot_be_indexed_or_searched_is_refused(pool, settings, queries, k, why):
    with pytest.raises(InvalidInput, match=why):
        BM25Retriever(pool, **settings).search(queries, k)
