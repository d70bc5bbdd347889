"""Run an algorithm that is written as a generator of requests.

A flow yields what it wants (`Ask` a model, `Fetch` passages, `Embed` texts, `Score` given
texts, `Agree` on gradients), receives the reply, and returns its answer. It does no I/O, so
one flow runs alone (`run`), on an event loop (`arun`), or beside many others with their
requests merged (`run_many`). The idea is httpx's `Auth.auth_flow`.

Write flows with the typed helpers, which keep the type checker's eyes open::

    def brief(question: str) -> Flow[str]:
        [found] = yield from fetch(question, k=3)
        [reply] = yield from ask(f"{found[0].text} {question}", max_tokens=16)
        return reply.text

    run(brief("who wrote Emma?"), World(llm=llm, retriever=retriever))
"""

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, aclosing, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from numbers import Integral
from typing import Any, Generic, Literal, Self, TypeVar, cast

import numpy as np

from ltrag_plugins import errors
from ltrag_plugins.errors import InvalidInput, checked, status_of
from ltrag_plugins.llm.base import LLM, AsyncLLM, Direction, Encoder, GradientLLM, ScoringLLM
from ltrag_plugins.llm.concurrency import PASSING
from ltrag_plugins.retrieval.base import AsyncRetriever, Retriever
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement, Passage

_T = TypeVar("_T")
_Y = TypeVar("_Y")


class OwnedPrompt(str):
    """A prompt or query that knows whose it is, for what records each call under its owner's run.
    `run_many(..., owners=...)` makes them."""

    owner: Any

    def __new__(cls, text: str, owner: Any) -> Self:
        """The same text, owned."""
        prompt = super().__new__(cls, text)
        prompt.owner = owner
        return prompt

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy, or what goes to another process, is the text alone."""
        return str, (str(self),)


@dataclass(frozen=True, slots=True)
class Ask:
    """Reply: one `Generation` per prompt."""

    prompts: tuple[str, ...]
    settings: GenerationSettings | tuple[GenerationSettings, ...] = GenerationSettings()
    """Of all prompts, or of each."""
    may_repeat: Callable[[], bool] | None = field(default=None, compare=False)
    """Called before these prompts are sent once more, because a call that they shared failed;
    False gives the flow the failure."""
    filters: bool = False
    """For the world's filter, where it has one."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Reply: at most `k` passages per query, best first."""

    queries: tuple[str, ...]
    k: int


@dataclass(frozen=True, slots=True)
class Embed:
    """Reply: one row of a float32 array per text."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Reply: one `Generation` per (prompt, continuation); see `ScoringLLM`."""

    prompts: tuple[str, ...]
    continuations: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Agree:
    """Reply: one `GradientAgreement` per (prompt, continuation); see `GradientLLM`."""

    prompts: tuple[str, ...]
    continuations: tuple[str, ...]
    along: Direction
    cosine: bool = False
    layers: int = 4


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """Reply: what the function returns, alone in a list. An event loop awaits `afunction`, or
    without one runs the function in a thread."""

    function: Callable[[], Any]
    afunction: Callable[[], Awaitable[Any]] | None = None


Request = Ask | Fetch | Embed | Score | Agree | Compute
Flow = Generator[Request, Any, _T]
"""An algorithm that yields requests and returns a `_T`."""


# checked once: the same ones come with every call
_checked = lru_cache(maxsize=64, typed=True)(GenerationSettings)


def _settings(
    max_tokens: int, stop: Sequence[str], temperature: float = 0.0, seed: int | None = None
) -> GenerationSettings:
    given = cast(Any, stop)
    ends = given if isinstance(given, Hashable) else tuple(given)
    return _checked(max_tokens, ends, temperature, seed)


