import json
import math
from dataclasses import replace

import numpy as np
import pytest

from ltrag_plugins.calibration import cross_calibrated
from ltrag_plugins.errors import CalibrationError, InvalidInput, NoTokenProbabilities
from ltrag_plugins.flow import World
from ltrag_plugins.gece import (
    SIGNALS,
    Evidence,
    GECEGate,
    GECESettings,
    WordFrequencies,
    fit_outcomes,
    gece_score,
)
from ltrag_plugins.gece.fit import Labels, fit_failure, fit_gain
from ltrag_plugins.gece.models import FittedGate, rate_threshold
from ltrag_plugins.gece.signals import features
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.calibration import auroc, bootstrap_interval, expected_calibration_error
from ltrag_plugins.types import Generation, GradientAgreement
from ltrag_plugins.uncertainty import mean_probability
from tests.gece_parts import asked, honest_llm, ladder, outcomes, said

PRODUCT = GECESettings(scorer="product")
"""A gate on one signal: its scores are known without a fit, and it is quick."""


def scores_of(fitted, recorded) -> np.ndarray:
    gate = GECEGate(fitted, World(llm=honest_llm()), None)
    return np.array([gate.judge(o.evidence).score for o in recorded])


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.5, 0.83, 1.0])
def test_the_target_rate_is_the_share_that_retrieves(rate):
    recorded = ladder(40)
    fitted, report = fit_outcomes(recorded, target_rate=rate, settings=PRODUCT)
    retrieved = (scores_of(fitted, recorded) >= fitted.threshold).sum()
    assert abs(retrieved - rate * 40) <= 1
    assert report.retrieval_rate.value == pytest.approx(retrieved / 40)
    assert report.target == f"target rate {rate:g}"


@pytest.mark.parametrize(
    "how", [{"target_rate": 0.3}, {"target_rate": 0.7}, {"target_rate": 0}, {}]
)
def test_the_rate_counts_the_empty_drafts_that_always_retrieve(how):
    def model(prompt: str) -> Generation:
        i = int(asked(prompt).split()[-2])
        if i % 10 < 5:
            return Generation("", ())
        return said(f"City {i}" if i % 10 < 8 else f"Town {i}", -0.05 - 0.003 * (i * 37 % 100))

    texts, answers = (
        [f"Which city is {i} there?" for i in range(200)],
        [f"City {i}" for i in range(200)],
    )
    settings, llm = GECESettings(folds=2), ScriptedLLM(model)
    gate = GECEGate.fit(texts, llm=llm, retrieved_answers=answers, settings=settings, **how)
    decided = [decision.retrieve for decision in gate.decide_many(texts)]
    assert gate.report.retrieval_rate.value == pytest.approx(np.mean(decided), abs=0.05)
    assert all(decided[i] for i in range(200) if i % 10 < 5) == (how != {"target_rate": 0})
    if how:
        wanted = how["target_rate"] and max(0.5, how["target_rate"])
        assert np.mean(decided) == pytest.approx(wanted, abs=0.02)
    notes = [note for note in gate.report.notes if "the target was" in note]
    if how == {"target_rate": 0.3}:
        why = "50.0% of the drafts are empty and retrieve, so 50.0% do; the target was 30.0%"
        assert notes == [why]
    assert not any("scores are equal" in note for note in notes)


def test_one_in_five_retrieves_where_nothing_else_is_asked_for():
    assert fit_outcomes(ladder(40), settings=PRODUCT)[1].retrieval_rate.value == pytest.approx(0.2)


@pytest.mark.parametrize(("tells", "tier"), [(1.0, "gradients"), (0.0, "probabilities")])
def test_auto_keeps_gradients_that_tell_more_than_the_draft_alone(tells, tier):
    rng = np.random.default_rng(1)

    def pulled(outcome):
        dot = tells * (outcome.right - 0.5) + 0.4 * rng.normal()
        evidence = replace(outcome.evidence, agreement=GradientAgreement(float(dot), 0.0))
        return replace(outcome, evidence=evidence)

    noisy = [replace(one, right=bool(rng.random() < 0.5)) for one in ladder(120)]
    recorded = [pulled(one) for one in noisy]
    fitted, report = fit_outcomes(recorded, settings=GECESettings(gradients="auto"))
    assert fitted.tier == report.tier == tier
    assert ("gradient_dot" in fitted.names) == (tells > 0)


