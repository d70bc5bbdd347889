"""One flow, three drivers: alone, on an event loop, side by side."""

import asyncio
import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import (
    InvalidInput,
    ModelError,
    ModelFailed,
    NeedsGradients,
    NoRetriever,
    NoTokenProbabilities,
    PromptTooLong,
    RetrievalError,
    RetrieverFailed,
    UnknownRequest,
)
from ltrag_plugins.flow import (
    Agree,
    Ask,
    Embed,
    Fetch,
    OwnedPrompt,
    Score,
    World,
    agree,
    arun,
    ask,
    embed,
    fetch,
    run,
    run_many,
    sample,
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


class Lengths:
    name = "lengths"

    def encode(self, texts):
        return np.array([[len(text), text.count(" ")] for text in texts], dtype=np.float32)


class Gradients:
    """The agreement of an instance is its length times the direction's only entry."""

    name = "gradients"

    def __init__(self):
        self.calls = []

    def generate(self, prompts, settings=GenerationSettings()):
        return [Generation(prompt) for prompt in prompts]

    def score(self, prompts, continuations):
        self.calls.append((tuple(prompts), tuple(continuations)))
        return [Generation(f"{p}+{c}") for p, c in zip(prompts, continuations, strict=True)]

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


@pytest.mark.parametrize("stop", ["END", ["END"], ("END",), np.array(["END"])])
def test_a_single_stop_string_is_one_and_not_its_letters(stop):
    [said] = run(ask("q", stop=stop), World(llm=ScriptedLLM(lambda _: "Neither END nor")))
    assert said.text == "Neither "


@pytest.mark.parametrize("wrong", [{"stop": None}, {"stop": 7}, {"max_tokens": "8"}])
def test_settings_of_a_call_that_are_none_are_refused(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be"):
        run(ask("q", **wrong), World(llm=ScriptedLLM(echo)))


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
    seeded = [{"temperature": 0.5, "seed": seed} for seed in (1, 2)]
    settings = [{}, {"max_tokens": 3}, {"stop": ["x"]}, {"temperature": 0.5}, *seeded]
    llm, retriever = ScriptedLLM(echo), Words()
    run_many([ask(f"{i}", **setting) for setting in settings for i in (1, 2)], World(llm=llm))
    assert llm.calls == [("1", "2")] * len(settings)
    run_many([fetch("a", k=1), fetch("b", k=2), fetch("c", k=1)], World(retriever=retriever))
    assert retriever.calls == [(("a", "c"), 1), (("b",), 2)]


class Eager:
    """Takes settings for each prompt, and writes down its calls."""

    name = "eager"

    def __init__(self):
        self.calls = []

    def generate(self, prompts, settings=GenerationSettings()):
        return self.generate_each(prompts, [settings] * len(prompts))

    def generate_each(self, prompts, settings):
        self.calls.append([*zip(prompts, settings, strict=True)])
        return [Generation(f"{p}{how.seed}") for p, how in self.calls[-1]]


class AsyncEager(Eager):
    async def agenerate(self, prompts, settings=GenerationSettings()):
        return self.generate(prompts, settings)

    async def agenerate_each(self, prompts, settings):
        return self.generate_each(prompts, settings)


def twice(question: str):
    """A draft of each of two prompts with its two samples, and one sample more of the first."""
    how = {"temperature": 0.5, "max_tokens": 3, "stop": "x"}
    found = yield from sample(question, question.upper(), samples=2, seed=4, draft=True, **how)
    [(one,)] = yield from sample(question, samples=1, seed=9, **how)
    return [[reply.text for reply in replies] for replies in (*found, [one])]


TWICE = [[["aNone", "a4", "a5"], ["ANone", "A4", "A5"], ["a9"]]]
TWICE += [[["bNone", "b4", "b5"], ["BNone", "B4", "B5"], ["b9"]]]


@pytest.mark.parametrize("model", [Eager, AsyncEager])
def test_an_answer_and_its_samples_are_one_call_of_a_model_that_takes_settings_for_each(model):
    llm = model()
    world = World(llm=llm)
    assert run_many([twice("a"), twice("b")], world) == TWICE
    how = [GenerationSettings(3, ("x",), 0.5 * (s > 0), s or None) for s in (0, 4, 5, 9)]
    assert llm.calls == [
        [(prompt, one) for prompt in "aAbB" for one in how[:3]],
        [("a", how[3]), ("b", how[3])],
    ]
    assert [run(twice("a"), world), asyncio.run(arun(twice("b"), world))] == TWICE
    assert [len(call) for call in llm.calls[2:]] == [6, 1, 6, 1]


class Plain:
    name = "plain"

    def __init__(self, more: int = 0):
        self.calls, self.more = [], more

    def generate(self, prompts, settings=GenerationSettings()):
        self.calls.append((tuple(prompts), settings.seed))
        return [Generation(f"{p}{settings.seed}") for p in prompts] + [Generation("")] * self.more


class AsyncPlain(Plain):
    async def agenerate(self, prompts, settings=GenerationSettings()):
        return self.generate(prompts, settings)


@pytest.mark.parametrize("model", [Plain, AsyncPlain])
def test_any_other_model_is_called_once_for_each_of_the_settings(model):
    llm = model()
    assert run_many([twice("a"), twice("b")], World(llm=llm)) == TWICE
    four = tuple("aAbB")
    assert llm.calls == [(four, None), (four, 4), (four, 5), (("a", "b"), 9)]
    assert asyncio.run(arun(twice("a"), World(llm=llm))) == TWICE[0]
    assert [seed for _, seed in llm.calls[4:]] == [None, 4, 5, 9]
    with pytest.raises(ModelError, match="3 replies came for 2 items"):
        run(twice("a"), World(llm=model(1)))
    with pytest.raises(ModelError, match="3 replies came for 2 items"):
        asyncio.run(arun(twice("a"), World(llm=model(1))))


def test_a_batch_bounds_a_call_and_cuts_no_request():
    llm, flows = ScriptedLLM(echo), (ask("a"), ask("b", "c"), ask("d"), ask(*"efg"), ask("h"))
    run_many(flows, World(llm), batch=2)
    assert llm.calls == [("a",), ("b", "c"), ("d",), ("e", "f", "g"), ("h",)]
    for wrong in (0, "4", 2.5):
        with pytest.raises(InvalidInput, match=f"batch must be at least 1, got {wrong!r}"):
            run_many([], World(), batch=wrong)


def asking(*prompts: str):
    replies = yield from ask(*prompts)
    second = yield from ask(f"again {replies[0].text}")
    return [reply.text for reply in replies] + [second[0].text]


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=9), batch=st.integers(1, 6))
def test_batches_change_no_answer_and_are_no_larger_than_asked(sizes, batch):
    prompts = [[f"{i}.{j}" for j in range(size)] for i, size in enumerate(sizes)]
    whole, cut = ScriptedLLM(str.upper), ScriptedLLM(str.upper)
    together = run_many([asking(*p) for p in prompts], World(llm=whole))
    apart = run_many([asking(*p) for p in prompts], World(llm=cut), batch=batch)
    assert apart == together
    assert cut.prompts == whole.prompts
    assert len(whole.calls) == 2
    # one flow's own request is never cut, so only a lone one may be larger
    assert all(len(call) <= max(batch, *sizes) for call in cut.calls)
    assert all(
        len(a) + len(b) > batch
        for a, b in zip(cut.calls, cut.calls[1:], strict=False)
        if b[0].startswith("again") == a[0].startswith("again")
    )


