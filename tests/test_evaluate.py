"""A run over questions: by hand, broken off, with a model that fails, in bad order."""

import dataclasses
import json
import re
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import pytest
from contracts.methods import LABELLED, PASSAGES, QUESTIONS
from evaluate_parts import DIRECT, SINGLE, without_ms, world, writes
from langchain_core.language_models import FakeListChatModel

from ltrag_plugins.errors import (
    ArtifactMismatch,
    BadRecord,
    CalibrationError,
    InvalidInput,
    MissingReferences,
    ModelFailed,
    ModelUnavailable,
    UnwritableArtifact,
)
from ltrag_plugins.evaluate import Cell, Record, evaluate, summarize
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.direct import DirectSettings
from ltrag_plugins.report import write_report
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


def test_generators_give_what_lists_give(tmp_path):
    cells = [DIRECT, Cell(METHODS["random-shots"])]
    listed = evaluate(QUESTIONS, cells, world(), out=tmp_path / "list", labelled=LABELLED)
    every = {"metrics": iter(["em", "f1", "rouge1", "bleu4"]), "labelled": iter(LABELLED)}
    found = evaluate(iter(QUESTIONS), iter(cells), world(), out=tmp_path / "list", **every)
    assert found == listed
    every = {"metrics": iter(["em", "f1", "rouge1", "bleu4"]), "labelled": iter(LABELLED)}
    anew = evaluate(iter(QUESTIONS), iter(cells), world(), out=tmp_path / "anew", **every)
    assert without_ms(anew) == without_ms(listed)


def test_a_line_that_a_kill_cut_short_is_written_again(tmp_path):
    found = evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)
    path = tmp_path / "records" / "direct.jsonl"
    content = path.read_bytes()
    for end in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        assert without_ms(evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)) == without_ms(found)
        assert len(path.read_bytes().splitlines()) == 3


@pytest.mark.parametrize("broken", [{}, {"scores": {"other": 1.0}}])
def test_a_broken_line_says_what_to_do_and_that_is_enough(tmp_path, broken):
    found = evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)
    path = tmp_path / "records" / "direct.jsonl"
    first, second, last = path.read_text().splitlines(keepends=True)
    path.write_text(f"{first}{json.dumps(broken and json.loads(second) | broken)}\n{last}")
    with pytest.raises(BadRecord, match=r"direct.jsonl, line 2: .*; take the line away, and a run"):
        evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)
    path.write_text(first + last)
    again = evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)
    assert without_ms(again) == without_ms(found)


def test_a_model_that_fails_is_a_row_with_the_error_and_the_worst_scores(tmp_path):
    def failing(prompt: str) -> str:
        if "Middlemarch?" in prompt:
            raise RuntimeError("overloaded")
        return writes(prompt)

    found = evaluate(QUESTIONS, [DIRECT], world(failing), out=tmp_path, metrics=["em", "ter"])
    good, bad, last = found["direct"]
    assert (good.prediction, good.error, last.error) == ("Jane Austen", None, None)
    assert bad.error.startswith("ModelFailed: the model raised RuntimeError: overloaded")
    assert (bad.prediction, bad.scores) == ("", {"em": 0.0, "ter": 1.0})
    assert [record.calls for record in found["direct"]] == [1, 1, 1]  # as alone
    assert summarize(found)["direct"].failed == 1
    assert "failed: direct: 1 of 3" in str(summarize(found))


def test_a_mistake_in_a_method_is_no_failure_of_the_model(tmp_path):
    def broken(question, settings, learned):
        raise ZeroDivisionError("a mistake")
        yield

    method = dataclasses.replace(DIRECT.method, answer=broken)
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        evaluate(QUESTIONS, [Cell(method)], world(), out=tmp_path)


