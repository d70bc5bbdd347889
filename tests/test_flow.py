"""One flow, three drivers: alone, on an event loop, side by side."""

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import (
    InvalidInput,
    ModelError,
    ModelFailed,
    NeedsGradients,
    NoRetriever,
    NoTokenProbabilities,
    RetrievalError,
    RetrieverFailed,
    UnknownRequest,
)
from ltrag_plugins.flow import (
    Agree,
    Ask,
    Embed,
    Fetch,
    Score,
    World,
    agree,
    arun,
    ask,
    embed,
    fetch,
    run,
    run_many,
    score,
    together,
)
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement, Passage

TEXTS = ["Emma is by Austen", "Dune is by Herbert", "Ulysses is by Joyce", "Emma has a dog"]


class Words:
    """Finds the passages that share most words with the query."""

    def __init__(self):
        self.calls = []

    def search(self, queries, k):
        self.calls.append((tuple(queries), k))
        return [sorted(map(Passage, TEXTS), key=self._against(q))[:k] for q in queries]

    def _against(self, query):
        return lambda passage: -len(set(passage.text.split()) & set(query.split()))


class AsyncWords(Words):
    async def asearch(self, queries, k):
        await asyncio.sleep(0)
        return self.search(queries, k)


class Lengths:
    name = "lengths"

    def encode(self, texts):
        return np.array([[len(text), text.count(" ")] for text in texts], dtype=np.float32)


class Gradients:
    """The agreement of an instance is its length times the direction's only entry."""

    name = "gradients"

    def generate(self, prompts, settings=GenerationSettings()):
        return [Generation(prompt) for prompt in prompts]

    def score(self, prompts, continuations):
        return [Generation(text) for text in continuations]

    def mean_gradient(self, prompts, continuations, *, layers=4):
        return {}

    def gradient_agreement(self, prompts, continuations, *, along, cosine=False, layers=4):
        return [
            GradientAgreement(float(along["w"][0]) * len(p + c), layers if cosine else None)
            for p, c in zip(prompts, continuations, strict=True)
        ]


def echo(prompt: str) -> str:
    return f"{prompt.upper()} and {len(prompt)} more words"


def curious(question: str, *, rounds: int, k: int, max_tokens: int):
    """Searches with what it was told the round before."""
    told = question
    trace = [question]
    for _ in range(rounds):
        found, again = yield from fetch(told, question, k=k)
        replies = yield from ask(*(p.text for p in found), question, max_tokens=max_tokens)
        [row] = yield from embed(told)
        told = replies[-1].text
        trace += [p.text for p in again] + [reply.text for reply in replies] + row.tolist()
    return trace


questions = st.builds(
    dict,
    question=st.sampled_from(["who wrote Emma", "who wrote Dune", "is Ulysses long", "hm"]),
    rounds=st.integers(0, 4),
    k=st.integers(1, 3),
    max_tokens=st.integers(1, 4),
)


@given(st.lists(questions, max_size=6))
def test_all_drivers_give_what_each_flow_gives_alone(asked):
    world = World(llm=ScriptedLLM(echo), retriever=Words(), encoder=Lengths())

    async def together():
        return await asyncio.gather(*(arun(curious(**a), world) for a in asked))

    alone = [run(curious(**a), world) for a in asked]
    assert alone == run_many([curious(**a) for a in asked], world)
    assert alone == run_many([curious(**a) for a in asked], world, batch=2)
    assert alone == asyncio.run(together())


def test_the_model_is_called_once_a_round_however_many_flows_there_are():
    llm, retriever = ScriptedLLM(echo), Words()
    steps = []
    flows = [curious(q, rounds=3, k=2, max_tokens=4) for q in ("Emma", "Dune", "Ulysses")]
    world = World(llm=llm, retriever=retriever, encoder=Lengths())
    run_many(flows, world, observers=[steps.append])
    assert len(llm.calls) == len(retriever.calls) == 3
    assert [len(call) for call in llm.calls] == [9, 9, 9]
    sent = [(type(s.request), s.flows, s.shares) for s in steps if s.kind == "request"]
    shares = {Fetch: (2, 2, 2), Ask: (3, 3, 3), Embed: (1, 1, 1)}
    assert sent == [(kind, (0, 1, 2), shares[kind]) for kind in (Fetch, Ask, Embed)] * 3


