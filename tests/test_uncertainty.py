import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from ltrag_plugins.errors import InvalidInput, InvalidLogProbability, NoTokenProbabilities
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, Token
from ltrag_plugins.uncertainty import (
    TOKEN_SIGNALS,
    Measured,
    calls_for,
    checked_estimator,
    estimate,
    measured,
    sampled_uncertainties,
)

SIGNALS = pytest.mark.parametrize("name", TOKEN_SIGNALS)
DISTRIBUTIONS = pytest.mark.parametrize("name", ["entropy", "margin"])


def value(name: str, written: Generation) -> float:
    """Of a signal as it is, before it becomes an uncertainty."""
    return TOKEN_SIGNALS[name].value(written)


def generation(*logprobs: float) -> Generation:
    return Generation("a", tuple(Token("a", logprob) for logprob in logprobs))


def distributed(*tables: list[float], shown: int | None = None) -> Generation:
    """One token per distribution; the model reports the `shown` likeliest of each."""
    ranked = [sorted(table, reverse=True)[:shown] for table in tables]
    alternatives = [tuple(("a", math.log(p)) for p in best) for best in ranked]
    return Generation("a", tuple(Token("a", one[0][1], alternatives=one) for one in alternatives))


tables = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=8).map(
    lambda weights: (np.array(weights) / np.sum(weights)).tolist()
)


@given(st.lists(tables, min_size=1, max_size=6))
def test_each_signal_and_its_uncertainty_is_its_formula_in_numpy(told):
    p = np.array([max(table) for table in told])
    second = np.array([sorted(table)[-2] for table in told])
    h = np.mean([entropy(table) for table in told])
    wanted = {
        "product": (1 - p.prod(), 1 - p.prod()),
        "length_normalized": (1 - p.prod() ** (1 / len(p)), 1 - p.prod() ** (1 / len(p))),
        "mean_logprob": (np.log(p).mean(), -np.log(p).mean() / 20),
        "mean_probability": (p.mean(), 1 - p.mean()),
        "least_probability": (p.min(), 1 - p.min()),
        "entropy": (h, 1 - np.exp(-h)),
        "margin": ((p - second).mean(), 1 - (p - second).mean()),
    }
    assert wanted.keys() == TOKEN_SIGNALS.keys()
    for name, both in wanted.items():
        found = value(name, distributed(*told)), estimate(distributed(*told), name)
        assert found == pytest.approx(both, abs=1e-9)
        assert 0 <= found[1] <= 1


def drawn(told: list[tuple[list[float], int]]) -> Generation:
    """Of each table the token of that place was drawn."""
    both = [(table, table[place % len(table)]) for table, place in told]
    tokens = [
        Token("a", math.log(p), alternatives=tuple(("a", math.log(q)) for q in sorted(table)[::-1]))
        for table, p in both
    ]
    return Generation("a", tuple(tokens))


@given(st.lists(st.lists(st.tuples(tables, st.integers(0, 7)), min_size=1), min_size=1, max_size=4))
def test_a_sample_has_the_product_of_the_largest_probabilities_or_of_the_drawn_ones(told):
    samples = [drawn(one) for one in told]
    largest = [1 - np.prod([max(table) for table, _ in one]) for one in told]
    own = [1 - np.prod([table[place % len(table)] for table, place in one]) for one in told]
    assert sampled_uncertainties(samples) == pytest.approx(largest, abs=1e-9)
    assert sampled_uncertainties(samples, "drawn") == pytest.approx(own, abs=1e-9)
    # one token without alternatives, and all are read alike; a greedy answer is the same in both
    one_lacks = [*samples, generation(math.log(0.5))]
    assert sampled_uncertainties(one_lacks) == pytest.approx([*own, 0.5], abs=1e-9)
    greedy = [distributed(*(table for table, _ in one)) for one in told]
    assert sampled_uncertainties(greedy) == sampled_uncertainties(greedy, "drawn")


def test_two_thousand_tokens_neither_underflow_nor_round_to_certain():
    long = generation(*[math.log(0.3)] * 2000)
    assert estimate(long, "product") == 1.0
    assert estimate(long, "length_normalized") == pytest.approx(0.7)
    assert estimate(long, "least_probability") == pytest.approx(0.7)
    assert value("mean_logprob", long) == pytest.approx(math.log(0.3))
    # 1 - (1 - 1e-15)^2000 is 2e-12, which plain floats blur beside 1
    nearly = generation(*[-1e-15] * 2000)
    assert estimate(nearly, "product") == pytest.approx(2e-12, rel=1e-6, abs=0)


@given(tables, st.integers(1, 8))
def test_entropy_from_some_alternatives_counts_the_rest_as_one_outcome(table, shown):
    best = sorted(table, reverse=True)[:shown]
    found = value("entropy", distributed(table, shown=shown))
    assert found == pytest.approx(entropy([*best, max(0.0, 1 - sum(best))]), abs=1e-9)
    assert 0 <= found <= entropy(table) + 1e-9


def test_an_entropy_the_model_reports_is_taken_as_it_is():
    exact = Token("a", -1.0, entropy=2.5, alternatives=(("a", -1.0), ("b", -2.0)))
    assert value("entropy", Generation("a", (exact,))) == 2.5


def test_margin_is_the_lead_of_the_first_over_the_second_in_whatever_order_they_came():
    turned = Token("a", -1.0, alternatives=(("b", math.log(0.2)), ("a", math.log(0.7))))
    assert value("margin", Generation("a", (turned,))) == pytest.approx(0.5)


@SIGNALS
def test_without_token_probabilities_the_remedy_is_named(name):
    for remedy in ("logprobs=True", "estimator='agreement'"):
        with pytest.raises(NoTokenProbabilities, match=remedy):
            estimate(Generation("Paris"), name)


