"""Run flows: alone (`run`), on an event loop (`arun`), side by side (`run_many`), within another
flow (`together`); and what flows may reach (`World`)."""

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
from contextlib import ExitStack, aclosing, closing, contextmanager
from dataclasses import dataclass, replace
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
    OwnedPrompt,
    Request,
    Score,
    items,
    merge,
)
from ltrag_plugins.llm.base import LLM, AsyncLLM, Encoder, GradientLLM, ScoringLLM
from ltrag_plugins.retrieval.base import AsyncRetriever, Retriever

_T = TypeVar("_T")
_Outcome = Sequence[Any] | Exception
"""The replies to a request, or the model's or retriever's exception, which goes to the flow."""
_Members = Sequence[tuple[int, int]]
"""Of a merged request: the index of each flow in it, and how many of the items are its own."""
_HOPELESS = 3  # parts of a failed call that are tried before the others are given up


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
        with wrap_provider_errors("retriever" if isinstance(request, Fetch) else "model"):
            return _aligned(request, self._reply(request))

    async def areply(self, request: Request) -> Sequence[Any]:
        """As `reply`: awaits what has an async call of its own, moves the rest to a thread."""
        with wrap_provider_errors("retriever" if isinstance(request, Fetch) else "model"):
            match request:
                case Ask() if isinstance(self.llm, AsyncLLM):
                    reply = await self.llm.agenerate(request.prompts, request.settings)
                case Fetch() if isinstance(self.retriever, AsyncRetriever):
                    reply = await self.retriever.asearch(request.queries, request.k)
                case _:
                    return await asyncio.to_thread(self.reply, request)
            return _aligned(request, reply)

    def _reply(self, request: Request) -> Sequence[Any]:
        match request:
            case Ask():
                return self._model().generate(request.prompts, request.settings)
            case Fetch():
                if self.retriever is None:
                    raise NoRetriever("this flow retrieves; run it in World(..., retriever=...)")
                return self.retriever.search(request.queries, request.k)
            case Embed():
                if self.encoder is None:
                    raise ModelError("this flow embeds texts; run it in World(..., encoder=...)")
                return self.encoder.encode(request.texts)  # type: ignore[return-value]
            case Score():
                if not isinstance(self.llm, ScoringLLM):
                    raise NoTokenProbabilities(
                        f"{self._model().name} cannot tell how likely a given text is. Load local "
                        "weights with TransformersLLM, or use what only reads its answers "
                        "(reward='match')."
                    )
                return self.llm.score(request.prompts, request.continuations)
            case Agree():
                if not isinstance(self.llm, GradientLLM):
                    raise NeedsGradients(
                        f"{self._model().name} has no gradients. Load local weights with "
                        "TransformersLLM, or fit the gate with gradients='never'."
                    )
                return self.llm.gradient_agreement(
                    request.prompts,
                    request.continuations,
                    along=request.along,
                    cosine=request.cosine,
                    layers=request.layers,
                )
            case Compute():
                return [request.function()]
            case _:
                raise UnknownRequest(
                    f"a flow yielded {request!r}; it may yield Ask, Fetch, Embed, Score, Agree or "
                    "Compute. Use 'yield from ask(...)', not 'yield ask(...)'."
                )

    def _model(self) -> LLM:
        if self.llm is None:
            raise ModelError("this flow asks a model; run it in World(llm=...)")
        return self.llm


def _aligned(request: Request, reply: Sequence[Any]) -> Sequence[Any]:
    wanted = len(items(request))
    if len(reply) == wanted:
        return reply
    counts = f"{len(reply)} replies came for {wanted} items of {type(request).__name__}"
    if isinstance(request, Fetch):
        raise RetrievalError(f"{counts}; a retriever's search() returns one list for each query.")
    raise ModelError(f"{counts}; a model or encoder returns one reply for each, in their order.")


@contextmanager
def wrap_provider_errors(part: Literal["model", "retriever"]) -> Iterator[None]:
    """Turn what a model or a retriever raises into an error of this package, with a remedy."""
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


@dataclass(frozen=True, slots=True)
class Returned(Generic[_T]):
    """The last thing a flow that is run step by step gives: its answer."""

    value: _T


