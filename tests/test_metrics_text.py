import nltk
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import sentence_bleu, sentence_chrf, sentence_ter

from ltrag_plugins.errors import MissingReferences
from ltrag_plugins.metrics import text

BOUNDED = [text.meteor, text.rouge_1, text.rouge_l, text.bleu, text.chrf]
ALL = [*BOUNDED, text.ter]
EXAMPLES = [
    ("the cat sat on the mat", "the cat is on the mat"),
    ("Jane Austen wrote Emma in 1815", "Emma was written by Jane Austen"),
    ("Paris", "Paris"),
    ("no idea", "Wilhelm Conrad Rontgen"),
]
sentences = st.text(alphabet="abc äß東 .,", max_size=30)


def test_meteor_by_hand_with_exact_matches_alone():
    # said:   the cat sat on the mat     5 of 6 words match, in 2 chunks:
    # wanted: the cat is on the mat      "the cat" and "on the mat"
    precision, recall = 5 / 6, 5 / 6
    f = precision * recall / (0.9 * precision + 0.1 * recall)
    penalty = 0.5 * (2 / 5) ** 3
    got = text.meteor("the cat sat on the mat", ["The cat is on the mat."])
    assert got == pytest.approx(f * (1 - penalty))


def test_meteor_by_hand_with_stems_and_unequal_lengths():
    # said: he likes running (3); wanted: he liked to run (4)
    # exact: he; by stem: likes~liked, running~run; chunks: "he like", "run"
    precision, recall = 3 / 3, 3 / 4
    f = 10 * precision * recall / (recall + 9 * precision)
    penalty = 0.5 * (2 / 3) ** 3
    assert text.meteor("he likes running", ["he liked to run"]) == pytest.approx(f * (1 - penalty))


def test_meteor_of_a_right_answer_grows_with_its_words():
    assert text.meteor("Paris", ["Paris"]) == pytest.approx(1 - 0.5 * (1 / 1) ** 3)
    assert text.meteor("Jane Austen", ["Jane Austen"]) == pytest.approx(1 - 0.5 * (1 / 2) ** 3)


# WordNet's own file format, with a single synset
WORDNET = {
    "lexnames": "00\tadj.all\t3\n",
    "index.noun": "auto n 1 0 1 0 00000000\ncar n 1 0 1 0 00000000\n",
    "data.noun": "00000000 00 n 02 auto 0 car 0 000 | a motor vehicle\n",
}
WORDNET_FILES = [
    f"{kind}.{pos}" for kind in ("index", "data") for pos in ("noun", "verb", "adj", "adv")
] + [f"{pos}.exc" for pos in ("noun", "verb", "adj", "adv")]


@pytest.fixture
def where_nltk_looks(tmp_path, monkeypatch):
    """An empty folder in place of nltk's search path, and nothing loaded from the real one."""
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    fresh = nltk.corpus.util.LazyCorpusLoader("wordnet", nltk.corpus.WordNetCorpusReader, None)
    monkeypatch.setattr(nltk.corpus, "wordnet", fresh)
    forget_libraries()
    yield tmp_path
    forget_libraries()


def forget_libraries():
    text._has_wordnet.cache_clear()
    text._nltk.cache_clear()


@pytest.mark.filterwarnings("ignore:The multilingual functions")
def test_where_wordnet_is_installed_synonyms_match_and_meteor_says_so(where_nltk_looks):
    folder = where_nltk_looks / "corpora" / "wordnet"
    folder.mkdir(parents=True)
    for name in {*WORDNET_FILES, *WORDNET, "cntlist.rev", "index.sense"}:
        (folder / name).write_text(WORDNET.get(name, ""))
    assert text.meteor_stages() == ("exact", "stem", "synonym")
    assert text.meteor("red auto", ["red car"]) == pytest.approx(1 - 0.5 * (1 / 2) ** 3)


