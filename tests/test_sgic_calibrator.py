"""The calibrator without a framework, beside the flow it runs; both frameworks take its options."""

import copy
import inspect
import logging
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, get_type_hints

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage

from ltrag_plugins.artifacts import content_hash, json_object
from ltrag_plugins.calibration import Platt
from ltrag_plugins.data import digest_of
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput, ModelFailed
from ltrag_plugins.langchain import LangChainLLM
from ltrag_plugins.langchain import SGICCalibrator as InLangChain
from ltrag_plugins.langchain.component import conversation_of
from ltrag_plugins.llama_index import SGICCalibrator as InLlamaIndex
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import (
    Calibration,
    Calibrator,
    Round,
    ScoreScale,
    SGICSettings,
    WrongnessCalibration,
)
from ltrag_plugins.sgic.calibrator import CalibratorOptions
from ltrag_plugins.types import Question
from tests.sgic_parts import LOOKING, QUESTION, THREE, answered, asked, model, said

looking = partial(Calibrator, settings=LOOKING)

LADDER = [said("Fife", 0.2), said("Lothian", 0.6), said("East Lothian", 0.95)]
"""Three rounds, the last certain: uncertainties 0.8, 0.4, 0.05."""
SCALE = ScoreScale("product", (0.5,))


def calibration(**settings) -> Calibration:
    wrongness = WrongnessCalibration(Platt(1.0, -0.5), SCALE, 20, 0.5, 0.8, 0.1)
    return Calibration(SGICSettings(**({"rounds": 5} | settings)), SCALE, wrongness)


async def test_every_way_of_asking_gives_what_the_flow_gives():
    expected = answered(model(LADDER))
    calibrator = looking(model(LADDER))
    assert calibrator.answer(QUESTION, THREE) == expected
    assert await calibrator.aanswer(QUESTION, THREE) == expected
    streamed = list(calibrator.stream(QUESTION, THREE))
    assert streamed == [*expected.trace, expected]
    assert [one async for one in calibrator.astream(QUESTION, THREE)] == streamed


def test_a_round_is_streamed_before_the_next_is_asked_for():
    llm = model(LADDER)
    first = next(looking(llm).stream(QUESTION, THREE))
    assert isinstance(first, Round)
    assert (first.text, len(llm.prompts)) == ("Fife", 1)


def test_a_round_of_many_questions_is_one_call():
    llm = model(LADDER)
    together = looking(llm).answer_many(iter(asked(4)))
    assert [len(call) for call in llm.calls] == [4, 12, 4, 4]
    assert together == [answered(model(LADDER), question=one.text) for one in asked(4)]


def test_an_answer_is_kept_back_by_its_score_or_by_p_wrong():
    llm = model([said("Fife", 0.4)])  # a score of 60
    for limit, refused in ((59.0, True), (61.0, False)):
        calibrator = looking(llm, refuse_above=limit, refusal="Ask a person.")
        answer = calibrator.answer(QUESTION, THREE)
        assert calibrator.refusal.refuses(answer) is refused
        assert calibrator.refusal.said(answer) == ("Ask a person." if refused else "Fife")
    p_wrong = Calibrator(llm, calibration=calibration()).answer(QUESTION, THREE).p_wrong
    assert p_wrong is not None
    assert p_wrong > 0.5
    for limit, refused in ((p_wrong - 0.01, True), (p_wrong + 0.01, False)):
        fitted = Calibrator(llm, calibration=calibration(), refuse_p_wrong_above=limit)
        assert fitted.refusal.refuses(fitted.answer(QUESTION, THREE)) is refused
        # none is given for an answer without documents, as on such none was fitted
        alone = fitted.answer(QUESTION, ())
        assert alone.p_wrong is None
        assert any("without documents" in note for note in alone.notes)
        assert fitted.refusal.refuses(alone)
    assert not looking(llm, refuse_above=99.0).refusal.refuses(alone)


