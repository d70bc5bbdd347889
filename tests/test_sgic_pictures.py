"""The pictures of a run show its figures."""

import re
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from import_parts import python
from matplotlib.image import imread
from pictured_runs import RUN, one
from report_parts import run_folder

from ltrag_plugins.errors import InvalidInput, UnwritableArtifact
from ltrag_plugins.report import write_report
from ltrag_plugins.report.plots import BLUE as GOOD
from ltrag_plugins.report.plots import ORANGE as BAD
from ltrag_plugins.report.plots import QUIET
from ltrag_plugins.report.sgic_figures import analysis_pictures, attention_picture
from ltrag_plugins.sgic import write_run


def picture(run, folder, name: str, suffix: str = "png"):
    """That one of the pictures of an analysis."""
    [path] = [p for p in analysis_pictures(run, folder, formats=[suffix]) if p.stem == name]
    return path


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_each_picture_is_written_where_it_was_wanted(suffix, tmp_path):
    shares = {"first answer": [0.1, 0.2], "round 1": [0.3, 0.1]}
    paths = analysis_pictures(RUN, tmp_path, formats=[suffix])
    paths.append(attention_picture(shares, [True, False], tmp_path / f"attention.{suffix}"))
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for path in paths:
        assert path.read_bytes().startswith(starts[suffix])
    assert len({path.read_bytes() for path in paths}) == 5


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_character_that_no_picture_can_hold_is_shown_by_its_number(suffix, tmp_path):
    odd = "\x00 \ud83d \ufffe"
    paths = picture([replace(one, question=odd) for one in RUN], tmp_path, "paths", suffix)
    attention = attention_picture({odd: [0.5]}, [True], tmp_path / f"attention.{suffix}")
    for path in (paths, attention) if suffix == "svg" else ():
        ElementTree.parse(path)
        assert "[U+0000] [U+D83D] [U+FFFE]" in path.read_text(encoding="utf-8")


def test_a_chinese_question_has_lines_of_a_panels_width_and_warns_of_no_glyph(tmp_path):
    asked = "为什么" * 20
    run = [replace(one, question=asked) for one in RUN]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = picture(run, tmp_path, "paths", "svg")
        write_run(run, run_folder(tmp_path / "run") / "sgic_run.jsonl")
        write_report(tmp_path / "run", pictures_to=tmp_path / "p")
    lines = re.findall("<!-- (为.*) -->", paths.read_text(encoding="utf-8"))
    assert lines == [asked[:15], f"{asked[15:29]} …"] * len(RUN)


@pytest.mark.parametrize(("asked", "lines"), [
    ("who wrote the book Emma, and when was it?", ["who wrote the book Emma, and", "when was it?"]),
    ("who wrote 红楼梦\n and when?", ["who wrote 红楼梦 and when?"]),
])  # fmt: skip
def test_a_title_is_wrapped_between_words_and_keeps_their_spaces(asked, lines, tmp_path):
    path = picture([replace(one, question=asked) for one in RUN[:1]], tmp_path, "paths", "svg")
    drawn = re.findall("<!-- (.*) -->", path.read_text(encoding="utf-8"))
    assert [text for text in drawn if text in asked.replace("\n ", " ") and " " in text] == lines


def coloured(path, colour: str) -> np.ndarray:
    """Which pixels of a picture have this colour."""
    wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return np.abs(imread(path)[:, :, :3] - wanted).max(axis=2) < 0.01