def test_requests_with_different_settings_do_not_share_a_call():
    settings = [
        {},
        {"max_tokens": 3},
        {"stop": ["x"]},
        {"temperature": 0.5},
        {"temperature": 0.5, "seed": 1},
        {"temperature": 0.5, "seed": 2},
    ]
    llm = ScriptedLLM(echo)
    flows = [ask(f"{i}", **setting) for setting in settings for i in (1, 2)]
    run_many(flows, World(llm=llm))
    assert llm.calls == [("1", "2")] * len(settings)
    retriever = Words()
    run_many([fetch("a", k=1), fetch("b", k=2), fetch("c", k=1)], World(retriever=retriever))
    assert retriever.calls == [(("a", "c"), 1), (("b",), 2)]


def test_a_batch_bounds_a_call_and_cuts_no_request():
    llm = ScriptedLLM(echo)
    run_many([ask("a"), ask("b", "c"), ask("d"), ask("e", "f", "g"), ask("h")], World(llm), batch=2)
    assert llm.calls == [("a",), ("b", "c"), ("d",), ("e", "f", "g"), ("h",)]


def test_a_batch_below_one_is_refused():
    with pytest.raises(InvalidInput, match="batch"):
        run_many([], World(), batch=0)


def test_gradient_requests_merge_along_one_direction_and_not_along_two():
    one, two = {"w": np.array([1.0])}, {"w": np.array([2.0])}
    flows = [
        agree(["a"], ["b"], along=one),
        agree(["aa", "b"], ["b", "b"], along=one),
        agree(["a"], ["b"], along=two),
        agree(["a"], ["b"], along=one, cosine=True, layers=2),
    ]
    steps = []
    told = run_many(flows, World(llm=Gradients()), observers=[steps.append])
    assert [[a.dot for a in part] for part in told] == [[2.0], [3.0, 2.0], [4.0], [2.0]]
    assert told[3][0].cosine == 2
    assert [s.flows for s in steps if s.kind == "reply"] == [(0, 1), (2,), (3,)]


def test_scores_merge_into_one_call_and_each_flow_gets_its_own():
    class Lengths(Gradients):
        def __init__(self):
            self.calls = []

        def score(self, prompts, continuations):
            self.calls.append((tuple(prompts), tuple(continuations)))
            return [Generation(f"{p}+{c}") for p, c in zip(prompts, continuations, strict=True)]

    flows = [score(["a"], ["1"]), score(["b", "c"], ["2", "3"]), ask("d"), score([], [])]
    llm, steps = Lengths(), []
    told = run_many(flows, World(llm=llm), observers=[steps.append])
    assert [[g.text for g in part] for part in told] == [["a+1"], ["b+2", "c+3"], ["d"], []]
    assert llm.calls == [(("a", "b", "c"), ("1", "2", "3"))]
    merged = [s for s in steps if isinstance(s.request, Score)]
    assert [(s.flows, s.shares) for s in merged] == [((0, 1, 3), (1, 2, 0))] * 2
    bounded = Lengths()
    run_many([score(["a"], ["1"]), score(["b", "c"], ["2", "3"])], World(llm=bounded), batch=2)
    assert [len(prompts) for prompts, _ in bounded.calls] == [1, 2]


async def test_a_score_is_the_same_under_every_driver():
    world = World(llm=Gradients())
    for told in await every_driver(lambda: score(["a", "b"], ["1", "2"]), world):
        assert [g.text for g in told] == ["1", "2"]


async def test_continuations_that_are_not_one_for_each_prompt_are_refused():
    # merged with a neighbour's they would go to the wrong prompts
    for error in await every_driver(lambda: score(["a", "b"], ["1"]), World(llm=Gradients())):
        assert isinstance(error, InvalidInput)
        assert "2 prompts came with 1 continuations" in str(error)


async def test_a_model_that_cannot_score_is_named_with_a_remedy():
    for error in await every_driver(lambda: score(["a"], ["1"]), World(llm=ScriptedLLM(str))):
        assert isinstance(error, NoTokenProbabilities)
        assert "scripted cannot tell" in str(error)
        assert "reward='match'" in str(error)
    for error in await every_driver(lambda: score(["a"], ["1"]), World()):
        assert type(error) is ModelError


async def test_a_scorer_that_raises_or_miscounts_is_named_as_the_model():
    class Broken(Gradients):
        def score(self, prompts, continuations):
            raise OSError("gone")

    class Short(Gradients):
        def score(self, prompts, continuations):
            return super().score(prompts[1:], continuations[1:])

    for error in await every_driver(lambda: score(["a"], ["1"]), World(llm=Broken())):
        assert isinstance(error, ModelFailed)
        assert isinstance(error.__cause__, OSError)
    for error in await every_driver(lambda: score(["a", "b"], ["1", "2"]), World(llm=Short())):
        assert isinstance(error, ModelError)
        assert "1 replies came for 2 items" in str(error)


