"""The three clients of an OpenAI-compatible server: ours, LangChain's and LlamaIndex's."""

from collections.abc import Callable
from typing import Any

from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike

from ltrag_plugins.langchain import LangChainLLM
from ltrag_plugins.llama_index import LlamaIndexLLM
from ltrag_plugins.llm.openai import OpenAICompatibleLLM

PLAIN = {"model": "m", "api_key": "k", "max_retries": 0}


def ours(url: str, **more: Any) -> OpenAICompatibleLLM:
    return OpenAICompatibleLLM(**PLAIN | {"base_url": url} | more)


def chat_openai(url: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(**PLAIN | {"base_url": url} | more)


def openai_like(url: str, **more: Any) -> OpenAILike:
    return OpenAILike(**PLAIN | {"api_base": url, "is_chat_model": True} | more)


CLIENTS: dict[str, Callable[..., Any]] = {
    "ours": ours,
    "langchain": lambda url, **more: LangChainLLM(chat_openai(url, **more)),
    "llama_index": lambda url, **more: LlamaIndexLLM(openai_like(url, **more)),
}