@pytest.mark.parametrize(("told", "kind", "match"), [
    ({"questions": []}, InvalidInput, "needs questions and methods"),
    ({"cells": []}, InvalidInput, "needs questions and methods"),
    ({"questions": ["Why?"]}, InvalidInput, r"questions are Question\(.*'Why\?'"),
    ({"labelled": ["Why?"]}, InvalidInput, r"questions are Question\(.*'Why\?'"),
    ({"cells": ["direct"]}, InvalidInput, r"a cell must be cell_of\(.*got str 'direct'"),
    ({"questions": [Question("Why?", (), "q9")]}, MissingReferences, "'q9'"),
    ({"questions": [*QUESTIONS] * 2}, InvalidInput, "'q0' comes twice; .* name it otherwise"),
    ({"questions": [*QUESTIONS, Question("Why?", ("x",), "q0")]}, InvalidInput,
     rf"questions 1 and {1 + len(QUESTIONS)}, '.*' and 'Why\?'"),
    ({"questions": [*QUESTIONS] * 2}, InvalidInput,
     rf"questions 1 and {1 + len(QUESTIONS)}, both '{re.escape(QUESTIONS[0].text)}'"),
    ({"cells": [DIRECT, DIRECT]}, InvalidInput, "'direct' comes twice"),
    ({"metrics": ["rouge"]}, InvalidInput, "or rouge1"),
    ({"metrics": []}, InvalidInput, "at least one"),
    ({"cells": [SINGLE], "world": World(ScriptedLLM(writes))}, InvalidInput, "needs a retriever"),
    ({"cells": [Cell(METHODS["skr"])]}, InvalidInput, "labelled questions"),
    ({"world": World()}, InvalidInput, "direct needs a model"),
    ({"world": ScriptedLLM(writes)}, InvalidInput, r"world must be World\(.*got ScriptedLLM"),
    ({"world": World(FakeListChatModel(responses=["x"]))}, InvalidInput, "wrap what comes from"),
    ({"batch": 0}, InvalidInput, "batch must be a whole number, at least 1, got 0"),
    ({"batch": "16"}, InvalidInput, "batch must be a whole number, at least 1, got '16'"),
])  # fmt: skip
def test_what_cannot_be_run_is_refused(told, kind, match, tmp_path):
    with pytest.raises(kind, match=match):
        evaluate(**{"questions": QUESTIONS, "cells": [DIRECT], "world": world()} | told,
                 out=tmp_path)  # fmt: skip


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


def test_a_disk_that_is_full_loses_no_record_that_was_there(tmp_path):
    found = evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)["direct"]
    path = tmp_path / "records" / "direct.jsonl"
    full = no_file_larger_than(path.stat().st_size + 100)
    with full, pytest.raises(UnwritableArtifact, match="cannot write to"):
        RunFolder(tmp_path).add("direct", found)
    assert RunFolder(tmp_path).records("direct") == found


def test_a_filter_of_its_own_is_asked_once_and_is_part_of_the_run(tmp_path):
    filters = ScriptedLLM(lambda _: "none", name="filter")
    filco, own = Cell(METHODS["filco"]), dataclasses.replace(world(), filter=filters)
    told = {"questions": QUESTIONS, "cells": [filco], "out": tmp_path}
    found = evaluate(**told, world=own)
    asked = len(filters.prompts)
    assert asked == sum(record.calls - 1 for record in found["filco"]) > 0
    (tmp_path / "records" / "filco.jsonl").unlink()
    assert evaluate(**told, world=own).keys() == found.keys()
    assert len(filters.prompts) == asked  # its answers are kept too
    for other in (world(), dataclasses.replace(own, filter=ScriptedLLM(str, name="other"))):
        with pytest.raises(ArtifactMismatch, match="another run: filter"):
            evaluate(**told, world=other)


OTHER_POOL = dataclasses.replace(world(), retriever=BM25Retriever(PASSAGES[:3]))


@pytest.mark.parametrize(("told", "said"), [
    ({"cells": [DIRECT, SINGLE]}, "cells"),
    ({"questions": QUESTIONS[:2]}, "questions"),
    ({"metrics": ["f1"]}, "metrics"),
    ({"world": OTHER_POOL}, "retriever"),
])  # fmt: skip
def test_a_folder_of_another_run_is_refused(told, said, tmp_path):
    same = {"questions": QUESTIONS, "cells": [SINGLE], "world": world(), "out": tmp_path}
    evaluate(**same)
    with pytest.raises(ArtifactMismatch, match=f"another run: {said}"):
        evaluate(**same | told)


@dataclasses.dataclass(frozen=True)
class Rewarded(DirectSettings):
    """As a method of a user's own may have them."""

    reward: Callable[[str], float] = len


def at_least(text: str, least: int) -> float:
    return float(len(text) >= least)


def closure(least: int) -> Callable[[str], float]:
    def long(text: str) -> float:
        return float(len(text) >= least)

    return long


def test_a_function_among_the_settings_is_part_of_what_makes_a_run_the_same(tmp_path):
    short, other = (lambda text: 1.0), (lambda text: -1.0)
    for number, (same, another) in enumerate([
        (lambda: short, other),
        (lambda: closure(1), closure(9)),
        (lambda: partial(at_least, least=1), partial(at_least, least=9)),
        (lambda: len, at_least),
    ]):  # fmt: skip
        own, out = dataclasses.replace(DIRECT.method, settings=Rewarded), tmp_path / str(number)
        for _ in range(2):  # made anew, as another process would
            evaluate(QUESTIONS, [Cell(own, Rewarded(reward=same()))], world(), out=out)
        with pytest.raises(ArtifactMismatch, match=r"another run: settings.direct.reward was"):
            evaluate(QUESTIONS, [Cell(own, Rewarded(reward=another))], world(), out=out)
    # as runs of earlier versions have it
    assert RunFolder(out).read()["identity"]["settings"]["direct"]["reward"] == "len"


