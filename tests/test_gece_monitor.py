"""A gate at work: what its monitor says, and what audits cost nobody."""

import asyncio
import atexit
import copy
import gc
import json
import logging
import math
import pickle
import random
import re
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.graph import START, MessagesState, StateGraph
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response import schema
from llama_index.core.query_engine import CustomQueryEngine
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scipy.stats import binomtest

from ltrag_plugins import artifacts, langchain, llama_index
from ltrag_plugins.errors import CacheUnreadable, InvalidInput
from ltrag_plugins.evaluate import cell_of, evaluate
from ltrag_plugins.flow import World, run
from ltrag_plugins.gece import Decision, GECEGate, GECESettings
from ltrag_plugins.gece.decision import guarded, question_digest
from ltrag_plugins.gece.monitor import WINDOW, Watch, Watched, estimated, monitor
from ltrag_plugins.gece.store import DecisionStore
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.calibration import Interval, bootstrap_interval
from ltrag_plugins.report.watch_figures import watch_pictures
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Generation, Passage, Question
from tests.llama_index_parts import FunctionLLM
from tests.router_parts import Engine, knows_the_odd, number

QUESTIONS = [f"Which city is number {i} of the list?" for i in range(40)]


@pytest.fixture(scope="module")
def gate():
    """Knows the odd cities, and that it does."""
    asked = [Question(text, (f"City {number(text)}",)) for text in QUESTIONS]
    settings = GECESettings(folds=2)
    llm = ScriptedLLM(knows_the_odd, name="odd")
    return GECEGate.fit(asked, llm=llm, target_rate=0.5, settings=settings)


def records(count: int, seed: int = 0, **of) -> list[Watched]:
    """Decisions with scores between 0 and 1, of which those above 0.6 retrieve."""
    rng, made = np.random.default_rng(seed), []
    low, high = of.pop("scores", (0.0, 1.0))
    for i in range(count):
        score = rng.uniform(low, high)
        parts = {"gate": 1, "chance": 0.05, "sampled": False, "signals": {"x": score}} | of
        made.append(
            Watched(f"{seed}-{i}", "", float(i), retrieve=score > 0.6, score=score, **parts)
        )
    return made


def fitted(promised: float = 0.8, questions: int = 400):
    """What a monitor reads of a gate whose scores at the fit were even between 0 and 1."""
    even = np.linspace(0, 1, questions)
    rate, kept = Interval(0.4, 0.35, 0.45, 0.95), Interval(promised, promised - 0.05, 1.0, 0.95)
    report = SimpleNamespace(
        retrieval_rate=rate, kept_accuracy=kept, questions=questions, agreement=1.0
    )
    points = np.quantile(even, np.linspace(0, 1, 21))[None]
    return SimpleNamespace(
        report=report, fitted=SimpleNamespace(scores=even, names=("x",), quantiles=points)
    )


@pytest.mark.parametrize(("count", "size"), [(30, 30), (50, 50), (99, 50), (1999, 66)])
def test_the_last_point_of_the_share_retrieved_is_of_the_newest_decisions(count, size):
    seen = records(count)
    [axes] = watch_pictures(seen, monitor(seen, fitted()))[0].figure.axes
    [line] = [one for one in axes.lines if one.get_label() == f"of {size} decisions each"]
    ends, shares = line.get_data()
    newest = [seen.pop().retrieve for _ in range(size)]
    assert (ends[-1], shares[-1]) == (count, pytest.approx(sum(newest) / size))
    assert len(ends) == count // size


def audits_of(agrees, chances):
    pairs = zip(agrees, chances, strict=True)
    return [SimpleNamespace(agrees=one, chance=chance) for one, chance in pairs]


def test_audits_of_one_chance_have_wilsons_interval():
    for agree, count in ((0, 3), (7, 9), (40, 50)):
        agrees = [True] * agree + [False] * (count - agree)
        found = estimated(audits_of(agrees, [0.05] * count))
        theirs = binomtest(agree, count).proportion_ci(method="wilson")
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-6)
        assert found.value == pytest.approx(agree / count)