@SIGNALS
@pytest.mark.parametrize("logprob", [math.nan, 0.5, math.inf])
def test_what_cannot_be_a_log_probability_is_refused(name, logprob):
    with pytest.raises(InvalidLogProbability, match="at most 0"):
        estimate(generation(-0.1, logprob), name)


@DISTRIBUTIONS
def test_alternatives_are_held_to_the_same_and_without_them_the_remedy_is_named(name):
    for logprob in (math.nan, 0.5):
        token = Token("a", -0.1, alternatives=(("a", -0.1), ("b", logprob)))
        with pytest.raises(InvalidLogProbability):
            estimate(Generation("a", (token,)), name)
    with pytest.raises(NoTokenProbabilities, match="top_logprobs"):
        estimate(generation(-0.1), name)


@pytest.mark.parametrize("reported", [math.nan, math.inf, -1.0])
def test_what_cannot_be_an_entropy_is_refused(reported):
    with pytest.raises(InvalidLogProbability, match="entropy"):
        estimate(Generation("a", (Token("a", -0.1, entropy=reported),)), "entropy")


def test_rounding_above_zero_is_forgiven_and_stays_in_range():
    names = ("mean_probability", "product", "mean_logprob")
    assert [value(name, generation(5e-5)) for name in names] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("placeholder", [-math.inf, -9999.0])
def test_a_placeholder_for_no_number_does_not_swamp_the_mean(placeholder):
    found = value("mean_logprob", generation(-0.1, -0.1, -0.1, placeholder))
    assert found == pytest.approx((3 * -0.1 + -20) / 4)
    assert estimate(generation(placeholder), "product") == pytest.approx(1.0)


@SIGNALS
@pytest.mark.parametrize("tokens", [None, (), (Token(" ", -0.1),)])
@pytest.mark.parametrize("text", ["", " \n"])
def test_a_blank_answer_is_the_least_certain_there_is(name, tokens, text):
    assert estimate(Generation(text, tokens), name) == 1.0
    sign, unsure = TOKEN_SIGNALS[name].sign, distributed([0.01] * 100)
    assert sign * value(name, Generation("", ())) >= sign * value(name, unsure)


@SIGNALS
@given(st.integers(1, 5), st.floats(0.5, 0.98), st.floats(0.001, 0.01))
def test_larger_is_less_certain_as_the_sign_says(name, length, likeliest, less):
    sure, unsure = (
        distributed(*[[first, (1 - first) * 0.6, (1 - first) * 0.4]] * length)
        for first in (likeliest + less, likeliest)
    )
    sign = TOKEN_SIGNALS[name].sign
    assert estimate(sure, name) <= estimate(unsure, name)
    assert sign * value(name, sure) <= sign * value(name, unsure)


def test_the_name_that_a_signal_had_in_saved_files_still_names_it():
    assert checked_estimator("least_token") == "least_probability"
    assert estimate(distributed([0.6, 0.4]), "least_token") == pytest.approx(0.4)


@pytest.mark.parametrize(("text", "samples", "wanted"), [
    ("East Lothian", ["East Lothian"], 0.0),
    ("East Lothian", ["east lothian."], 0.0),
    ("East Lothian", ["Fife"], 1.0),
    ("East Lothian", ["Lothian"], 1 - 2 * 1 / (2 + 1)),
    ("East Lothian", ["East Lothian", "Fife", "Fife", "Fife"], 3 / 4),
    ("East Lothian", [""], 1.0),
    (" ", [" "], 1.0),  # agreement on nothing is no certainty
    ("?!", ["?!"], 0.0),
])  # fmt: skip
def test_agreement_is_the_word_f1_with_the_samples_alone(text, samples, wanted):
    answer = Generation(text, (Token(text, -1.0),))
    found = estimate(answer, "agreement", [Generation(sample) for sample in samples])
    assert found == pytest.approx(wanted)


def ask(*prompts: str, **told) -> tuple[list[Measured], ScriptedLLM]:
    llm = ScriptedLLM(lambda prompt: Generation(prompt, (Token(prompt, math.log(0.25)),)))
    return run(measured(*prompts, **told), World(llm=llm)), llm


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("estimator", ["product", "agreement"])
def test_what_is_measured_costs_what_was_said(estimator, samples):
    found, llm = ask("a", "b", "c", estimator=estimator, samples=samples)
    assert len(llm.prompts) == calls_for(3, estimator, samples)
    assert all(len(call) == 3 for call in llm.calls)
    assert [one.generation.text for one in found] == ["a", "b", "c"]
    assert [one.uncertainty for one in found] == [0.75 if estimator == "product" else 0.0] * 3
    assert [len(one.samples) for one in found] == [samples * (estimator == "agreement")] * 3


def test_a_single_stop_string_is_one_and_not_its_letters():
    [found], _ = ask("Neither END nor", stop="END")
    assert found.generation.text == "Neither "


NONE = "at least 1 sample at a temperature above 0"


@pytest.mark.parametrize(("call", "match"), [
    (lambda: estimate(generation(-0.1), "bert"), "there are product, "),
    (lambda: estimate(generation(-0.1), ""), "there are product, "),
    (lambda: estimate(generation(-0.1), "agreement"), r"reads samples.*measured\("),
    (lambda: ask("a", estimator="agreement", samples=0), NONE),
    (lambda: ask("a", estimator="agreement", temperature=0.0), NONE),
    (lambda: ask("a", estimator="agreement", temperature=math.nan), NONE),
    (lambda: ask("a", estimator="bert"), "no estimator 'bert'"),
])  # fmt: skip
def test_what_cannot_be_estimated_is_refused(call, match):
    with pytest.raises(InvalidInput, match=match):
        call()