def test_a_fit_is_saved_and_loaded_and_answers_the_same(tmp_path):
    def mending():
        return model([said("wrong", 0.3), said("right", 0.9)])

    settings = SGICSettings(rounds=1, certain_below=0)
    fitted = Calibrator.fit(asked(12), llm=mending(), settings=settings)
    assert fitted.report is not None
    assert fitted.report.pays
    answer = fitted.answer(QUESTION, THREE)
    assert answer.text == "right"
    fitted.save(tmp_path)
    loaded = Calibrator.load(tmp_path, llm=mending(), refuse_above=99)
    assert loaded.answer(QUESTION, THREE) == answer
    assert (loaded.report, loaded.settings) == (None, fitted.settings)
    assert loaded.calibration.data == fitted.calibration.data == digest_of(asked(12))
    loaded.save(tmp_path / "again")
    assert content_hash(tmp_path / "again", "sgic") == content_hash(tmp_path, "sgic")
    other = ScriptedLLM(lambda prompt: "a", name="other")
    with pytest.raises(ArtifactMismatch, match="fitted with the model"):
        Calibrator.load(tmp_path, llm=other)


class Long:
    """Counts letters."""

    name = "letters"

    def encode(self, texts):
        return np.array([[len(text), 1.0] for text in texts], dtype="float32")


@pytest.mark.parametrize("kind", [Calibrator, InLangChain, InLlamaIndex])
def test_a_calibration_by_an_encoder_takes_no_other(kind, tmp_path):
    load = partial(getattr(kind, "load", None) or kind.from_pretrained, llm=model(LADDER))
    other = Long()
    other.name = "others"
    settings = SGICSettings(rounds=1, source="encoder", certain_below=0)
    mending = model([said("wrong", 0.3), said("right", 0.9)])
    fitted = Calibrator.fit(asked(12), llm=mending, settings=settings, cut_to=(), encoder=Long())
    assert fitted.settings.source == "encoder"
    made = Calibrator(mending, settings=settings, encoder=Long())
    for i, one in enumerate((fitted, made, fitted.calibration, Calibrator(mending))):
        one.save(tmp_path / f"{i}", **({"llm": mending} if one is fitted.calibration else {}))
    for i in range(3):
        assert load(tmp_path / f"{i}", encoder=Long())
        with pytest.raises(ArtifactMismatch, match="the encoder 'letters', not 'others'"):
            load(tmp_path / f"{i}", encoder=other)
    Calibrator.load(tmp_path / "0", llm=model(LADDER), encoder=Long()).save(tmp_path / "again")
    assert content_hash(tmp_path / "again", "sgic") == content_hash(tmp_path / "0", "sgic")
    # of one that reads no vectors, or does not say whose, the encoder is nobody's concern
    assert load(tmp_path / "3", encoder=other)
    assert load(tmp_path / "0", encoder=other, settings=SGICSettings(rounds=0))
    replace(fitted.calibration, encoder="").save(tmp_path, llm=mending)
    assert "encoder" not in json_object(tmp_path / "sgic.json")
    assert load(tmp_path, encoder=other)


def test_settings_beside_a_calibration_keep_its_scale():
    told = {"settings": SGICSettings(rounds=0), "calibration": calibration(rounds=5)}
    both = looking(model(LADDER), **told)
    answer = both.answer(QUESTION, THREE)
    assert (len(answer.trace), answer.p_wrong is not None) == (1, True)
    assert (both.calibration or calibration()).settings == both.settings


@pytest.mark.parametrize(("told", "match"), [
    ({"settings": {}}, "settings must be"),
    ({"calibration": "folder"}, "calibration must be"),
    ({"settings": SGICSettings(rounds=5, source="encoder")}, "needs encoder="),
    ({"settings": SGICSettings(rounds=5, source="relevance")}, "source='relevance' needs"),
    ({"settings": SGICSettings(rounds=5, source="oracle")}, "source='oracle' needs"),
    ({"refuse_p_wrong_above": 0.5}, "refuse_p_wrong_above needs a calibration"),
    ({"refuse_p_wrong_above": 0.5, "calibration": Calibration(LOOKING, SCALE)},
     r"this one gives none.*5 right and 5 wrong.*Fit on more questions, or .*refuse_above="),
    ({"llm": "no model"}, "llm must be"),
])  # fmt: skip
def test_what_cannot_be_made_is_refused_at_once_and_not_warned_of(told, match, caplog):
    for made in (Calibrator, InLangChain, InLlamaIndex):
        with pytest.raises(InvalidInput, match=match):
            made(**{"llm": model(LADDER)} | told)
    assert caplog.messages == []