def test_observers_see_each_batch():
    seen = []
    observers = [lambda step: seen.append((step.kind, len(step.flows)))]
    flows = [asking(str(i)) for i in range(7)]
    run_many(flows, World(llm=ScriptedLLM(str.upper)), observers=observers, batch=3)
    assert seen == [(kind, n) for n in [3, 3, 1] * 2 for kind in ("request", "reply")]


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
    pairs = [score(["a"], ["1"]), score(["b", "c"], ["2", "3"])]
    llm, steps = Gradients(), []
    told = run_many([*pairs, ask("d"), score([], [])], World(llm=llm), observers=[steps.append])
    assert [[g.text for g in part] for part in told] == [["a+1"], ["b+2", "c+3"], ["d"], []]
    assert llm.calls == [(("a", "b", "c"), ("1", "2", "3"))]
    merged = [s for s in steps if isinstance(s.request, Score)]
    assert [(s.flows, s.shares) for s in merged] == [((0, 1, 3), (1, 2, 0))] * 2
    bounded = Gradients()
    run_many([score(["a"], ["1"]), score(["b", "c"], ["2", "3"])], World(llm=bounded), batch=2)
    assert [len(prompts) for prompts, _ in bounded.calls] == [1, 2]


def test_flows_of_different_lengths_end_in_their_own_places():
    def silent(value):
        return value
        yield

    world = World(llm=ScriptedLLM(str), retriever=Words(), encoder=Lengths())
    longest = curious("Emma", rounds=2, k=1, max_tokens=2)
    flows = [silent("at once"), ask("one"), silent("too"), longest]
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


