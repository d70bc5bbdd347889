"""P(wrong) of a fit, and the level it is held to, beside eq. 2 by hand and scikit-learn."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from ltrag_plugins.calibration import CalibrationMethod
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import SGICSettings, fit
from tests.sgic_parts import asked, folds, number, rights, said, way

COUNT = 40
ONE_ROUND = SGICSettings(rounds=1, documents="none", certain_below=0, least_gain=None)
RNG = np.random.default_rng(3)
# question i is right at once where i is even, in round 1 where it is odd, and 3, 9, ... never;
# right answers are the surer ones, with exceptions
EVEN, NEVER = np.arange(COUNT) % 2 == 0, np.arange(COUNT) % 6 == 3
RIGHT = np.array([EVEN, ~EVEN & ~NEVER])
DOUBT = np.where(RIGHT, 0.05, 0.3) + RNG.uniform(0, 0.65, size=RIGHT.shape) ** 2
LLM = rights(lambda i, n: RIGHT[n, i], lambda i, n: 1 - DOUBT[n, i])
Fitted = Callable[[np.ndarray], np.ndarray]


def eq_2(uncertainty: np.ndarray, mean: np.ndarray) -> np.ndarray:
    low = 50 * uncertainty / mean
    return np.where(uncertainty <= mean, low, 50 + 50 * (uncertainty - mean) / (1 - mean))


def scores_by_hand(rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Score of each answer on the means of the other folds' questions, and whether it is wrong."""
    scores, wrong = np.empty(COUNT), np.empty(COUNT)
    for train, test in folds(COUNT):
        found = eq_2(DOUBT[:, test], DOUBT[:, train].mean(axis=1, keepdims=True))[: rounds + 1]
        best = found.argmin(axis=0)
        scores[test], wrong[test] = found.min(axis=0), ~RIGHT[best, test]
    return scores, wrong


def platt(scores: np.ndarray, wrong: np.ndarray) -> Fitted:
    mean, deviation = scores.mean(), scores.std()
    found = LogisticRegression(C=100.0).fit(((scores - mean) / deviation)[:, None], wrong)
    return lambda new: found.predict_proba(((new - mean) / deviation)[:, None])[:, 1]


def isotonic(scores: np.ndarray, wrong: np.ndarray) -> Fitted:
    return IsotonicRegression(out_of_bounds="clip").fit(scores, wrong).predict


def calibration_error(probabilities: np.ndarray, wrong: np.ndarray) -> float:
    """Ten bins, each by the distance of its means and the share of answers in it."""
    bins = np.minimum((probabilities * 10).astype(int), 9)
    parts = [(probabilities[bins == b], wrong[bins == b]) for b in np.unique(bins)]
    return sum(abs(p.mean() - w.mean()) * len(p) / len(wrong) for p, w in parts)


@pytest.mark.parametrize(("method", "fitted"), [("platt", platt), ("isotonic", isotonic)])
@pytest.mark.parametrize(("rounds", "kept"), [(0, "direct"), (1, "1 round, least uncertain")])
def test_p_wrong_is_fitted_and_judged_on_answers_that_scale_and_curve_have_not_seen(
    rounds: int, kept: str, method: CalibrationMethod, fitted
):
    settings = replace(ONE_ROUND, rounds=rounds)
    calibration, report = fit(asked(COUNT), LLM, settings=settings, cut_to=(), method=method)
    found = calibration.wrongness
    assert report.kept == kept
    assert found is not None
    scores, wrong = scores_by_hand(rounds)
    assert (found.answers, found.wrong) == (COUNT, pytest.approx(wrong.mean()))
    assert report.auroc == found.auroc == pytest.approx(roc_auc_score(wrong, scores))

    new, curve = np.linspace(0, 100, 21), fitted(scores, wrong)
    assert [found.probability(s) for s in new] == pytest.approx(curve(new), abs=1e-4)
    # the scale that goes out is of all questions
    means = DOUBT.mean(axis=1)[: rounds + 1]
    assert calibration.scale.means == pytest.approx(means)

    unseen = np.empty(COUNT)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(scores, wrong):
        unseen[test] = fitted(scores[train], wrong[train])(scores[test])
    assert report.ece == found.ece == pytest.approx(calibration_error(unseen, wrong), abs=1e-4)
    seen = calibration_error(curve(scores), wrong)
    assert abs(seen - found.ece) > 5e-4  # which is another figure


@pytest.mark.parametrize(("metric", "wrong"), [("em", 0.5), ("f1", 0.25)])
def test_what_p_wrong_calls_wrong_is_what_the_metric_does(metric, wrong):
    """Half a name is no match, and has a word F1 of 2/3."""
    names = ("right answer", "right answer", "answer", "other")

    def write(prompt: str):
        i = number(prompt)
        return said(names[i % 4], 0.9 - 0.2 * (i % 4))

    questions = [replace(one, answers=("right answer",)) for one in asked(COUNT)]
    settings = SGICSettings(rounds=0)
    calibration, report = fit(
        questions, ScriptedLLM(write), settings=settings, cut_to=(), metric=metric
    )
    assert calibration.wrongness is not None
    assert report.wrong == calibration.wrongness.wrong == wrong
    # uncertainties of 0.1, 0.3, 0.5, 0.7: the third kind of answer, of mean 0.4, is a 58
    assert (calibration.wrongness.probability(58) > 0.5) == (metric == "em")


def mended(count: int, spoiled: int) -> np.ndarray:
    """EM of 40 answers after a look, of which the first half was right before."""
    after = np.repeat([1.0, 0.0], 20)
    after[:spoiled], after[20 : 20 + count] = 0, 1
    return after


@pytest.mark.parametrize(("level", "kept"), [(0.5, "1 round, last"), (0.9, "direct")])
def test_a_fit_keeps_at_the_level_that_was_asked_for(level, kept):
    """Of 40 answers 3 mended and 1 spoiled: the mean of a resample is not above 0 in a sixth.

    So the lower end of an interval of 50 % is above 0, and of 90 % it is not.
    """
    before, after = mended(0, 0), mended(3, 1)
    drawn = np.random.default_rng(1).integers(0, 40, size=(4000, 40))
    share = ((after - before)[drawn].mean(axis=1) <= 0).mean()
    assert 0.05 < share < 0.25

    def right(i: int, n: int) -> float:
        return after[i] if n else i < COUNT // 2

    _, report = fit(asked(COUNT), rights(right), settings=ONE_ROUND, cut_to=(), level=level)
    assert way(report, "1 round, last").pays == (kept != "direct")
    assert (report.kept, report.level) == (kept, level)
