"""`ltrag gate ...` against a real HTTP server: the answers, the files, the exit codes."""

import json
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from cli_parts import book, lines_file, ltrag, one_line, page, program, write
from openai_server import openai_server

from ltrag_plugins.flow import run
from ltrag_plugins.gece import score_questions
from ltrag_plugins.gece.learning import LearningGate
from ltrag_plugins.gece.monitor import Watch
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Question
from tests.router_parts import knows_the_odd


@pytest.fixture(scope="module")
def server():
    with openai_server(write) as (url, asked):
        yield url, asked


@pytest.fixture(scope="module")
def model(server):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "not-a-secret")
        yield f"openai:scripted@{server[0]}"


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    return lines_file(path, *map(book, range(40)))


@pytest.fixture(scope="module")
def passages(tmp_path_factory):
    path = tmp_path_factory.mktemp("passages") / "pool.jsonl"
    return lines_file(path, *map(page, range(40)))


def fit(path: Path, model: str, *more: object, env: dict[str, str] | None = None):
    """With one signal as the scorer: nothing to learn, so it is quick."""
    return ltrag("gate", "fit", path, "--model", model, "--set", "scorer=product", *more, env=env)


@pytest.fixture(scope="module")
def fitted(questions, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted") / "deep" / "gate"
    result = fit(questions, model, "--rate", 0.5, "--out", folder)
    assert result.exit_code == 0, result.output
    return result, folder


@pytest.fixture
def gate(fitted):
    return fitted[1]


def test_a_fit_prints_its_report_and_saves_the_gate(fitted):
    result, folder = fitted
    rows = dict(re.findall(r"^(.*?)  +(.*)$", result.stdout, re.MULTILINE))
    assert rows["AUROC, direct answer fails"].startswith("1.000")
    assert rows["accuracy, never retrieving"].startswith("0.500")
    assert result.stderr == f"ltrag: the gate is in {folder}\n"
    assert {path.name for path in folder.iterdir()} >= {"gate.json", "gate.safetensors"}


def test_the_tier_may_be_lower_than_what_the_model_gives(questions, model, tmp_path):
    arguments = ["--set", "tier=text", "--rate", 0.5, "--json", "--out", tmp_path]
    result = ltrag("gate", "fit", questions, "--model", model, *arguments)
    assert json.loads(result.stdout)["tier"] == "text", result.stderr


def test_the_formula_can_do_without_gradients(questions, model, tmp_path):
    arguments = ["--set", "scorer=gece", "--json", "--out", tmp_path]
    refused = ltrag("gate", "fit", questions, "--model", model, *arguments)
    assert refused.exit_code == 1
    assert "needs the gradient term" in refused.stderr
    result = ltrag(
        "gate", "fit", questions, "--model", model, *arguments, "--set", "semantics=false"
    )
    assert json.loads(result.stdout)["scorer"] == "gece", result.stderr


def test_json_is_all_there_is_on_stdout(questions, model, tmp_path):
    out = tmp_path / "gate"
    result = ltrag("gate", "fit", questions, "--model", model, "--json", "--out", out)
    report = json.loads(result.stdout)
    assert report["questions"] == 40
    assert report["tier"] == "probabilities"
    assert report["scorer"] == "fitted"
    assert report["direct_accuracy"] == 0.5
    assert report["retrieval_accuracy"] is None


def test_with_passages_the_fit_answers_with_retrieval_too(questions, passages, model, tmp_path):
    arguments = ["--passages", passages, "--k", 1, "--rate", 0.5, "--json"]
    result = fit(questions, model, *arguments, "--out", tmp_path / "gate")
    report = json.loads(result.stdout)
    assert report["retrieval_accuracy"] == 1.0
    assert report["direct_accuracy"] == 0.5
    assert report["accuracy"]["value"] == 1.0


def test_with_passages_no_answers_are_needed(passages, model, tmp_path):
    bare = [{"question": book(i)["question"]} for i in range(40)]
    path, out = lines_file(tmp_path / "questions.jsonl", *bare), tmp_path / "gate"
    targets = ["--set", "target_accuracy=always", "--json", "--out", out]
    result = fit(path, model, "--passages", passages, "--k", 1, *targets)
    report = json.loads(result.stdout)
    assert (report["agreement"], report["direct_accuracy"]) == (1.0, 0.5)
    assert report["target"] == "as good as always retrieving"
    assert report["retrieval_cost"]["calls"] == 1
    assert "answers" in one_line(fit(path, model, "--out", out))


def test_the_passages_of_the_questions_do_as_well(model, tmp_path):
    records = [book(i, passages=[page(i)]) for i in range(24)]
    path = lines_file(tmp_path / "questions.jsonl", *records)
    result = fit(path, model, "--json", "--out", tmp_path / "gate")
    assert json.loads(result.stdout)["retrieval_accuracy"] == 1.0


def test_k_is_how_many_passages_an_answer_is_shown(questions, passages, model, server, tmp_path):
    shown = {}
    for k in (1, 3):
        server[1].clear()
        arguments = ["--passages", passages, "--k", k]
        assert fit(questions, model, *arguments, "--out", tmp_path / "g").exit_code == 0
        shown[k] = {p.count("was written by") for p in server[1] if "text above" in p}
    assert shown == {1: {1}, 3: {3}}


def test_limit_takes_the_first_questions(questions, model, tmp_path):
    result = fit(questions, model, "--limit", 22, "--json", "--out", tmp_path / "gate")
    assert json.loads(result.stdout)["questions"] == 22


def test_with_a_cache_nothing_is_asked_twice(questions, model, server, tmp_path):
    arguments = ["--cache", tmp_path / "answers.sqlite", "--json"]
    first = fit(questions, model, *arguments, "--out", tmp_path / "one")
    server[1].clear()
    second = fit(questions, model, *arguments, "--out", tmp_path / "two")
    assert second.stdout == first.stdout
    assert server[1] == []


def test_explain_says_what_speaks_for_the_decision(gate, model):
    knows, guesses = (
        ltrag("gate", "explain", f"who wrote book {i}?", "--gate", gate, "--model", model)
        for i in (4, 5)
    )
    assert knows.stdout.startswith("answer directly: ")
    assert "'Author 4'" in knows.stdout
    assert guesses.stdout.startswith("retrieve: ")
    assert re.search(r"least likely token +40% +surer than", guesses.stdout)


def test_the_encoder_of_a_gate_is_found_again(questions, model, tmp_path):
    out = tmp_path / "gate"
    arguments = ["--encoder", "embedded", "--rate", 0.5, "--limit", 20, "--out", out]
    result = fit(questions, model, *arguments, env={"TTY_COMPATIBLE": "1"})
    assert result.exit_code == 0, result.output
    assert "40/40" in result.stderr  # question and draft of each
    asked = ["gate", "explain", "who wrote book 5?", "--gate", out, "--model", model]
    assert ltrag(*asked).stdout.startswith("retrieve: ")
    wrong = ltrag(*asked, "--encoder", "none")
    assert wrong.exit_code == 1
    assert "fitted with the encoder" in wrong.stderr


def test_explain_as_json_is_the_decision(gate, model):
    question = "who wrote book 5?"
    result = ltrag("gate", "explain", question, "--gate", gate, "--model", model, "--json")
    decision = json.loads(result.stdout)
    assert decision["question"] == question
    assert decision["answer"] == "some other person"
    assert decision["retrieve"] is True
    assert decision["ingredients"]["mean_probability"] == pytest.approx(-0.4, abs=1e-6)


def test_decide_gives_one_json_line_for_each_question_in_order(gate, questions, model):
    result = ltrag("gate", "decide", questions, "--gate", gate, "--model", model, "--batch", 7)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["id"] for line in lines] == [f"q{i}" for i in range(40)]
    assert [line["retrieve"] for line in lines] == [i % 2 == 1 for i in range(40)]
    assert "20 of 40 questions retrieve" in result.stderr


