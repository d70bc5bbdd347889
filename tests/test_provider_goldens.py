"""Replies as providers send them, replayed through ours and both ecosystems."""

import json
import math
from pathlib import Path

import pytest
from langchain_core.messages import messages_from_dict
from llama_index.core.base.llms.types import CompletionResponse
from openai.types.chat import ChatCompletion

from ltrag_plugins.errors import NoTokenProbabilities
from ltrag_plugins.llama_index import LlamaIndexLLM
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.sgic import Calibrator, SGICSettings
from ltrag_plugins.types import Passage
from tests.framework_parts import LangChain, LlamaIndex, told_of
from tests.langchain_parts import FunctionChat
from tests.llama_index_parts import FunctionLLM
from tests.openai_server import replaying

GOLDENS = Path(__file__).parent / "goldens"
BODY = json.loads((GOLDENS / "openai_chat_with_logprobs.json").read_text())
MESSAGE = json.loads((GOLDENS / "langchain_chat_openai.json").read_text())
[CHOICE] = BODY["choices"]
SILENT = {**BODY, "choices": [{**CHOICE, "logprobs": None}]}
UNCERTAINTY = 1 - math.exp(sum(t["logprob"] for t in CHOICE["logprobs"]["content"]))
QUESTION = "Which beach does Dirleton Castle look out on?"
PASSAGES = [Passage(t, t) for t in ("Dirleton Castle is a ruin.", "Yellowcraig is a beach.")]


async def ours(body: dict, settings: SGICSettings):
    with replaying(body) as (url, _):
        llm = OpenAICompatibleLLM("gpt-4o-mini", base_url=url, api_key="-")
        yield told_of(Calibrator(llm, settings=settings).answer(QUESTION, PASSAGES))


async def langchains(body: dict, settings: SGICSettings):
    [message] = messages_from_dict([MESSAGE])
    told = {**message.response_metadata, "logprobs": body["choices"][0]["logprobs"]}
    chat = FunctionChat(lambda _: message.model_copy(update={"response_metadata": told}))
    calibrator = LangChain.room.SGICCalibrator(chat, settings=settings)
    for way in ("invoke", "ainvoke"):
        yield LangChain.told(await LangChain.called(calibrator, way, QUESTION, PASSAGES))
    assert chat.sent[0].get("logprobs", False) is (settings.estimator == "product")


async def llama_indexes(body: dict, settings: SGICSettings):
    raw = ChatCompletion.model_validate(body)
    said = CompletionResponse(text=raw.choices[0].message.content, raw=raw)
    llm = LlamaIndexLLM(FunctionLLM(lambda _: said), logprobs=True)
    calibrator = LlamaIndex.room.SGICCalibrator(llm, settings=settings)
    for way in ("synthesize", "asynthesize"):
        yield LlamaIndex.told(await LlamaIndex.called(calibrator, way, QUESTION, PASSAGES))


@pytest.mark.parametrize("answers", [ours, langchains, llama_indexes])
class TestTheReply:
    async def test_its_log_probabilities_become_the_uncertainty_and_its_usage_the_tokens(
        self, answers
    ):
        async for told in answers(BODY, SGICSettings(rounds=1, certain_below=0)):
            assert told["said"] == "Yellowcraig Beach"
            assert told["uncertainty"] == pytest.approx(UNCERTAINTY)
            assert [u for _, _, u in told["documents"]] == pytest.approx([UNCERTAINTY] * 2)
            assert (told["calls"], told["tokens"]) == (4, 4 * 215)

    async def test_without_any_it_is_refused_or_asked_for_again_as_was_chosen(self, answers):
        with pytest.raises(NoTokenProbabilities, match="estimator='agreement'"):
            await anext(answers(SILENT, SGICSettings(rounds=5)))
        agreeing = SGICSettings(estimator="agreement", samples=3, rounds=0)
        async for told in answers(SILENT, agreeing):
            assert (told["uncertainty"], told["calls"]) == (0.0, 4)


def test_the_langchain_message_is_that_reply():
    assert MESSAGE["data"]["response_metadata"]["logprobs"] == CHOICE["logprobs"]
    assert MESSAGE["data"]["content"] == CHOICE["message"]["content"]
