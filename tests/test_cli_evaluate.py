"""`ltrag evaluate` and `ltrag methods` against a real HTTP server."""

import json

import pytest
from cli_parts import KNOWN, book, lines_file, ltrag, page, write
from contracts.methods import Letters
from openai_server import openai_server
from typer.testing import Result

from ltrag_plugins.errors import ArtifactMismatch
from ltrag_plugins.evaluate import Cell
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.gating import RunGate
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.types import Question


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


def evaluated(files, server, out, *more) -> Result:
    arguments = ("--model", f"openai:scripted@{server[0]}", "--passages", files / "pool.jsonl")
    env = {"OPENAI_API_KEY": "not-a-secret"}
    return ltrag("evaluate", files / "first.jsonl", "--out", out, *arguments, *more, env=env)


def test_the_table_says_who_was_right_at_what_cost(files, server, tmp_path):
    result = evaluated(files, server, tmp_path, "--metrics", "em,f1")
    assert result.exit_code == 0, result.output
    known = sum(f"who wrote book {i}?" in KNOWN for i in range(10)) / 10
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines()[1:]}
    assert float(rows["direct"][1]) == known
    assert [float(value) for value in rows["single"][1:5]] == [1.0, 1.0, 1.0, 1.0]
    assert rows["single"][-4] == f"{1 - known:+.3f}"


def test_a_second_call_asks_the_server_nothing(files, server, tmp_path):
    first = evaluated(files, server, tmp_path)
    asked = len(server[1])
    assert evaluated(files, server, tmp_path).stdout == first.stdout
    assert len(server[1]) == asked


def test_a_gate_stands_before_what_retrieves_and_is_fitted_on_the_other_questions(
    files, server, tmp_path
):
    more = ("--gate", "gece", "--labelled", files / "others.jsonl", "--rate", 0.5, "--json")
    result = evaluated(files, server, tmp_path, *more)
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)["rows"]}
    assert list(rows) == ["direct", "single", "single+gece"]
    gated = RunFolder(tmp_path).records("single+gece")
    assert {record.decision["retrieve"] for record in gated} == {True, False}
    assert all(record.retrievals == record.decision["retrieve"] for record in gated)
    assert rows["single+gece"]["scores"]["em"]["value"] == 1.0
    assert (tmp_path / "gate").is_dir()


def test_one_method_with_two_settings_and_a_gate(files, server, tmp_path):
    more = ("--methods", "direct,single:k=1,single:k=2", "--gate", "gece", "--rate", 0.5, "--json")
    result = evaluated(files, server, tmp_path, *more, "--labelled", files / "others.jsonl")
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)["rows"]}
    both = ["single:k=1", "single:k=1+gece", "single:k=2", "single:k=2+gece"]
    assert [*rows] == ["direct", *both]
    assert [name for name, row in rows.items() if row["speed_up"] is not None] == both[1::2]
    identity = RunFolder(tmp_path).read()["identity"]
    assert [identity["settings"][name]["k"] for name in both] == [1, 1, 2, 2]


def test_a_gate_of_another_rate_is_not_taken_for_this_one(files, server, tmp_path):
    more = ("--gate", "gece", "--labelled", files / "others.jsonl")
    assert evaluated(files, server, tmp_path, *more, "--rate", 0.5).exit_code == 0
    assert evaluated(files, server, tmp_path, *more, "--rate", 0.5).exit_code == 0
    result = evaluated(files, server, tmp_path, *more, "--rate", 0.9)
    assert result.exit_code == 1
    assert "target was 'target rate 0.5' and is now 'target rate 0.9'" in result.stderr
    (tmp_path / "gate" / "gate.json").unlink()  # as a kill in the middle of writing leaves it
    assert evaluated(files, server, tmp_path, *more, "--rate", 0.5).exit_code == 0


def test_seeds_repeat_what_draws_and_nothing_else(files, server, tmp_path):
    more = ("--methods", "direct,random-shots", "--set", "seeds=2", "--json")
    result = evaluated(files, server, tmp_path, *more, "--labelled", files / "others.jsonl")
    assert result.exit_code == 0, result.output
    names = [row["name"] for row in json.loads(result.stdout)["rows"]]
    assert names == ["direct", "random-shots@0", "random-shots@1"]


