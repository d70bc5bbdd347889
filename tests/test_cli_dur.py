"""`ltrag rerank ...` against a real HTTP server: the heads, the figures, the exit codes."""

import json
import math
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_parts import lines_file, ltrag, one_line, program, word_encoder
from openai_server import openai_server

from ltrag_plugins.cli.dur import _verdict
from ltrag_plugins.dur.train import TrainingResult, _Choice
from ltrag_plugins.llm.transformers import TransformersLLM

COUNT = 24
"""Questions: two batches."""
KINDS = ("novel", "poem")
SHOWN = "The answer is "


def number_and_kind(question: str) -> tuple[int, str]:
    _, _, kind, number = question.rstrip("?").split(" ")
    return int(number), kind


def parts(prompt: str) -> tuple[list[str], str]:
    """The questions of the shots, and the question that is asked."""
    *shots, last = prompt.split("\n\n")
    asked = [part.partition("Question: ")[2].partition("\n")[0] for part in (*shots, last)]
    return asked[:-1], asked[-1]


def knows(prompt: str) -> bool:
    """Every fifth question by heart; the others where the last shot is of the same kind."""
    shots, question = parts(prompt)
    number, kind = number_and_kind(question)
    return number % 5 == 0 if not shots else number_and_kind(shots[-1])[1] == kind


def write(prompt: str) -> tuple[str, float]:
    number, _ = number_and_kind(parts(prompt)[1])
    return (f"The answer is Author {number}.", 0.9) if knows(prompt) else ("somebody", 0.5)


def record(i: int) -> dict[str, object]:
    return {"question": f"who wrote {KINDS[i % 2]} {i}?", "answers": [f"Author {i}"], "id": f"q{i}"}


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
def examples(tmp_path_factory):
    path = tmp_path_factory.mktemp("examples") / "examples.jsonl"
    return lines_file(path, *map(record, range(100, 130)))


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    return lines_file(path, *map(record, range(COUNT)))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    words = ["who", "wrote", *KINDS, *map(str, range(130))]
    return word_encoder(tmp_path_factory.mktemp("words") / "words", words)


@pytest.fixture(scope="module")
def train(examples, questions, model, encoder) -> Callable:
    """Trains on the examples and questions: two epochs of two batches, two shots at most."""

    def run(out: Path, *more: object, env: dict[str, str] | None = None, exit_code: int = 0):
        arguments = ["--model", model, "--encoder", encoder]
        arguments += ["--shots", 2, "--set", "epochs=2", "--set", "held_out=0", "--out", out]
        result = ltrag("dur", "train", examples, questions, *arguments, *more, env=env)
        assert result.exit_code == exit_code, result.output
        return result

    return run