def test_a_target_accuracy_is_met_among_the_answers_given_directly():
    recorded = ladder(40)
    fitted, report = fit_outcomes(recorded, target_accuracy=0.9, settings=PRODUCT)
    kept = scores_of(fitted, recorded) < fitted.threshold
    right = np.array([o.right for o in recorded])
    assert right[kept].mean() >= 0.9
    assert report.kept_accuracy.value == pytest.approx(right[kept].mean())
    # brute force: every larger set of the surest answers falls short
    order = np.argsort(scores_of(fitted, recorded))
    for more in range(kept.sum() + 1, 41):
        assert right[order[:more]].mean() < 0.9


def test_a_target_accuracy_is_met_among_all_answers_where_retrieval_was_tried():
    certainty = np.linspace(0.95, 0.05, 40)
    fails, mended = (np.arange(40) >= 20).astype(int), np.ones(40, dtype=int)
    recorded = outcomes(fails, certainty, mended=mended)
    _, report = fit_outcomes(recorded, target_accuracy=0.75, settings=PRODUCT)
    assert report.accuracy.value == pytest.approx(0.75)
    assert report.retrieval_rate.value == pytest.approx(10 / 40)


def test_an_accuracy_out_of_reach_is_refused_with_the_best_there_is():
    recorded = outcomes(
        [0] * 20 + [1] * 20, np.linspace(0.95, 0.05, 40), mended=[1] * 30 + [0] * 10
    )
    with pytest.raises(CalibrationError, match=r"0\.99 is out of reach.*best .* is 0\.750, at 50%"):
        fit_outcomes(recorded, target_accuracy=0.99, settings=PRODUCT)


def test_where_everything_retrieves_no_accuracy_is_made_up_for_direct_answers():
    _, report = fit_outcomes(ladder(40), target_rate=1.0, settings=PRODUCT)
    assert report.kept_accuracy is None
    assert "no such questions" in str(report)


def test_the_report_is_strict_json():
    for rate in (0.0, 0.5, 1.0):
        _, report = fit_outcomes(ladder(40), target_rate=rate, settings=PRODUCT)
        text = json.dumps(report.as_dict(), allow_nan=False)
        assert json.loads(text)["threshold"] == (None if rate in (0.0, 1.0) else report.threshold)


def test_ties_that_miss_the_rate_are_reported_and_none_is_cut_in_two():
    recorded = outcomes([0] * 15 + [1] * 15, [0.9] * 12 + [0.4] * 18)
    fitted, report = fit_outcomes(recorded, target_rate=0.2, settings=PRODUCT)
    assert report.retrieval_rate.value == 0
    assert any("many scores are equal" in note for note in report.notes)
    assert fitted.threshold == np.inf


@pytest.fixture(scope="module")
def fitted_on_ladder():
    return fit_outcomes(ladder(60), target_rate=0.3)


def test_the_fitted_gate_finds_what_the_signals_tell(fitted_on_ladder):
    _, report = fitted_on_ladder
    assert report.auroc.value > 0.9
    assert report.tier == "probabilities"
    assert report.objective == "failure"
    assert report.retrieval_rate.value == pytest.approx(0.3)


def test_the_same_seed_gives_the_same_gate_bit_for_bit(fitted_on_ladder):
    fitted, report = fitted_on_ladder
    again, report_again = fit_outcomes(ladder(60), target_rate=0.3)
    assert report_again == report
    assert scores_of(again, ladder(60)).tobytes() == scores_of(fitted, ladder(60)).tobytes()
    assert again.threshold == fitted.threshold


