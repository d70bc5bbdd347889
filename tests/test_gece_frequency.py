import math
import threading

import numpy as np
import pytest
from wordfreq import word_frequency

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece import WordFrequencies

CORPUS = ["The cat sat.", "The cat and the dog"]  # the 3, cat 2, sat 1, and 1, dog 1


def test_a_language_has_the_frequencies_of_wordfreq():
    english = WordFrequencies()
    assert english.of_word("the") == word_frequency("the", "en")
    by_hand = np.mean([word_frequency(w, "en") for w in ("who", "wrote", "emma")])
    assert english.mean("Who wrote Emma?") == pytest.approx(by_hand)


def test_another_language_has_its_own():
    assert WordFrequencies("de").of_word("der") > WordFrequencies("en").of_word("der")


def test_a_corpus_is_counted():
    counted = WordFrequencies.of_corpus(CORPUS)
    assert counted.of_word("the") == pytest.approx(3 / 8)
    assert counted.of_word("The") == counted.of_word("the")
    assert counted.mean("the dog") == pytest.approx((3 / 8 + 1 / 8) / 2)
    assert counted.rarities(["the", "dog"]) == pytest.approx(
        [-math.log10(3 / 8), -math.log10(1 / 8)]
    )


def test_words_never_seen_count_as_one_in_a_billion():
    assert WordFrequencies().of_word("qzxvkw") == 1e-9
    assert WordFrequencies.of_corpus(CORPUS).of_word("zebra") == 1e-9
    assert WordFrequencies.of_corpus(CORPUS).rarities(["zebra"]) == pytest.approx([9.0])


def test_a_text_without_words_counts_as_unseen():
    assert WordFrequencies().mean("?!") == 1e-9
    assert WordFrequencies().rarities([]) == []


@pytest.mark.parametrize("texts", [[], [""], ["...", "?"]])
def test_a_corpus_without_words_is_refused(texts):
    with pytest.raises(InvalidInput, match="no words"):
        WordFrequencies.of_corpus(texts)


@pytest.mark.parametrize("language", ["xx", "klingon", ""])
def test_an_unknown_language_is_refused_with_the_way_out(language):
    with pytest.raises(InvalidInput, match="of_corpus"):
        WordFrequencies(language).mean("nuqneH")


def test_equal_corpora_give_equal_frequencies():
    assert WordFrequencies.of_corpus(CORPUS) == WordFrequencies.of_corpus(CORPUS[::-1])
    assert WordFrequencies.of_corpus(CORPUS) != WordFrequencies.of_corpus(CORPUS[:1])


def test_threads_that_share_frequencies_read_the_same():
    counted, found = WordFrequencies.of_corpus(CORPUS * 1000), []
    threads = [
        threading.Thread(target=lambda: found.append(counted.mean("the dog sat"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [WordFrequencies.of_corpus(CORPUS).mean("the dog sat")] * 8
