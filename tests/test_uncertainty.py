import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from ltrag_plugins import uncertainty
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
)

NAMES = ("mean_probability", "mean_logprob", "product_uncertainty", "least_probability")
OF_TOKENS = [getattr(uncertainty, name) for name in NAMES]
OF_DISTRIBUTIONS = [uncertainty._mean_entropy, uncertainty._mean_margin]


def generation(*logprobs: float) -> Generation:
    return Generation("", tuple(Token("a", logprob) for logprob in logprobs))


def distributed(*tables: list[float], shown: int | None = None) -> Generation:
    """One token per distribution; the model reports the `shown` likeliest of each."""
    tokens = []
    for table in tables:
        best = [math.log(p) for p in sorted(table, reverse=True)[:shown]]
        tokens.append(Token("a", best[0], alternatives=tuple(("a", p) for p in best)))
    return Generation("", tuple(tokens))


def test_thousands_of_tokens_neither_underflow_nor_round_to_certain():
    unsure, chance = generation(*[math.log(0.3)] * 2000), pytest.approx(0.7)
    wanted = {"product": 1.0, "length_normalized": chance, "least_probability": chance}
    for name, value in wanted.items():
        assert estimate(Generation("a", unsure.tokens), name) == value
    assert uncertainty.mean_logprob(unsure) == pytest.approx(math.log(0.3))
    # 1 - (1 - 1e-15)^2000 is 2e-12, which plain floats blur beside 1
    nearly = generation(*[-1e-15] * 2000)
    assert uncertainty.product_uncertainty(nearly) == pytest.approx(2e-12, rel=1e-6, abs=0)


tables = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=8).map(
    lambda weights: (np.array(weights) / np.sum(weights)).tolist()
)


@given(tables, st.integers(1, 8))
def test_entropy_from_some_alternatives_counts_the_rest_as_one(table, shown):
    best = sorted(table, reverse=True)[:shown]
    found = uncertainty._mean_entropy(distributed(table, shown=shown))
    assert found == pytest.approx(entropy([*best, max(1 - sum(best), 0)]), abs=1e-9)
    assert 0 <= found <= entropy(table) + 1e-9


def test_an_entropy_the_model_reports_is_taken_as_it_is():
    exact = Token("a", -1.0, entropy=2.5, alternatives=(("a", -1.0), ("b", -2.0)))
    assert uncertainty._mean_entropy(Generation("a", (exact,))) == 2.5


def test_margin_is_the_lead_of_the_first_over_the_second_in_whatever_order_they_came():
    found = uncertainty._mean_margin(distributed([0.5, 0.3, 0.2], [0.9, 0.1]))
    assert found == pytest.approx(((0.5 - 0.3) + (0.9 - 0.1)) / 2)
    turned = Token("a", -1.0, alternatives=(("b", math.log(0.2)), ("a", math.log(0.7))))
    assert uncertainty._mean_margin(Generation("a", (turned,))) == pytest.approx(0.5)


@pytest.mark.parametrize("figure", OF_TOKENS + OF_DISTRIBUTIONS)
def test_what_cannot_be_read_is_refused_with_the_remedy(figure):
    with pytest.raises(NoTokenProbabilities, match="logprobs=True"):
        figure(Generation("Paris"))
    for wrong in (math.nan, 0.5, math.inf):
        with pytest.raises(InvalidLogProbability, match="at most 0"):
            figure(generation(-0.1, wrong))


@pytest.mark.parametrize("figure", OF_DISTRIBUTIONS)
def test_alternatives_are_held_to_the_same(figure):
    with pytest.raises(NoTokenProbabilities, match="top_logprobs"):
        figure(generation(-0.1))
    for wrong in (math.nan, 0.5):
        token = Token("a", -0.1, alternatives=(("a", -0.1), ("b", wrong)))
        with pytest.raises(InvalidLogProbability):
            figure(Generation("a", (token,)))


@pytest.mark.parametrize("reported", [math.nan, math.inf, -1.0])
def test_what_cannot_be_an_entropy_is_refused(reported):
    with pytest.raises(InvalidLogProbability, match="entropy"):
        uncertainty._mean_entropy(Generation("a", (Token("a", -0.1, entropy=reported),)))


def test_rounding_above_zero_is_forgiven_and_stays_in_range():
    written = generation(5e-5)
    assert uncertainty.mean_probability(written) == 1.0
    assert uncertainty.product_uncertainty(written) == 0.0
    assert uncertainty.mean_logprob(written) == 0.0


@pytest.mark.parametrize("placeholder", [-math.inf, -9999.0])
def test_a_placeholder_for_no_number_does_not_swamp_the_mean(placeholder):
    found = uncertainty.mean_logprob(generation(-0.1, -0.1, -0.1, placeholder))
    assert found == pytest.approx((3 * -0.1 + -20) / 4)
    assert uncertainty.product_uncertainty(generation(placeholder)) == pytest.approx(1.0)


