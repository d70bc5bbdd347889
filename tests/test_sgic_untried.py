"""A calibrator without a calibration says that nobody tried its rounds, once, as it is made."""

import copy
import logging

import pytest

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.langchain import SGICCalibrator as InLangChain
from ltrag_plugins.llama_index import SGICCalibrator as InLlamaIndex
from ltrag_plugins.sgic import Calibration, ScoreScale, SGICSettings
from tests.langchain_parts import FunctionChat
from tests.llama_index_parts import FunctionLLM
from tests.sgic_parts import QUESTION, THREE, model, said

PLACES = pytest.mark.parametrize("calibrator", [InLangChain, InLlamaIndex])


def llm():
    return model([said("Fife", 0.2), said("East Lothian", 0.9)])


def fitted(**settings):
    return Calibration(SGICSettings(**settings), ScoreScale("product"))


@pytest.fixture
def warned(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [(r.name.partition(".")[0], r.levelname, r.getMessage()) for r in caplog.records]


@PLACES
@pytest.mark.parametrize("settings", [None, SGICSettings(), SGICSettings(rounds=2)])
def test_rounds_that_nobody_tried_are_warned_of_once(calibrator, settings, warned):
    calibrator(llm(), settings=settings)
    [(package, level, message)] = warned()
    assert (package, level) == ("ltrag_plugins", "WARNING")
    assert f"up to {(settings or SGICSettings()).rounds} round" in message
    assert "not tried on this model" in message
    assert "ltrag sgic fit" in message
    assert "sgic.fit" in message
    calibrator(llm(), settings=settings)
    assert len(warned()) == 2


@PLACES
@pytest.mark.parametrize(
    "told",
    [
        {"settings": SGICSettings(rounds=0)},
        {"calibration": fitted()},
        {"calibration": fitted(rounds=0)},
        {"calibration": fitted(rounds=0), "settings": SGICSettings(rounds=3)},
    ],
)
def test_no_rounds_or_a_calibration_is_nothing_to_warn_of(calibrator, told, warned):
    calibrator(llm(), **told)
    assert warned() == []


@PLACES
def test_a_saved_calibration_is_nothing_to_warn_of(calibrator, warned, tmp_path):
    fitted().save(tmp_path, llm=llm())
    calibrator.from_pretrained(tmp_path, llm=llm())
    assert warned() == []


@PLACES
def test_what_cannot_be_made_is_not_warned_of(calibrator, warned):
    with pytest.raises(InvalidInput):
        calibrator(llm(), settings=SGICSettings(source="relevance"))
    with pytest.raises(InvalidInput):
        calibrator("no model")
    assert warned() == []


def test_a_use_or_a_copy_warns_no_more(warned):
    made = InLangChain(llm())
    made.invoke({"question": QUESTION, "documents": []})
    made.with_config(tags=["x"]).batch([{"question": QUESTION, "documents": []}])
    copy.copy(made)
    InLlamaIndex(llm()).get_response(QUESTION, [one.text for one in THREE])
    assert len(warned()) == 2


def test_models_of_the_frameworks_are_warned_of_as_ours(warned):
    InLangChain(FunctionChat(lambda prompt: "x"))
    InLlamaIndex(FunctionLLM(lambda prompt: "x"))
    assert len(warned()) == 2
    assert len({message for _, _, message in warned()}) == 1


def test_a_scale_alone_is_no_trial_of_the_rounds(warned):
    InLlamaIndex(llm(), scale=ScoreScale("product"))
    assert len(warned()) == 1
