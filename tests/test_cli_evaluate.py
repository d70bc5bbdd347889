"""`ltrag evaluate` and `ltrag methods` against a real HTTP server."""

import json
import re
import signal
import threading
from dataclasses import replace

import pytest
from cli_parts import KNOWN, book, lines_file, ltrag, one_line, page, program, write
from contracts.methods import Letters
from openai_server import openai_server
from typer.testing import Result

from ltrag_plugins.errors import ArtifactMismatch
from ltrag_plugins.evaluate import Cell
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.gating import RunGate, gated_cells
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.types import Question

GATE = ("--gate", "fit", "--rate", 0.5)


@pytest.fixture(scope="module")
def server():
    with openai_server(write) as (url, asked):
        yield url, asked


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    lines_file(folder / "first.jsonl", *map(book, range(10)))
    lines_file(folder / "others.jsonl", *map(book, range(10, 40)))
    lines_file(folder / "pool.jsonl", *map(page, range(40)))
    return folder


@pytest.fixture
def learning(files):
    return ("--labelled", files / "others.jsonl")


@pytest.fixture
def evaluated(files, server, tmp_path):
    """Run over ten questions; where it should succeed, it must."""

    def evaluated(*more, code=0, out=tmp_path, url=server[0], asked=None) -> Result:
        pool = () if asked else ("--passages", files / "pool.jsonl")
        told = ("--out", out, "--model", f"openai:scripted@{url}", *pool, *more)
        env = {"OPENAI_API_KEY": "not-a-secret"}
        result = ltrag("evaluate", asked or files / "first.jsonl", *told, env=env)
        assert result.exit_code == code, result.output
        return result

    return evaluated


def rows_of(result: Result) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads(result.stdout)["rows"]}


def test_the_table_says_who_was_right_at_what_cost_and_is_told_again_for_nothing(evaluated, server):
    result = evaluated("--metrics", "em,f1")
    known = sum(f"who wrote book {i}?" in KNOWN for i in range(10)) / 10
    quality, costs = (
        {line.split()[0]: line.split()[1:] for line in block.splitlines()[1:]}
        for block in result.stdout.split("\n\n")
    )
    assert float(quality["direct"][0]) == known
    assert quality["single"][:3] == ["1.000", "1.000", f"{1 - known:+.3f}"]
    assert [float(value) for value in costs["single"][:2]] == [1.0, 1.0]
    asked = len(server[1])
    assert evaluated("--metrics", "em,f1").stdout == result.stdout
    assert len(server[1]) == asked


def test_another_run_takes_its_answers_from_the_same_cache(evaluated, server, tmp_path):
    kept = ("--cache", tmp_path / "answers.sqlite", "--json")
    first = rows_of(evaluated("--metrics", "em", *kept, out=tmp_path / "first"))
    asked = len(server[1])
    more = rows_of(evaluated("--metrics", "contains", *kept, out=tmp_path / "more"))
    assert len(server[1]) == asked
    for name, row in more.items():
        assert row["costs"]["tokens"] == first[name]["costs"]["tokens"] > 0


def test_a_gate_stands_before_what_retrieves_and_is_fitted_on_the_other_questions(
    evaluated, learning, tmp_path
):
    rows = rows_of(evaluated(*GATE, *learning, "--json"))
    assert list(rows) == ["direct", "single", "single+gate"]
    gated = RunFolder(tmp_path).records("single+gate")
    assert {record.decision["retrieve"] for record in gated} == {True, False}
    assert all(record.retrievals == record.decision["retrieve"] for record in gated)
    assert rows["single+gate"]["scores"]["em"]["value"] == 1.0
    assert (tmp_path / "gate").is_dir()


def test_a_run_says_once_what_its_gate_is_worth(evaluated, learning, tmp_path):
    first = evaluated(*GATE, *learning).stderr
    gate = GECEGate.load(tmp_path / "gate", llm=ScriptedLLM(write, name=fitted_with(tmp_path)))
    verdict = str(gate.report).splitlines()[0]
    assert f"ltrag: the gate {verdict}\n" in first
    assert gate.report.notes
    for note in gate.report.notes:
        assert f"ltrag: note: {note}\n" in first
    again = evaluated(*GATE, *learning).stderr
    assert verdict not in again


