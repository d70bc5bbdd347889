"""The commands for DUR's tables: what they run, and what they print, beside a table by hand."""

import gzip
import json
import sys
from itertools import product
from pathlib import Path

import pytest

from ltrag_plugins.dur import DURSettings, DURTrainer
from ltrag_plugins.dur.shots import ShotRanker
from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.dur_parts import COLOURS, Nonsense, houses, moody_llm

SETS = ("ethos_national_origin", "tweet_eval_stance_climate")
PARTS = {"candidates": (100, 9), "validation": (1, 6), "dev_test": (50, 5)}


@pytest.fixture
def grid(load):
    return load("dur_grid")


def scores(value: float) -> dict[str, float | None]:
    alike = dict.fromkeys(("accuracy", "hard", "easy"), value)
    return {**alike, "macro_f1": None, "p_gold": None}


def cells(path: Path, *rows: tuple) -> Path:
    """A file of results: data set, ranker and seed, accuracy, and the rightness by question."""
    lines = [
        {"key": ["m", data, 4, name, seed], "scores": scores(value), "right": right}
        for data, name, seed, value, right in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_our_rows_stand_beside_the_papers(grid, tmp_path, capsys):
    none: list[int] = []
    out = cells(
        tmp_path / "grid.jsonl",
        ("ethos", "PromptPG", 0, 0.5, none),
        ("ethos", "PromptPG", 1, 0.7, none),
        ("pubmedqa", "PromptPG", 0, 0.25, none),
        ("ethos", "UR", 0, 0.75, none),
        ("climate", "UR", 0, 1.0, none),  # no data set of this table
    )
    grid.paper_table(out, grid.PAPER["dur-2"])
    printed = capsys.readouterr().out.splitlines()
    # mean of 50 and 70, deviation sqrt(200) = 14.1; the mean over data sets (60 + 25) / 2
    assert printed[2:8] == [
        "m",
        "",
        "| paper | ranker | ethos (4) | pubmedqa (4) | mean |",
        "| --- | --- | ---: | ---: | ---: |",
        "| PromptPG | PromptPG | 60.0±14.1 (77.74) | 25.0 (78.47) | 42.5 |",
        "| UR | UR | 75.0 (81.21) | - (80.10) | - |",
    ]


def test_the_best_baseline_is_the_best_by_data_set(grid, tmp_path, capsys):
    four = grid.PAPER["dur-3"].data
    rows = [(data, "BM25", 0, 0.1 * (i + 1), []) for i, data in enumerate(four)]
    rows += [(data, "Rerank", 0, 0.25, []) for data in four]
    grid.paper_table(cells(tmp_path / "grid.jsonl", *rows), grid.PAPER["dur-3"])
    [line] = [x for x in capsys.readouterr().out.splitlines() if x.startswith("| Best")]
    told = [entry.strip() for entry in line.split("|")[3:-1]]
    shown = ["25.0 (78.93)", "25.0 (83.22)", "30.0 (55.00)", "40.0 (62.13)", "30.0 (69.82)"]
    assert told == shown


def test_a_head_from_other_data_is_held_against_the_best_of_each_set(grid, tmp_path, capsys):
    half, no, yes = [1, 1, 0, 0], [0] * 4, [1] * 4
    rows = [
        *(("climate", name, 0, sum(right) / 4, right) for name, right in (
            ("DUR; from ethos", half), ("BM25", half), ("Rerank", no), ("DUR", no),
        )),
        *(("trex", name, 0, sum(right) / 4, right) for name, right in (
            ("DUR; from ethos", yes), ("BM25", no), ("Rerank", yes),
        )),
    ]  # fmt: skip
    grid.paper_table(cells(tmp_path / "grid.jsonl", *rows), grid.PAPER["dur-3"])
    *_, best, own = capsys.readouterr().out.splitlines()
    assert best == (
        "DUR; from ethos 0.750, the best baseline of each 0.750: "
        "+0.000 (+0.000 to +0.000) (95 %, by question; climate, trex)"
    )
    assert own.startswith("DUR; from ethos 0.500, DUR 0.000: +0.500 (")
    assert own.endswith("(95 %, by question; climate)")  # trex has no head of its own


def test_what_turns_on_a_ladder_is_counted_as_in_every_ladder_of_three_rungs(grid):
    everything = [*product((0, 1), repeat=3)]  # each ladder once, one a question
    uncertain, hard, of_all = grid.turned([*zip(*everything[:-1], strict=True)])
    assert uncertain == [6 / 7]  # all but 000; 111 is left out
    assert hard == [3 / 6]  # 001, 010 and 011 begin wrong
    assert of_all == [4 / 7]
    assert grid.turned([]) == ([], [], [])
    assert grid.turned([[1, 0], [1, 0]]) == ([0.0], [], [0.5])


def test_figure_3_reads_its_ladder_row_by_row(grid, tmp_path, capsys):
    right = [[0, 1, 0, 1], *[[1, 1, 0, 0]] * 5]
    rows = [("nq", f"BM25; {n} shots", 0, 0.5, right[n]) for n in range(6)]
    grid.paper_table(cells(tmp_path / "grid.jsonl", *rows), grid.PAPER["dur-fig-3"])
    printed = capsys.readouterr().out
    assert "| uncertain |  | 50.0 | - (21.84) |" in printed  # the first and the last question
    assert "| of these hard |  | 50.0 | - (87.18) |" in printed
    assert "| of all hard |  | 50.0 | - (43.68) |" in printed


def test_a_head_is_held_against_others_on_the_hard_questions_alone(grid, tmp_path, capsys):
    rows = [
        ("nq", "zero-shot", 0, 0.5, [1, 0, 1, 0]),
        ("nq", "DUR", 0, 0.5, [0, 1, 0, 1]),
        ("nq", "BM25", 0, 0.5, [1, 0, 1, 0]),
    ]
    grid.paper_table(cells(tmp_path / "grid.jsonl", *rows), grid.PAPER["dur-fig-4"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("DUR 1.000, BM25 0.000: +1.000 (+1.000 to +1.000) (95 %, by hard question; nq)")


def test_every_ranker_of_the_tables_is_one_that_can_be_run(grid):
    known = {*grid.PLAIN, *grid.TRAINED}
    for shown in grid.PAPER.values():
        names = [name for row in shown.rows for name in row.ranker.split(",")]
        assert {grid.parts(name)[0] for name in names} <= known
        assert {grid.parts(name)[3] for name in names} <= {None, *grid.DATA}
        widths = {len(row.figures.split()) for row in shown.rows}
        assert widths <= {0, len(shown.data), len(shown.data) + 1}
    assert grid.parts("DUR; untrained; 3 shots") == ("DUR; untrained", 3, None, None)
    assert grid.parts("UR; 10 preselected; from ethos") == ("UR", None, 10, "ethos")


@pytest.fixture
def small(grid, monkeypatch, tmp_path):
    """The grid over a few houses and a model that answers by rule."""
    for number, folder in enumerate(SETS):
        (tmp_path / folder).mkdir()
        for part, (first, count) in PARTS.items():
            questions = houses(1000 * number + first, count)
            rows = [{"id": q.id, "question": q.text, "answers": q.answers} for q in questions]
            told = "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / folder / f"{part}.jsonl").write_text(told)
    llm, out = moody_llm(), tmp_path / "runs/grid.jsonl"
    monkeypatch.setenv("LTRAG_DATA", str(tmp_path))
    monkeypatch.setattr(grid, "embedded", lambda **_: llm)
    monkeypatch.setattr(grid, "embedded_encoder", Nonsense)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["dur_grid.py", *words, "--out", str(out)])
        grid.main()
        return [json.loads(line) for line in out.read_text().splitlines()]

    return run, llm


def test_every_ranker_is_judged_by_the_answer_itself(grid, small, monkeypatch):
    run, _ = small
    says_all = ScriptedLLM(lambda _: ", ".join(COLOURS))
    monkeypatch.setattr(grid, "embedded", lambda **_: says_all)
    found = run("--data", "climate", "--seeds", "1", "--rankers", "BM25,DUR script")
    assert {reward for cell in found for reward in cell.get("reward", ())} == {1.0}  # in training
    assert {cell["scores"]["accuracy"] for cell in found} == {0.0}


def test_a_table_is_run_once_and_then_read(small, capsys):
    run, llm = small
    words = ("--paper", "dur-1", "--data", "climate", "--rankers", "BM25,Rerank,SuRe")
    found = run(*words)
    assert [cell["key"][3] for cell in found] == ["zero-shot", "BM25", "Rerank", "SuRe"]
    for cell in found:
        assert cell["scores"]["accuracy"] == sum(cell["right"]) / 5
    printed = capsys.readouterr().out.splitlines()
    [line] = [line for line in printed if line.startswith("| Rerank |")]
    assert (
        line
        == f"| Rerank | Rerank | {20 * sum(found[2]['right']):.1f} (83.22±0.32) | - (73.43±1.01) |"
    )
    for wording in ("in order: first the one", "most plausible answers"):  # Rerank's, SuRe's
        assert sum(wording in prompt for prompt in llm.prompts) == 5
    asked = len(llm.prompts)
    assert run(*words) == found
    assert len(llm.prompts) == asked


def test_a_run_goes_on_in_a_packed_file_and_a_cell_of_two_parts_counts_once(grid, small, capsys):
    run, llm = small
    plain = run("--data", "climate", "--limit", "0", "--seeds", "1", "--rankers", "BM25")
    out = Path(sys.argv[-1])
    packed = out.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(out.read_bytes() * 2))  # parts that were joined
    out.unlink()
    printed = capsys.readouterr().out
    asked = len(llm.prompts)
    sys.argv[-1] = str(packed)
    grid.main()
    table = capsys.readouterr().out
    assert printed.endswith(table)
    assert len(llm.prompts) == asked
    sys.argv[sys.argv.index("BM25")] = "nearest"
    grid.main()
    cells = [*map(json.loads, gzip.decompress(packed.read_bytes()).splitlines())]
    assert [cell["key"][2:4] for cell in cells[-2:]] == [[5, "BM25"], [5, "nearest"]]
    assert cells[:-1] == plain * 2


def test_a_head_that_learned_elsewhere_ranks_the_examples_of_this_data_set(
    grid, small, monkeypatch
):
    run, llm = small
    heads = []
    learned = ShotRanker.learned
    monkeypatch.setattr(
        ShotRanker, "learned", lambda *args, **more: heads.append(args) or learned(*args, **more)
    )
    run("--paper", "dur-3", "--data", "climate", "--rankers", "UR; from ethos", "--seeds", "1")
    [(ranker, candidates)] = heads
    settings = grid.replace(DURSettings.paper(), preselect="none", format=grid.FORMATS["QO-A"])
    by_hand = DURTrainer(Nonsense(), llm, settings=settings)
    result = by_hand.fit(grid.split("ethos", "candidates"), grid.split("ethos", "validation"))
    assert ranker.head.weight.tobytes() == result.ranker.head.weight.tobytes()
    assert candidates == grid.split("climate", "candidates")


def test_a_loss_that_dies_away_is_a_small_share_of_the_first_five(grid, small, capsys):
    run, _ = small
    words = ("--paper", "dur-fig-9", "--data", "climate", "--rankers", "DUR", "--seeds", "1")
    cell = run(*words)[-1]
    out = Path(sys.argv[-1])
    cell["loss"] = [-1.0, 3.0, -2.0, 1.0, -3.0, 1.0, -1.0, 1.0, -1.0, 1.0, *[0.5] * 5, *[0.25] * 30]
    out.write_text(json.dumps(cell) + "\n")
    capsys.readouterr()
    run(*words, "--table")
    shares = [line for line in capsys.readouterr().out.splitlines() if "| DUR |" in line]
    assert [line.split(" | ")[2] for line in shares] == ["50.0", "25.0", "12.5"]
