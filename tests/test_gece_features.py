import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import CalibrationError, InvalidInput, InvalidLogProbability, ModelError
from ltrag_plugins.gece import Evidence, WordFrequencies
from ltrag_plugins.gece.signals import _traits, available_signals, features
from ltrag_plugins.types import Generation, GradientAgreement, Token
from tests.gece_parts import said

ENGLISH = WordFrequencies()
TEXT = ["draft_words", "word_frequency", "rarest_word"]
PROBABILITIES = ["mean_logprob", "mean_probability", "product", "least_probability"]


def test_only_signals_that_all_of_the_evidence_has_are_available():
    whole = Evidence("Who?", said("a", -0.1), agreement=GradientAgreement(1.0))
    bare = Evidence("Who?", Generation("a", (Token("a", -0.1),)))
    silent = Evidence("Who?", Generation("a"))
    assert available_signals([whole], ENGLISH) == [
        *PROBABILITIES, "entropy", "margin", *TEXT, "gradient_dot",
    ]  # fmt: skip
    assert available_signals([whole, bare], ENGLISH) == PROBABILITIES + TEXT
    assert available_signals([whole, bare, silent], ENGLISH) == TEXT


def test_without_word_frequencies_all_else_is_read_as_with_them():
    item = Evidence("Who wrote Emma?", said("Jane Austen", -0.1))
    names = available_signals([item], None)
    assert names == [*PROBABILITIES, "entropy", "margin", "draft_words"]
    assert set(available_signals([item], ENGLISH)) - {*names} == {"word_frequency", "rarest_word"}
    bare, whole = features([item], names, None), features([item], names, ENGLISH)
    assert bare.signals.tolist() == whole.signals.tolist()
    without, traits = _traits(item, None), _traits(item, ENGLISH)
    assert {*traits} - {*without} == {
        "question rarity", "question rarest three", "draft rarity", "draft rarest",
        "draft new words' rarity", "draft rarest new word",
    }  # fmt: skip
    assert traits | without == traits
    assert bare.traits.tolist() == [[*without.values()]]
    assert whole.traits.tolist() == [[*traits.values()]]


def test_a_wrong_log_probability_is_not_mistaken_for_an_absent_one():
    wrong = Evidence("Who?", Generation("a", (Token("a", math.nan),)))
    with pytest.raises(InvalidLogProbability):
        available_signals([wrong], ENGLISH)
    assert available_signals([wrong], ENGLISH, tier="text") == TEXT


def test_signals_of_the_callers_own_stand_beside_ours():
    item = Evidence("Who?", Generation("a"), extra={"popularity": 3.0})
    names = available_signals([item], ENGLISH)
    assert names == [*TEXT, "popularity"]
    assert features([item], names, ENGLISH).signals[0, -1] == 3.0


def test_a_signal_of_the_callers_own_under_our_name_is_refused():
    with pytest.raises(InvalidInput, match="rename"):
        available_signals([Evidence("Who?", Generation("a"), extra={"margin": 1.0})], ENGLISH)


def test_a_missing_signal_of_the_callers_own_is_named():
    with pytest.raises(CalibrationError, match="popularity"):
        features([Evidence("Who?", Generation("a"))], ["popularity"], ENGLISH)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e39])
def test_a_signal_that_is_not_finite_is_refused_with_its_name_and_question(value):
    item = Evidence("Who wrote Emma?", Generation("a"), extra={"own": value})
    with pytest.raises(InvalidInput, match=r"'own'.*Who wrote Emma"):
        features([item], ["own"], ENGLISH)


def test_an_embedding_that_is_not_finite_is_the_encoders_fault():
    item = Evidence("Who?", Generation("a"), vectors=np.array([[1.0, np.nan], [0.0, 1.0]]))
    with pytest.raises(ModelError, match="encoder"):
        features([item], TEXT, ENGLISH)


def test_embeddings_for_some_of_the_questions_only_are_refused():
    some = Evidence("Who?", Generation("a"), vectors=np.ones((2, 3)))
    with pytest.raises(InvalidInput, match="length"):
        features([some, Evidence("Who?", Generation("a"))], TEXT, ENGLISH)


def test_question_and_draft_embeddings_stand_side_by_side():
    item = Evidence("Who?", Generation("a"), vectors=np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert features([item], TEXT, ENGLISH).vectors.tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_the_traits_of_a_question_and_its_draft_by_hand():
    traits = _traits(Evidence("Who wrote Emma?", Generation(" In 1815, Emma, in 1815 ")), ENGLISH)
    rarity = {w: -math.log10(ENGLISH.of_word(w)) for w in ("who", "wrote", "emma", "in", "1815")}
    expected = {
        "question rarity": np.mean([rarity["who"], rarity["wrote"], rarity["emma"]]),
        "draft rarest": max(rarity["in"], rarity["1815"], rarity["emma"]),
        "draft new words": 4 / 6,
        "draft words of the question": 1,
        "draft repetition": 1 - 3 / 5,
        "question words": math.log(4),
        "question names": 2,
        "draft names": 2,
        "draft digits": 1,
        "draft commas": 2,
        "question mark": 1,
        "asks who": 1,
        "asks when": 0,
        "draft yes or no": 0,
    }
    assert {name: traits[name] for name in expected} == pytest.approx(expected)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_two_texts_have_the_same_finite_columns(question, draft):
    rows = [_traits(Evidence(q, Generation(d)), ENGLISH) for q, d in [(question, draft), ("", "")]]
    assert list(rows[0]) == list(rows[1])
    assert np.isfinite([list(row.values()) for row in rows]).all()