def test_score_without_gradients_shows_the_formula_of_the_paper(questions, model):
    arguments = ["--model", model, "--set", "semantics=false", "--json", "--limit", 4]
    result = ltrag("gate", "score", questions, *arguments)
    assert result.exit_code == 0
    records = [json.loads(line) for line in result.stdout.splitlines()]
    for record in records:
        apart = abs(record["meteor"] - record["mean_probability"])
        assert record["gece"] == pytest.approx(apart / record["word_frequency"])
    assert [record["id"] for record in records] == ["q0", "q1", "q2", "q3"]
    assert [record["mean_probability"] for record in records] == pytest.approx([0.95, 0.4] * 2)


def test_without_statistics_the_frequency_does_not_divide(questions, model):
    flags = ["--set", "semantics=false", "--set", "statistics=false", "--set", "quality=chrf"]
    result = ltrag("gate", "score", questions, "--model", model, *flags, "--json", "--limit", 1)
    record = json.loads(result.stdout)
    assert record["quality"] == "chrf"
    assert record["gece"] == pytest.approx(abs(record["meteor"] - 0.95))


def test_a_score_table_shows_every_ingredient(questions, model):
    arguments = ["--model", model, "--set", "semantics=false", "--limit", 2]
    result = ltrag("gate", "score", questions, *arguments)
    for title in ("question", "GECE", "METEOR", "mean p", "word freq.", "gradient"):
        assert title in result.stdout
    assert "who wrote book 1?" in result.stdout


