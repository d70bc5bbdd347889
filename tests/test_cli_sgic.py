"""`ltrag sgic ...` against a real HTTP server: what is asked, said, written; and wrong input."""

import json
import re
import signal
import subprocess
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from cli_parts import lines_file, ltrag, one_line, program
from openai_server import openai_server

from ltrag_plugins.metrics.answer import normalized_exact_match
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.training import CorpusSettings, load
from tests.sgic_parts import documents_in, rounds_in

COUNT = 40
DOCUMENTS = 3
ROUNDS = 2


def number(prompt: str) -> int:
    return int(re.findall(r"^Question: who wrote novel (\d+)\?$", prompt, re.MULTILINE)[0])


def write(prompt: str) -> tuple[str, float]:
    """Every second question right and sure at once, every fourth after a look, the rest never."""
    i, looks = number(prompt), len(rounds_in(prompt))
    if documents_in(prompt) == 1 and not looks:
        return "somebody", 0.9 if "fortress" in prompt else 0.5
    if i % 2 == 0:
        return f"Author {i}", 0.9
    return (f"Author {i}", 0.8) if i % 4 == 1 and looks else (f"nobody {looks}", 0.4)


def record(i: int) -> dict[str, object]:
    texts = [f"A fortress of {i}.", f"A coast of {i}.", f"A town of {i}."]
    return {
        "question": f"who wrote novel {i}?",
        "answers": [f"Author {i}"],
        "id": f"q{i}",
        "passages": [{"title": f"Title {n}", "text": text} for n, text in enumerate(texts)],
    }


@pytest.fixture(scope="module")
def server():
    with openai_server(write) as (url, asked), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "not-a-secret")
        yield url, asked


@pytest.fixture(scope="module")
def model(server):
    return f"openai:scripted@{server[0]}"


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


@pytest.fixture(scope="module")
def calibration(questions, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted") / "calibration"
    result = ltrag("sgic", "fit", questions, "--model", model, "--rounds", ROUNDS, "--out", folder)
    assert result.exit_code == 0, result.output
    return folder


# --- fit


def test_fit_asks_what_it_says_and_keeps_what_pays(questions, model, asked, tmp_path):
    out = tmp_path / "calibration"
    told = ["--model", model, "--rounds", ROUNDS, "--cut-to", "", "--out", out]
    result = ltrag("sgic", "fit", questions, *told)
    assert result.exit_code == 0, result.output
    assert result.stderr == f"ltrag: the calibration is in {out}\n"
    assert len(asked) == COUNT * (1 + DOCUMENTS + ROUNDS)
    assert re.search(rf"questions, calls of this fit +{COUNT}, {len(asked)}", result.stdout)
    [kept] = [line for line in result.stdout.splitlines() if line.startswith("* ")]
    assert "0.750" in kept  # a half at once, a quarter after a look
    assert json.loads((out / "command.json").read_text())["model"] == ""  # a server is not noted


def test_fit_as_json_is_all_there_is_on_stdout(questions, model, tmp_path):
    told = ["--model", model, "--limit", 12, "--rounds", 1, "--samples", 2, "--set", "metric=f1"]
    result = ltrag("sgic", "fit", questions, *told, "--cut-to", "1,2", "--json", "--out", tmp_path)
    report = json.loads(result.stdout)
    assert (report["questions"], report["metric"]) == (12, "f1")
    names = [row["name"] for row in report["variants"]]
    assert {"cut to 1, last", "cut to 2, last", "2 samples, least uncertain"} <= set(names)
    assert "2 rounds, last" not in names


# --- answer


def test_an_answer_is_told_with_its_documents_the_surest_first(passages, model):
    told = ["--question", "who wrote novel 1?", "--model", model, "--rounds", 1]
    result = ltrag("sgic", "answer", passages, *told)
    assert result.exit_code == 0, result.output
    [note] = result.stderr.splitlines()
    assert note.startswith("ltrag: note: without a calibration")
    words = dict(re.findall(r"^(\S.{13}) (.*)$", result.stdout, re.MULTILINE))
    rows = {name.strip(): value for name, value in words.items()}
    assert rows["question"] == "who wrote novel 1?"
    assert rows["answer"] == "Author 1"
    assert rows["uncertainty"] == "0.360, score 36 of 100"  # two tokens of 0.8
    assert rows["P(wrong)"] == "unknown"
    assert rows["rounds"] == (
        "1 after the first answer; the answer of round 1 is given; stopped: rounds"
    )
    assert rows["calls, tokens"].startswith("5, ")
    assert re.findall(r"^ +(\d+)  \[(\d)\] (.*)$", result.stdout, re.MULTILINE) == [
        ("0", "3", "Title 0 -> 'somebody'"),
        ("100", "1", "Title 2 -> 'somebody'"),
        ("100", "2", "Title 1 -> 'somebody'"),
    ]


def test_a_question_without_passages_is_answered_once(model, asked):
    asked.clear()
    told = ["--question", "who wrote novel 2?", "--model", model, "--json"]
    # the bare prompt has the question on a line of its own too
    result = ltrag("sgic", "answer", *told)
    one = json.loads(result.stdout)
    assert (one["answer"], one["calls"], one["documents"]) == ("Author 2", len(asked), [])


def test_each_question_of_a_file_is_a_json_line(questions, model, calibration):
    told = ["--model", model, "--calibration", calibration, "--json", "--batch", 7]
    result = ltrag("sgic", "answer", questions, *told)
    assert (result.exit_code, result.stderr) == (0, "")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["id"] for one in found] == [f"q{i}" for i in range(COUNT)]
    right = [normalized_exact_match(one["answer"], [f"Author {i}"]) for i, one in enumerate(found)]
    assert sum(right) == COUNT * 3 / 4
    fitted = json.loads((calibration / "sgic.json").read_text())
    assert {len(one["rounds"]) for one in found} <= set(range(1, 2 + fitted["settings"]["rounds"]))
    sure = [one["p_wrong"] for one in found[::2]]
    unsure = [one["p_wrong"] for one in found[3::4]]
    assert max(sure) < min(unsure)


