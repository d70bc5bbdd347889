"""What an uncertainty must not be taken from: echoes, the empty search, samples that are none."""

import math
import threading

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel

from ltrag_plugins.calibration import fit_calibrator
from ltrag_plugins.errors import InvalidInput, ModelFailed
from ltrag_plugins.flow import World, arun
from ltrag_plugins.langchain import LangChainLLM, SGICCalibrator
from ltrag_plugins.langchain.component import conversation_of
from ltrag_plugins.llama_index import SGICCalibrator as LlamaSGICCalibrator
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import Calibration, PromptTemplates, ScoreScale, SGICSettings, calibrate
from ltrag_plugins.sgic.calibrator import Refusal
from ltrag_plugins.sgic.scale import WrongnessCalibration
from ltrag_plugins.types import Generation, Token
from ltrag_plugins.uncertainty import estimate
from tests.sgic_parts import QUESTION, THREE, answered, model, said


def spelled(*pieces: tuple[str, float]) -> Generation:
    tokens = tuple(Token(text, math.log(p)) for text, p in pieces)
    return Generation("".join(text for text, _ in pieces), tokens, 7, len(tokens))


ECHO = spelled(
    ("Round", 0.5), (" 1", 0.5), (":", 0.9), (" Paris", 0.99), (" (Uncertainty", 0.5),
    (" Score:", 0.9), (" 37", 0.05), (")", 0.9),
)  # fmt: skip


def test_an_echo_counts_neither_for_nor_against_the_answer_in_it():
    answer = answered(model([said("London", 0.4), ECHO]), settings=SGICSettings(rounds=1))
    assert answer.trace[1].uncertainty == pytest.approx(0.01)
    assert (answer.text, answer.uncertainty) == ("Paris", pytest.approx(0.01))
    assert answer.trace[1].generation == ECHO  # what was said stays to be seen


def test_an_echo_is_told_from_an_answer_that_stands_in_it_too():
    echo = spelled(("Round", 0.5), (" 2", 0.5), (":", 0.9), (" 2", 0.99), (" (Uncertainty", 0.5),
                   (" Score:", 0.9), (" 2", 0.05), (")", 0.9))  # fmt: skip
    own = PromptTemplates().without_echo(echo)
    assert (own.text, own.tokens) == ("2", (echo.tokens or ())[3:4])


def test_an_echo_makes_no_agreement():
    """Six cities in one frame share the frame alone."""
    cities = ["Paris", "Rome", "Oslo", "Bern", "Riga", "Kiev"]
    framed = [f"Round 1: {city} (Uncertainty Score: 37)" for city in cities]
    replies = iter([said("London"), *map(said, ["A", "B", "C", "D", "E"]), *map(said, framed)])
    llm = ScriptedLLM(lambda prompt: said("x") if "[2]" not in prompt else next(replies))
    settings = SGICSettings(rounds=1, estimator="agreement", documents="none")
    assert answered(llm, settings=settings).trace[1].uncertainty == 1.0


def test_without_an_echo_all_tokens_count():
    plain = spelled((" Paris", 0.9), ("\n", 0.5))
    assert PromptTemplates().without_echo(plain) is plain
    assert estimate(PromptTemplates().without_echo(ECHO)) == pytest.approx(0.01)


def test_brackets_alone_are_the_answers_own():
    templates = PromptTemplates(score=" ({score})")
    assert templates.without_echo(said("The Matrix (1999)")).text == "The Matrix (1999)"


def test_the_first_answer_has_seen_no_form_to_repeat():
    text = "Paris (Uncertainty Score: 9)"
    assert answered(model([said(text, 0.9)])).trace[0].text == text


def certain() -> WrongnessCalibration:
    """Fitted on answers that are right where they are likely."""
    scale, likely = ScoreScale("product"), [0.05 + 0.045 * i for i in range(20)]
    answers = [answered(model([said("a", p)]), scale=scale) for p in likely]
    scores = [answer.score for answer in answers]
    return WrongnessCalibration.fit(scores, [p < 0.5 for p in likely], scale=scale)


def test_no_probability_is_given_for_what_none_was_fitted_on():
    told = {"wrongness": certain(), "scale": ScoreScale("product")}
    closed = answered(model([said("Paris", 0.999)]), (), **told)
    assert closed.p_wrong is None
    assert any("without documents" in note for note in closed.notes)
    assert Refusal(refuse_p_wrong_above=0.5).refuses(closed)
    assert not Refusal(refuse_above=99.0).refuses(closed)
    read = answered(model([said("Paris", 0.999)]), **told)
    assert read.p_wrong is not None
    assert not Refusal(refuse_p_wrong_above=0.5).refuses(read)


