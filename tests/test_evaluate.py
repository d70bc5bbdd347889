"""A run over questions: by hand, broken off anywhere, with a model that fails, in bad order."""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from contracts.methods import LABELLED, PASSAGES, QUESTIONS
from evaluate_parts import DIRECT, SINGLE, many, without_ms, world, writes

from ltrag_plugins.errors import (
    ArtifactMismatch,
    BadRecord,
    CalibrationError,
    InvalidInput,
    MissingReferences,
    UnwritableArtifact,
)
from ltrag_plugins.evaluate import Cell, Record, evaluate, summarize
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Question


def test_a_run_by_hand(tmp_path):
    single = dataclasses.replace(SINGLE, settings=SINGLE.method.settings(k=1))
    found = evaluate(QUESTIONS, [DIRECT, single], world(), out=tmp_path, metrics=["em", "f1"])
    assert [r.prediction for r in found["direct"]] == ["Jane Austen", "no idea", "no idea"]
    read = ["Jane Austen", "George Eliot", "flour and water"]
    assert [r.prediction for r in found["single"]] == read
    scores = [(1.0, 1.0), (1.0, 1.0), (0.0, 0.5)]
    assert [(r.scores["em"], r.scores["f1"]) for r in found["single"]] == scores
    first = found["single"][0]
    assert (first.calls, first.retrievals, [p["id"] for p in first.passages]) == (1, 1, ["p0"])
    assert (found["direct"][0].retrievals, found["direct"][0].passages) == (0, ())
    summary = summarize(found)
    assert summary["direct"].scores["em"].value == pytest.approx(1 / 3)
    assert summary["single"].gains["em"].value == pytest.approx(1 / 3)
    assert summary["single"].easy == {"em": 1.0, "f1": 1.0}
    assert summary["single"].hard == {"em": 0.5, "f1": 0.75}
    assert "single" in str(summary)
    assert json.loads(json.dumps(summary.as_dict()))["compared"] == "direct"


def test_the_records_on_disk_are_those_handed_back(tmp_path):
    found = evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path, trace=True)
    lines = (tmp_path / "records" / "direct.jsonl").read_bytes().splitlines()
    assert [Record.from_line(line) for line in lines] == found["direct"]
    [step] = found["direct"][0].trace
    assert step["asked"][0]["reply"] == "Jane Austen"
    assert "Emma" in step["asked"][0]["prompt"]


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_side_by_side_or_not_the_records_are_the_same_and_are_not_asked_for_again(tmp_path, batch):
    alone = evaluate(QUESTIONS, [DIRECT, SINGLE], world(), out=tmp_path / "1", batch=1)
    there = world()
    found = evaluate(QUESTIONS, [DIRECT, SINGLE], there, out=tmp_path / "n", batch=batch)
    assert without_ms(found) == without_ms(alone)
    assert len(there.llm.prompts) == 6
    assert evaluate(QUESTIONS, [DIRECT, SINGLE], there, out=tmp_path / "n") == found
    assert len(there.llm.prompts) == 6


def test_a_line_that_a_kill_cut_short_is_written_again(tmp_path):
    found = evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)
    path = tmp_path / "records" / "direct.jsonl"
    content = path.read_bytes()
    for end in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        assert without_ms(evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)) == without_ms(found)
        assert len(path.read_bytes().splitlines()) == 3