def test_features_that_are_noise_get_an_honest_auroc():
    rng = np.random.default_rng(1)
    recorded = outcomes(
        rng.integers(0, 2, size=80), rng.uniform(0.05, 0.95, size=80), extra=rng.normal(size=80)
    )
    fitted, report = fit_outcomes(recorded)
    assert report.auroc.low < 0.5 < report.auroc.high
    # the same model, asked about the questions it was fitted on, would claim far more
    fails = [not o.right for o in recorded]
    assert auroc(scores_of(fitted, recorded), fails) > report.auroc.high


def test_the_figures_are_those_of_the_metrics():
    recorded = ladder(40)
    fitted, report = fit_outcomes(recorded, settings=PRODUCT)
    # one plain signal is the same whether or not its question was held out
    scores, fails = scores_of(fitted, recorded), np.array([int(not o.right) for o in recorded])
    assert report.signal_aurocs["product"] == auroc(scores, fails)
    assert report.auroc == bootstrap_interval(scores, fails, statistic=auroc, resamples=500, seed=0)
    unseen = cross_calibrated(scores, fails, "platt", folds=5, seed=0)
    assert report.ece == expected_calibration_error(unseen, fails)
    assert report.direct_accuracy == 1 - fails.mean()


def test_the_calibration_error_of_an_isotonic_fit_is_not_that_of_its_own_questions():
    rng = np.random.default_rng(0)
    recorded = outcomes(rng.integers(0, 2, size=60), rng.uniform(0.05, 0.95, size=60))
    settings = GECESettings(scorer="product", calibration="isotonic")
    fitted, report = fit_outcomes(recorded, settings=settings)
    fails = np.array([int(not o.right) for o in recorded])
    own = expected_calibration_error(fitted.calibrator(scores_of(fitted, recorded)), fails)
    assert own < 0.02 < report.ece


def test_failure_misleads_where_retrieval_mends_only_what_is_nearly_known():
    # the least certain third fails either way, the middle is mended: failure ranks them wrong
    certainty = np.linspace(0.95, 0.05, 90)
    fails = (np.arange(90) >= 30).astype(int)
    mended = (np.arange(90) < 60).astype(int)
    # the embedding-free gain model is linear, so the caller's own signal shows the middle
    middle = ((np.arange(90) >= 30) & (np.arange(90) < 60)).astype(float)
    recorded = outcomes(fails, certainty, mended=mended, extra=middle)
    fitted, report = fit_outcomes(recorded, target_rate=1 / 3)
    assert report.objective == "gain"
    assert report.accuracy.value > report.direct_accuracy + 0.25
    assert fitted.gain is not None
    retrieved = scores_of(fitted, recorded) >= fitted.threshold
    assert middle[retrieved].mean() > 0.9


def test_a_named_scorer_is_thresholded_itself_whatever_retrieval_brought():
    recorded = outcomes([0] * 20 + [1] * 20, np.linspace(0.95, 0.05, 40), mended=[0, 1] * 20)
    fitted, report = fit_outcomes(recorded, settings=PRODUCT)
    assert (fitted.gain, report.objective) == (None, "failure")


@pytest.mark.parametrize("tried", [False, True], ids=["failure", "gain"])
def test_the_threshold_is_on_the_scale_of_the_gate_that_was_fitted_on_all_questions(tried):
    certainty, rng = np.linspace(0.95, 0.05, 60), np.random.default_rng(0)
    fails = (rng.random(60) < 0.9).astype(int)
    middle = rng.random(60)
    mended = (middle > 0.5).astype(int) if tried else None
    recorded = outcomes(fails, certainty, mended=mended, extra=middle)
    fitted, report = fit_outcomes(recorded, target_rate=0.3)
    assert report.objective == ("gain" if tried else "failure")
    columns = features([o.evidence for o in recorded], fitted.names, fitted.frequencies)
    labels = Labels.of(recorded)
    _, own = fit_gain(columns, labels.gain, 0) if tried else fit_failure(columns, labels.fails, 0)
    assert fitted.scores == pytest.approx(np.sort(own))
    assert (own >= fitted.threshold).mean() == report.retrieval_rate.value == 0.3


