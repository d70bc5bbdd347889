"""What the SGIC benchmarks write and compare, beside the report and figures by hand."""

import argparse
import json
import math
import re
import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest

from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.calibration import paired_bootstrap
from ltrag_plugins.sgic import read_run
from ltrag_plugins.sgic.loop import Session
from ltrag_plugins.training import Dataset, Example, finetune
from ltrag_plugins.types import Generation, Passage, Token
from tests.finetune_parts import tiny_llm
from tests.sgic_parts import THREE, asked, rights

COUNT = 12


def test_the_loop_writes_each_questions_figures_of_every_row_of_the_report(load, tmp_path, capsys):
    loop, compare = load("sgic_loop"), load("sgic_compare")
    found = [loop.Item(question, (True, False, False)) for question in asked(COUNT)]
    options = argparse.Namespace(
        variants="documents,answers", rounds=2, means=None, no_line=False, samples="equal",
        batch=8, out=tmp_path / "out", split="dev_test", source="uncertainty",
    )  # fmt: skip
    # every second question is right at once, the others after a look
    mending = rights(lambda i, n: i % 2 == 0 or n, lambda i, n: 0.8 if i % 2 == 0 or n else 0.4)
    models = {"llm": CachedLLM(mending, tmp_path / "cache.sqlite")}
    loop.table_5("nq", found, models, options)
    printed = capsys.readouterr().out
    rows = compare.read(tmp_path / "out" / "nq_documents.jsonl")
    # as many samples as the dearest row has calls: the first answer, 3 documents, 2 rounds
    assert {"direct", "2 rounds, last", "cut to 2, last", "6 samples, least uncertain"} <= {*rows}
    assert all([*one] == [f"q{i}" for i in range(COUNT)] for one in rows.values())
    assert [row.em for row in rows["direct"].values()] == [1, 0] * (COUNT // 2)
    assert {(row.em, row.contains) for row in rows["1 round, last"].values()} == {(1, 1)}
    assert {(row.calls, row.tokens) for row in rows["2 rounds, last"].values()} == {(6, 6 * 8)}
    assert all(row.ms > 0 for row in rows["direct"].values())
    for name in rows:
        assert f"{name}  " in printed or "by the drawn tokens" in name
    run = read_run(tmp_path / "out" / "nq_documents_run.jsonl")
    assert [len(one.right) for one in run] == [3] * COUNT
    assert [one.right[0] for one in run] == [True, False] * (COUNT // 2)
    assert {one.relevant for one in run} == {(True, False, False)}


def test_samples_are_also_chosen_by_the_probabilities_of_what_was_drawn(load, tmp_path):
    loop, compare = load("sgic_loop"), load("sgic_compare")
    found = [loop.Item(question, (True, False, False)) for question in asked(COUNT)]
    options = argparse.Namespace(
        variants="documents", rounds=0, means=None, no_line=False, samples=3,
        batch=8, out=tmp_path, split="dev_test", source="uncertainty",
    )  # fmt: skip
    asked_for = dict[str, int]()

    def write(prompt):  # each sample is less likely than the one before, where the model is surer
        n = asked_for[prompt] = asked_for.get(prompt, -1) + 1
        most, text = (0.5, 0.6, 0.7, 0.8)[n % 4], ("direct", "right", "wrong", "none")[n % 4]
        own = most if n % 4 == 0 else 0.4 - n % 4 / 10
        choices = ((text, math.log(own)), ("else", math.log(most)))
        token = Token(text, math.log(own), alternatives=choices)
        return Generation(text, (token,), prompt_tokens=5, completion_tokens=1)

    models = {"llm": CachedLLM(ScriptedLLM(write), tmp_path / "cache.sqlite")}
    loop.table_5("nq", found, models, options)
    rows = compare.read(tmp_path / "nq_documents.jsonl")
    ours, drawn = rows["3 samples, least uncertain"], rows["3 samples, by the drawn tokens"]
    assert {row.text for row in ours.values()} == {"none"}  # 0.8 against 0.7 and 0.6
    assert {row.text for row in drawn.values()} == {"right"}  # 0.3 against 0.2 and 0.1
    assert {(row.em, row.calls, row.tokens) for row in drawn.values()} == {(1, 3, 3 * 6)}


def test_the_loop_fits_on_questions_of_the_type_that_it_judges(load, tmp_path, monkeypatch):
    (tmp_path / "hotpotqa").mkdir()
    passages = [{"title": p.title or "Town", "text": p.text} for p in THREE]
    same = {"answers": ["right"], "gold_index": 0, "passages": passages}
    kinds = ("bridge", "comparison")
    rows = [{"id": i, "question": f"{kinds[i % 2]}? {i}", "type": kinds[i % 2], **same}
            for i in range(60)]  # fmt: skip
    for split, some in (("train", rows), ("dev_test", rows[:10])):
        (tmp_path / "hotpotqa" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, some)))
    monkeypatch.setenv("LTRAG_DATA", str(tmp_path))
    loop, llm = load("sgic_loop"), rights(lambda i, n: i % 4 == 0 or n, lambda i, n: 0.5 + n / 4)
    monkeypatch.setattr(loop, "model", lambda *_, **__: llm)
    for type, asked_of in (("comparison", {"comparison"}), ("", {*kinds})):
        before = len(llm.prompts)
        words = ("--sets", "hotpotqa", "--type", type, "--variants", "", "--rounds", "1")
        words += ("--fit", "24", "--cache", str(tmp_path / f"{type}.sqlite"))
        monkeypatch.setattr(sys, "argv", ["sgic_loop.py", *words])
        loop.main()
        told = " ".join(llm.prompts[before:])
        assert {kind for kind in kinds if f"Question: {kind}?" in told} == asked_of