def test_audits_of_several_chances_estimate_the_share_of_all():
    # every way the coins of four answers can fall, with its probability
    agrees, chances = [True, True, False, False], [0.9, 0.5, 0.9, 0.2]
    weighted = plain = 0.0
    for fell in product((0, 1), repeat=4):
        p = np.prod([c if f else 1 - c for f, c in zip(fell, chances, strict=True)])
        some = [i for i in range(4) if fell[i]]
        if some:
            kept = [agrees[i] for i in some], [chances[i] for i in some]
            weighted += p * sum(a / c for a, c in zip(*kept, strict=True))
            plain += p * sum(1 / c for c in kept[1])
            total = sum(1 / c for c in kept[1])
            share = sum(a / c for a, c in zip(*kept, strict=True)) / total
            assert estimated(audits_of(*kept)).value == pytest.approx(share)
    assert (weighted, plain) == pytest.approx((sum(agrees), len(agrees)))  # both without bias


def test_a_gate_whose_questions_stay_the_same_holds():
    found = monitor(records(3 * WINDOW), fitted())
    assert found.state == "holds"
    assert found.retrieved == pytest.approx(0.4, abs=0.05)
    assert (found.expected, found.audits, found.agreement) == (0.4, 0, None)
    assert found.stability < 0.1 < found.ks_p


def test_before_a_whole_window_nothing_is_said():
    assert (
        monitor(records(57, scores=(0.9, 1.0)), fitted()).state == "too early: 57 of 200 decisions"
    )


def test_other_questions_are_a_drift_and_if_that_lasts_a_reason_to_fit_again():
    before, after = records(2 * WINDOW), records(2 * WINDOW, 1, scores=(0.3, 1.0))
    assert monitor(before + after[: WINDOW - 1], fitted()).state == "holds"
    found = monitor(before + after[:WINDOW], fitted())
    assert found.state.startswith("drifting: ")
    assert f"{found.window:.0%} retrieved, 40% at the fit" in found.state
    assert monitor(before + after, fitted()).state.startswith("fit again: ")
    bins = [np.histogram([r.score for r in after[:WINDOW]], np.linspace(0, 1, 11))[0], [40] * 10]
    q, p = ((np.array(some) + 0.5) / (sum(some) + 5) for some in bins)
    assert found.stability == pytest.approx(float(np.sum((q - p) * np.log(q / p))), rel=1e-3)


def test_a_signal_that_moves_is_a_drift_where_scores_and_rate_stay():
    moved = [replace(record, signals={"x": 0.3}) for record in records(WINDOW)]
    state = monitor(records(WINDOW, 1) + moved, fitted()).state
    assert state.startswith("drifting: the questions have changed (x)")


def test_longer_questions_are_a_drift_where_all_that_the_gate_reads_stays(gate):
    lengths = np.random.default_rng(0).integers(6, 13, size=400)
    asked = fitted()
    asked.report.question_words = np.quantile(lengths, np.linspace(0, 1, 21)).tolist()

    def long(some, more):
        return [
            replace(r, signals=r.signals | {"question length": float(n + more)})
            for r, n in zip(some, lengths, strict=False)
        ]

    before = long(records(WINDOW), 0)
    assert monitor(before + long(records(WINDOW, 1), 0), asked).state == "holds"
    state = monitor(before + long(records(WINDOW, 1), 3), asked).state
    assert state.startswith("drifting: the questions have changed (question length)")
    # a router at work notes what the fit measured: the words of the question
    assert gate.report.question_words == (8.0,) * 21
    watch = Watch(gate, rng=random.Random(0))
    watch.saw(run(gate.deciding(QUESTIONS[3]), gate.world), None)
    [record] = watch._store.records(0, 10)
    assert record.signals["question length"] == 8.0


def test_a_bunch_of_scores_that_moves_a_little_is_no_drift():
    some = [replace(r, score=float(r.score > 0.5), signals={"x": 0.5}) for r in records(WINDOW)]
    gate = fitted()
    gate.fitted.scores = np.repeat([0.02, 0.97], 200)  # by the fit's own questions a little less
    gate.fitted.quantiles = np.full((1, 21), 0.5)
    held = [replace(r, retrieve=i % 5 < 2) for i, r in enumerate(some)]
    assert monitor(held, gate).state == "holds"
    moved = [replace(r, score=r.score + 0.2) for r in held]
    assert "the questions have changed (the scores)" in monitor(moved, gate).state


