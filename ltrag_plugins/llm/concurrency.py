"""Many requests at once, bounded, each answer handed out when it comes; none after many failed."""

import asyncio
import inspect
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from numbers import Integral
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from ltrag_plugins import errors
from ltrag_plugins.errors import InvalidInput, LtragError, ModelUnavailable, status_of
from ltrag_plugins.llm.base import Shared, checked_prompts
from ltrag_plugins.llm.openai_format import refused_setting
from ltrag_plugins.types import Generation, GenerationSettings


class _Part(NamedTuple):
    """What one request asks."""

    which: Sequence[int]
    """The places of its prompts in the call."""
    prompts: Sequence[str]
    settings: GenerationSettings


_S = TypeVar("_S")
_T = TypeVar("_T")
_Done = Callable[[int, Generation, float], None]
_Found = dict[int, list[Generation] | Exception]
_HOPELESS = 20  # failures in a row that end a run
_ROUNDS = 4  # of an event loop, in which an HTTP client sends a request
_RETRIES = 2  # of OpenAI's client, unless it is told
MAX_TOKENS_FIELDS = ("max_tokens", "max_new_tokens", "max_output_tokens", "num_predict")
"""What the models of frameworks call the most tokens to write."""
PASSING = (401, 402, 403, 404, 405, 408, 409, 429)
"""Of the statuses 4xx those that are no fault of the prompt."""


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


def seconds_of(model: object) -> float:
    """What the time-out of a framework's model allows for all its tries together."""
    limits = (getattr(model, name, None) for name in ("request_timeout", "timeout"))
    limit = next((one for one in limits if isinstance(one, int | float) and one), math.inf)
    retries = getattr(model, "max_retries", 0)
    waits = getattr(model, "rate_limiter", None) is not None
    return math.inf if waits else limit * (1 + (_RETRIES if retries is None else retries))


