"""Small honest LangChain parts: a function as a chat model or LLM, a recorder of runs."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult, Generation, LLMResult
from langchain_core.runnables import Runnable
from pydantic import Field


class FunctionChat(BaseChatModel):
    """A Python function as a chat model; notes the settings it would send at each call."""

    function: Callable[[str], Any] = Field(exclude=True)
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    model_name: str = "function"
    api_key: str = "sk-very-secret"
    sent: list[dict[str, Any]] = Field(default_factory=list, exclude=True)
    flying: list[int] = Field(default_factory=lambda: [0, 0], exclude=True)
    """Async calls in flight: now, and the most there were."""

    def __init__(self, function: Callable[[str], Any], **fields: Any) -> None:
        super().__init__(function=function, **fields)

    @property
    def _llm_type(self) -> str:
        return "function"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        fields = ("model_name", "temperature", "max_tokens", "api_key")
        return {name: getattr(self, name) for name in fields}

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self._note(stop, kwargs)
        return chat_result(self.function(messages[-1].text))

    async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
        self._note(stop, kwargs)
        self.flying[0] += 1
        self.flying[1] = max(self.flying)
        try:
            said = self.function(messages[-1].text)
            return chat_result(await said if inspect.isawaitable(said) else said)
        finally:
            self.flying[0] -= 1

    def _note(self, stop, kwargs):
        names = ("temperature", "max_tokens", "seed", "logprobs", "top_logprobs")
        set_ = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        self.sent.append({**set_, **({"stop": stop} if stop else {}), **kwargs})


class FunctionCompletion(BaseLLM):
    """A Python function as a completion model; it may return a LangChain `Generation`."""

    function: Callable[[str], Any] = Field(exclude=True)
    logprobs: int | None = None
    calls: list[list[str]] = Field(default_factory=list, exclude=True)
    sent: list[dict[str, Any]] = Field(default_factory=list, exclude=True)

    def __init__(self, function: Callable[[str], Any], **fields: Any) -> None:
        super().__init__(function=function, **fields)

    @property
    def _llm_type(self) -> str:
        return "function-completion"

    def _generate(self, prompts, stop=None, run_manager=None, **kwargs):
        self.calls.append(list(prompts))
        self.sent.append({"logprobs": self.logprobs, "stop": stop})
        said = [self.function(prompt) for prompt in prompts]
        wrapped = [s if isinstance(s, Generation) else Generation(text=s) for s in said]
        return LLMResult(generations=[[generation] for generation in wrapped])


class Runs(BaseCallbackHandler):
    """Every run that was started: name, parent, metadata, inputs, output or error."""

    def __init__(self) -> None:
        self.by_id: dict[Any, dict[str, Any]] = {}

    def named(self, name: str) -> list[dict[str, Any]]:
        return [run for run in self.by_id.values() if run["name"] == name]

    def ancestry(self, run: dict[str, Any]) -> list[str]:
        names = []
        while run is not None:
            names.append(run["name"])
            run = self.by_id.get(run["parent"])
        return names

    def on_chain_start(self, serialized, inputs, **told: Any):
        self.by_id[told["run_id"]] = {
            "name": told.get("name") or serialized["name"],
            "parent": told.get("parent_run_id"),
            "metadata": told.get("metadata") or {},
            "inputs": inputs,
        }

    on_chat_model_start = on_llm_start = on_retriever_start = on_chain_start

    def on_chain_end(self, outputs, *, run_id, **kwargs: Any):
        self.by_id[run_id]["output"] = outputs

    def on_chain_error(self, error, *, run_id, **kwargs: Any):
        self.by_id[run_id]["error"] = error


def with_logprobs(text: str, *tokens: tuple[str, float], **metadata: Any) -> AIMessage:
    """A reply as ChatOpenAI gives it."""
    content = [{"token": t, "logprob": p, "bytes": None, "top_logprobs": []} for t, p in tokens]
    logprobs = {"content": content, "refusal": None}
    return AIMessage(text, response_metadata={"logprobs": logprobs, **metadata})


async def soon(value: Any) -> Any:
    """The value, after the others had their turn."""
    await asyncio.sleep(0.01)
    return value


async def every_way(runnable: Runnable, value: Any) -> list[Any]:
    """What it gives for the value, called in each way."""
    given = [runnable.invoke(value), await runnable.ainvoke(value)]
    return [*given, *runnable.batch([value]), *await runnable.abatch([value])]


def chat_result(said: Any) -> ChatResult:
    message = said if isinstance(said, AIMessage) else AIMessage(said)
    return ChatResult(generations=[ChatGeneration(message=message)])
