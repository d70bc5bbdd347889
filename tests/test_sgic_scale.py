"""Eq. 2 and eq. 3 by their properties and by numpy; P(wrong), and a calibration read again."""

import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ltrag_plugins.calibration import CalibrationMethod, fit_calibrator
from ltrag_plugins.errors import (
    ArtifactMismatch,
    CalibrationError,
    InvalidInput,
    UnreadableArtifact,
)
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import (
    Calibration,
    PromptTemplates,
    ScoreScale,
    SGICSettings,
    WrongnessCalibration,
)
from ltrag_plugins.sgic.documents import relevance_scores
from ltrag_plugins.sgic.scale import document_scores, rounding
from ltrag_plugins.types import Generation, Passage, Token
from tests.import_parts import loaded_by
from tests.sgic_parts import THREE, answered, model, said

unit = st.floats(0, 1)


@given(unit, unit, st.floats(1e-6, 1 - 1e-6))
def test_a_score_is_numpys_interpolation_between_three_points(a, b, mean):
    scale = ScoreScale("product", (mean,))
    low, high = scale.score(min(a, b)), scale.score(max(a, b))
    wanted = np.interp([min(a, b), max(a, b)], [0, mean, 1], [0, 50, 100])
    assert (low, high) == pytest.approx(wanted, abs=1e-6)
    assert 0 <= low <= high <= 100
    assert [scale.score(u) for u in (0.0, mean, 1.0)] == [0.0, 50.0, 100.0]


def test_each_round_has_its_mean_and_the_last_one_serves_the_rest():
    scale = ScoreScale("product", (0.2, 0.4, 0.8))
    assert [scale.score(0.4, n) for n in range(5)] == pytest.approx([62.5, 50, 25, 25, 25])
    # without a fit a score is a hundred times the uncertainty
    assert [ScoreScale("product").score(u, 3) for u in (0, 0.3, 1)] == pytest.approx([0, 30, 100])


def calibrated(*uncertainties):
    llm = model([said(f"answer {n}", 1 - u) for n, u in enumerate(uncertainties)])
    rounds = len(uncertainties) - 1
    settings = SGICSettings(rounds=rounds, certain_below=0, least_gain=None, documents="none")
    return answered(llm, settings=settings).trace


def test_a_fit_is_the_mean_of_each_round():
    traces = [calibrated(0.2, 0.6), calibrated(0.4, 0.8), calibrated(0.9)]
    scale = ScoreScale.of_rounds("product", traces)
    assert scale.estimator == "product"
    assert scale.means == pytest.approx(((0.2 + 0.4 + 0.9) / 3, (0.6 + 0.8) / 2))
    first = ScoreScale.of_rounds("product", traces, 1)
    assert first.means == pytest.approx([(0.2 + 0.4 + 0.9) / 3])
    # on answers that are all certain it is still a scale
    certain = ScoreScale.of_rounds("product", [calibrated(0.0)])
    assert (certain.score(0.0), certain.score(1.0)) == (0.0, 100.0)


@given(st.lists(unit, max_size=12))
@example([0.3, 0.3 + 1e-7, 0.3 - 1e-7])  # rounding errors are not stretched over the scale
@example([0.7] * 3)
@example([])
def test_document_scores_are_min_max_or_fifty_where_none_differs(uncertainties):
    scores, u = document_scores(uncertainties), np.array(uncertainties)
    if not uncertainties or np.ptp(u) <= 1e-6:
        assert scores == (50.0,) * len(uncertainties)
        return
    assert scores == pytest.approx(100 * (u - u.min()) / np.ptp(u))
    assert {min(scores), max(scores)} == {0.0, 100.0}
    assert (np.diff(np.array(scores)[np.argsort(u, kind="stable")]) >= 0).all()


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


# --- P(wrong): that it is scikit-learn's is held with the fit

SCALE = ScoreScale("product", (0.4, 0.6))
LLM = ScriptedLLM(lambda p: "a", name="tiny")
RNG = np.random.default_rng(0)
SCORES = RNG.uniform(0, 100, size=400).tolist()
WRONG = (RNG.uniform(size=400) < 0.1 + 0.8 * np.array(SCORES) / 100).tolist()


def fitted(method: CalibrationMethod = "platt", scores=SCORES, wrong=WRONG):
    return WrongnessCalibration.fit(scores, wrong, scale=SCALE, method=method)


def test_an_answer_carries_it():
    answer = answered(model([said("a", 0.9)]), scale=SCALE, wrongness=fitted())
    assert answer.p_wrong == fitted().probability(answer.score)
    assert answer.p_wrong is not None
    assert 0 < answer.p_wrong < 0.5
    assert answered(model([said("a", 0.9)])).p_wrong is None


