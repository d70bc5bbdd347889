"""`ltrag calibrate ...` against a real HTTP server: what is asked, said, written; wrong input."""

import json
import re
import signal
import threading
import time
from dataclasses import asdict

import pytest
from cli_parts import lines_file, ltrag, one_line, program
from openai_server import openai_server

from ltrag_plugins.metrics.answer import normalized_exact_match
from ltrag_plugins.training import CorpusSettings, load
from tests.sgic_parts import round_of, rounds_in

COUNT = 40
DOCUMENTS = 3
ROUNDS = 2
CALLS = COUNT * (1 + DOCUMENTS + ROUNDS)
FIRST = ("--question", "who wrote novel 1?")


def write(prompt: str) -> tuple[str, float]:
    """Every second question right and sure at once, every fourth after a look, the rest never."""
    [number] = re.findall(r"^Question: who wrote novel (\d+)\?$", prompt, re.MULTILINE)
    i, looks = int(number), len(rounds_in(prompt))
    if round_of(prompt) is None:
        return "somebody", 0.9 if "fortress" in prompt else 0.5
    if i % 2 == 0:
        return f"Author {i}", 0.9
    return (f"Author {i}", 0.8) if i % 4 == 1 and looks else (f"nobody {looks}", 0.4)


def record(i: int, **more: object) -> dict:
    texts = [f"A fortress of {i}.", f"A coast of {i}.", f"A town of {i}."]
    passages = [{"title": f"Title {n}", "text": text} for n, text in enumerate(texts)]
    asked = {"question": f"who wrote novel {i}?", "answers": [f"Author {i}"], "id": f"q{i}"}
    return {**asked, "passages": passages, **more}


@pytest.fixture(scope="module")
def server():
    with openai_server(write) as (url, asked), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "not-a-secret")
        yield url, asked


@pytest.fixture(scope="module")
def model(server):
    return ("--model", f"openai:scripted@{server[0]}")


@pytest.fixture
def asked(server):
    """The prompts of this test."""
    server[1].clear()
    return server[1]


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    return lines_file(path, *map(record, range(COUNT)))


@pytest.fixture(scope="module")
def passages(tmp_path_factory):
    path = tmp_path_factory.mktemp("passages") / "passages.jsonl"
    return lines_file(path, *reversed(record(1)["passages"]))


