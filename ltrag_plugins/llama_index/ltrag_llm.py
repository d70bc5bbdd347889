"""Our models as LlamaIndex's."""

import asyncio
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.generic_utils import (
    astream_completion_response_to_chat_response,
    completion_response_to_chat_response,
)
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llama_index.checks import demand
from ltrag_plugins.llama_index.responses import response_of
from ltrag_plugins.llm.base import LLM, AsyncLLM
from ltrag_plugins.types import GenerationSettings


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
        """Wrap `llm`; `data` are the other fields of LlamaIndex's LLM class.

        Raises:
            InvalidInput: `llm` cannot generate.
        """
        demand(llm, LLM, "llm", "an ltrag_plugins LLM (TransformersLLM, embedded(), ...)")
        super().__init__(llm=llm, context_window=context_window, num_output=num_output, **data)

    @classmethod
    def class_name(cls) -> str:
        """The class's name in LlamaIndex's traces."""
        return "ltrag_llm"

    @property
    def metadata(self) -> LLMMetadata:
        """Context window, most tokens to write, and the model's name."""
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.num_output,
            model_name=self.llm.name,
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
    ) -> CompletionResponseGen:
        """The whole answer as one piece."""
        yield _piece(self._written(prompt, formatted, kwargs))

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """As `stream_complete`."""

        async def pieces() -> CompletionResponseAsyncGen:
            yield _piece(await self._awritten(prompt, formatted, kwargs))

        return pieces()

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """As `chat`, awaited: CustomLLM's would run `chat` on the event loop."""
        answer = await self.acomplete(self._joined(messages), formatted=True, **kwargs)
        return completion_response_to_chat_response(answer)

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        """As `stream_chat`, awaited."""
        pieces = await self.astream_complete(self._joined(messages), formatted=True, **kwargs)
        return astream_completion_response_to_chat_response(pieces)

    def _joined(self, messages: Sequence[ChatMessage]) -> str:
        assert self.messages_to_prompt is not None
        return self.messages_to_prompt(messages)

    def _written(self, prompt: str, formatted: bool, kwargs: dict[str, Any]) -> CompletionResponse:
        [written] = self.llm.generate(self._prompts(prompt, formatted), self._settings(kwargs))
        return response_of(written)

    async def _awritten(
        self, prompt: str, formatted: bool, kwargs: dict[str, Any]
    ) -> CompletionResponse:
        if not isinstance(self.llm, AsyncLLM):
            return await asyncio.to_thread(self._written, prompt, formatted, kwargs)
        [written] = await self.llm.agenerate(
            self._prompts(prompt, formatted), self._settings(kwargs)
        )
        return response_of(written)

    def _prompts(self, prompt: str, formatted: bool) -> list[str]:
        assert self.completion_to_prompt is not None
        return [prompt if formatted else self.completion_to_prompt(prompt)]

    def _settings(self, kwargs: dict[str, Any]) -> GenerationSettings:
        if unknown := sorted(set(kwargs) - {"max_tokens", "temperature", "stop", "seed"}):
            raise InvalidInput(
                f"LtragLLM was called with {unknown}; it takes max_tokens, temperature, stop, seed."
            )
        return GenerationSettings(**{"max_tokens": self.num_output, **kwargs})


def _piece(response: CompletionResponse) -> CompletionResponse:
    return response.model_copy(update={"delta": response.text})