def test_tuning_learns_from_no_question_that_the_loop_fits_on(load, tmp_path, monkeypatch):
    (tmp_path / "hotpotqa").mkdir()
    passages = [{"text": "t", "title": "T"}]
    same = {"question": "?", "answers": ["a"], "gold_index": 0, "passages": passages}
    rows = [{"id": i, **same} for i in range(30)]
    (tmp_path / "hotpotqa" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setenv("LTRAG_DATA", str(tmp_path))
    tune, distractors = load("sgic_tune"), load("distractors")
    fitted = [f"hotpotqa/{one.question.id}" for one in distractors.items("hotpotqa", "train", 12)]
    every = [q.id for q in tune.questions_of("hotpotqa", 0, 12)]
    assert {*every} == {f"hotpotqa/{i}" for i in range(30)} - {*fitted}
    assert len(every) == 18
    assert [q.id for q in tune.questions_of("hotpotqa", 5, 12)] == every[-5:]
    assert [q.id for q in tune.questions_of("hotpotqa", 25, 12)] == every


def test_a_tuned_model_is_asked_as_its_training_data_asks(load):
    papers, tune, long = load("papers"), load("sgic_tune"), [Passage("word " * 300)]
    paper = papers.RunFile.read("sgic-8")
    for run, data in paper.runs.items():
        words = shlex.split(data.tuned)
        told = {"paper": "--paper" in words, "rounds": int(words[words.index("--rounds") + 1])}
        asking = tune.asking(argparse.Namespace(**told))
        [word] = paper.words(run)
        asked = paper.cell(word).set.loop
        first, taught = (Session("Where?", long, one).prompt() for one in (asked, asking))
        assert first == taught
        assert word == "baseline" or asked == asking


@pytest.mark.parametrize(("steps", "taken"), [(None, [2 * 2, 2 * 4]), (7, [7, 7])])
def test_both_forms_end_after_the_same_steps_where_that_is_asked_for(
    load, steps, taken, smollm2, tmp_path
):
    options = argparse.Namespace(epochs=2, steps=steps, rate=1e-4, layers=0, batch=16)
    settings = replace(load("sgic_tune").settings_of(options), held_out=0)
    found = []

    def stop(step):
        found.append(step.steps)
        raise KeyboardInterrupt

    for rows in (30, 60):
        data = Dataset(tuple(Example(f"{i}?", "yes") for i in range(rows)))
        llm, told = tiny_llm(smollm2.tokenizer), {"settings": settings, "on_step": stop}
        with pytest.raises(KeyboardInterrupt):
            finetune(data, llm, out=tmp_path / f"{rows}", **told)
    assert found == taken


def test_two_runs_are_compared_question_by_question_in_whatever_order(load, tmp_path):
    compare = load("sgic_compare")

    def rows(right: str, order: range):
        return [compare.Row("direct", f"q{i}", "x", float(right[i]), 0.0, 1 + i, None, 2.0)
                for i in order]  # fmt: skip

    compare.write(rows("0011", range(4)), tmp_path / "deep" / "a.jsonl")
    compare.write(rows("0111", range(3, -1, -1)), tmp_path / "b.jsonl")
    a = compare.read(tmp_path / "deep" / "a.jsonl")["direct"]
    b = compare.read(tmp_path / "b.jsonl")["direct"]
    expected = paired_bootstrap([0, 1, 1, 1], [0, 0, 1, 1], level=0.95)
    assert compare.gain(a, b) == expected
    [head, line] = compare.table([(a, b)]).splitlines()
    assert re.split("  +", head.strip()) == [
        "EM", "gain of B in EM", "gain of B in F1", "calls", "ms",
    ]  # fmt: skip
    assert line.split() == [
        "direct", "0.500", "0.750", f"{0.25:+.3f}", f"({expected.low:+.3f}", "to",
        f"{expected.high:+.3f})", "+0.000", "(+0.000", "to", "+0.000)", "2.5", "2.5", "2", "2",
    ]  # fmt: skip
    other = {key: replace(row, tokens=9.0) for key, row in b.items()}
    [head, line] = compare.table([(a, other)]).splitlines()
    assert head.split()[-3:] == ["calls", "tokens", "ms"]
    assert line.split()[-6:] == ["2.5", "2.5", "-", "9", "2", "2"]
    with pytest.raises(SystemExit, match="1 questions are in one of the two alone"):
        compare.gain(a, {key: b[key] for key in ("q0", "q1", "q2")})


def test_a_run_is_compared_with_one_of_some_of_its_questions_on_these(
    load, tmp_path, monkeypatch, capsys
):
    compare = load("sgic_compare")

    def told(held: dict[str, float], others: dict[str, float]) -> list[str]:
        for name, answers in (("a", held), ("b", others)):
            rows = [compare.Row("direct", i, "x", 0.0, 0.0, 1, None, None, "", right)
                    for i, right in answers.items()]  # fmt: skip
            compare.write(rows, tmp_path / name)
        monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "a"), str(tmp_path / "b")])
        compare.main()
        return capsys.readouterr().out.splitlines()[2:]

    some, all_ = {"q2": 1.0, "q0": 0.0}, {"q0": 1.0, "q1": 1.0, "q2": 1.0}
    for a, b, gain in ((some, all_, "+0.500 (+0.000 to +1.000)"), (all_, some, "-0.500 (-1.000")):
        count, head, line = told(a, b)
        assert count == "2 questions, 95% intervals"
        assert head.split("  ")[-1].split() == ["calls"]
        assert "gain of B in contains" in head
        assert gain in line
    with pytest.raises(SystemExit, match="3 questions are in one of the two alone"):
        told(all_, {"q3": 1.0, "q0": 1.0})