def sample(
    *prompts: str,
    samples: int,
    temperature: float,
    seed: int,
    draft: bool = False,
    max_tokens: int = 64,
    stop: Sequence[str] = (),
    may_repeat: Callable[[], bool] | None = None,
) -> Flow[list[tuple[Generation, ...]]]:
    """Ask each prompt `samples` times at a temperature, seeded `seed`, + 1, ..., in one request;
    of each prompt its answers, where `draft` says so the one at temperature 0 first."""
    each = [_settings(max_tokens, stop, temperature, seed + i) for i in range(samples)]
    each = [*[_settings(max_tokens, stop)] * draft, *each]
    asked = tuple(prompt for prompt in _texts(prompts, "sample") for _ in each)
    # a setting alone is a request like any other, which it can share a call with
    settings = each[0] if len(each) == 1 else tuple(each) * len(prompts)
    found = yield Ask(asked, settings, may_repeat)
    return [tuple(found[i : i + len(each)]) for i in range(0, len(found), len(each))]


def ask(
    *prompts: str,
    max_tokens: int = 64,
    stop: Sequence[str] = (),
    temperature: float = 0.0,
    seed: int | None = None,
    may_repeat: Callable[[], bool] | None = None,
    filters: bool = False,
) -> Flow[list[Generation]]:
    """Ask the model; one generation per prompt. `may_repeat`, `filters`: see `Ask`."""
    prompts, settings = _texts(prompts, "ask"), _settings(max_tokens, stop, temperature, seed)
    return (yield Ask(prompts, settings, may_repeat, filters))


def _texts(given: tuple[str, ...], call: str) -> tuple[str, ...]:
    for one in given:
        checked(one, str, f"{call}()", f"given texts one by one, {call}(*texts) for a list")
    return given


def fetch(*queries: str, k: int) -> Flow[list[list[Passage]]]:
    """Search; at most `k` passages per query, best first, whatever the retriever hands back."""
    found = yield Fetch(_texts(queries, "fetch"), k)
    try:
        return [list(passages[:k]) for passages in found]
    except TypeError as error:
        wanted = "a retriever gives a list of passages for each query, if need be an empty one"
        raise errors.RetrievalError(f"{wanted}; this one gave {found!r:.80}") from error


def embed(*texts: str) -> Flow[np.ndarray]:
    """Encode; one row per text."""
    return (yield Embed(_texts(texts, "embed")))


def score(prompts: Sequence[str], continuations: Sequence[str]) -> Flow[list[Generation]]:
    """How likely each continuation is after its prompt; one generation per pair. `InvalidInput` is
    raised where there are more prompts than continuations, or fewer."""
    if len(prompts) != len(continuations):
        came = f"{len(prompts)} prompts came with {len(continuations)} continuations"
        raise InvalidInput(f"{came}; score() takes one continuation for each prompt")
    return (yield Score(tuple(prompts), tuple(continuations)))


def agree(
    prompts: Sequence[str],
    continuations: Sequence[str],
    *,
    along: Direction,
    cosine: bool = False,
    layers: int = 4,
) -> Flow[list[GradientAgreement]]:
    """Hold each instance's gradient against the direction `along`."""
    return (yield Agree(tuple(prompts), tuple(continuations), along, cosine, layers))


def compute(
    function: Callable[[], _T], afunction: Callable[[], Awaitable[_T]] | None = None
) -> Flow[_T]:
    """What a function returns, without holding up an event loop."""
    [found] = yield Compute(function, afunction)
    return found


# the fields of a request that have one entry for each reply
_COLUMNS: dict[type, tuple[str, ...]] = {Ask: ("prompts",), Fetch: ("queries",), Embed: ("texts",)}
_COLUMNS |= {Score: ("prompts", "continuations"), Agree: ("prompts", "continuations")}


def items(request: Request) -> tuple[Any, ...]:
    """What the request wants a reply for, one each."""
    if isinstance(request, Compute):
        return (request.function,)
    columns = _COLUMNS.get(type(request))
    return getattr(request, columns[0]) if columns else ()


