"""The drivers: alone, on an event loop, side by side; alone also step by step.

What flows may reach, and how a request is answered there.

Flows made of flows: many side by side, or one with its requests changed.
"""

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, overload

from ltrag_plugins.errors import (
    InvalidInput,
    LtragError,
    ModelError,
    ModelFailed,
    NeedsGradients,
    NoRetriever,
    NoTokenProbabilities,
    RetrievalError,
    RetrieverFailed,
    UnknownRequest,
)
from ltrag_plugins.flow.requests import (
    Agree,
    Ask,
    Compute,
    Embed,
    Fetch,
    Flow,
    Request,
    Score,
    items,
    merge,
)
from ltrag_plugins.llm.base import LLM, AsyncLLM, Encoder, GradientLLM, ScoringLLM
from ltrag_plugins.retrieval.base import AsyncRetriever, Retriever


@dataclass(frozen=True, slots=True)
class World:
    """What flows may reach."""

    llm: LLM | None = None
    retriever: Retriever | None = None
    encoder: Encoder | None = None

    def reply(self, request: Request) -> Sequence[Any]:
        """Answer one request.

        Raises:
            ModelFailed, RetrieverFailed: the call raised; the original is the cause.
            ModelError, NoRetriever: there is nothing here that could answer.
            ModelError, RetrievalError: more or fewer replies came than were asked for.
            UnknownRequest: this is no request.
        """
        with explained(_part(request)):
            match request:
                case Ask():
                    reply = self._model().generate(request.prompts, request.settings)
                case Fetch():
                    reply = self._searcher().search(request.queries, request.k)
                case Embed():
                    reply = self._encode(request)
                case Score():
                    reply = self._score(request)
                case Agree():
                    reply = self._agree(request)
                case Compute():
                    reply = [request.function()]
                case _:
                    raise _unknown(request)
            return _aligned(request, reply)

    async def areply(self, request: Request) -> Sequence[Any]:
        """As `reply`: awaits what has an async call of its own, moves the rest to a thread."""
        with explained(_part(request)):
            match request:
                case Ask() if isinstance(self.llm, AsyncLLM):
                    reply = await self.llm.agenerate(request.prompts, request.settings)
                case Fetch() if isinstance(self.retriever, AsyncRetriever):
                    reply = await self.retriever.asearch(request.queries, request.k)
                case _:
                    return await asyncio.to_thread(self.reply, request)
            return _aligned(request, reply)

    def _model(self) -> LLM:
        if self.llm is None:
            raise ModelError("this flow asks a model; run it in World(llm=...)")
        return self.llm

    def _searcher(self) -> Retriever:
        if self.retriever is None:
            raise NoRetriever("this flow retrieves; run it in World(..., retriever=...)")
        return self.retriever

    def _encode(self, request: Embed) -> Sequence[Any]:
        if self.encoder is None:
            raise ModelError("this flow embeds texts; run it in World(..., encoder=...)")
        return self.encoder.encode(request.texts)  # type: ignore[return-value]

    def _score(self, request: Score) -> Sequence[Any]:
        if not isinstance(self.llm, ScoringLLM):
            raise NoTokenProbabilities(
                f"{self._model().name} cannot tell how likely a given text is. Load local weights "
                "with TransformersLLM, or use what only reads its answers (reward='match')."
            )
        return self.llm.score(request.prompts, request.continuations)

    def _agree(self, request: Agree) -> Sequence[Any]:
        if not isinstance(self.llm, GradientLLM):
            raise NeedsGradients(
                f"{self._model().name} has no gradients. Load local weights with TransformersLLM, "
                "or fit the gate with gradients='never'."
            )
        return self.llm.gradient_agreement(
            request.prompts,
            request.continuations,
            along=request.along,
            cosine=request.cosine,
            layers=request.layers,
        )


def _unknown(request: object) -> UnknownRequest:
    return UnknownRequest(
        f"a flow yielded {request!r}; it may yield Ask, Fetch, Embed, Score, Agree or Compute. "
        "Use 'yield from ask(...)', not 'yield ask(...)'."
    )


def _aligned(request: Request, reply: Sequence[Any]) -> Sequence[Any]:
    wanted = len(items(request))
    if len(reply) == wanted:
        return reply
    counts = f"{len(reply)} replies came for {wanted} {_ITEMS[type(request)]}"
    if isinstance(request, Fetch):
        raise RetrievalError(f"{counts}; a retriever's search() returns one list for each query.")
    raise ModelError(f"{counts}; a model or encoder returns one reply for each, in their order.")