def fitted_with(run) -> str:
    return json.loads((run / "gate" / "gate.json").read_text())["llm"]


def test_a_run_shows_the_fit_of_its_gate_and_goes_on_with_what_is_there(
    evaluated, learning, tmp_path, monkeypatch
):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    first = evaluated(*GATE, *learning).stderr
    assert "60/60" in first  # a draft and an answer with retrieval of each that it learns from
    assert "30/30" in first
    records = tmp_path / "records" / "single.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:4]))
    again = evaluated(*GATE, *learning).stderr
    assert "60/60" not in again
    assert "30/30" in again
    counts = [int(done) for done in re.findall(r"(\d+)/30", again)]
    assert min(counts) == 24


def test_a_filter_may_be_a_model_of_its_own(evaluated, server, tmp_path):
    own, asked = f"openai:filter@{server[0]}", len(server[1])
    row = rows_of(evaluated("--methods", "filco", "--set", f"filter={own}", "--json"))["filco"]
    assert row["scores"]["em"]["value"] == 1.0
    assert sum("Copy, word for word" in prompt for prompt in server[1][asked:]) == 30
    assert json.loads((tmp_path / "run.json").read_text())["identity"]["filter"].startswith(
        "filter"
    )
    line = one_line(evaluated("--methods", "single", "--set", f"filter={own}", code=1))
    assert line == "filter=MODEL is for the method filco; add it to --methods"


def test_one_method_with_two_settings_and_a_gate(evaluated, learning, tmp_path):
    more = ("--methods", "direct,single:k=1,single:k=2", "--json")
    rows = rows_of(evaluated(*more, *GATE, *learning))
    both = ["single:k=1", "single:k=1+gate", "single:k=2", "single:k=2+gate"]
    assert [*rows] == ["direct", *both]
    assert [name for name, row in rows.items() if row["speed_up"] is not None] == both[1::2]
    identity = RunFolder(tmp_path).read()["identity"]
    assert [identity["settings"][name]["k"] for name in both] == [1, 1, 2, 2]


def test_a_gate_of_another_rate_is_not_taken_for_this_one(evaluated, learning, tmp_path):
    for _ in range(2):
        evaluated(*GATE, *learning)
    result = evaluated(*GATE, *learning, "--rate", 0.9, code=1)
    assert "target was 'target rate 0.5' and is now 'target rate 0.9'" in result.stderr
    (tmp_path / "gate" / "gate.json").unlink()  # as a kill in the middle of writing leaves it
    evaluated(*GATE, *learning)


def test_seeds_repeat_what_draws_and_nothing_else(evaluated, learning):
    more = ("--methods", "direct,random-shots", "--set", "seeds=2", "--json")
    rows = rows_of(evaluated(*more, *learning))
    assert [*rows] == ["direct", "random-shots@0", "random-shots@1"]


def test_all_methods_are_those_that_have_what_they_need(evaluated):
    result = evaluated("--methods", "all", "--limit", 2, "--json")
    run = [*rows_of(result)]
    assert run == [n for n, m in METHODS.items() if not m.needs & {"encoder", "labelled questions"}]
    found = re.findall(r"left out: (.*), for want of (.*) \(add (.*)\)", result.stderr)
    left = {lacks: (names.split(", "), remedy) for names, lacks, remedy in found}
    assert len(left) == result.stderr.count("left out") == 3  # one line for each reason
    assert "bm25-shots" in left["labelled questions"][0]
    for lacks, (names, remedy) in left.items():
        parts = {*lacks.replace("an encoder", "encoder").split(" and ")}
        assert all(METHODS[name].needs - {"retriever", "probabilities"} == parts for name in names)
        assert {f"--{part.split()[0]}" for part in parts} == {*remedy.split(" and ")}
    assert {*run} | {name for names, _ in left.values() for name in names} == {*METHODS}


