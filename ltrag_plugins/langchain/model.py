"""Any LangChain chat model or LLM as ours, and our models as LangChain's.

Most of LangChain's models declare a field for each setting: `set_fields` sets those on a copy.
Another way is a function like it::

    LangChainLLM(pipeline, settings=lambda model, asked: model.bind(
        pipeline_kwargs={"max_new_tokens": asked.max_tokens, "do_sample": False}))
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Self, TypeVar, final

from langchain_core.language_models import BaseChatModel, BaseLanguageModel, BaseLLM
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.outputs import Generation as LangChainGeneration
from langchain_core.prompt_values import StringPromptValue
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import set_config_context
from pydantic import BaseModel, ConfigDict, PrivateAttr

from ltrag_plugins.errors import InvalidInput, ModelFailed, checked
from ltrag_plugins.flow import Flow, World, arun, ask, run, run_many
from ltrag_plugins.llm.base import LLM, changes_answers, fixed_arguments, fixed_digest
from ltrag_plugins.llm.concurrency import MAX_TOKENS_FIELDS, RequestLLM, seconds_of
from ltrag_plugins.llm.openai_format import (
    generation_of,
    logprobs_in,
    logprobs_of,
    text_in,
    usage_of,
)
from ltrag_plugins.types import Generation, GenerationSettings

_Model = Runnable[Any, Any]
_Stop = list[str] | None
_OPENAI = "https://api.openai.com/v1"  # where a client of OpenAI's asks by default
_NAME_FIELDS = ("model_name", "model", "model_id", "repo_id", "model_path", "deployment_name")
_REASONS = ("finish_reason", "stop_reason", "done_reason")  # OpenAI, Anthropic, Ollama


def model_name(model: object) -> str:
    """The name of the weights, where the object has one under a usual name, else ''."""
    names = (getattr(model, field, None) for field in _NAME_FIELDS)
    return next((name for name in names if isinstance(name, str) and name), "")


def _identity(model: Runnable[Any, Any]) -> str:
    """Class, model name, and a digest of what can change the answers: what LangChain calls
    identifying, other fields that were set, and bound arguments."""
    inner, bound = model, dict[str, Any]()
    while isinstance(inner, RunnableBindingBase):
        inner, bound = inner.bound, {**inner.kwargs, **bound}
    fields = getattr(type(inner), "model_fields", {})
    fields = {**fields, "stream": fields.get("streaming")}
    identifying = {
        name: value if changes_answers(name) else getattr(fields.get(name), "default", None)
        for name, value in getattr(inner, "_identifying_params", {}).items()
    }
    bound = {name: value for name, value in bound.items() if changes_answers(name)}
    known = {*identifying, *_NAME_FIELDS, *_SET_FIELDS}
    kind: Any = getattr(inner, "_llm_type", "")
    parameters = {"type": kind, "identifying": identifying, "bound": bound}
    for name, value in fixed_arguments(inner, without=known).items():
        if not (isinstance(value, dict) and value.items() <= identifying.items()):
            parameters[name] = value
    # an address that came from the environment is in no field
    address = str(getattr(getattr(inner, "root_client", None), "base_url", ""))
    if address.rstrip("/") not in {*map(_bare, parameters.values()), "", _OPENAI}:
        parameters["address"] = address
    told = ("langchain", type(inner).__name__, model_name(inner), fixed_digest(parameters))
    return ":".join(filter(None, told))


def _bare(value: object) -> str:
    return value.rstrip("/") if isinstance(value, str) else ""


def unbound(chain: Any) -> Any:
    """The Runnable itself, without what is bound to it."""
    while isinstance(chain, RunnableBindingBase):
        chain = chain.bound
    return chain


def _generation_of(reply: Any, usage: Any, model: str, asked: GenerationSettings) -> Generation:
    """Text, token log-probabilities and token counts, as far as the reply has them."""
    reply = reply.message if isinstance(reply, ChatGeneration) else reply
    if isinstance(reply, BaseMessage):
        text, info = str(reply.text), reply.response_metadata
        usage = reply.usage_metadata if isinstance(reply, AIMessage) else None
        logprobs = info.get("logprobs") or logprobs_in(reply.content)
    elif isinstance(reply, LangChainGeneration):
        text, info = reply.text, reply.generation_info or {}
        logprobs = info.get("logprobs")
    else:
        text, info, logprobs = text_in(reply), {}, None
    if text is None:
        gave = f"{model} gave {reply!r:.60}, which is no message and no text"
        raise ModelFailed(f"{gave}; let the chain end in its chat model, or in StrOutputParser().")
    reason = next(filter(None, map(info.get, _REASONS)), None)
    return generation_of(text, logprobs, usage, reason, model, asked)


def _result_of(generations: Sequence[Generation]) -> LLMResult:
    """Our generations in LangChain's form, their tokens where `LangChainLLM` finds them."""
    replies = list[list[LangChainGeneration]]()
    for generation in generations:
        logprobs = logprobs_of(generation.tokens)
        info = {"logprobs": logprobs, "finish_reason": generation.finish_reason}
        info = {name: value for name, value in info.items() if value is not None} or None
        replies.append([LangChainGeneration(text=generation.text, generation_info=info)])
    return LLMResult(generations=replies, llm_output={"token_usage": usage_of(generations)})


