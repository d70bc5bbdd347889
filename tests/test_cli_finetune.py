"""`ltrag sgic finetune` and `--adapter`, as a user meets them."""

import json

import pytest
from typer.testing import CliRunner

from ltrag_plugins.cli import app
from ltrag_plugins.cli.models import load_llm
from ltrag_plugins.types import GenerationSettings
from tests.finetune_parts import TAUGHT, tiny

QUICK = ["--steps", "2", "--batch", "2", "--held-out", "0.25"]


def ltrag(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def base(smollm2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    for part in (tiny(), smollm2.tokenizer):
        part.save_pretrained(folder)
    return folder


@pytest.fixture
def data(tmp_path):
    def line(i, prompt, target):
        roles = {"user": prompt, "assistant": target}
        return {"messages": [{"role": r, "content": c} for r, c in roles.items()], "id": f"q{i}"}

    path = tmp_path / "data.jsonl"
    lines = [line(i, *pair) for i, pair in enumerate([*TAUGHT.items(), ("word " * 99, "yes")])]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_it_trains_tells_what_it_did_and_the_adapter_goes_with_the_model(base, data, tmp_path):
    out = tmp_path / "adapter"
    done = ltrag(
        "sgic", "finetune", data, "--model", base, "--out", out, "--max-tokens", 90, *QUICK
    )
    assert done.exit_code == 0, done.output
    assert (
        done.stderr
        == f"ltrag: the adapter is in {out}; use it with --model {base} --adapter {out}\n"
    )
    assert "2 steps over 3 examples" in done.stdout
    assert "left out as too long: q4 (" in done.stdout
    plain, tuned = load_llm(str(base)), load_llm(f"{base}+adapter:{out}")
    assert plain.name != tuned.name
    again = ltrag(
        "sgic",
        "finetune",
        data,
        "--model",
        base,
        "--out",
        out,
        "--max-tokens",
        90,
        *QUICK,
        "--json",
    )
    told = json.loads(again.stdout)
    assert (told["examples"], told["held_out"], told["steps"]) == (3, 1, 2)
    assert [point["step"] for point in told["validation"]] == [0, 2]
    passages = tmp_path / "passages.jsonl"
    passages.write_text('{"text": "Emma is a novel by Jane Austen."}\n')
    asked = ["sgic", "answer", passages, "--question", "Who wrote Emma?", "--rounds", "1", "--json"]
    answered = ltrag(*asked, "--model", base, "--adapter", out)
    assert answered.exit_code == 0, answered.output


def test_the_whole_model_is_a_model_like_any_other(base, data, tmp_path):
    out = tmp_path / "model"
    done = ltrag(
        "sgic", "finetune", data, "--model", base, "--out", out, "--method", "full", *QUICK
    )
    assert done.stderr.endswith(f"use it with --model {out}\n")
    assert load_llm(str(out)).generate(["Who wrote Emma?"], GenerationSettings(max_tokens=2))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "openai:any@http://localhost:1"], "is a server, whose weights cannot"),
        (["--batch", "4", "--micro-batch", "3"], "micro_batch 3 does not divide batch 4"),
        (["--learning-rate", "0"], "learning_rate is 0.0; it must be a number above 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_one_line(data, tmp_path, words, told):
    done = ltrag("sgic", "finetune", data, "--out", tmp_path / "out", *words)
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert told in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"messages": []}\n')
    done = ltrag("sgic", "finetune", path, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "line 1" in done.stderr


def test_an_adapter_needs_local_weights_that_are_named_and_a_folder_that_is_there(tmp_path):
    asked = ["sgic", "answer", tmp_path / "p.jsonl", "--question", "who?"]
    for words, told in (
        (["--adapter", tmp_path], "--adapter is for local weights"),
        (["--adapter", tmp_path, "--model", "openai:x@http://localhost:1"], "is for local weights"),
        (["--adapter", tmp_path / "gone", "--model", "embedded"], "there is no folder"),
    ):
        done = ltrag(*asked, *words)
        assert done.exit_code == 2
        assert told in " ".join(done.stderr.replace("│", " ").split())