def test_samples_that_are_all_the_answer_are_remarked_on():
    settings = SGICSettings(estimator="agreement")
    same = answered(ScriptedLLM(lambda prompt: "Paris, wrongly"), settings=settings)
    assert same.uncertainty == 0.0
    assert any("does not heed the temperature" in note for note in same.notes)
    replies = iter([said("Paris"), *map(said, ["Paris", "Rome", "Paris", "Paris", "Paris"])])
    other = answered(ScriptedLLM(lambda prompt: next(replies, said("x"))), settings=settings)
    assert not any("temperature" in note for note in other.notes)


@pytest.mark.parametrize("room", [SGICCalibrator, LlamaSGICCalibrator])
@pytest.mark.parametrize("fits", [False, True])
def test_a_probability_that_was_fitted_for_other_settings_is_remarked_on(room, fits, caplog):
    wrongness, settings = certain(), SGICSettings(rounds=2)
    calibration = Calibration(settings, wrongness.scale, wrongness)
    llm = ScriptedLLM(lambda _: said("a"))
    room(llm, settings=SGICSettings(rounds=2 if fits else 1), calibration=calibration)
    room(llm, calibration=calibration)
    assert ["other settings" in m or "others" in m for m in caplog.messages] == [True] * (not fits)


@pytest.mark.parametrize(("most", "calls"), [(1, 5), (2, 5), (3, 1), (9, 1)])
def test_a_cut_that_keeps_all_documents_asks_nothing_twice(most, calls):
    settings = SGICSettings(rounds=1, earlier="none", documents="none", cut_to=most)
    llm = model([said("Paris", 0.3)])
    answer = answered(llm, settings=settings)
    assert (len(llm.prompts), answer.calls) == (calls, calls)
    assert llm.prompts.count(llm.prompts[0]) == 1


@pytest.mark.parametrize("room", [SGICCalibrator, LlamaSGICCalibrator])
@pytest.mark.parametrize("source", ["encoder", "relevance", "oracle"])
def test_a_source_of_scores_that_is_not_there_is_refused_at_once(room, source):
    with pytest.raises(InvalidInput, match=f"source='{source}' needs|this needs {source}="):
        room(ScriptedLLM(lambda prompt: "x"), settings=SGICSettings(source=source))


def test_a_calibration_by_agreement_asks_for_no_log_probabilities_when_it_is_loaded(tmp_path):
    class Strict(FakeListChatModel):
        logprobs: bool | None = None

        def _call(self, *args, **kwargs):
            assert self.logprobs is None, "this model rejects logprobs"
            return super()._call(*args, **kwargs)

    chat = Strict(responses=["Paris"])
    settings = SGICSettings(estimator="agreement")
    built = SGICCalibrator(chat, settings=settings)
    Calibration(settings, ScoreScale("agreement"), None).save(tmp_path, llm=built.llm)
    again = SGICCalibrator.from_pretrained(tmp_path, llm=chat)
    found = again.invoke({"question": "who?", "documents": [Document("Paris.")]})
    assert found["answer"] == "Paris"
    with pytest.raises(ModelFailed, match="rejects"):
        LangChainLLM(chat).generate(["?"])


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "who?"}]},
        [("system", "s"), ("human", "who?")],
        {"messages": [("human", "first"), ("ai", "a"), ("human", "who?")]},
    ],
)
def test_messages_may_come_in_any_form_that_langchain_takes(value):
    assert conversation_of(value).question == "who?"


def test_what_is_no_message_is_refused():
    with pytest.raises(InvalidInput, match="no messages"):
        conversation_of([{"content": "who?"}])


@pytest.mark.parametrize("k", [0, -1])
def test_fewer_than_one_passage_is_no_number_of_passages(k):
    with pytest.raises(InvalidInput, match="k must be at least 1"):
        SGICCalibrator(ScriptedLLM(lambda prompt: "x"), k=k)


def test_an_unknown_calibration_is_refused():
    with pytest.raises(InvalidInput, match=r"no calibration 'isotonik'.*platt, isotonic"):
        fit_calibrator(np.array([0.1, 0.9]), np.array([0, 1]), "isotonik")  # pyright: ignore


def test_disagreement_is_of_the_answers_alone():
    assert estimate(said("Paris"), "agreement", [said("Paris"), said("Rome")]) == 0.5


async def test_a_relevance_function_does_not_hold_up_an_event_loop():
    """It may be a cross-encoder: it runs in a thread of its own, where questions run one by one."""
    threads = []

    def relevance(question, passages):
        threads.append(threading.current_thread())
        return [float(len(passage.text)) for passage in passages]

    settings, llm = SGICSettings(rounds=1, source="relevance"), model([said("a", 0.3)])
    found = await arun(calibrate(QUESTION, THREE, settings, relevance=relevance), World(llm=llm))
    assert found == answered(llm, settings=settings, relevance=relevance)
    there, here = threads
    assert there is not threading.main_thread()
    assert here is threading.main_thread()