def test_a_comparison_takes_the_questions_of_one_type(load, tmp_path):
    compare, path = load("sgic_compare"), tmp_path / "run.jsonl"
    types = {"q0": "bridge", "q1": "comparison", "q2": "bridge", "q3": ""}
    some = [compare.Row("direct", i, "x", 1.0, 1.0, 1, None, None, t) for i, t in types.items()]
    compare.write(some, path)
    assert [*compare.read(path)["direct"]] == [*types]
    assert [*compare.read(path, "bridge")["direct"]] == ["q0", "q2"]
    with pytest.raises(SystemExit, match="has no question of the type 'brigde'"):
        compare.read(path, "brigde")
    path.write_text('{"cell": "direct"}\n')
    with pytest.raises(SystemExit, match=r"is of another benchmark; name what sgic_loop\.py wrote"):
        compare.read(path)


def test_a_round_that_leaves_none_right_tells_of_the_wrong_alone(load):
    before, after = np.array([[0.5, 0], [0.4, 1]]), np.array([[0.6, 0], [0.2, 0]])
    moved, stayed, turned = load("sgic_documents").stayed(before, after).splitlines()
    assert moved == "  mended 0, spoiled 1, -0.500 (-1.000 to +0.000)"
    assert stayed == "  wrong in both 1, uncertainty 0.500 to 0.600, lower in 0"
    assert turned == "  turned wrong 1, uncertainty 0.400 to 0.200, lower in 1"