def test_without_wordnet_meteor_keeps_two_stages_and_says_so(where_nltk_looks):
    assert text.meteor_stages() == ("exact", "stem")
    # 1 of 2 words on either side, 1 chunk
    assert text.meteor("red auto", ["red car"]) == pytest.approx(0.5 * (1 - 0.5))


@pytest.mark.parametrize(("said", "wanted"), EXAMPLES)
def test_rouge_is_rouge_scores_on_ascii_text(said, wanted):
    theirs = RougeScorer(["rouge1", "rougeL"]).score(wanted, said)
    assert text.rouge_1(said, [wanted]) == pytest.approx(theirs["rouge1"].fmeasure)
    assert text.rouge_l(said, [wanted]) == pytest.approx(theirs["rougeL"].fmeasure)


def test_rouge_by_hand():
    # shared words: the cat on the mat (5 of 6 and 6); longest common subsequence of
    # "b a c" and "a b c": 2 of 3 and 3
    assert text.rouge_1("the cat sat on the mat", ["the cat is on the mat"]) == 5 / 6
    assert text.rouge_l("b a c", ["a b c"]) == pytest.approx(2 / 3)
    assert text.rouge_1("b a c", ["a b c"]) == 1


def test_rouge_sees_letters_of_any_script():
    assert text.rouge_1("Röntgen", ["röntgen"]) == 1
    assert text.rouge_l("東京 タワー", ["東京 タワー"]) == 1
    assert text.rouge_1("東京 タワー", ["東京"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(("said", "wanted"), EXAMPLES)
def test_bleu_chrf_and_ter_are_sacrebleus_hundredths(said, wanted):
    theirs = sentence_bleu(said, [wanted], use_effective_order=True).score
    assert text.bleu(said, [wanted]) == pytest.approx(theirs / 100)
    assert text.chrf(said, [wanted]) == pytest.approx(sentence_chrf(said, [wanted]).score / 100)
    assert text.ter(said, [wanted]) == pytest.approx(sentence_ter(said, [wanted]).score / 100)


def test_bleu_by_hand():
    # said: the cat sat on the mat; matches: 5 of 6 words, 3 of 5 pairs, 1 of 4 triples,
    # 0 of 3 fours, which smoothing makes 1/2 of a match; equal lengths, so no penalty
    by_hand = (5 / 6 * 3 / 5 * 1 / 4 * (1 / 2) / 3) ** (1 / 4)
    got = text.bleu("the cat sat on the mat", ["the cat is on the mat"])
    assert got == pytest.approx(by_hand)


def test_a_right_answer_of_one_word_has_full_bleu():
    assert text.bleu("Paris", ["Paris"]) == 1


def test_ter_counts_edits_per_reference_word_and_may_pass_one():
    assert text.ter("the cat sat", ["the cat is here"]) == 2 / 4
    assert text.ter("it is certainly Paris", ["Paris"]) == 3


@pytest.mark.parametrize("metric", BOUNDED)
def test_the_best_reference_counts(metric):
    alone = metric("Jane Austen wrote it", ["Jane Austen wrote it"])
    assert metric("Jane Austen wrote it", ["x y z", "Jane Austen wrote it", "Brontë"]) == alone


def test_of_several_references_ter_takes_the_nearest():
    assert text.ter("Jane Austen", ["x y z", "Jane Austen", "Brontë"]) == 0


@pytest.mark.parametrize("metric", BOUNDED)
def test_an_empty_prediction_scores_nothing(metric):
    assert metric("", ["Jane Austen"]) == 0


@pytest.mark.parametrize("metric", ALL)
def test_no_references_is_an_error(metric):
    with pytest.raises(MissingReferences):
        metric("yes", [])


@given(sentences, st.lists(sentences, min_size=1, max_size=2))
def test_values_stay_in_their_range(prediction, references):
    for metric in BOUNDED:
        assert 0 <= metric(prediction, references) <= 1
    assert text.ter(prediction, references) >= 0
