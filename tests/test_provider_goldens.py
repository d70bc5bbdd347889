"""Replies as providers send them, replayed through both ecosystems into calibrated answers."""

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


def without_logprobs(body: dict) -> dict:
    [choice] = body["choices"]
    return {**body, "choices": [{**choice, "logprobs": None}]}


class TestOpenAI:
    def answered(self, body: dict, settings: SGICSettings):
        with replaying(body) as (url, _):
            llm = OpenAICompatibleLLM("gpt-4o-mini", base_url=url, api_key="-")
            flow = calibrate(QUESTION, [Passage(text) for text in TEXTS], settings)
            return run(flow, World(llm=llm))

    def test_log_probabilities_become_the_uncertainty_and_usage_the_tokens(self):
        answer = self.answered(BODY, SGICSettings(rounds=1, certain_below=0))
        assert answer.text == "Yellowcraig Beach"
        assert answer.uncertainty == pytest.approx(UNCERTAINTY)
        assert [d.uncertainty for d in answer.documents] == pytest.approx([UNCERTAINTY] * 2)
        assert (answer.calls, answer.tokens) == (4, 4 * 215)

    def test_a_server_that_keeps_them_to_itself_is_refused_with_the_remedy(self):
        with pytest.raises(NoTokenProbabilities, match="agreement"):
            self.answered(without_logprobs(BODY), SGICSettings())

    def test_unless_agreement_was_chosen(self):
        answer = self.answered(without_logprobs(BODY), AGREEING)
        assert (answer.uncertainty, answer.calls) == (0.0, 4)


class TestLangChain:
    given = {"question": QUESTION, "documents": [Document(text) for text in TEXTS]}  # noqa: RUF012

    def said(self, **metadata: object):
        [message] = messages_from_dict([MESSAGE])
        told = {**message.response_metadata, **metadata}
        return message.model_copy(update={"response_metadata": told})

    def test_chat_openais_log_probabilities_become_the_uncertainty(self):
        chat = FunctionChat(lambda _: self.said())
        out = LangChainCalibrator(chat, settings=SGICSettings(rounds=0)).invoke(self.given)
        assert out["answer"] == "Yellowcraig Beach"
        assert out["uncertainty"] == pytest.approx(UNCERTAINTY)
        assert out["calibrated"].tokens == 215
        assert chat.sent[0]["logprobs"] is True

    async def test_asynchronously_too(self):
        chat = FunctionChat(lambda _: self.said())
        out = await LangChainCalibrator(chat).ainvoke(self.given)
        assert out["uncertainty"] == pytest.approx(UNCERTAINTY)

    def test_a_chat_model_that_has_none_is_refused_or_asked_again_as_was_chosen(self):
        chat = FunctionChat(lambda _: self.said(logprobs=None))
        with pytest.raises(NoTokenProbabilities, match="agreement"):
            LangChainCalibrator(chat).invoke(self.given)
        out = LangChainCalibrator(chat, settings=AGREEING).invoke(self.given)
        assert (out["uncertainty"], out["calibrated"].calls) == (0.0, 4)


class TestLlamaIndex:
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]  # noqa: RUF012

    def calibrator(self, body: dict, settings: SGICSettings) -> LlamaIndexCalibrator:
        raw = ChatCompletion.model_validate(body)
        said = CompletionResponse(text=raw.choices[0].message.content, raw=raw)
        llm = LlamaIndexLLM(FunctionLLM(lambda _: said), logprobs=True)
        return LlamaIndexCalibrator(llm, settings=settings)

    def test_the_sdks_raw_reply_becomes_the_uncertainty(self):
        response = self.calibrator(BODY, SGICSettings(rounds=0)).synthesize(QUESTION, self.nodes)
        assert str(response) == "Yellowcraig Beach"
        assert response.metadata["sgic"]["uncertainty"] == pytest.approx(UNCERTAINTY)

    async def test_asynchronously_too(self):
        calibrator = self.calibrator(BODY, SGICSettings())
        response = await calibrator.asynthesize(QUESTION, self.nodes)
        assert response.metadata["sgic"]["uncertainty"] == pytest.approx(UNCERTAINTY)

    def test_a_reply_without_any_is_refused_or_asked_for_again_as_was_chosen(self):
        body = without_logprobs(BODY)
        with pytest.raises(NoTokenProbabilities, match="agreement"):
            self.calibrator(body, SGICSettings()).synthesize(QUESTION, self.nodes)
        response = self.calibrator(body, AGREEING).synthesize(QUESTION, self.nodes)
        assert response.metadata["sgic"]["uncertainty"] == 0.0
        assert response.metadata["sgic"]["calls"] == 4


def test_the_langchain_message_is_that_reply():
    metadata = MESSAGE["data"]["response_metadata"]
    assert metadata["logprobs"] == BODY["choices"][0]["logprobs"]
    assert MESSAGE["data"]["content"] == BODY["choices"][0]["message"]["content"]
