"""How generation settings reach a LangChain model without changing the caller's object.

LangChain has no common way. `ChatOpenAI` takes settings as call arguments and as fields,
`ChatOllama` only as fields (an unknown call argument is an error in its client),
`HuggingFacePipeline` as the call argument `pipeline_kwargs`, and fakes take none. What most
of them share: a setting is a declared field, read anew at every call. So the default,
`set_fields`, sets those fields on a copy; any other way is a function of the same kind::

    LangChainLLM(pipeline, settings=lambda model, asked: model.bind(
        pipeline_kwargs={"max_new_tokens": asked.max_tokens, "do_sample": False}))
    LangChainLLM(model, settings=lambda model, asked: model)     # send nothing but stop strings
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableBindingBase
from pydantic import BaseModel

Model = Runnable[Any, Any]


@dataclass(frozen=True, slots=True)
class AskSettings:
    """What one call asks of a model; stop strings always go as LangChain's own `stop`."""

    max_tokens: int = 64
    temperature: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    """How many likely tokens to report at each position; None asks for no log-probabilities."""


Settings = Callable[[Model, AskSettings], Model]
"""From the caller's model to a copy or a binding that carries the settings."""

MAX_TOKENS_FIELDS = ("max_tokens", "max_new_tokens", "max_output_tokens", "num_predict")
"""What models call the most tokens to write."""


def set_fields(model: Model, asked: AskSettings) -> Model:
    """A copy of the model with the settings in the fields it declares.

    A model that declares none of them (and so could not be told) comes back as it is. Inside
    a binding (`bind`, `with_config`, `with_retry`) the bound model is the one copied; what
    the caller bound stays bound, and wins where the model reads call arguments first.
    """
    if isinstance(model, RunnableBindingBase):
        return model.model_copy(update={"bound": set_fields(model.bound, asked)})
    if not isinstance(model, BaseModel):
        return model
    declared = type(model).model_fields
    wanted = _wanted(asked, chat=isinstance(model, BaseChatModel))
    update = {name: value for name, value in wanted.items() if name in declared}
    return model.model_copy(update=update) if update else model


def _wanted(asked: AskSettings, *, chat: bool) -> Mapping[str, Any]:
    wanted: dict[str, Any] = dict.fromkeys(MAX_TOKENS_FIELDS, asked.max_tokens)
    wanted["temperature"] = asked.temperature
    if asked.seed is not None:
        wanted["seed"] = asked.seed
    if asked.logprobs is not None:
        # completion models take the number itself; chat models a switch and a number
        wanted["logprobs"] = True if chat else asked.logprobs
        if chat:
            wanted["top_logprobs"] = asked.logprobs
    return wanted