NURSERY = """
import os, sys, time
sys.path[:0] = [{tests!r}]
from evaluate_parts import DIRECT, SINGLE, many, world
from ltrag_plugins.evaluate import evaluate

def live(calls):
    asked = 0
    def slow(prompt):
        nonlocal asked
        asked += 1
        time.sleep(0.001 if asked < calls + 50 else 60)  # it cannot outrun whoever kills it
        print(prompt.startswith("Answer"), prompt.splitlines()[-2], flush=True)
        return "no idea" if len(prompt) % 3 else "Jane Austen"
    evaluate(many(500), [DIRECT, SINGLE], world(slow), out={out!r}, batch=8)
    print("done", flush=True)

for line in sys.stdin:  # each life in a process that need not import anything
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        live(int(line))
        os._exit(0)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments_and_called_again_gives_the_records_of_one_run(tmp_path):
    source = textwrap.dedent(NURSERY).format(
        tests=str(Path(__file__).parent), out=str(tmp_path / "killed")
    )
    command, pipe = [sys.executable, "-c", source], subprocess.PIPE
    asked: list[str] = []
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as nursery:

        def live(calls: int, *, killed: bool) -> None:
            print(calls, file=nursery.stdin, flush=True)
            child, said = int(nursery.stdout.readline()), 0
            while (line := nursery.stdout.readline().strip()) != "ended":
                assert line, "the nursery has died"
                asked.append(line)
                said += 1
                if killed and said == calls:
                    os.kill(child, signal.SIGKILL)

        rng = np.random.default_rng(0)
        for _ in range(5):
            live(int(rng.integers(10, 200)), killed=True)
        live(1000, killed=False)
    counts = Counter(asked)
    assert counts.pop("done") == 1
    assert len(counts) == 2 * 500
    assert sum(counts.values()) - len(counts) <= 5 * 8  # in flight at each kill: one batch

    def same(prompt: str) -> str:
        return "no idea" if len(prompt) % 3 else "Jane Austen"

    whole = evaluate(many(500), [DIRECT, SINGLE], world(same), out=tmp_path / "whole")
    killed = evaluate(many(500), [DIRECT, SINGLE], world(same), out=tmp_path / "killed")
    assert without_ms(killed) == without_ms(whole)


class TestAModelThatFails:
    def failing(self, prompt: str) -> str:
        if "Middlemarch?" in prompt:
            raise RuntimeError("overloaded")
        return writes(prompt)

    def test_is_a_row_with_the_error_and_the_worst_scores_and_the_others_stand(self, tmp_path):
        metrics = ["em", "ter"]
        found = evaluate(QUESTIONS, [DIRECT], world(self.failing), out=tmp_path, metrics=metrics)
        good, bad, last = found["direct"]
        assert (good.prediction, good.error, last.error) == ("Jane Austen", None, None)
        assert bad.error.startswith("ModelFailed: the model raised RuntimeError: overloaded")
        assert bad.scores == {"em": 0.0, "ter": 1.0}
        assert bad.prediction == ""
        assert [record.calls for record in found["direct"]] == [1, 1, 1]  # as alone
        assert summarize(found)["direct"].failed == 1
        assert "failed: direct: 1 of 3" in str(summarize(found))

    def test_a_mistake_in_a_method_is_no_failure_of_the_model(self, tmp_path):
        def broken(question, settings, learned):
            raise ZeroDivisionError("a mistake")
            yield

        method = dataclasses.replace(DIRECT.method, answer=broken)
        with pytest.raises(ZeroDivisionError, match="a mistake"):
            evaluate(QUESTIONS, [Cell(method)], world(), out=tmp_path)


SKR = Cell(METHODS["skr"])


@pytest.mark.parametrize(("told", "kind", "match"), [
    ({"questions": []}, InvalidInput, "needs questions and methods"),
    ({"cells": []}, InvalidInput, "needs questions and methods"),
    ({"questions": [Question("Why?", (), "q9")]}, MissingReferences, "'q9'"),
    ({"questions": [*QUESTIONS] * 2}, InvalidInput, "'q0' comes twice"),
    ({"cells": [DIRECT, DIRECT]}, InvalidInput, "'direct' comes twice"),
    ({"metrics": ["rouge"]}, InvalidInput, "or rouge1"),
    ({"metrics": []}, InvalidInput, "at least one"),
    ({"cells": [SINGLE], "world": World(ScriptedLLM(writes))}, InvalidInput, "needs a retriever"),
    ({"cells": [SKR]}, InvalidInput, "labelled questions"),
    ({"world": World()}, InvalidInput, "direct needs a model"),
])  # fmt: skip
def test_what_cannot_be_run_is_refused(told, kind, match, tmp_path):
    with pytest.raises(kind, match=match):
        evaluate(**{"questions": QUESTIONS, "cells": [DIRECT], "world": world()} | told,
                 out=tmp_path)  # fmt: skip


class TestAFolder:
    @pytest.mark.parametrize(("told", "said"), [
        ({"cells": [DIRECT, SINGLE]}, "cells"),
        ({"questions": QUESTIONS[:2]}, "questions"),
        ({"metrics": ["f1"]}, "metrics"),
        ({"world": dataclasses.replace(world(), retriever=BM25Retriever(PASSAGES[:3]))},
         "retriever"),
    ])  # fmt: skip
    def test_of_another_run_is_refused(self, told, said, tmp_path):
        same = {"questions": QUESTIONS, "cells": [SINGLE], "world": world(), "out": tmp_path}
        evaluate(**same)
        with pytest.raises(ArtifactMismatch, match=f"another run: {said}"):
            evaluate(**same | told)

    def test_of_a_run_with_another_gate_is_refused(self, tmp_path):
        def gated(rate: float) -> Cell:
            known = [Question(f"who wrote book {i}?", (f"A{i % 2}",), f"k{i}") for i in range(40)]
            llm = ScriptedLLM(lambda _: "A0")
            return dataclasses.replace(SINGLE, gate=GECEGate.fit(known, llm=llm, target_rate=rate))

        evaluate(QUESTIONS, [first := gated(0.5)], world(), out=tmp_path / "run")
        first.gate.save(tmp_path / "gate")
        loaded = GECEGate.load(tmp_path / "gate", llm=first.gate.world.llm)
        again = [dataclasses.replace(first, gate=loaded)]
        evaluate(QUESTIONS, again, world(), out=tmp_path / "run")
        with pytest.raises(ArtifactMismatch, match="another run: gates"):
            evaluate(QUESTIONS, [gated(1.0)], world(), out=tmp_path / "run")

    def test_with_a_damaged_record_is_refused(self, tmp_path):
        evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)
        path = tmp_path / "records" / "direct.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"prediction"', b'"predicted"', 1))
        with pytest.raises(BadRecord, match="line 1"):
            evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)

    def test_takes_no_second_run_at_once(self, tmp_path):
        def second(prompt: str) -> str:
            evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)
            return "never"

        found = evaluate(QUESTIONS[:1], [DIRECT], world(second), out=tmp_path)
        assert "another run is writing" in found["direct"][0].error

    def test_on_a_disk_that_is_full_loses_no_record_that_was_there(self, tmp_path):
        found = evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)["direct"]
        path = tmp_path / "records" / "direct.jsonl"
        full = no_file_larger_than(path.stat().st_size + 100)
        with full, pytest.raises(UnwritableArtifact, match="cannot write to"):
            RunFolder(tmp_path).add("direct", found)
        assert RunFolder(tmp_path).records("direct") == found


@contextmanager
def no_file_larger_than(size: int):
    """As a disk does that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_methods_that_learn_learn_once_from_the_labelled_questions(tmp_path):
    asked = []

    def learn(labelled, settings):
        asked.append([question.id for question in labelled])
        return "learned"
        yield

    def answer(question, settings, learned):
        assert learned == "learned"
        return (yield from DIRECT.method.answer(question, settings, None))

    method = dataclasses.replace(DIRECT.method, learn=learn, answer=answer)
    evaluate(QUESTIONS, [Cell(method)], world(), out=tmp_path, labelled=LABELLED, batch=1)
    assert asked == [[question.id for question in LABELLED]]