def test_flows_of_different_lengths_end_in_their_own_places():
    def silent(value):
        return value
        yield

    flows = [
        silent("at once"),
        ask("one"),
        silent("too"),
        curious("Emma", rounds=2, k=1, max_tokens=2),
    ]
    world = World(llm=ScriptedLLM(str), retriever=Words(), encoder=Lengths())
    first, second, third, fourth = run_many(flows, world)
    assert (first, third) == ("at once", "too")
    assert second == [Generation("one", None, 1, 1)]
    assert fourth[0] == "Emma"
    assert run_many([], world) == []
    assert run(silent(5), World()) == 5
    assert asyncio.run(arun(silent(5), World())) == 5


def moody(prompt: str) -> str:
    if "bad" in prompt:
        raise ConnectionResetError(f"hung up on {prompt}")
    return prompt


async def every_driver(flow, world, **settings):
    """The outcome of each driver on a fresh flow: its result, or what it raised."""
    outcomes = []
    for drive in (
        lambda: asyncio.to_thread(run, flow(), world, **settings),
        lambda: arun(flow(), world, **settings),
        lambda: asyncio.to_thread(lambda: run_many([flow()], world, **settings)[0]),
    ):
        try:
            outcomes.append(await drive())
        except Exception as error:
            outcomes.append(error)
    return outcomes


async def test_a_models_exception_reaches_the_flow_at_its_yield_and_the_flow_goes_on():
    def patient(prompt):
        try:
            yield from ask(prompt)
        except ModelFailed as error:
            [reply] = yield from ask("good")
            return reply.text, type(error.__cause__)

    told = await every_driver(lambda: patient("bad"), World(llm=ScriptedLLM(moody)))
    assert told == [("good", ConnectionResetError)] * 3


async def test_a_flow_may_answer_a_failure_with_its_result():
    def resigned():
        try:
            yield from ask("bad")
        except ModelFailed:
            return "never mind"

    told = await every_driver(resigned, World(llm=ScriptedLLM(moody)))
    assert told == ["never mind"] * 3


async def test_what_a_flow_does_not_catch_reaches_the_caller_with_its_cause():
    for error in await every_driver(lambda: ask("bad"), World(llm=ScriptedLLM(moody))):
        assert isinstance(error, ModelFailed)
        assert isinstance(error.__cause__, ConnectionResetError)
        assert "hung up on bad" in str(error)


async def test_a_retrievers_exception_is_named_as_such():
    class Broken:
        def search(self, queries, k):
            raise OSError("index gone")

    class AsyncBroken(Broken):
        async def asearch(self, queries, k):
            return self.search(queries, k)

    for retriever in (Broken(), AsyncBroken()):
        for error in await every_driver(lambda: fetch("q", k=1), World(retriever=retriever)):
            assert isinstance(error, RetrieverFailed)
            assert isinstance(error.__cause__, OSError)


async def test_what_is_not_in_the_world_is_named():
    direction = {}
    for flow, world, kind in [
        (lambda: ask("?"), World(), ModelError),
        (lambda: fetch("?", k=1), World(llm=ScriptedLLM(str)), NoRetriever),
        (lambda: embed("?"), World(llm=ScriptedLLM(str)), ModelError),
        (lambda: agree(["?"], ["!"], along=direction), World(llm=ScriptedLLM(str)), NeedsGradients),
        (lambda: agree(["?"], ["!"], along=direction), World(), ModelError),
    ]:
        for error in await every_driver(flow, world):
            assert isinstance(error, kind)


async def test_what_is_no_request_raises_unknown_request():
    def confused():
        yield ask("forgot the from")

    for error in await every_driver(confused, World(llm=ScriptedLLM(str))):
        assert isinstance(error, UnknownRequest)
        assert "yield from ask" in str(error)


