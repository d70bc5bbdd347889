"""Which run each prompt of a merged call belongs to.

LangChain hands a run's config to the calls inside it by a context variable. A call merged
from many questions has as many parents, so each prompt gets the config of its own question.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TypeVar

from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import set_config_context

from ltrag_plugins.flow import Ask, Observer, Step

T = TypeVar("T")

_owners: ContextVar[dict[str, list[RunnableConfig]] | None] = ContextVar("_owners", default=None)


def configs_for(prompts: Sequence[str]) -> list[RunnableConfig]:
    """The config under which each prompt is to be asked."""
    owners = _owners.get() or {}
    return [ensure_config(_next(owners.get(prompt))) for prompt in prompts]


def merged(call: Callable[[Observer], T], configs: Sequence[RunnableConfig]) -> T:
    """Make a call that merges the flows of several runs; `configs` are theirs, in order.

    The call must pass the observer it is given on to the driver of the flows. What cannot be
    told apart is recorded under the first run.
    """
    with set_config_context(configs[0] if configs else {}) as context:
        return context.run(call, _observer(configs))


def _observer(configs: Sequence[RunnableConfig]) -> Observer:
    def observe(step: Step) -> None:
        if step.kind == "reply" or not isinstance(step.request, Ask) or step.shares is None:
            return
        owners: dict[str, list[RunnableConfig]] = {}
        asked = iter(step.request.prompts)
        for flow, share in zip(step.flows, step.shares, strict=True):
            for _ in range(share):
                owners.setdefault(next(asked), []).append(configs[flow])
        _owners.set(owners)

    return observe


def _next(owners: list[RunnableConfig] | None) -> RunnableConfig | None:
    if not owners:
        return None
    # one prompt asked for two questions: each its own; asked once more: the last one's
    return owners.pop(0) if len(owners) > 1 else owners[0]
