"""A run on Ray beside the same run in one process, a killed worker among the workers."""

import json
import os
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cli_parts import ltrag, write
from contracts.methods import LABELLED, PASSAGES, taught
from contracts.methods import world as methods_world
from evaluate_parts import DIRECT, SINGLE, many, without_ms, world
from openai_server import openai_server

from ltrag_plugins.batch import on_ray
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate import Cell, evaluate
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.run import in_process
from ltrag_plugins.flow import World, ask
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.methods import METHODS
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage

ray = pytest.importorskip("ray")


CHEAP = ("em", "f1")
"""Measures that need no library: a worker that imports nltk takes seconds longer."""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    # set here rather than as Ray's runtime_env, for which it starts other workers than those it
    # has; and workers are nice by default, so that other tests would starve them
    told = {"PYTHONPATH": paths, "OPENAI_API_KEY": "x", "RAY_worker_niceness": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def by_length(prompt: str) -> str:
    """Depends on the whole prompt; overloaded by one question."""
    if "part 7?" in prompt:
        raise RuntimeError("overloaded")
    return ["no idea", "yes", "[2] > [1]", "Jane Austen"][len(prompt) % 4]


def lengths() -> World:
    return replace(methods_world(by_length), retriever=BM25Retriever(PASSAGES))


class Odd:
    """A gate that lets retrieve what has an odd number of letters."""

    def __init__(self, world: World) -> None:
        assert world.llm is not None

    def deciding(self, question):
        [draft] = yield from ask(question)
        retrieve = len(question) % 2 == 1
        return Decision(question, retrieve, 0.5, 0.5, "text", "odd", draft)


def cells() -> list[Cell]:
    single = METHODS["single"]
    gated = Cell(single, gate=Odd(lengths()), gate_name="odd")
    return [*map(Cell, METHODS.values()), gated]


def teaching() -> World:
    """The driver's, which methods learn with."""
    return replace(lengths(), llm=methods_world(taught).llm)


def test_every_method_and_a_gate_give_the_records_of_one_process(tmp_path):
    questions = [replace(q, passages=(Passage("a", metadata={"k": (1, 2)}),)) for q in many()[:12]]
    questions[3] = replace(questions[3], text="Who wrote\u2028Emma,\x85part 3?")

    def here(jobs):  # where the world that was taught is not the one that is asked, as on Ray
        yield from in_process((replace(work, world=lengths()), left) for work, left in jobs)

    # in the same batches: a failed question has its neighbours asked again, and SGIC counts that
    asking = partial(evaluate, questions, cells(), teaching(), labelled=LABELLED, batch=5)
    engine = on_ray(lengths, workers=2, gates={"odd": Odd})
    there = asking(out=tmp_path / "ray", engine=engine)
    assert without_ms(there) == without_ms(asking(out=tmp_path / "here", engine=here))
    assert [r.id for r in there["direct"] if r.error] == ["q7"]
    assert {r.retrievals for r in there["single+odd"]} == {0, 1}
    written = (tmp_path / "ray" / "records" / "direct.jsonl").read_text()
    assert written.count("\n") == len(questions)


@pytest.mark.parametrize("kept", [True, False])
def test_a_worker_killed_in_the_middle_loses_nothing(tmp_path, monkeypatch, kept):
    monkeypatch.setattr("ltrag_plugins.batch._BLOCKS", 1)  # what is lost: 8 parts, 4 answered
    flag, asked = tmp_path / "killed", tmp_path / "asked"

    def answering(prompt: str) -> str:
        return by_length(prompt.replace("part 7?", "part 70?"))  # nothing fails here

    def dying() -> World:
        def reply(prompt: str) -> str:
            with asked.open("a") as file:
                file.write(json.dumps(prompt) + "\n")
            if prompt.startswith("Answer") and "part 33?" in prompt and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return answering(prompt)

        return world(reply)

    both = [DIRECT, SINGLE]
    engine = on_ray(dying) if kept else on_ray(dying, answers=False)
    asking = partial(evaluate, many(), both, metrics=CHEAP, batch=8)
    here = asking(world(answering), out=tmp_path / "here")
    there = asking(world(), out=tmp_path / "ray", engine=engine)
    assert flag.exists()
    assert without_ms(there) == without_ms(here)
    counts = Counter(asked.read_text().splitlines())
    again = [prompt for prompt, count in counts.items() if count > 1]
    assert len(counts) == 2 * 60
    # of its part, questions 32 to 39, the killed worker had asked two; no answer had come
    parts = [int(re.findall(r"part (\d+)\?", prompt)[-1]) for prompt in again]
    assert sorted(parts)[-2:] == [32, 33]
    assert (len(again) == 2) == kept
    assert max(counts.values()) == 2


@pytest.mark.parametrize(
    ("where", "rows"), [("the run", (4, 0)), ("a file", (0, 4)), ("nowhere", (0, 0))]
)
def test_the_workers_answers_are_kept_with_the_run_or_where_it_is_said(
    tmp_path, monkeypatch, where, rows
):
    monkeypatch.chdir(tmp_path)  # where no worker is
    mine = tmp_path / "mine.sqlite"
    given = {"the run": {}, "a file": {"answers": mine.name}, "nowhere": {"answers": None}}[where]
    engine = on_ray(lengths, workers=1, **given)
    out = tmp_path / "run"
    evaluate(many()[:4], [DIRECT], lengths(), out=out, metrics=CHEAP, engine=engine)
    assert mine.exists() == (where == "a file")
    files = (RunFolder(out).answers, mine)
    for file, kept in zip(files, rows, strict=True):
        if kept or file.exists():
            with closing(sqlite3.connect(file)) as answers:
                assert answers.execute("SELECT count(*) FROM answers").fetchone() == (kept,)


def test_what_cannot_run_there_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="workers"):
        on_ray(lengths, workers=0)
    with pytest.raises(InvalidInput, match="give on_ray gates="):
        evaluate(many()[:2], cells()[-1:], lengths(), out=tmp_path, engine=on_ray(lengths))


def test_the_command_line_does_it_with_its_gate(tmp_path):
    others = [{"question": f"who wrote book {i}?", "answers": [f"Author {i}"]} for i in range(40)]
    pool = [{"text": f"book {i} was written by Author {i}"} for i in range(40)]
    for name, rows in (("asked", others[:8]), ("others", others[8:]), ("pool", pool)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with openai_server(write) as (url, _):
        given = ("--model", f"openai:scripted@{url}", "--passages", tmp_path / "pool.jsonl")
        gate = ("--gate", "fit", "--labelled", tmp_path / "others.jsonl", "--rate", 0.5)
        gate += ("--metrics", ",".join(CHEAP))
        for out, more in (("here", ()), ("there", ("--set", "engine=ray"))):
            asked = ("evaluate", tmp_path / "asked.jsonl", "--out", tmp_path / out)
            result = ltrag(*asked, *given, *gate, *more, env={"OPENAI_API_KEY": "not-a-secret"})
            assert result.exit_code == 0, result.output
    names = ["direct", "single", "single+gate"]
    here, there = (
        without_ms({name: RunFolder(tmp_path / out).records(name) for name in names})
        for out in ("here", "there")
    )
    assert there == here
