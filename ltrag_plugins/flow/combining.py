"""Flows made of flows: many side by side, or one with its requests changed."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ltrag_plugins.flow.requests import Flow, Request, merge

_T = TypeVar("_T")


def together(flows: Sequence[Flow[_T]], *, batch: int | None = 64) -> Flow[list[_T]]:
    """Run the flows side by side, as `run_many` does outside of a flow; what they return, in order.

    Requests with equal settings are merged (`flow.requests.merge`). What the model or retriever
    raises ends all of them.

    Args:
        batch: most items of one merged request, and so the most that a failure loses; None: all.
    """
    done: dict[int, _T] = {}
    waiting: dict[int, Request] = {}

    def resume(i: int, reply: Sequence[Any] | None) -> None:
        try:
            waiting[i] = flows[i].send(reply)
        except StopIteration as end:
            done[i] = end.value

    try:
        for i in range(len(flows)):
            resume(i, None)
        while waiting:
            now, waiting = waiting, {}
            for request, members in merge(now, batch):
                reply, start = (yield request), 0
                for i, size in members:
                    resume(i, reply[start : start + size])
                    start += size
    finally:
        for flow in flows:
            flow.close()
    return [done[i] for i in range(len(flows))]


def changing(flow: Flow[_T], change: Callable[[Request], Request]) -> Flow[_T]:
    """Run a flow with each of its requests changed; the replies are those to what was asked."""
    try:
        request = next(flow)
        while True:
            try:
                reply = yield change(request)
            except Exception as error:
                request = flow.throw(error)
            else:
                request = flow.send(reply)
    except StopIteration as done:
        return done.value
    finally:
        flow.close()