async def test_a_models_exception_reaches_the_flow_which_may_go_on_or_answer():
    def patient(again: bool):
        try:
            yield from ask("bad")
        except ModelFailed as error:
            if not again:
                return "never mind"
            [reply] = yield from ask("good")
            return reply.text, type(error.__cause__)

    world = World(llm=ScriptedLLM(moody))
    told = await every_driver(lambda: patient(True), world)
    assert told == [("good", ConnectionResetError)] * 3
    assert await every_driver(lambda: patient(False), world) == ["never mind"] * 3


class Threads:
    """Says on which thread it was called, in more replies than it was asked for, or fewer."""

    name = "threads"

    def __init__(self, more: int = 0):
        self.more = more

    def generate(self, prompts, settings=GenerationSettings()):
        return [Generation(str(threading.get_ident()))] * (len(prompts) + self.more)

    def search(self, queries, k):
        return [[Passage(str(threading.get_ident()))]] * (len(queries) + self.more)

    def encode(self, texts):
        return np.full((len(texts) + self.more, 1), threading.get_ident())

    def score(self, prompts, continuations):
        return self.generate(prompts)


class AsyncThreads(Threads):
    async def agenerate(self, prompts, settings=GenerationSettings()):
        return self.generate(prompts)

    async def asearch(self, queries, k):
        return self.search(queries, k)


class Broken(Threads):
    def search(self, queries, k):
        raise OSError("gone")

    score = search

    def encode(self, texts):
        raise OSError("gone")


class Nothing(Threads):
    def search(self, queries, k):
        return [None for _ in queries]


class AsyncBroken(Broken):
    async def asearch(self, queries, k):
        return self.search(queries, k)


def confused():
    yield ask("forgot the from")


def of_agreement():
    return agree(["?"], ["!"], along={})


PAIR = (
    (lambda: ask("a", "b"), ModelError),
    (lambda: fetch("a", "b", k=1), RetrievalError),
    (lambda: embed("a", "b"), ModelError),
    (lambda: score(["a", "b"], ["1", "2"]), ModelError),
)
SCRIPT, FULL = World(llm=ScriptedLLM(moody)), World(Gradients(), Words(), Lengths())