def test_direct_answers_that_agree_less_than_promised_are_a_reason_to_fit_again():
    some = records(WINDOW, scores=(0.0, 1.0))
    audited = records(30, 2, scores=(0.0, 0.5), sampled=True, agrees=False)
    state = monitor(audited + some, fitted()).state
    assert state == "fit again: 0% of the direct answers agree, 80% at the fit"
    assert monitor(audited[:3] + some, fitted()).state == "holds"  # three may be chance
    agreeing = records(30, 2, scores=(0.0, 0.5), sampled=True, agrees=True)
    all_agreed = fitted(1.0)
    all_agreed.report.kept_accuracy = Interval(1.0, 1.0, 1.0, 0.95)
    for count in range(1, 31):
        assert monitor(agreeing[:count] + some, all_agreed).state == "holds"
    found = monitor(agreeing + some, fitted())
    assert (found.state, found.audits, found.agreement.value) == ("holds", 30, 1.0)


@pytest.mark.parametrize(("agree", "count"), [(29, 30), (999, 1000), (0, 30)])
def test_one_audit_that_disagrees_is_nothing_where_all_that_the_fit_kept_agreed(agree, count):
    gate = fitted(1.0)
    gate.report.kept_accuracy = bootstrap_interval(np.ones(240))  # from 1 to 1
    gate.fitted = None  # scores and signals are not looked at
    audited = records(count, 2, scores=(0.0, 0.5), sampled=True)
    audited = [replace(r, agrees=i < agree) for i, r in enumerate(audited)]
    assert monitor(audited + records(WINDOW), gate).state.startswith("fit again") == (not agree)


@pytest.mark.parametrize("agreement", [0.0, 0.5])
def test_agreement_at_work_is_not_held_against_accepted_answers_at_the_fit(agreement):
    gate = fitted(0.95)
    gate.fitted, gate.report.agreement = None, agreement  # scores and signals are not looked at
    audited = records(100, 2, scores=(0.0, 0.5), sampled=True)
    audited = [replace(r, agrees=i % 10 < 7) for i, r in enumerate(audited)]
    found = monitor(audited + records(WINDOW), gate)
    assert (found.state, found.agreement.value) == ("holds", pytest.approx(0.7))
    gate.report.agreement = 1.0
    state = monitor(audited + records(WINDOW), gate).state
    assert state == "fit again: 70% of the direct answers agree, 95% at the fit"


def test_popular_questions_are_no_drift_where_each_was_learned_from_once():
    rng = np.random.default_rng(0)

    def traffic(count: int) -> list[Watched]:
        """Every second one is one of ten popular questions, with low scores."""
        made = []
        for i, new in enumerate(records(count, int(rng.integers(10**9)))):
            place = int(rng.integers(10))
            score = 0.05 + 0.03 * place if i % 2 else new.score
            asked = f"popular {place}" if i % 2 else new.id
            of = {"question": asked, "score": score, "signals": {"x": score}}
            made.append(replace(new, retrieve=score > 0.6, **of))
        return made

    gate, seen = fitted(), {r.question: r.score for r in traffic(400)}
    gate.fitted.scores = np.sort([*seen.values()])
    gate.fitted.quantiles = np.quantile(gate.fitted.scores, np.linspace(0, 1, 21))[None]
    gate.report.questions, share = len(seen), float(np.mean(gate.fitted.scores > 0.6))
    gate.report.retrieval_rate = Interval(share, share, share, 0.95)
    later = traffic(5 * WINDOW)
    ends = range(WINDOW, len(later) + 1, WINDOW)
    assert {monitor(later[:end], gate, learned=True).state for end in ends} == {"holds"}
    assert monitor(later[:WINDOW], gate).state.startswith("drifting")  # if it had seen traffic


def test_a_store_without_learning_keeps_the_latest_too(gate, tmp_path, monkeypatch):
    monkeypatch.setattr("ltrag_plugins.gece.store._MOST", 10)
    watch, decision = Watch(gate, store=tmp_path / "s"), gate.decide(QUESTIONS[9])
    for _ in range(2000):
        watch.saw(decision, None)
    assert watch.settle()
    with DecisionStore(tmp_path / "s") as store:
        assert len(store.records(1, 5000)) == 10


