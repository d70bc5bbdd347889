"""Any LangChain chat model or LLM as ours."""

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar, cast, final

from langchain_core.language_models import BaseLanguageModel, BaseLLM
from langchain_core.prompt_values import StringPromptValue
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.runnables.config import set_config_context

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, OwnedPrompt, World, run_many
from ltrag_plugins.langchain.names import identity, unwrapped
from ltrag_plugins.langchain.replies import generation_of, generations_of
from ltrag_plugins.langchain.settings import AskSettings, Model, Settings, set_fields
from ltrag_plugins.llm.base import LLM, stopped
from ltrag_plugins.types import Generation, GenerationSettings

_T = TypeVar("_T")


@final
class LangChainLLM:
    """Asks any `BaseChatModel` or `BaseLLM`, bound (`model.bind(...)`) or not.

    Of a bound `BaseLLM` LangChain hands on the bare text, without log-probabilities and token
    counts; bind nothing to it where these are to be read, or take a chat model.

    Prompts go through the model's own `batch` and `abatch`, so its concurrency, rate limits,
    cache and callbacks stay in force. The model itself is never changed; it is copied once for
    each combination of settings.

    Args:
        model: the chat model or LLM.
        logprobs: how many likely tokens to ask for at each position (at least 1, OpenAI gives
            at most 20); None does not ask for log-probabilities.
        settings: how the settings reach the model; the default sets declared fields on a
            copy, see `ltrag_plugins.langchain.settings`. Seeds, temperatures and token limits
            that a model has no field for are not sent.
        name: what caches and saved gates know it by. Needed for a Runnable that is no model, such
            as `model.with_fallbacks(...)`, which does not show what it is made of; equal names
            must mean equal answers.

    Raises:
        InvalidInput: `model` is no model, and has no `name`.
    """

    def __init__(
        self,
        model: Model,
        *,
        logprobs: int | None = 5,
        settings: Settings = set_fields,
        name: str | None = None,
    ) -> None:
        if not isinstance(model, Runnable):
            raise InvalidInput(
                f"LangChainLLM takes a LangChain chat model or LLM, got {model!r:.60}. "
                "For an OpenAI-compatible server without LangChain use ltrag_plugins.llm.openai."
            )
        if name is None and not isinstance(unwrapped(model)[0], BaseLanguageModel):
            raise InvalidInput(
                f"LangChainLLM takes a chat model or LLM, and {type(model).__name__} is none: wrap "
                "the model inside it, or, where it takes a prompt and gives a model's reply, say "
                "what it is called (name=...) and how settings reach it (settings=...)"
            )
        self._name = name
        self._logprobs = logprobs
        # LangChain describes every new copy for its callbacks, at a millisecond or two
        self._ready = lru_cache(maxsize=16)(partial(settings, model))

    @cached_property
    def name(self) -> str:
        """As given; else class, model name and a digest of the parameters (which are not shown)."""
        return self._name or identity(self._ready(AskSettings(logprobs=self._logprobs)))

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """One generation per prompt, in the order of the prompts; see `LLM.generate`."""
        if not prompts:
            return []
        model = self._copy(settings)
        if isinstance(model, BaseLLM):
            result = model.generate_prompt(**_llm_call(prompts, settings.stop))
            return self._ended(generations_of(result, self.name), settings.stop)
        replies = model.batch([*map(str, prompts)], _configs(prompts), **_stop(settings.stop))
        return self._ended([generation_of(reply, self.name) for reply in replies], settings.stop)

    async def agenerate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """As `generate`, with the model's own async call."""
        if not prompts:
            return []
        model = self._copy(settings)
        if isinstance(model, BaseLLM):
            result = await model.agenerate_prompt(**_llm_call(prompts, settings.stop))
            return self._ended(generations_of(result, self.name), settings.stop)
        replies = await model.abatch(
            [*map(str, prompts)], _configs(prompts), **_stop(settings.stop)
        )
        return self._ended([generation_of(reply, self.name) for reply in replies], settings.stop)

    def __repr__(self) -> str:
        return f"LangChainLLM({self.name!r})"

    def _copy(self, asked: GenerationSettings) -> Model:
        return self._ready(
            AskSettings(asked.max_tokens, asked.temperature, asked.seed, self._logprobs)
        )

    def _ended(self, generations: Sequence[Generation], stop: Sequence[str]) -> list[Generation]:
        # models that know no stop strings (fakes, pipelines) write past them
        return [stopped(generation, stop) for generation in generations]


def model_of(llm: LLM | Runnable[Any, Any], *, logprobs: bool = True) -> LLM:
    """LangChain's model wrapped, asked for log-probabilities or not; a model of ours as it is.

    Raises:
        InvalidInput: it is neither.
    """
    if isinstance(llm, Runnable):
        ours = LangChainLLM(llm) if logprobs else LangChainLLM(llm, logprobs=None)
        return cast(LLM, ours)  # its name is computed late, which the protocol does not foresee
    if not isinstance(llm, LLM):
        raise InvalidInput(
            "llm must be a LangChain chat model or LLM, or an ltrag_plugins LLM "
            f"(TransformersLLM, ...), got {type(llm).__name__} {llm!r:.60}."
        )
    return llm


def run_merged(
    flows: Sequence[Flow[_T]], world: World, configs: Sequence[RunnableConfig]
) -> list[_T | Exception]:
    """Run the flows of several runs side by side; `configs` are theirs, in order.

    LangChain hands a run's config on in a context variable, and a merged call has many parents: so
    each prompt carries its own run's config to `LangChainLLM`. Other merged requests (searches,
    embeddings) are recorded under the first run.
    """
    with set_config_context(configs[0] if configs else {}) as context:
        return context.run(lambda: run_many(flows, world, owners=configs, return_exceptions=True))


def _configs(prompts: Sequence[str]) -> list[RunnableConfig]:
    """The config under which each prompt is asked: its owner's, else that of the run around."""
    owners = [p.owner if isinstance(p, OwnedPrompt) else None for p in prompts]
    return [ensure_config(owner) for owner in owners]


def _stop(stop: Sequence[str]) -> dict[str, Any]:
    return {"stop": list(stop)} if stop else {}


def _llm_call(prompts: Sequence[str], stop: Sequence[str]) -> dict[str, Any]:
    """`BaseLLM.batch` returns bare strings; the call below it keeps the log-probabilities."""
    configs: list[RunnableConfig] = _configs(prompts)
    return {
        "prompts": [StringPromptValue(text=prompt) for prompt in prompts],
        "callbacks": [config.get("callbacks") for config in configs],
        "tags": [config.get("tags") for config in configs],
        "metadata": [config.get("metadata") for config in configs],
        "run_name": [config.get("run_name") for config in configs],
        **_stop(stop),
    }