def test_numbers_of_other_libraries_and_a_tilde_are_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    evaluate(QUESTIONS, [DIRECT], world(), out="~/run", batch=np.int64(2))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["told"]["batch"] == 2
    write_report("~/run", "~/page.html", pictures_to="~/pictures")
    assert (tmp_path / "page.html").is_file()
    assert [*(tmp_path / "pictures").iterdir()]
    with pytest.raises(InvalidInput, match=r"a folder or file must be a path"):
        write_report(None)


@pytest.mark.parametrize("error", [ModelUnavailable, ModelFailed])  # the run ends, or goes on
def test_a_run_without_an_answer_gives_way_to_another(error, tmp_path):
    def unreachable(prompt: str) -> str:
        raise error("no server there")

    wrong = dataclasses.replace(world(), llm=ScriptedLLM(unreachable, name="typo"))
    same = {"questions": QUESTIONS[:2], "cells": [SINGLE], "out": tmp_path}
    with suppress(ModelUnavailable):
        failed = evaluate(**same | {"questions": QUESTIONS}, world=wrong)
        assert all(record.error for record in failed["single"])
    begun = (tmp_path / "run.json").read_text()
    assert without_ms(evaluate(**same, world=world())) == without_ms(
        evaluate(**same | {"out": tmp_path / "new"}, world=world())
    )
    written = (tmp_path / "run.json").read_text()
    assert written == (tmp_path / "new" / "run.json").read_text() != begun
    assert len(RunFolder(tmp_path).records("single")) == 2  # no failure of the other run
    with pytest.raises(ArtifactMismatch, match="another run: model"):
        evaluate(**same, world=wrong)


def test_a_gate_that_is_loaded_is_the_same_and_another_is_refused(tmp_path):
    known = [Question(f"who wrote book {i}?", (f"A{i % 2}",), f"k{i}") for i in range(40)]
    llm = ScriptedLLM(lambda _: "A0")
    gate, other = (GECEGate.fit(known, llm=llm, target_rate=rate) for rate in (0.5, 1.0))
    gate.save(tmp_path / "gate")
    for same in (gate, GECEGate.load(tmp_path / "gate", llm=llm)):
        gated = [dataclasses.replace(SINGLE, gate=same)]
        evaluate(QUESTIONS, gated, world(), out=tmp_path / "run")
    gated = [dataclasses.replace(SINGLE, gate=other)]
    with pytest.raises(ArtifactMismatch, match="another run: gates"):
        evaluate(QUESTIONS, gated, world(), out=tmp_path / "run")


def test_a_folder_takes_no_second_run_at_once(tmp_path):
    def second(prompt: str) -> str:
        evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path)
        return "never"

    found = evaluate(QUESTIONS[:1], [DIRECT], world(second), out=tmp_path)
    assert "another run is writing" in found["direct"][0].error


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
    about = "who?", ("a",), "a", {"em": 1.0}
    return [Record(f"q{i}", *about, ms=one, prompt_tokens=3) for i, one in enumerate(ms)]


def test_the_speed_up_of_a_gated_row_is_over_its_own_row_without_the_gate():
    rows = {
        "direct": (timed(1.0, 1.0), None),
        "single": (timed(30.0, 50.0), None),
        # of the means; the mean of 30 / 10 and 50 / 6 is another
        "single+gate": (timed(10.0, 6.0), 40 / 8),
        "single:k=5@1": (timed(3.0, 5.0), None),
        "single:k=5+gate@1": (timed(16.0, 0.0), 4 / 8),
        "ircot+gate": (timed(2.0, 2.0), None),  # there is no ircot
        "direct+free": (timed(0.0, 0.0), None),  # as recorded answers are
    }
    summary = summarize({name: records for name, (records, _) in rows.items()})
    assert [row.costs["ms"] for row in summary.rows] == [1.0, 40.0, 8.0, 4.0, 8.0, 2.0, 0.0]
    assert [row.speed_up for row in summary.rows] == [speed_up for _, speed_up in rows.values()]
    *_, costs = str(summary).split("\n\n")
    head, *lines = map(str.split, costs.splitlines())
    assert [line[1 + head.index("speed-up")] for line in lines if line[0] == "single+gate"] == [
        "5.00"
    ]
    assert "speed-up" not in str(summarize({"direct": rows["direct"][0]}))


def test_a_table_fits_80_columns_whatever_names_and_metrics_there_are():
    metrics = {f"metric{i}": i / 10 for i in range(10)}
    names = ("direct", "single+gate", "sgic:k=8:loop.rounds=3:loop.choose=repeated+gate@12")
    records = [Record("q", "who?", ("a",), "a", metrics, ms=1.0, prompt_tokens=3)]
    for some in (metrics, {"em": 1.0}):
        records = [dataclasses.replace(records[0], scores=some)]
        text = str(summarize(dict.fromkeys(names, records)))
        assert max(map(len, text.splitlines())) <= 80
        assert [text.count(f"\n{name}") for name in names] == [text.count("\n\n") + 1] * 3
        assert all(f"{value:.3f}" in text for value in some.values())
        assert {*some, "calls", "tokens"} <= {*text.split()}


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