@pytest.mark.parametrize(
    ("flow", "world", "kind", "says"),
    [
        *(
            (flow, World(off, off, off), kind, f"{2 + off.more} replies came for 2")
            for off in (Threads(-1), Threads(1), AsyncThreads(-1), AsyncThreads(1))
            for flow, kind in PAIR
        ),
        (lambda: ask("bad"), SCRIPT, ModelFailed, "hung up on bad"),
        (lambda: score(["a"], ["1"]), World(llm=Broken()), ModelFailed, "model raised OSErr"),
        (lambda: embed("a"), World(encoder=Broken()), ModelFailed, "encoder raised OSErr"),
        (lambda: fetch("q", k=1), World(retriever=Broken()), RetrieverFailed, "er raised OSErr"),
        (lambda: fetch("q", k=1), World(retriever=AsyncBroken()), RetrieverFailed, "gone"),
        (lambda: fetch("q", k=1), World(retriever=Nothing()), RetrievalError, "gave [None]"),
        (lambda: ask("?"), World(), ModelError, "needs the llm"),
        (lambda: score(["a"], ["1"]), World(), ModelError, "needs the llm"),
        (of_agreement, World(), ModelError, "needs the llm"),
        (lambda: fetch("?", k=1), SCRIPT, NoRetriever, "needs the retriever"),
        (lambda: embed("?"), SCRIPT, ModelError, "needs the encoder"),
        (of_agreement, SCRIPT, NeedsGradients, "scripted has no gradients"),
        (lambda: score(["a"], ["1"]), SCRIPT, NoTokenProbabilities, "reward='match'"),
        # merged with a neighbour's they would go to the wrong prompts
        (lambda: score(["a", "b"], ["1"]), FULL, InvalidInput, "2 prompts came with 1 contin"),
        *(
            (lambda one=one, how=how: one(["a", "b"], **how), FULL, InvalidInput, f"{name}(*texts)")
            for name, one, how in (
                ("ask", ask, {}),
                ("fetch", fetch, {"k": 1}),
                ("embed", embed, {}),
            )
        ),
        (lambda: ask("a", None), FULL, InvalidInput, "ask() must be given texts"),
        (confused, FULL, UnknownRequest, "yield from ask"),
    ],
)
async def test_what_goes_wrong_is_one_named_error_under_every_driver(flow, world, kind, says):
    for error in await every_driver(flow, world):
        assert type(error) is kind
        assert says in str(error)
        assert isinstance(error.__cause__, OSError) == (kind in (ModelFailed, RetrieverFailed))


@pytest.mark.parametrize("allocate", [lambda _: torch.empty(10**14), lambda _: np.ones(10**14)])
async def test_a_full_memory_is_named_and_not_taken_for_a_time_out(allocate):
    for error in await every_driver(lambda: ask("q"), World(llm=ScriptedLLM(allocate))):
        assert type(error) is ModelFailed
        assert "its memory is full; run fewer questions at once" in str(error)
        assert "time-out" not in str(error)


async def test_a_client_that_repeats_a_prompt_about_memory_is_not_taken_for_a_full_one():
    for error in await every_driver(lambda: ask("bad: out of memory"), SCRIPT):
        assert "hung up on bad: out of memory" in str(error)
        assert "a time-out or a rate limit passes" in str(error)


class Strict:
    """Answers a call as a whole or not at all; counts the calls."""

    name = "strict"

    def __init__(self, *refused: str) -> None:
        self.refused, self.calls = refused, []

    def generate(self, prompts, settings=GenerationSettings()):
        self.calls.append(list(prompts))
        if set(prompts) & set(self.refused):
            raise RuntimeError("no")
        return ScriptedLLM(str.upper).generate(prompts)


def test_a_prompt_that_fails_takes_no_other_of_its_call_with_it():
    world, seen, flows = World(llm=Strict("2")), [], [asking(str(i)) for i in range(5)]
    found = run_many(flows, world, return_exceptions=True, observers=[seen.append])
    assert [isinstance(f, ModelFailed) for f in found] == [False, False, True, False, False]
    assert [found[i] for i in (0, 1, 3, 4)] == [run(asking(str(i)), world) for i in (0, 1, 3, 4)]
    asked = [step.flows for step in seen if step.kind == "request"]
    assert asked == [(0, 1, 2, 3, 4), (0, 1, 3, 4)]  # five at first, then four that went on


def test_a_model_that_is_down_is_not_tried_for_each():
    llm = Strict(*map(str, range(50)))
    found = run_many([asking(str(i)) for i in range(50)], World(llm=llm), return_exceptions=True)
    assert all(isinstance(one, ModelFailed) for one in found)
    assert [len(call) for call in llm.calls] == [50, 1, 1, 1]