def test_a_method_that_can_learn_nothing_fails_alone(tmp_path):
    def learn(labelled, settings):
        raise CalibrationError("nothing to tell apart")
        yield

    method = dataclasses.replace(DIRECT.method, name="learner", learn=learn)
    cells = [Cell(method), DIRECT]
    found = evaluate(QUESTIONS, cells, world(), out=tmp_path, labelled=LABELLED)
    assert {r.error for r in found["learner"]} == {"CalibrationError: nothing to tell apart"}
    assert [r.error for r in found["direct"]] == [None] * 3


def test_where_less_is_better_easy_questions_are_those_with_less(tmp_path):
    found = evaluate(QUESTIONS, [DIRECT, SINGLE], world(), out=tmp_path, metrics=["ter"])
    summary = summarize(found)
    assert [r.scores["ter"] for r in found["direct"]] == [0.0, 1.0, 2.0]
    assert summary["direct"].easy == {"ter": 0.0}
    assert summary["direct"].hard == {"ter": 1.5}


def timed(*ms: float) -> list[Record]:
    """Records of questions q0, q1, ... that took so long."""
    return [
        Record(f"q{i}", "who?", ("a",), "a", {"em": 1.0}, ms=one, prompt_tokens=3)
        for i, one in enumerate(ms)
    ]


