"""Many flows as one flow, their requests merged: how a method asks all labelled questions at once.

Inside a flow it is what `run_many` is outside of one.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from ltrag_plugins.flow.requests import Flow, Request, merge

T = TypeVar("T")


def together(flows: Sequence[Flow[T]]) -> Flow[list[T]]:
    """Run the flows side by side; what they return, in their order.

    Each round yields one request for each distinct setting (`flow.requests.merge`). What the model
    or retriever raises ends all of them.
    """
    done: dict[int, T] = {}
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
            for request, members in merge(now):
                reply, start = (yield request), 0
                for i, size in members:
                    resume(i, reply[start : start + size])
                    start += size
    finally:
        for flow in flows:
            flow.close()
    return [done[i] for i in range(len(flows))]