def _merge(
    requests: dict[int, Request], batch: int | None
) -> Iterator[tuple[Request, list[tuple[int, int]]]]:
    """Join requests that can share a call; with each, (flow index, its share of the replies).
    One flow's request is never cut, however large."""
    groups: dict[Any, list[int]] = {}
    for i, request in requests.items():
        groups.setdefault(_kind(request), []).append(i)
    for group in groups.values():
        taken: list[tuple[int, int]] = []
        for i in group:
            size = len(items(requests[i]))
            if batch is not None and taken and sum(n for _, n in taken) + size > batch:
                yield _joined([requests[j] for j, _ in taken]), taken
                taken = []
            taken.append((i, size))
        yield _joined([requests[j] for j, _ in taken]), taken


def _kind(request: Request) -> Any:
    """Requests of equal kind can share a call."""
    match request:
        case Ask(settings=settings, filters=filters):
            return Ask, () if isinstance(settings, tuple) else settings, filters
        case Fetch(k=k):
            return Fetch, k
        case Embed() | Score():
            return type(request)
        case Agree():
            return Agree, id(request.along), request.cosine, request.layers
        case _:  # alone; what is no request then raises UnknownRequest into this one flow
            return object()


def _joined(parts: list[Request]) -> Request:
    first: Any = parts[0]
    if len(parts) == 1:
        return first
    # who may repeat what is asked of each part
    changes: dict[str, Any] = {"may_repeat": None} if isinstance(first, Ask) else {}
    each = ("settings",) if isinstance(first, Ask) and isinstance(first.settings, tuple) else ()
    for name in (*_COLUMNS[type(first)], *each):
        changes[name] = tuple(item for part in parts for item in getattr(part, name))
    return replace(first, **changes)


_Outcome = Sequence[Any] | Exception
"""The replies to a request, or the model's or retriever's exception, which goes to the flow."""
_PARTS: Mapping[type, errors.Part] = {Fetch: "retriever", Embed: "encoder"}
_HOPELESS = 3  # parts of a failed call that are tried before the others are given up
_ALL_AT_FAULT = 20  # prompts in a row, by themselves, after which it is not the prompts


@dataclass(frozen=True, slots=True)
class World:
    """What flows may reach."""

    llm: LLM | None = None
    retriever: Retriever | None = None
    encoder: Encoder | None = None
    filter: LLM | None = None
    """FILCO's, where it is a model of its own."""

    def reply(self, request: Request) -> Sequence[Any]:
        """Answer one request.

        Raises:
            ModelFailed, RetrieverFailed: the call raised; the original is the cause.
            ModelError, NoRetriever: there is nothing here that could answer.
            ModelError, RetrievalError: more or fewer replies came than were asked for.
            UnknownRequest: this is no request.
        """
        with wrap_provider_errors(_PARTS.get(type(request), "model")):
            return _aligned(request, self._reply(request))

    async def areply(self, request: Request) -> Sequence[Any]:
        """As `reply`: awaits what has an async call of its own, moves the rest to a thread."""
        with wrap_provider_errors(_PARTS.get(type(request), "model")):
            llm = cast(AsyncLLM, getattr(self, self._writer(request)))
            retriever = cast(AsyncRetriever, self.retriever)
            match request:  # hasattr: isinstance of a protocol takes a tenth of a question's time
                case Ask(prompts, tuple() as each) if own := getattr(llm, "agenerate_each", None):
                    reply = await own(prompts, each)
                case Ask(_, tuple()) if hasattr(llm, "agenerate"):
                    parts = _by_settings(request)
                    reply = _in_order([(which, await self.areply(p)) for which, p in parts])
                case Ask(prompts, GenerationSettings() as settings) if hasattr(llm, "agenerate"):
                    reply = await llm.agenerate(prompts, settings)
                case Fetch() if hasattr(retriever, "asearch"):
                    reply = await retriever.asearch(request.queries, request.k)
                case Embed(texts) if aencode := getattr(self.encoder, "aencode", None):
                    reply = await aencode(texts)
                case Compute(_, afunction) if afunction is not None:
                    reply = [await afunction()]
                case _:
                    return await asyncio.to_thread(self.reply, request)
            return _aligned(request, reply)

    def _reply(self, request: Request) -> Sequence[Any]:
        match request:
            case Ask(prompts, settings):
                llm = self._part(self._writer(request))
                if isinstance(settings, GenerationSettings):
                    return llm.generate(prompts, settings)
                if hasattr(llm, "generate_each"):
                    return llm.generate_each(prompts, settings)
                return _in_order([(which, self.reply(p)) for which, p in _by_settings(request)])
            case Fetch(queries, k):
                return self._part("retriever").search(queries, k)
            case Embed(texts):
                return self._part("encoder").encode(texts)
            case Score(prompts, continuations):
                if not isinstance(llm := self._part("llm"), ScoringLLM):
                    raise errors.NoTokenProbabilities(
                        f"{llm.name} cannot tell how likely a given text is. Load local weights "
                        "with TransformersLLM, or use what only reads answers: reward='match', or "
                        "measure='overlap'."
                    )
                return llm.score(prompts, continuations)
            case Agree(prompts, continuations, along, cosine, layers):
                return gradient_llm(self._part("llm")).gradient_agreement(
                    prompts, continuations, along=along, cosine=cosine, layers=layers
                )
            case Compute(function):
                return [function()]
            case _:
                raise errors.UnknownRequest(
                    f"a flow yielded {request!r}; it may yield Ask, Fetch, Embed, Score, Agree or "
                    "Compute. Use 'yield from ask(...)', not 'yield ask(...)'."
                )

    def _writer(self, request: Request) -> Literal["llm", "filter"]:
        filters = isinstance(request, Ask) and request.filters and self.filter is not None
        return "filter" if filters else "llm"

    def _part(self, name: Literal["llm", "filter", "retriever", "encoder"]) -> Any:
        if (part := getattr(self, name)) is not None:
            return part
        kind = errors.NoRetriever if name == "retriever" else errors.ModelError
        raise kind(f"this flow needs the {name}; run it in World(..., {name}=...)")


