import re
import string

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput, MissingReferences
from ltrag_plugins.metrics import answer
from ltrag_plugins.tokenize import folded, length, words
from ltrag_plugins.types import Question


def exact_match(prediction: str, references: list[str]) -> float:
    return float(answer.is_right(prediction, references, "exact_match"))


METRICS = [exact_match, answer.normalized_exact_match, answer.f1, answer.contains, answer.accuracy]
texts = st.text(max_size=40)
lists = st.lists(texts, min_size=1, max_size=3)


def test_normalization_drops_case_punctuation_articles_and_spare_spaces():
    assert answer.normalized("  The Phantom, of an   Opera! ") == "phantom of opera"
    assert answer.normalized("theatre") == "theatre"
    # an article stays where nothing else would be left
    assert (answer.normalized("A"), answer.normalized("The The")) == ("a", "the the")


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
        ("Straße", "STRASSE"),
        ("İzmir", "Izmir"),
        ("مُحَمَّد", "محمد"),
        ("שָׁלוֹם", "שלום"),
        ("12\u202f345\u202f678", "12,345,678"),
    ],
)
def test_beyond_ascii_spellings_of_the_same_text_are_equal(one, other):
    assert answer.normalized_exact_match(one, [other]) == 1
    assert answer.f1(one, [other]) == 1


@pytest.mark.parametrize(
    ("metric", "said", "references", "value"),
    [
        (exact_match, " Jane Austen\n", ["Jane Austen"], 1),
        (exact_match, "jane austen.", ["Jane Austen"], 0),
        (answer.normalized_exact_match, "the jane austen.", ["Jane Austen"], 1),
        (answer.normalized_exact_match, "Jane", ["Jane Austen"], 0),
        # precision 1/3 and recall 1/2
        (answer.f1, "in Paris, France", ["Paris, Texas"], 2 / 3 * 1 / 2 / (1 / 3 + 1 / 2)),
        # new x3 against new x2 and york: 2 shared of 3 and 3
        (answer.f1, "new new new", ["New New York"], 2 * 2 / (3 + 3)),
        (answer.f1, "Austen", ["Brontë", "Jane Austen", "Austen"], 1),
        (answer.contains, "I think it was Jane Austen, in 1815.", ["Brontë", "jane austen"], 1),
        (answer.contains, "the artist", ["art"], 0),
        (answer.contains, "Paris", ["Paris, France"], 0),
        (answer.contains, "法国的首都是巴黎。", ["巴黎"], 1),
        (answer.contains, "東京タワーです", ["大阪", "東京"], 1),
        (answer.contains, "เมืองหลวงคือปารีส", ["ปารีส"], 1),
        (answer.contains, "수도는 서울입니다", ["서울"], 1),
        (answer.contains, "दिल्ली", ["दिल"], 0),
        # as KorQuAD and CMRC have it, character by character: 2 shared of 3 and 2
        (answer.f1, "巴黎市", ["巴黎"], 2 * 2 / (3 + 2)),
        (answer.f1, "서울은", ["서울"], 2 * 2 / (3 + 2)),
        (answer.accuracy, "दिल्ली है", ["दाल", "दिल्ली"], 1),
        (answer.accuracy, "दुल्ला", ["दिल्ली"], 0),
        (answer.accuracy, "yes", ["no", "yes"], 1),
        (answer.accuracy, "Answer: The answer is yes.", ["yes"], 1),
        (answer.accuracy, "The answer is: (A) yes", ["A"], 1),
        (answer.accuracy, "**Maybe**, because the trial was small", ["maybe"], 1),
        (answer.accuracy, "not sure", ["no", "A"], 0),
        (answer.accuracy, "It is not clear: yes and no", ["no", "A"], 0),
        (answer.accuracy, "(B)", ["no", "A"], 0),
        (answer.accuracy, "The answer is unclear", ["The answer is unclear"], 1),
        (answer.accuracy, "Answer: The answer is unclear.", ["The answer is unclear"], 1),
        (answer.accuracy, "The answer is unclear", ["unclear"], 1),
        (answer.accuracy, "The answer is yes", ["The answer is unclear", "The"], 0),
        (answer.accuracy, "answer", ["answer"], 1),
    ],
)
def test_metrics_worked_by_hand(metric, said, references, value):
    assert metric(said, references) == pytest.approx(value)


@pytest.mark.parametrize("metric", METRICS)
def test_what_all_metrics_make_of_nothing_and_of_signs_alone(metric):
    assert metric("", ["Jane Austen", "The The", "!!!"]) == 0
    assert metric("!!!", ["!!!"]) == 1
    assert metric("???", ["!!!"]) == 0
    with pytest.raises(MissingReferences, match="at least one accepted answer"):
        metric("yes", [])
    with pytest.raises(InvalidInput, match="put it in a list"):
        metric("yes", "yes")


@pytest.mark.parametrize(
    "said",
    [
        "दिल्ली भारत की राजधानी है।",
        "مُحَمَّد رسول", "שָׁלוֹם עולם", "தமிழ்நாடு", "cafe\u0301 q\u0307", "Ὀδυσσεύς",
        "ꯃꯤꯇꯩꯂꯣꯟ ꯃꯁꯤ", "𑄌𑄋𑄴𑄟𑄳𑄦 𑄞𑄌𑄴", "ꠍꠤꠟꠐꠤ", "𞤆𞤵𞤤𞤢𞥄𞤪",
    ],
)  # fmt: skip
def test_a_word_is_whole_with_its_vowel_signs_and_accents(said):
    # of the package regex, whose letters have their marks
    assert words(said) == regex.findall(r"\w+", folded(said))


@pytest.mark.parametrize("said", ["巴黎是法国的首都", "東京タワー", "กรุงเทพ", "ភ្នំពេញ", "한국의"])
def test_where_nothing_stands_between_words_each_character_is_one(said):
    # a grapheme cluster of Unicode may hold several of them, and none is torn apart
    clusters = [words(cluster) for cluster in regex.findall(r"\X", said)]
    assert words(said) == [word for cluster in clusters for word in cluster]
    assert len(clusters) > 2
    assert words(f"in {said} 2024") == ["in", *words(said), "2024"]


def test_a_text_without_blanks_is_about_half_as_many_words_as_characters():
    lengths = {"巴": 1, "巴黎": 1, "巴黎是法国的首都": 4, "in 巴黎 2024": 3, "": 0}
    assert {text: length(text) for text in lengths} == lengths


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
