"""Many requests at once, in order: bounded, each answer handed out when it comes, and no more of
them where one after the other fails."""

import asyncio
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from time import perf_counter
from typing import TypeVar

from ltrag_plugins.errors import InvalidInput, ModelFailed, ModelUnavailable
from ltrag_plugins.types import Generation, GenerationSettings

_S = TypeVar("_S")
_T = TypeVar("_T")
_Done = Callable[[int, Generation, float], None]
_HOPELESS = 20  # failures in a row that end a run
_PASSING = (401, 403, 404, 408, 409, 429)  # of 4xx, those that are no fault of the prompt


def inherits(instance: object, base: type, method: str) -> bool:
    """Whether the object's class leaves `method` as `base` wrote it."""
    return inspect.getattr_static(type(instance), method) is inspect.getattr_static(base, method)


async def amapped(call: Callable[[_S], Awaitable[_T]], items: Sequence[_S], most: int) -> list[_T]:
    """Await `call` on every item, at most `most` at once; a failure cancels the others."""
    free = asyncio.Semaphore(most)

    async def one(item: _S) -> _T:
        async with free:
            return await call(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class RequestLLM(ABC):
    """A model that is sent each prompt in a request of its own (`_ask`, `_aask`).

    Args:
        most: requests under way at once, over all threads and over all tasks of an event loop.

    Raises:
        InvalidInput: `most` is below 1.
    """

    one_by_one: bool = True
    """Whether `generate` hands out each answer when it comes; False: one request has them all."""
    _blocking: bool = False  # there are no async requests; `agenerate` sends them from threads

    def __init__(self, most: int) -> None:
        if most < 1:
            raise InvalidInput(f"{most} requests at once are too few; it must be at least 1.")
        self._at_most, self._failed = most, 0
        self._free = threading.BoundedSemaphore(most)
        self._lanes: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    @abstractmethod
    def _ask(self, prompts: Sequence[str], settings: GenerationSettings) -> list[Generation]: ...

    @abstractmethod
    async def _aask(
        self, prompts: Sequence[str], settings: GenerationSettings
    ) -> list[Generation]: ...

    def _bound(self, prompts: Sequence[str]) -> int:
        """Most requests of this call at once."""
        return self._at_most

    def generate(
        self,
        prompts: Sequence[str],
        settings: GenerationSettings = GenerationSettings(),
        done: _Done | None = None,
    ) -> list[Generation]:
        """One generation per prompt, in the order of the prompts; see `LLM.generate`.

        Args:
            done: called with each generation when it comes: its place, itself, and its share of
                the seconds. A failure then stops no other request, and is raised at the end.

        Raises:
            ModelFailed, or what the client raises: a request failed.
            ModelUnavailable: the key was refused (401), or 20 requests in a row failed, over all
                calls. What is wrong with the prompt (other 4xx) does not count.
        """
        failures, found = list[Exception](), dict[int, list[Generation]]()
        parts = [[prompt] for prompt in prompts] if self.one_by_one else [prompts]
        threads = min(self._bound(prompts), len(parts))

        def one(i: int) -> None:
            with self._free:
                start = perf_counter()
                with self._judged(failures, done):
                    found[i] = self._ask(parts[i], settings)
                if done and i in found:
                    done(i, found[i][0], (perf_counter() - start) / threads)

        if len(parts) == 1:
            one(0)
        elif parts:
            with ThreadPoolExecutor(threads) as pool:
                # each in a copy of the context, which carries the frameworks' traces
                jobs = [pool.submit(copy_context().run, one, i) for i in range(len(parts))]
                try:
                    ended, _ = wait(jobs, return_when=FIRST_EXCEPTION)
                finally:
                    pool.shutdown(cancel_futures=True)
            for job in ended:
                job.result()
        return _whole(found, failures)

    async def agenerate(
        self,
        prompts: Sequence[str],
        settings: GenerationSettings = GenerationSettings(),
        done: _Done | None = None,
    ) -> list[Generation]:
        """As `generate`; `done` runs in a thread. Without it a failure cancels the others."""
        failures, found = list[Exception](), dict[int, list[Generation]]()
        parts = [[prompt] for prompt in prompts] if self.one_by_one else [prompts]
        most, loop = self._bound(prompts), asyncio.get_running_loop()
        if loop not in self._lanes:
            lanes = {old: lane for old, lane in self._lanes.items() if not old.is_closed()}
            self._lanes = lanes | {loop: asyncio.Semaphore(self._at_most)}
        lane = self._lanes[loop]

        def blocking(part: Sequence[str]) -> list[Generation]:
            with self._free:
                return self._ask(part, settings)

        async def one(i: int) -> None:
            async with lane:
                start = perf_counter()
                with self._judged(failures, done):
                    found[i] = await (
                        asyncio.to_thread(blocking, parts[i])
                        if self._blocking
                        else self._aask(parts[i], settings)
                    )
                if done and i in found:
                    seconds = (perf_counter() - start) / min(most, len(parts))
                    await asyncio.to_thread(done, i, found[i][0], seconds)

        await (one(0) if len(parts) == 1 else amapped(one, range(len(parts)), most))
        return _whole(found, failures)

    @contextmanager
    def _judged(self, failures: list[Exception], done: _Done | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            status = _status(error)
            self._failed += status is None or status in _PASSING or not 400 <= status < 500
            if status == 401 or self._failed >= _HOPELESS:
                ours = isinstance(error, ModelFailed)
                many = "" if status == 401 else f"{self._failed} requests in a row failed; "
                raise ModelUnavailable(
                    f"{error if ours else repr(error)}. {many}the model is not asked any more. Its "
                    "answers are kept where there is an answer cache: mend this, and run again."
                ) from ((ours and error.__cause__) or error)
            if done is None:
                raise
            failures.append(error)
        else:
            self._failed = 0


def _whole(found: dict[int, list[Generation]], failures: Sequence[Exception]) -> list[Generation]:
    if failures:
        raise failures[0]
    return [generation for i in sorted(found) for generation in found[i]]


def _status(error: BaseException) -> int | None:
    """The HTTP status that an SDK's error, or its cause, reports."""
    for one in (error, error.__cause__):
        for place in (one, getattr(one, "response", None)):
            if isinstance(status := getattr(place, "status_code", None), int):
                return status
    return None
