"""Many calls at once, in order, without blocking an event loop."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def inherits(instance: object, base: type, method: str) -> bool:
    """Whether the object's class leaves `method` as `base` wrote it."""
    return inspect.getattr_static(type(instance), method) is inspect.getattr_static(base, method)


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
