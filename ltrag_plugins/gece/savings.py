"""What a gate saves against always retrieving, and what it costs itself."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from statistics import median
from threading import Thread, get_ident
from time import perf_counter, sleep
from typing import Any, TypeVar

from ltrag_plugins.errors import CalibrationError, InvalidInput, checked
from ltrag_plugins.types import Generation

PAUSE = 0.05
"""Seconds before an audit is asked in the loop of the call."""
_STEP, _STILL = 0.2, 60.0  # seconds to wait for a loop: each time; while it does not run
_TIMED = 3  # runs that are timed, one after the other
_waited_for = dict[int, asyncio.AbstractEventLoop]()  # by which thread
_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


def timed(run: Callable[[list[_T]], list[Any]], items: Sequence[_T]) -> tuple[list[Any], float]:
    """What an application's chain gives for each item, or its exception, and how many seconds one
    takes by itself: the median of the first three, which run one after the other.

    Raises:
        CalibrationError: it failed on more than half; its exception is the cause.
    """
    found, took = list[Any](), list[float]()
    for item in items[:_TIMED]:
        started = perf_counter()
        found += run([item])
        took.append(perf_counter() - started)
    found += run([*items[_TIMED:]])
    if failed := [output for output in found if isinstance(output, Exception)]:
        said = f"the chain failed on {len(failed)} of {len(found)} questions ({failed[0]!r:.200})"
        if 2 * len(failed) > len(found):
            raise CalibrationError(f"{said}; see that it answers them by itself") from failed[0]
        _logger.warning("%s; these are left out", said)
    return found, median(took)


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own, as one may be running in this thread."""
    loop = asyncio.new_event_loop()
    Thread(target=lambda: (loop.run_forever(), loop.close()), daemon=True).start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)


def awaited_in(
    loop: asyncio.AbstractEventLoop, ask: Callable[[], Coroutine[Any, Any, _T]], pause: float = 0.0
) -> _T:
    """What `ask` gives in a loop that another thread runs; where that is closed first, in one of
    ours. What a chain keeps for a loop that only pauses, as connections, is left to that.

    Args:
        pause: seconds before it is asked. A loop that ends with its call, as `asyncio.run` makes
            it, has ended by then; what it began and did not end would be complained about.

    Raises:
        CancelledError: it was cancelled in ours too.
        TimeoutError: the loop has not been run for a minute.
    """
    found, still = None, 0.0
    sleep(pause)
    with suppress(CancelledError), _waiting(loop):  # of a loop that ends
        while not loop.is_closed():
            if found is None and (found := _begun(ask(), loop)) is None:
                break
            if wait([found], _STEP).done:
                return found.result()
            still = 0.0 if loop.is_running() else still + _STEP
            if still > _STILL:
                found.cancel()
                raise TimeoutError("the event loop of the call is not run any more")
    try:
        return asyncio.run(ask())
    except asyncio.CancelledError as error:  # it is no Exception, and would end the thread
        raise CancelledError from error


@contextmanager
def _waiting(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    _waited_for[get_ident()] = loop
    try:
        yield
    finally:
        del _waited_for[get_ident()]


def wait_for_this_loop(threads: Sequence[Thread]) -> bool:
    """Whether one of them waits for the loop that runs in the caller's thread, if one does."""
    with suppress(RuntimeError):
        loop = asyncio.get_running_loop()
        return any(_waited_for.get(thread.ident or 0) is loop for thread in threads)
    return False


def _begun(work: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop) -> "Future[_T] | None":
    try:
        return asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # it was closed meanwhile
        work.close()
        return None


@dataclass(frozen=True, slots=True)
class Usage:
    """Model calls, tokens (prompt and answer) and seconds; None where they were not measured."""

    calls: float | None = None
    tokens: float | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, replies: Sequence[Sequence[Generation]], seconds: float | None = None) -> "Usage":
        """Mean over questions, from the generations of each."""
        counts = [(g.prompt_tokens, g.completion_tokens) for each in replies for g in each]
        totals = [None if None in pair else sum(filter(None, pair)) for pair in counts]
        return cls.counted(totals, len(replies), seconds)

    @classmethod
    def counted(
        cls, totals: Sequence[object], questions: int, seconds: float | None = None
    ) -> "Usage":
        """Mean over so many questions, from what each call's reply says it took in tokens; unknown
        where one of them says nothing, or what is no count."""
        known = [n for n in totals if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
        whole = known and len(known) == len(totals)
        tokens = sum(known) / questions if whole else None
        return cls(len(totals) / questions or None, tokens, seconds)

    def times(self, count: float) -> "Usage":
        """Of so many questions."""
        return Usage(*(None if part is None else part * count for part in astuple(self)))

    def minus(self, other: "Usage") -> "Usage":
        """The difference, as far as both are known."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Usage(*(None if a is None or b is None else a - b for a, b in pairs))

    def share_of(self, other: "Usage") -> float | None:
        """This over the other: of tokens, else of seconds, else of calls; None: nothing known."""
        for name in ("tokens", "seconds", "calls"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs:
                return mine / theirs
        return None

    def __str__(self) -> str:
        known = [f"{part:,.3g} {name}" for name, part in asdict(self).items() if part is not None]
        return ", ".join(known) or "not measured"


@dataclass(frozen=True, slots=True)
class Savings:
    """Of the questions that a router has decided, against always retrieving."""

    questions: int
    retrieved: int
    avoided: Usage
    """What the chain would have cost on the questions that were answered directly."""
    gate: Usage
    """What the gate's own calls cost on all questions, and the chain's in audits."""
    price: float | None = None
    """Money for a token, as given."""

    @property
    def net(self) -> Usage:
        """What was avoided without what the gate cost; below 0 where the gate costs more."""
        return self.avoided.minus(self.gate)

    @property
    def money(self) -> float | None:
        """What the tokens of `net` would have cost; None without a price or token counts."""
        tokens = self.net.tokens
        return None if self.price is None or tokens is None else tokens * self.price

    def __str__(self) -> str:
        lines = [
            f"{self.questions} questions, {self.retrieved} retrieved",
            f"avoided       {self.avoided}",
            f"gate's own    {self.gate}",
            f"saved         {self.net}",
        ]
        if self.money is not None:
            lines.append(f"money saved   {self.money:.4g}")
        return "\n".join(lines)


def savings_of(
    report: Any, direct: int, retrieved: int, price: float | None, audits: int = 0
) -> Savings:
    """What so many decisions saved, at the costs in a `FitReport`; of those answered directly so
    many were audited.

    Raises:
        InvalidInput: the costs were never measured, or the price is below 0.
    """
    gate, retrieval = (getattr(report, f"{part}_cost", None) for part in ("gate", "retrieval"))
    if gate is None or retrieval is None:
        raise InvalidInput(
            "what retrieval costs was not measured for this gate; fit it with your chain: "
            "GECERouter.fit(chain, llm=..., questions=...)"
        )
    if price is not None and not checked(price, int | float, "price", "a number") >= 0:
        raise InvalidInput(f"price is {price}; it is money for one token, at least 0")
    count = direct + retrieved
    spent = gate.times(count).minus(retrieval.times(-audits))
    return Savings(count, retrieved, retrieval.times(direct), spent, price)
