"""Costs and traces of flows that run side by side, beside those of each alone."""

import dataclasses
import json
import sqlite3
import time
from collections import defaultdict
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
    jobs = in_process([(Work(cell, None, world, ("em",), batch, trace), QUESTIONS)])
    return [record for _, records in jobs for record in records]


def test_each_question_has_the_costs_and_the_steps_that_it_has_alone():
    together = worked(METHOD, WORLD, batch=3, trace=True)
    for record, question in zip(together, QUESTIONS, strict=True):
        counter = CostCounter()
        run(METHODS["iter-retgen"].flow(question), WORLD, observers=[counter])
        alone = counter.cost
        assert (record.calls, record.retrievals) == (alone.calls, alone.retrievals)
        spent = record.prompt_tokens, record.completion_tokens
        assert spent == (alone.prompt_tokens, alone.completion_tokens)
        assert alone.calls > 0
    one_by_one = [record.trace for record in worked(METHOD, WORLD, batch=1, trace=True)]
    assert [record.trace for record in together] == one_by_one
    assert all(one_by_one)
    assert {record.trace for record in worked(METHOD, WORLD, batch=3)} == {None}


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
    found = worked(THRICE, World(llm=llm), batch)
    assert [record.ms for record in found] == [4750.0, 4750.0, 9500.0]


def test_what_comes_from_the_cache_has_the_ms_that_it_took_once(tmp_path):
    """A run whose records were lost after the first, and whose answers took known seconds."""
    asked = ScriptedLLM(lambda prompt: f"to {' '.join(prompt.split()[:2])}")
    fresh = evaluate(QUESTIONS, [THRICE], World(llm=asked), out=tmp_path)["thrice"]
    folder, took = RunFolder(tmp_path), defaultdict(list)
    with closing(sqlite3.connect(folder.answers)) as file, file:
        for key, kept in file.execute("SELECT key, answer FROM answers").fetchall():
            text, *parts, seconds, reason = json.loads(kept)
            took[text.split()[-1]].append(seconds)
            changed = [text, *parts, known_seconds(text.removeprefix("to ")), reason]
            file.execute("UPDATE answers SET answer = ? WHERE key = ?", (json.dumps(changed), key))
    for record in fresh:  # a fresh answer has the ms that the cache keeps of it
        assert len(took[record.id]) == 3
        assert record.ms == pytest.approx(1000 * sum(took[record.id]), abs=0.001)
        assert record.ms > 0
    lines = folder.file("thrice").read_bytes().splitlines(keepends=True)
    folder.file("thrice").write_bytes(lines[0])
    idle = ScriptedLLM(lambda prompt: f"{prompt} is asked again")
    found = evaluate(QUESTIONS, [THRICE], World(llm=idle), out=tmp_path)["thrice"]
    assert idle.prompts == []
    assert [record.ms for record in found] == [fresh[0].ms, 4750.0, 9500.0]
    assert summarize({"thrice": found[1:]})["thrice"].costs["ms"] == 7125.0
