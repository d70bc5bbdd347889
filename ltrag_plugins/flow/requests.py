"""What a flow may yield, typed helpers to yield it, and how requests merge."""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement, Passage

_T = TypeVar("_T")


class OwnedPrompt(str):
    """A prompt that knows whose it is, for models that record each call under its owner's run.

    `run_many(..., owners=...)` makes them. Who does not look at the owner sees an equal string.
    """

    owner: Any

    def __new__(cls, text: str, owner: Any) -> Self:
        """The same text, owned."""
        prompt = super().__new__(cls, text)
        prompt.owner = owner
        return prompt


@dataclass(frozen=True, slots=True)
class Ask:
    """Reply: one `Generation` per prompt."""

    prompts: tuple[str, ...]
    settings: GenerationSettings = GenerationSettings()
    may_repeat: Callable[[], bool] | None = field(default=None, compare=False)
    """Called before these prompts are sent once more, because a call that they shared failed; a
    flow that says no gets the failure."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Reply: at most `k` passages per query, best first."""

    queries: tuple[str, ...]
    k: int


@dataclass(frozen=True, slots=True)
class Embed:
    """Reply: one row of a float32 array per text."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Reply: one `Generation` per (prompt, continuation); see `ScoringLLM`."""

    prompts: tuple[str, ...]
    continuations: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Agree:
    """Reply: one `GradientAgreement` per (prompt, continuation); see `GradientLLM`."""

    prompts: tuple[str, ...]
    continuations: tuple[str, ...]
    along: Direction
    cosine: bool = False
    layers: int = 4


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """Reply: what the function returns, alone in a list. For what may take long: on an event loop
    it runs in a thread."""

    function: Callable[[], Any]


Request = Ask | Fetch | Embed | Score | Agree | Compute
Flow = Generator[Request, Any, _T]
"""An algorithm that yields requests and returns a `_T`."""


def ask(
    *prompts: str,
    max_tokens: int = 64,
    stop: Sequence[str] = (),
    temperature: float = 0.0,
    seed: int | None = None,
    may_repeat: Callable[[], bool] | None = None,
) -> Flow[list[Generation]]:
    """Ask the model; one generation per prompt. `may_repeat`: see `Ask`."""
    settings = GenerationSettings(max_tokens, tuple(stop), temperature, seed)
    return (yield Ask(prompts, settings, may_repeat))


def fetch(*queries: str, k: int) -> Flow[list[list[Passage]]]:
    """Search; at most `k` passages per query, best first, whatever the retriever hands back."""
    found = yield Fetch(queries, k)
    return [list(passages[:k]) for passages in found]


def embed(*texts: str) -> Flow[np.ndarray]:
    """Encode; one row per text."""
    return (yield Embed(texts))


def score(prompts: Sequence[str], continuations: Sequence[str]) -> Flow[list[Generation]]:
    """How likely each continuation is after its prompt; one generation per pair.

    Raises:
        InvalidInput: there are more prompts than continuations, or fewer.
    """
    if len(prompts) != len(continuations):
        raise InvalidInput(
            f"{len(prompts)} prompts came with {len(continuations)} continuations; score() takes "
            "one continuation for each prompt"
        )
    return (yield Score(tuple(prompts), tuple(continuations)))


def agree(
    prompts: Sequence[str],
    continuations: Sequence[str],
    *,
    along: Direction,
    cosine: bool = False,
    layers: int = 4,
) -> Flow[list[GradientAgreement]]:
    """Hold each instance's gradient against the direction `along`."""
    return (yield Agree(tuple(prompts), tuple(continuations), along, cosine, layers))


def compute(function: Callable[[], _T]) -> Flow[_T]:
    """What a function returns, without holding up an event loop."""
    [found] = yield Compute(function)
    return found


_COLUMNS: Mapping[type, tuple[str, ...]] = {
    Ask: ("prompts",),
    Fetch: ("queries",),
    Embed: ("texts",),
    Score: ("prompts", "continuations"),
    Agree: ("prompts", "continuations"),
}
"""The fields of a request that have one entry for each reply."""


def items(request: Request) -> tuple[Any, ...]:
    """What the request wants a reply for, one each."""
    if isinstance(request, Compute):
        return (request.function,)
    columns = _COLUMNS.get(type(request))
    return getattr(request, columns[0]) if columns else ()


def merge(
    requests: Mapping[int, Request], batch: int | None = None
) -> Iterator[tuple[Request, list[tuple[int, int]]]]:
    """Join requests that can share a call; with each, (flow index, its share of the replies).

    Args:
        batch: most items of one joined request; one flow's request is never cut.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, request in requests.items():
        groups.setdefault(_kind(request), []).append(i)
    for group in groups.values():
        taken: list[tuple[int, int]] = []
        for i in group:
            size = len(items(requests[i]))
            if batch is not None and taken and sum(n for _, n in taken) + size > batch:
                yield _joined([requests[j] for j, _ in taken]), taken
                taken = []
            taken.append((i, size))
        yield _joined([requests[j] for j, _ in taken]), taken


def _kind(request: Request) -> Hashable:
    """Requests of equal kind can share a call."""
    match request:
        case Ask(settings=kind) | Fetch(k=kind):
            return type(request), kind
        case Embed() | Score():
            return type(request)
        case Agree():
            return Agree, id(request.along), request.cosine, request.layers
        case _:  # alone; what is no request then raises UnknownRequest into this one flow
            return object()


def _joined(parts: list[Request]) -> Request:
    first: Any = parts[0]
    if len(parts) == 1:
        return first
    changes: dict[str, Any] = {
        column: tuple(item for part in parts for item in getattr(part, column))
        for column in _COLUMNS[type(first)]
    }
    if isinstance(first, Ask):
        changes["may_repeat"] = None  # who may repeat what is asked of each part
    return replace(first, **changes)