def test_the_speed_up_of_a_gated_row_is_over_its_own_row_without_the_gate():
    rows = {
        "direct": (timed(1.0, 1.0), None),
        "single": (timed(30.0, 50.0), None),
        "single+gece": (
            timed(10.0, 6.0),
            40 / 8,
        ),  # of the means; the mean of 3 and 50/6 is another
        "single:k=5@1": (timed(3.0, 5.0), None),
        "single:k=5+gece@1": (timed(16.0, 0.0), 4 / 8),
        "ircot+gece": (timed(2.0, 2.0), None),  # there is no ircot
        "direct+free": (timed(0.0, 0.0), None),  # as recorded answers are
    }
    summary = summarize({name: records for name, (records, _) in rows.items()})
    assert [row.costs["ms"] for row in summary.rows] == [1.0, 40.0, 8.0, 4.0, 8.0, 2.0, 0.0]
    assert [row.speed_up for row in summary.rows] == [speed_up for _, speed_up in rows.values()]
    head, *lines = str(summary).splitlines()
    assert {"calls", "retrievals", "tokens", "ms", "speed-up"} <= {*head.split()}
    assert lines[2].partition("  +")[0].split()[-1] == "5.00"


def test_cells_about_different_questions_are_not_compared(tmp_path):
    one = evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path / "1")
    two = evaluate(QUESTIONS[:2], [SINGLE], world(), out=tmp_path / "2")
    with pytest.raises(InvalidInput, match="different questions"):
        summarize(one | two)


def test_the_direct_row_may_have_settings_and_still_tells_easy_from_hard(tmp_path):
    short = Cell(DIRECT.method, DIRECT.method.settings(max_tokens=8), label="max_tokens=8")
    plain = summarize(evaluate(QUESTIONS, [DIRECT, SINGLE], world(), out=tmp_path / "a"))
    named = summarize(evaluate(QUESTIONS, [SINGLE, short], world(), out=tmp_path / "b"))
    assert named["single"].easy == plain["single"].easy != {}
    assert named["single"].hard == plain["single"].hard


def test_rows_of_several_seeds_have_their_mean_and_spread(tmp_path):
    found = evaluate(QUESTIONS, [DIRECT, SINGLE], world(), out=tmp_path, metrics=["em"])
    seeded = {"x@0": found["direct"], "x@1": found["single"], "y@0": found["single"]}
    summary = summarize(seeded)
    # 1/3 and 2/3: mean 1/2, standard deviation (1/3) / sqrt(2)
    assert summary.seeds["x"]["seeds"] == 2
    assert summary.seeds["x"]["scores"]["em"] == pytest.approx((0.5, 1 / 3 / 2**0.5))
    assert list(summary.seeds) == ["x"]
    assert "x, 2 seeds (mean ± sd): em 0.500 ± 0.236" in str(summary)
    assert summary.as_dict()["seeds"].keys() == {"x"}


def test_run_json_notes_versions_and_how_it_was_run_which_no_second_call_must_equal(tmp_path):
    evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path, batch=2, told={"engine": "here"})
    body = RunFolder(tmp_path).read()
    assert body["told"] == {"batch": 2, "engine": "here"}
    assert body["versions"]["python"] == sys.version.split()[0]
    assert body["versions"]["numpy"] == np.__version__
    assert "torch" in body["versions"]
    evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path, batch=3, told={"engine": "ray"})


def test_how_a_method_went_about_it_is_in_the_record(tmp_path):
    cells = [Cell(METHODS["self-rag"]), DIRECT]
    found = evaluate(QUESTIONS, cells, world(lambda prompt: "Yes"), out=tmp_path)
    assert {record.mode for record in found["self-rag"]} == {"yes-no texts"}
    assert RunFolder(tmp_path).records("self-rag") == found["self-rag"]
    assert [record.mode for record in RunFolder(tmp_path).records("direct")] == [None] * 3