class _Lane(asyncio.Semaphore):
    """A bound on requests that lets in one after the other. Replies that come at once would else be
    read side by side, all of the next requests be sent after the last one, and so stay in step."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._turn = asyncio.Lock()

    async def __aexit__(self, *failure: object) -> None:
        try:
            await self._turn.acquire()
        finally:
            self.release()
        try:
            for _ in range(_ROUNDS if self.locked() else 0):
                await asyncio.sleep(0)
        finally:
            self._turn.release()


class RequestLLM(Shared, ABC):
    """A model that is sent each prompt in a request of its own (`_ask`, `_aask`). Settings that it
    refuses (`refused_setting`) are left out from then on. `most` requests, at least 1 (or
    `InvalidInput` is raised), are under way at once, over all threads and all of a loop's tasks."""

    one_by_one: bool = True
    """False: one request has all prompts, and no answer comes before the others."""
    _blocking: bool = False  # there are no async requests; `agenerate` sends them from threads

    def __init__(self, most: int) -> None:
        if not isinstance(most, Integral) or most < 1:
            wanted = "must be a whole number, at least 1"
            raise InvalidInput(f"how many requests run at once {wanted}, got {most!r}.")
        self._at_most, self._failed = most, 0
        self.refused: Set[str] = frozenset()
        """Settings that its server refuses, as far as it was asked."""
        self._too_hot = math.inf  # least temperature that was refused, where a lower one may not be
        self._free = threading.BoundedSemaphore(most)
        self._seconds: float = math.inf  # for an answer as a whole
        self._lanes: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    @property
    @abstractmethod
    def name(self) -> str:
        """See `LLM.name`."""

    @abstractmethod
    def _ask(
        self, prompts: Sequence[str], settings: GenerationSettings, refused: Set[str]
    ) -> list[Generation]:
        """Send one prompt (all, if not `one_by_one`) once, without the settings in `refused`."""

    @abstractmethod
    async def _aask(
        self, prompts: Sequence[str], settings: GenerationSettings, refused: Set[str]
    ) -> list[Generation]: ...

    def _bound(self, prompts: Sequence[str]) -> int:
        """Most requests of this call at once."""
        return self._at_most

    def _named(self, error: Exception) -> Exception:
        """An error of this package for what a request raised."""
        if isinstance(error, TimeoutError) and self._seconds < math.inf:
            said = f"{self.name} sent no whole answer within {self._seconds:g} s; raise timeout="
            return errors.ModelFailed(f"{said}, or mend the server")
        return error if isinstance(error, LtragError) else errors.provider_error("model", error)

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
            ModelFailed: a request failed (the client's exception is the cause), or its reply
                cannot be used.
            InvalidLogProbability: a log-probability is null, NaN, infinite or above 0.
            ModelUnavailable: the key was refused (401), or 20 requests in a row failed, over all
                calls. What is wrong with the prompt (other 4xx) does not count.
        """
        return self.generate_each(checked_prompts(prompts), [settings] * len(prompts), done)

    def generate_each(
        self,
        prompts: Sequence[str],
        settings: Sequence[GenerationSettings],
        done: _Done | None = None,
    ) -> list[Generation]:
        """As `generate`, each prompt by settings of its own; see `EachLLM`."""
        found, parts = _Found(), self._parts(prompts, settings)
        threads, broken = min(self._bound(prompts), len(parts)), threading.Event()

        def one(i: int) -> None:
            with self._free, ExitStack() as failing:  # left before the next thread is let in
                if broken.is_set():
                    return
                failing.callback(broken.set)
                start, refused = perf_counter(), self._left_out(parts[i].settings)
                while i not in found:
                    with self._judged(i, found, refused, done, parts[i].settings):
                        found[i] = self._in_time(parts[i], refused)
                if done and isinstance(reply := found[i], list):
                    done(i, reply[0], (perf_counter() - start) / threads)
                failing.pop_all()

        if len(parts) == 1:
            one(0)
        elif parts:
            with ThreadPoolExecutor(threads) as pool:
                # each in a copy of the context, which carries the frameworks' traces
                jobs = [pool.submit(copy_context().run, one, i) for i in range(len(parts))]
                try:
                    for job in jobs:
                        job.result()
                finally:
                    pool.shutdown(cancel_futures=True)
        return _whole(found, parts)

    async def agenerate(
        self,
        prompts: Sequence[str],
        settings: GenerationSettings = GenerationSettings(),
        done: _Done | None = None,
    ) -> list[Generation]:
        """As `generate`; `done` runs in a thread. Without it a failure cancels the others."""
        return await self.agenerate_each(checked_prompts(prompts), [settings] * len(prompts), done)

    async def agenerate_each(
        self,
        prompts: Sequence[str],
        settings: Sequence[GenerationSettings],
        done: _Done | None = None,
    ) -> list[Generation]:
        """As `agenerate`, each prompt by settings of its own; see `EachLLM`."""
        found, parts = _Found(), self._parts(prompts, settings)
        most, loop = self._bound(prompts), asyncio.get_running_loop()
        lane = self._lanes.setdefault(loop, _Lane(self._at_most))
        forget_closed(self._lanes)
        # of our own: the loop's are few (cores + 4), and others wait for them
        threads = ThreadPoolExecutor(min(most, len(parts)) or 1) if self._blocking else None

        def blocking(part: _Part, refused: Set[str]) -> list[Generation]:
            with self._free:
                return self._in_time(part, refused)

        async def sent(part: _Part, refused: Set[str]) -> list[Generation]:
            if threads is None:
                return await self._aask(part.prompts, part.settings, refused)
            context = copy_context()  # it carries the frameworks' traces
            return await loop.run_in_executor(threads, lambda: context.run(blocking, part, refused))

        async def one(i: int) -> None:
            async with lane:
                start, refused = perf_counter(), self._left_out(parts[i].settings)
                stale = [*range(self._at_most)]
                while i not in found:
                    with self._judged(i, found, refused, done, parts[i].settings, stale):
                        # a thread times its call itself, which waits for the thread first
                        limit = None if self._blocking else self._limit(parts[i])
                        async with asyncio.timeout(limit):
                            found[i] = await sent(parts[i], refused)
                if done and isinstance(reply := found[i], list):
                    seconds = (perf_counter() - start) / min(most, len(parts))
                    await asyncio.to_thread(done, i, reply[0], seconds)

        try:
            await (one(0) if len(parts) == 1 else amapped(one, range(len(parts)), most))
        finally:
            if threads:
                threads.shutdown(wait=False, cancel_futures=True)
        return _whole(found, parts)

    def _left_out(self, settings: GenerationSettings) -> set[str]:
        """The settings that are known to be refused at this temperature."""
        hot = {"temperature"} if settings.temperature >= self._too_hot else set[str]()
        return {*self.refused, *hot}

    def _limit(self, part: _Part) -> float | None:
        return None if self._seconds == math.inf else self._seconds * len(part.prompts)

    def _in_time(self, part: _Part, refused: Set[str]) -> list[Generation]:
        """`_ask`, left behind in a thread when the time is up: a client sleeps, or reads drops."""
        asked = part.prompts, part.settings, refused
        if (limit := self._limit(part)) is None:
            return self._ask(*asked)
        answer = Future[list[Generation]]()

        def ask() -> None:
            try:
                answer.set_result(self._ask(*asked))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=copy_context().run, args=(ask,), daemon=True).start()
        return answer.result(limit)

    def _parts(self, prompts: Sequence[str], settings: Sequence[GenerationSettings]) -> list[_Part]:
        pairs = [*zip(checked_prompts(prompts), settings, strict=True)]
        if self.one_by_one:
            return [_Part([i], [prompt], own) for i, (prompt, own) in enumerate(pairs)]
        groups: dict[GenerationSettings, list[int]] = {}
        for i, (_, own) in enumerate(pairs):
            groups.setdefault(own, []).append(i)
        return [_Part(which, [prompts[i] for i in which], own) for own, which in groups.items()]

    @contextmanager
    def _judged(
        self,
        i: int,
        found: _Found,
        refused: set[str],
        done: _Done | None,
        settings: GenerationSettings,
        stale: list[int] | None = None,
    ) -> Iterator[None]:
        """What comes of one request: an answer, a setting more in `refused`, one of the `stale`
        connections less, or a failure."""
        try:
            yield
        except Exception as error:
            if setting := refused_setting(error, self.name, refused):
                refused.add(setting)
                return
            if stale and _of_ended_loop(error):
                stale.pop()
                return
            status, named = status_of(error), self._named(error)
            if named is not error:
                named.__cause__ = error
            prompts_fault = isinstance(error, InvalidInput) or (status or 0) // 100 == 4
            self._failed += status in PASSING or not prompts_fault
            if status == 401 or self._failed >= _HOPELESS:
                many = f"{self._failed} requests in a row failed; the model"
                ends = "The model" if status == 401 else many
                said = f"{named}. {ends} is not asked any more. Its answers are kept"
                remedy = "where there is an answer cache: mend this, and run again."
                raise ModelUnavailable(f"{said} {remedy}") from error
            if done is None:
                raise named from named.__cause__
            found[i] = named
        else:
            if settings.temperature > 0 and "temperature" in refused - self.refused:
                self._too_hot = min(self._too_hot, settings.temperature)
                refused.remove("temperature")
            self._failed, self.refused = 0, self.refused | refused


def forget_closed(kept: dict[asyncio.AbstractEventLoop, Any]) -> None:
    """Drop what is kept for event loops that have ended, while other threads add theirs."""
    for loop in [*kept]:
        if loop.is_closed():
            kept.pop(loop, None)


def _whole(found: _Found, parts: Sequence[_Part]) -> list[Generation]:
    """In the order of the prompts; what is not one for each is told of by who reads it."""
    whole = list[Generation]()
    for _, reply in sorted(found.items()):
        if isinstance(reply, Exception):
            raise reply
        whole += reply
    order = [i for part in parts for i in part.which]
    if len(order) != len(whole):
        return whole
    return [whole[at] for at in sorted(range(len(order)), key=order.__getitem__)]


def _of_ended_loop(error: BaseException | None) -> bool:
    """Whether a client stumbled over a connection that it opened on an event loop that has ended
    since. It has dropped it by then: a script that calls `asyncio.run` often meets many."""
    while error is not None:
        if isinstance(error, RuntimeError) and str(error) == "Event loop is closed":
            return True
        error = error.__cause__ or error.__context__
    return False