def highest(mask: np.ndarray) -> int:
    """Pixels in the highest column, of the left two thirds: without the legend."""
    return int(mask[:, : mask.shape[1] * 2 // 3].sum(axis=0).max())


def test_bars_are_as_high_as_their_counts(tmp_path):
    # of 4 answers 3 stay right and 1 stays wrong; the lines of the upper half are thin
    run = [one("11", [0.1, 0.1])] * 3 + [one("00", [0.9, 0.9])]
    path = picture(run, tmp_path, "turns")
    good, bad = (coloured(path, colour)[-573:] for colour in (GOOD, BAD))
    assert highest(good) / highest(bad) == pytest.approx(3, rel=0.05)


def test_attention_bars_are_as_high_as_their_shares(tmp_path):
    path = attention_picture({"first": [0.1, 0.4]}, [True, False], tmp_path / "attention.png")
    below = slice(90, None)  # the legend stands above
    relevant, other = (coloured(path, colour)[below] for colour in (GOOD, QUIET))
    columns = [mask.sum(axis=0) for mask in (relevant, other)]
    heights = [np.median(column[column > 10]) for column in columns]  # axes are drawn thinner
    assert heights[1] / heights[0] == pytest.approx(4, rel=0.1)


def test_a_path_has_a_mark_for_each_round(tmp_path):
    # one right and three wrong answers, against one of each: three times as much orange
    few = picture([one("10", [0.2, 0.8])], tmp_path / "few", "paths")
    many = picture([one("1000", [0.2, 0.8, 0.5, 0.3])], tmp_path / "many", "paths")
    good = [int(coloured(path, GOOD).sum()) for path in (few, many)]
    bad = [int(coloured(path, BAD).sum()) for path in (few, many)]
    assert good[0] == pytest.approx(good[1], rel=0.1)
    legend = bad[0] / 2  # one mark of two stands in the legend
    assert bad[1] - bad[0] == pytest.approx(2 * legend, rel=0.35)


def test_each_question_has_its_place_and_of_many_ten_are_drawn(tmp_path):
    for count in (1, 4, 7, 12):
        path = picture([RUN[0]] * count, tmp_path, "paths", "svg")
        places = path.read_text().count("<!-- Where is Dirleton Castle, and -->")
        assert places == min(count, 10)


def test_what_cannot_be_drawn_is_left_out(tmp_path):
    single = one("1", [0.2], documents=(None, None))
    drawn = analysis_pictures([single], tmp_path / "deep" / "pictures")
    assert [path.name for path in drawn] == ["uncertainty.png", "paths.png"]
    drawn = analysis_pictures(RUN, tmp_path)
    names = ["uncertainty", "paths", "turns", "wrongness"]
    assert [path.name for path in drawn] == [f"{name}.png" for name in names]


def test_what_there_is_no_picture_of_is_named(tmp_path):
    path = tmp_path / "picture.png"
    (tmp_path / "file").touch()
    with pytest.raises(UnwritableArtifact, match="cannot write to"):
        analysis_pictures(RUN, tmp_path / "file" / "pictures")
    with pytest.raises(InvalidInput, match="1 labels"):
        attention_picture({"first": [0.1, 0.2]}, [True], path)
    with pytest.raises(InvalidInput, match="at least one panel"):
        attention_picture({}, [True], path)
    with pytest.raises(InvalidInput, match="no answers"):
        analysis_pictures([], path)
    assert not path.exists()


def test_the_callers_backend_is_left_alone(tmp_path):
    before = mpl.rcParams["backend"], dict(mpl.rcParams)
    analysis_pictures(RUN, tmp_path)
    assert (mpl.rcParams["backend"], dict(mpl.rcParams)) == before


@pytest.mark.parametrize(("module", "package", "extra"), [
    ("ltrag_plugins.report.sgic_figures", "matplotlib", "plots"),
    ("ltrag_plugins.sgic.attention", "torch", "local"),
])  # fmt: skip
def test_without_a_package_an_analysis_goes_on_and_the_command_that_installs_it_is_named(
    module, package, extra
):
    told = python(
        f"""
        import ltrag_plugins.sgic.analysis
        from ltrag_plugins.errors import MissingExtra
        try:
            import {module}
        except MissingExtra as error:
            print(error)
        """,
        without=(package,),
    )
    assert told.endswith(f"pip install 'ltrag-plugins[{extra}]'")