WHOLE = Calibration(
    SGICSettings(rounds=2, templates=PromptTemplates(mark="**"), stop=("\n", "###")), SCALE
)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_what_is_saved_is_what_is_read(method: CalibrationMethod, tmp_path):
    Calibration(WHOLE.settings, SCALE, fitted(method)).save(tmp_path / "new" / "folder", llm=LLM)
    read = Calibration.load(tmp_path / "new" / "folder", llm=LLM)
    assert (read.settings, read.scale) == (WHOLE.settings, SCALE)
    assert read.wrongness is not None
    for score in (0.0, 33.0, 100.0):
        assert read.wrongness.probability(score) == fitted(method).probability(score)
    WHOLE.save(tmp_path, llm=LLM)  # without P(wrong)
    assert Calibration.load(tmp_path, llm=LLM) == WHOLE


@pytest.mark.parametrize("damage", [
    lambda body: body.pop("scale"),
    lambda body: body["scale"].update(means=[2.0]),
    lambda body: body["scale"].update(estimator="entropy"),
    lambda body: body["settings"].update(rounds=-1),
    lambda body: body.update(settings=3),
    lambda body: body.update(wrongness=3),
    lambda body: body.update(llm=None),
    lambda body: body.update(format=99),
])  # fmt: skip
def test_a_damaged_file_is_named(damage, tmp_path):
    Calibration(WHOLE.settings, SCALE, fitted()).save(tmp_path, llm=LLM)
    path = tmp_path / "sgic.json"
    body = json.loads(path.read_text())
    damage(body)
    path.write_text(json.dumps(body))
    with pytest.raises((UnreadableArtifact, ArtifactMismatch)):
        Calibration.load(tmp_path, llm=LLM)


def test_a_folder_without_one_or_of_another_model_is_refused(tmp_path):
    with pytest.raises(UnreadableArtifact, match="no readable calibration"):
        Calibration.load(tmp_path, llm=LLM)
    WHOLE.save(tmp_path, llm=LLM)
    with pytest.raises(ArtifactMismatch, match=r"'tiny'.*'large'"):
        Calibration.load(tmp_path, llm=ScriptedLLM(lambda p: "a", name="large"))


def with_fitted(scale):
    answered(model([said("a")]), scale=scale, wrongness=fitted())


@pytest.mark.parametrize(("call", "error", "match"), [
    (lambda: ScoreScale("product").score(-0.1), InvalidInput, r"lies in \[0, 1\]"),
    (lambda: ScoreScale("product").score(1.1), InvalidInput, r"lies in \[0, 1\]"),
    (lambda: ScoreScale("product").score(math.nan), InvalidInput, r"lies in \[0, 1\]"),
    (lambda: ScoreScale("product", ()), InvalidInput, r"inside \(0, 1\)"),
    (lambda: ScoreScale("product", (0.0,)), InvalidInput, r"inside \(0, 1\)"),
    (lambda: ScoreScale("product", (0.5, 1.0)), InvalidInput, r"inside \(0, 1\)"),
    (lambda: ScoreScale("product", (math.nan,)), InvalidInput, r"inside \(0, 1\)"),
    (lambda: document_scores([0.1, math.nan]), InvalidInput, "finite"),
    (lambda: document_scores([0.1, math.inf]), InvalidInput, "finite"),
    (lambda: fitted(scores=SCORES[:20], wrong=[True] * 2 + [False] * 18), CalibrationError,
     "2 of 20 answers are wrong"),
    (lambda: fitted(scores=[], wrong=[]), CalibrationError, "0 of 0"),
    (lambda: fitted(wrong=WRONG[:-1]), InvalidInput, r"\(400,\), \(399,\)"),
    (lambda: fit_calibrator(np.array([0.1, 0.9]), np.array([0, 1]), "isotonik"),  # type: ignore
     InvalidInput, r"no calibration 'isotonik'.*platt, isotonic"),
    (lambda: with_fitted(None), ArtifactMismatch, "another scale"),
    (lambda: with_fitted(ScoreScale("product", (0.4, 0.7))), ArtifactMismatch, "another scale"),
    (lambda: Calibration(SGICSettings(rounds=5), ScoreScale("product"), fitted()), ArtifactMismatch,
     "another scale"),
    (lambda: Calibration(SGICSettings(rounds=5, estimator="entropy"), SCALE), ArtifactMismatch,
     r"'product'.*'entropy'"),
])  # fmt: skip
def test_what_is_out_of_range_or_does_not_belong_together_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_answering_loads_no_scikit_learn():
    loaded = loaded_by("from ltrag_plugins.sgic import SGICSettings, ScoreScale, calibrate")
    assert not loaded & {"sklearn", "torch", "transformers", "langchain_core", "llama_index"}