def test_the_curve_runs_from_never_to_always():
    recorded = outcomes([0] * 20 + [1] * 20, np.linspace(0.95, 0.05, 40), mended=[1] * 40)
    _, report = fit_outcomes(recorded, settings=PRODUCT)
    assert report.curve[0] == (0.0, report.direct_accuracy) == (0.0, 0.5)
    assert report.curve[-1] == (1.0, report.retrieval_accuracy) == (1.0, 1.0)
    # every retrieval mends one more answer here, until all are right
    assert [accuracy for _, accuracy in report.curve] == pytest.approx(
        [min(1.0, 0.5 + rate) for rate, _ in report.curve]
    )


def test_the_area_is_that_between_the_curve_and_the_chord_of_a_random_choice():
    rng = np.random.default_rng(2)
    fails, mended = rng.integers(0, 2, size=(2, 30))
    recorded = outcomes(fails, rng.uniform(0.05, 0.95, size=30), mended=mended)
    fitted, report = fit_outcomes(recorded, settings=PRODUCT)
    # every rate there is, the curve in straight lines between them
    order = np.argsort(-scores_of(fitted, recorded))
    accuracy = [
        np.where(np.isin(np.arange(30), order[:kept]), mended, 1 - fails).mean()
        for kept in range(31)
    ]
    chord = (accuracy[0] + accuracy[-1]) / 2
    assert report.area.value == pytest.approx(np.trapezoid(accuracy, dx=1 / 30) - chord)
    assert report.area.low < report.area.value < report.area.high
    assert f"area above a random choice         {report.area.value:.3f}" in str(report)
    assert fit_outcomes(ladder(40), settings=PRODUCT)[1].area is None


def test_the_area_of_a_score_that_never_changes_is_that_of_a_random_choice():
    recorded = outcomes([0] * 15 + [1] * 15, [0.9] * 30, mended=[1] * 30)
    assert fit_outcomes(recorded, settings=PRODUCT)[1].area.value == 0


def test_expected_gains_are_thresholded_only_where_they_are_better_for_certain():
    # a third is mended, wherever it fails; which third, nothing tells
    rng = np.random.default_rng(2)
    certainty = np.linspace(0.95, 0.05, 90)
    fails = (rng.random(90) > certainty).astype(int)
    mended = np.where(rng.random(90) < 1 / 3, 1, 1 - fails)
    recorded = outcomes(fails, certainty, mended=mended)
    assert fit_outcomes(recorded)[1].objective == "failure"


def with_everything(recorded):
    """Evidence that has every signal."""
    rng = np.random.default_rng(1)
    return [
        replace(
            o,
            evidence=replace(
                o.evidence,
                samples=(Generation("red"), Generation("green")),
                agreement=GradientAgreement(*rng.normal(size=2).tolist()),
            ),
        )
        for o in recorded
    ]


@pytest.mark.parametrize("name", SIGNALS)
def test_every_plain_signal_is_a_gate_by_itself(name):
    recorded = with_everything(ladder(30))
    fitted, report = fit_outcomes(recorded, settings=GECESettings(scorer=name))
    by_hand = [SIGNALS[name].read(o.evidence, WordFrequencies()) for o in recorded]
    assert scores_of(fitted, recorded) == pytest.approx(np.array(by_hand))
    assert report.tier == "gradients"
    assert report.scorer == name


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("semantics", [True, False])
def test_the_formula_is_a_gate_with_meteor_estimated(statistics, semantics):
    recorded = with_everything(ladder(40))
    settings = GECESettings(scorer="gece", statistics=statistics, semantics=semantics)
    fitted, report = fit_outcomes(recorded, settings=settings)
    gate = GECEGate(fitted, World(llm=honest_llm()), report)
    columns = features([o.evidence for o in recorded], fitted.names, WordFrequencies())
    estimated = np.clip(fitted.failure.meteor(columns.scalars), 0, 1)
    for o, meteor in list(zip(recorded, estimated, strict=True))[::7]:
        by_hand = gece_score(
            meteor=float(meteor),
            mean_probability=mean_probability(o.evidence.draft),
            word_frequency=WordFrequencies().mean(o.evidence.question),
            gradient_agreement=o.evidence.agreement.dot,
            settings=settings,
        )
        assert gate.judge(o.evidence).score == pytest.approx(by_hand.value, rel=1e-6)