_ITEMS = {
    Ask: "prompts",
    Fetch: "queries",
    Embed: "texts",
    Score: "pairs",
    Agree: "instances",
    Compute: "function",
}


@contextmanager
def explained(part: Literal["model", "retriever"]) -> Iterator[None]:
    """What a model or a retriever raises, as an error of this package with a remedy.

    Raises:
        ModelFailed, RetrieverFailed: something was raised that is no `LtragError`; it is the cause.
    """
    try:
        yield
    except LtragError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        if part == "retriever":
            raise RetrieverFailed(
                f"the retriever raised {what}. Its own error is the __cause__: see whether the "
                "store it searches is there and answers, or try again"
            ) from error
        raise ModelFailed(
            f"the model raised {what}. Its own error is the __cause__: a time-out or a rate limit "
            "passes, so try again or raise the client's retries; else mend the model's set-up"
        ) from error


def _part(request: Request) -> Literal["model", "retriever"]:
    return "retriever" if isinstance(request, Fetch) else "model"


_T = TypeVar("_T")
HOPELESS = 3
"""Parts of a failed call that are tried before the others are given up."""


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
    shares: tuple[int, ...] | None = None
    """How many of the request's items each of those flows asked for; None: one flow, all."""


Observer = Callable[[Step], None]
"""Called before each request and after its reply; what it raises ends the run."""


def run(flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()) -> _T:
    """Run one flow.

    Raises:
        ModelFailed, RetrieverFailed: the model or retriever raised and the flow did not
            catch it; the original exception is the cause.
        UnknownRequest: the flow yielded something that is not a request.
    """
    observers = tuple(observers)
    with closing(flow):
        step = _first(flow)
        while not isinstance(step, _Done):
            step = _resumed(flow, _observed(step, world, observers))
        return step.value


async def arun(flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()) -> _T:
    """As `run`, on an event loop.

    A model or retriever with an async call of its own is awaited; any other runs in a
    thread. Cancelling the task closes the flow.
    """
    observers = tuple(observers)
    with closing(flow):
        step = _first(flow)
        while not isinstance(step, _Done):
            step = _resumed(flow, await _aobserved(step, world, observers))
        return step.value


@dataclass(frozen=True, slots=True)
class Returned(Generic[_T]):
    """The last thing a flow that is run step by step gives: its answer."""

    value: _T


def run_steps(
    flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()
) -> Generator[Returned[_T] | None, None, None]:
    """As `run`, pausing: None each time the flow took in a reply, its answer at the end.

    For callers that pass on what a flow tells them while it runs. Closing the iterator closes
    the flow.
    """
    observers = tuple(observers)
    with closing(flow):
        step = _first(flow)
        while not isinstance(step, _Done):
            step = _resumed(flow, _observed(step, world, observers))
            yield None
        yield Returned(step.value)


async def arun_steps(
    flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()
) -> AsyncGenerator[Returned[_T] | None, None]:
    """As `run_steps`, on an event loop; see `arun`. Close it (`aclosing`) when leaving early."""
    observers = tuple(observers)
    with closing(flow):
        step = _first(flow)
        while not isinstance(step, _Done):
            step = _resumed(flow, await _aobserved(step, world, observers))
            yield None
        yield Returned(step.value)


@overload
def run_many(
    flows: Iterable[Flow[_T]],
    world: World,
    *,
    observers: Iterable[Observer] = ...,
    batch: int | None = ...,
    return_exceptions: Literal[False] = ...,
) -> list[_T]: ...
@overload
def run_many(
    flows: Iterable[Flow[_T]],
    world: World,
    *,
    observers: Iterable[Observer] = ...,
    batch: int | None = ...,
    return_exceptions: Literal[True],
) -> list[_T | Exception]: ...
def run_many(
    flows: Iterable[Flow[_T]],
    world: World,
    *,
    observers: Iterable[Observer] = (),
    batch: int | None = None,
    return_exceptions: bool = False,
) -> list[_T] | list[_T | Exception]:
    """Run flows side by side; requests of one round that can share a call do.

    Per round that is one model call for each distinct generation setting and one search
    for each distinct `k`. When a merged call raises, the part of each flow is asked for once
    more by itself, so that a question that cannot be answered takes no other with it; a flow
    whose part fails again gets the exception at its own `yield`. Where the first three parts
    fail, the others are not tried, nor are prompts that may not repeat (`Ask.may_repeat`).
    Observers are told of a reply for each part. So an item is asked for at most twice, however
    many of the calls fail.

    Args:
        batch: most prompts (queries, texts) of one call, so that memory is bounded and
            observers see progress; None: all that can share a call do.
        return_exceptions: put a failed flow's exception in its place in the result
            instead of closing the others and raising it.

    Raises:
        InvalidInput: `batch` is below 1.
    """
    if batch is not None and batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}; None puts no bound on it")
    flows = list(flows)
    observers = tuple(observers)
    done: dict[int, _T | Exception] = {}
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

    with ExitStack() as stack:
        for flow in flows:
            stack.callback(flow.close)
        for i, flow in enumerate(flows):
            settle(i, lambda flow=flow: _first(flow))
        while waiting:
            now, waiting = waiting, {}
            for merged, members in merge(now, batch):
                outcome = _observed(merged, world, observers, members)
                shares = _shared(outcome, members)
                if isinstance(outcome, _Failed) and len(members) > 1:
                    shares = _each_alone(outcome, members, now, world, observers)
                for i, share in shares:
                    settle(i, lambda i=i, share=share: _resumed(flows[i], share))
        return [done[i] for i in range(len(flows))]  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _Done:
    value: Any