def test_answers_above_a_limit_are_kept_back_and_counted(questions, model, calibration):
    told = ["--model", model, "--calibration", calibration, "--json"]
    for limit in (["--refuse-above", 60], ["--set", "refuse_p_wrong_above=0.5"]):
        result = ltrag("sgic", "answer", questions, *told, *limit)
        found = [json.loads(line) for line in result.stdout.splitlines()]
        refused = [one for one in found if one["refused"]]
        assert result.stderr == f"ltrag: {len(refused)} of {COUNT} answers were kept back\n"
        assert [one["id"] for one in refused] == [f"q{i}" for i in range(3, COUNT, 4)]
        assert {one["answer"] for one in refused} == {"I am not sure enough to answer."}
        assert all(one["text"].startswith("nobody") for one in refused)


def test_other_settings_than_the_calibrations_are_used_and_remarked(passages, model, calibration):
    told = ["--question", "who wrote novel 1?", "--model", model, "--calibration", calibration]
    told += ["--set", "documents=none", "--set", "earlier=text", "--set", "choose=repeated"]
    told += ["--set", "certain_below=0", "--rounds", 3, "--json"]
    result = ltrag("sgic", "answer", passages, *told)
    assert "P(wrong) was fitted with the calibration's own settings" in result.stderr
    one = json.loads(result.stdout)
    assert one["documents"][0]["score"] is None  # such a look shows no scores of documents
    assert one["stop"] == "settled"


def test_another_estimator_than_the_calibrations_is_refused(passages, model, calibration):
    told = ["--question", "who?", "--model", model, "--calibration", calibration]
    line = one_line(ltrag("sgic", "answer", passages, *told, "--set", "estimator=margin"))
    assert "margin" in line
    assert "product" in line


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (["--rounds", 0], "none after the first answer; stopped: rounds"),
        (["--set", "certain_below=99"], "none after the first answer; stopped: certain"),
    ],
)
def test_why_there_was_no_round_is_told(told, says, passages, model):
    asked = ["--question", "who wrote novel 3?", "--model", model]
    assert says in ltrag("sgic", "answer", passages, *asked, *told).stdout


def test_passages_may_be_in_a_pool(questions, model, tmp_path):
    pool = [{"id": f"{i}-{n}", **p} for i in range(2) for n, p in enumerate(record(i)["passages"])]
    pooled = [{**record(i), "passages": [], "passage_ids": [f"{i}-0", f"{i}-2"]} for i in range(2)]
    path = lines_file(tmp_path / "q.jsonl", *pooled)
    pool_path = lines_file(tmp_path / "pool.jsonl", *pool)
    result = ltrag("sgic", "answer", path, "--pool", pool_path, "--model", model, "--json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [[d["id"] for d in one["documents"]] for one in found] == [
        ["0-0", "0-2"],
        ["1-0", "1-2"],
    ]


# --- build


