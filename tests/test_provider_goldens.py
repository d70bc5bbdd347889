"""Replies as providers send them, replayed through both ecosystems into calibrated answers."""

import asyncio
import json
import math
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.messages import messages_from_dict
from langchain_parts import FunctionChat
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index_parts import FunctionLLM
from openai.types.chat import ChatCompletion
from openai_server import replaying

from ltrag_plugins.errors import NoTokenProbabilities
from ltrag_plugins.flow import World, run
from ltrag_plugins.langchain import SGICCalibrator as LangChainCalibrator
from ltrag_plugins.llama_index import LlamaIndexLLM
from ltrag_plugins.llama_index import SGICCalibrator as LlamaIndexCalibrator
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.sgic import SGICSettings, calibrate
from ltrag_plugins.types import Passage

GOLDENS = Path(__file__).parent / "goldens"
BODY = json.loads((GOLDENS / "openai_chat_with_logprobs.json").read_text())
MESSAGE = json.loads((GOLDENS / "langchain_chat_openai.json").read_text())
LOGPROBS = [t["logprob"] for t in BODY["choices"][0]["logprobs"]["content"]]
UNCERTAINTY = 1 - math.prod(map(math.exp, LOGPROBS))
QUESTION = "Which beach does Dirleton Castle look out on?"
TEXTS = ["Dirleton Castle is a ruin.", "Yellowcraig is a beach."]
AGREEING = SGICSettings(estimator="agreement", samples=3, rounds=0)


def open_ai(body: dict, settings: SGICSettings):
    with replaying(body) as (url, _):
        llm = OpenAICompatibleLLM("gpt-4o-mini", base_url=url, api_key="-")
        flow = calibrate(QUESTION, [Passage(text) for text in TEXTS], settings)
        answer = run(flow, World(llm=llm))
    if settings.rounds:
        assert [d.uncertainty for d in answer.documents] == pytest.approx([UNCERTAINTY] * 2)
    yield answer.text, answer.uncertainty, answer.calls, answer.tokens


def langchain(body: dict, settings: SGICSettings):
    [message] = messages_from_dict([MESSAGE])
    told = {**message.response_metadata, "logprobs": body["choices"][0]["logprobs"]}
    chat = FunctionChat(lambda _: message.model_copy(update={"response_metadata": told}))
    calibrator = LangChainCalibrator(chat, settings=settings)
    given = {"question": QUESTION, "documents": [Document(text) for text in TEXTS]}
    for out in (calibrator.invoke(given), asyncio.run(calibrator.ainvoke(given))):
        answer = out["calibrated"]
        yield out["answer"], out["uncertainty"], answer.calls, answer.tokens
    wanted = True if settings.estimator == "product" else None
    assert {sent.get("logprobs") for sent in chat.sent} == {wanted}


def llama_index(body: dict, settings: SGICSettings):
    raw = ChatCompletion.model_validate(body)
    said = CompletionResponse(text=raw.choices[0].message.content, raw=raw)
    llm = LlamaIndexLLM(FunctionLLM(lambda _: said), logprobs=True)
    calibrator = LlamaIndexCalibrator(llm, settings=settings)
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    awaited = asyncio.run(calibrator.asynthesize(QUESTION, nodes))
    for response in (calibrator.synthesize(QUESTION, nodes), awaited):
        told = response.metadata["sgic"]
        yield str(response), told["uncertainty"], told["calls"], told["tokens"]


EACH = pytest.mark.parametrize("answered", [open_ai, langchain, llama_index])


@EACH
def test_log_probabilities_become_the_uncertainty_and_usage_the_tokens(answered):
    one_round = SGICSettings(rounds=1, certain_below=0)
    for text, uncertainty, calls, tokens in answered(BODY, one_round):
        assert text == "Yellowcraig Beach"
        assert uncertainty == pytest.approx(UNCERTAINTY)
        assert (calls, tokens) == (4, 4 * 215)


@EACH
def test_a_provider_that_keeps_them_to_itself_is_refused_or_asked_again_as_was_chosen(answered):
    [choice] = BODY["choices"]
    silent = {**BODY, "choices": [{**choice, "logprobs": None}]}
    with pytest.raises(NoTokenProbabilities, match="agreement"):
        list(answered(silent, SGICSettings()))
    for _, uncertainty, calls, _ in answered(silent, AGREEING):
        assert (uncertainty, calls) == (0.0, 4)


def test_the_langchain_message_is_that_reply():
    metadata = MESSAGE["data"]["response_metadata"]
    assert metadata["logprobs"] == BODY["choices"][0]["logprobs"]
    assert MESSAGE["data"]["content"] == BODY["choices"][0]["message"]["content"]
