"""The three drivers: alone, on an event loop, side by side."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from ltrag_plugins.flow.requests import Flow, Request, merge
from ltrag_plugins.flow.world import World

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """What an observer is told: a request was sent, or its reply came."""

    kind: Literal["request", "reply"]
    request: Request
    reply: Sequence[Any] | None = None
    seconds: float = 0.0
    """Time the model or retriever took; 0 for a request."""
    flows: tuple[int, ...] = (0,)
    """Indices of the flows whose requests were merged into this one."""


Observer = Callable[[Step], None]
"""Called before each request and after its reply; what it raises ends the run."""


def run(flow: Flow[T], world: World, *, observers: Iterable[Observer] = ()) -> T:
    """Run one flow.

    Raises:
        ModelFailed, RetrieverFailed: the model or retriever raised and the flow did not
            catch it; the original exception is the cause.
        UnknownRequest: the flow yielded something that is not a request.
    """
    observers = tuple(observers)
    with _Closing(flow):
        step = _first(flow)
        while not isinstance(step, _Done):
            try:
                reply = _observed(step, world, observers)
            except Exception as error:
                step = _throw(flow, error)
            else:
                step = _send(flow, reply)
        return step.value


async def arun(flow: Flow[T], world: World, *, observers: Iterable[Observer] = ()) -> T:
    """As `run`, on an event loop.

    A model or retriever with an async call of its own is awaited; any other runs in a
    thread. Cancelling the task closes the flow.
    """
    observers = tuple(observers)
    with _Closing(flow):
        step = _first(flow)
        while not isinstance(step, _Done):
            try:
                reply = await _aobserved(step, world, observers)
            except Exception as error:
                step = _throw(flow, error)
            else:
                step = _send(flow, reply)
        return step.value


@overload
def run_many(
    flows: Sequence[Flow[T]],
    world: World,
    *,
    observers: Iterable[Observer] = ...,
    return_exceptions: Literal[False] = ...,
) -> list[T]: ...
@overload
def run_many(
    flows: Sequence[Flow[T]],
    world: World,
    *,
    observers: Iterable[Observer] = ...,
    return_exceptions: Literal[True],
) -> list[T | Exception]: ...
def run_many(
    flows: Sequence[Flow[T]],
    world: World,
    *,
    observers: Iterable[Observer] = (),
    return_exceptions: bool = False,
) -> list[T] | list[T | Exception]:
    """Run flows side by side; requests of one round that can share a call do.

    Per round that is one model call for each distinct generation setting and one search
    for each distinct `k`. When a merged call raises, each flow in it gets the exception at
    its own `yield`.

    Args:
        return_exceptions: put a failed flow's exception in its place in the result
            instead of closing the others and raising it.
    """
    observers = tuple(observers)
    done: dict[int, T | Exception] = {}
    waiting: dict[int, Request] = {}

    def settle(i: int, resume: Callable[[], Request | _Done]) -> None:
        try:
            step = resume()
        except Exception as error:
            if not return_exceptions:
                raise
            done[i] = error
            return
        if isinstance(step, _Done):
            done[i] = step.value
        else:
            waiting[i] = step

    with _Closing(*flows):
        for i, flow in enumerate(flows):
            settle(i, lambda flow=flow: _first(flow))
        while waiting:
            now, waiting = waiting, {}
            for merged, members in merge(now):
                try:
                    replies = _observed(merged, world, observers, tuple(i for i, _ in members))
                except Exception as error:
                    for i, _ in members:
                        settle(i, lambda i=i, error=error: _throw(flows[i], error))
                    continue
                start = 0
                for i, size in members:
                    part = replies[start : start + size]
                    settle(i, lambda i=i, part=part: _send(flows[i], part))
                    start += size
        return [done[i] for i in range(len(flows))]  # type: ignore[return-value]


class _Closing:
    """Close the flows on the way out, whatever the way."""

    def __init__(self, *flows: Flow[Any]) -> None:
        self.flows = flows

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        for flow in self.flows:
            flow.close()


@dataclass(frozen=True, slots=True)
class _Done:
    value: Any


def _first(flow: Flow[Any]) -> Request | _Done:
    return _send(flow, None)


def _send(flow: Flow[Any], reply: Sequence[Any] | None) -> Request | _Done:
    try:
        return flow.send(reply)
    except StopIteration as done:
        return _Done(done.value)


def _throw(flow: Flow[Any], error: Exception) -> Request | _Done:
    try:
        return flow.throw(error)
    except StopIteration as done:
        return _Done(done.value)


def _observed(
    request: Request,
    world: World,
    observers: tuple[Observer, ...],
    flows: tuple[int, ...] = (0,),
) -> Sequence[Any]:
    _tell(observers, Step("request", request, flows=flows))
    start = time.perf_counter()
    reply = world.reply(request)
    _tell(observers, Step("reply", request, reply, time.perf_counter() - start, flows))
    return reply


async def _aobserved(
    request: Request, world: World, observers: tuple[Observer, ...]
) -> Sequence[Any]:
    _tell(observers, Step("request", request))
    start = time.perf_counter()
    reply = await world.areply(request)
    _tell(observers, Step("reply", request, reply, time.perf_counter() - start))
    return reply


def _tell(observers: tuple[Observer, ...], step: Step) -> None:
    for observer in observers:
        observer(step)
