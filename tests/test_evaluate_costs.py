"""Costs and traces of flows that run side by side, beside those of each alone."""

import dataclasses
import sqlite3
from contextlib import closing

import pytest
from contracts.methods import PASSAGES, QUESTIONS, Letters, Scoring, plausible

from ltrag_plugins.evaluate import Cell, Work, evaluate, in_process, summarize
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.run import FlowWatch
from ltrag_plugins.flow import Ask, Step, World, ask, run, run_many
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.llm.store import AnswerStore
from ltrag_plugins.methods import METHODS
from ltrag_plugins.metrics.cost import Cost, CostCounter
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Answer, Generation

WORLD = World(llm=Scoring(plausible), retriever=BM25Retriever(PASSAGES), encoder=Letters())


def flows():
    return [METHODS["iter-retgen"].flow(question) for question in QUESTIONS]


def counts(cost: Cost) -> Cost:
    return dataclasses.replace(cost, batches=0, model_seconds=0.0, retrieval_seconds=0.0)


def test_each_flow_has_the_costs_that_it_has_alone():
    side_by_side = FlowWatch()
    run_many(flows(), WORLD, observers=[side_by_side])
    for i, flow in enumerate(flows()):
        alone = CostCounter()
        run(flow, WORLD, observers=[alone])
        assert counts(side_by_side.cost(i)) == counts(alone.cost)
        assert alone.cost.calls > 0


def test_each_flow_has_the_steps_that_it_has_alone():
    side_by_side = FlowWatch(trace=True)
    run_many(flows(), WORLD, observers=[side_by_side])
    for i, flow in enumerate(flows()):
        alone = FlowWatch(trace=True)
        run(flow, WORLD, observers=[alone])
        assert side_by_side.trace(i) == alone.trace()
        assert alone.trace()


def test_the_seconds_of_a_merged_call_are_shared_out():
    watch = FlowWatch()
    replies = [Generation("x")] * 4
    watch(Step("reply", Ask(("a", "b", "c", "d")), replies, 8.0, flows=(5, 9), shares=(1, 3)))
    assert (watch.cost(5).model_seconds, watch.cost(9).model_seconds) == (2.0, 6.0)
    assert watch.cost(1) == Cost()


def test_without_a_trace_no_steps_are_kept():
    watch = FlowWatch()
    run_many(flows(), WORLD, observers=[watch])
    assert watch.trace() is None


SECONDS = {"one": 0.25, "two": 0.5, "three": 4.0}


def in_two_requests(question, settings, learned):
    """Two prompts side by side, then one that shows what they gave."""
    first = yield from ask(f"one {question.id}", f"two {question.id}")
    [last] = yield from ask(f"three {question.id} {' '.join(reply.text for reply in first)}")
    return Answer(last.text, trace=(*first, last))


THRICE = Cell(dataclasses.replace(METHODS["direct"], name="thrice", answer=in_two_requests))


def known_seconds(prompt: str) -> float:
    """By the prompt's first word; of the third question's, twice as many."""
    word, name, *_ = prompt.split()
    return SECONDS[word] * (2 if name == "q2" else 1)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_ms_of_a_record_add_up_the_seconds_of_its_replies(batch):
    llm = ScriptedLLM(lambda prompt: Generation("x", seconds=known_seconds(prompt)))
    work = Work(THRICE, None, World(llm=llm), ("em",), batch)
    jobs = in_process([(work, QUESTIONS)])
    found = [record.ms for _, records in jobs for record in records]
    assert found == [4750.0, 4750.0, 9500.0]


def test_what_comes_from_the_cache_has_the_ms_that_it_took_once(tmp_path):
    """A run whose records were lost after the first, and whose answers took known seconds."""
    asked = ScriptedLLM(lambda prompt: f"to {' '.join(prompt.split()[:2])}")
    [first, *_] = evaluate(QUESTIONS, [THRICE], World(llm=asked), out=tmp_path)["thrice"]
    folder = RunFolder(tmp_path)
    with closing(sqlite3.connect(folder.answers)) as file, file:
        for key, kept in file.execute("SELECT key, answer FROM answers").fetchall():
            answer = AnswerStore.decoded(kept)
            seconds = known_seconds(answer.text.removeprefix("to "))
            changed = AnswerStore.encoded(dataclasses.replace(answer, seconds=seconds))
            file.execute("UPDATE answers SET answer = ? WHERE key = ?", (changed, key))
    lines = folder.file("thrice").read_bytes().splitlines(keepends=True)
    folder.file("thrice").write_bytes(lines[0])
    idle = ScriptedLLM(lambda prompt: f"{prompt} is asked again")
    found = evaluate(QUESTIONS, [THRICE], World(llm=idle), out=tmp_path)["thrice"]
    assert idle.prompts == []
    assert [record.ms for record in found] == [first.ms, 4750.0, 9500.0]
    assert summarize({"thrice": found[1:]})["thrice"].costs["ms"] == 7125.0


def test_a_fresh_answer_has_the_ms_that_the_cache_keeps_of_it(tmp_path):
    asked = ScriptedLLM(lambda prompt: f"to {' '.join(prompt.split()[:2])}")
    found = evaluate(QUESTIONS, [THRICE], World(llm=asked), out=tmp_path)["thrice"]
    with closing(sqlite3.connect(RunFolder(tmp_path).answers)) as file:
        kept = [AnswerStore.decoded(row[0]) for row in file.execute("SELECT answer FROM answers")]
    for record in found:
        seconds = [one.seconds or 0.0 for one in kept if one.text.endswith(f" {record.id}")]
        assert len(seconds) == 3
        assert record.ms == pytest.approx(1000 * sum(seconds), abs=0.001)
        assert sum(seconds) > 0