def _by_settings(request: Ask) -> list[tuple[list[int], Ask]]:
    """A request for each of its settings, and which of its prompts these are."""
    places: dict[GenerationSettings, list[int]] = {}
    for i, settings in enumerate(cast(tuple[GenerationSettings, ...], request.settings)):
        places.setdefault(settings, []).append(i)
    prompts = request.prompts
    return [
        (which, replace(request, prompts=tuple(prompts[i] for i in which), settings=settings))
        for settings, which in places.items()
    ]


def _in_order(parts: Sequence[tuple[list[int], Sequence[Any]]]) -> list[Any]:
    """The replies to the parts of a request, in the order of its prompts."""
    found = {i: reply for which, part in parts for i, reply in zip(which, part, strict=True)}
    return [found[i] for i in range(len(found))]


def _aligned(request: Request, reply: Sequence[Any]) -> Sequence[Any]:
    wanted = len(items(request))
    if len(reply) == wanted:
        return reply
    raise (errors.RetrievalError if isinstance(request, Fetch) else errors.ModelError)(
        f"{len(reply)} replies came for {wanted} items of {type(request).__name__}; there must be "
        "one for each, in their order (a retriever's is a list of passages)"
    )


def gradient_llm(llm: LLM | None) -> GradientLLM:
    """The model, if it has gradients."""
    if isinstance(llm, GradientLLM):
        return llm
    why = f"{getattr(llm, 'name', llm)} has no gradients. Load local weights (TransformersLLM)"
    raise errors.NeedsGradients(f"{why}, or set gradients='never', for scores semantics=False")


def check_world(world: World) -> None:
    """Refuse a framework's parts, which are to be wrapped."""
    for kind in (LLM, Encoder, Retriever):
        name = kind.__name__
        part = getattr(world, name.lower())
        if part is not None and (hasattr(part, "invoke") or not isinstance(part, kind)):
            raise InvalidInput(
                f"{name.lower()}={type(part).__name__} cannot be used as it is: wrap what comes "
                f"from LangChain or LlamaIndex in LangChain{name} or LlamaIndex{name}"
            )


