"""Which candidates are ranked for a question."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from rank_bm25 import BM25Plus

from ltrag_plugins.dur import DURRanker, DURSettings
from ltrag_plugins.dur.prompts import text_of
from ltrag_plugins.dur.shots import ExamplePool, Preselector
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.types import Passage, Question
from tests.dur_parts import Nonsense, houses

POOL = houses(100, 30)


def chosen(pool, question, *, how="bm25", size=5, encoder=None):
    encoder = encoder or Nonsense()
    vectors = encoder.encode([text_of(c) for c in pool])
    chooser = Preselector(pool, vectors, how=how, size=size)
    return chooser.choose(question, encoder.encode([question.text])[0]).tolist()


def test_bm25_chooses_what_shares_rare_words_with_the_question():
    pool = [Question(t, ("x",)) for t in ("a red dog", "a red cat", "a blue cat", "a green bird")]
    assert chosen(pool, Question("which cat is blue"), size=2) == [2, 1]
    # rank-bm25's own scores, of another idf, agree
    plus = BM25Plus([p.text.split() for p in pool]).get_scores(["which", "cat", "is", "blue"])
    assert np.argsort(-plus, kind="stable")[:2].tolist() == [2, 1]


def test_what_shares_no_word_fills_up_in_the_order_it_came_in():
    pool = [Question(t, ("x",)) for t in ("one", "two", "three", "four", "five")]
    assert chosen(pool, Question("four more"), size=3) == [3, 0, 1]
    assert chosen(pool, Question("none of them"), size=3) == [0, 1, 2]


def test_the_encoder_chooses_the_nearest_by_cosine():
    class Long(Nonsense):
        def encode(self, texts):
            rows = super().encode(texts)
            return rows * np.linspace(1, 50, len(texts))[:, None]  # length says nothing

    question, encoder = houses(7, 1)[0], Nonsense()
    vectors, asked = encoder.encode([c.text for c in POOL]), encoder.encode([question.text])[0]
    cosines = [v @ asked / np.linalg.norm(v) / np.linalg.norm(asked) for v in vectors]
    nearest = sorted(range(30), key=lambda i: -cosines[i])[:5]
    assert chosen(POOL, question, how="encoder", encoder=Long()) == nearest


@pytest.mark.parametrize("how", ["bm25", "encoder", "both", "none"])
def test_a_question_is_never_its_own_shot_however_it_is_written_and_takes_no_place(how):
    for i in (0, 3, 29):
        loud = replace(POOL[i], text=f"  {POOL[i].text.upper()} !")
        told = chosen(POOL, loud, how=how, size=29)
        assert sorted(told) == [j for j in range(30) if j != i]
        # nobody chooses where all are wanted: they stay in their order
        assert told == sorted(told) if how == "none" else chosen(POOL, loud, how=how) == told[:5]
    assert chosen([POOL[0], replace(POOL[0], id="twin")], POOL[0], how=how) == []


def test_a_passage_may_have_the_questions_text():
    pool = [Passage(POOL[0].text), Passage("else")]
    assert chosen(pool, POOL[0]) == [0, 1]


def test_the_same_words_about_another_text_are_another_question():
    twin = Question("Is it true?", ("yes",), context="The sun is hot.")
    assert chosen([twin], replace(twin, context="Ice is hot.")) == [0]
    assert chosen([twin], replace(twin, answers=("no",))) == []


def test_signs_that_mean_something_make_another_question():
    texts = ("2 + 3?", "2 - 3?", "2 * (3 + 1)", "2 * 3 + 1", "What is C++?", "What is C#?", "5 % 3")
    pool = [Question(text, ("x",)) for text in texts]
    for i, question in enumerate(pool):
        assert chosen(pool, question, how="none") == [j for j in range(len(pool)) if j != i]
    assert chosen([Question("Who\u2019s there...", ("x",))], Question("who 's there?!")) == []


def test_questions_in_a_script_without_spaces_and_of_signs_alone_are_told_apart():
    pool = [Question(t, ("x",)) for t in ("猫は?", "犬は?", "?!", "!!")]
    assert chosen(pool, Question("猫は?"), how="none") == [1, 2, 3]
    assert chosen(pool, Question("?!"), how="none") == [0, 1, 3]


def test_passages_are_searched_with_their_titles():
    assert text_of(Passage("text", title="title")) == "title\ntext"
    assert text_of(Passage("text")) == "text"
    pool = [Passage("of a novel", title="Dune"), Passage("of a novel", title="Emma")]
    assert chosen(pool, Question("who wrote Emma"), size=1) == [1]


def test_both_takes_from_bm25_and_from_the_neighbours_in_turn():
    asked = Question("What colour is house 3 in Elm street?")
    by = {how: chosen(POOL, asked, how=how, size=30) for how in ("bm25", "encoder", "both")}
    turns = [i for pair in zip(by["bm25"], by["encoder"], strict=True) for i in pair]
    assert by["both"] == list(dict.fromkeys(turns))
    assert by["bm25"][0] != by["encoder"][0]


def test_a_head_of_whole_examples_is_not_shown_their_questions_alone():
    ranker = DURRanker.untrained(Nonsense(), settings=DURSettings(encoded="example"))
    with pytest.raises(InvalidInput, match=r"encoded='question'"):
        ExamplePool(ranker)
    ExamplePool(DURRanker.untrained(Nonsense(), settings=DURSettings())).add(["why?"], ["because"])


def test_a_pool_is_indexed_when_it_is_asked_not_at_each_example():
    pool, made = ExamplePool(DURRanker.untrained(Nonsense())), []
    ranked = pool._ranked
    pool._ranked = lambda known, **more: made.append(len(known)) or ranked(known, **more)
    assert pool.choose("why?") == []
    for question in POOL[:20]:
        pool.add([question.text], [question.id])
    assert made == []
    first = pool.choose("What colour is house 3 in Elm street?")
    assert pool.choose("What colour is house 3 in Elm street?") == first
    pool.add([POOL[20].text], [POOL[20].id])
    pool.choose("why?")
    assert made == [20, 21]
    at_once = ExamplePool(DURRanker.untrained(Nonsense()))
    at_once.add([one.text for one in POOL[:20]], [one.id for one in POOL[:20]])
    assert at_once.choose("What colour is house 3 in Elm street?") == first


def test_threads_that_add_to_a_pool_find_what_they_added():
    ranker = DURRanker.untrained(Nonsense(), settings=DURSettings(preselect="none"))
    pool = ExamplePool(ranker, shots=len(POOL))

    def added(question):
        pool.add([question.text], [question.id])
        return pool.choose("why?")

    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(added, POOL)]
    for question, some in zip(POOL, found, strict=True):
        assert question.id in some
        assert len({*some}) == len(some)
    assert sorted(pool.choose("why?")) == sorted(one.id for one in POOL)
    in_turn = ExamplePool(ranker, shots=len(POOL))
    in_turn.add([one.text for one in POOL], [one.id for one in POOL])
    assert pool.choose("why?") == in_turn.choose("why?")
