"""The examples run to their ends, small, as a reader would start them."""

import logging
import runpy
import sys
from pathlib import Path

import pytest

from ltrag_plugins.gece.store import DecisionStore

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def ran(monkeypatch, capsys):
    """Runs an example in this process, which has the large packages; gives what it printed."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.syspath_prepend(EXAMPLES)
    yield run
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)
    # an example keeps the calibrator quiet; the tests that come after it listen
    logging.getLogger("ltrag_plugins.sgic.calibrator").setLevel(logging.NOTSET)


def test_the_demo_shows_what_each_part_adds_and_answers_in_both_frameworks(ran, tmp_path):
    printed = ran("demo.py", "--questions", 20, "--ask", 1, "--dtype", "float32", "--out", tmp_path)
    rows = {line.strip("* ").split()[0] for line in printed.splitlines() if line.strip()}
    assert rows >= {"never", "always", "reranked", "gate", "reranker", "calibrator"}
    table = (tmp_path / "table.txt").read_text()
    assert "judged on" in table
    for name in ("LangChain", "LlamaIndex"):
        assert f"  {name}" in printed
    assert (tmp_path / "rag" / "longtail.json").exists()


def test_calibrate_fits_keeps_and_answers_in_both_frameworks(ran, tmp_path):
    printed = ran("calibrate.py", "--fit", 2, "--questions", 1, "--out", tmp_path)
    assert "how many dominoes" in printed
    assert "below 55 passes" in " ".join(printed.replace("│", " ").split())
    assert "round 1:" in printed
    assert (tmp_path / "sgic.json").exists()


def test_rerank_trains_a_head_and_answers_in_both_frameworks(ran, tmp_path):
    sizes = ["--fit", 3, "--questions", 1, "--max-calls", 6]
    printed = ran("rerank.py", *sizes, "--out", tmp_path)
    assert "calls of 6 were made" in printed
    assert "The first passage holds an accepted answer" in printed
    assert (tmp_path / "dur.safetensors").exists()


def test_the_agent_gives_up_after_a_bounded_number_of_turns(ran):
    printed = ran("agent_loop.py", "--questions", 1, "--turns", 2, "--sure-below", 0)
    assert "turn 2: reads 2 passages" in printed
    assert "turn 3" not in printed
    assert "gives up: I looked, and I am not sure." in printed


def test_the_agent_stops_as_soon_as_it_is_sure(ran):
    printed = ran("agent_loop.py", "--questions", 1, "--sure-below", 1.01)
    assert "turn 2" not in printed
    assert "gives up" not in printed


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_an_application_starts_with_documents_and_a_server_and_learns_from_what_it_is_asked(
    ran, tmp_path, real_server, framework
):
    (tmp_path / "village.txt").write_text("Nora Baird keeps the bees.\n\nThe mill is Olaf Berg's.")
    (tmp_path / "town.md").write_text("The bakery opens at six in the morning.")
    questions = tmp_path / "log"
    questions.write_text("Who keeps the bees?\nWho has the mill?\n\nWhen does the bakery open?\n")
    given = ["--documents", tmp_path, "--questions", questions, "--store", tmp_path / "app.sqlite"]
    for asked in (2, 3):
        printed = ran(
            "start_from_nothing.py",
            *["--framework", framework, "--server", real_server, "--limit", asked + 1, *given],
        )
        assert "Who keeps the bees?\n  " in printed
        assert " of 20 questions compared" in printed
    with DecisionStore(tmp_path / "app.sqlite") as store:
        assert len(store.records(0, 10)) == 5, "the second run goes on where the first ended"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--documents", "no text in {gone}; name a folder of .txt and .md files"),
        ("--questions", "No such file or directory: '{gone}'"),
    ],
)
def test_an_application_names_what_it_cannot_read(ran, tmp_path, capsys, option, says):
    gone = tmp_path / "gone"
    with pytest.raises(SystemExit, match="2"):
        ran("start_from_nothing.py", option, gone, "--store", tmp_path / "app.sqlite")
    assert says.format(gone=gone) in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("calibrate.py", "--out"),
        ("rerank.py", "--out"),
        ("demo.py", "--out"),
        ("vector_store.py", "--folder"),
    ],
)
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_what_is_no_folder_is_refused_before_the_work(ran, tmp_path, capsys, name, option, place):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        ran(name, option, tmp_path / place)
    printed = capsys.readouterr()
    assert f"cannot write to {tmp_path / place}: " in printed.err
    assert printed.out == ""
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("score", [-1, 101])
def test_a_score_that_no_answer_has_is_refused_before_the_work(ran, capsys, score):
    with pytest.raises(SystemExit, match="2"):
        ran("calibrate.py", "--refuse-above", score)
    assert "--refuse-above takes 0 to 100" in capsys.readouterr().err


def test_an_application_starts_with_nothing_at_all(ran, tmp_path):
    printed = ran("start_from_nothing.py", "--limit", 1, "--store", tmp_path / "app.sqlite")
    assert "when was the worlds first laptop computer introduced" in printed
    assert "learning: " in printed