async def test_too_many_or_too_few_replies_are_never_handed_to_the_wrong_prompt():
    class Off:
        name = "off"

        def __init__(self, by):
            self.by = by

        def generate(self, prompts, settings=GenerationSettings()):
            return [Generation(prompt) for prompt in [*prompts, "extra"][: len(prompts) + self.by]]

        def search(self, queries, k):
            return [[]] * (len(queries) + self.by)

        def encode(self, texts):
            return np.zeros((len(texts) + self.by, 2), dtype=np.float32)

    class AsyncOff(Off):
        async def agenerate(self, prompts, settings=GenerationSettings()):
            return self.generate(prompts)

        async def asearch(self, queries, k):
            return self.search(queries, k)

    for by, kind in [(by, kind) for by in (-1, 1) for kind in (Off, AsyncOff)]:
        off = kind(by)
        world = World(llm=off, retriever=off, encoder=off)
        for flow, raised in (
            (lambda: ask("a", "b"), ModelError),
            (lambda: fetch("a", "b", k=1), RetrievalError),
            (lambda: embed("a", "b"), ModelError),
        ):
            for error in await every_driver(flow, world):
                assert isinstance(error, raised)
                assert f"{2 + by} replies came for 2" in str(error)


def test_one_failing_flow_leaves_its_neighbours_alone_if_asked_to():
    def careful(question, settings):
        [reply] = yield from ask(question, **settings)
        return reply.text

    def flows():
        apart = {"max_tokens": 5}
        return [careful("a", {}), careful("bad", apart), careful("c", {}), careful("bad d", apart)]

    world = World(llm=ScriptedLLM(moody))
    first, second, third, fourth = run_many(flows(), world, return_exceptions=True)
    assert (first, third) == ("a", "c")
    assert isinstance(second, ModelFailed)
    assert isinstance(fourth, ModelFailed)  # it was in the call that failed
    with pytest.raises(ModelFailed, match="bad"):
        run_many(flows(), world)


def test_prompts_that_may_not_repeat_are_not_sent_once_more():
    entered = []

    def counting(prompt, *, allowed):
        def may_repeat():
            entered.append(prompt)
            return allowed

        return ask(prompt, may_repeat=may_repeat)

    llm = ScriptedLLM(moody)
    flows = [counting("a", allowed=True), counting("b", allowed=False), ask("bad"), ask("d")]
    first, second, third, fourth = run_many(flows, World(llm), return_exceptions=True)
    assert entered == ["a", "b"]  # and only since "bad" was in their call
    assert llm.prompts == ["a", "b", "bad", "d", "a", "bad", "d"]
    assert (first[0].text, fourth[0].text) == ("a", "d")
    assert isinstance(second, ModelFailed)
    assert isinstance(third, ModelFailed)
    entered.clear()
    run_many([counting("a", allowed=False), counting("b", allowed=False)], World(llm))
    assert not entered


def test_a_flow_with_a_bug_fails_in_its_own_place():
    def buggy():
        yield from ask("a")
        raise KeyError("oops")

    first, second = run_many([buggy(), ask("b")], World(ScriptedLLM(str)), return_exceptions=True)
    assert isinstance(first, KeyError)
    assert second[0].text == "b"


def closing_down(log, *prompts):
    """Notes when it is closed, and goes on after whatever is thrown into it."""
    try:
        for prompt in prompts:
            try:
                yield from ask(prompt)
            except Exception as error:
                log.append(error)
    finally:
        log.append("closed")


class Tripped(Exception):
    """Raised by an observer."""


@pytest.mark.parametrize("kind", ["request", "reply"])
async def test_what_an_observer_raises_ends_the_run_and_closes_the_flows(kind):
    log = []

    def observer(step):
        if step.kind == kind:
            raise Tripped

    world = World(llm=ScriptedLLM(str))
    outcomes = await every_driver(lambda: closing_down(log, "a", "b"), world, observers=[observer])
    assert [type(outcome) for outcome in outcomes] == [Tripped] * 3
    assert log == ["closed"] * 3
    log.clear()
    with pytest.raises(Tripped):
        run_many(
            [closing_down(log, "a"), closing_down(log, "b")],
            world,
            observers=[observer],
            return_exceptions=True,
        )
    assert log == ["closed"] * 2


def test_all_flows_are_closed_when_one_raises():
    log = []
    with pytest.raises(ModelFailed):
        run_many([closing_down(log, "a", "b"), ask("bad", max_tokens=1)], World(ScriptedLLM(moody)))
    assert log == ["closed"]


async def test_cancelling_closes_the_flow():
    log, asked = [], asyncio.Event()

    async def never(prompt):
        asked.set()
        await asyncio.Event().wait()
        return prompt

    task = asyncio.create_task(arun(closing_down(log, "a", "b"), World(llm=ScriptedLLM(never))))
    await asked.wait()
    assert log == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["closed"]