def run(flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()) -> _T:
    """Run one flow.

    Raises:
        ModelFailed, RetrieverFailed: the model or retriever raised and the flow did not
            catch it; the original exception is the cause.
        UnknownRequest: the flow yielded something that is not a request.
    """
    *_, last = run_steps(flow, world, observers=observers)
    assert last is not None
    return last.value


async def arun(flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()) -> _T:
    """As `run`, on an event loop.

    A model or retriever with an async call of its own is awaited; any other runs in a
    thread. Cancelling the task closes the flow.
    """
    async with aclosing(arun_steps(flow, world, observers=observers)) as steps:
        *_, last = [step async for step in steps]
    assert last is not None
    return last.value


def run_steps(
    flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()
) -> Generator[Returned[_T] | None, None, None]:
    """As `run`, pausing: None each time the flow took in a reply, its answer at the end.

    For callers that pass on what a flow tells them while it runs. Closing the iterator closes
    the flow.
    """
    observers = tuple(observers)
    with closing(flow):
        step = _resumed(flow, None)
        while not isinstance(step, Returned):
            step = _resumed(flow, _asked(step, world, observers))
            yield None
        yield step


async def arun_steps(
    flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()
) -> AsyncGenerator[Returned[_T] | None, None]:
    """As `run_steps`, on an event loop; see `arun`. Close it (`aclosing`) when leaving early."""
    observers = tuple(observers)
    with closing(flow):
        step = _resumed(flow, None)
        while not isinstance(step, Returned):
            step = _resumed(flow, await _aasked(step, world, observers))
            yield None
        yield step