def routers(gate, **how):
    """The same gate before a chain and before an engine, what they note, and how each is asked."""
    asked: list[str] = []

    def chain(text: str) -> str:
        asked.append(text)
        return "City 7"

    engine = Engine(llm=FunctionLLM(lambda prompt: "City 7"), asked=[])
    first = langchain.GECERouter(gate, RunnableLambda(chain), **how)
    second = llama_index.GECERouter(gate, engine, **how)
    yield first, asked, first.invoke
    yield second, engine.asked, lambda text: str(second.query(text))


def test_audits_ask_the_chain_what_was_answered_directly(gate):
    for router, asked, ask in routers(gate, audit_rate=1.0):
        texts = [f"Which city is number {i} of the list?" for i in range(101, 121)] + [QUESTIONS[7]]
        answers = [ask(text) for text in texts]
        assert router.settle()
        direct = [
            t for t, answer in zip(texts, answers, strict=True) if answer == f"City {number(t)}"
        ]
        assert sorted(asked) == sorted(texts)  # the chain's own, and those of the audits
        found = router.monitor
        assert (found.decisions, found.audits) == (21, len(direct))
        assert found.agreement.value == pytest.approx(1 / len(direct))  # "City 7" alone
        assert found.failed == 0


def test_a_judge_is_asked_of_what_was_answered_directly_alone(gate):
    judge = ScriptedLLM(lambda prompt: "no")
    long = RunnableLambda(lambda text: "That is, as far as anybody here knows, the city of Rome.")
    router = langchain.GECERouter(gate, long, audit_rate=1.0, correct=judge)
    for text in QUESTIONS:
        router.invoke(text)
    assert router.settle()
    found = router.monitor
    assert 0 < found.retrieved < 1
    assert len(judge.prompts) == found.audits == len(QUESTIONS) * (1 - found.retrieved)


def test_a_deep_copy_of_a_router_counts_with_it(gate, tmp_path):
    for i, (router, _, ask) in enumerate(routers(gate, store=tmp_path / "s")):
        twin = copy.deepcopy(router)
        assert ask(QUESTIONS[7]) == "City 7"
        assert str(twin.invoke(QUESTIONS[9]) if i == 0 else twin.query(QUESTIONS[9])) == "City 9"
        assert router.settle()
        assert twin.monitor.decisions == router.monitor.decisions == 2 * i + 2
    with DecisionStore(tmp_path / "s") as store:
        assert copy.deepcopy(store) is store
        with pytest.raises(InvalidInput, match=r"DecisionStore cannot be pickled, .* Make it"):
            pickle.dumps(store)


def test_a_router_without_audits_asks_nothing_more(gate):
    for router, asked, ask in routers(gate):
        assert ask(QUESTIONS[7]) == "City 7"
        assert asked == []
        assert router.monitor.state == "too early: 1 of 200 decisions"


def test_a_chain_that_fails_in_an_audit_is_counted_and_said_a_few_times(gate, caplog):
    def chain(text: str) -> str:
        raise ConnectionError("no index")

    router = langchain.GECERouter(gate, RunnableLambda(chain), audit_rate=1.0)
    for _ in range(9):
        assert router.invoke(QUESTIONS[7]) == "City 7"
    assert router.settle()
    assert router.monitor.failed == 9
    assert caplog.text.count("comparisons of draft and chain failed") == 4  # the 1st, 2nd, 4th, 8th
    assert "ConnectionError('no index')" in caplog.text


def test_an_audit_asks_as_the_call_asked_in_a_conversation_of_its_own(gate):
    seen = []

    def chain(text: str, config: RunnableConfig, **more) -> str:
        seen.append((config.get("configurable"), more))
        return "City 7"

    router = langchain.GECERouter(gate, RunnableLambda(chain), audit_rate=1.0)
    own = {"thread_id": "1", "session_id": "2", "__state": 3}
    router.invoke(QUESTIONS[7], {"configurable": {"tenant": "acme", **own}}, k=3)
    [*router.stream(QUESTIONS[7], {"configurable": {"tenant": "acme"}}, k=3)]
    router.batch([QUESTIONS[7]], {"configurable": {"tenant": "acme"}}, k=3)
    assert router.settle()
    assert [(given["tenant"], more) for given, more in seen] == [("acme", {"k": 3})] * 3
    threads = {given["thread_id"] for given, _ in seen}
    assert len(threads) == 3
    assert "1" not in threads
    assert {given["session_id"] for given, _ in seen} == threads
    assert {*seen[0][0]} == {"tenant", "thread_id", "session_id"}
    assert router.monitor.agreement.value == 1.0


