import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput, MissingReferences
from ltrag_plugins.metrics import answer
from ltrag_plugins.types import Question


def exact_match(prediction: str, references: list[str]) -> float:
    return float(answer.is_right(prediction, references, "exact_match"))


METRICS = [
    exact_match,
    answer.normalized_exact_match,
    answer.f1,
    answer.contains,
    answer.accuracy,
]
texts = st.text(max_size=40)
lists = st.lists(texts, min_size=1, max_size=3)


def test_normalization_drops_case_punctuation_articles_and_spare_spaces():
    assert answer.normalized("  The Phantom, of an   Opera! ") == "phantom of opera"
    assert answer.normalized("theatre") == "theatre"


def test_an_article_stays_where_nothing_else_would_be_left():
    assert answer.normalized("A") == "a"
    assert answer.normalized("The The") == "the the"


@given(st.text(alphabet=string.printable, max_size=60))
def test_on_ascii_text_normalization_is_squads(text):
    bare = "".join(c for c in text.lower() if c not in set(string.punctuation))
    squad = " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
    assert answer.normalized(text) == (squad or " ".join(bare.split()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1914–1918", "1914-1918"),
        ("Rontgen’s", "Rontgen's"),
        ("café", "cafe\u0301"),
        ("「東京」", "東京"),
        ("ﬁve", "five"),
    ],
)
def test_beyond_ascii_spellings_of_the_same_text_are_equal(one, other):
    assert answer.normalized_exact_match(one, [other]) == 1
    assert answer.f1(one, [other]) == 1


def test_exact_match_minds_every_character_and_normalized_exact_match_does_not():
    assert exact_match(" Jane Austen\n", ["Jane Austen"]) == 1
    assert exact_match("jane austen.", ["Jane Austen"]) == 0
    assert answer.normalized_exact_match("the jane austen.", ["Jane Austen"]) == 1
    assert answer.normalized_exact_match("Jane", ["Jane Austen"]) == 0


def test_f1_is_the_harmonic_mean_of_word_precision_and_recall():
    # said: in, paris, france; wanted: paris, texas; one word shared
    precision, recall = 1 / 3, 1 / 2
    by_hand = 2 * precision * recall / (precision + recall)
    assert answer.f1("in Paris, France", ["Paris, Texas"]) == pytest.approx(by_hand)


def test_f1_counts_a_repeated_word_as_often_as_both_have_it():
    # said: new x3; wanted: new x2, york; 2 shared
    assert answer.f1("new new new", ["New New York"]) == pytest.approx(2 * 2 / (3 + 3))


def test_the_best_reference_counts():
    assert answer.f1("Austen", ["Brontë", "Jane Austen", "Austen"]) == 1
    assert answer.contains("It was Austen.", ["Brontë", "Austen"]) == 1
    assert answer.accuracy("yes", ["no", "yes"]) == 1


def test_contains_wants_whole_words():
    assert answer.contains("I think it was Jane Austen, in 1815.", ["jane austen"]) == 1
    assert answer.contains("the artist", ["art"]) == 0
    assert answer.contains("Paris", ["Paris, France"]) == 0


@pytest.mark.parametrize(
    ("reply", "option"),
    [
        ("yes", "yes"),
        ("Answer: The answer is yes.", "yes"),
        ("The answer is: (A) yes", "A"),
        ("**Maybe**, because the trial was small", "maybe"),
        ("A", "A"),
    ],
)
def test_accuracy_reads_the_option_a_reply_begins_with(reply, option):
    assert answer.accuracy(reply, [option]) == 1


@pytest.mark.parametrize("reply", ["", "not sure", "It is not clear: yes and no", "(B)"])
def test_a_reply_that_begins_otherwise_picks_nothing(reply):
    assert answer.accuracy(reply, ["no", "A"]) == 0


@pytest.mark.parametrize("metric", METRICS)
def test_an_empty_prediction_is_wrong(metric):
    assert metric("", ["Jane Austen", "The The", "!!!"]) == 0


@pytest.mark.parametrize("metric", METRICS)
def test_a_reference_of_punctuation_alone_matches_itself_alone(metric):
    assert metric("!!!", ["!!!"]) == 1
    assert metric("???", ["!!!"]) == 0


@pytest.mark.parametrize("metric", METRICS)
def test_no_references_is_an_error_and_not_a_wrong_answer(metric):
    with pytest.raises(MissingReferences, match="at least one accepted answer"):
        metric("yes", [])


@pytest.mark.parametrize("metric", METRICS)
def test_one_string_in_place_of_a_list_is_refused(metric):
    with pytest.raises(InvalidInput, match="put it in a list"):
        metric("yes", "yes")


@given(texts, lists)
def test_each_stricter_metric_is_a_lower_bound(prediction, references):
    exact = exact_match(prediction, references)
    normalized = answer.normalized_exact_match(prediction, references)
    f1 = answer.f1(prediction, references)
    assert 0 <= exact <= normalized <= f1 <= 1
    assert normalized <= answer.contains(prediction, references)


@given(texts, lists)
def test_another_reference_never_lowers_a_value(prediction, references):
    for metric in METRICS:
        assert metric(prediction, references) <= metric(prediction, [*references, "more"])


@given(lists)
def test_a_reference_itself_is_right(references):
    for metric in METRICS[:4]:
        assert metric(references[0], references) == 1


def test_macro_f1_is_the_mean_over_options_of_precision_and_recall():
    asked = [Question("?", ("a",), options=("a", "b", "c"))] * 3
    asked += [Question("?", ("b",), options=("a", "b", "c"))] * 2
    asked += [Question("?", ("a", "c"), options=("a", "b", "c"))]  # either is right
    said = ["a", "a", "b", "b", "none of these", "c"]
    # a: said twice, both of three right; b: said twice, one of two; c: said once, right
    by_option = [2 * 1 * (2 / 3) / (1 + 2 / 3), 2 * 0.5 * 0.5 / (0.5 + 0.5), 1.0]
    assert answer.macro_f1(said, asked) == pytest.approx(sum(by_option) / 3)
    assert answer.macro_f1(["b"] * 3, asked[:3]) == 0
