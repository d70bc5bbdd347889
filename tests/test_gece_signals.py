import math

import numpy as np
import pytest

from ltrag_plugins.errors import CalibrationError, NeedsGradients, NoTokenProbabilities
from ltrag_plugins.gece import SIGNALS, Evidence, WordFrequencies
from ltrag_plugins.types import Generation, GradientAgreement, Token
from tests.gece_parts import said

ENGLISH = WordFrequencies()


def read(name: str, evidence: Evidence) -> float:
    return SIGNALS[name].read(evidence, ENGLISH)


def evidence(draft: Generation | None = None, question: str = "Who?", **more) -> Evidence:
    return Evidence(question, draft or Generation("Paris"), **more)


@pytest.mark.parametrize("name", [n for n, s in SIGNALS.items() if s.tier == "probabilities"])
def test_signals_of_the_draft_grow_when_the_draft_gets_less_certain(name):
    sure, less, least = (evidence(said("a b", math.log(p))) for p in (0.99, 0.7, 0.4))
    assert read(name, sure) < read(name, less) < read(name, least)


def test_signals_of_the_draft_are_numpys():
    p, q = np.array([0.9, 0.5, 0.8]), np.array([0.05, 0.4, 0.1])
    tokens = tuple(
        Token("a", math.log(a), alternatives=(("a", math.log(a)), ("b", math.log(b))))
        for a, b in zip(p, q, strict=True)
    )
    item = evidence(Generation("a a a", tokens))
    rest = 1 - p - q
    by_hand = {
        "mean_logprob": -np.log(p).mean(),
        "mean_probability": -p.mean(),
        "product": 1 - p.prod(),
        "least_probability": -p.min(),
        "entropy": -(p * np.log(p) + q * np.log(q) + rest * np.log(rest)).mean(),
        "margin": -(p - q).mean(),
    }
    assert {name: read(name, item) for name in by_hand} == pytest.approx(by_hand)


def test_a_question_of_rarer_words_has_the_larger_signals():
    common, rare = (evidence(question=q) for q in ("who is the king", "who is the quokka"))
    assert read("word_frequency", common) < read("word_frequency", rare)
    assert read("rarest_word", common) < read("rarest_word", rare)
    by_hand = [ENGLISH.of_word(w) for w in ("who", "is", "the", "quokka")]
    assert read("word_frequency", rare) == pytest.approx(-math.log10(np.mean(by_hand)))
    assert read("rarest_word", rare) == pytest.approx(-math.log10(min(by_hand)))


def test_a_longer_draft_has_the_larger_signal():
    assert read("draft_words", evidence(Generation(" In Paris, France."))) == 3
    assert read("draft_words", evidence(Generation(""))) == 0


def test_disagreement_is_one_minus_the_mean_overlap_of_words():
    samples = (Generation("In Paris"), Generation("paris."), Generation("Rome"))
    item = evidence(Generation("Paris"), samples=samples)
    # F1 of {paris} with {in, paris}, {paris}, {rome}
    assert read("disagreement", item) == pytest.approx(1 - (2 / 3 + 1 + 0) / 3)


def test_empty_drafts_that_agree_agree():
    item = evidence(Generation(""), samples=(Generation(""), Generation(" ")))
    assert read("disagreement", item) == 0.0


def test_the_gradient_signals_are_the_agreement_negated():
    item = evidence(agreement=GradientAgreement(dot=0.3, cosine=-0.2))
    assert read("gradient_dot", item) == -0.3
    assert read("gradient_cosine", item) == 0.2


@pytest.mark.parametrize(
    ("name", "error", "remedy"),
    [
        ("product", NoTokenProbabilities, "logprobs=True"),
        ("disagreement", CalibrationError, "samples=3"),
        ("rarest_word", CalibrationError, "frequencies="),
        ("gradient_dot", NeedsGradients, "gradients='always'"),
        ("gradient_cosine", NeedsGradients, "gradients='always'"),
    ],
)
def test_a_signal_whose_source_is_missing_says_how_to_get_it(name, error, remedy):
    with pytest.raises(error, match=remedy):
        SIGNALS[name].read(evidence(), None)


def test_a_cosine_that_was_not_computed_is_asked_for_by_name():
    with pytest.raises(NeedsGradients, match="agreement='cosine'"):
        read("gradient_cosine", evidence(agreement=GradientAgreement(dot=0.3)))


def test_an_empty_draft_has_every_signal_and_none_is_smaller_than_for_a_sure_one():
    empty, sure = evidence(Generation("", ())), evidence(said("Paris", math.log(0.9)))
    for name, signal in SIGNALS.items():
        if signal.tier == "probabilities":
            assert math.isfinite(read(name, empty))
            assert read(name, empty) > read(name, sure)