class Refused(Exception):
    """What a client raises at a status."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


@pytest.mark.parametrize(
    ("fault", "own"),
    [(PromptTooLong("9,000 tokens"), True), (Refused(400), True), (Refused(429), False)],
)
def test_only_failures_that_are_no_fault_of_the_prompt_give_a_model_up(fault, own):
    def model(prompt: str) -> str:
        if "bad" in prompt:
            raise fault
        return prompt

    llm, prompts = ScriptedLLM(model), ["bad 1", "bad 2", "bad 3", "bad 4", "good 5", "good 6"]
    found = run_many([ask(p) for p in prompts], World(llm), return_exceptions=True)
    assert [isinstance(one, Exception) for one in found] == [True] * 4 + [not own] * 2
    assert len(llm.calls) == (7 if own else 4)
    turned = run_many([ask(p) for p in prompts[::-1]], World(llm), return_exceptions=True)
    assert [isinstance(one, Exception) for one in turned] == [False] * 2 + [True] * 4


def test_where_every_prompt_seems_at_fault_it_is_not_the_prompts():
    def model(prompt: str) -> str:
        raise Refused(400)

    llm = ScriptedLLM(model)
    found = run_many([ask(f"{i}") for i in range(300)], World(llm), return_exceptions=True)
    assert all(isinstance(one, Exception) for one in found)
    assert len(llm.calls) == 1 + 22  # twenty, and the three that give a model up


def test_a_batch_that_fails_ends_the_others_where_exceptions_are_raised():
    llm = Strict("2")
    with pytest.raises(ModelFailed):
        run_many([asking(str(i)) for i in range(5)], World(llm=llm), batch=2)
    assert llm.calls[-2:] == [["2", "3"], ["2"]]


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
    flows = [closing_down(log, "a"), closing_down(log, "b")]
    with pytest.raises(Tripped):
        run_many(flows, world, observers=[observer], return_exceptions=True)
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

    async def slow(prompt):
        await together.wait()  # nobody is answered before all have asked
        return prompt

    world = World(llm=ScriptedLLM(slow))
    told = await asyncio.gather(*(arun(ask(f"{i}"), world) for i in range(200)))
    assert [reply.text for [reply] in told] == [f"{i}" for i in range(200)]


async def test_what_is_async_runs_on_the_loops_thread_and_the_rest_beside_it():
    plain, native = World(Threads(), Threads(), Threads()), World(AsyncThreads(), AsyncThreads())
    here = str(threading.get_ident())
    assert (await arun(ask("?"), plain))[0].text != here
    assert (await arun(fetch("?", k=1), plain))[0][0].text != here
    assert (await arun(embed("?"), plain))[0][0] != int(here)
    assert (await arun(ask("?"), native))[0].text == here
    assert (await arun(fetch("?", k=1), native))[0][0].text == here


async def test_observers_see_every_step_in_order():
    def flow():
        [[passage]] = yield from fetch("Emma", k=1)
        _, reply = yield from ask(passage.text, "b", max_tokens=2)
        return reply.text

    seen, order = [], []
    observers = [seen.append, lambda _: order.append("first"), lambda _: order.append("second")]
    world = World(llm=ScriptedLLM(str), retriever=Words())
    await every_driver(flow, world, observers=observers)
    found, asked = Fetch(("Emma",), 1), Ask((TEXTS[0], "b"), GenerationSettings(2))
    steps = [(kind, request) for request in (found, asked) for kind in ("request", "reply")]
    assert [(s.kind, s.request) for s in seen] == steps * 3
    assert [s.reply is None for s in seen] == [True, False] * 6
    assert [s.reply[1].text for s in seen[3::4]] == ["b"] * 3
    assert all(s.seconds >= 0 and (s.seconds == 0) == (s.kind == "request") for s in seen)
    assert order == ["first", "second"] * 12


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


def test_a_copy_of_a_prompt_and_what_goes_to_another_process_is_its_text():
    prompt = OwnedPrompt("who?", object())
    for copied in (pickle.loads(pickle.dumps(prompt)), copy.deepcopy(prompt)):
        assert (copied, type(copied)) == ("who?", str)


def test_a_direction_is_compared_by_identity_and_never_by_value():
    direction = {"w": np.zeros(2)}
    assert Agree(("a",), ("b",), direction) != Agree(("a",), ("b",), direction)
