"""A server of a reasoning model, which answers 400 to log-probabilities, a temperature and stop
strings: gate and calibrator read texts by themselves, and say so once."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import sleep

import openai
import pytest
from client_parts import CLIENTS, chat_openai, openai_like
from httpx import Request, Response
from langchain_core.documents import Document
from llama_index.core.schema import NodeWithScore, TextNode
from openai_server import completion, serving

from ltrag_plugins import langchain, llama_index
from ltrag_plugins.errors import NoTokenProbabilities
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.openai_format import refused_setting
from ltrag_plugins.sgic.calibrator import Calibration, Calibrator
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import GenerationSettings, Passage, Question

ASKED, FACT = "Who wrote Emma?", "Emma is a novel by Jane Austen."


def silent(text: str) -> dict:
    """A reply without log-probabilities."""
    body = completion(text, 0.5)
    body["choices"][0]["logprobs"] = None
    return body


class Reasoning:
    """Refuses what reasoning models refuse; the rest it was sent is in `sent`."""

    def __init__(self) -> None:
        self.sent: list[dict] = []
        self.refusals: list[str] = []

    def __call__(self, sent):
        for name in ("logprobs", "top_logprobs", "temperature", "stop"):
            if sent.get(name) is not None:
                self.refusals.append(name)
                message = f"Unsupported parameter: '{name}' is not supported with this model."
                return 400, {"error": {"message": message, "param": name, "code": "unsupported"}}
        self.sent.append(sent)
        prompt = sent["messages"][-1]["content"]
        unsure = "Ulysses" in prompt and sent.get("seed", 0) % 2
        return silent("somebody" if unsure or "Emma" not in prompt else "Jane Austen")


@pytest.fixture
def server():
    reasoning = Reasoning()
    with serving(reasoning) as (reasoning.url, _):
        yield reasoning


def warnings_of(caplog, name: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == f"ltrag_plugins.{name}"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_gate_reads_texts_by_itself_and_says_so_once(client, server, caplog):
    llm = CLIENTS[client](server.url)
    books = [name for i in range(10) for name in (f"Emma {i}", f"Ulysses {i}")]
    questions = [Question(f"Who wrote {book}?", ("Jane Austen",), book) for book in books]
    gate = GECEGate.fit(questions, llm=llm, target_rate=0.5)
    assert gate.report.tier == "text"
    for decision in (gate.decide(ASKED), asyncio.run(gate.adecide(ASKED))):
        assert (decision.tier, decision.answer) == ("text", "Jane Austen")
    said = [text.split(" refuses ")[1] for text in warnings_of(caplog, "llm.openai_format")]
    assert sorted(text.split(";")[0] for text in said) == sorted({*server.refusals})


@pytest.mark.parametrize("client", CLIENTS)
def test_where_stop_strings_are_refused_the_text_is_cut_here(client, server):
    llm, cut = CLIENTS[client](server.url), GenerationSettings(stop=(" Austen",))
    [written], [awaited] = llm.generate([ASKED], cut), asyncio.run(llm.agenerate([ASKED], cut))
    assert written.text == awaited.text == "Jane"
    assert server.refusals.count("stop") == 1


@pytest.mark.parametrize("way", ["generate", "agenerate"])
@pytest.mark.parametrize("client", CLIENTS)
def test_one_temperature_that_is_too_high_leaves_lower_ones_as_they_are(client, way):
    taken, told = [], "temperature: Input should be less than or equal to 1"

    def server(sent):
        taken.append(sent.get("temperature"))
        return (400, {"error": {"message": told}}) if (taken[-1] or 0) > 1 else silent("Emma")

    async def ask(llm):
        for temperature in (0.0, 1.2, 1.5, 0.0, 0.7):
            found = getattr(llm, way)([ASKED], GenerationSettings(temperature=temperature, seed=1))
            await found if way == "agenerate" else found

    with serving(server) as (url, _):
        asyncio.run(ask(CLIENTS[client](url)))
    assert taken == [0.0, 1.2, None, None, 0.0, 0.7]


def refusal(text: str) -> openai.BadRequestError:
    reply = Response(400, request=Request("POST", "http://127.0.0.1"))
    return openai.BadRequestError(text, response=reply, body=None)


def test_stop_is_a_setting_only_where_it_is_quoted():
    assert refused_setting(refusal("'stop' is not supported"), "a model", ()) == "stop"
    assert refused_setting(refusal("the prompt 'do not stop' is too long"), "a model", ()) is None


def answered(kind: str, url: str):
    """The calibrators of one kind over this server, and how each answers from the fact."""
    if kind == "langchain":
        calibrator = langchain.SGICCalibrator(chat_openai(url))
        given = {"question": ASKED, "documents": [Document(FACT)]}
        for out in (calibrator.invoke(given), asyncio.run(calibrator.ainvoke(given))):
            yield out["answer"], out["calibrated"].estimator, out["uncertainty"]
        *_, last = calibrator.stream(given)
        yield last["answer"], last["calibrated"].estimator, last["uncertainty"]
    elif kind == "llama_index":
        calibrator = llama_index.SGICCalibrator(openai_like(url))
        nodes = [NodeWithScore(node=TextNode(text=FACT))]
        awaited = asyncio.run(calibrator.asynthesize(ASKED, nodes))
        for response in (awaited, calibrator.synthesize(ASKED, nodes)):
            told = response.metadata["sgic"]
            yield str(response), told["estimator"], told["uncertainty"]
    else:
        calibrator = Calibrator(CLIENTS["ours"](url))
        passages = (Passage(FACT),)
        many = calibrator.answer_many([Question(ASKED, passages=passages)] * 2)
        for found in (*many, asyncio.run(calibrator.aanswer(ASKED, passages))):
            yield found.text, found.estimator, found.uncertainty


def test_threads_that_are_refused_at_once_say_so_once():
    start, told = Barrier(8), []

    class Slow(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())
            sleep(0.05)

    def refused(_: int) -> str | None:
        start.wait()
        return refused_setting(
            refusal("no temperature here"), "a model that is named here alone", ()
        )

    logger, slow = logging.getLogger(refused_setting.__module__), Slow()
    logger.addHandler(slow)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert {*pool.map(refused, range(8))} == {"temperature"}
    finally:
        logger.removeHandler(slow)
    assert len(told) == 1


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_calibrator_compares_samples_by_itself_and_says_so_once(kind, server, caplog):
    found = list(answered(kind, server.url))
    assert set(found) == {("Jane Austen", "agreement", 0.0)}
    assert len(found) > 1
    [said] = [text for text in warnings_of(caplog, "sgic.calibrator") if "refuse" in text]
    assert "agreement" in said
    assert len(warnings_of(caplog, "llm.openai_format")) == len({*server.refusals})
    assert {one["seed"] for one in server.sent if "seed" in one} == {*range(SGICSettings().samples)}


@pytest.mark.parametrize("client", CLIENTS)
def test_what_was_refused_is_remembered_beside_the_kept_answers(client, server, tmp_path):
    def calibrated():
        kept = CachedLLM(CLIENTS[client](server.url), tmp_path / "answers.sqlite")
        return Calibrator(kept).answer(ASKED, [Passage(FACT)])

    first, asked = calibrated(), len(server.sent)
    assert first.estimator == "agreement"
    assert calibrated() == first
    assert len(server.sent) == asked


def test_what_was_fitted_on_token_probabilities_needs_them(server):
    fitted = Calibration(SGICSettings(), ScoreScale("product"))
    with pytest.raises(NoTokenProbabilities, match="agreement"):
        Calibrator(CLIENTS["ours"](server.url), calibration=fitted).answer(ASKED, [Passage(FACT)])


def test_a_model_that_refuses_nothing_is_not_asked_for_samples_unasked(caplog):
    caplog.set_level(logging.WARNING)
    with serving(lambda sent: silent("Jane Austen")) as (url, asked):
        with pytest.raises(NoTokenProbabilities, match="agreement"):
            Calibrator(CLIENTS["ours"](url)).answer(ASKED, [Passage(FACT)])
        assert len(asked) == 1
