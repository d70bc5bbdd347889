"""`ltrag calibrate finetune`, and its adapter as a part of MODEL, as a user meets them."""

import json
import re

import pytest
from cli_parts import ltrag, one_line

from ltrag_plugins.cli.options import load_llm
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.types import GenerationSettings
from tests.finetune_parts import TAUGHT, tiny

QUICK = ["--steps", "2", "--batch", "2", "--set", "held_out=0.25"]


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
    told = ["sgic", "finetune", data, "--model", base, "--out", out, "--set", "max_tokens=90"]
    done = ltrag(*told, *QUICK)
    assert done.exit_code == 0, done.output
    tuned_name = f"{base}+adapter:{out}"
    assert done.stderr == f"ltrag: the adapter is in {out}; use it with --model {tuned_name}\n"
    assert re.search(r"^steps +2$", done.stdout, re.MULTILINE)
    assert re.search(r"^left_out +id q4, tokens ", done.stdout, re.MULTILINE)
    plain, tuned = load_llm(str(base)), load_llm(tuned_name)
    assert plain.name != tuned.name
    fast = TransformersLLM.load(base, dtype="fast", adapter=out)
    assert load_llm(f"{base}+fast+adapter:{out}").name == fast.name
    assert load_llm(f"{base}+fast").name == TransformersLLM.load(base, dtype="fast").name
    again = ltrag(*told, *QUICK, "--json")
    found = json.loads(again.stdout)
    assert (found["examples"], found["held_out"], found["steps"]) == (3, 1, 2)
    assert [point["step"] for point in found["validation"]] == [0, 2]
    passages = tmp_path / "passages.jsonl"
    passages.write_text('{"text": "Emma is a novel by Jane Austen."}\n')
    asked = ["sgic", "answer", passages, "--question", "Who wrote Emma?", "--rounds", "1", "--json"]
    answered = ltrag(*asked, "--model", tuned_name)
    assert answered.exit_code == 0, answered.output


def test_the_whole_model_is_a_model_like_any_other(base, data, tmp_path):
    out = tmp_path / "model"
    told = ["sgic", "finetune", data, "--model", base, "--out", out, "--set", "method=full"]
    done = ltrag(*told, *QUICK)
    assert done.stderr.endswith(f"use it with --model {out}\n")
    assert load_llm(str(out)).generate(["Who wrote Emma?"], GenerationSettings(max_tokens=2))


def test_a_server_or_a_broken_line_is_no_start(data, tmp_path):
    server, out = "openai:any@http://localhost:1", tmp_path / "out"
    line = one_line(ltrag("sgic", "finetune", data, "--out", out, "--model", server))
    assert line.startswith(f"{server} is a server, whose weights cannot")
    data.write_text('{"messages": []}\n')
    assert "line 1" in one_line(ltrag("sgic", "finetune", data, "--out", out))
    assert not out.exists()
