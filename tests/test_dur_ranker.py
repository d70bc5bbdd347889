"""Ranking with a head, and the rankers it is compared with."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from method_parts import Planes

from ltrag_plugins.dur import DURRanker, DURSettings
from ltrag_plugins.dur.head import Head
from ltrag_plugins.dur.shots import ShotRanker
from ltrag_plugins.errors import EmptyQuestion, InvalidInput, ModelError
from ltrag_plugins.types import Passage
from tests.dur_parts import Nonsense, houses, moody_llm, shots_of, trained
from tests.import_parts import LOCAL, python

CANDIDATES, QUESTIONS = houses(100, 25), houses(1, 8)


def a_ranker(seed=0, scale=0.5):
    random = np.random.default_rng(seed)
    head = Head(random.normal(size=(6, 12)) * scale, random.normal(size=6) * scale)
    return DURRanker(head, Nonsense(), DURSettings(seed=seed), sigma=0.05)


def by_hand(ranker, question, candidates):
    """Scores by the definition (eq. 4)."""

    def h(text):
        return ranker.head.weight @ Nonsense().encode([text])[0].astype(float) + ranker.head.bias

    weights = np.exp([h(question) @ h(c.text) for c in candidates])
    return weights / weights.sum()


def test_candidates_are_ranked_by_the_softmax_of_dot_products():
    ranker = a_ranker()
    assert repr(ranker) == "DURRanker(6x12, encoder='nonsense')"
    for question in QUESTIONS:
        told = ranker.rank(question.text, CANDIDATES)
        scores = by_hand(ranker, question.text, CANDIDATES)
        assert [r.index for r in told] == np.argsort(-scores).tolist()
        assert [r.score for r in told] == pytest.approx(sorted(scores, reverse=True))
        assert sum(r.score for r in told) == pytest.approx(1)


def test_top_n_and_sigma_leave_out_the_rest():
    ranker = a_ranker()
    everything = ranker.rank("Who?", CANDIDATES)
    assert ranker.rank("Who?", CANDIDATES, top_n=3) == everything[:3]
    assert ranker.rank("Who?", CANDIDATES, top_n=99) == everything
    above = [r for r in everything if r.score > 0.04]
    assert 0 < len(above) < 25
    assert ranker.rank("Who?", CANDIDATES, sigma=0.04) == above
    assert ranker.rank("Who?", CANDIDATES, sigma=everything[2].score) == everything[:2]
    assert ranker.rank("Who?", CANDIDATES, sigma=1.0) == []
    assert ranker.rank("Who?", []) == []


def test_no_candidate_is_lost_to_rounding():
    # exp(-1000) is 0 in floating point; a reranker that loses a document would be a defect
    sure = DURRanker(Head(np.eye(12) * 40, np.zeros(12)), Nonsense(), DURSettings())
    told = sure.rank(QUESTIONS[0].text, CANDIDATES)
    assert sorted(r.index for r in told) == list(range(25))
    assert told[-1].score == 0.0


def test_candidates_whose_scores_are_rounded_alike_keep_their_order():
    # beside exp(0) for "best" all others are 0 in floating point
    lengths = {"worst": 5, "middle": 20, "second": 40, "best": 60}
    vectors = Planes(q=[60.0], **{word: [float(n)] for word, n in lengths.items()})
    ranker = DURRanker(Head(np.eye(1), np.zeros(1)), vectors, DURSettings())
    passages = [Passage(word) for word in lengths]

    def ranked(**bounds):
        return [passages[one.index].text for one in ranker.rank("q", passages, **bounds)]

    assert ranked() == ["best", "second", "middle", "worst"]
    assert ranked(top_n=2) == ["best", "second"]
    assert ranked(sigma=0.1) == ["best"]


async def test_candidates_may_come_one_by_one():
    ranker = a_ranker()
    everything = ranker.rank("Who?", CANDIDATES)
    assert ranker.rank("Who?", iter(CANDIDATES)) == everything
    assert await ranker.arank("Who?", iter(CANDIDATES)) == everything
    assert ranker.rank("Who?", iter([])) == await ranker.arank("Who?", iter([])) == []


def test_candidates_with_one_text_share_their_score_and_keep_their_order():
    twins = [CANDIDATES[0], CANDIDATES[1], CANDIDATES[0]]
    told = a_ranker().rank("Who?", twins)
    places = [r.index for r in told]
    assert places.index(0) < places.index(2)
    scores = {r.index: r.score for r in told}
    assert scores[0] == pytest.approx(scores[2], rel=1e-12)


def test_an_untrained_ranker_is_the_encoders_own_similarity():
    told = DURRanker.untrained(Nonsense()).rank("Who?", CANDIDATES)
    vectors, asked = (Nonsense().encode(t) for t in ([c.text for c in CANDIDATES], ["Who?"]))
    assert [r.index for r in told] == np.argsort(-(vectors @ asked[0])).tolist()


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ({"top_n": 0}, "top_n must be a whole number, at least 1 or None, got 0"),
        ({"top_n": -1}, "top_n must be a whole number, at least 1 or None, got -1"),
        ({"sigma": 1.5}, "sigma must be a number, from 0 to 1, got 1.5"),
        ({"sigma": float("nan")}, "sigma must be a number, from 0 to 1"),
        ({"question": " \n"}, "the question is empty"),
    ],
    ids=str,
)
def test_bounds_that_cannot_be_are_refused(bounds, match):
    with pytest.raises((InvalidInput, EmptyQuestion), match=match):
        a_ranker().rank(**{"question": "Who?", "candidates": CANDIDATES} | bounds)


def test_the_plain_rankers():
    told = ShotRanker.random(CANDIDATES, shots=5, seed=1)(QUESTIONS)
    assert told == ShotRanker.random(CANDIDATES, shots=5, seed=1)(QUESTIONS)
    assert told != ShotRanker.random(CANDIDATES, shots=5, seed=2)(QUESTIONS)
    assert all(len({s.id for s in shots}) == 5 for shots in told)
    own = ShotRanker.random(CANDIDATES, shots=25, seed=1)(CANDIDATES[:1])
    assert len(own[0]) == 24
    assert CANDIDATES[0] not in own[0]
    nearest = ShotRanker.nearest(CANDIDATES, shots=3, encoder=Nonsense())
    vectors = Nonsense().encode([c.text for c in CANDIDATES])
    asked = Nonsense().encode([QUESTIONS[0].text])[0]
    best = np.argsort(-(vectors @ asked))[:3]
    assert nearest(QUESTIONS[:1]) == [[CANDIDATES[i] for i in best]]
    assert len(ShotRanker.bm25(CANDIDATES, shots=4)(QUESTIONS)[0]) == 4


@pytest.mark.parametrize("preselect", ["bm25", "none"])
def test_a_learned_ranker_asks_for_the_shots_that_training_would_have_climbed(preselect):
    # paper's ladder at sigma 0 of a run without a step: its longest prompt has the best five
    settings = DURSettings(
        held_out=0.0,
        initial="random", exploration="top", sigma="off", least_shots=None, budget=None,
        preselect=preselect, preselected=8, epochs=1, batch_size=99, reward="match",
        learning_rate=1e-12, advantage=False,
    )  # fmt: skip
    llm = moody_llm()
    result = trained(settings, llm, CANDIDATES, QUESTIONS)
    told = ShotRanker.learned(result.ranker, CANDIDATES)(QUESTIONS)
    longest = [p for p in llm.prompts if p.count("Question:") == 6]
    for question, shots in zip(QUESTIONS, told, strict=True):
        [prompt] = [p for p in longest if p.endswith(f"Question: {question.text}\nAnswer:")]
        assert shots_of(prompt) == [s.text for s in shots]
    fewer = ShotRanker.learned(result.ranker, CANDIDATES, shots=2)
    assert fewer(QUESTIONS) == [s[:2] for s in told]


def test_a_saved_head_is_loaded_and_used_without_torch(tmp_path):
    ranker = a_ranker()
    ranker.save(tmp_path)
    told = python(
        f"""
        from ltrag_plugins.dur import DURRanker
        from tests.dur_parts import Nonsense, houses
        ranker = DURRanker.load({str(tmp_path)!r}, encoder=Nonsense())
        print([(r.index, r.score) for r in ranker.rank("Who?", houses(100, 25), top_n=4)])
        assert "torch" not in sys.modules
        """,
        without=LOCAL,
    )
    assert told == str([(r.index, r.score) for r in ranker.rank("Who?", CANDIDATES, top_n=4)])


def kept_by(encoder, texts, **bounds):
    ranker = DURRanker(Head(np.eye(12), np.zeros(12)), encoder, DURSettings(), **bounds)
    return ranker, [Passage(text) for text in texts]


def test_a_candidate_is_encoded_once_while_it_is_among_the_last_ones_seen():
    encoder = Nonsense()
    ranker, passages = kept_by(encoder, "abc", cached_texts=2)
    ranker.rank("q", passages[:2])
    ranker.rank("q", [passages[1], passages[1]])
    assert encoder.texts == ["q", "a", "b", "q"]
    ranker.rank("q", passages[2:])  # "a" was seen longest ago
    encoder.texts.clear()
    ranker.rank("r", [passages[1], passages[2]])
    ranker.rank("r", [passages[0]])
    assert encoder.texts == ["r", "r", "a"]


def test_nothing_is_kept_where_no_text_may_be():
    encoder = Nonsense()
    ranker, passages = kept_by(encoder, "ab", cached_texts=0)
    assert ranker.rank("q", passages) == ranker.rank("q", passages)
    assert encoder.texts == ["q", "a", "b"] * 2
    with pytest.raises(InvalidInput, match="cached_texts"):
        kept_by(encoder, "", cached_texts=-1)


def test_a_vector_that_is_no_number_and_a_count_that_is_wrong_are_not_kept():
    class Ill(Nonsense):
        def encode(self, texts):
            return self.harm(super().encode(texts))

    encoder = Ill()
    ranker, passages = kept_by(encoder, "ab")
    for harm, match in ((lambda rows: rows * np.nan, "NaN"), (lambda rows: rows[:2], "3 texts")):
        encoder.harm = harm
        with pytest.raises(ModelError, match=match):
            ranker.rank("q", passages)
    encoder.harm = np.asarray
    encoder.texts.clear()
    assert ranker.rank("q", passages) == kept_by(Nonsense(), "ab")[0].rank("q", passages)
    assert encoder.texts == ["q", "a", "b"]


@pytest.mark.parametrize("candidates", ["ab", ["a text"], [None]])
def test_candidates_that_are_plain_texts_are_named(candidates):
    named = r"a candidate must be .*Passage\(text\), got|candidates came as one string"
    with pytest.raises(InvalidInput, match=named):
        a_ranker().rank("Who?", candidates)
    with pytest.raises(InvalidInput, match="the question must be a string, got list"):
        a_ranker().rank(["Who?"], [Passage("a text")])


def test_threads_that_share_a_ranker_get_what_each_would_get_alone():
    ranker, passages = kept_by(Nonsense(), [str(i) for i in range(60)], cached_texts=7)
    shares = [passages[i : i + 20] for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda share: ranker.rank("q", share), shares))
    alone = kept_by(Nonsense(), "", cached_texts=0)[0]
    assert found == [alone.rank("q", share) for share in shares]
    assert len(pickle.loads(pickle.dumps(ranker))._kept) == 7