def test_a_generation_without_a_token_is_the_least_certain_there_is():
    nothing, unsure = Generation("", ()), distributed([0.01] * 100)
    assert uncertainty.product_uncertainty(nothing) == 1.0
    for name in ("mean_probability", "least_probability", "_mean_margin"):
        assert getattr(uncertainty, name)(nothing) == 0.0
    assert uncertainty.mean_logprob(nothing) < uncertainty.mean_logprob(unsure)
    assert uncertainty._mean_entropy(nothing) > uncertainty._mean_entropy(unsure)


def written(*tables: list[float], text: str = "a") -> Generation:
    return Generation(text, distributed(*tables).tokens)


@pytest.mark.parametrize("estimator", TOKEN_SIGNALS)
@given(st.lists(tables, min_size=1, max_size=6))
def test_an_uncertainty_lies_between_zero_and_one(estimator, told):
    assert 0 <= estimate(written(*told), estimator) <= 1


@given(st.lists(tables, min_size=1, max_size=6))
def test_each_estimator_is_its_formula_in_numpy(told):
    p = np.array([max(table) for table in told])
    second = np.array([sorted(table)[-2] for table in told])
    h = np.mean([entropy(table) for table in told])
    wanted = {
        "product": 1 - p.prod(),
        "length_normalized": 1 - p.prod() ** (1 / len(p)),
        "mean_logprob": -np.log(p).mean() / 20,
        "mean_probability": 1 - p.mean(),
        "least_probability": 1 - p.min(),
        "entropy": 1 - np.exp(-h),
        "margin": 1 - (p - second).mean(),
    }
    assert wanted.keys() == TOKEN_SIGNALS.keys()
    for name, value in wanted.items():
        assert estimate(written(*told), name) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("estimator", TOKEN_SIGNALS)
@given(st.integers(1, 5), st.floats(0.5, 0.98), st.floats(0.001, 0.01))
def test_larger_is_less_certain_and_the_sign_says_so_of_a_signal(
    estimator, length, likeliest, less
):
    def answer(first: float) -> Generation:
        return written(*[[first, (1 - first) * 0.6, (1 - first) * 0.4]] * length)

    signal, sure, unsure = TOKEN_SIGNALS[estimator], answer(likeliest + less), answer(likeliest)
    assert estimate(sure, estimator) <= estimate(unsure, estimator)
    assert signal.sign * signal.value(sure) <= signal.sign * signal.value(unsure)


@pytest.mark.parametrize("estimator", TOKEN_SIGNALS)
@pytest.mark.parametrize("tokens", [None, (), (Token(" ", -0.1),)])
@pytest.mark.parametrize("text", ["", " \n"])
def test_a_blank_answer_is_the_least_certain_there_is(estimator, tokens, text):
    assert estimate(Generation(text, tokens), estimator) == 1.0


@pytest.mark.parametrize("estimator", TOKEN_SIGNALS)
def test_an_answer_without_what_is_read_is_refused_with_the_remedy(estimator):
    with pytest.raises(NoTokenProbabilities, match="estimator='agreement'"):
        estimate(Generation("a"), estimator)
    nan = Token("a", math.nan, entropy=math.nan, alternatives=(("a", math.nan),) * 2)
    with pytest.raises(InvalidLogProbability):
        estimate(Generation("a", (nan,)), estimator)


@pytest.mark.parametrize(
    ("name", "why"),
    [("bert", "there are product, "), ("", "there are product, "), ("agreement", "measured")],
)
def test_what_does_not_read_a_single_answer_is_refused(name, why):
    with pytest.raises(InvalidInput, match=why):
        estimate(generation(-0.1), name)


def test_the_name_that_a_signal_had_in_saved_files_still_names_it():
    assert checked_estimator("least_token") == "least_probability"
    assert estimate(written([0.6, 0.4]), "least_token") == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        (["East Lothian"], 0.0),
        (["east lothian."], 0.0),
        (["Fife"], 1.0),
        (["Lothian"], 1 - 2 * 1 / (2 + 1)),
        (["East Lothian", "Fife", "Fife", "Fife"], 3 / 4),
        ([""], 1.0),
    ],
)
def test_agreement_is_the_word_f1_with_the_samples(samples, wanted):
    drawn = [Generation(text) for text in samples]
    assert estimate(Generation("East Lothian"), "agreement", drawn) == pytest.approx(wanted)


def test_agreement_on_nothing_is_no_certainty():
    assert estimate(Generation(" "), "agreement", [Generation(" ")]) == 1.0
    assert estimate(Generation("?!"), "agreement", [Generation("?!")]) == 0.0
    with pytest.raises(InvalidInput, match="reads samples"):
        estimate(Generation("a"), "agreement")


def ask(*prompts: str, **told) -> tuple[list[Measured], ScriptedLLM]:
    def write(prompt: str) -> Generation:
        return Generation(prompt, (Token(prompt, math.log(0.25)),))

    llm = ScriptedLLM(write)
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


@pytest.mark.parametrize(
    "told", [{"samples": 0}, {"temperature": 0.0}, {"temperature": math.nan}]
)  # fmt: skip
def test_agreement_without_samples_is_refused_before_anything_is_asked(told):
    with pytest.raises(InvalidInput, match="at least 1 sample at a temperature above 0"):
        ask("a", estimator="agreement", **told)
    with pytest.raises(InvalidInput, match="no estimator 'bert'"):
        ask("a", estimator="bert")