def test_progress_is_on_stderr_and_only_for_a_terminal(questions, model, tmp_path):
    arguments = ["--json", "--out", tmp_path / "gate"]
    silent = fit(questions, model, *arguments)
    shown = fit(questions, model, *arguments, env={"TTY_COMPATIBLE": "1"})
    assert "40/40" in shown.stderr
    assert "40/40" not in silent.stderr
    assert shown.stdout == silent.stdout


def test_drafts_and_answers_with_retrieval_are_counted_together(
    questions, passages, model, tmp_path
):
    arguments = ["--passages", passages, "--limit", 22, "--out", tmp_path / "gate"]
    shown = fit(questions, model, *arguments, env={"TTY_COMPATIBLE": "1", "COLUMNS": "100"})
    assert "44/44" in shown.stderr


def test_no_more_prompts_are_under_way_than_the_batch_allows(questions, tmp_path):
    under_way, most, lock = 0, 0, threading.Lock()

    def counted(prompt: str) -> tuple[str, float]:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.01)  # long enough for a second one to come, were it sent
        with lock:
            under_way -= 1
        return write(prompt)

    with openai_server(counted) as (url, _):
        for batch, expected in ((1, {1}), (4, {2, 3, 4})):
            most = 0
            arguments = ["--limit", 20, "--batch", batch, "--out", tmp_path / "gate"]
            assert fit(questions, f"openai:scripted@{url}", *arguments).exit_code == 0
            assert most in expected


def test_a_model_without_gradients_is_refused_before_it_is_asked(questions, model, server):
    server[1].clear()
    result = ltrag("gate", "score", questions, "--model", model)
    assert result.exit_code == 1
    assert "has no gradients" in result.stderr
    assert "semantics=False" in result.stderr
    assert server[1] == []


def test_a_server_is_never_reached_because_a_gate_folder_says_so(gate, model, server, tmp_path):
    # whoever made the folder would choose where the key in the environment goes
    url = model.partition("@")[2]
    assert url not in (gate / "command.json").read_text(encoding="utf-8")
    notes = {"model": model, "encoder": "none"}
    gate = shutil.copytree(gate, tmp_path / "foreign")
    (gate / "command.json").write_text(json.dumps(notes), encoding="utf-8")
    server[1].clear()
    result = ltrag("gate", "explain", "who wrote book 1?", "--gate", gate)
    assert result.exit_code == 1
    assert "add --model" in result.stderr
    assert server[1] == []


def test_a_tilde_that_the_shell_left_is_the_users_home(questions, model, tmp_path, monkeypatch):
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    done = fit(questions, model, "--rate", 0.5, "--cache=~/a.sqlite", "--out=~/gate")
    assert done.exit_code == 0, done.output
    assert {path.name for path in home.iterdir()} >= {"a.sqlite", "gate"}
    assert [*here.iterdir()] == []
    asked = ("gate", "explain", "who wrote book 5?", "--gate=~/gate", "--model", model)
    assert ltrag(*asked).stdout.startswith("retrieve: ")


def test_a_server_at_another_address_is_the_same_model_by_a_name(questions, model, tmp_path):
    done = fit(questions, f"{model}+name:house", "--rate", 0.5, "--out", tmp_path / "gate")
    assert done.exit_code == 0, done.output
    with openai_server(write) as (url, _):
        asked = ("gate", "explain", "who wrote book 5?", "--gate", tmp_path / "gate", "--model")
        assert ltrag(*asked, f"openai:scripted@{url}+name:house").stdout.startswith("retrieve: ")
        assert "was fitted with the model 'house'" in one_line(
            ltrag(*asked, f"openai:scripted@{url}")
        )