@contextmanager
def wrap_provider_errors(part: errors.Part) -> Iterator[None]:
    """Turn what a model, encoder or retriever raises into this package's error, with a remedy."""
    try:
        yield
    except errors.LtragError:
        raise
    except Exception as error:
        raise errors.provider_error(part, error) from error


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
    """What a flow that is run step by step gives last: its answer."""

    value: _T


def run(flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()) -> _T:
    """Run one flow.

    Raises:
        ModelFailed, RetrieverFailed: the model or retriever raised (the original exception is the
            cause), and the flow did not catch it.
        UnknownRequest: the flow yielded something that is not a request.
    """
    *_, last = run_steps(flow, world, observers=observers)
    return cast(Returned[_T], last).value


async def arun(flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()) -> _T:
    """As `run`, on an event loop; see `World.areply`. Cancelling the task closes the flow."""
    async with aclosing(arun_steps(flow, world, observers=observers)) as steps:
        *_, last = [step async for step in steps]
    return cast(Returned[_T], last).value


def run_steps(
    flow: Flow[_T], world: World, *, observers: Iterable[Observer] = ()
) -> Generator[Returned[_T] | None, None, None]:
    """As `run`, pausing: None each time the flow took in a reply, its answer at the end.
    Closing the iterator closes the flow."""
    observers = tuple(observers)
    with closing(flow):
        step = _resumed(flow, None)
        while not isinstance(step, Returned):
            with _call(step, observers) as (request, outcome):
                outcome.append(world.reply(request))
            step = _resumed(flow, *outcome)
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
            with _call(step, observers) as (request, outcome):
                outcome.append(await world.areply(request))
            step = _resumed(flow, *outcome)
            yield None
        yield step


def run_many(
    flows: Iterable[Flow[_T]],
    world: World,
    *,
    observers: Iterable[Observer] = (),
    batch: int | None = None,
    owners: Sequence[Any] | None = None,
    return_exceptions: bool = False,
) -> list[_T]:
    """Run flows side by side; requests of one round that can share a call do.

    Per round that is one model call for each distinct generation setting and one search for each
    distinct `k`. When a merged call raises, the part of each flow is asked for once more by itself;
    a flow whose part fails again gets the exception at its own `yield`. Where the first three parts
    fail, the others are not tried, nor are prompts that may not repeat (`Ask.may_repeat`). What is
    wrong with the prompt (`InvalidInput`, or a 4xx status that does not pass) is not one of the
    three, unless twenty in a row are. Observers are told of a reply for each part.

    Args:
        batch: most prompts (queries, texts) of one call, below 1 of which `InvalidInput` is raised;
            None: all that can share a call.
        owners: whose each flow is, in order; its prompts and queries come as `OwnedPrompt`s.
        return_exceptions: put a failed flow's exception in its place in the result (the type does
            not say so) instead of closing the others and raising it.
    """
    if batch is not None and not (isinstance(batch, Integral) and batch >= 1):
        raise InvalidInput(f"batch must be at least 1, got {batch!r}; None puts no bound on it")
    rounds = _side_by_side(flows, batch, owners, keep_exceptions=return_exceptions)
    return run(rounds, world, observers=observers)


def together(flows: Sequence[Flow[_T]], *, batch: int | None = 64) -> Flow[list[_T]]:
    """As `run_many`, within a flow: what the flows return, in order. What the model or retriever
    raises ends all of them. A failure loses at most the `batch` items of one merged request."""
    rounds = _side_by_side(flows, batch)
    with closing(rounds):
        step = _resumed(rounds, None)
        while not isinstance(step, Returned):
            step = _resumed(rounds, (yield step.request))
        return step.value


def changing(flow: Flow[_T], change: Callable[[Request], Request]) -> Flow[_T]:
    """Run a flow with each of its requests changed; the replies are those to what was asked."""
    with closing(flow):
        step = _resumed(flow, None)
        while not isinstance(step, Returned):
            step = _resumed(flow, (yield from _outcome(change(step))))
        return step.value