@dataclass(frozen=True, slots=True)
class AskSettings:
    """What one call asks of a model; stop strings always go as LangChain's own `stop`."""

    max_tokens: int = 64
    temperature: float | None = 0.0
    """None where the model's server refused it."""
    seed: int | None = None
    logprobs: int | None = None
    """How many likely tokens to report at each position; None asks for no log-probabilities."""


_SetModel = Callable[[_Model, AskSettings], _Model]
"""From the caller's model to a copy or a binding that carries the settings."""

_SET_FIELDS = (*MAX_TOKENS_FIELDS, "temperature", "seed", "logprobs", "top_logprobs")


def set_fields(model: _Model, asked: AskSettings) -> _Model:
    """A copy of the model (inside a binding, of the bound one) with the settings in the fields it
    declares; without any, itself. What the caller bound stays bound."""
    if isinstance(model, RunnableBindingBase):
        return model.model_copy(update={"bound": set_fields(model.bound, asked)})
    if not isinstance(model, BaseModel):
        return model
    wanted: dict[str, Any] = dict.fromkeys(MAX_TOKENS_FIELDS, asked.max_tokens)
    wanted |= {"temperature": asked.temperature, "seed": asked.seed, "logprobs": asked.logprobs}
    if isinstance(model, BaseChatModel):  # or a streaming handler around us hears our own calls
        wanted |= {"disable_streaming": True, "streaming": False}
    if asked.logprobs is not None and isinstance(model, BaseChatModel):
        # completion models take the number itself; chat models a switch and a number
        wanted |= {"logprobs": True, "top_logprobs": asked.logprobs or None}
    declared = type(model).model_fields
    update = {k: v for k, v in wanted.items() if k in declared and v is not None}
    return model.model_copy(update=update) if update else model


_T = TypeVar("_T")


