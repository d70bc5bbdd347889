"""Many calls at once, in order, without blocking an event loop.

Refuse a wrong object where it is handed in, not where it first fails.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from typing import TypeVar

from ltrag_plugins.errors import InvalidInput

S = TypeVar("S")
T = TypeVar("T")


def inherits(instance: object, base: type, method: str) -> bool:
    """Whether the object's class leaves `method` as `base` wrote it."""
    return inspect.getattr_static(type(instance), method) is inspect.getattr_static(base, method)


def mapped(call: Callable[[S], T], items: Sequence[S], pool: Executor) -> list[T]:
    """`call` on every item in the pool's threads, each in a copy of the caller's context.

    The context carries LlamaIndex's active span, so that events keep their parent. After a
    failure what has not begun is not begun.
    """
    futures = [pool.submit(copy_context().run, call, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


async def amapped(call: Callable[[S], Awaitable[T]], items: Sequence[S], most: int) -> list[T]:
    """Await `call` on every item, at most `most` at once; a failure cancels the others."""
    free = asyncio.Semaphore(most)

    async def one(item: S) -> T:
        async with free:
            return await call(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def in_pool(call: Callable[[S], T], item: S, pool: Executor) -> T:
    """As `asyncio.to_thread`, in the given pool."""
    loop = asyncio.get_running_loop()
    context = copy_context()
    return await loop.run_in_executor(pool, lambda: context.run(call, item))


def demand(value: object, kind: type | tuple[type, ...], name: str, wanted: str) -> None:
    """Raise InvalidInput unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be {wanted}, got {type(value).__name__} {value!r:.60}.")
