"""A name that tells one LangChain model from another and gives no secret away."""

import hashlib
import json
from typing import Any

from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableBindingBase

_NAME_FIELDS = ("model_name", "model", "model_id", "repo_id", "model_path", "deployment_name")


def model_name(model: object) -> str:
    """The name of the weights, where the object has one under a usual name, else ''."""
    names = (getattr(model, field, None) for field in _NAME_FIELDS)
    return next((name for name in names if isinstance(name, str) and name), "")


def identity(model: Runnable[Any, Any]) -> str:
    """Class, model name, and a digest of the parameters that LangChain calls identifying.

    The digest changes with the parameters but does not show them: they may hold keys.
    """
    inner, bound = unwrapped(model)
    parameters = {
        "type": getattr(inner, "_llm_type", ""),
        "identifying": dict(getattr(inner, "_identifying_params", {})),
        "bound": bound,
    }
    # a value without a JSON form counts by its type alone: its repr may hold a memory address
    readable = json.dumps(parameters, sort_keys=True, default=lambda value: type(value).__name__)
    digest = hashlib.sha256(readable.encode()).hexdigest()[:12]
    return ":".join(filter(None, ("langchain", type(inner).__name__, model_name(inner), digest)))


def unwrapped(model: Runnable[Any, Any]) -> tuple[Runnable[Any, Any], dict[str, Any]]:
    """The model inside bindings, and what they bind to its calls."""
    bound: dict[str, Any] = {}
    while isinstance(model, RunnableBindingBase):
        bound = {**model.kwargs, **bound}
        model = model.bound
    return model, bound