def test_all_methods_are_those_that_have_what_they_need(files, server, tmp_path):
    result = evaluated(files, server, tmp_path, "--methods", "all", "--limit", 2, "--json")
    run = [row["name"] for row in json.loads(result.stdout)["rows"]]
    assert run == [n for n, m in METHODS.items() if not m.needs & {"encoder", "labelled questions"}]
    said = "left out: the method bm25-shots needs labelled questions, and there is none"
    assert said in result.stderr
    assert {*run} | {line.split()[5] for line in result.stderr.splitlines() if "left" in line} == {
        *METHODS
    }


def test_all_passages_of_the_file_are_searched_and_so_many_labelled_learned_from(
    files, server, tmp_path
):
    rows = [json.loads(line) for line in (files / "first.jsonl").read_text().splitlines()]
    for i, row in enumerate(rows):
        row["passages"] = [{"text": f"book {9 - i} was written by Author {9 - i}"}]
    asked = tmp_path / "asked.jsonl"
    asked.write_text("\n".join(map(json.dumps, rows)))
    given = ("--model", f"openai:scripted@{server[0]}", "--limit", 2, "--set", "labelled_limit=7")
    more = ("--methods", "direct,single,bm25-shots", "--labelled", files / "others.jsonl")
    out = tmp_path / "run"
    env = {"OPENAI_API_KEY": "not-a-secret"}
    result = ltrag("evaluate", asked, "--out", out, *given, *more, env=env)
    assert result.exit_code == 0, result.output
    assert [record.scores["em"] for record in RunFolder(out).records("single")] == [1.0, 1.0]
    assert RunFolder(out).read()["identity"]["labelled"].startswith("7 questions")


def test_a_model_that_fails_is_told_by_the_exit_code_and_the_run_goes_on(files, tmp_path):
    def failing(prompt: str) -> tuple[str, float]:
        if "book 3?" in prompt:
            raise RuntimeError("overloaded")
        return write(prompt)

    with openai_server(failing) as server:
        result = evaluated(files, server, tmp_path, "--methods", "direct")
    assert result.exit_code == 1
    assert "failed: direct: 1 of 10" in result.stdout
    assert [bool(r.error) for r in RunFolder(tmp_path).records("direct")].count(True) == 1


def test_methods_lists_every_row():
    result = ltrag("methods", "--json")
    assert [row["method"] for row in json.loads(result.stdout)] == list(METHODS)
    assert all(name in ltrag("methods").stdout for name in METHODS)
    assert ltrag("methods", "single").stdout.splitlines()[1] == "  k=3"
    assert "at least 1" in ltrag("methods", "single").stdout
    assert "did you mean single" in ltrag("methods", "sngle").stderr


class TestAGateThatTheRunFits:
    more = ("--gate", "gece", "--rate", 0.5)

    def refused(self, files, server, out, said, *more):
        before = len(server[1])
        learning = ("--labelled", files / "others.jsonl")
        result = evaluated(files, server, out, *self.more, *learning, *more)
        assert result.exit_code == 1
        assert said in result.stderr
        assert len(server[1]) == before

    def test_is_not_fitted_while_another_run_writes_there(self, files, server, tmp_path):
        with RunFolder(tmp_path).held():
            self.refused(files, server, tmp_path, "another run is writing")
        assert not (tmp_path / "gate").exists()

    def test_is_not_fitted_in_the_folder_of_another_run(self, files, server, tmp_path):
        assert evaluated(files, server, tmp_path, "--methods", "direct").exit_code == 0
        self.refused(files, server, tmp_path, "another run: cells")
        assert not (tmp_path / "gate").exists()

    def test_is_not_taken_for_one_of_other_questions_or_passages(self, files, server, tmp_path):
        learning = ("--labelled", files / "others.jsonl")
        assert evaluated(files, server, tmp_path, *self.more, *learning).exit_code == 0
        fewer = ("--set", "labelled_limit=25")
        self.refused(files, server, tmp_path, "another run: labelled", *fewer)
        (tmp_path / "run.json").unlink()  # as a kill between the fit and the run leaves it
        self.refused(files, server, tmp_path, "was fitted on 30 questions", *fewer)
        (tmp_path / "gate" / "fitted_on.json").unlink()
        (tmp_path / "gate" / "gate.json").unlink()
        assert evaluated(files, server, tmp_path, *self.more, *learning, *fewer).exit_code == 0
        told = json.loads((tmp_path / "gate" / "fitted_on.json").read_text())
        assert told["labelled"].startswith("25 questions")