def test_build_writes_what_it_reports(questions, model, asked, tmp_path):
    told = ["--model", model, "--rounds", ROUNDS, "--set", "keep_wrong=0.5"]
    told += ["--out", tmp_path / "data"]
    result = ltrag("sgic", "build", questions, *told)
    assert result.exit_code == 0, result.output
    said, note = result.stderr.splitlines()
    assert said == f"ltrag: the training data is in {tmp_path / 'data'}"
    assert "only 35 examples of looking again" in note
    assert len(asked) == COUNT * (1 + DOCUMENTS + ROUNDS)
    rows = dict(re.findall(r"^(.*?)  +(.*)$", result.stdout, re.MULTILINE))
    assert rows["examples"] == str(40 * 3 // 4 + 5 + 40)
    assert rows["first_right_in_round"] == "20, 10, 0"
    assert (rows["mended"], rows["preserved"]) == ("10", "20")
    assert (rows["pruned"], rows["wrong"]) == ("10", "5")
    kinds = [example.kind for example in load(tmp_path / "data").examples]
    assert (kinds.count("mended"), kinds.count("preserved"), kinds.count("wrong")) == (10, 20, 5)

    asked.clear()
    again = ltrag("sgic", "build", questions, *told, "--json")
    assert json.loads(again.stdout) == dict(load(tmp_path / "data").manifest)
    assert asked == []


def test_the_baselines_data_needs_no_model(questions, tmp_path):
    # there is no model in that folder, and none is loaded
    told = ["--form", "direct", "--model", questions.parent, "--out", tmp_path]
    result = ltrag("sgic", "build", questions, *told)
    assert result.exit_code == 0, result.output
    assert {example.kind for example in load(tmp_path).examples} == {"direct"}


def test_all_pruned_is_one_line_and_a_second_try_asks_nothing(questions, model, asked, tmp_path):
    path = lines_file(tmp_path / "q.jsonl", record(3), record(7))
    told = ["--model", model, "--rounds", 1, "--out", tmp_path / "data"]
    line = one_line(ltrag("sgic", "build", path, *told))
    assert line.startswith("none of 2 questions was answered right in any of 2 rounds")
    asked.clear()
    assert ltrag("sgic", "build", path, *told, "--set", "keep_wrong=1").exit_code == 0
    assert asked == []


def test_other_data_in_the_folder_is_one_line(questions, model, tmp_path):
    told = ["--model", model, "--limit", 4, "--rounds", 1, "--out", tmp_path]
    assert ltrag("sgic", "build", questions, *told).exit_code == 0
    line = one_line(ltrag("sgic", "build", questions, *told, "--set", "include_direct=none"))
    assert "corpus.include_direct was 'all' and is now 'none'" in line


def build_program(questions: Path, model: str, out: Path) -> subprocess.Popen[str]:
    told = ["--model", model, "--rounds", ROUNDS, "--batch", 4, "--out", out]
    return program("sgic", "build", questions, *told)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_was_killed_goes_on_and_asks_a_batch_twice_at_most(how, questions, tmp_path):
    killed = threading.Event()

    def answer(prompt):
        if len(asked) >= 60:  # it cannot run ahead of whoever kills it
            killed.wait(600)
        return write(prompt)

    with openai_server(answer) as (url, asked):
        model = f"openai:scripted@{url}"
        first = build_program(questions, model, tmp_path / "data")
        while len(asked) < 60 and first.poll() is None:
            time.sleep(0.01)
        first.send_signal(how)
        killed.set()
        _, said = first.communicate(timeout=600)
        assert first.returncode == (130 if how == signal.SIGINT else -how)
        if how == signal.SIGINT:
            where = tmp_path / "data"
            assert f"in {where}; run the same command" in said
        assert len(asked) < COUNT * (1 + DOCUMENTS + ROUNDS)
        second = build_program(questions, model, tmp_path / "data")
        _, said = second.communicate(timeout=600)
        assert second.returncode == 0, said
    assert len(set(asked)) == COUNT * (1 + DOCUMENTS + ROUNDS)
    assert len(asked) <= len(set(asked)) + 4
    assert load(tmp_path / "data").manifest["first_right_in_round"] == [20, 10, 0]
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["manifest.json", "train.jsonl"]


# --- wrong input


def test_a_damaged_calibration_is_named(passages, model, tmp_path):
    (tmp_path / "sgic.json").write_text("{}")
    told = ["--question", "who?", "--calibration", tmp_path, "--model", model]
    assert "holds no readable calibration" in one_line(ltrag("sgic", "answer", passages, *told))


def test_p_wrong_is_not_made_up(passages, model):
    told = [
        "--question",
        "who wrote novel 1?",
        "--model",
        model,
        "--set",
        "refuse_p_wrong_above=0.5",
    ]
    result = ltrag("sgic", "answer", passages, *told)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "P(wrong)" in result.stderr


def test_the_defaults_of_build_are_those_of_the_function(questions, model, tmp_path):
    told = ["--model", model, "--limit", 2, "--out", tmp_path]
    assert ltrag("sgic", "build", questions, *told).exit_code == 0
    manifest = load(tmp_path).manifest
    assert manifest["corpus"] == asdict(CorpusSettings())
    assert manifest["settings"]["rounds"] == SGICSettings.paper().rounds
