"""What the command line refuses: when, with which line or box, and with which exit code."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from cli_parts import book, lines_file, ltrag, one_line, program, wrong_usage
from finetune_parts import tiny
from openai_server import openai_server
from typer.main import get_command
from typer.testing import CliRunner

from ltrag_plugins.cli import _GuardedGroup, app
from ltrag_plugins.cli.io import checked_folder, resumable, wrapped
from ltrag_plugins.errors import InvalidInput, UnwritableArtifact
from ltrag_plugins.evaluate.folder import RunFolder

NOWHERE = Path("/proc/ltrag")
"""Nobody, root included, can make a folder here."""
needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
NOVEL = {
    "question": "who wrote Emma?",
    "answers": ["Jane Austen"],
    "id": "q0",
    "passages": [{"text": "A fortress."}, {"text": "A coast."}],
}
NO_SERVER = ("--model", "openai:none@http://localhost:9")


def call(command: str, path: Path, *more: object):
    """A command over one file of questions; nothing answers, as the input is looked at first."""
    words = command.format(q=path, d=path.parent).split()
    return ltrag(*words, *more)


FIT, BUILD, GATE = (
    f"{command} {{q}} --out {{d}}/out" for command in ("sgic fit", "sgic build", "gate fit")
)
TRAIN = "dur train {q} {q} --out {d}/out --model openai:none@http://localhost:9"
EVALUATE = "evaluate {q} --out {d}/out"


# --- records


@pytest.mark.parametrize("command", [GATE, FIT, BUILD, TRAIN, EVALUATE])
@pytest.mark.parametrize(
    ("record", "says"),
    [
        ("{oops}", "line 2, column 2: not JSON"),
        ({"q": "who?"}, "line 2, field 'question': missing; there is only 'q'"),
        ({"question": "who?"}, "line 2, field 'answers': no accepted answers"),
        ({**NOVEL, "passages": ["a"]}, "line 2, field 'passages[0]': expected an object"),
    ],
)
def test_a_wrong_record_is_named_with_its_file_and_field(command, record, says, tmp_path):
    path = lines_file(tmp_path / "questions.jsonl", NOVEL, record)
    line = one_line(call(command, path))
    assert line.startswith(f"{path}, ")
    assert says in line
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


@pytest.mark.parametrize(
    ("command", "record", "says"),
    [
        (GATE, {"question": "?!", "answers": ["a"], "id": "odd"}, "(id 'odd'): the question"),
        (GATE, {"question": "so " * 3000, "answers": ["a"], "id": "long"}, "(id 'long')"),
        (BUILD, {**NOVEL, "passages": []}, "field 'passages': missing; add them"),
        (f"{TRAIN} --own-passages", {**NOVEL, "passages": []}, "field 'passages': missing"),
    ],
)
def test_a_record_that_cannot_serve_is_named_by_its_line(command, record, says, tmp_path):
    path = lines_file(tmp_path / "questions.jsonl", NOVEL, record)
    line = one_line(call(command.replace("train {q} {q}", "train {q}"), path))
    assert line.startswith(f"{path}, line 2")
    assert says in line


@pytest.mark.parametrize("command", [GATE, FIT, BUILD, TRAIN, EVALUATE])
def test_a_file_that_is_missing_empty_or_cut_off_is_named(command, tmp_path):
    gone = tmp_path / "nowhere.jsonl"
    assert one_line(call(command, gone)) == f"cannot read {gone}: No such file or directory"
    empty = lines_file(tmp_path / "empty.jsonl")
    assert one_line(call(command, empty)).startswith(f"{empty}: no questions in it")
    half = tmp_path / "questions.jsonl.gz"
    half.write_bytes(gzip.compress(json.dumps(NOVEL).encode() * 99)[:-20])
    assert f"{half}: not a whole gzip file" in one_line(call(command, half))


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (FIT, "--pool"),
        (BUILD, "--pool"),
        ("sgic answer {q}", "--pool"),
        ("dur train {q} --own-passages --out {d}/out", "CANDIDATES.jsonl"),
    ],
)
def test_passages_that_are_named_without_their_pool_are_no_empty_list(command, remedy, tmp_path):
    named = {"question": "who?", "answers": ["a"], "passage_ids": ["p1"]}
    path = lines_file(tmp_path / "questions.jsonl", NOVEL, named)
    line = one_line(call(command, path, *NO_SERVER))
    assert line.startswith(f"{path}, line 2, field 'passage_ids': ")
    assert remedy in line
    assert "'passages': missing" not in line


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([NOVEL, NOVEL], "has the same id 'q0'"),
        ([{"text": "a b"}, {"title": "a"}], "line 2, field 'text': missing"),
    ],
)
def test_a_wrong_candidate_or_passage_is_named_with_its_file(records, says, tmp_path):
    pool = lines_file(tmp_path / "pool.jsonl", *records)
    questions = lines_file(tmp_path / "questions.jsonl", *[NOVEL] * 20)
    told = [ltrag("dur", "train", pool, questions, *NO_SERVER, "--out", tmp_path)]
    if "text" in records[0]:
        told.append(call(GATE, questions, "--passages", pool))
    for result in told:
        line = one_line(result)
        assert line.startswith(str(pool))
        assert says in line


def test_too_few_questions_are_refused_before_a_model_is_loaded(tmp_path):
    line = one_line(call(GATE, lines_file(tmp_path / "q.jsonl", NOVEL, NOVEL)))
    assert "2 calibration questions; a gate needs at least 20" in line


def test_a_scorer_that_is_not_there_is_refused_before_a_model_is_loaded(tmp_path):
    path = lines_file(tmp_path / "q.jsonl", *[NOVEL] * 20)
    line = one_line(call(GATE, path, "--model", tmp_path, "--set", "scorer=produkt"))
    assert line.startswith("there is no scorer 'produkt'; did you mean product?")


def test_remedies_are_those_of_the_command_line(tmp_path):
    long = {**NOVEL, "question": "who? " * 2001}
    line = one_line(call(GATE, lines_file(tmp_path / "long.jsonl", long)))
    assert line.endswith("or raise the setting max_words")  # as --set takes it
    unlabelled = lines_file(tmp_path / "bare.jsonl", {"question": "who?"})
    assert one_line(call(GATE, unlabelled)).endswith("; with --passages it needs none")
    bare = lines_file(tmp_path / "q.jsonl", *map(book, range(20)))
    for target in ("target_accuracy=always", "budget=0.5"):
        assert "give --passages" in wrong_usage(call(GATE, bare, *NO_SERVER, "--set", target))


def test_a_format_that_shows_nothing_of_the_candidates_is_refused(tmp_path):
    solved = lines_file(tmp_path / "solved.jsonl", NOVEL)
    passages = lines_file(tmp_path / "passages.jsonl", {"text": "a b"})
    for candidates, wanted, better in ((passages, "QO-A", "passages"), (solved, "passages", "Q-A")):
        told = ["--set", f"format={wanted}", *NO_SERVER, "--out", tmp_path / "head"]
        line = one_line(ltrag("dur", "train", candidates, solved, *told))
        assert line.startswith("this prompt format has no place for a ")
        assert f"use format={better!r}" in line


# --- models, and folders that were fitted


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("gate explain who? --gate {d}", "gate.json"),
        ("dur rank {d} {q} --query who?", "dur.json"),
        ("dur evaluate {d} {q} {q}", "dur.json"),
        ("sgic answer {q} --calibration {d}", "sgic.json"),
        ("evaluate {q} --out {d}/run --gate {d}", "gate.json"),
        ("evaluate {q} --out {d}/run --methods dur --encoder embedded --set head={d}", "dur.json"),
    ],
)
def test_a_folder_that_was_not_fitted_is_named(command, file, tmp_path):
    path = lines_file(tmp_path / "questions.jsonl", NOVEL)
    line = one_line(call(command, path))
    assert f"there is no {file} in {tmp_path}" in line
    assert "'ltrag " in line  # what would write one
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        "gate explain who? --gate=~/fit",
        "dur rank ~/fit {q} --query who?",
        "sgic answer {q} --calibration=~/fit",
        "answer ~/fit --question who?",
    ],
)
def test_a_folder_may_be_named_by_a_tilde(words, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    line = one_line(call(words, lines_file(tmp_path / "questions.jsonl", NOVEL)))
    assert f".json in {tmp_path / 'fit'};" in line


def test_a_folder_from_python_asks_for_its_model(tmp_path):
    body = {"llm": "mine@1234", "encoder": "vectors@5678"}
    for name in ("gate", "sgic"):
        (tmp_path / f"{name}.json").write_text(json.dumps(body), encoding="utf-8")
    explain = ("gate", "explain", "who?", "--gate", tmp_path)
    answer = ("sgic", "answer", "--question", "who?", "--calibration", tmp_path)
    for told, named, missing in (
        (explain, "mine@1234", "--model"),
        ((*explain, "--model", "embedded"), "vectors@5678", "--encoder"),
        (answer, "", "--model"),
    ):
        line = one_line(ltrag(*told))
        assert named in line
        assert line.endswith(f"add {missing}")


def test_a_folder_or_file_that_is_no_model_is_named(tmp_path):
    path = lines_file(tmp_path / "questions.jsonl", *[NOVEL] * 20)
    line = one_line(call(GATE, path, "--model", tmp_path))
    assert str(tmp_path) in line
    assert "config.json" in line
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"not a model")
    assert f"cannot load the model {str(fake)!r}" in one_line(call(GATE, path, "--model", fake))


@pytest.mark.parametrize("left", [0, 5, 100, 20_000])
def test_a_model_whose_weights_were_cut_off_is_named(smollm2, left, tmp_path):
    path, folder = lines_file(tmp_path / "questions.jsonl", *[NOVEL] * 20), tmp_path / "model"
    smollm2.tokenizer.save_pretrained(folder)
    tiny(width=16).save_pretrained(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:left])
    line = one_line(call(GATE, path, "--model", folder))
    assert f"cannot load the model {str(folder)!r}" in line


# --- wrong usage


@pytest.mark.parametrize(
    ("command", "more", "says"),
    [
        (GATE, ["--model", "nonesuch"], "nonesuch"),
        (GATE, ["--model", "openai:gpt@ftp://host"], "openai:gpt@ftp://host"),
        (GATE, ["--model", "openai:gpt@localhost:8000"], "openai:gpt@localhost:8000"),
        (GATE, ["--model", "openai:"], "openai:"),
        (GATE, ["--model", ""], "is no model"),
        (GATE, ["--model", "openai:x@http://h+adapter:a"], "openai:x@http://h+adapter:a"),
        (GATE, ["--model", "openai:x+adapter:a"], "openai:x+adapter:a"),
        (GATE, ["--model", "openai:x@http://h+fast"], "openai:x@http://h+fast"),
        (GATE, ["--model", "openai:x@http://h+name:"], "openai:x@http://h+name:"),
        (GATE, ["--model", "embedded+name:mine"], "embedded+name:mine"),
        (GATE, ["--model", "embedded+adapter:a+fast"], "embedded+adapter:a+fast"),
        (GATE, ["--model", "embedded+adapter:gone"], "embedded+adapter:gone"),
        (GATE, ["--encoder", "nonesuch"], "nonesuch"),
        (GATE, ["--rate", "1.5"], "target_rate must be a number, from 0 to 1"),
        (GATE, ["--rate", "0.2", "--set", "target_accuracy=0.5"], "not both"),
        (GATE, ["--set", "correct=roughly"], "correct must be one of contains"),
        (GATE, ["--set", "corect=f1"], "correct"),
        (GATE, ["--set", "bugdet=0.5"], "did you mean budget"),
        (GATE, ["--set", "scorrer=gece"], "target_accuracy"),
        (FIT, ["--set", "lvel=0.9"], "did you mean level"),
        ("sgic answer {q}", ["--set", "refuse_p_wrong_abov=1"], "mean refuse_p_wrong_above"),
        (TRAIN, ["--set", "max_cals=5"], "did you mean max_calls"),
        (GATE, ["--set", "rate=0.2"], "it is an option: --rate 0.2; leave out"),
        (GATE, ["--set", "words=3"], "no setting 'words'"),
        (GATE, ["--set", "questions=3"], "no setting 'questions'"),
        ("fit {q} --out {d}/out", ["--set", "target_accuracy=1"], "--target-accuracy 1"),
        ("fit {q} --out {d}/out", ["--set", "rounds=1"], "did you mean reading.rounds"),
        (GATE, ["--set", "samples=-1"], "samples"),
        (GATE, ["--set", "samples"], "NAME=VALUE"),
        (GATE, ["--limit", "0"], "--limit"),
        (GATE, ["--batch", "0"], "--batch"),
        (GATE, ["--nonesuch"], "--nonesuch"),
        (TRAIN, ["--encoder", "none"], "ranks by vectors"),
        (TRAIN, ["--preset", "best"], "--preset"),
        (TRAIN, ["--shots", "0"], "shots must be"),
        (TRAIN, ["--set", "max_calls=0"], "max_calls"),
        ("dur train {q} --out head", [], "CANDIDATES.jsonl"),
        ("dur train 1 2 3 --own-passages --out head", [], "QUESTIONS.jsonl"),
        ("dur train {q} {q}", [], "--out"),
        ("dur evaluate head {q}", [], "CANDIDATES.jsonl"),
        ("dur rank {q} --query who?", [], "CANDIDATES.jsonl"),
        ("dur rank head {q}", [], "--query"),
        ("dur rank head {q} --query who? --top-n 0", [], "--top-n"),
        ("sgic answer", [], "give QUESTIONS.jsonl"),
        ("sgic answer {q} --question who? --limit 3", [], "not for --question"),
        (FIT, ["--cut-to", "1,0"], "no list of whole numbers"),
        (FIT, ["--cut-to", "many"], "no list of whole numbers"),
        (FIT, ["--rounds", "-1"], "rounds"),
        (BUILD, ["--set", "keep_wrong=2"], "keep_wrong"),
        (BUILD, ["--set", "estimator=guess"], "estimator"),
        (EVALUATE, ["--rate", "1.5"], "rate must be a number, from 0 to 1"),
        (EVALUATE, ["--methods", "filco", "--set", "filter=nonesuch"], "'nonesuch' is no model"),
        (EVALUATE, ["--set", "search=best"], "search must be one of bm25, encoder"),
        ("sgic finetune {q} --out x", ["--set", "learning_rate=0"], "learning_rate"),
        ("sgic finetune {q} --out x --batch 4", ["--set", "micro_batch=3"], "micro_batch 3"),
    ],
)
def test_wrong_usage_leaves_with_two(command, more, says, tmp_path):
    path = lines_file(tmp_path / "questions.jsonl", NOVEL)
    told = wrong_usage(call(command, path, *more))
    # the box around the message may break words
    assert says in told or says.replace(" ", "") in told.replace(" ", "")
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


# --- ltrag evaluate: what a run lacks

MODEL, ENCODER = "has no config.json", "cannot load the encoder"
"""What is said as soon as the model here is loaded, or the encoder before it."""


@pytest.fixture
def place(tmp_path):
    """Questions with passages, without any, and others to learn from; a folder of nothing."""
    told = [book(i, passages=[{"text": f"Author q{i}"}]) for i in range(8)]
    lines_file(tmp_path / "asked.jsonl", *told[:2])
    lines_file(tmp_path / "others.jsonl", *told[2:])
    lines_file(tmp_path / "bare.jsonl", *map(book, range(8)))
    (tmp_path / "empty").mkdir()
    return tmp_path


def evaluated(place: Path, *more: object, asked: str = "asked", out: str = "run"):
    weights = ("--model", place / "empty")
    return ltrag("evaluate", place / f"{asked}.jsonl", *weights, "--out", place / out, *more)


def refused(result, *said: str) -> None:
    assert result.exit_code == 1
    for words in said:
        assert words in result.stderr
    assert MODEL not in result.stderr
    assert ENCODER not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len([line for line in lines if "left out: " not in line]) == 1


def test_what_is_in_order_gets_as_far_as_the_model(place):
    (place / "gate").mkdir()
    (place / "gate" / "gate.json").write_text("{}")
    for methods in ("direct", "single", "all,direct"):
        for more in ((), ("--gate", place / "gate")):
            result = evaluated(place, "--methods", methods, *more)
            assert result.exit_code == 1
            assert MODEL in result.stderr


@pytest.mark.parametrize("methods", ["direct", "single", "all", "random-shots"])
def test_a_gate_that_is_not_there_is_refused_at_once(place, methods):
    told = ("--methods", methods, "--labelled", place / "others.jsonl")
    for gone in ("nogate", "empty", "asked.jsonl"):
        refused(evaluated(place, *told, "--gate", place / gone), str(place / gone), "gate fit")
    assert not (place / "run").exists()


def test_too_few_questions_to_fit_a_gate_on_are_refused_at_once(place):
    told = ("--labelled", place / "others.jsonl", "--gate", "fit", "--methods")
    refused(evaluated(place, *told, "single"), "6 calibration questions; a gate needs at least 20")
    assert not (place / "run").exists()
    assert MODEL in evaluated(place, *told, "direct").stderr  # no gate is put before it


def test_gates_of_one_name_are_refused_at_once(place):
    for folder in ("a/gate", "b/gate", "eq2"):
        (place / folder).mkdir(parents=True)
        (place / folder / "gate.json").write_text("{}")
    told = ("--methods", "single", "--labelled", place / "others.jsonl", "--gate")
    for first, second in (
        ("fit", "fit"),
        ("fit", place / "a/gate"),
        (place / "a/gate", place / "b/gate"),
    ):
        refused(evaluated(place, *told, f"{first},{second}"), "two gates make a row single+gate;")
    refused(evaluated(place, *told, place / "eq2"), "eq2 is the name of --gate paper")


@pytest.mark.parametrize("methods", ["dur", "all", "direct,dur"])
def test_a_head_that_is_not_there_is_refused_at_once(place, methods):
    told = ("--methods", methods, "--encoder", place / "empty", "--set", f"head={place / 'nohead'}")
    refused(evaluated(place, *told), str(place / "nohead"), "ltrag rerank train")
    assert not (place / "run").exists()
    (place / "nohead").mkdir()
    (place / "nohead" / "dur.json").write_text("{}")
    assert ENCODER in evaluated(place, *told).stderr


@pytest.mark.parametrize("out", ["asked.jsonl", "asked.jsonl/run"])
@pytest.mark.parametrize("methods", ["direct", "single", "all"])
def test_a_folder_that_cannot_be_written_to_is_refused_at_once(place, out, methods):
    refused(evaluated(place, "--methods", methods, out=out), f"cannot write to {place / out}")


@pytest.mark.parametrize("kind", ["gate", "dur", "sgic", "longtail"])
def test_a_folder_that_holds_a_fit_is_no_folder_of_a_run(place, kind):
    (place / "run").mkdir()
    (place / "run" / f"{kind}.json").write_text("{}")
    refused(evaluated(place), f"holds {kind}.json of a fit; name another folder")


@pytest.mark.parametrize(
    ("command", "kind"),
    [(GATE, "gate"), (TRAIN, "dur"), (FIT, "sgic"), ("fit {q} --out {d}/out", "longtail")],
)
def test_a_folder_holds_one_kind_of_fit(command, kind, place):
    (place / "out").mkdir()
    for other in ("gate", "dur", "sgic", "longtail"):
        (place / "out" / f"{other}.json").write_text("{}")
        result = call(command, place / "asked.jsonl", "--model", place / "empty")
        assert (f"holds {other}.json of a fit" in result.stderr) is (other != kind)
        (place / "out" / f"{other}.json").unlink()


def test_questions_that_are_learned_from_and_judged_on_are_counted(place):
    for others, said in (("bare", "note: 2 questions are in --labelled too"), ("others", "")):
        result = evaluated(place, "--labelled", place / f"{others}.jsonl")
        assert said in result.stderr
        assert ("--labelled" in result.stderr) is bool(said)


def test_a_lock_that_another_run_took_away_holds_nothing(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    lock, hold = tmp_path / "run" / "lock", fcntl.flock

    def late(file, how):  # the other run never began, and its lock goes now
        lock.unlink()
        hold(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InvalidInput, match="another run is writing"), RunFolder(lock.parent).held():
        pass
    monkeypatch.undo()
    with RunFolder(lock.parent).held():
        assert lock.exists()


def test_what_cannot_be_loaded_leaves_the_folder_as_it_was(place):
    before = sorted(place.rglob("*"))
    result = evaluated(place, "--methods", "direct", out="new/run")
    assert MODEL in result.stderr
    assert sorted(place.rglob("*")) == before
    (place / "run").mkdir()
    (place / "run" / "kept.txt").write_text("kept")
    assert MODEL in evaluated(place, "--methods", "direct").stderr
    assert [path.name for path in (place / "run").iterdir()] == ["kept.txt"]


def test_a_folder_that_another_run_writes_to_is_refused_at_once(place):
    with RunFolder(place / "run").held():
        refused(evaluated(place), "another run is writing to")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--methods", "single"], "the method single needs a retriever"),
        (["--methods", "direct,all,single"], "the method single needs a retriever"),
        (["--methods", "dur"], "the method dur needs a"),
        (["--methods", "single"], "needs a retriever; add --passages"),
        (["--methods", "skr"], "add --passages, --encoder and --labelled"),
        (["--set", "head=head", "--encoder", "embedded"], "head=FOLDER is for the method dur"),
        (["--methods", ","], "name at least one method"),
        (["--methods", "direct,direct"], "the method 'direct' comes twice"),
        (["--methods", "all,direct,direct"], "the method 'direct' comes twice"),
        (["--methods", "all,dirct"], "did you mean direct"),
        (["--methods", "single:kk=3"], "did you mean k?"),
        (["--metrics", "emm"], "did you mean em"),
        (["--gate", "fit"], "add --labelled"),
        (["--gate", "gece"], "takes fit, paper, or a folder"),
        (["--rate", "0.5"], "--rate is for --gate fit"),
        (["--gate", "paper:qualty=chrf"], "did you mean quality"),
        (["--set", "search=encoder"], "add --encoder embedded"),
        (["--set", "compare=nobody", "--methods", "direct"], "there will be direct"),
        (["--methods", "all", "--set", "compare=nobody"], "there will be direct, single"),
        (["--methods", "dur", "--set", "head=head"], "add --encoder embedded"),
    ],
)
def test_what_a_run_lacks_is_said_at_once(place, more, said):
    asked = "asked" if "compare=nobody" in more else "bare"
    refused(evaluated(place, *more, asked=asked), said)
    assert not (place / "run").exists()


# --- places to write to


@pytest.fixture(scope="module")
def server():
    with openai_server(lambda _: ("x", 0.5)) as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "not-a-secret")
        yield found


@pytest.fixture
def novels(tmp_path):
    lines = [{**NOVEL, "question": f"who wrote novel {i}?", "id": f"q{i}"} for i in range(24)]
    return lines_file(tmp_path / "questions.jsonl", *lines)


@needs_proc
@pytest.mark.parametrize(
    ("command", "option", "place"),
    [
        ("sgic fit {q}", "--out", NOWHERE / "calibration"),
        ("sgic build {q}", "--out", NOWHERE / "data"),
        ("sgic build {q} --form filter --set measure=cxmi", "--out", NOWHERE / "data"),
        ("gate fit {q} --encoder none", "--out", NOWHERE / "gate"),
        ("dur train {q} {q} --out {d}/head", "--checkpoint", NOWHERE / "run"),
        ("dur train {q} {q} --out {d}/head", "--pictures", NOWHERE / "pictures"),
        ("dur train {q} {q}", "--out", NOWHERE / "head"),
    ],
)
def test_no_prompt_is_paid_for_where_nothing_can_be_kept(
    command, option, place, novels, server, tmp_path
):
    url, asked = server
    asked.clear()
    line = one_line(call(command, novels, "--model", f"openai:m@{url}", option, place))
    assert line.startswith(f"cannot write to {place} (")
    assert line.endswith("Name another folder, or mend this one.")
    assert asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


@needs_proc
@pytest.mark.parametrize(
    "words", ["sgic finetune {d} --out", "report {d} --pictures", "report {d} --out"]
)
def test_a_command_that_asks_no_model_says_the_same(words, tmp_path):
    place = Path("/proc/page.html") if words.startswith("report {d} --out") else NOWHERE / "x"
    # there is neither data nor a run in that folder, and the place is looked at before
    line = one_line(ltrag(*words.format(d=tmp_path).split(), place))
    assert line.startswith("cannot write to /proc")


def test_trying_a_place_leaves_it_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "kept.txt").write_text("kept")
    before = {path: path.stat().st_mode for path in tmp_path.rglob("*")}
    monkeypatch.chdir(tmp_path)
    for place in ("there", "new", "there/deep/er", "."):
        for path in (tmp_path / place, Path(place)):
            assert checked_folder(path) == path
    assert {path: path.stat().st_mode for path in tmp_path.rglob("*")} == before
    assert (tmp_path / "there" / "kept.txt").read_text() == "kept"


def test_what_is_in_the_way_and_a_name_that_no_file_system_takes_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    os.symlink(tmp_path / "gone", tmp_path / "dangling")
    long = "x" * 300
    for place in ("file", "file/x", "file/x/y", f"new/{long}", f"new/{long}/y", "dangling"):
        with pytest.raises(UnwritableArtifact, match=rf"cannot write to {tmp_path / place} \("):
            checked_folder(tmp_path / place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file"]


# --- as a program


def test_the_program_tells_its_version_and_an_error_in_one_line_unless_debugged(tmp_path):
    def told(*words):
        process = program(*words)
        stdout, stderr = process.communicate(timeout=600)
        return process.returncode, stdout, stderr

    code, stdout, stderr = told("--version")
    assert (code, stdout[:8], stderr) == (0, "ltrag 0.", "")
    wrong = ("gate", "fit", tmp_path / "nowhere", "--out", tmp_path / "gate")
    code, stdout, stderr = told(*wrong)
    assert (code, stdout, stderr.count("\n")) == (1, "", 1)
    assert "No such file" in stderr
    code, stdout, stderr = told("--debug", *wrong)
    assert code == 1
    assert "Traceback" in stderr


def test_ctrl_c_while_the_program_is_being_loaded_is_one_line():
    lines = (
        "import sys",
        "from ltrag_plugins.__main__ import main",
        "def stop(name, *_):",
        "    if name == 'ltrag_plugins.cli': raise KeyboardInterrupt",
        "sys.meta_path.insert(0, type('Stop', (), {'find_spec': staticmethod(stop)}))",
        "main()",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ltrag: stopped\n")


def test_a_stop_says_what_is_kept_and_nothing_of_where_it_came():
    commands = typer.Typer(cls=_GuardedGroup)

    @commands.command("read")
    def _read() -> None:
        raise KeyboardInterrupt("decoding with 'utf-8-sig' codec failed")  # as codecs say it

    @commands.command("ask")
    def _ask() -> None:
        with resumable(Path("answers.sqlite")):
            _read()

    read, ask = (CliRunner().invoke(commands, [name]) for name in ("read", "ask"))
    assert (read.exit_code, read.stderr) == (130, "ltrag: stopped\n")
    goes_on = "ltrag: stopped; the same command goes on with what is in answers.sqlite\n"
    assert (ask.exit_code, ask.stderr) == (130, goes_on)


def test_help_loads_nothing_heavy():
    code = (
        "import sys, typer.testing, typer.main, ltrag_plugins.cli as c\n"
        "def walk(command, words):\n"
        "    r = typer.testing.CliRunner().invoke(c.app, [*words, '--help'])\n"
        "    assert r.exit_code == 0 and 'Usage' in r.stdout, r.output\n"
        "    inner = getattr(command, 'commands', {})\n"
        "    return 1 + sum(walk(one, [*words, name]) for name, one in inner.items())\n"
        "assert walk(typer.main.get_command(c.app), []) > 15\n"
        "heavy = {'torch', 'sklearn', 'scipy', 'transformers', 'numpy', 'matplotlib',\n"
        "         'langchain_core', 'llama_index'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# --- what --set takes


@pytest.mark.parametrize("name", [
    "fit", "gate", "rerank", "calibrate", "build", "finetune", "evaluate",
])  # fmt: skip
def test_settings_lists_what_set_takes_with_its_meaning(name):
    listed = json.loads(ltrag("settings", name, "--json").stdout)
    assert all(one["takes"] and one["meaning"] for one in listed)
    text = ltrag("settings", name).stdout
    assert all(f"  {one['setting']}=" in text for one in listed)
    assert name in ltrag("settings").stdout


def test_the_groups_of_settings_as_json_are_those_of_the_list():
    groups = json.loads(ltrag("settings", "--json").stdout)
    rows = [re.split("  +", line) for line in ltrag("settings").stdout.splitlines()]
    assert [*groups.items()] == [(name, commands) for name, commands in rows]


def test_choices_and_ranges_are_listed_from_the_declarations_and_an_unknown_name_is_named():
    assert "one of sgic, direct" in ltrag("settings", "build").stdout
    assert "one of bm25, encoder" in ltrag("settings", "evaluate").stdout
    assert "did you mean gate" in one_line(ltrag("settings", "gat"))


# --- for people


@pytest.mark.parametrize(("ours", "paper"), [("rerank", "dur"), ("calibrate", "sgic")])
def test_a_group_has_the_users_name_and_the_papers(ours, paper):
    groups = get_command(app).commands
    assert groups[ours].commands.keys() == groups[paper].commands.keys()
    assert (groups[ours].hidden, groups[paper].hidden) == (False, True)
    assert f"ltrag {paper}" in groups[ours].help  # help says what else it is called
    assert ltrag("settings", paper).stdout == ltrag("settings", ours).stdout


@pytest.mark.parametrize("width", [80, 40])
def test_a_line_too_long_for_a_terminal_is_broken_between_words(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    long = "P(wrong)    " + "is not known, as there are few answers of either kind; " * 3
    lines = wrapped(f"short\n{long}", SimpleNamespace(isatty=lambda: True)).split("\n")
    assert lines[0] == "short"
    assert max(map(len, lines)) <= width
    assert " ".join(lines[1:]).split() == long.split()
    assert all(line.startswith(" " * 12) for line in lines[2:])
    assert wrapped(long, SimpleNamespace(isatty=lambda: False)) == long