@final
class LangChainLLM(RequestLLM):
    """Asks any `BaseChatModel` or `BaseLLM`, bound (`model.bind(...)`) or not.

    Of a bound `BaseLLM` LangChain hands on the text alone: no log-probabilities, no token counts.

    Prompts go through the model's own `batch` and `abatch` (of a `BaseLLM` all of a call, else one
    at a time), so its rate limits, cache and callbacks stay in force, and a run's own
    `max_concurrency`. A setting that its server refuses is left out from then on.
    The model's own time-out, times its tries, bounds an answer as a whole.

    Args:
        logprobs: how many likely tokens to ask for at each position (at least 1, OpenAI gives
            at most 20); None does not ask for log-probabilities.
        settings: how the settings reach the model, see `ltrag_plugins.langchain.model`.
        name: what caches and saved gates know it by; equal names must mean equal answers. Needed
            (else `InvalidInput`) where no model shows: `model.with_fallbacks(...)`.
        max_concurrency: most calls at once, over all threads and over those of an event loop.
    """

    def __init__(
        self,
        model: _Model,
        *,
        logprobs: int | None = 5,
        settings: _SetModel = set_fields,
        name: str | None = None,
        max_concurrency: int = 8,
    ) -> None:
        super().__init__(max_concurrency)
        self._seconds = seconds_of(model)
        wanted = "a LangChain chat model or LLM (none is needed for ltrag_plugins.llm.openai)"
        checked(model, Runnable, "model", wanted)
        if name is None and not isinstance(unbound(model), BaseLanguageModel):
            raise InvalidInput(
                f"LangChainLLM takes a chat model or LLM, and {type(model).__name__} is none: wrap "
                "the model inside it, or, where it takes a prompt and gives a model's reply, say "
                "what it is called (name=...) and how settings reach it (settings=...)"
            )
        self._name, self._logprobs = name, logprobs
        self.one_by_one = not isinstance(unbound(model), BaseLLM)
        # LangChain describes every new copy for its callbacks, at a millisecond or two
        self._ready = lru_cache(maxsize=16)(partial(settings, model))

    @property
    def name(self) -> str:
        """As given; else class, model name and a digest of the parameters (which are not shown)."""
        if self._name is None:
            self._name = _identity(self._ready(AskSettings(logprobs=self._logprobs)))
        return self._name

    def _bound(self, prompts: Sequence[str]) -> int:
        told = _configs(prompts[:1])[0].get("max_concurrency") if prompts else None
        return min(self._at_most, told or self._at_most)

    def _ask(
        self, prompts: Sequence[str], settings: GenerationSettings, refused: Set[str]
    ) -> list[Generation]:
        return self._read(self._call("", prompts, settings, refused), settings)

    async def _aask(
        self, prompts: Sequence[str], settings: GenerationSettings, refused: Set[str]
    ) -> list[Generation]:
        return self._read(await self._call("a", prompts, settings, refused), settings)

    def _call(
        self, way: str, prompts: Sequence[str], asked: GenerationSettings, refused: Set[str]
    ) -> Any:
        """Ask a copy of the model; `way` is "a" for the async call."""
        tops = 0 if self._logprobs and "top_logprobs" in refused else self._logprobs
        tops = None if "logprobs" in refused else tops
        temperature = None if "temperature" in refused else asked.temperature
        model = self._ready(AskSettings(asked.max_tokens, temperature, asked.seed, tops))
        stop = {"stop": [*asked.stop]} if asked.stop and "stop" not in refused else {}
        configs = _configs(prompts)
        if not isinstance(model, BaseLLM):
            return getattr(model, f"{way}batch")([*map(str, prompts)], configs, **stop)
        # `BaseLLM.batch` returns bare strings; the call below it keeps the log-probabilities
        texts = [StringPromptValue(text=prompt) for prompt in prompts]
        told = ("callbacks", "tags", "metadata", "run_name")
        parts = {name: [config.get(name) for config in configs] for name in told}
        return getattr(model, f"{way}generate_prompt")(texts, **parts, **stop)

    def _read(self, replies: Any, settings: GenerationSettings) -> list[Generation]:
        usage = None
        if isinstance(replies, LLMResult):
            # LangChain counts the tokens of the whole call
            if len(replies.generations) == 1:
                usage = (replies.llm_output or {}).get("token_usage")
            replies = [options[0] for options in replies.generations]
        return [_generation_of(reply, usage, self.name, settings) for reply in replies]


def model_of(llm: LLM | Runnable[Any, Any], *, logprobs: bool = True) -> LLM:
    """LangChain's model wrapped, asked for log-probabilities or not; a model of ours as it is."""
    if isinstance(llm, Runnable):
        return LangChainLLM(llm) if logprobs else LangChainLLM(llm, logprobs=None)
    wanted = "a LangChain chat model or LLM, or an ltrag_plugins LLM (TransformersLLM, ...)"
    return checked(llm, LLM, "llm", wanted)


