"""The three clients over llama.cpp's own server, beside the same file read by transformers."""

import asyncio
from statistics import median

import pytest
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike

from ltrag_plugins.langchain import LangChainLLM
from ltrag_plugins.llama_index import LlamaIndexLLM
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.types import GenerationSettings

PROMPTS = [
    "What is the capital of France? Answer with the name only.",
    "Name a colour.",
    "Write the number seven as a digit.",
    "Say yes.",
]
ASKED = GenerationSettings(max_tokens=12)


@pytest.fixture(scope="module", params=["ours", "langchain", "llama_index"])
def llm(request, real_server):
    chosen = {"model": "smollm2", "api_key": "none"}
    match request.param:
        case "ours":
            return OpenAICompatibleLLM("smollm2", base_url=real_server)
        case "langchain":
            return LangChainLLM(ChatOpenAI(**chosen, base_url=real_server))
        case _:
            like = OpenAILike(
                **chosen, api_base=real_server, is_chat_model=True, logprobs=True, top_logprobs=5
            )
            return LlamaIndexLLM(like, logprobs=True)


def assert_as_transformers_says(remote, smollm2):
    """Its tokens and log-probabilities are those of the same text in the same file.

    Scored, not written: of two words that are about as likely either engine may take the other.
    """
    local = smollm2.score(PROMPTS, [generation.text for generation in remote])
    pairs = [
        (theirs, ours)
        for one, other in zip(remote, local, strict=True)
        for theirs, ours in zip(one.tokens, other.tokens, strict=True)
    ]
    assert [theirs.text for theirs, _ in pairs] == [ours.text for _, ours in pairs]
    assert median(abs(theirs.logprob - ours.logprob) for theirs, ours in pairs) <= 0.05


def test_log_probabilities_are_those_of_the_same_file_read_by_transformers(llm, smollm2):
    remote = llm.generate(PROMPTS, ASKED)
    assert_as_transformers_says(remote, smollm2)
    assert all(token.alternatives for g in remote for token in g.tokens)
    assert {g.finish_reason for g in remote} <= {"stop", "length"}
    assert all(g.completion_tokens for g in remote)


def test_asynchronously_too(llm, smollm2):
    assert_as_transformers_says(asyncio.run(llm.agenerate(PROMPTS, ASKED)), smollm2)


def test_kept_answers_are_those_of_the_server(llm, tmp_path):
    cached = CachedLLM(llm, tmp_path / "answers.sqlite")
    first = cached.generate(PROMPTS[:2], ASKED)
    assert cached.generate(PROMPTS[:2], ASKED) == first
    assert (cached.hits, cached.misses) == (2, 2)
    assert [g.finish_reason for g in cached.generate(PROMPTS[:2], ASKED)] == [
        g.finish_reason for g in first
    ]
