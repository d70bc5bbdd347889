"""Any LlamaIndex language model as ours."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms import CustomLLM

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llama_index.checks import demand
from ltrag_plugins.llama_index.concurrency import amapped, in_pool, inherits, mapped
from ltrag_plugins.llama_index.responses import Response, generation_of, text_of
from ltrag_plugins.llm.base import stopped
from ltrag_plugins.types import Generation, GenerationSettings

KEYWORDS: Mapping[str, str] = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "stop": "stop",
    "seed": "seed",
}
"""Our names for the settings of a call -> the keyword an OpenAI-like LLM takes for each."""


class LlamaIndexLLM:
    """A LlamaIndex LLM, chat or completion, as our `LLM` and `AsyncLLM`.

    Settings go along with each call as keywords; the LLM's own are not changed. Which
    keywords are understood differs by class: OpenAI-like ones take the default, Anthropic
    wants `{"max_tokens": "max_tokens", "stop": "stop_sequences"}`, and many local ones
    (HuggingFaceLLM, LlamaCPP) ignore keywords and are set up when they are built. A setting
    that `keywords` leaves out stays as the LLM has it; stop strings are cut off here in any
    case.
    """

    def __init__(
        self,
        llm: BaseLLM,
        *,
        keywords: Mapping[str, str] = KEYWORDS,
        logprobs: bool | int | None = None,
        chat: bool | None = None,
        name: str | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Wrap `llm`.

        Args:
            keywords: our setting -> the LLM's keyword, for the settings to send.
            logprobs: sent as `logprobs=` with each call, to ask for token probabilities:
                True for OpenAI-like chat, a number for their completions; None sends
                nothing.
            chat: ask through `chat` rather than `complete`; None goes by the LLM's metadata.
            name: give one where class and model name do not tell two of your LLMs apart;
                equal names must mean equal answers.
            concurrency: most calls at once: over all callers for calls in threads, within
                one `agenerate` for async ones. None is 8, or 1 for an LLM without async
                calls of its own (most of those compute on this machine).

        Raises:
            InvalidInput: `llm` is no LlamaIndex LLM, or `keywords` has an unknown setting.
        """
        demand(llm, BaseLLM, "llm", "a LlamaIndex LLM (llama_index.core.llms.LLM)")
        if unknown := sorted(set(keywords) - set(KEYWORDS)):
            raise InvalidInput(f"keywords has {unknown}; the settings are {[*KEYWORDS]}.")
        self._llm = llm
        self._keywords = dict(keywords)
        self._logprobs = logprobs
        self._chat = llm.metadata.is_chat_model if chat is None else chat
        self._name = name
        self._sync_only = has_no_async(llm, self._chat)
        self._most = concurrency or (1 if self._sync_only else 8)
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="ltrag-llm")

    @property
    def name(self) -> str:
        """The LLM's class and model name, and what is sent otherwise than by default; or as given.

        Temperature, token limit and the like go with each call, and are no part of it.
        """
        if self._name:
            return self._name
        parts = [f"{type(self._llm).__name__}:{self._llm.metadata.model_name}"]
        if self._logprobs is not None:
            parts.append(f"logprobs={self._logprobs}")
        if self._chat != self._llm.metadata.is_chat_model:
            parts.append("chat" if self._chat else "complete")
        if self._keywords != dict(KEYWORDS):
            sent = (f"{ours}={theirs}" for ours, theirs in sorted(self._keywords.items()))
            parts.append(f"keywords={','.join(sent)}")
        return ":".join(parts)

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """One generation per prompt, in order; see `LLM.generate`."""
        sent = self._sent(settings)
        call = partial(respond, self._llm, chat=self._chat, **sent)
        return self._read(mapped(call, prompts, self._pool), settings.stop)

    async def agenerate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """As `generate`; an LLM without async calls of its own answers in threads."""
        sent = self._sent(settings)
        if self._sync_only:
            call = partial(respond, self._llm, chat=self._chat, **sent)
            acall = partial(in_pool, call, pool=self._pool)
        else:
            acall = partial(arespond, self._llm, chat=self._chat, **sent)
        return self._read(await amapped(acall, prompts, self._most), settings.stop)

    def _sent(self, settings: GenerationSettings) -> dict[str, Any]:
        values: dict[str, Any] = {"max_tokens": settings.max_tokens}
        values["temperature"] = settings.temperature
        values |= {"stop": list(settings.stop)} if settings.stop else {}
        values |= {"seed": settings.seed} if settings.seed is not None else {}
        sent = {word: values[key] for key, word in self._keywords.items() if key in values}
        return sent if self._logprobs is None else sent | {"logprobs": self._logprobs}

    def _read(self, replies: list[Response], stop: Sequence[str]) -> list[Generation]:
        return [stopped(generation_of(reply, self.name), stop) for reply in replies]


def respond(llm: BaseLLM, prompt: str, *, chat: bool, **sent: Any) -> Response:
    """Ask once, through `chat` or `complete`."""
    if chat:
        return llm.chat([ChatMessage(role="user", content=prompt)], **sent)
    return llm.complete(prompt, **sent)


async def arespond(llm: BaseLLM, prompt: str, *, chat: bool, **sent: Any) -> Response:
    """Ask once, through `achat` or `acomplete`."""
    if chat:
        return await llm.achat([ChatMessage(role="user", content=prompt)], **sent)
    return await llm.acomplete(prompt, **sent)


def has_no_async(llm: BaseLLM, chat: bool) -> bool:
    """Whether the LLM's async call is CustomLLM's, which runs sync code on the event loop."""
    asked = "achat" if chat else "acomplete"
    return isinstance(llm, CustomLLM) and inherits(llm, CustomLLM, asked)


def free_text(llm: BaseLLM, prompt: str) -> str:
    """The LLM's answer under its own settings."""
    return text_of(respond(llm, prompt, chat=llm.metadata.is_chat_model))


async def afree_text(llm: BaseLLM, prompt: str) -> str:
    """As `free_text`, never blocking the event loop."""
    chat = llm.metadata.is_chat_model
    if has_no_async(llm, chat):
        return await asyncio.to_thread(free_text, llm, prompt)
    return text_of(await arespond(llm, prompt, chat=chat))
