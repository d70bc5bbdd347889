"""`ltrag fit` and `ltrag answer` against a real HTTP server."""

import json

import pytest
from cli_parts import KNOWN, book, lines_file, ltrag, one_line, page, wrong_usage
from openai_server import openai_server

from ltrag_plugins.cli.options import load_llm
from ltrag_plugins.evaluate import LongTailRAG, LongTailSettings
from ltrag_plugins.flow import World
from ltrag_plugins.sgic import Calibration, ScoreScale, SGICSettings
from ltrag_plugins.sgic.scale import WrongnessCalibration


def write(prompt: str) -> tuple[str, float]:
    """An author's name; right where a passage is shown, or the model knows."""
    question = prompt.rpartition("Question: ")[2].partition("\n")[0]
    if "Document [1]" in prompt:
        return f"Author {question.removeprefix('who wrote book ').rstrip('?')}", 0.9
    return (KNOWN[question], 0.95) if question in KNOWN else ("some other person", 0.4)


@pytest.fixture(scope="module")
def model():
    with openai_server(write) as (url, _), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "not-a-secret")
        yield f"openai:scripted@{url}"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    questions = lines_file(folder / "questions.jsonl", *map(book, range(40)))
    return questions, lines_file(folder / "pool.jsonl", *map(page, range(40)))


@pytest.fixture(scope="module")
def fitted(files, model, tmp_path_factory):
    folder, (questions, pool) = tmp_path_factory.mktemp("fitted") / "rag", files
    quick = ("--set", "gate.scorer=product", "--set", "reading.rounds=1", "--k", 1)
    told = ("--passages", pool, "--model", model, "--encoder", "none", "--out", folder, *quick)
    result = ltrag("fit", questions, *told)
    assert result.exit_code == 0, result.output
    return result, folder


def test_the_table_goes_to_stdout_and_what_was_kept_into_one_folder(fitted):
    result, folder = fitted
    assert result.stdout.startswith("kept ")
    assert "fitted on 24 questions, judged on 16 others" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100  # a long reason is wrapped on terminals
    assert "\n* always " in result.stdout  # this server counts no more tokens for a longer prompt
    assert "\n  always+gate " in result.stdout
    assert f"the pipeline is in {folder}" in result.stderr
    assert {path.name for path in folder.iterdir()} >= {"longtail.json", "calibration"}


def test_one_question_is_answered_with_what_was_kept(fitted, files, model):
    asked = ("answer", fitted[1], "--passages", files[1], "--model", model, "--json")
    for number in (7, 8):
        result = ltrag(*asked, "--question", f"who wrote book {number}?")
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert told["answer"] == f"Author {number}"
        assert told["refused"] is False
        assert len(told["passages"]) == 1


def test_a_refusal_is_the_saved_one_unless_another_limit_is_given(files, model, tmp_path):
    scale, scores = ScoreScale("product"), [*range(0, 100, 2)]
    wrongness = WrongnessCalibration.fit(scores, [score % 3 > 0 for score in scores], scale=scale)
    calibration = Calibration(SGICSettings(rounds=0), scale, wrongness)
    rag = LongTailRAG(World(load_llm(model)), LongTailSettings(), calibration=calibration)
    rag.refusing(0.0, "Ask a librarian.").save(tmp_path)
    asked = ("answer", tmp_path, "--passages", files[1], "--model", model, "--json")
    for limit, text in (((), "Ask a librarian."), ((0,), "Ask a librarian."), ((1,), "Author 7")):
        more = [word for one in limit for word in ("--refuse-p-wrong-above", one)]
        result = ltrag(*asked, "--question", "who wrote book 7?", *more)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["answer"] == text


def test_a_pipeline_that_searches_names_the_option_before_a_model_is_loaded(fitted):
    asked = ("answer", fitted[1], "--model", "openai:none@http://localhost:9", "--question", "who?")
    assert "give --passages" in wrong_usage(ltrag(*asked))


def test_wrong_usage_is_one_line_before_anything_is_asked(files, tmp_path):
    questions, pool = files
    told = ("fit", questions, "--passages", pool, "--out", tmp_path / "rag")
    assert "target_accuracy" in wrong_usage(ltrag(*told, "--target-accuracy", "2"))
    assert "target_accuracy" in wrong_usage(ltrag(*told, "--target-accuracy", "sometimes"))
    both = ("--target-accuracy", "0.5", "--budget", "0.5")
    assert "not both" in wrong_usage(ltrag(*told, *both))
    assert "give --passages" in wrong_usage(ltrag("fit", questions, "--out", tmp_path / "rag"))
    unknown = ltrag(*told, "--model", tmp_path, "--set", "gate.scorer=produkt")
    assert one_line(unknown).startswith("there is no scorer 'produkt'; did you mean product?")
    missing = ltrag("answer", tmp_path, "--passages", pool, "--question", "who?")
    assert "'ltrag fit'" in one_line(missing)
