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
    ("b a c", "a b c"),
    ("it is certainly Paris", "Paris"),
]
sentences = st.text(alphabet="abc äß東 .,", max_size=30)


@pytest.mark.parametrize(
    ("said", "wanted", "precision", "recall", "chunks", "matches"),
    [
        # "the cat" and "on the mat"
        ("the cat sat on the mat", "The cat is on the mat.", 5 / 6, 5 / 6, 2, 5),
        # exact: he; by stem: likes~liked, running~run; chunks: "he like", "run"
        ("he likes running", "he liked to run", 3 / 3, 3 / 4, 2, 3),
        ("Paris", "Paris", 1, 1, 1, 1),
        ("Jane Austen", "Jane Austen", 1, 1, 1, 2),
    ],
)
def test_meteor_by_hand(said, wanted, precision, recall, chunks, matches):
    f = 10 * precision * recall / (recall + 9 * precision)
    penalty = 0.5 * (chunks / matches) ** 3
    assert text.meteor(said, [wanted]) == pytest.approx(f * (1 - penalty))


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


def test_rouge_sees_letters_of_any_script():
    assert text.rouge_1("Röntgen", ["röntgen"]) == 1
    assert text.rouge_l("東京 タワー", ["東京 タワー"]) == 1
    # each of these characters is a word: 2 of 5 and of 2
    assert text.rouge_1("東京 タワー", ["東京"]) == pytest.approx(2 * 2 / (5 + 2))


@pytest.mark.parametrize(("said", "wanted"), EXAMPLES)
def test_bleu_chrf_and_ter_are_sacrebleus_hundredths(said, wanted):
    theirs = sentence_bleu(said, [wanted], use_effective_order=True).score
    assert text.bleu(said, [wanted]) == pytest.approx(theirs / 100)
    assert text.chrf(said, [wanted]) == pytest.approx(sentence_chrf(said, [wanted]).score / 100)
    assert text.ter(said, [wanted]) == pytest.approx(sentence_ter(said, [wanted]).score / 100)


@pytest.mark.parametrize("metric", ALL)
def test_the_best_reference_counts_and_one_there_must_be(metric):
    alone = metric("Jane Austen wrote it", ["Jane Austen wrote it"])
    assert metric("Jane Austen wrote it", ["x y z", "Jane Austen wrote it", "Brontë"]) == alone
    assert metric("", ["Jane Austen"]) == (metric is text.ter)
    with pytest.raises(MissingReferences):
        metric("yes", [])


@given(sentences, st.lists(sentences, min_size=1, max_size=2))
def test_values_stay_in_their_range(prediction, references):
    for metric in BOUNDED:
        assert 0 <= metric(prediction, references) <= 1
    assert text.ter(prediction, references) >= 0
