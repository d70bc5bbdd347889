"""What prompts cost, each for itself, so that every variant adds up those that it takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from ltrag_plugins.flow import Ask, Flow
from ltrag_plugins.sgic.budget import tokens_of
from ltrag_plugins.types import Generation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spent:
    """What replies of the model cost."""

    calls: int = 0
    tokens: int | None = 0
    """Read and written; None where a reply did not say."""
    seconds: float | None = 0.0
    """Of the model, at least 0; None where no answer cache measured a reply."""

    @classmethod
    def on(cls, reply: Generation) -> "Spent":
        """What one reply cost."""
        return cls(1, tokens_of(reply), reply.seconds)

    @classmethod
    def sum(cls, parts: Iterable["Spent"]) -> "Spent":
        """All together; what is not known of one is not known of all."""
        parts = list(parts)
        tokens = [one.tokens for one in parts if one.tokens is not None]
        seconds = [one.seconds for one in parts if one.seconds is not None]
        return cls(
            sum(one.calls for one in parts),
            sum(tokens) if len(tokens) == len(parts) else None,
            sum(seconds) if len(seconds) == len(parts) else None,
        )


def metered(flow: Flow[T], spent: list[Spent]) -> Flow[T]:
    """Run a flow, and add what each reply of the model cost to `spent`, in their order."""
    try:
        request = next(flow)
        while True:
            try:
                reply = yield request
            except Exception as error:
                request = flow.throw(error)
            else:
                if isinstance(request, Ask):
                    spent.extend(map(Spent.on, reply))
                request = flow.send(reply)
    except StopIteration as done:
        return done.value
    finally:
        flow.close()
