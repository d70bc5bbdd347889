"""P(wrong) against scikit-learn and its own promise; a calibration saved and read again."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from ltrag_plugins.calibration import CalibrationMethod
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
from tests.import_parts import loaded_by
from tests.sgic_parts import answered, model, said

SCALE = ScoreScale("product", (0.4, 0.6))
LLM = ScriptedLLM(lambda p: "a", name="tiny")
RNG = np.random.default_rng(0)
SCORES = RNG.uniform(0, 100, size=400).tolist()
WRONG = (RNG.uniform(size=400) < 0.1 + 0.8 * np.array(SCORES) / 100).tolist()


def fitted(
    method: CalibrationMethod = "platt",
    scores: Sequence[float] = SCORES,
    wrong: Sequence[bool] = WRONG,
) -> WrongnessCalibration:
    return WrongnessCalibration.fit(scores, wrong, scale=SCALE, method=method)


def test_platt_is_sklearns_logistic_regression():
    found = fitted()
    u = np.array(SCORES) / 100
    x = ((u - u.mean()) / u.std())[:, None]
    wanted = LogisticRegression(C=100.0).fit(x, WRONG).predict_proba(x)[:, 1]
    assert [found.probability(s) for s in SCORES] == pytest.approx(wanted, abs=1e-4)


def test_isotonic_is_sklearns():
    wanted = IsotonicRegression(out_of_bounds="clip").fit(np.array(SCORES) / 100, WRONG)
    found = fitted("isotonic")
    new = np.linspace(0, 100, 31)
    assert [found.probability(s) for s in new] == pytest.approx(wanted.predict(new / 100))


def test_its_figures_are_those_of_the_answers():
    found = fitted()
    assert found.auroc == pytest.approx(roc_auc_score(WRONG, SCORES))
    assert (found.answers, found.wrong) == (400, pytest.approx(np.mean(WRONG)))
    assert 0 <= found.ece < 0.1


def test_an_answer_carries_it():
    answer = answered(model([said("a", 0.9)]), scale=SCALE, wrongness=fitted())
    assert answer.p_wrong == fitted().probability(answer.score)
    assert answer.p_wrong is not None
    assert 0 < answer.p_wrong < 0.5
    assert answered(model([said("a", 0.9)])).p_wrong is None


def test_another_scale_is_refused():
    for other in (None, ScoreScale("product", (0.4, 0.7))):
        with pytest.raises(ArtifactMismatch, match="another scale"):
            answered(model([said("a")]), scale=other, wrongness=fitted())


def test_too_few_of_a_kind():
    with pytest.raises(CalibrationError, match="2 of 20 answers are wrong"):
        fitted(scores=SCORES[:20], wrong=[True] * 2 + [False] * 18)
    with pytest.raises(CalibrationError, match="0 of 0"):
        fitted(scores=[], wrong=[])


def test_labels_that_are_missing():
    with pytest.raises(InvalidInput, match=r"\(400,\), \(399,\)"):
        fitted(wrong=WRONG[:-1])


def whole(method: CalibrationMethod = "platt") -> Calibration:
    settings = SGICSettings(rounds=2, templates=PromptTemplates(mark="**"), stop=("\n", "###"))
    return Calibration(settings, SCALE, fitted(method))


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_what_is_saved_is_what_is_read(method: CalibrationMethod, tmp_path):
    told = whole(method)
    told.save(tmp_path / "new" / "folder", llm=LLM)
    read = Calibration.load(tmp_path / "new" / "folder", llm=LLM)
    assert (read.settings, read.scale) == (told.settings, told.scale)
    assert read.wrongness is not None
    for score in (0.0, 33.0, 100.0):
        assert read.wrongness.probability(score) == fitted(method).probability(score)
    answer = answered(model([said("a", 0.9)]), settings=read.settings, scale=read.scale,
                      wrongness=read.wrongness)  # fmt: skip
    assert answer.p_wrong is not None


def test_a_scale_can_be_saved_alone(tmp_path):
    Calibration(SGICSettings(), SCALE).save(tmp_path, llm=LLM)
    assert Calibration.load(tmp_path, llm=LLM) == Calibration(SGICSettings(), SCALE)


def test_parts_that_do_not_belong_together():
    with pytest.raises(ArtifactMismatch, match=r"'product'.*'entropy'"):
        Calibration(SGICSettings(estimator="entropy"), SCALE)
    with pytest.raises(ArtifactMismatch, match="another scale"):
        Calibration(SGICSettings(), ScoreScale("product"), fitted())


def test_another_model_is_refused(tmp_path):
    whole().save(tmp_path, llm=LLM)
    with pytest.raises(ArtifactMismatch, match=r"'tiny'.*'large'"):
        Calibration.load(tmp_path, llm=ScriptedLLM(lambda p: "a", name="large"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body.pop("scale"),
        lambda body: body["scale"].update(means=[2.0]),
        lambda body: body["scale"].update(estimator="entropy"),
        lambda body: body["settings"].update(rounds=-1),
        lambda body: body.update(settings=3),
        lambda body: body.update(wrongness=3),
        lambda body: body.update(llm=None),
        lambda body: body.update(format=99),
    ],
)
def test_a_damaged_file_is_named(damage, tmp_path):
    whole().save(tmp_path, llm=LLM)
    path = tmp_path / "sgic.json"
    body = json.loads(path.read_text())
    damage(body)
    path.write_text(json.dumps(body))
    with pytest.raises((UnreadableArtifact, ArtifactMismatch)):
        Calibration.load(tmp_path, llm=LLM)


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(UnreadableArtifact, match="no readable calibration"):
        Calibration.load(tmp_path, llm=LLM)


def test_answering_loads_no_scikit_learn():
    loaded = loaded_by("from ltrag_plugins.sgic import SGICSettings, ScoreScale, calibrate")
    assert not loaded & {"sklearn", "torch", "transformers", "langchain_core", "llama_index"}
