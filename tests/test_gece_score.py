import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece import GECESettings, gece_score
from ltrag_plugins.gece.score import quality_of
from ltrag_plugins.metrics.text import chrf, meteor, ter

INGREDIENTS = {
    "meteor": 0.2,
    "mean_probability": 0.9,
    "word_frequency": 0.01,
    "gradient_agreement": 0.5,
}


@pytest.mark.parametrize(
    ("settings", "by_hand"),
    [
        (GECESettings(), abs(0.2 - 0.9) / (0.01 * 0.5)),
        (GECESettings(statistics=False), abs(0.2 - 0.9) / 0.5),
        (GECESettings(semantics=False), abs(0.2 - 0.9) / 0.01),
        (GECESettings(statistics=False, semantics=False), abs(0.2 - 0.9)),
    ],
    ids=["whole", "without statistics", "without semantics", "numerator alone"],
)
def test_the_formula_and_its_ablations_by_hand(settings, by_hand):
    score = gece_score(**INGREDIENTS, settings=settings)
    assert score.value == pytest.approx(by_hand)
    assert not score.opposed


def test_every_ingredient_is_kept_in_sight():
    score = gece_score(**INGREDIENTS)
    assert {name: getattr(score, name) for name in INGREDIENTS} == INGREDIENTS


def test_without_a_gradient_the_denominator_is_the_word_frequency():
    score = gece_score(**INGREDIENTS | {"gradient_agreement": None})
    assert score.value == pytest.approx(0.7 / 0.01)


@pytest.mark.parametrize("agreement", [-0.5, -0.3, -1e9])
def test_an_instance_that_pulls_against_the_data_set_is_below_0_as_printed(agreement):
    score = gece_score(**INGREDIENTS | {"gradient_agreement": agreement})
    assert score.opposed
    assert score.value == pytest.approx(-abs(0.2 - 0.9) / (0.01 * abs(agreement)))


def test_or_it_gets_the_largest_score_as_the_papers_words_have_it():
    score = gece_score(**INGREDIENTS | {"gradient_agreement": -0.3}, settings=GECESettings())
    assert score.opposed
    assert score.value == pytest.approx(0.7 / 1e-9)
    assert score.value > gece_score(**INGREDIENTS).value


@pytest.mark.parametrize(
    ("agreement", "floor", "value"),
    [(0.0, None, 7e8), (1e-20, None, 7e8), (-1e-20, None, -7e8), (-0.3, 0.1, 7.0), (0.5, 0.1, 7.0)],
)
def test_a_denominator_next_to_0_is_bounded(agreement, floor, value):
    settings = replace(GECESettings.paper(), floor=floor)
    score = gece_score(**INGREDIENTS | {"gradient_agreement": agreement}, settings=settings)
    assert score.value == pytest.approx(value)


unit = st.floats(0, 1)


@given(
    unit, unit, st.floats(0, 1), st.none() | st.floats(-1e30, 1e30), st.booleans(), st.booleans()
)
def test_the_score_is_finite_and_below_0_for_opposed_gradients_alone(
    m, p, alpha, dot, statistics, semantics
):
    score = gece_score(
        meteor=m,
        mean_probability=p,
        word_frequency=alpha,
        gradient_agreement=dot,
        settings=replace(GECESettings.paper(), statistics=statistics, semantics=semantics),
    )
    assert math.isfinite(score.value)
    assert score.value >= 0 or (semantics and dot is not None and dot < 0)


@given(unit, unit, st.floats(1e-6, 1), st.floats(1e-6, 1), st.floats(1.01, 10))
def test_rarer_words_and_stranger_gradients_never_lower_the_score(m, p, alpha, dot, factor):
    def value(alpha, dot):
        return gece_score(
            meteor=m, mean_probability=p, word_frequency=alpha, gradient_agreement=dot
        ).value

    assert value(alpha / factor, dot) >= value(alpha, dot)
    assert value(alpha, dot / factor) >= value(alpha, dot)


def test_chrf_and_ter_can_stand_in_meteors_place():
    said, wanted = "the old red house", ["the red house"]
    assert quality_of(said, wanted, "meteor") == meteor(said, wanted)
    assert quality_of(said, wanted, "chrf") == chrf(said, wanted)
    assert quality_of(said, wanted, "ter") == pytest.approx(1 - ter(said, wanted)) == 1 - 1 / 3


def test_many_errors_leave_a_quality_of_zero():
    assert quality_of("a very long answer indeed", ["no"], "ter") == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": "no place"},
        {"layers": 0},
        {"max_tokens": 0},
        {"samples": -1},
        {"folds": 1},
        {"max_words": 0},
        {"floor": 0.0},
        {"floor": math.nan},
        {"temperature": 0.0},
        {"quality": "bleu"},
        {"correct": "right"},
        {"agreement": "angle"},
        {"gradients": "sometimes"},
        {"tier": "gradients"},
        {"calibration": "beta"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(wrong):
    [name] = wrong
    with pytest.raises(InvalidInput, match=name):
        GECESettings(**wrong)


def test_the_papers_settings_are_the_formula_with_its_gradients():
    paper = GECESettings.paper()
    assert (paper.scorer, paper.gradients, paper.quality) == ("gece", "always", "meteor")
    assert (paper.statistics, paper.semantics, paper.agreement, paper.layers) == (
        True,
        True,
        "dot",
        4,
    )
