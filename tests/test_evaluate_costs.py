"""Costs and traces of flows that run side by side, beside those of each alone."""

import dataclasses
import json
import sqlite3
import time
from contextlib import closing

import pytest
from contracts.methods import PASSAGES, QUESTIONS, Letters, Scoring, plausible

from ltrag_plugins.evaluate import Cell, Record, Work, evaluate, in_process, summarize
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.flow import World, ask, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Answer, Generation

WORLD = World(llm=Scoring(plausible), retriever=BM25Retriever(PASSAGES), encoder=Letters())


METHOD = Cell(METHODS["iter-retgen"])


def worked(cell: Cell, world: World, batch: int, trace: bool = False) -> list[Record]:
    [(_, found)] = in_process([(Work(cell, None, world, ("em",), batch, trace), QUESTIONS)])
    return found


def test_each_question_has_the_costs_that_its_flow_has_alone():
    for record, question in zip(worked(METHOD, WORLD, batch=3), QUESTIONS, strict=True):
        counter = CostCounter()
        run(METHODS["iter-retgen"].flow(question), WORLD, observers=[counter])
        alone = counter.cost
        assert (record.calls, record.retrievals) == (alone.calls, alone.retrievals)
        assert (record.prompt_tokens, record.completion_tokens) == (
            alone.prompt_tokens, alone.completion_tokens,
        )  # fmt: skip
        assert alone.calls > 0


def test_each_question_has_the_steps_that_it_has_alone():
    together = worked(METHOD, WORLD, batch=3, trace=True)
    work = Work(METHOD, None, WORLD, ("em",), 1, trace=True)
    alone = [found.trace for _, [found] in in_process([(work, QUESTIONS)])]
    assert [record.trace for record in together] == alone
    assert all(alone)


def test_the_seconds_of_a_merged_call_are_shared_out():
    def asks_more(question, settings, learned):
        """One prompt, two or three."""
        replies = yield from ask(*[f"{question.id} {i}" for i in range(int(question.id[1:]) + 1)])
        return Answer(replies[0].text, trace=tuple(replies))

    def slow(prompt: str) -> Generation:
        time.sleep(0.01)
        return Generation("x")

    cell = Cell(dataclasses.replace(METHODS["direct"], name="more", answer=asks_more))
    one, two, three = (r.ms for r in worked(cell, World(llm=ScriptedLLM(slow)), batch=3))
    assert (two / one, three / one) == (pytest.approx(2, rel=1e-3), pytest.approx(3, rel=1e-3))
    assert one + two + three >= 60


def test_without_a_trace_no_steps_are_kept():
    assert {record.trace for record in worked(METHOD, WORLD, batch=3)} == {None}


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
            text, *parts, _, reason = json.loads(kept)
            changed = [text, *parts, known_seconds(text.removeprefix("to ")), reason]
            file.execute("UPDATE answers SET answer = ? WHERE key = ?", (json.dumps(changed), key))
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
        kept = [json.loads(row[0]) for row in file.execute("SELECT answer FROM answers")]
    for record in found:
        seconds = [took for text, *_, took, _ in kept if text.endswith(f" {record.id}")]
        assert len(seconds) == 3
        assert record.ms == pytest.approx(1000 * sum(seconds), abs=0.001)
        assert sum(seconds) > 0