def _resumed(flow: Generator[_Y, Any, _T], outcome: Any) -> _Y | Returned[_T]:
    try:
        return flow.throw(outcome) if isinstance(outcome, Exception) else flow.send(outcome)
    except StopIteration as end:
        return Returned(end.value)


def _outcome(request: Any) -> Generator[Any, Any, _Outcome]:
    try:
        return (yield request)
    except Exception as error:
        return error


def _side_by_side(
    flows: Iterable[Flow[Any]],
    batch: int | None,
    owners: Sequence[Any] | None = None,
    *,
    keep_exceptions: bool = False,
) -> Generator[Any, Any, list[Any]]:
    """Flows that go on round by round, as a flow that yields their merged requests as `Step`s. A
    part of a request that failed, by itself, is a "reply" step: observers know of the request."""
    flows = list(flows)
    done: dict[int, Any] = {}
    waiting: dict[int, Request] = {}

    def resume(i: int, outcome: _Outcome | None) -> None:
        try:
            step = _resumed(flows[i], outcome)
        except Exception as error:
            if not keep_exceptions:
                raise
            step = Returned(error)
        if isinstance(step, Returned):
            done[i] = step.value
            return
        if owners is not None and isinstance(step, Ask | Fetch):
            [column] = _COLUMNS[type(step)]
            owned: Any = {column: tuple(OwnedPrompt(text, owners[i]) for text in items(step))}
            step = replace(step, **owned)
        waiting[i] = step

    with ExitStack() as stack:  # all are closed, whatever one of them raises
        for flow in flows:
            stack.callback(flow.close)
        for i in range(len(flows)):
            resume(i, None)
        while waiting:
            asked, waiting = waiting, {}
            for request, members in _merge(asked, batch):
                indices, sizes = zip(*members, strict=True)
                merged = Step("request", request, flows=indices, shares=sizes)
                replies = yield from _outcome(merged)
                start, tried, faults = 0, list[bool](), 0
                for i, size in members:
                    if not isinstance(replies, Exception):
                        outcome, start = replies[start : start + size], start + size
                    elif len(members) > 1 and _may_repeat(asked[i], replies, tried):
                        part = Step("reply", asked[i], flows=(i,), shares=(size,))
                        outcome = yield from _outcome(part)
                        faults = faults + 1 if _prompts_fault(outcome) else 0
                        if not 0 < faults < _ALL_AT_FAULT:
                            tried.append(not isinstance(outcome, Exception))
                    else:
                        outcome = replies
                    resume(i, outcome)
        return [done[i] for i in range(len(flows))]


def _may_repeat(request: Request, failure: Exception, tried: Sequence[bool]) -> bool:
    """Whether a part of a failed call is asked for by itself, after those that were tried."""
    hopeless = len(tried) >= _HOPELESS and not any(tried[:_HOPELESS])
    if hopeless or isinstance(failure, errors.ModelUnavailable):
        return False
    return not isinstance(request, Ask) or request.may_repeat is None or request.may_repeat()


def _prompts_fault(outcome: _Outcome) -> bool:
    """Whether a part failed for what is in it, which says nothing of the others."""
    status = status_of(outcome.__cause__ or outcome) if isinstance(outcome, Exception) else None
    refused = status is not None and status // 100 == 4 and status not in PASSING
    return refused or isinstance(outcome, InvalidInput)


@contextmanager
def _call(
    step: Request | Step, observers: tuple[Observer, ...]
) -> Iterator[tuple[Request, list[Any]]]:
    """Tell observers of a request and of the reply that is put into the list; or put there what
    the model or retriever raises."""
    step = step if isinstance(step, Step) else Step("request", step)
    for observer in observers if step.kind == "request" else ():
        observer(step)
    start, outcome = time.perf_counter(), []
    try:
        yield step.request, outcome
    except Exception as error:
        outcome.append(error)
        return
    seconds = time.perf_counter() - start
    step = replace(step, kind="reply", reply=outcome[0], seconds=seconds)
    for observer in observers:
        observer(step)
