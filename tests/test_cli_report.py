"""`ltrag report`, on a run that `ltrag evaluate` wrote with a real HTTP server."""

import pytest
from cli_parts import KNOWN, book, lines_file, ltrag, one_line, page, write
from import_parts import python
from openai_server import openai_server
from report_parts import Parsed, cells, run_folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    lines_file(folder / "first.jsonl", *map(book, range(10)))
    lines_file(folder / "others.jsonl", *map(book, range(10, 40)))
    lines_file(folder / "pool.jsonl", *map(page, range(40)))
    out = folder / "run"
    with openai_server(write) as (url, _):
        result = ltrag(
            "evaluate", folder / "first.jsonl", "--out", out, "--model", f"openai:scripted@{url}",
            "--passages", folder / "pool.jsonl", "--labelled", folder / "others.jsonl",
            "--gate", "fit", "--rate", 0.5, "--metrics", "em,f1", "--set", "trace=true",
            env={"OPENAI_API_KEY": "not-a-secret"},
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    return out


def test_it_prints_where_the_page_is_and_nothing_else(run):
    result = ltrag("report", run)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{run / 'report.html'}\n"
    rows = Parsed(run / "report.html").rows("results")
    assert list(rows) == ["direct", "single", "single+gate"]
    assert float(rows["direct"][0]) == sum(f"who wrote book {i}?" in KNOWN for i in range(10)) / 10


def test_the_gates_decisions_and_steps_are_in_the_page(run, tmp_path):
    ltrag("report", run, "--out", tmp_path / "page.html")
    page = Parsed(tmp_path / "page.html")
    for place, question in enumerate(page.data("index")["questions"]):
        gated = question["r"]["2"]
        known = question["q"] in KNOWN
        assert gated["d"]["on"] == (not known)
        steps = page.data(f"traces-{question['t']}")[str(place)]["2"]
        shown = ["asked"] + ["fetched", "asked"] * (not known)
        assert [next(iter(step)) for step in steps] == shown


def test_page_and_pictures_are_written_where_they_are_wanted(run, tmp_path):
    out, pictures = tmp_path / "new" / "page.html", tmp_path / "p"
    result = ltrag("report", run, "--out", out, "--pictures", pictures, "--compare", "single")
    assert result.exit_code == 0, result.output
    found = {path.name for path in pictures.iterdir()}
    assert {"cost-calls.png", "rate-single-2b-gate.svg", "scores-gate.png"} <= found
    assert f"{len(found)} pictures are in" in result.stderr
    assert "gain over single" in Parsed(out).words()


def test_an_unfinished_run_is_reported_and_said_to_be(tmp_path):
    result = ltrag("report", run_folder(tmp_path / "run", cells() | {"ircot": []}))
    assert result.exit_code == 0
    assert "the run is not finished: ircot" in result.stderr


def test_a_script_that_the_font_of_the_pictures_lacks_is_no_warning(tmp_path):
    records = cells()
    records["single+漢"] = records.pop("single+gate")
    result = ltrag("report", run_folder(tmp_path / "run", records))
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("ltrag: the page has ")


@pytest.mark.parametrize(("more", "said"), [
    (["{run}", "--compare", "nobody"], "no row 'nobody'"),
    (["{run}", "--out", "{place}"], "it is a folder"),
    (["{run}", "--pictures", "{place}/file/p"], "cannot write to"),
    (["{place}"], "there is no run.json"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_line(run, tmp_path, more, said):
    (tmp_path / "file").write_text("")
    assert said in one_line(ltrag("report", *(s.format(run=run, place=tmp_path) for s in more)))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_a_package_it_names_the_command_that_installs_it(package):
    told = python(
        """
        from ltrag_plugins.errors import MissingExtra
        try:
            from ltrag_plugins.report import write_report
        except MissingExtra as error:
            print(error)
        """,
        without=(package,),
    )
    assert f"{package!r}" in told
    assert "pip install 'ltrag-plugins[report]'" in told
