"""What a run cost: model calls, tokens, retrievals, seconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from threading import Lock
from typing import Any, final

from ltrag_plugins.flow import Ask, Compute, Fetch, Score, Step, items
from ltrag_plugins.types import Generation


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts that add up; `+` joins the costs of two runs."""

    calls: int = 0
    """Prompts sent to the model, answered or not."""
    prompt_tokens: int | None = 0
    """None: some reply did not report them, so the sum is unknown, and stays so."""
    completion_tokens: int | None = 0
    """As `prompt_tokens`; a reply with token probabilities counts by these."""
    retrievals: int = 0
    """Queries sent to the retriever, answered or not."""
    seconds: float = 0.0
    """All waiting together, for generations that an answer cache kept that when they were computed;
    more than the wall clock where requests ran side by side."""

    @property
    def tokens(self) -> int | None:
        """Read and written; None: not known."""
        return _sum((self.prompt_tokens, self.completion_tokens))

    def __add__(self, other: "Cost") -> "Cost":
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Cost(*map(_sum, pairs))


@final
class CostCounter:
    """An observer that adds up what passes: `run(flow, world, observers=[counter])`. A call that
    raises is a call without tokens. One counter may watch many threads."""

    def __init__(self) -> None:
        self.cost: Cost = Cost()
        """So far."""
        self._lock = Lock()

    def __call__(self, step: Step) -> None:
        """Count one step."""
        sent, size, seconds = step.kind == "request", len(items(step.request)), step.seconds
        match step.request:
            case Ask() | Score() if sent:
                more = Cost(calls=size)
            case Ask() | Score():
                replies: Sequence[Generation] = step.reply or ()
                # what a cached answer cost when it was computed, it costs again
                kept = _sum(reply.seconds for reply in replies) if replies else None
                more = Cost(
                    prompt_tokens=_sum(reply.prompt_tokens for reply in replies),
                    completion_tokens=_sum(map(_written, replies)),
                    seconds=seconds if kept is None else kept,
                )
            case Fetch():
                more = Cost(retrievals=size * sent, seconds=seconds)
            case Compute():
                return
            case _:
                more = Cost(seconds=seconds)
        with self._lock:
            self.cost += more


def _written(reply: Generation) -> int | None:
    known = reply.completion_tokens
    return len(reply.tokens) if known is None and reply.tokens is not None else known


def _sum(counts: Iterable[Any]) -> Any:
    """None where one of them is not known."""
    found = list(counts)
    return None if None in found else sum(found)