def test_all_passages_of_the_file_are_searched_and_so_many_labelled_learned_from(
    evaluated, learning, tmp_path
):
    pages = [[{"text": f"book {9 - i} was written by Author {9 - i}"}] for i in range(10)]
    asked = [book(i, passages=found) for i, found in enumerate(pages)]
    told = ("--limit", 2, "--set", "labelled_limit=7", "--methods", "direct,single,bm25-shots")
    out = tmp_path / "run"
    evaluated(*told, *learning, out=out, asked=lines_file(tmp_path / "asked.jsonl", *asked))
    assert [record.scores["em"] for record in RunFolder(out).records("single")] == [1.0, 1.0]
    assert RunFolder(out).read()["identity"]["labelled"].startswith("7 questions")


def test_a_model_that_fails_is_told_by_the_exit_code_and_the_run_goes_on(evaluated, tmp_path):
    def failing(prompt: str) -> tuple[str, float]:
        if "book 3?" in prompt:
            raise RuntimeError("overloaded")
        return write(prompt)

    with openai_server(failing) as (url, _):
        result = evaluated("--methods", "direct", url=url, code=1)
    assert "failed: direct: 1 of 10" in result.stdout
    [error] = [r.error for r in RunFolder(tmp_path).records("direct") if r.error]
    assert f"ltrag: direct failed on 1 of 10 questions, first: {error}\n" in result.stderr


def test_a_run_that_is_stopped_says_that_the_same_command_goes_on(files, tmp_path):
    came, go_on = threading.Event(), threading.Event()

    def slow(prompt: str) -> tuple[str, float]:
        came.set()
        go_on.wait(600)
        return "late", 0.5

    with openai_server(slow) as (url, _):
        told = ("--methods", "direct", "--model", f"openai:slow@{url}", "--out", tmp_path)
        process = program("evaluate", files / "first.jsonl", *told)
        assert came.wait(600), process.communicate()
        process.send_signal(signal.SIGINT)
        go_on.set()
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    [line] = stderr.splitlines()
    assert "the same command goes on" in line
    assert str(tmp_path) in line


def test_methods_lists_every_row():
    result = ltrag("methods", "--json")
    assert [row["method"] for row in json.loads(result.stdout)] == list(METHODS)
    assert all(name in ltrag("methods").stdout for name in METHODS)
    assert ltrag("methods", "single").stdout.splitlines()[1] == "  k=3"
    assert "at least 1" in ltrag("methods", "single").stdout
    assert "did you mean single" in ltrag("methods", "sngle").stderr


class TestAGateThatTheRunFits:
    @pytest.fixture
    def refused(self, evaluated, learning, server):
        def refused(said, *more):
            before = len(server[1])
            assert said in one_line(evaluated(*GATE, *learning, *more, code=1))
            assert len(server[1]) == before

        return refused

    def test_is_not_fitted_where_another_run_is_or_was(self, evaluated, refused, tmp_path):
        with RunFolder(tmp_path).held():
            refused("another run is writing")
        assert not (tmp_path / "gate").exists()
        evaluated("--methods", "direct")
        refused("another run: cells")
        assert not (tmp_path / "gate").exists()

    def test_is_not_taken_for_one_of_other_questions_or_passages(
        self, evaluated, learning, refused, tmp_path
    ):
        evaluated(*GATE, *learning)
        fewer = ("--set", "labelled_limit=25")
        refused("another run: labelled", *fewer)
        (tmp_path / "run.json").unlink()  # as a kill between the fit and the run leaves it
        refused("was fitted on 30 questions", *fewer)
        (tmp_path / "gate" / "fitted_on.json").unlink()
        (tmp_path / "gate" / "gate.json").unlink()
        evaluated(*GATE, *learning, *fewer)
        told = json.loads((tmp_path / "gate" / "fitted_on.json").read_text())
        assert told["labelled"].startswith("25 questions")