async def test_two_hundred_flows_wait_for_a_slow_model_together():
    together = asyncio.Barrier(200)
    now = most = 0

    async def slow(prompt):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await together.wait()  # nobody is answered before all have asked
        now -= 1
        return prompt

    world = World(llm=ScriptedLLM(slow))
    told = await asyncio.gather(*(arun(ask(f"{i}"), world) for i in range(200)))
    assert [reply.text for [reply] in told] == [f"{i}" for i in range(200)]
    assert most == 200


class WhereAmI:
    """Says on which thread it was called."""

    name = "where"

    def generate(self, prompts, settings=GenerationSettings()):
        return [Generation(str(threading.get_ident())) for _ in prompts]

    def search(self, queries, k):
        return [[Passage(str(threading.get_ident()))] for _ in queries]

    def encode(self, texts):
        return np.array([[threading.get_ident()] for _ in texts], dtype=np.float64)


class AsyncWhereAmI(WhereAmI):
    async def agenerate(self, prompts, settings=GenerationSettings()):
        return self.generate(prompts)

    async def asearch(self, queries, k):
        return self.search(queries, k)


async def test_what_is_async_runs_on_the_loops_thread_and_the_rest_beside_it():
    here = threading.get_ident()
    plain = World(llm=WhereAmI(), retriever=WhereAmI(), encoder=WhereAmI())
    native = World(llm=AsyncWhereAmI(), retriever=AsyncWhereAmI())
    assert (await arun(ask("?"), plain))[0].text != str(here)
    assert (await arun(fetch("?", k=1), plain))[0][0].text != str(here)
    assert (await arun(embed("?"), plain))[0][0] != here
    assert (await arun(ask("?"), native))[0].text == str(here)
    assert (await arun(fetch("?", k=1), native))[0][0].text == str(here)


async def test_observers_see_every_step_in_order():
    def flow():
        [[passage]] = yield from fetch("Emma", k=1)
        _, reply = yield from ask(passage.text, "b", max_tokens=2)
        return reply.text

    for drive in ("run", "arun", "run_many"):
        seen, order = [], []
        world = World(llm=ScriptedLLM(str), retriever=AsyncWords())
        observers = [
            lambda step, seen=seen: seen.append(step),
            lambda step, order=order: order.append("first"),
            lambda step, order=order: order.append("second"),
        ]
        if drive == "run":
            await asyncio.to_thread(run, flow(), world, observers=observers)
        elif drive == "arun":
            await arun(flow(), world, observers=iter(observers))
        else:
            await asyncio.to_thread(run_many, [flow()], world, observers=observers)
        found, asked = Fetch(("Emma",), 1), Ask((TEXTS[0], "b"), GenerationSettings(2))
        assert [(s.kind, s.request) for s in seen] == [
            ("request", found),
            ("reply", found),
            ("request", asked),
            ("reply", asked),
        ]
        assert [s.reply is None for s in seen] == [True, False] * 2
        assert seen[3].reply[1].text == "b"
        assert all(s.seconds >= 0 and (s.seconds == 0) == (s.kind == "request") for s in seen)
        assert order == ["first", "second"] * 4


def test_every_prompt_of_a_merged_call_knows_whose_it_is(tmp_path):
    """Through an answer cache too, which asks only for what it has not got; and asked once more."""

    class Owners:
        name = "owners"

        def generate(self, prompts, settings=GenerationSettings()):
            seen.append([(str(prompt), prompt.owner) for prompt in prompts])
            if "c" in prompts:
                raise OSError("filtered")
            return [Generation(prompt) for prompt in prompts]

    def outcomes(llm, *prompts):
        flows = [together([ask(prompt)]) for prompt in prompts]
        return run_many(flows, World(llm=llm), owners=[1, 2, 3], return_exceptions=True)

    seen = []
    outcomes(Owners(), "a", "b", "c")
    together_once = [("a", 1), ("b", 2), ("c", 3)]
    assert seen == [together_once, *([pair] for pair in together_once)]
    cached = CachedLLM(Owners(), tmp_path / "answers.sqlite")
    outcomes(cached, "a", "b", "a")
    outcomes(cached, "d", "a", "e")
    assert seen[-1] == [("d", 1), ("e", 3)]


def test_a_direction_is_compared_by_identity_and_never_by_value():
    direction = {"w": np.zeros(2)}
    assert Agree(("a",), ("b",), direction) != Agree(("a",), ("b",), direction)