async def test_a_chain_that_can_only_be_awaited_is_audited_in_the_callers_loop(gate):
    loops = []

    async def chain(text: str) -> str:
        loops.append(asyncio.get_running_loop())
        return "City 7"

    router = langchain.GECERouter(gate, RunnableLambda(chain), audit_rate=1.0)
    for _ in range(3):
        assert await router.ainvoke(QUESTIONS[7]) == "City 7"
    assert await asyncio.to_thread(router.settle)
    assert loops == [asyncio.get_running_loop()] * 3
    assert (router.monitor.audits, router.monitor.failed) == (3, 0)


@pytest.mark.parametrize("mode", [None, "values", "updates", "messages", ["messages", "values"]])
def test_what_a_graph_streams_is_compared_in_every_mode(mode, tmp_path):
    def node(state):
        return {"messages": [AIMessage(knows_the_odd(f"shown {state['messages'][0].text}"))]}

    graph = StateGraph(MessagesState).add_node("n", node).add_node("m", lambda state: {})
    graph = graph.add_edge(START, "n").add_edge("n", "m").compile()
    llm, store = ScriptedLLM(knows_the_odd, name="odd"), tmp_path / "s"
    router = langchain.GECERouter.learning(graph, llm=llm, store=store, target_rate=0.5)
    for text in QUESTIONS[6:8]:
        given = {"messages": [HumanMessage(text)]}
        [*router.stream(given, **({"stream_mode": mode} if mode else {}))]
    assert router.settle()
    assert router.monitor.state == "learning: 2 of 100 questions compared"
    with DecisionStore(store) as kept:
        right = {outcome.evidence.question: outcome.right for outcome in kept.sample(0, 9)[0]}
    assert right == {QUESTIONS[6]: False, QUESTIONS[7]: True}


def test_a_stream_is_watched_when_it_has_ended(gate):
    router = langchain.GECERouter(gate, RunnableLambda(lambda text: "City 7"), audit_rate=1.0)
    assert [*router.stream(QUESTIONS[7])] == ["City 7"]
    assert router.settle()
    assert router.monitor.audits == 1


async def test_a_stream_that_is_left_counts_and_is_compared_with_nothing(gate):
    def cut_off(text):
        yield "City 8"
        raise ConnectionError("cut off")

    async def acut_off(text):
        for piece in cut_off(text):
            yield piece

    always = replace(gate, fitted=replace(gate.fitted, threshold=-math.inf))
    router = langchain.GECERouter(always, RunnableLambda(cut_off, acut_off), audit_rate=1.0)
    pieces = router.stream(QUESTIONS[8])
    assert next(pieces) == "City 8"
    pieces.close()
    with pytest.raises(ConnectionError):
        [piece async for piece in router.astream(QUESTIONS[8])]
    assert router.settle()
    assert (router.monitor.decisions, router.monitor.retrieved) == (2, 1.0)
    assert [record.sampled for record in router._watch._store.records()] == [False, False]


async def test_an_engines_stream_is_watched_when_it_has_ended(gate):
    class Streaming(BaseQueryEngine):
        def _get_prompt_modules(self):
            return {}

        def _query(self, query_bundle):
            return schema.StreamingResponse(piece for piece in ("City", " 8"))

        async def _aquery(self, query_bundle):
            async def pieces():
                for piece in ("City", " 8"):
                    yield piece

            return schema.AsyncStreamingResponse(pieces())

    router = llama_index.GECERouter(gate, Streaming(None))
    response = router.query(QUESTIONS[8])
    assert router.monitor.decisions == 0
    assert [*response.response_gen] == ["City", " 8"]
    assert router.monitor.decisions == 1
    response = await router.aquery(QUESTIONS[8])
    assert [piece async for piece in response.async_response_gen()] == ["City", " 8"]
    assert router.monitor.decisions == 2