def test_a_gate_fitted_without_an_encoder_serves_a_run_that_has_one(tmp_path):
    known = [Question(f"who wrote book {i}?", (f"A{i % 2}",), f"k{i}") for i in range(40)]
    llm, encoder = ScriptedLLM(lambda _: "A0"), Letters()
    plain = GECEGate.fit(known, llm=llm, target_rate=0.5)
    plain.save(tmp_path / "plain")
    found = RunGate.load(tmp_path / "plain", World(llm, encoder=Letters()))
    assert (found.name, found.world.encoder) == (plain.name, None)
    GECEGate.fit(known, llm=llm, encoder=Letters(), target_rate=0.5).save(tmp_path / "vectors")
    assert RunGate.load(tmp_path / "vectors", World(llm, encoder=encoder)).world.encoder is encoder
    with pytest.raises(ArtifactMismatch, match="encoder"):
        RunGate.load(tmp_path / "vectors", World(llm))


def test_a_gate_that_the_run_fitted_is_not_taken_for_one_with_an_encoder(tmp_path):
    known = [Question(f"who wrote book {i}?", (f"A{i % 2}",), f"k{i}") for i in range(40)]
    run, plain = RunFolder(tmp_path), World(ScriptedLLM(lambda _: "A0"))
    gate = RunGate("fit", 0.5).made(plain, known, known, run)
    assert RunGate("fit", 0.5).made(plain, known, known, run).name == gate.name
    said = f"encoder was None and is now {Letters().name!r}. Name another folder"
    with pytest.raises(ArtifactMismatch, match=said):
        RunGate("fit", 0.5).made(replace(plain, encoder=Letters()), known, known, run)


def test_no_gate_is_put_before_a_method_that_is_one(evaluated, learning, tmp_path):
    for name in ("gate-frequency", "gate-logprob", "skr", "adaptive"):
        assert len(gated_cells([Cell(METHODS[name])], [RunGate("fit")])) == 1
    assert len(gated_cells([Cell(METHODS["single"])], [RunGate("fit")])) == 2
    result = evaluated("--gate", "fit", *learning, "--methods", "gate-frequency")
    assert "no gate is put before these methods" in result.stderr
    assert RunFolder(tmp_path).read()["identity"]["cells"] == ["gate-frequency"]


def test_gates_stand_side_by_side_and_the_one_that_reads_answers_is_said_to(
    evaluated, learning, tmp_path
):
    both = ("--gate", "fit,paper:semantics=false", "--rate", 0.5, *learning)
    result = evaluated(*both)
    assert result.stdout.splitlines()[-2].startswith("+eq2: the largest values of GECE, eq. 2")
    rows = rows_of(evaluated(*both, "--json"))
    eq2 = "single+eq2:semantics=false"
    assert [*rows] == ["direct", "single", "single+gate", eq2]
    retrieved = [one.decision["retrieve"] for one in RunFolder(tmp_path).records(eq2)]
    assert sum(retrieved) == 5
    # a server has no gradients, which is said before a question is asked for them
    refused = evaluated("--gate", "paper", out=tmp_path / "other", code=1)
    assert "no gradients. Load local weights" in one_line(refused)


def test_the_folder_of_a_run_may_begin_with_a_tilde(evaluated, learning, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    evaluated(*GATE, *learning, out="~/run")
    assert (tmp_path / "run" / "gate" / "gate.json").is_file()
    assert not (tmp_path / "~").exists()
    told = RunFolder(tmp_path / "run").read()["told"]
    assert told["files"] == ["first.jsonl", "others.jsonl", "pool.jsonl"]
    assert told["gates"]["gate"]["target"] == "target rate 0.5"


@pytest.mark.parametrize(("methods", "rows"), [
    ("all", ["direct", "single"]),
    ("all,direct", ["direct", "single"]),
    ("all,all", ["direct", "single"]),
    ("single,all", ["single", "direct"]),
    ("all,single:k=5", ["direct", "single", "single:k=5"]),
])  # fmt: skip
def test_all_may_stand_among_others_and_runs_none_of_them_twice(methods, rows, files, tmp_path):
    """Over answers that were recorded."""
    answers = [{"question": f"who wrote book {i}?", "direct": "nobody", "retrieved": f"Author {i}"}
               for i in range(10)]  # fmt: skip
    recorded = lines_file(tmp_path / "recorded.jsonl", *answers)
    told = ("--set", f"recorded={recorded}", "--methods", methods, "--json")
    result = ltrag("evaluate", files / "first.jsonl", "--out", tmp_path / "run", *told)
    assert [*rows_of(result)] == rows