def test_a_gate_fitted_without_an_encoder_serves_a_run_that_has_one(tmp_path):
    known = [Question(f"who wrote book {i}?", (f"A{i % 2}",), f"k{i}") for i in range(40)]
    llm = ScriptedLLM(lambda _: "A0")
    plain = GECEGate.fit(known, llm=llm, target_rate=0.5)
    plain.save(tmp_path / "plain")
    found = RunGate.load(tmp_path / "plain", World(llm=llm, encoder=Letters()))
    assert (found.name, found.world.encoder) == (plain.name, None)
    GECEGate.fit(known, llm=llm, encoder=Letters(), target_rate=0.5).save(tmp_path / "vectors")
    encoder = Letters()
    assert RunGate.load(tmp_path / "vectors", World(llm, encoder=encoder)).world.encoder is encoder
    with pytest.raises(ArtifactMismatch, match="encoder"):
        RunGate.load(tmp_path / "vectors", World(llm))


def test_no_gate_is_put_before_a_method_that_is_one(files, server, tmp_path):
    own = ("gate-frequency", "gate-logprob", "skr", "adaptive")
    for name in own:
        assert len(RunGate("gece", 0.5).cells([Cell(METHODS[name])])) == 1
    assert len(RunGate("gece", 0.5).cells([Cell(METHODS["single"])])) == 2
    more = ("--gate", "gece", "--labelled", files / "others.jsonl", "--methods", "gate-frequency")
    result = evaluated(files, server, tmp_path, *more)
    assert result.exit_code == 0, result.output
    assert "no gate is put before these methods" in result.stderr
    assert RunFolder(tmp_path).read()["identity"]["cells"] == ["gate-frequency"]


def test_the_folder_of_a_run_may_begin_with_a_tilde(files, server, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    more = ("--gate", "gece", "--labelled", files / "others.jsonl", "--rate", 0.5)
    assert evaluated(files, server, "~/run", *more).exit_code == 0
    assert (tmp_path / "run" / "gate" / "gate.json").is_file()
    assert not (tmp_path / "~").exists()
    told = RunFolder(tmp_path / "run").read()["told"]
    assert told["files"] == ["first.jsonl", "others.jsonl", "pool.jsonl"]
    assert told["gate"]["target"] == "target rate 0.5"


def rows_of(files, place, methods: str) -> list[str]:
    """The rows of a run over answers that were recorded."""
    answers = [
        {"question": f"who wrote book {i}?", "direct": "nobody", "retrieved": f"Author {i}"}
        for i in range(10)
    ]
    recorded = lines_file(place / "recorded.jsonl", *answers)
    told = ("--set", f"recorded={recorded}", "--methods", methods, "--json")
    result = ltrag("evaluate", files / "first.jsonl", "--out", place / methods, *told)
    assert result.exit_code == 0, result.output
    return [row["name"] for row in json.loads(result.stdout)["rows"]]


def test_all_may_stand_among_others_and_runs_none_of_them_twice(files, tmp_path):
    assert rows_of(files, tmp_path, "all") == ["direct", "single"]
    assert rows_of(files, tmp_path, "all,direct") == ["direct", "single"]
    assert rows_of(files, tmp_path, "all,all") == ["direct", "single"]
    assert rows_of(files, tmp_path, "single,all") == ["single", "direct"]
    assert rows_of(files, tmp_path, "all,single:k=5") == ["direct", "single", "single:k=5"]