async def test_an_engines_stream_that_is_left_counts_and_is_compared_with_nothing(gate):
    class Streaming(CustomQueryEngine):
        def custom_query(self, query_str):
            return schema.StreamingResponse(piece for piece in ("City", " 8"))

        async def acustom_query(self, query_str):
            async def pieces():
                for piece in ("City", " 8"):
                    yield piece
                raise ConnectionError("cut off")

            return schema.AsyncStreamingResponse(pieces())

    always = replace(gate, fitted=replace(gate.fitted, threshold=-math.inf))
    router = llama_index.GECERouter(always, Streaming(), audit_rate=1.0)
    pieces = router.query(QUESTIONS[8]).response_gen
    assert next(pieces) == "City"
    pieces.close()
    with pytest.raises(ConnectionError):
        [piece async for piece in (await router.aquery(QUESTIONS[8])).async_response_gen()]
    assert router.settle()
    assert (router.monitor.decisions, router.monitor.retrieved) == (2, 1.0)
    assert [record.sampled for record in router._watch._store.records()] == [False, False]


def test_the_threads_of_a_router_end_with_it(gate):
    before = {*threading.enumerate()}
    router = langchain.GECERouter(gate, RunnableLambda(lambda text: "City 7"), audit_rate=1.0)
    router.invoke(QUESTIONS[7])
    assert router.settle()
    threads = {*threading.enumerate()} - before
    assert [thread.name for thread in threads] == ["ltrag-watch"] * 3
    del router
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_all_routers_together_leave_one_thing_for_the_end_of_a_process(gate):
    decision, left = gate.decide(QUESTIONS[7]), []
    for rate in [1.0] + [0.0] * 100 + [1.0] * 3:
        watch = Watch(gate, audit_rate=rate)
        watch.saw(decision, lambda: "City 7")
        assert watch.settle()
        left.append(atexit._ncallbacks())
    assert left == left[:1] * 104


ENDS = """
import sys, time
from tests.gates import RuleGate, never
from ltrag_plugins.flow import World
from ltrag_plugins.gece.monitor import Watch
from ltrag_plugins.llm.scripted import ScriptedLLM

def saw(path, keeps):
    gate = RuleGate(World(llm=ScriptedLLM(str)), never)
    watch = Watch(gate, store=path)
    add = watch._store.add
    watch._store.add = lambda records: (time.sleep(0.3), add(records))
    watch.saw(gate.decide("who?"), None)
    return watch if keeps else None

kept = [saw(path, path == sys.argv[1]) for path in sys.argv[1:]]
"""


def test_the_end_of_a_process_waits_for_what_is_not_yet_written(tmp_path):
    """Of a router that is there to the end, and of one that went before."""
    paths = [f"{tmp_path / name}" for name in ("there", "gone")]
    subprocess.run([sys.executable, "-c", ENDS, *paths], check=True)
    for path in paths:
        with DecisionStore(path) as store:
            assert len(store.records(0, 9)) == 1


def test_what_a_locked_store_does_not_take_is_counted(gate, tmp_path, monkeypatch):
    monkeypatch.setattr("ltrag_plugins.llm.store._PATIENCE", 0.05)
    path, chain = tmp_path / "s", RunnableLambda(lambda text: "City 7")
    routers = [
        langchain.GECERouter(gate, chain, store=path, audit_rate=rate) for rate in (0.0, 1.0)
    ]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for router in routers * 3:
            assert router.invoke(QUESTIONS[7]) == "City 7"
            assert router.settle()
    # each decision, and each comparison
    assert [(r.monitor.decisions, r.monitor.failed) for r in routers] == [(0, 3), (0, 6)]
    assert "failed or not written    6" in str(routers[1].monitor)