@pytest.fixture(scope="module")
def head(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "deep" / "head"
    train(folder)
    return folder


def numbers_of(head: Path) -> bytes:
    return (head / "dur.safetensors").read_bytes()


@pytest.mark.parametrize(("trained", "near"), [(0.52, True), (0.60, False)])
def test_a_gain_within_its_error_is_told_as_that(trained, near):
    choice = _Choice(40, (0.2, trained), (0.2, 0.50), 0.05, (0.2, trained), 80, None)
    told = _verdict(TrainingResult(SimpleNamespace(shots=1), (), None, choice))
    assert f"{trained:.3f} trained, 0.500 before, 0.200 without shots" in told
    assert ("within a standard error, 0.050" in told) == near


def test_the_report_counts_what_the_server_was_sent(train, asked, tmp_path):
    result = train(tmp_path / "head")
    assert result.stderr == f"ltrag: the head is in {tmp_path / 'head'}\n"
    shots = sum(prompt.count(SHOWN) for prompt in asked)
    words = dict(re.findall(r"^(.*?)  +(.*)$", result.stdout, re.MULTILINE))
    written = sum(len(write(prompt)[0].split()) for prompt in asked)  # and 9 read, says the server
    assert words["calls"] == str(len(asked))
    assert words["tokens"] == str(9 * len(asked) + written)
    assert words["shots"] == str(shots)
    assert words["fixed_shots"] == str(2 * COUNT * 2)  # two epochs, two shots a question
    assert (words["candidates"], words["questions"]) == ("30", str(COUNT))
    assert (words["format"], words["reward"]) == ("Q-A", "match")
    assert (words["batches"], words["epochs"]) == ("4", "2")
    assert words["stopped"] == "none"
    report = json.loads(train(tmp_path / "head", "--json").stdout)
    assert report["calls"] == int(words["calls"]) == sum(b["calls"] for b in report["history"])
    assert report["settings"]["shots"] == 2
    first = [batch["reward"] for batch in report["history"][:2]]
    assert report["first_reward"] == pytest.approx((20 * first[0] + 4 * first[1]) / COUNT)


def test_prompts_were_right_as_often_as_the_rewards_say(train, asked, tmp_path):
    # PromptPG asks once with all shots, so every prompt is a reward of +1 or -1
    arguments = ["--preset", "promptpg", "--set", "preselect=bm25", "--set", "epochs=1", "--json"]
    report = json.loads(train(tmp_path / "head", *arguments).stdout)
    right = [1 if knows(prompt) else -1 for prompt in asked]
    assert len(asked) == COUNT
    assert report["first_reward"] == pytest.approx(sum(right) / COUNT)
    assert report["shots"] == report["fixed_shots"] == 2 * COUNT


def test_without_an_epoch_nothing_is_asked_and_the_untrained_head_is_told(train, asked, tmp_path):
    stdout = train(tmp_path / "head", "--set", "epochs=0").stdout
    words = dict(re.findall(r"^(.*?)  +(.*)$", stdout, re.MULTILINE))
    assert words["kept"].startswith("the head as it was before training with 2 shots")
    assert [words[n] for n in ("epochs", "batches", "calls", "tokens", "shots")] == ["0"] * 5
    assert (words["first_reward"], words["last_reward"], asked) == ("none", "none", [])
    report = json.loads(train(tmp_path / "head", "--set", "epochs=0", "--json").stdout)
    assert (report["first_reward"], report["history"]) == (None, [])


def test_a_run_that_its_bound_ended_goes_on_to_the_same_head(train, head, tmp_path):
    arguments = ["--checkpoint", tmp_path / "run"]
    stopped = train(tmp_path / "head", *arguments, "--set", "max_calls=1")
    assert re.search(r"^batches +1$", stopped.stdout, re.MULTILINE)
    assert "calls of 1 were made" in stopped.stdout
    assert numbers_of(tmp_path / "head") != numbers_of(head)
    whole = train(tmp_path / "head", *arguments)
    assert re.search(r"^batches +4$", whole.stdout, re.MULTILINE)
    assert numbers_of(tmp_path / "head") == numbers_of(head)
    other = train(tmp_path / "head", *arguments, "--set", "seed=3", exit_code=1)
    assert "belongs to a run with other candidates" in one_line(other)


def test_with_a_cache_nothing_is_asked_or_encoded_twice(train, asked, tmp_path):
    arguments = ["--cache", tmp_path / "answers.sqlite", "--json"]
    first = train(tmp_path / "one", *arguments)
    asked.clear()
    second = train(tmp_path / "two", *arguments)
    assert second.stdout == first.stdout
    assert asked == []
    assert (tmp_path / "answers.vectors.sqlite").exists()


def test_pictures_are_drawn_where_they_are_wanted(train, tmp_path):
    train(tmp_path / "head", "--pictures", tmp_path / "deep" / "pictures")
    drawn = {path.name for path in (tmp_path / "deep" / "pictures").iterdir()}
    assert drawn == {"shots.png", "loss.png", "turns.png"}


def test_progress_is_on_stderr_and_only_for_a_terminal(train, tmp_path):
    silent = train(tmp_path / "head")
    shown = train(tmp_path / "head", env={"TTY_COMPATIBLE": "1", "COLUMNS": "80"})
    assert shown.stdout == silent.stdout
    assert "4/4" in shown.stderr
    assert "4/4" not in silent.stderr
    for word in ("reward", "sigma", "shots", "calls"):
        assert word in shown.stderr


def test_options_and_contexts_of_the_examples_choose_the_format(model, asked, tmp_path):
    def multiple_choice(i: int) -> dict[str, object]:
        return record(i) | {"options": [f"Author {i}", "somebody"], "context": f"fact {i}"}

    pool = lines_file(tmp_path / "pool.jsonl", *map(multiple_choice, range(100, 105)))
    path = lines_file(tmp_path / "questions.jsonl", *map(multiple_choice, range(4)))
    arguments = ["--model", model, "--set", "epochs=1", "--out", tmp_path / "head"]
    result = ltrag("dur", "train", pool, path, *arguments)
    assert re.search(r"^format +SQO-A$", result.stdout, re.MULTILINE), result.output
    assert all(p.startswith("Statement: fact") and "Options: (A) Author" in p for p in asked)
    said = ltrag("dur", "train", pool, path, *arguments, "--set", "format=Q-A")
    assert re.search(r"^format +Q-A$", said.stdout, re.MULTILINE)
    assert "Options" not in asked[-1]


def passage(i: int) -> dict[str, str]:
    return {"text": f"the author of {KINDS[i % 2]} {i}", "id": f"p{i}"}


@pytest.fixture
def reads():
    """A server whose model knows the answer where the passage of the question is shown last."""

    def reply(prompt: str) -> tuple[str, float]:
        *shown, last = prompt.split("\n\n")
        question = last.partition("Question: ")[2].partition("\n")[0]
        number, kind = number_and_kind(question)
        found = bool(shown) and shown[-1].strip().endswith(f"author of {kind} {number}")
        return (f"Author {number}" if found else "nobody", 0.9)

    with openai_server(reply) as (url, asked):
        yield f"openai:reads@{url}", asked


@pytest.fixture
def own(tmp_path):
    ids = {i: [(i + j) % 12 for j in (3, 5, 7, 0)] for i in range(12)}
    whole = [record(i) | {"passages": [passage(j) for j in ids[i]]} for i in ids]
    named = [record(i) | {"passage_ids": [passage(j)["id"] for j in ids[i]]} for i in ids]
    return (
        lines_file(tmp_path / "whole.jsonl", *whole),
        lines_file(tmp_path / "pool.jsonl", *map(passage, range(12))),
        lines_file(tmp_path / "named.jsonl", *named),
    )


def test_shared_passages_are_ranked_as_well_as_examples(reads, own, questions, tmp_path):
    arguments = ["--model", reads[0], "--shots", 2, "--set", "epochs=1", "--set", "held_out=0"]
    arguments += ["--limit", 12]
    result = ltrag("dur", "train", own[1], questions, *arguments, "--out", tmp_path / "head")
    words = dict(re.findall(r"^(.*?)  +(.*)$", result.stdout, re.MULTILINE))
    assert (words["candidates"], words["questions"]) == ("12", "12"), result.output
    assert (words["format"], words["reward"]) == ("passages", "match")
    shown = [prompt.count("the author of") for prompt in reads[1]]
    assert (words["shots"], words["fixed_shots"]) == (str(sum(shown)), "24")


def test_own_passages_may_stand_in_the_line_or_in_a_pool(reads, own, tmp_path):
    whole, pool, named = own
    arguments = ["--own-passages", "--model", reads[0], "--shots", 2, "--set", "epochs=2", "--json"]
    inline = ltrag("dur", "train", whole, *arguments, "--out", tmp_path / "inline")
    pooled = ltrag("dur", "train", pool, named, *arguments, "--out", tmp_path / "pooled")
    assert inline.exit_code == 0, inline.output
    assert inline.stdout == pooled.stdout
    assert numbers_of(tmp_path / "inline") == numbers_of(tmp_path / "pooled")


def test_own_passages_are_evaluated_within_each_question(reads, own, tmp_path):
    whole, _, _ = own
    url, asked = reads
    arguments = ["--own-passages", "--model", url]
    out = tmp_path / "head"
    ltrag("dur", "train", whole, *arguments, "--shots", 1, "--set", "epochs=1", "--out", out)
    asked.clear()
    result = ltrag("dur", "evaluate", out, whole, *arguments, "--json")
    assert result.exit_code == 0, result.output
    rankers = right_by_ranker(json.loads(result.stdout))
    # its own passage alone shares all words with a question, and lies nearest to it
    assert rankers["BM25"] == 1.0
    assert rankers["direct"] == 0.0
    # its place in the list is the same for every question, the place that chance takes is not
    assert 0 < rankers["random"] < 1
    assert len(asked) == len(set(asked)) <= 5 * 12


def right_by_ranker(report: dict) -> dict[str, float]:
    return {row["name"]: row["scores"]["em"]["value"] for row in report["rows"]}


def test_every_ranker_is_asked_about_the_same_questions(head, examples, questions, model, asked):
    result = ltrag("dur", "evaluate", head, examples, questions, "--model", model, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    rankers = right_by_ranker(report)
    assert list(rankers) == ["direct", "random", "BM25", "nearest", "head"]
    without = [prompt for prompt in asked if not parts(prompt)[0]]
    assert len(without) == COUNT
    assert rankers["direct"] == sum(map(knows, without)) / COUNT == 5 / COUNT
    shown = [prompt for prompt in asked if parts(prompt)[0]]
    assert {len(parts(prompt)[0]) for prompt in shown} == {2}
    assert len(shown) == len(set(shown)) <= 4 * COUNT
    assert {one["p_gold"] for one in report["shots_by"].values()} == {None}
    assert {name: one["shots"] for name, one in report["shots_by"].items()} == {
        "direct": 0,
        **dict.fromkeys(["random", "BM25", "nearest", "head"], 2),
    }
    for row in report["rows"]:
        right = 5 * row["easy"]["em"] + (COUNT - 5) * row["hard"]["em"]
        assert row["scores"]["em"]["value"] == pytest.approx(right / COUNT)
        assert row["costs"]["calls"] == 1


def test_the_table_has_the_gain_of_each_ranker(head, examples, questions, model):
    result = ltrag("dur", "evaluate", head, examples, questions, "--model", model, "--shots", 1)
    assert result.exit_code == 0, result.output
    _, direct, *others = result.stdout.splitlines()[:6]
    assert direct.split()[:2] == ["direct", "0.208"]
    assert all(" to " in line for line in others)
    assert "macro-F1" in result.stdout
    assert re.search(r"nearest \D* 1\.00 ", result.stdout)  # shots


def test_the_prompts_of_all_rankers_are_counted(head, examples, questions, model):
    arguments = ["--model", model, "--limit", 7]
    env = {"TTY_COMPATIBLE": "1", "COLUMNS": "100"}
    result = ltrag("dur", "evaluate", head, examples, questions, *arguments, env=env)
    assert "35/35" in result.stderr  # five rankers, seven questions


def test_the_embedded_model_tells_probabilities(tmp_path, smollm2):
    # the fixture only sees to it that the weights are converted before the command looks
    capitals = [("France", "Paris"), ("Japan", "Tokyo"), ("Peru", "Lima"), ("Egypt", "Cairo")]
    records = [
        {"question": f"What is the capital of {c}?", "answers": [a], "options": [a, "Quito"]}
        for c, a in capitals
    ]
    pool = lines_file(tmp_path / "pool.jsonl", *records[:2])
    path = lines_file(tmp_path / "questions.jsonl", *records[2:])
    arguments = ["--shots", 1, "--set", "epochs=1", "--out", tmp_path / "head"]
    trained = ltrag("dur", "train", pool, path, *arguments)
    assert re.search(r"^reward +log_p_gold$", trained.stdout, re.MULTILINE), trained.output
    result = ltrag("dur", "evaluate", tmp_path / "head", pool, path, "--json")
    shown = json.loads(result.stdout)["shots_by"]
    chances = {name: one["p_gold"] for name, one in shown.items()}
    plain = TransformersLLM(smollm2.model, smollm2.tokenizer, chat=False)
    wanted = []
    for country, city in capitals[2:]:
        asked = (
            f"Question: What is the capital of {country}?\nOptions: (A) {city} (B) Quito\nAnswer:"
        )
        said = [f" The answer is {option}" for option in (city, "Quito")]
        scored = plain.score([asked] * 2, said)
        # what leads to the answer is equally likely in both, so it cancels out
        chance = [math.exp(sum(token.logprob for token in one.tokens)) for one in scored]
        wanted.append(chance[0] / sum(chance))
    assert chances["direct"] == pytest.approx(sum(wanted) / 2, rel=1e-3)
    assert all(0 < p < 1 for p in chances.values())
    assert all(0 <= one["macro_f1"] <= 1 for one in shown.values())


def test_a_head_ranks_examples_the_most_helpful_first(head, examples):
    asked = ["dur", "rank", head, examples, "--query", "who wrote poem 3?", "--json"]
    ranked = json.loads(ltrag(*asked).stdout)["ranked"]
    scores = [r["score"] for r in ranked]
    assert len(ranked) == 30
    assert scores == sorted(scores, reverse=True)
    assert json.loads(ltrag(*asked, "--top-n", 4).stdout)["ranked"] == ranked[:4]


def test_a_table_of_candidates_shows_title_id_and_score(head, tmp_path):
    written = {"text": "Who wrote novel 3?", "title": "A (novel)", "id": "three"}
    pool = lines_file(tmp_path / "pool.jsonl", {"text": "Baked from flour", "id": "bread"}, written)
    result = ltrag("dur", "rank", head, pool, "--query", "who wrote novel 3?", "--top-n", 1)
    assert result.exit_code == 0, result.output
    assert "A (novel) Who wrote novel 3?" in result.stdout
    assert "three" in result.stdout
    assert "bread" not in result.stdout


def test_a_reward_that_the_model_cannot_serve_is_refused_before_it_is_asked(train, asked, tmp_path):
    line = one_line(train(tmp_path / "head", "--set", "reward=p_gold", exit_code=1))
    assert "needs the log-probability of given text" in line
    assert asked == []


def test_a_damaged_head_and_a_head_without_its_model_are_named(
    head, examples, questions, asked, tmp_path
):
    broken = tmp_path / "head"
    broken.mkdir()
    for name in ("dur.json", "dur.safetensors"):
        (broken / name).write_bytes((head / name).read_bytes()[:-4])
    line = one_line(ltrag("dur", "rank", broken, examples, "--query", "who?"))
    assert line.startswith(f"{broken} holds no readable head")
    # a server is never reached because a head's folder says so
    assert "add --model" in one_line(ltrag("dur", "evaluate", head, examples, questions))
    assert asked == []


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(
    examples, questions, encoder, head, tmp_path
):
    run, out = tmp_path / "run", tmp_path / "head"
    came, go_on = threading.Event(), threading.Event()

    def slow(prompt: str) -> tuple[str, float]:
        if (run / "checkpoint.safetensors").exists():  # the first batch has ended
            came.set()
            go_on.wait(600)
        return write(prompt)

    with openai_server(slow) as (url, _):
        arguments = ["dur", "train", examples, questions, "--model", f"openai:slow@{url}"]
        arguments += ["--encoder", encoder, "--shots", 2, "--set", "epochs=2"]
        arguments += ["--checkpoint", run, "--out", out]
        process = program(*arguments)
        assert came.wait(600), process.communicate()
        process.send_signal(signal.SIGINT)
        go_on.set()  # requests that are under way may end
        stdout, stderr = process.communicate(timeout=600)
        assert process.returncode == 130
        assert stdout == ""
        [line] = stderr.splitlines()
        assert re.match("ltrag: stopped.*the same command goes on", line)
        assert str(run) in line
        assert not out.exists()
        assert ltrag(*arguments).exit_code == 0
    assert numbers_of(out) == numbers_of(head)
