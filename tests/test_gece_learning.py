"""A router that starts with nothing and learns while it serves."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
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


def serve(
    gate: LearningGate, numbers, *, watch: Watch | None = None, answer=chain, cost=None, **how
) -> Watch:
    """Decide one after the other, with all that follows in the background."""
    watch = watch or Watch(gate, audit_rate=1.0, rng=random.Random(0), **how)
    for i in numbers:
        watch.saw(run(guarded(text(i), gate), gate.world), lambda i=i: answer(text(i)), cost)
        assert watch.settle(600)  # with a fit, on a busy machine
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


FOLLOW_UP = "And the next one?"


def in_conversation(prompt: str) -> str:
    """As knows_the_odd; a follow-up is about the number after the one that was spoken of."""
    if "Rewritten question:" in prompt:
        return text(number(prompt) + 1)
    return knows_the_odd(prompt)


def test_before_the_first_gate_a_follow_up_is_rewritten_in_the_background(tmp_path):
    gate = learner(tmp_path / "s", in_conversation)
    llm, watch = gate.world.llm, Watch(gate, audit_rate=1.0)
    for i in (2, 4):  # the same words in two conversations
        history = [("human", text(i)), ("ai", f"City {i}")]
        decision = run(guarded(FOLLOW_UP, gate, "raise", history=history), gate.world)
        assert (decision.retrieve, decision.question) == (True, FOLLOW_UP)
        assert len(llm.prompts) == i - 2  # no call that the reply would wait for
        watch.saw(decision, lambda i=i: f"City {i + 1}")
        assert watch.settle()
    sample, _ = gate.store.sample(0, 9)
    assert [(o.evidence.question, o.right) for o in sample] == [(text(5), True), (text(3), True)]
    assert gate.store.sample_size(0) == 2


def test_a_retriever_searches_with_a_follow_up_that_stands_alone_before_the_first_gate(tmp_path):
    gate, asked = learner(tmp_path / "s", in_conversation), []
    finding = RunnableLambda(lambda query: asked.append(query) or [Document("found")])
    retriever = langchain.GECERetriever(gate=gate, retriever=finding)
    turns = [HumanMessage(text(2)), AIMessage("City 2"), HumanMessage(FOLLOW_UP)]
    assert [one.page_content for one in retriever.invoke(turns)] == ["found"]
    assert asked == [text(3)]


def test_what_is_switched_off_rewrites_no_follow_up(tmp_path):
    gate = learner(tmp_path / "s", in_conversation)
    gate.switch(on=False)
    watch, history = Watch(gate, audit_rate=1.0), [("human", text(2)), ("ai", "City 2")]
    watch.saw(run(guarded(FOLLOW_UP, gate, history=history), gate.world), lambda: "City 3")
    assert watch.settle()
    assert gate.world.llm.prompts == []


def test_a_gate_at_work_reads_a_follow_up_that_stands_alone(tmp_path):
    gate = learner(tmp_path / "s", in_conversation)
    serve(gate, range(40))
    history = [("human", text(2)), ("ai", "City 2")]
    decision = run(guarded(FOLLOW_UP, gate, history=history), gate.world)
    assert (decision.question, decision.answer) == (text(3), "City 3")


def test_drafts_of_another_prompt_are_not_learned_from(tmp_path, caplog):
    path, other = tmp_path / "s", replace(SETTINGS, prompt="In short: {question}")
    serve(learner(path), range(40))
    again = learner(path)
    assert again.gate is not None
    assert "begins anew" not in caplog.text
    later = learner(path, settings=other)
    assert "begins anew" in caplog.text
    assert later.gate is None
    assert later.monitor().state == "learning: 0 of 40 questions compared"
    serve(later, range(40, 80))
    assert later.gate.fitted.settings.prompt == other.prompt
    assert later.report.questions == 40


def test_another_target_is_fitted_at_the_next_comparison(tmp_path, caplog):
    path = tmp_path / "s"
    serve(learner(path), range(40))
    later = learner(path, target_rate=0.3)
    assert later.report.target == "target rate 0.5"  # until then
    serve(later, range(40, 41))
    assert (later.report.target, later.report.questions) == ("target rate 0.3", 41)
    assert "begins anew" not in caplog.text


def test_a_budget_is_kept_where_no_draft_of_the_sample_was_timed(tmp_path, monkeypatch):
    monkeypatch.setattr("ltrag_plugins.gece.learning._SAMPLE", 20)
    gate, cost = learner(tmp_path / "s", target_rate=None, budget=0.7), Usage(seconds=1.0)
    watch = serve(gate, range(40), cost=cost)
    timed = gate.report.gate_cost.seconds
    serve(gate, range(40, 60), watch=watch, cost=cost)  # none of the latest 20 is of the warm-up
    assert gate.store.newest == 2
    assert gate.report.gate_cost.seconds == timed > 0


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
    # it knows which, but a draft is a call, as an answer of the chain is
    dear = learner(tmp_path / "u")
    watch = serve(dear, range(40), cost=Usage(calls=1))
    assert dear.gate is None
    told = "it would retrieve for 50%, AUROC 1.00, and a draft costs 100% of an answer with"
    assert told in watch.monitor().state


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
    for own, match in (
        ({"scorer": "prodcut"}, "no scorer 'prodcut'; did you mean product"),
        ({"scorer": "gece", "semantics": False}, "'gece' is learned from accepted answers"),
        ({"scorer": "disagreement"}, "samples=3"),
        ({"scorer": "gradient_dot"}, "needs the gradient term"),
    ):
        with pytest.raises(InvalidInput, match=match):
            learner(tmp_path / "t", settings=GECESettings(**own))
    assert not (tmp_path / "t").exists()
    mine = {"settings": GECESettings(scorer="mine"), "signals": {"mine": len}}
    assert learner(tmp_path / "mine", **mine).gate is None  # a signal of one's own may be it
    Path(tmp_path, "text").write_text("not a store, and long enough to be none " * 5)
    with pytest.raises(CacheUnreadable, match="no decision store"):
        learner(tmp_path / "text")


def test_a_router_that_learns_and_one_that_does_not_have_a_file_each(tmp_path):
    gate, fixed = learner(tmp_path / "l"), learner(tmp_path / "f")
    watch = serve(gate, range(40))
    serve(fixed, range(40, 80))
    assert None not in (gate.gate, fixed.gate)
    assert gate.gate.name != fixed.gate.name
    with pytest.raises(InvalidInput, match=r"l is the store of a learning router.*another file"):
        Watch(fixed.gate, store=tmp_path / "l")
    gate.refresh(now=True)
    assert watch.monitor().state == "too early: 0 of 200 decisions"
    Watch(fixed.gate, store=tmp_path / "p")
    with pytest.raises(InvalidInput, match=r"p is the store of a router that does not learn"):
        learner(tmp_path / "p", name="other")
    Watch(fixed.gate, store=tmp_path / "p")  # as it was


def test_a_stores_oldest_decisions_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr("ltrag_plugins.gece.store._MOST", 10)
    gate = learner(tmp_path / "s")
    serve(gate, range(40))  # the fit prunes
    assert [r.at for r in gate.store.records(0, 100)] == sorted(
        r.at for r in gate.store.records(0, 100)
    )
    assert len(gate.store.records(0, 100)) == 10


def test_a_full_store_is_fitted_on_again(tmp_path, monkeypatch):
    monkeypatch.setattr("ltrag_plugins.gece.store._MOST", 60)
    gate = learner(tmp_path / "s")
    watch = serve(gate, range(60))  # at 40, and at 60
    assert gate.store.newest == 2
    serve(gate, range(60, 100), watch=watch)
    assert gate.store.newest >= 3  # a third of them are others


def test_popular_questions_are_no_drift_of_what_learned_from_each_once(tmp_path):
    gate = learner(tmp_path / "s", warm_up=100)
    serve(gate, range(100))
    watch = Watch(gate, audit_rate=0.0)
    for i in range(WINDOW):
        asked = text(2 * (i % 10) + 1 if i % 2 else 200 + i // 2)
        watch.saw(run(guarded(asked, gate), gate.world), lambda: "")
    assert watch.settle()
    found = watch.monitor()
    assert found.retrieved < 0.3 < found.expected
    assert found.state == "holds"


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