def test_the_formulas_meteor_is_learned_from_the_calibration_answers():
    # METEOR follows certainty here, so the numerator of eq. 2 is nearly its error
    certainty = np.linspace(0.05, 0.95, 60)
    recorded = [
        replace(o, quality=float(certainty[i]))
        for i, o in enumerate(outcomes((certainty < 0.5).astype(int), certainty))
    ]
    settings = GECESettings(scorer="gece", statistics=False, semantics=False)
    fitted, _ = fit_outcomes(recorded, settings=settings)
    known_only_on_average = np.abs(certainty - certainty.mean()).mean()
    assert scores_of(fitted, recorded).mean() < known_only_on_average / 3


def test_the_formula_without_known_qualities_is_refused():
    recorded = [replace(o, quality=0.0) for o in ladder(30)]
    with pytest.raises(CalibrationError, match=r"Outcome\.quality"):
        fit_outcomes(recorded, settings=GECESettings(scorer="gece", semantics=False))


def test_a_signal_that_is_not_at_hand_cannot_be_the_scorer():
    with pytest.raises(CalibrationError, match=r"'gradient_dot'.*another scorer"):
        fit_outcomes(ladder(30), settings=GECESettings(scorer="gradient_dot"))


def test_calibrated_probabilities_lie_between_0_and_1_and_grow_with_the_score():
    for calibration in ("platt", "isotonic"):
        settings = GECESettings(scorer="product", calibration=calibration)
        recorded = ladder(60)
        gate = GECEGate(fit_outcomes(recorded, settings=settings)[0], World(), None)
        by_score = sorted((gate.judge(o.evidence) for o in recorded), key=lambda d: d.score)
        probabilities = [decision.probability for decision in by_score]
        assert probabilities == sorted(probabilities)
        assert 0 <= probabilities[0] < 0.5 < probabilities[-1] <= 1


@pytest.mark.parametrize("failing", [2, 3])
def test_twenty_questions_of_which_hardly_any_fail_are_enough(failing):
    fails = [1] * failing + [0] * (20 - failing)
    _, report = fit_outcomes(outcomes(fails, np.linspace(0.1, 0.9, 20), mended=[1] * 20))
    assert report.questions == 20
    assert any("200" in note for note in report.notes)


def test_a_gate_on_text_does_not_look_at_log_probabilities():
    recorded = ladder(30)
    text = GECESettings(scorer="word_frequency", tier="text")
    fitted, report = fit_outcomes(recorded, settings=text)
    assert fitted.names == ("draft_words", "word_frequency", "rarest_word")
    assert report.tier == "text"


def test_probabilities_asked_for_and_missing_are_refused():
    recorded = ladder(30)
    recorded[7] = replace(
        recorded[7], evidence=replace(recorded[7].evidence, draft=Generation("red"))
    )
    with pytest.raises(NoTokenProbabilities, match="logprobs=True"):
        fit_outcomes(recorded, settings=GECESettings(scorer="product", tier="probabilities"))


def test_a_gate_that_fell_back_to_text_because_of_some_drafts_says_so():
    recorded = ladder(30)
    recorded[7] = replace(
        recorded[7], evidence=replace(recorded[7].evidence, draft=Generation("red"))
    )
    _, report = fit_outcomes(recorded, settings=GECESettings(scorer="word_frequency"))
    assert report.tier == "text"
    assert any("1 of 30 drafts came without token probabilities" in n for n in report.notes)