@dataclass(frozen=True, slots=True)
class _Failed:
    """Goes to the flow, unlike what an observer raises: that ends the run."""

    error: Exception


def _first(flow: Flow[Any]) -> Request | _Done:
    return _send(flow, None)


def _send(flow: Flow[Any], reply: Sequence[Any] | None) -> Request | _Done:
    try:
        return flow.send(reply)
    except StopIteration as done:
        return _Done(done.value)


def _resumed(flow: Flow[Any], outcome: "Sequence[Any] | _Failed") -> Request | _Done:
    if not isinstance(outcome, _Failed):
        return _send(flow, outcome)
    try:
        return flow.throw(outcome.error)
    except StopIteration as done:
        return _Done(done.value)


def _shared(
    outcome: "Sequence[Any] | _Failed", members: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, "Sequence[Any] | _Failed"]]:
    """Each flow's part of the replies to a merged request, or the failure of all."""
    start = 0
    for i, size in members:
        yield i, outcome if isinstance(outcome, _Failed) else outcome[start : start + size]
        start += size


def _each_alone(
    failed: _Failed,
    members: Sequence[tuple[int, int]],
    requests: Mapping[int, Request],
    world: World,
    observers: tuple[Observer, ...],
) -> Iterator[tuple[int, "Sequence[Any] | _Failed"]]:
    """The parts of a merged request that failed, each by itself, unless that looks hopeless."""
    tried: list[bool] = []
    for i, size in members:
        hopeless = len(tried) == HOPELESS and not any(tried)
        if hopeless or not _may_repeat(requests[i]):
            yield i, failed
            continue
        outcome = _answered(requests[i], world, observers, [(i, size)])
        if len(tried) < HOPELESS:
            tried.append(not isinstance(outcome, _Failed))
        yield i, outcome


def _may_repeat(request: Request) -> bool:
    return not (isinstance(request, Ask) and request.may_repeat) or request.may_repeat()


def _observed(
    request: Request,
    world: World,
    observers: tuple[Observer, ...],
    members: Sequence[tuple[int, int]] | None = None,
) -> "Sequence[Any] | _Failed":
    flows, shares = _flows_and_shares(members)
    _tell(observers, Step("request", request, flows=flows, shares=shares))
    return _answered(request, world, observers, members)


def _answered(
    request: Request,
    world: World,
    observers: tuple[Observer, ...],
    members: Sequence[tuple[int, int]] | None,
) -> "Sequence[Any] | _Failed":
    start = time.perf_counter()
    try:
        reply = world.reply(request)
    except Exception as error:
        return _Failed(error)
    flows, shares = _flows_and_shares(members)
    _tell(observers, Step("reply", request, reply, time.perf_counter() - start, flows, shares))
    return reply


def _flows_and_shares(
    members: Sequence[tuple[int, int]] | None,
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    if members is None:
        return (0,), None
    return tuple(i for i, _ in members), tuple(size for _, size in members)


async def _aobserved(
    request: Request, world: World, observers: tuple[Observer, ...]
) -> "Sequence[Any] | _Failed":
    _tell(observers, Step("request", request))
    start = time.perf_counter()
    try:
        reply = await world.areply(request)
    except Exception as error:
        return _Failed(error)
    _tell(observers, Step("reply", request, reply, time.perf_counter() - start))
    return reply


def _tell(observers: tuple[Observer, ...], step: Step) -> None:
    for observer in observers:
        observer(step)


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
