"""Any LlamaIndex language model as ours, and our models as LlamaIndex's.

Token log-probabilities are read from `response.raw` first (`llm.openai_format`).
`response.logprobs` lists the likeliest tokens of each position without saying which one was
written; it is read only where the likeliest ones join to the very text that came.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.llms import generic_utils, types
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import ChatMessage, ChatResponse, CompletionResponse, CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.llm.base import LLM, AsyncLLM, checked_token, stopped
from ltrag_plugins.llm.concurrency import RequestLLM, inherits
from ltrag_plugins.llm.openai_format import best_first, field_of, logprobs_of, tokens_of
from ltrag_plugins.types import Generation, GenerationSettings, Token

_Response = CompletionResponse | ChatResponse


def _generation_of(response: _Response, model: str) -> Generation:
    said = response.message.content if isinstance(response, ChatResponse) else response.text
    text = said or ""
    usage = field_of(response.raw, "usage") or response.additional_kwargs
    return Generation(
        text=text,
        tokens=_tokens(response, text, model),
        prompt_tokens=_count(usage, "prompt_tokens", "input_tokens"),
        completion_tokens=_count(usage, "completion_tokens", "output_tokens"),
    )


def _response_of(written: Generation) -> CompletionResponse:
    """Our generation as a response, its tokens in `raw` in the shape of chat completions."""
    names = ("prompt_tokens", "completion_tokens")
    usage = {name: count for name in names if (count := getattr(written, name)) is not None}
    choice = {"text": written.text, "logprobs": logprobs_of(written.tokens)}
    raw = {"choices": [choice], "usage": usage}
    return CompletionResponse(text=written.text, raw=raw, additional_kwargs=dict(usage))


def _tokens(response: _Response, text: str, model: str) -> tuple[Token, ...] | None:
    choices = field_of(response.raw, "choices")
    logprobs = field_of(choices[0], "logprobs") if choices else None
    if logprobs is not None or not text:
        return tokens_of(logprobs, text, model)
    # `logprobs` lists the likeliest tokens of each position without saying which was written
    tops = [
        best_first((entry.token, entry.logprob) for entry in position)
        for position in response.logprobs or ()
    ]
    if not tops or not all(tops) or "".join(top[0][0] for top in tops) != text:
        return None
    return tuple(checked_token(Token(*top[0], alternatives=top), model) for top in tops)


def _count(usage: Any, *names: str) -> int | None:
    found = (field_of(usage, name) for name in names)
    return next((count for count in found if isinstance(count, int)), None)


_KEYWORDS: Mapping[str, str] = {key: key for key in ("max_tokens", "temperature", "stop", "seed")}
"""Our names for the settings of a call -> the keyword an OpenAI-like LLM takes for each."""


class LlamaIndexLLM(RequestLLM):
    """A LlamaIndex LLM, chat or completion, as our `LLM` and `AsyncLLM`.

    Settings go along with each call as keywords; the LLM's own are not changed. OpenAI-like LLMs
    understand the default keywords, Anthropic wants `{"max_tokens": "max_tokens", "stop":
    "stop_sequences"}`, and many local ones (HuggingFaceLLM, LlamaCPP) ignore them and are set up
    when they are built. Stop strings are cut off here in any case.

    Args:
        keywords: our setting -> the LLM's keyword; settings left out stay as the LLM has them.
        logprobs: sent as `logprobs=` with each call, to ask for token probabilities: True for
            OpenAI-like chat, a number for their completions; None sends nothing.
        chat: ask through `chat` rather than `complete`; None goes by the LLM's metadata.
        name: give one where class and model name do not tell two of your LLMs apart; equal names
            must mean equal answers.
        concurrency: most calls at once, over all threads and over those of an event loop. None is
            8, or 1 for an LLM without async calls of its own, which is asked in threads (most of
            those compute on this machine).
    """

    def __init__(
        self,
        llm: BaseLLM,
        *,
        keywords: Mapping[str, str] = _KEYWORDS,
        logprobs: bool | int | None = None,
        chat: bool | None = None,
        name: str | None = None,
        concurrency: int | None = None,
    ) -> None:
        self._llm = checked(llm, BaseLLM, "llm", "a LlamaIndex LLM (llama_index.core.llms.LLM)")
        if unknown := sorted(set(keywords) - set(_KEYWORDS)):
            raise InvalidInput(f"keywords has {unknown}; the settings are {[*_KEYWORDS]}.")
        self._keywords, self._logprobs, self._name = dict(keywords), logprobs, name
        self._chat = llm.metadata.is_chat_model if chat is None else chat
        # CustomLLM's own async calls run sync code on the event loop
        asked = "achat" if self._chat else "acomplete"
        self._blocking = isinstance(llm, CustomLLM) and inherits(llm, CustomLLM, asked)
        super().__init__(concurrency or (1 if self._blocking else 8))

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
        if self._keywords != dict(_KEYWORDS):
            sent = (f"{ours}={theirs}" for ours, theirs in sorted(self._keywords.items()))
            parts.append(f"keywords={','.join(sent)}")
        return ":".join(parts)

    def _ask(self, prompts: Sequence[str], settings: GenerationSettings) -> list[Generation]:
        sent = self._sent(settings)
        return self._read([self._respond(prompt, sent) for prompt in prompts], settings.stop)

    async def _aask(self, prompts: Sequence[str], settings: GenerationSettings) -> list[Generation]:
        sent = self._sent(settings)
        return self._read([await self._arespond(p, sent) for p in prompts], settings.stop)

    def _respond(self, prompt: str, sent: Mapping[str, Any]) -> _Response:
        if self._chat:
            return self._llm.chat([ChatMessage(role="user", content=prompt)], **sent)
        return self._llm.complete(prompt, **sent)

    async def _arespond(self, prompt: str, sent: Mapping[str, Any]) -> _Response:
        if self._chat:
            return await self._llm.achat([ChatMessage(role="user", content=prompt)], **sent)
        return await self._llm.acomplete(prompt, **sent)

    def _sent(self, settings: GenerationSettings) -> dict[str, Any]:
        stop = [*settings.stop] or None
        sent: dict[str, Any] = {
            word: stop if key == "stop" else getattr(settings, key)
            for key, word in self._keywords.items()
        }
        sent["logprobs"] = self._logprobs
        return {word: value for word, value in sent.items() if value is not None}

    def _read(self, replies: list[_Response], stop: Sequence[str]) -> list[Generation]:
        return [stopped(_generation_of(reply, self.name), stop) for reply in replies]


def model_of(llm: LLM | BaseLLM) -> LLM:
    """A LlamaIndex LLM wrapped, a model of ours as it is."""
    if isinstance(llm, BaseLLM):
        return LlamaIndexLLM(llm)
    wanted = "a LlamaIndex LLM or an ltrag_plugins LLM (TransformersLLM, ...)"
    return checked(llm, LLM, "llm", wanted)


class LtragLLM(CustomLLM):
    """Our `LLM` (`TransformersLLM`, `CachedLLM`, ...) as a LlamaIndex LLM.

    A completion model: prompts go on as text, and our model wraps them in its chat template
    itself. Streams come in one piece. A call takes the keywords `max_tokens`, `temperature`,
    `stop` and `seed`; token probabilities are in `raw`, in OpenAI's shape. Give a gate our
    model itself, not this one wrapped again: it answers many prompts in one call.
    """

    llm: Any = Field(exclude=True, description="The model.")
    context_window: int = Field(description="Most tokens of prompt and answer together.", gt=0)
    num_output: int = Field(description="Most tokens to write, unless a call says.", gt=0)

    def __init__(
        self, llm: LLM, *, context_window: int = 2048, num_output: int = 64, **data: Any
    ) -> None:
        checked(llm, LLM, "llm", "an ltrag_plugins LLM (TransformersLLM, embedded(), ...)")
        super().__init__(llm=llm, context_window=context_window, num_output=num_output, **data)

    @classmethod
    def class_name(cls) -> str:
        """The class's name in LlamaIndex's traces."""
        return "ltrag_llm"

    @property
    def metadata(self) -> types.LLMMetadata:
        """Context window, most tokens to write, and the model's name."""
        return types.LLMMetadata(
            context_window=self.context_window, num_output=self.num_output, model_name=self.llm.name
        )

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Continue the prompt."""
        return self._written(prompt, formatted, kwargs)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """As `complete`; a model without an async call of its own answers in a thread."""
        return await self._awritten(prompt, formatted, kwargs)

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> types.CompletionResponseGen:
        """The whole answer as one piece."""
        yield _piece(self._written(prompt, formatted, kwargs))

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> types.CompletionResponseAsyncGen:
        """As `stream_complete`."""

        async def pieces() -> types.CompletionResponseAsyncGen:
            yield _piece(await self._awritten(prompt, formatted, kwargs))

        return pieces()

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """As `chat`, awaited: CustomLLM's would run `chat` on the event loop."""
        answer = await self.acomplete(self._joined(messages), formatted=True, **kwargs)
        return generic_utils.completion_response_to_chat_response(answer)

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> types.ChatResponseAsyncGen:
        """As `stream_chat`, awaited."""
        pieces = await self.astream_complete(self._joined(messages), formatted=True, **kwargs)
        return generic_utils.astream_completion_response_to_chat_response(pieces)

    def _joined(self, messages: Sequence[ChatMessage]) -> str:
        assert self.messages_to_prompt is not None
        return self.messages_to_prompt(messages)

    def _written(self, prompt: str, formatted: bool, kwargs: dict[str, Any]) -> CompletionResponse:
        [written] = self.llm.generate(*self._asked(prompt, formatted, kwargs))
        return _response_of(written)

    async def _awritten(
        self, prompt: str, formatted: bool, kwargs: dict[str, Any]
    ) -> CompletionResponse:
        if not isinstance(self.llm, AsyncLLM):
            return await asyncio.to_thread(self._written, prompt, formatted, kwargs)
        [written] = await self.llm.agenerate(*self._asked(prompt, formatted, kwargs))
        return _response_of(written)

    def _asked(
        self, prompt: str, formatted: bool, kwargs: dict[str, Any]
    ) -> tuple[list[str], GenerationSettings]:
        if unknown := sorted(set(kwargs) - set(_KEYWORDS)):
            raise InvalidInput(
                f"LtragLLM was called with {unknown}; it takes max_tokens, temperature, stop, seed."
            )
        assert self.completion_to_prompt is not None
        asked = prompt if formatted else self.completion_to_prompt(prompt)
        return [asked], GenerationSettings(**{"max_tokens": self.num_output, **kwargs})


def _piece(response: CompletionResponse) -> CompletionResponse:
    return response.model_copy(update={"delta": response.text})