def test_a_signal_that_beats_the_gate_is_named_and_a_gate_that_points_the_wrong_way_too():
    certainty = np.linspace(0.05, 0.95, 40)
    recorded = outcomes((certainty < 0.5).astype(int), certainty, extra=certainty)
    _, report = fit_outcomes(recorded, settings=GECESettings(scorer="own"))
    assert any("alone tells failing answers better" in note for note in report.notes)
    assert any("do not rely on this gate" in note for note in report.notes)


def test_few_right_answers_and_what_the_gate_leans_on_then_are_named():
    # 5 of 60 right, the surest ones but for two
    certainty = np.linspace(0.05, 0.95, 60)
    right = np.isin(np.arange(60), [59, 58, 57, 50, 45])
    _, report = fit_outcomes(outcomes(1 - right, certainty))
    [note] = [note for note in report.notes if "leans" in note]
    assert note.startswith("only 5 right answers to learn from")
    best = max(report.signal_aurocs, key=lambda name: report.signal_aurocs[name])
    assert f"'{best}' most" in note
    _, mirrored = fit_outcomes(outcomes(right, certainty[::-1]))
    assert any("only 5 wrong answers" in note for note in mirrored.notes)
    even = outcomes([0] * 50 + [1] * 50, np.linspace(0.95, 0.05, 100))
    assert not any("leans" in note for note in fit_outcomes(even)[1].notes)
    assert not any("leans" in n for n in fit_outcomes(ladder(20), settings=PRODUCT)[1].notes)


def test_answers_with_retrieval_for_some_questions_only_are_refused():
    recorded = ladder(30)
    recorded[3] = replace(recorded[3], right_with_retrieval=True)
    with pytest.raises(InvalidInput, match="1 of 30"):
        fit_outcomes(recorded, settings=PRODUCT)


def test_a_quality_that_is_no_number_is_refused():
    recorded = ladder(30)
    recorded[3] = replace(recorded[3], quality=float("nan"))
    with pytest.raises(InvalidInput, match="quality"):
        fit_outcomes(recorded, settings=PRODUCT)


@pytest.mark.parametrize("signal", [n for n, s in SIGNALS.items() if s.tier == "probabilities"])
def test_a_gate_on_one_signal_needs_no_accepted_answers(signal):
    evidence = [o.evidence for o in outcomes([0] * 5, [0.4, 0.5, 0.7, 0.8, 0.9])]
    fitted = FittedGate.on_signal(evidence, GECESettings(scorer=signal), target_rate=0.4)
    decisions = [fitted.judge(item) for item in evidence]
    assert [decision.retrieve for decision in decisions] == [True, True, False, False, False]
    assert [decision.probability for decision in decisions] == [0.8, 0.6, 0.4, 0.2, 0.0]
    assert fitted.threshold == rate_threshold(np.array([d.score for d in decisions]), 0.4)


def test_among_drafts_that_nobody_judged_an_empty_one_is_the_most_doubtful():
    silent = Evidence("Who?", said("", math.log(0.99)))
    evidence = [*(outcome.evidence for outcome in ladder(4)), silent]
    fitted = FittedGate.on_signal(evidence, GECESettings(scorer="product"), target_rate=0.2)
    assert [fitted.judge(item).retrieve for item in evidence] == [False] * 4 + [True]


def test_a_gate_on_the_question_alone_needs_no_draft():
    texts = ["the", "of the", "quokka wombat", "thylacine"]
    evidence = [Evidence(text, Generation("")) for text in texts]
    rare = GECESettings(scorer="word_frequency")
    fitted = FittedGate.on_signal(evidence, rare, target_rate=0.5)
    found = [fitted.judge(item).score >= fitted.threshold for item in evidence]
    assert found == [False, False, True, True]
    corpus = WordFrequencies.of_corpus(["quokka quokka wombat thylacine the of"])
    counted = FittedGate.on_signal(evidence, rare, target_rate=0.5, frequencies=corpus)
    assert counted.frequencies == corpus
