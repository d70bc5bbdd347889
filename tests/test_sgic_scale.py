"""Eq. 2 and eq. 3: by their properties, by numpy, and by what a figure of the paper would show."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.sgic import ScoreScale, SGICSettings
from ltrag_plugins.sgic.documents import relevance_scores
from ltrag_plugins.sgic.scale import document_scores, rounding
from ltrag_plugins.types import Generation, Passage, Token
from tests.sgic_parts import THREE, answered, model, said

unit = st.floats(0, 1)
inside = st.floats(1e-6, 1 - 1e-6)


@given(unit, inside)
def test_a_score_is_numpys_interpolation_between_three_points(u, mean):
    found = ScoreScale("product", (mean,)).score(u)
    assert found == pytest.approx(np.interp(u, [0, mean, 1], [0, 50, 100]), abs=1e-6)


@given(unit, unit, inside)
def test_scores_keep_the_order_and_stay_in_range(a, b, mean):
    scale = ScoreScale("product", (mean,))
    low, high = scale.score(min(a, b)), scale.score(max(a, b))
    assert 0 <= low <= high <= 100


@given(inside)
def test_the_ends_and_the_mean_are_met_exactly(mean):
    scale = ScoreScale("product", (mean,))
    assert [scale.score(u) for u in (0.0, mean, 1.0)] == [0.0, 50.0, 100.0]


@given(inside, st.floats(0, 1))
def test_above_the_mean_it_is_eq_2_as_printed(mean, share):
    u = mean + share * (1 - mean)
    printed = 100 * (0.5 + 0.5 * (u - mean) / (1 - mean))
    assert ScoreScale("product", (mean,)).score(min(1.0, u)) == pytest.approx(printed, abs=1e-6)


def test_each_round_has_its_mean_and_the_last_one_serves_the_rest():
    scale = ScoreScale("product", (0.2, 0.4, 0.8))
    found = [scale.score(0.4, n) for n in range(5)]
    assert found == [pytest.approx(62.5), 50.0, 25.0, 25.0, 25.0]


def test_without_a_fit_a_score_is_a_hundred_times_the_uncertainty():
    scale = ScoreScale("product")
    assert [scale.score(u, 3) for u in (0, 0.3, 1)] == pytest.approx([0, 30, 100])


@pytest.mark.parametrize("u", [-0.1, 1.1, float("nan")])
def test_what_is_no_uncertainty_is_refused(u):
    with pytest.raises(InvalidInput, match=r"lies in \[0, 1\]"):
        ScoreScale("product").score(u)


@pytest.mark.parametrize("means", [(), (0.0,), (0.5, 1.0), (float("nan"),)])
def test_means_lie_inside_the_range(means):
    with pytest.raises(InvalidInput, match=r"inside \(0, 1\)"):
        ScoreScale("product", means)


def calibrated(*uncertainties):
    llm = model([said(f"answer {n}", 1 - u) for n, u in enumerate(uncertainties)])
    rounds = len(uncertainties) - 1
    settings = SGICSettings(rounds=rounds, certain_below=0, least_gain=None, documents="none")
    return answered(llm, settings=settings)


def test_a_fit_is_the_mean_of_each_round():
    answers = [calibrated(0.2, 0.6), calibrated(0.4, 0.8), calibrated(0.9)]
    scale = ScoreScale.of_rounds("product", [answer.trace for answer in answers])
    assert scale.estimator == "product"
    assert scale.means == pytest.approx(((0.2 + 0.4 + 0.9) / 3, (0.6 + 0.8) / 2))


def test_a_fit_on_answers_that_are_all_certain_is_still_a_scale():
    scale = ScoreScale.of_rounds("product", [calibrated(0.0).trace])
    assert scale.score(0.0) == 0.0
    assert scale.score(1.0) == 100.0


numbers = st.lists(st.floats(0, 1), max_size=12)


@given(numbers)
def test_document_scores_keep_order_and_range(us):
    scores = document_scores(us)
    assert len(scores) == len(us)
    assert all(0 <= s <= 100 for s in scores)
    order = np.argsort(us, kind="stable")
    assert (np.diff(np.array(scores)[order]) >= 0).all()


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=12, unique=True))
def test_document_scores_are_min_max(integers):
    us = np.array(integers) / 1000
    wanted = 100 * (us - us.min()) / np.ptp(us)
    assert document_scores(us.tolist()) == pytest.approx(wanted)
    assert {min(document_scores(us.tolist())), max(document_scores(us.tolist()))} == {0.0, 100.0}


@given(unit, st.integers(1, 9))
def test_documents_that_are_equal_or_alone_get_fifty(u, count):
    assert document_scores([u] * count) == (50.0,) * count


def test_rounding_errors_are_not_stretched_over_the_scale():
    assert document_scores([0.3, 0.3 + 1e-7, 0.3 - 1e-7]) == (50.0,) * 3


@pytest.mark.parametrize(("sums", "wanted"), [
    ([-14.0, -15.0, -30.0], [0, 63.2, 100]),
    ([-14.0, -14.0 + 1e-7, -14.0 - 1e-7], [50, 50, 50]),
    ([-34.0, -34.0 + 1e-7, -34.0 - 1e-7], [50, 50, 50]),
    ([-50.0, -60.0, -70.0], [50, 50, 50]),
])  # fmt: skip
def test_small_products_are_told_apart_and_rounding_errors_are_not(sums, wanted):
    us = [-math.expm1(total) for total in sums]
    scores = document_scores(us, noise=rounding(us, "product"))
    assert scores == pytest.approx(wanted, abs=0.1)


def test_a_question_whose_documents_leave_long_answers_gets_their_order():
    """Eq. 3 on products of 14, 15 and 30 tokens of 1 nat each."""
    length = dict(zip((p.text for p in THREE), (14, 15, 30), strict=True))

    def alone(prompt: str) -> Generation:
        [n] = [n for text, n in length.items() if text in prompt]
        return Generation("w " * n, tuple(Token("w ", -1.0) for _ in range(n)))

    answer = answered(model([said("a", 0.3)], alone), settings=SGICSettings(rounds=1))
    products = np.exp([-14.0, -15.0, -30.0])
    wanted = 100 * (products.max() - products) / np.ptp(products)
    assert [d.score for d in answer.documents] == pytest.approx(wanted, abs=1e-3)


@given(st.floats(1e-12, 1e12))
def test_the_unit_of_a_relevance_changes_no_score(one):
    passages = [Passage(str(i)) for i in range(3)]
    scores = relevance_scores(lambda _, p: [3 * one, one, 2 * one], "q", passages)
    assert scores == pytest.approx((0, 100, 50))
    equal = relevance_scores(lambda _, p: [one, one * (1 + 1e-8), one], "q", passages)
    assert equal == (50.0,) * 3


def test_no_document_has_no_score():
    assert document_scores([]) == ()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(bad):
    with pytest.raises(InvalidInput, match="finite"):
        document_scores([0.1, bad])