def test_a_model_or_embeddings_of_a_framework_that_are_not_wrapped_are_refused(tmp_path):
    theirs: Any = FakeListChatModel(responses=["Fife"])
    vectors: Any = DeterministicFakeEmbedding(size=4)
    calibration().save(tmp_path, llm=model(LADDER))
    question = Question("Where?", ("Fife",), passages=tuple(THREE))
    wrap = r"llm=FakeListChatModel cannot be used as it is: wrap .* in LangChainLLM"
    for made in (
        lambda: Calibrator(theirs),
        lambda: Calibrator.load(tmp_path, llm=theirs),
        lambda: Calibrator.fit([question], llm=theirs),
    ):
        with pytest.raises(InvalidInput, match=wrap):
            made()
    wrap = r"encoder=DeterministicFakeEmbedding cannot be used as it is: .* LangChainEncoder"
    for made in (
        lambda: Calibrator(model(LADDER), encoder=vectors),
        lambda: Calibrator.load(tmp_path, llm=model(LADDER), encoder=vectors),
        lambda: Calibrator.fit([question], llm=model(LADDER), encoder=vectors),
    ):
        with pytest.raises(InvalidInput, match=wrap):
            made()


# --- rounds that nobody tried


def warnings_of(caplog) -> list[str]:
    assert {(one.name.partition(".")[0], one.levelname) for one in caplog.records} <= {
        ("ltrag_plugins", "WARNING")
    }
    return caplog.messages


@pytest.mark.parametrize(("told", "warned"), [
    ({}, []),
    ({"settings": LOOKING},
     ["up to 5 rounds", "not tried on this model", "'ltrag calibrate fit' (sgic.fit)"]),
    ({"settings": SGICSettings(rounds=1)}, ["up to 1 round after"]),
    ({"settings": SGICSettings(rounds=0)}, []),
    ({"calibration": Calibration(LOOKING, SCALE)}, []),
    ({"calibration": Calibration(SGICSettings(rounds=0), SCALE),
      "settings": SGICSettings(rounds=3)}, []),
    ({"calibration": calibration()}, []),
    ({"calibration": calibration(rounds=2), "settings": SGICSettings(rounds=2)}, []),
    ({"calibration": calibration(rounds=2), "settings": SGICSettings(rounds=1)},
     ["these are others"]),
])  # fmt: skip
def test_rounds_that_nobody_tried_are_warned_of_once_as_it_is_made(told, warned, caplog):
    caplog.set_level(logging.INFO)
    made = Calibrator(model(LADDER), **told)
    found = warnings_of(caplog)
    assert len(found) == bool(warned)
    assert all(part in found[0] for part in warned)
    made.answer(QUESTION, THREE)
    assert len(warnings_of(caplog)) == len(found)


def test_by_default_there_is_one_call_and_its_measure():
    llm = model(LADDER)
    answer = Calibrator(llm).answer(QUESTION, THREE)
    assert (answer.text, answer.uncertainty, answer.calls) == ("Fife", pytest.approx(0.8), 1)
    assert [d.uncertainty for d in answer.documents] == [None] * 3


def test_a_cut_without_rounds_is_warned_of(caplog):
    for cut in (SGICSettings(cut_to=2), SGICSettings(rounds=0, cut_to=1)):
        Calibrator(model(LADDER), settings=cut)
    said = "cut_to is of rounds, and there are none; set rounds=1 to look again"
    assert warnings_of(caplog) == [said] * 2


