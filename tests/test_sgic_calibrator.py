"""The calibrator without a framework, beside the flow it runs; both frameworks take its options."""

import inspect
from typing import get_type_hints

import pytest

from ltrag_plugins.calibration import Platt
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput
from ltrag_plugins.langchain import SGICCalibrator as InLangChain
from ltrag_plugins.llama_index import SGICCalibrator as InLlamaIndex
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import (
    CalibratedAnswer,
    Calibration,
    Calibrator,
    Round,
    ScoreScale,
    SGICSettings,
    WrongnessCalibration,
)
from ltrag_plugins.sgic.calibrator import CalibratorOptions
from ltrag_plugins.types import Question
from tests.sgic_parts import QUESTION, THREE, answered, model, said

LADDER = [said("Fife", 0.2), said("Lothian", 0.6), said("East Lothian", 0.95)]
"""Three rounds, the last certain: uncertainties 0.8, 0.4, 0.05."""


def calibration(**settings) -> Calibration:
    scale = ScoreScale("product", (0.5,))
    wrongness = WrongnessCalibration(Platt(1.0, -0.5), scale, 20, 0.5, 0.8, 0.1)
    return Calibration(SGICSettings(**settings), scale, wrongness)


async def test_every_way_of_asking_gives_what_the_flow_gives():
    expected = answered(model(LADDER))
    calibrator = Calibrator(model(LADDER))
    asked = [Question(QUESTION, passages=THREE)] * 2
    assert calibrator.answer(QUESTION, THREE) == expected
    assert await calibrator.aanswer(QUESTION, THREE) == expected
    assert calibrator.answer_many(asked) == [expected] * 2
    streamed = list(calibrator.stream(QUESTION, THREE))
    assert streamed == [*expected.trace, expected]
    assert [one async for one in calibrator.astream(QUESTION, THREE)] == streamed


def test_a_round_is_streamed_before_the_next_is_asked_for():
    llm = model(LADDER)
    stream = Calibrator(llm).stream(QUESTION, THREE)
    first = next(stream)
    assert isinstance(first, Round)
    assert (first.text, len(llm.prompts)) == ("Fife", 1)


def test_a_round_of_many_questions_is_one_call():
    llm = model(LADDER)
    Calibrator(llm).answer_many(Question(f"{QUESTION} {i}", passages=THREE) for i in range(4))
    assert [len(call) for call in llm.calls] == [4, 12, 4, 4]


def test_an_answer_is_kept_back_by_its_score_or_by_p_wrong():
    llm = model([said("Fife", 0.4)])  # a score of 60
    for limit, refused in ((59.0, True), (61.0, False)):
        calibrator = Calibrator(llm, refuse_above=limit, refusal="Ask a person.")
        answer = calibrator.answer(QUESTION, THREE)
        assert calibrator.refusal.refuses(answer) is refused
        assert calibrator.refusal.said(answer) == ("Ask a person." if refused else "Fife")
    fitted = Calibrator(llm, calibration=calibration(), refuse_p_wrong_above=0.5)
    answer = fitted.answer(QUESTION, THREE)
    assert answer.p_wrong is not None
    assert answer.p_wrong > 0.5
    assert fitted.refusal.refuses(answer)
    with pytest.raises(InvalidInput, match="refuse_p_wrong_above needs a calibration"):
        Calibrator(llm, refuse_p_wrong_above=0.5)


def test_a_fit_is_saved_and_loaded_and_answers_the_same(tmp_path):
    def mending():
        return model([said("wrong", 0.3), said("right", 0.9)])

    questions = [Question(f"{QUESTION} {i}", ("right",), passages=THREE) for i in range(12)]
    settings = SGICSettings(rounds=1, certain_below=0)
    fitted = Calibrator.fit(questions, llm=mending(), settings=settings)
    assert fitted.report is not None
    assert fitted.report.pays
    answer = fitted.answer(QUESTION, THREE)
    assert answer.text == "right"
    fitted.save(tmp_path)
    loaded = Calibrator.load(tmp_path, llm=mending(), refuse_above=99)
    assert loaded.answer(QUESTION, THREE) == answer
    assert (loaded.report, loaded.settings) == (None, fitted.settings)
    other = ScriptedLLM(lambda prompt: "a", name="other")
    with pytest.raises(ArtifactMismatch, match="fitted on the model"):
        Calibrator.load(tmp_path, llm=other)


def test_settings_beside_a_calibration_keep_its_scale():
    both = Calibrator(
        model(LADDER), settings=SGICSettings(rounds=0), calibration=calibration(rounds=5)
    )
    answer = both.answer(QUESTION, THREE)
    assert isinstance(answer, CalibratedAnswer)
    assert (len(answer.trace), answer.p_wrong is not None) == (1, True)
    assert (both.calibration or calibration()).settings == both.settings


@pytest.mark.parametrize("wrong", [{"settings": {}}, {"scale": 0.5}, {"calibration": "folder"}])
def test_parts_of_another_type_are_refused_at_once(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be"):
        Calibrator(model(LADDER), **wrong)


def test_the_frameworks_take_the_options_of_the_calibrator():
    own = {*inspect.signature(Calibrator).parameters} - {"llm", "calibration"}
    assert {*get_type_hints(CalibratorOptions)} == own
    for room in (InLangChain, InLlamaIndex):
        parameters = inspect.signature(room.__init__).parameters
        assert "calibration" in parameters
        assert "CalibratorOptions" in str(parameters["options"].annotation)
        room(model(LADDER), scale=ScoreScale("product", (0.8,)), refuse_above=50.0)