def sgic(*words):
    """A call that succeeds."""
    result = ltrag("sgic", *words)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def fitted(questions, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted") / "calibration"
    sgic("fit", questions, *model, "--rounds", ROUNDS, "--out", folder)
    return folder


def lines_of(result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# --- fit


def test_fit_asks_what_it_says_and_keeps_what_pays(questions, model, asked, tmp_path):
    out = tmp_path / "calibration"
    result = sgic("fit", questions, *model, "--rounds", ROUNDS, "--cut-to", "", "--out", out)
    assert result.stderr == f"ltrag: the calibration is in {out}\n"
    assert len(asked) == CALLS
    assert re.search(rf"questions, calls of this fit +{COUNT}, {len(asked)}", result.stdout)
    kept, _ = (line for line in result.stdout.splitlines() if line.startswith("* "))
    assert "0.750" in kept  # a half at once, a quarter after a look
    assert json.loads((out / "command.json").read_text())["model"] == ""  # a server is not noted


def test_fit_as_json_is_all_there_is_on_stdout(questions, model, tmp_path):
    told = ["--limit", 12, "--rounds", 1, "--samples", 2, "--set", "metric=f1", "--cut-to", "1,2"]
    result = sgic("fit", questions, *model, *told, "--json", "--out", tmp_path)
    report = json.loads(result.stdout)
    assert (report["questions"], report["metric"]) == (12, "f1")
    names = [row["name"] for row in report["variants"]]
    assert {"cut to 1, last", "cut to 2, last", "2 samples, least uncertain"} <= set(names)
    assert "2 rounds, last" not in names


def test_with_an_encoder_the_nearest_passages_are_tried_too_and_it_is_found_again(
    passages, questions, model, asked, tmp_path
):
    out = tmp_path / "calibration"
    told = ["--rounds", 0, "--cut-to", 1, "--encoder", "embedded", "--json", "--out", out]
    report = json.loads(sgic("fit", questions, *model, *told).stdout)
    calls = {row["name"]: row["calls"] for row in report["variants"]}
    assert calls["cut to 1 by encoder, last"] == 1.5  # half are certain at once
    assert calls["cut to 1, last"] == 1.5 + DOCUMENTS / 2
    assert json.loads((out / "command.json").read_text())["encoder"] == "embedded"

    asked.clear()
    told = ["--calibration", out, "--json", "--rounds", 1, "--set", "source=encoder"]
    told += ["--set", "cut_to=1", "--set", "certain_below=0", "--set", "least_gain=null"]
    [one] = lines_of(sgic("answer", passages, *FIRST, *model, *told))
    assert (one["calls"], len(asked)) == (2, 2)
    assert [d["shown"] for d in one["documents"]].count(True) == 1
    told = [*model, "--rounds", 1, "--set", "source=encoder"]
    assert "(--encoder)" in one_line(ltrag("sgic", "answer", passages, *FIRST, *told))


# --- answer


def test_an_answer_is_told_with_its_documents_the_surest_first(passages, model):
    result = sgic("answer", passages, *FIRST, *model, "--rounds", 1)
    [note] = result.stderr.splitlines()
    assert note.startswith("ltrag: note: without a calibration")
    words = re.findall(r"^(\S.{13}) (.*)$", result.stdout, re.MULTILINE)
    rows = {name.strip(): value for name, value in words}
    assert rows["question"] == "who wrote novel 1?"
    assert rows["answer"] == "Author 1"
    assert rows["uncertainty"] == "0.360, score 36 of 100"  # two tokens of 0.8
    assert rows["P(wrong)"] == "unknown"
    assert rows["rounds"] == "1 after the first answer; the answer of round 1 is given"
    assert rows["calls, tokens"].startswith("5, ")
    assert re.findall(r"^ +(\d+)  \[(\d)\] (.*)$", result.stdout, re.MULTILINE) == [
        ("0", "3", "Title 0 -> 'somebody'"),
        ("100", "1", "Title 2 -> 'somebody'"),
        ("100", "2", "Title 1 -> 'somebody'"),
    ]


def test_a_question_without_passages_is_answered_once(model, asked):
    # the bare prompt has the question on a line of its own too
    told = ("answer", "--question", "who wrote novel 2?", *model)
    result = sgic(*told, "--json", "--rounds", 0)
    [one] = lines_of(result)
    assert (one["answer"], one["calls"], one["documents"]) == ("Author 2", len(asked), [])
    assert "1 of 1 questions have no passages" in result.stderr


def test_each_question_of_a_file_is_a_json_line(questions, model, fitted):
    result = sgic("answer", questions, *model, "--calibration", fitted, "--json", "--batch", 7)
    assert result.stderr == ""
    found = lines_of(result)
    assert [one["id"] for one in found] == [f"q{i}" for i in range(COUNT)]
    right = [normalized_exact_match(one["answer"], [f"Author {i}"]) for i, one in enumerate(found)]
    assert sum(right) == COUNT * 3 / 4
    kept = json.loads((fitted / "sgic.json").read_text())
    assert {len(one["rounds"]) for one in found} <= set(range(1, 2 + kept["settings"]["rounds"]))
    sure = [one["p_wrong"] for one in found[::2]]
    unsure = [one["p_wrong"] for one in found[3::4]]
    assert max(sure) < min(unsure)


@pytest.mark.parametrize("limit", [
    ("--refuse-above", 60), ("--set", "refuse_p_wrong_above=0.5"),
], ids=["score", "p"])  # fmt: skip
def test_answers_above_a_limit_are_kept_back_and_counted(limit, questions, model, fitted):
    result = sgic("answer", questions, *model, "--calibration", fitted, "--json", *limit)
    refused = [one for one in lines_of(result) if one["refused"]]
    assert result.stderr == f"ltrag: {len(refused)} of {COUNT} answers were kept back\n"
    assert [one["id"] for one in refused] == [f"q{i}" for i in range(3, COUNT, 4)]
    assert {one["answer"] for one in refused} == {"I am not sure enough to answer."}
    assert all(one["text"].startswith("nobody") for one in refused)


def test_other_settings_than_the_calibrations_are_used_and_remarked(passages, model, fitted):
    sets = ("documents=none", "earlier=text", "choose=repeated", "certain_below=0")
    told = [word for one in sets for word in ("--set", one)]
    told += ["--calibration", fitted, "--rounds", 3, "--json"]
    result = sgic("answer", passages, *FIRST, *model, *told)
    assert "P(wrong) was fitted with the calibration's own settings" in result.stderr
    [one] = lines_of(result)
    assert one["documents"][0]["score"] is None  # such a look shows no scores of documents
    assert one["stop"] == "settled"


@pytest.mark.parametrize(("told", "why"), [
    (["--rounds", 0], ""), (["--set", "certain_below=99"], "; stopped: certain"),
])  # fmt: skip
def test_why_there_was_no_round_is_told_where_one_was_asked_for(told, why, passages, model):
    result = sgic("answer", passages, "--question", "who wrote novel 3?", *model, *told)
    assert f"none after the first answer{why}\n" in result.stdout


def test_passages_may_be_in_a_pool(questions, model, tmp_path):
    pool = [{"id": f"{i}-{n}", **p} for i in range(2) for n, p in enumerate(record(i)["passages"])]
    pooled = [record(i, passages=[], passage_ids=[f"{i}-0", f"{i}-2"]) for i in range(2)]
    path = lines_file(tmp_path / "q.jsonl", *pooled)
    told = ("--pool", lines_file(tmp_path / "pool.jsonl", *pool), "--json")
    found = [one["documents"] for one in lines_of(sgic("answer", path, *model, *told))]
    assert [[d["id"] for d in one] for one in found] == [["0-0", "0-2"], ["1-0", "1-2"]]


# --- build


def test_build_writes_what_it_reports(questions, model, asked, tmp_path):
    out = tmp_path / "data"
    told = [*model, "--rounds", ROUNDS, "--set", "keep_wrong=0.5", "--out", out]
    result = sgic("build", questions, *told)
    said, note = result.stderr.splitlines()
    assert said == f"ltrag: the training data is in {out}"
    assert "only 35 examples of looking again" in note
    assert len(asked) == CALLS
    rows = dict(re.findall(r"^(.*?)  +(.*)$", result.stdout, re.MULTILINE))
    assert rows["examples"] == str(40 * 3 // 4 + 5 + 40)
    assert rows["first_right_in_round"] == "20, 10, 0"
    counts = {"mended": 10, "preserved": 20, "wrong": 5}
    assert {kind: int(rows[kind]) for kind in [*counts, "pruned"]} == counts | {"pruned": 10}
    kinds = [example.kind for example in load(out).examples]
    assert {kind: kinds.count(kind) for kind in counts} == counts

    asked.clear()
    again = sgic("build", questions, *told, "--json")
    assert json.loads(again.stdout) == dict(load(out).manifest)
    assert asked == []


def test_build_scores_documents_by_an_encoder(questions, model, asked, tmp_path):
    told = (*model, "--rounds", 1, "--limit", 2, "--set", "source=encoder", "--out", tmp_path)
    assert "needs encoder=" in one_line(ltrag("sgic", "build", questions, *told))
    assert asked == []
    sgic("build", questions, *told, "--encoder", "embedded")
    assert len(asked) == 2 * 2
    assert load(tmp_path).manifest["judge"].startswith("all-MiniLM")


def test_the_baselines_data_needs_no_model(questions, tmp_path):
    # there is no model in that folder, and none is loaded
    sgic("build", questions, "--form", "direct", "--model", questions.parent, "--out", tmp_path)
    assert {example.kind for example in load(tmp_path).examples} == {"direct"}


def test_the_data_of_a_filter_says_what_to_keep_of_each_passage(questions, tmp_path):
    told = ("--form", "filter", "--model", questions.parent, "--out", tmp_path / "data", "--json")
    found = json.loads(sgic("build", questions, *told).stdout)
    assert found == {"examples": COUNT * DOCUMENTS, "nothing to keep": COUNT * DOCUMENTS}
    lines = load(tmp_path / "data").examples
    assert {one.id for one in lines} == {f"q{i}" for i in range(COUNT)}
    first = record(0)["passages"][0]
    assert lines[0].prompt.startswith(f"{first['title']}: {first['text']}\n\nCopy, word for word")
    line = " ".join(ltrag("sgic", "build", questions, *told, "--rounds", 2).stderr.split())
    assert "there is no setting 'rounds'" in line
    line = " ".join(ltrag("sgic", "build", questions, "--form", "both", *told[2:]).stderr.split())
    assert "form must be one of sgic, direct, filter" in line


def test_all_pruned_is_one_line_and_a_second_try_asks_nothing(model, asked, tmp_path):
    path = lines_file(tmp_path / "q.jsonl", record(3), record(7))
    told = [*model, "--rounds", 1, "--out", tmp_path / "data"]
    line = one_line(ltrag("sgic", "build", path, *told))
    assert line.startswith("none of 2 questions was answered right in any of 2 rounds")
    asked.clear()
    sgic("build", path, *told, "--set", "keep_wrong=1")
    assert asked == []


def test_the_defaults_of_build_are_the_functions_and_other_data_is_one_line(
    questions, model, tmp_path
):
    told = [*model, "--limit", 2, "--out", tmp_path]
    sgic("build", questions, *told)
    manifest = load(tmp_path).manifest
    assert manifest["corpus"] == asdict(CorpusSettings())
    assert manifest["settings"]["rounds"] == 5
    line = one_line(ltrag("sgic", "build", questions, *told, "--set", "include_direct=none"))
    assert "corpus.include_direct was 'all' and is now 'none'" in line


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_was_killed_goes_on_and_asks_a_batch_twice_at_most(how, questions, tmp_path):
    killed, out = threading.Event(), tmp_path / "data"

    def answer(prompt):
        if len(asked) >= 60:  # it cannot run ahead of whoever kills it
            killed.wait(600)
        return write(prompt)

    with openai_server(answer) as (url, asked):
        told = ("--model", f"openai:scripted@{url}", "--rounds", ROUNDS, "--batch", 4, "--out", out)
        first = program("sgic", "build", questions, *told)
        while len(asked) < 60 and first.poll() is None:
            time.sleep(0.01)
        first.send_signal(how)
        killed.set()
        _, said = first.communicate(timeout=600)
        assert first.returncode == (130 if how == signal.SIGINT else -how)
        if how == signal.SIGINT:
            [line] = said.splitlines()
            assert re.match("ltrag: stopped.*the same command goes on", line)
            assert str(out) in line
        assert len(asked) < CALLS
        second = program("sgic", "build", questions, *told)
        _, said = second.communicate(timeout=600)
        assert second.returncode == 0, said
    assert len(set(asked)) == CALLS
    assert len(asked) <= len(set(asked)) + 4
    assert load(out).manifest["first_right_in_round"] == [20, 10, 0]
    assert sorted(p.name for p in out.iterdir()) == ["manifest.json", "train.jsonl"]


# --- wrong input


@pytest.mark.parametrize(("folder", "told", "says"), [
    ("fitted", ["estimator=margin"], "'product'.*'margin'"),
    ("damaged", [], "holds no readable calibration"),
    (None, ["refuse_p_wrong_above=0.5"], r"P\(wrong\)"),  # it is not made up
])  # fmt: skip
def test_what_cannot_be_answered_with_is_one_line(
    folder, told, says, passages, model, fitted, tmp_path
):
    (tmp_path / "sgic.json").write_text("{}")
    places = {"fitted": fitted, "damaged": tmp_path}
    words = ["--calibration", places[folder]] if folder else []
    words += [word for one in told for word in ("--set", one)]
    result = ltrag("sgic", "answer", passages, *FIRST, *model, *words)
    assert re.search(says, one_line(result))