def test_a_gate_of_another_model_is_refused(gate, server):
    model = f"openai:another@{server[0]}"
    result = ltrag("gate", "explain", "who wrote book 1?", "--gate", gate, "--model", model)
    assert result.exit_code == 1
    assert "was fitted with the model" in result.stderr
    assert result.stdout == ""


# --- as a program


def test_ctrl_c_leaves_with_one_line_and_130(questions, tmp_path):
    came, go_on = threading.Event(), threading.Event()

    def slow(prompt: str) -> tuple[str, float]:
        came.set()
        go_on.wait(600)
        return "late", 0.5

    with openai_server(slow) as (url, _):
        arguments = ["gate", "fit", questions, "--model", f"openai:slow@{url}"]
        process = program(*arguments, "--out", tmp_path / "gate")
        assert came.wait(600), process.communicate()
        process.send_signal(signal.SIGINT)
        go_on.set()  # requests that are under way may end
        stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert stdout == ""
    [line] = stderr.splitlines()
    assert re.match("ltrag: stopped.*--cache", line)  # what would have kept the answers
    assert not (tmp_path / "gate").exists()


def test_a_reader_that_leaves_early_is_no_error(gate, questions, model):
    process = program("gate", "decide", questions, "--gate", gate, "--model", model)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(600) == 1


def test_the_embedded_model_scores_with_its_gradients(tmp_path, smollm2):
    # the fixture only sees to it that the weights are converted before the program looks
    path = tmp_path / "questions.jsonl"
    capitals = {"France": "Paris", "Japan": "Tokyo", "Peru": "Lima"}
    records = [
        {"question": f"What is the capital of {country}?", "answers": [city]}
        for country, city in capitals.items()
    ]
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    process = program("gate", "score", path, "--json")
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    found = [json.loads(line) for line in stdout.splitlines()]
    assert len(found) == 3
    scores = score_questions(
        [Question(r["question"], tuple(r["answers"])) for r in records], llm=smollm2
    )
    for record, score in zip(found, scores, strict=True):
        assert record["gece"] == pytest.approx(score.value, rel=1e-3)
        assert record["gradient_agreement"] == pytest.approx(score.gradient_agreement, rel=1e-3)


def test_watch_prints_and_draws_what_a_router_does(tmp_path):
    path = tmp_path / "router.sqlite"
    gate = LearningGate(
        ScriptedLLM(knows_the_odd), path, warm_up=40, target_rate=0.5, fit_here=True
    )
    watch = Watch(gate, audit_rate=1.0)

    def serve(numbers) -> None:
        for i in numbers:
            text = f"Which city is number {i} of the list?"
            watch.saw(run(gate.deciding(text), gate.world), lambda i=i: f"City {i}")
            assert watch.settle()

    serve(range(10))
    assert "learning: 10 of 40 questions compared" in ltrag("gate", "watch", path).stdout
    serve(range(10, 59))
    html, pictures = tmp_path / "watch.html", tmp_path / "pictures"
    done = ltrag("gate", "watch", path, "--out", html, "--pictures", pictures)
    assert "too early: 19 of 200 decisions" in done.stdout, done.output
    assert html.read_text().count("<svg") == len([*pictures.glob("*.svg")]) == 3
    for place in (["--out", tmp_path], ["--out", pictures / "x.html", "--pictures", html]):
        line = one_line(ltrag("gate", "watch", path, *place))
        assert line.startswith(("cannot write ", "cannot write to "))
        assert f"{place[-1]}" in line
    assert not (pictures / "x.html").exists()
    alone = tmp_path / "alone"
    drawn = ltrag("gate", "watch", path, "--pictures", alone)
    assert drawn.stderr == f"ltrag: the pictures are in {alone}\n"
    assert len([*alone.glob("*.svg")]) == 3
    assert [*tmp_path.rglob("*.html")] == [html]
    told = json.loads(ltrag("gate", "watch", path, "--json").stdout)
    assert told["decisions"] == 19
    assert "switched off" in ltrag("gate", "watch", path, "--no-learn").stdout
    assert "switched off" not in ltrag("gate", "watch", path, "--learn").stdout
    assert "there is no" in one_line(ltrag("gate", "watch", tmp_path / "none.sqlite"))
    assert "no decision store" in one_line(ltrag("gate", "watch", html))
