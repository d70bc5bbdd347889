"""A router that starts with nothing and learns while it serves."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response import schema

from ltrag_plugins import langchain, llama_index
from ltrag_plugins.errors import ArtifactMismatch, CacheUnreadable, InvalidInput
from ltrag_plugins.flow import run
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.gece.decision import guarded, question_digest
from ltrag_plugins.gece.learning import LearningGate
from ltrag_plugins.gece.monitor import WINDOW, Watch
from ltrag_plugins.gece.savings import Usage
from ltrag_plugins.gece.store import DecisionStore
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, Token
from tests.langchain_parts import FunctionChat
from tests.llama_index_parts import FunctionLLM
from tests.router_parts import Engine, knows_the_odd, number

SETTINGS = GECESettings(folds=2)
KILLS = int(os.environ.get("LTRAG_KILLS", "2"))


def text(i: int) -> str:
    return f"Which city is number {i} of the list?"


def chain(question: str) -> str:
    return f"City {number(question)}"


def learner(path, model=knows_the_odd, *, name="odd", **how) -> LearningGate:
    how = {"target_rate": 0.5, "settings": SETTINGS, "fit_here": True, "warm_up": 40, **how}
    return LearningGate(ScriptedLLM(model, name=name), path, **how)


def serve(gate: LearningGate, numbers, *, watch: Watch | None = None, answer=chain, **how) -> Watch:
    """Decide one after the other, with all that follows in the background, at no known cost."""
    watch = watch or Watch(gate, audit_rate=1.0, rng=random.Random(0), **how)
    for i in numbers:
        watch.saw(run(guarded(text(i), gate), gate.world), lambda i=i: answer(text(i)))
        assert watch.settle()
    gate.refresh(now=True)
    return watch


def worth(said: str, tokens: int) -> AIMessage:
    """A reply that tells its tokens."""
    used = UsageMetadata(input_tokens=tokens - 1, output_tokens=1, total_tokens=tokens)
    return AIMessage(said, usage_metadata=used)


@pytest.fixture(params=["langchain", "llama_index"])
def room(request):
    """`GECERouter.learning` of a framework, and how its router is asked."""
    if request.param == "langchain":
        model = FunctionChat(lambda prompt: worth(knows_the_odd(prompt), 30))
        reads = FunctionChat(lambda prompt: worth(chain(prompt), 300)) | StrOutputParser()
        made = langchain.GECERouter.learning, reads, model
        return *made, lambda router, question: router.invoke(question), model.sent
    calls: list[str] = []

    def model(prompt: str) -> str:
        calls.append(prompt)
        return knows_the_odd(prompt)

    def slowly(prompt: str) -> str:
        time.sleep(0.02)  # what an engine costs is known in seconds alone
        return chain(prompt)

    engine = Engine(llm=FunctionLLM(slowly), asked=[])
    made = llama_index.GECERouter.learning, engine, FunctionLLM(model)
    return *made, lambda router, question: str(router.query(question)), calls


def test_a_router_starts_with_nothing_and_gates_when_it_knows_enough(room, tmp_path):
    learning, chain, llm, ask, calls = room
    how = {"target_rate": 0.5, "settings": SETTINGS, "warm_up": 40, "audit_rate": 0.5}
    router = learning(chain, llm=llm, store=tmp_path / "router.sqlite", **how)
    assert router.monitor.state == "learning: 0 of 40 questions compared"
    assert str(router.savings()).endswith("saved         not measured")
    for i in range(40):
        assert ask(router, text(i)) == f"City {i}"  # everything retrieves
    assert router.settle()
    assert len(calls) == 40  # drafts beside it, one each
    assert router.monitor.state == "too early: 0 of 200 decisions"
    report = router.gate.report
    assert (report.questions, report.agreement, report.direct_accuracy) == (40, 1.0, 0.5)
    assert report.retrieval_cost.seconds > 0
    assert report.gate_cost.seconds > 0
    for i in range(1, 41, 2):
        assert ask(router, text(i)) == f"City {i}"
    assert router.settle()
    assert router.savings().questions == 60
    assert router.monitor.decisions == 20
    assert router.monitor.retrieved < 0.5


def test_what_a_streaming_engine_costs_is_known_when_the_stream_has_ended(tmp_path):
    class Streaming(BaseQueryEngine):
        def _get_prompt_modules(self):
            return {}

        async def _aquery(self, query_bundle):
            return self._query(query_bundle)

        def _query(self, query_bundle):
            def pieces():
                time.sleep(0.05)
                yield chain(query_bundle.query_str)

            return schema.StreamingResponse(pieces())

    engine, llm = Streaming(None), FunctionLLM(knows_the_odd)
    router = llama_index.GECERouter.learning(engine, llm=llm, store=tmp_path / "s")
    for i in range(3):
        assert str(router.query(text(i))) == f"City {i}"
    assert router.settle()
    with DecisionStore(tmp_path / "s") as store:
        outcomes, cost = store.sample(0, 9)
    assert len(outcomes) == 3
    assert cost.seconds >= 0.05


def test_before_the_first_gate_no_answer_waits_for_the_model(tmp_path):
    gone, release = threading.Event(), threading.Event()

    def model(prompt: str) -> str:
        gone.set()
        assert release.wait(60)
        return knows_the_odd(prompt)

    gate = learner(tmp_path / "s", model)
    watch = Watch(gate, audit_rate=1.0)
    router = langchain.GECERouter(gate, RunnableLambda(chain))
    router._watch = watch
    assert router.invoke(text(1)) == "City 1"  # while the draft still waits
    assert gone.wait(60)
    release.set()
    assert watch.settle()
    assert gate.store.sample_size(0) == 1


def test_a_gate_of_one_process_is_that_of_all_and_of_the_next_start(tmp_path):
    path = tmp_path / "router.sqlite"
    first, second = learner(path), learner(path)
    serve(first, range(40))
    assert second.gate is None
    second.refresh(now=True)
    assert second.gate is not None
    assert first.gate is not None
    later = learner(path)
    decided = [
        [found.retrieve for found in gate.gate.decide_many([text(i) for i in range(10)])]
        for gate in (first, second, later)
    ]
    assert decided[0] == decided[1] == decided[2]
    assert 0 < sum(decided[0]) < 10


def test_the_next_fit_sees_a_fair_sample_of_all_questions(tmp_path):
    gate = learner(tmp_path / "s")
    watch = Watch(gate, audit_rate=0.5, rng=random.Random(0))
    serve(gate, range(40), watch=watch)
    serve(gate, range(40, 240), watch=watch)
    sample, _ = gate.store.sample(0, 1000)
    later = [number(o.evidence.question) for o in sample if number(o.evidence.question) >= 40]
    assert 75 < len(later) < 125  # half of them
    assert 0.35 < np.mean([i % 2 for i in later]) < 0.65  # whichever way they were answered
    assert [o.right for o in sample] == [bool(number(o.evidence.question) % 2) for o in sample]
    assert gate.report.questions >= 40 * 1.5  # it was fitted again
    assert watch.monitor().state.startswith(("holds", "too early"))


def test_the_sample_has_what_the_chain_cost_and_the_drafts_as_they_were(tmp_path):
    rows = np.arange(6, dtype=float).reshape(2, 3)

    class Encoder:
        name = "three numbers"

        def encode(self, texts):
            return np.stack([rows[i] for i, _ in enumerate(texts)])

    gate = learner(tmp_path / "s", encoder=Encoder(), signals={"mine": lambda q: float(number(q))})
    watch = Watch(gate, audit_rate=1.0)
    watch.saw(run(gate.deciding(text(3)), gate.world), lambda: "City 3", Usage(2, 30, 1.5))
    assert watch.settle()
    [outcome], cost = gate.store.sample(0, 10)
    assert cost == Usage(2, 30, 1.5)
    assert outcome.evidence.draft.text == "City 3"
    assert outcome.evidence.extra == {"mine": 3.0}
    assert np.array_equal(outcome.evidence.vectors, rows)


def test_it_keeps_collecting_where_no_gate_pays(tmp_path):
    gate = learner(tmp_path / "s", lambda prompt: f"no idea {number(prompt)}")
    watch = serve(gate, range(60))
    state = watch.monitor().state
    assert gate.gate is None
    assert state.startswith("learning: 60 of 90 questions compared; the direct answer is wrong on")
    rng = random.Random(0)  # what it knows has nothing to do with question or draft
    places = rng.sample(range(100, 200), 41)
    drafts = {i: f"City {places[i + rng.randrange(2)]}" for i in range(40)}
    hopeless = learner(tmp_path / "t", lambda prompt: drafts[number(prompt)])
    watch = serve(hopeless, range(40), answer=lambda q: f"City {places[number(q)]}")
    assert hopeless.gate is None
    assert "no gate pays yet: it would retrieve for" in watch.monitor().state


def test_a_gate_that_no_longer_holds_is_dropped_and_learned_anew(tmp_path, caplog):
    gate = learner(tmp_path / "s")
    watch = serve(gate, range(40))
    assert gate.gate is not None
    # the chain has learned other cities, so that no draft agrees any more
    serve(gate, range(41, 41 + 2 * WINDOW, 2), watch=watch, answer=lambda q: f"Town {number(q)}x")
    assert "fit again: " in caplog.text
    assert gate.store.since(gate.store.newest) > 0
    assert watch.monitor().state.startswith("learning: ")


def test_a_sample_beyond_what_a_fit_takes_is_not_fitted_on_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr("ltrag_plugins.gece.learning._SAMPLE", 30)
    gate = learner(tmp_path / "s")
    watch = serve(gate, range(40))
    number = gate.store.newest
    serve(gate, range(40, 50), watch=watch)
    assert gate.store.newest == number


def test_one_draft_without_token_probabilities_does_not_take_them_from_all(tmp_path):
    def model(prompt: str) -> Generation:
        said = knows_the_odd(prompt)
        sure = -0.1 if said.startswith("City") else -2.0
        return Generation(said, None if number(prompt) == 5 else (Token(said, sure),))

    gate = learner(tmp_path / "s", model)
    serve(gate, range(40))
    assert gate.report.tier == "probabilities"


def test_learning_is_switched_off_and_on_for_all_processes(tmp_path):
    path = tmp_path / "s"
    gate, other = learner(path), learner(path)
    gate.switch(on=False)
    calls: list[str] = []
    watch = serve(other, [])
    other.refresh(now=True)
    serve(other, range(5), watch=watch, answer=lambda q: calls.append(q) or chain(q))
    assert other.world.llm.calls == calls == []
    assert watch.monitor().state == "learning: 0 of 40 questions compared; switched off"
    gate.switch(on=True)
    other.refresh(now=True)
    serve(other, range(5), watch=watch)
    assert len(other.world.llm.calls) == 5


def test_a_fit_that_fails_is_said_and_tried_again_later(tmp_path, caplog, monkeypatch):
    gate = learner(tmp_path / "s", fit_here=False)
    monkeypatch.setattr(sys, "executable", "/bin/false")  # no Python there
    with caplog.at_level("INFO"):
        watch = serve(gate, range(40))
    assert "the fit failed" in watch.monitor().state
    monkeypatch.undo()
    serve(gate, range(40, 60), watch=watch)
    assert gate.gate is not None


def test_what_cannot_be_learned_with_is_refused(tmp_path):
    path = tmp_path / "router.sqlite"
    serve(learner(path), range(3))
    with pytest.raises(ArtifactMismatch, match=r'begun with model and encoder \["odd", null\]'):
        learner(path, name="other")
    with pytest.raises(InvalidInput, match="20 or more; got 5"):
        learner(tmp_path / "t", warm_up=5)
    with pytest.raises(InvalidInput, match="no gradients"):
        learner(tmp_path / "t", settings=GECESettings(gradients="auto"))
    with pytest.raises(InvalidInput, match="not both"):
        learner(tmp_path / "t", target_accuracy=0.5)
    Path(tmp_path, "text").write_text("not a store, and long enough to be none " * 5)
    with pytest.raises(CacheUnreadable, match="no decision store"):
        learner(tmp_path / "text")


def test_a_stores_oldest_decisions_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr("ltrag_plugins.gece.store._MOST", 10)
    gate = learner(tmp_path / "s")
    serve(gate, range(40))  # the fit prunes
    assert [r.at for r in gate.store.records(0, 100)] == sorted(
        r.at for r in gate.store.records(0, 100)
    )
    assert len(gate.store.records(0, 100)) == 10


CHILD = """
import os, sys, threading
sys.path.insert(0, os.getcwd())
from tests.test_gece_learning import answered_by_many
answered_by_many(sys.argv[1], int(sys.argv[2]), sys.argv[3])
"""


def answered_by_many(path: str, first: int, log: str) -> None:
    """32 threads answer 1,000 questions, and note each that was answered."""
    model, target = FunctionChat(knows_the_odd), {"target_rate": 0.5, "settings": SETTINGS}
    how = {"llm": model, "store": path, "warm_up": 200, "audit_rate": 0.5, **target}
    router = langchain.GECERouter.learning(RunnableLambda(chain), **how)
    with open(log, "ab", buffering=0) as file, ThreadPoolExecutor(32) as pool:

        def one(i: int) -> None:
            assert router.invoke(text(i)) == f"City {i}"
            file.write(f"{i}\n".encode())

        [*pool.map(one, range(first, first + 1000))]
        router.settle()


def test_four_processes_of_32_threads_killed_at_random_keep_every_answer_once(tmp_path):
    path, rng = tmp_path / "router.sqlite", random.Random(7)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for turn in range(KILLS):
        runs = []
        for i in range(4):
            first, log = turn * 10_000 + i * 1000, tmp_path / f"{turn}-{i}"
            log.touch()
            command = [sys.executable, "-c", CHILD, f"{path}", f"{first}", f"{log}"]
            runs.append((subprocess.Popen(command, env=env), log, rng.randrange(100, 900)))
        while any(process.poll() is None for process, *_ in runs):
            for process, log, most in runs:
                if log.read_bytes().count(b"\n") >= most:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
            threading.Event().wait(0.01)
        with DecisionStore(path) as store:
            kept = [r for gate in range(store.newest + 1) for r in store.records(gate, 100_000)]
        digests = {record.question for record in kept}
        assert len(digests) == len(kept)
        for _, log, _ in runs:
            answered = [int(line) for line in log.read_text().split()]
            lost = [n for n, i in enumerate(answered) if question_digest(text(i)) not in digests]
            # the last ones alone, which waited for the writer; 32 threads note them in some order
            assert len(lost) >= len(answered) - min(lost, default=len(answered)) - 64
