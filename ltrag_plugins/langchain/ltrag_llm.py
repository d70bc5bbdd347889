"""Our models as LangChain's."""

import asyncio
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import LLMResult
from pydantic import ConfigDict

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.langchain.replies import result_of
from ltrag_plugins.llm.base import LLM, AsyncLLM
from ltrag_plugins.types import GenerationSettings

_SETTINGS = {"max_tokens", "temperature", "seed"}


class LtragLLM(BaseLLM):
    """Our `LLM` (`TransformersLLM`, `CachedLLM`, ...) as a LangChain LLM.

    Prompts go on as text, and our model wraps them in its chat template itself. A call (or
    `bind`) takes `max_tokens`, `temperature`, `seed` and `stop`. `generation_info["logprobs"]`
    has the token probabilities, where the model gives them.
    """

    llm: LLM
    """The model; keyword, as all fields."""
    max_tokens: int = 64
    """Most tokens to write, unless a call says."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @property
    def _llm_type(self) -> str:
        return "ltrag"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.llm.name}

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        return result_of(self.llm.generate(prompts, self._asked(stop, kwargs)))

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        settings = self._asked(stop, kwargs)
        if isinstance(self.llm, AsyncLLM):
            return result_of(await self.llm.agenerate(prompts, settings))
        return result_of(await asyncio.to_thread(self.llm.generate, prompts, settings))

    def _asked(self, stop: list[str] | None, kwargs: dict[str, Any]) -> GenerationSettings:
        if unknown := sorted(set(kwargs) - _SETTINGS):
            raise InvalidInput(
                f"LtragLLM was called with {unknown}; it takes max_tokens, temperature, stop, seed."
            )
        return GenerationSettings(**{"max_tokens": self.max_tokens, "stop": stop or (), **kwargs})