def run_merged(
    flows: Sequence[Flow[_T]], world: World, configs: Sequence[RunnableConfig]
) -> list[_T | Exception]:
    """Run the flows of several runs side by side; `configs` are theirs, in order. Prompts and
    queries carry their run's config; around them is what all share, as a binding would add the
    rest of it to another run's call."""
    first = dict[str, Any](configs[0] if configs else {})
    shared: Any = {
        k: v for k, v in first.items() if all(_alike(other.get(k), v) for other in configs)
    }
    with set_config_context(shared) as context:
        return context.run(lambda: run_many(flows, world, owners=configs, return_exceptions=True))


def _alike(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # arrays in them have no one truth
        return False


def runs_of(texts: Sequence[str]) -> list[RunnableConfig]:
    """The config of each prompt's or query's run: its owner's, else that of the run around."""
    return [ensure_config(getattr(text, "owner", None)) for text in texts]


def _configs(prompts: Sequence[str]) -> list[RunnableConfig]:
    return [own_call({**config, "run_name": "ltrag_call"}) for config in runs_of(prompts)]


def own_call(config: RunnableConfig | None) -> RunnableConfig:
    """The config of a call of ours, with tags that keep it out of a graph's message stream."""
    return {**(config or {}), "tags": [*((config or {}).get("tags") or ()), "nostream", "ltrag"]}


_CALL_SETTINGS = ("max_tokens", "temperature", "seed")


class LtragLLM(BaseLLM):
    """Our `LLM` (`TransformersLLM`, `CachedLLM`, ...) as a LangChain LLM; it wraps prompts in its
    chat template itself. A call (or `bind`) takes `max_tokens`, `temperature`, `seed` and `stop`.
    Token probabilities, where there are any, are in `generation_info["logprobs"]`."""

    llm: LLM
    """The model; keyword, as all fields."""
    max_tokens: int = 64
    """Most tokens to write, unless a call says."""
    _asked: dict[str, Any] = PrivateAttr(default_factory=dict)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @property
    def _llm_type(self) -> str:
        return "ltrag"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.llm.name, "max_tokens": self.max_tokens, **self._asked}

    def generate(
        self, prompts: list[str], stop: _Stop = None, callbacks: Any = None, **kwargs: Any
    ) -> LLMResult:
        """As LangChain's own, whose cache would not tell the settings of calls apart."""
        return super(LtragLLM, self._with(kwargs)).generate(prompts, stop, callbacks, **kwargs)

    async def agenerate(
        self, prompts: list[str], stop: _Stop = None, callbacks: Any = None, **kwargs: Any
    ) -> LLMResult:
        """As `generate`."""
        asked = super(LtragLLM, self._with(kwargs)).agenerate(prompts, stop, callbacks, **kwargs)
        return await asked

    def _with(self, kwargs: dict[str, Any]) -> Self:
        """A copy that identifies itself by the settings of a call too."""
        copy = self.model_copy()
        asked = {name: kwargs.get(name) for name in _CALL_SETTINGS}
        copy._asked = {name: value for name, value in asked.items() if value is not None}
        return copy

    def _generate(
        self, prompts: list[str], stop: _Stop = None, run_manager: Any = None, **kwargs: Any
    ) -> LLMResult:
        return _result_of(run(self._asking(prompts, stop, kwargs), World(self.llm)))

    async def _agenerate(
        self, prompts: list[str], stop: _Stop = None, run_manager: Any = None, **kwargs: Any
    ) -> LLMResult:
        return _result_of(await arun(self._asking(prompts, stop, kwargs), World(self.llm)))

    def _asking(
        self, prompts: list[str], stop: _Stop, kwargs: dict[str, Any]
    ) -> Flow[list[Generation]]:
        if unknown := sorted(set(kwargs) - set(_CALL_SETTINGS)):
            takes = "it takes max_tokens, temperature, stop, seed."
            raise InvalidInput(f"LtragLLM was called with {unknown}; {takes}")
        given = {"stop": stop, **kwargs}
        given = {name: value for name, value in given.items() if value is not None}
        return ask(*prompts, **{"max_tokens": self.max_tokens, **given})