def test_a_score_to_refuse_above_that_looks_like_a_probability_is_warned_of(caplog):
    for limit in (0.0, 1.0, 40.0, None):
        Calibrator(model(LADDER), refuse_above=limit)
    assert warnings_of(caplog) == []
    made = Calibrator(model(LADDER), refuse_above=0.5)
    assert made.refusal.refuses(made.answer(QUESTION, THREE))
    [said] = warnings_of(caplog)
    assert said.startswith("refuse_above is a score from 0 to 100, so 0.5 refuses nearly all")
    assert "refuse_p_wrong_above" in said


def test_in_a_framework_a_use_or_a_copy_warns_no_more(caplog, tmp_path):
    made = InLangChain(model(LADDER), settings=LOOKING)
    made.invoke({"question": QUESTION, "documents": []})
    made.with_config(tags=["x"]).batch([{"question": QUESTION, "documents": []}])
    copy.copy(made)
    llama = InLlamaIndex(model(LADDER), settings=LOOKING)
    llama.get_response(QUESTION, [one.text for one in THREE])
    Calibration(LOOKING, SCALE).save(tmp_path, llm=model(LADDER))
    for room in (InLangChain, InLlamaIndex):
        room.from_pretrained(tmp_path, llm=model(LADDER))
    assert len(warnings_of(caplog)) == 2


# --- in the frameworks


def test_the_frameworks_take_the_options_of_the_calibrator():
    own = {*inspect.signature(Calibrator).parameters} - {"llm", "calibration"}
    assert {*get_type_hints(CalibratorOptions)} == own
    for room in (InLangChain, InLlamaIndex):
        parameters = inspect.signature(room.__init__).parameters
        assert "calibration" in parameters
        assert "CalibratorOptions" in str(parameters["options"].annotation)
        room(model(LADDER), refuse_above=50.0)


def test_a_calibration_by_agreement_asks_for_no_log_probabilities_when_it_is_loaded(tmp_path):
    class Strict(FakeListChatModel):
        logprobs: bool | None = None

        def _call(self, *args, **kwargs):
            assert self.logprobs is None, "this model rejects logprobs"
            return super()._call(*args, **kwargs)

    chat = Strict(responses=["Paris"])
    settings = SGICSettings(rounds=5, estimator="agreement")
    built = InLangChain(chat, settings=settings)
    Calibration(settings, ScoreScale("agreement"), None).save(tmp_path, llm=built.llm)
    again = InLangChain.from_pretrained(tmp_path, llm=chat)
    found = again.invoke({"question": "who?", "documents": [Document("Paris.")]})
    assert found["answer"] == "Paris"
    with pytest.raises(ModelFailed, match="rejects"):
        LangChainLLM(chat).generate(["?"])


@pytest.mark.parametrize("value", [
    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "who?"}]},
    [("system", "s"), ("human", "who?")],
    {"messages": [("human", "first"), ("ai", "a"), ("human", "who?")]},
])  # fmt: skip
def test_messages_may_come_in_any_form_that_langchain_takes(value):
    assert conversation_of(value).question == "who?"


def test_a_history_of_messages_is_read_and_anything_else_of_that_name_left_alone():
    turns = [HumanMessage("who keeps the bees?"), AIMessage("Ann")]
    asked = conversation_of({"question": "since when?", "history": turns})
    assert asked.history == (("human", "who keeps the bees?"), ("ai", "Ann"))
    for other in ("of Rome", ["Livy"], [1], None, {"a": "b"}):
        assert conversation_of({"question": "since when?", "history": other}).history == ()


def test_a_state_that_holds_a_resume_is_no_command():
    state = SimpleNamespace(question="who?", resume="twelve years in hives")
    assert conversation_of(state).question == "who?"


def test_what_is_no_message_or_no_number_of_passages_is_refused():
    with pytest.raises(InvalidInput, match="no messages"):
        conversation_of([{"content": "who?"}])
    for k in (0, -1):
        with pytest.raises(InvalidInput, match="k must be at least 1"):
            InLangChain(ScriptedLLM(lambda prompt: "x"), k=k)