@overload
def run_many(
    flows: Iterable[Flow[_T]],
    world: World,
    *,
    observers: Iterable[Observer] = ...,
    batch: int | None = ...,
    owners: Sequence[Any] | None = ...,
    return_exceptions: Literal[False] = ...,
) -> list[_T]: ...
@overload
def run_many(
    flows: Iterable[Flow[_T]],
    world: World,
    *,
    observers: Iterable[Observer] = ...,
    batch: int | None = ...,
    owners: Sequence[Any] | None = ...,
    return_exceptions: Literal[True],
) -> list[_T | Exception]: ...
def run_many(
    flows: Iterable[Flow[_T]],
    world: World,
    *,
    observers: Iterable[Observer] = (),
    batch: int | None = None,
    owners: Sequence[Any] | None = None,
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
        owners: whose each flow is, in order; its prompts reach the model as `OwnedPrompt`s.
        return_exceptions: put a failed flow's exception in its place in the result
            instead of closing the others and raising it.

    Raises:
        InvalidInput: `batch` is below 1.
    """
    if batch is not None and batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}; None puts no bound on it")
    observers = tuple(observers)
    with closing(_SideBySide(flows, batch, owners, keep_exceptions=return_exceptions)) as all_flows:
        for request, members, asked in all_flows.rounds():
            outcome = _asked(request, world, observers, members)
            if isinstance(outcome, Exception) and len(members) > 1:
                for i, part in _each_alone(outcome, members, asked, world, observers):
                    all_flows.resume(i, part)
            else:
                all_flows.take(outcome, members)
        return all_flows.results()


def together(flows: Sequence[Flow[_T]], *, batch: int | None = 64) -> Flow[list[_T]]:
    """As `run_many`, within a flow: what the flows return, in order.

    What the model or retriever raises ends all of them.

    Args:
        batch: most items of one merged request, and so the most that a failure loses; None: all.
    """
    with closing(_SideBySide(flows, batch)) as all_flows:
        for request, members, _ in all_flows.rounds():
            all_flows.take((yield request), members)
        return all_flows.results()


def changing(flow: Flow[_T], change: Callable[[Request], Request]) -> Flow[_T]:
    """Run a flow with each of its requests changed; the replies are those to what was asked."""
    with closing(flow):
        step = _resumed(flow, None)
        while not isinstance(step, Returned):
            try:
                outcome: _Outcome = yield change(step)
            except Exception as error:
                outcome = error
            step = _resumed(flow, outcome)
        return step.value


class _SideBySide:
    """Flows that go on round by round, with the requests of a round merged."""

    def __init__(
        self,
        flows: Iterable[Flow[Any]],
        batch: int | None,
        owners: Sequence[Any] | None = None,
        *,
        keep_exceptions: bool = False,
    ) -> None:
        self._flows, self._batch, self._owners = list(flows), batch, owners
        self._keep_exceptions = keep_exceptions
        self._done: dict[int, Any] = {}
        self._waiting: dict[int, Request] = {}

    def rounds(self) -> Iterator[tuple[Request, _Members, Mapping[int, Request]]]:
        """Each merged request with its members, and what the flows asked for in this round."""
        for i in range(len(self._flows)):
            self.resume(i, None)
        while self._waiting:
            asked, self._waiting = self._waiting, {}
            for request, members in merge(asked, self._batch):
                yield request, members, asked

    def take(self, outcome: _Outcome, members: _Members) -> None:
        """Give each flow its part of the replies to a merged request, or the failure of all."""
        start = 0
        for i, size in members:
            whole = isinstance(outcome, Exception)
            self.resume(i, outcome if whole else outcome[start : start + size])
            start += size

    def resume(self, i: int, outcome: _Outcome | None) -> None:
        try:
            step = _resumed(self._flows[i], outcome)
        except Exception as error:
            if not self._keep_exceptions:
                raise
            self._done[i] = error
            return
        if isinstance(step, Returned):
            self._done[i] = step.value
        else:
            if self._owners is not None and isinstance(step, Ask):
                owned = (OwnedPrompt(prompt, self._owners[i]) for prompt in step.prompts)
                step = replace(step, prompts=tuple(owned))
            self._waiting[i] = step

    def results(self) -> list[Any]:
        return [self._done[i] for i in range(len(self._flows))]

    def close(self) -> None:
        with ExitStack() as stack:  # all are closed, whatever one of them raises
            for flow in self._flows:
                stack.callback(flow.close)


def _resumed(flow: Flow[_T], outcome: _Outcome | None) -> Request | Returned[_T]:
    try:
        return flow.throw(outcome) if isinstance(outcome, Exception) else flow.send(outcome)
    except StopIteration as end:
        return Returned(end.value)


def _each_alone(
    failure: Exception,
    members: _Members,
    requests: Mapping[int, Request],
    world: World,
    observers: tuple[Observer, ...],
) -> Iterator[tuple[int, _Outcome]]:
    """The parts of a merged request that failed, each by itself, unless that looks hopeless."""
    tried: list[bool] = []
    for i, size in members:
        request, outcome = requests[i], failure
        hopeless = len(tried) == _HOPELESS and not any(tried)
        may_repeat = request.may_repeat if isinstance(request, Ask) else None
        if not hopeless and (may_repeat is None or may_repeat()):
            outcome = _asked(request, world, observers, [(i, size)], again=True)
            if len(tried) < _HOPELESS:
                tried.append(not isinstance(outcome, Exception))
        yield i, outcome


def _asked(
    request: Request,
    world: World,
    observers: tuple[Observer, ...],
    members: _Members | None = None,
    *,
    again: bool = False,
) -> _Outcome:
    if not again:
        _tell(observers, "request", request, members)
    start = time.perf_counter()
    try:
        reply = world.reply(request)
    except Exception as error:
        return error
    _tell(observers, "reply", request, members, reply, time.perf_counter() - start)
    return reply


async def _aasked(request: Request, world: World, observers: tuple[Observer, ...]) -> _Outcome:
    _tell(observers, "request", request)
    start = time.perf_counter()
    try:
        reply = await world.areply(request)
    except Exception as error:
        return error
    _tell(observers, "reply", request, None, reply, time.perf_counter() - start)
    return reply


def _tell(
    observers: tuple[Observer, ...],
    kind: Literal["request", "reply"],
    request: Request,
    members: _Members | None = None,
    reply: Sequence[Any] | None = None,
    seconds: float = 0.0,
) -> None:
    flows = (0,) if members is None else tuple(i for i, _ in members)
    shares = None if members is None else tuple(size for _, size in members)
    for observer in observers:
        observer(Step(kind, request, reply, seconds, flows, shares))