def test_a_router_with_all_its_places_taken_ends_without_waiting(gate):
    begun, go_on = threading.Semaphore(0), threading.Event()

    def chain(text: str) -> str:
        begun.release()
        assert go_on.wait(60)
        return "City 7"

    router = langchain.GECERouter(gate, RunnableLambda(chain), audit_rate=1.0)
    for _ in range(2 + 256 + 5):
        router.invoke(QUESTIONS[7])
        if router._watch._background._comparisons.qsize() < 3:
            begun.acquire(timeout=0.2)  # both threads are in the chain
    background, ended = router._watch._background, threading.Event()
    assert 3 <= background.skipped <= 5
    threading.Thread(target=lambda: (background.end(), ended.set()), daemon=True).start()
    assert ended.wait(30)
    go_on.set()


def test_of_many_processes_that_begin_together_one_enrols_the_gate(tmp_path):
    together = threading.Barrier(4, timeout=60)

    class Gate:
        def save(self, folder):
            artifacts.write(Path(folder), "gate", {"content": "one"}, format=1)
            together.wait()

    def enrol(_):
        with DecisionStore(tmp_path / "store.sqlite") as store:
            return store.enrolled(Gate(), 0.0)

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(enrol, range(4))] == [1] * 4


def test_a_store_is_shared_and_belongs_to_one_gate(gate, tmp_path):
    path = tmp_path / "router.sqlite"
    for router, _, ask in routers(gate, audit_rate=1.0, store=path):
        ask(QUESTIONS[7])
        assert router.settle()
    found = router.monitor
    assert (found.decisions, found.audits) == (2, 2)
    other = GECEGate.fit(
        [Question(t, ("City 1",)) for t in QUESTIONS[:25]] + [Question(QUESTIONS[9], ("City 9",))],
        llm=gate.world.llm,
        settings=GECESettings(folds=2),
        target_rate=0.5,
    )
    assert langchain.GECERouter(other, lambda t: t, store=path).monitor.decisions == 0
    with DecisionStore(path) as store:
        [first, second] = store.records(1, 10)
    assert first.question == second.question == question_digest(QUESTIONS[7])
    assert "number 7" not in path.read_bytes().decode("latin-1")  # nothing but the question_digest


def test_a_gate_is_the_same_one_in_a_store_whenever_it_was_saved(tmp_path):
    class Dated:
        """Each time it is saved at another second."""

        def __init__(self, content):
            self.content, self.seconds = content, iter(range(10))

        def save(self, folder):
            how = {"format": 1, "clock": lambda: next(self.seconds)}
            artifacts.write(Path(folder), "gate", {"content": self.content}, **how)

    with DecisionStore(tmp_path / "store.sqlite") as store:
        one = Dated("one")
        numbers = [store.enrolled(gate, 0.0) for gate in (one, one, Dated("one"), Dated("two"))]
    assert numbers == [1, 1, 1, 2]


def test_a_gate_of_ones_own_may_give_numbers_of_numpys(tmp_path):
    world, share = World(llm=ScriptedLLM(lambda prompt: "x")), np.float32(0.75)

    class Mine:
        world: World

        def deciding(self, question):
            yield from ()
            read = {"mine": share}
            parts = share >= 0.5, share, share, "text", "mine", Generation("x"), read
            return Decision(question, *parts)

    gate = Mine()
    gate.world = world
    decision = run(gate.deciding("Who?"), world)
    assert json.loads(json.dumps(decision.as_metadata()))["ingredients"] == {"mine": 0.75}
    watch = Watch(gate, store=tmp_path / "s", audit_rate=np.float32(0.5))
    watch.saw(decision, None)
    assert watch.settle()
    assert (watch.monitor().decisions, watch.monitor().retrieved) == (1, 1.0)
    with closing(sqlite3.connect(tmp_path / "s")) as store:
        kept = store.execute("SELECT retrieve, score FROM decisions").fetchall()
    assert kept == [(1, 0.75)]
    cell = replace(cell_of("single"), gate=gate)
    parts = World(llm=world.llm, retriever=BM25Retriever([Passage("of whom")]))
    found = evaluate([Question("Who?", ("x",), "q")], [cell], parts, out=tmp_path / "run")
    assert found["single+gate"][0].decision == decision.as_metadata()


def test_what_is_no_store_or_no_share_is_refused(gate, tmp_path):
    wrong = tmp_path / "notes.txt"
    wrong.write_text("not a store")
    with pytest.raises(CacheUnreadable, match=r"no decision store.*not a SQLite file"):
        Watch(gate, store=wrong)
    with pytest.raises(InvalidInput, match="must be the path of a decision store, got int 3"):
        Watch(gate, store=3)
    for rate in (-0.1, 1.5, True):
        with pytest.raises(InvalidInput, match="share from 0 to 1"):
            Watch(gate, audit_rate=rate)


def test_every_decision_is_a_line_of_the_log_without_the_text(gate, caplog):
    with caplog.at_level(logging.INFO, "ltrag_plugins.gece.decision"):
        run(guarded(QUESTIONS[7], gate), gate.world)
    [line] = caplog.messages
    assert "retrieve=False" in line
    numbers = re.findall(r" (?:score|probability)=-?[0.]*([\d.]*)(?= )", line)
    assert len(numbers) == 2
    assert all(len(number) <= 4 for number in numbers), line  # three digits and a point
    assert question_digest(QUESTIONS[7]) in line
    assert "city" not in line
    with caplog.at_level(logging.DEBUG, "ltrag_plugins.gece.decision"):
        run(guarded(QUESTIONS[7], gate), gate.world)
    assert QUESTIONS[7] in caplog.messages[-1]


def test_half_of_a_surrogate_pair_is_logged_stored_and_compared(gate, tmp_path, caplog):
    odd = "Which city is number 8 \ud83d of the list?"
    assert question_digest(odd) != question_digest(odd.replace("\ud83d", "\ud83e"))
    path, always = tmp_path / "s", replace(gate, fitted=replace(gate.fitted, threshold=-math.inf))
    with caplog.at_level(logging.DEBUG, "ltrag_plugins.gece.decision"):
        for router, _, ask in routers(always, store=path, audit_rate=1.0):
            assert ask(odd) == "City 7"
            assert router.settle()
            assert router.monitor.failed == 0
    assert "number 8 \\ud83d of" in caplog.text
    learning = {"llm": gate.world.llm, "store": tmp_path / "l"}
    router = langchain.GECERouter.learning(RunnableLambda(lambda text: "City 7"), **learning)
    assert router.invoke(odd) == "City 7"
    assert router.settle()
    with DecisionStore(path) as store, DecisionStore(tmp_path / "l") as learned:
        assert [one.question for one in store.records(1, 9)] == [question_digest(odd)] * 2
        [outcome], _ = learned.sample(0, 9)
    assert outcome.evidence.question == odd


def test_the_log_does_not_quote_the_question_where_the_model_failed(gate, caplog):
    def fails(prompt: str) -> str:
        raise ConnectionError(f"no answer to {prompt}")

    broken = replace(gate, world=World(llm=ScriptedLLM(fails, name="odd")))
    with caplog.at_level(logging.INFO, "ltrag_plugins.gece.decision"):
        run(guarded(QUESTIONS[7], broken), broken.world)
    [line] = [message for message in caplog.messages if message.startswith("gece ")]
    assert "the gate's model failed" in line
    assert "city" not in line


def test_the_span_around_a_decision_has_its_attributes(gate):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with trace.use_span(provider.get_tracer("app").start_span("request"), end_on_exit=True):
        run(guarded(QUESTIONS[7], gate), gate.world)
    [span] = exporter.get_finished_spans()
    assert span.attributes["gece.retrieve"] is False
    assert span.attributes["gece.question"] == question_digest(QUESTIONS[7])
    assert 0 <= span.attributes["gece.probability"] <= 1


def test_decisions_of_many_threads_are_all_counted(gate):
    watch, decision = Watch(gate), gate.decide(QUESTIONS[7])
    with ThreadPoolExecutor(8) as pool:
        [*pool.map(lambda _: watch.saw(decision, None), range(1000))]
    assert watch.monitor().decisions == sum(watch._counts.values()) == 1000


def test_the_coins_of_audits_fall_as_often_as_said(gate):
    watch = Watch(gate, audit_rate=0.25, rng=random.Random(1))
    decision = gate.decide(QUESTIONS[7])
    for _ in range(400):
        watch.saw(decision, lambda: "City 7")
    assert watch.settle()
    found = watch.monitor()
    assert 70 < found.audits + found.skipped < 130
