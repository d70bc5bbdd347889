"""The page of a run: its figures, what strangers' text does to it, and what is missing."""

import hashlib
import json
import os
import re
import subprocess
from base64 import b64encode
from dataclasses import asdict, replace
from importlib.resources import files
from itertools import combinations, product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.image import imread
from matplotlib.text import Text
from pictured_runs import HISTORY, RUN
from report_parts import (
    HOSTILE,
    KNOWN,
    PASSAGE,
    SCORES,
    Parsed,
    cells,
    decision,
    record,
    run_folder,
)
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

from ltrag_plugins.errors import BadRecord, InvalidInput, UnreadableArtifact, UnwritableArtifact
from ltrag_plugins.evaluate import summarize
from ltrag_plugins.evaluate.folder import read_run_folder
from ltrag_plugins.report import write_report
from ltrag_plugins.report.escaping import script_json, slug, visible
from ltrag_plugins.report.figures import pictures
from ltrag_plugins.report.listing import listing
from ltrag_plugins.report.plots import as_percent, canvas, label_points, percent, styled
from ltrag_plugins.sgic import write_run


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Parsed:
    return Parsed(write_report(run_folder(tmp_path_factory.mktemp("run"))).page)


class TestGates:
    """What the pictures of gates and of calibration show, read off their lines, marks and bars."""

    @pytest.fixture
    def drawn(self, tmp_path):
        def drawn(records) -> dict[str, tuple[Axes, str]]:
            """The upper axes of each picture, and its caption."""
            run = read_run_folder(run_folder(tmp_path / str(len([*tmp_path.iterdir()])), records))
            found = pictures(run, summarize(run.complete))
            with styled():
                some = [*found["gates"], *found["calibration"]]
                return {one.name: (one.figure.axes[0], one.caption) for one in some}

        return drawn

    def line(self, axes: Axes, label: str) -> list[tuple[float, float]]:
        [found] = [one for one in axes.lines if one.get_label() == label]
        return list(zip(*map(np.ndarray.tolist, found.get_data()), strict=True))

    def named(self, axes: Axes) -> dict[str, tuple[float, float]]:
        return {label.get_text(): label.xy for label in axes.texts}

    def test_the_curve_is_that_of_every_threshold_tried_alone(self, drawn):
        found = cells()
        single, direct = ([r.scores["em"] for r in found[name]] for name in ("single", "direct"))
        both = list(zip(single, direct, strict=True))
        tried = set()
        for threshold in (*SCORES, 2.0):
            retrieve = [score >= threshold for score in SCORES]
            answers = [b[0] if r else b[1] for b, r in zip(both, retrieve, strict=True)]
            tried.add((sum(retrieve) / 10, round(sum(answers) / 10, 9)))
        curve = self.line(drawn(found)["rate-single-2b-gate"][0], "every threshold")
        assert {(rate, round(accuracy, 9)) for rate, accuracy in curve} == tried
        assert len(curve) == len(tried)
        assert [rate for rate, _ in curve] == sorted(rate for rate, _ in curve)

    @pytest.mark.parametrize("more", [
        {"error": "ModelFailed: late"},
        {"decision": decision(1.0, True) | {"score": None}},  # as where the gate's model failed
    ])  # fmt: skip
    def test_a_question_without_a_score_of_the_gate_is_no_point_of_the_curve(self, drawn, more):
        found = cells()
        found["single+gate"][3] = record(3, False, **more)
        axes = {name: one for name, (one, _) in drawn(found).items()}
        assert any("wrong: 6" in one.get_label() for one in axes["scores-gate"].patches)
        assert any("right: 3" in one.get_label() for one in axes["scores-gate"].patches)
        curve = self.line(axes["rate-single-2b-gate"], "every threshold")
        without = [i for i in range(10) if i != 3]
        assert curve[0] == (0.0, pytest.approx(np.mean([KNOWN[i] for i in without])))
        assert curve[-1][0] == 1.0

    def test_curve_chord_and_marks_are_of_the_same_questions(self, drawn):
        found = cells()
        found["single+gate"][3] = record(3, False, error="ModelFailed: late")
        axes, caption = drawn(found)["rate-single-2b-gate"]
        named = self.named(axes)
        for label in ("every threshold", "by chance"):
            line = self.line(axes, label)
            assert line[0] == pytest.approx(named["never"])
            assert line[-1] == pytest.approx(named["always"])
        # the gate's answers are those of the two, so its mark is on its curve
        assert pytest.approx(named["gate"]) in self.line(axes, "every threshold")
        assert "Without 1 of 10 questions" in caption
        assert len(axes.containers) == len(named)  # an interval each

    def test_without_direct_answers_there_is_a_point_and_no_curve(self, drawn):
        found = cells()
        del found["direct"]
        axes, caption = drawn(found)["rate-single-2b-gate"]
        assert caption.startswith("60% of the questions retrieve behind the gate.")
        always = np.mean([r.scores["em"] for r in found["single"]])
        own = np.mean([r.scores["em"] for r in found["single+gate"]])
        assert self.named(axes) == {"gate": (0.6, own), "always": (1.0, pytest.approx(always))}
        assert "every threshold" not in [line.get_label() for line in axes.lines]

    def test_a_gate_with_a_seed_is_held_against_its_method_of_that_seed(self, drawn):
        found = cells()
        seeded = {"direct": found["direct"], "x@1": found["single"], "x+g@1": found["single+gate"]}
        axes, _ = drawn(seeded)["rate-x-2b-g-40-1"]
        assert self.line(axes, "every threshold")[-1] == pytest.approx(self.named(axes)["always"])

    def test_the_scores_are_split_by_the_direct_answer(self, drawn):
        axes, caption = drawn(cells())["scores-gate"]
        assert f"AUROC {roc_auc_score([not k for k in KNOWN], SCORES):.2f}" in caption
        [[threshold, _]] = [line.get_xdata() for line in axes.lines]
        assert 0.4 < threshold < 0.55
        for kind, name in ((True, "right"), (False, "wrong")):
            scores = [s for s, known in zip(SCORES, KNOWN, strict=True) if known is kind]
            label = f"direct answer {name}: {len(scores)}"
            [bars] = [one for one in axes.patches if one.get_label() == label]
            values, edges, _ = bars.get_data()
            assert (values * len(scores)).tolist() == pytest.approx(np.histogram(scores, edges)[0])

    @pytest.mark.parametrize("other", [0.3, 0.1 + 0.2, 0.3 + 1e-12])
    def test_scores_that_differ_by_rounding_alone_are_drawn_together(self, drawn, other):
        found = cells()
        found["single+gate"] = [
            replace(one, decision=decision(score, False))
            for one, score in zip(found["single+gate"], [0.3, other] * 5, strict=True)
        ]
        for bars in drawn(found)["scores-gate"][0].patches:
            assert sorted(bars.get_data().values)[-2:] == [0, 1]

    def test_a_method_that_does_not_always_search_is_drawn_where_it_searched(self, drawn):
        found = cells()
        found["single"] = [replace(r, retrievals=i % 2) for i, r in enumerate(found["single"])]
        found["single"][9] = replace(found["single"][9], retrievals=0)  # it failed
        axes, _ = drawn(found)["rate-single-2b-gate"]
        named = self.named(axes)
        assert named["always"][0] == 0.5
        assert self.line(axes, "every threshold")[-1] == pytest.approx(named["always"])
        retrieved = [score > 0.5 for score in SCORES]
        assert named["gate"][0] == sum(yes and i % 2 for i, yes in enumerate(retrieved)) / 10

    def test_methods_that_are_gates_themselves_are_points_beside_the_gate(self, drawn):
        found = cells()
        found["skr"] = [record(i, i < 4, retrievals=int(i < 3)) for i in range(10)]
        axes, _ = drawn(found)["rate-single-2b-gate"]
        assert self.named(axes)["skr"] == (0.3, 0.4)

    def test_gates_whose_names_begin_and_end_alike_are_a_point_each(self, drawn):
        found = cells()
        for rate in (0.2, 0.4):
            searched = [record(i, True, retrievals=int(i < 10 * rate)) for i in range(10)]
            found[f"gate-least:target_rate={rate}:max_tokens=12"] = searched
        texts = drawn(found)["rate-single-2b-gate"][0].texts
        assert sorted(label.xy[0] for label in texts) == [0.0, 0.2, 0.4, 0.6, 1.0]

    def test_a_direct_row_with_settings_is_as_good_as_one_without(self, drawn):
        plain, named = drawn(cells()), cells()
        named = drawn({"direct:max_tokens=8": named.pop("direct"), **named})
        assert {"rate-single-2b-gate", "scores-gate", "reliability-gate"} <= set(plain)
        for name, (axes, caption) in plain.items():
            assert named[name][1] == caption
            lines = [[line.get_xydata().tolist() for line in one.lines]
                     for one in (axes, named[name][0])]  # fmt: skip
            assert lines[0] == lines[1]

    def test_eq_2_ranks_questions_and_promises_no_probability(self, drawn):
        plain = drawn(cells() | {"single+eq2:semantics=false": cells()["single+gate"]})
        assert {name for name in plain if "eq2" in name} == {
            "rate-single-2b-eq2-3a-semantics-3d-false", "scores-eq2-3a-semantics-3d-false",
        }  # fmt: skip

    def test_a_reliability_has_the_bins_of_scikit_learn(self, drawn):
        rng = np.random.default_rng(0)
        said = rng.random(300)
        wrong = rng.random(300) < said**2
        rows = [record(i, not wrong[i], uncertainty=said[i]) for i in range(300)]
        axes, _ = drawn({"k-samples": rows})["reliability-k-samples"]
        true, mean = calibration_curve(wrong, said, n_bins=10)
        shown = self.line(axes, "this run")
        assert [x for x, _ in shown] == pytest.approx(mean)
        assert [y for _, y in shown] == pytest.approx(true)


class TestThePage:
    def test_its_table_is_the_summary(self, page):
        rows, summary = page.rows("results"), summarize(cells())
        assert list(rows) == ["direct", "single", "single+gate"]
        for metric, table in (("em", rows), ("f1", page.rows("measures"))):
            for name, values in table.items():
                row = summary[name]
                assert float(values[0]) == row.scores[metric].value
                assert values[1] == ("" if name == "direct" else str(row.gains[metric].value))
                assert [float(v) for v in values[2:4]] == [row.easy[metric], row.hard[metric]]
        assert rows["single+gate"][-2] == str(summary["single+gate"].speed_up)
        assert [int(values[-1]) for values in rows.values()] == [0, 1, 0]

    def test_without_a_gate_it_says_so_and_has_no_speed_up(self, page, tmp_path):
        found = cells()
        del found["single+gate"]
        alone = Parsed(write_report(run_folder(tmp_path, found)).page)
        told = ("speed-up", "behind a gate", "gate retrieved")
        assert all(words in page.words() and words not in alone.words() for words in told)
        assert "No method of this run has a gate in front" in alone.words()

    def test_without_scripts_the_first_questions_are_there(self, page):
        shown = {"".join(e.itertext()): e for e in page.named("details")}
        [third] = [text for text in shown if "who wrote book 3?" in text]
        for kind, records in cells().items():
            assert re.search(rf"{re.escape(kind)}\s*{records[3].prediction}", third)
        [failed] = [text for text in shown if "who wrote book 9?" in text]
        assert "ModelFailed" in failed
        [form] = page.named("form")
        assert "hidden" in form.attrib  # it does nothing without scripts
        assert all("disabled" in e.attrib for e in page.named("button") if not e.get("id"))

    def test_every_column_can_be_sorted_by_a_button_that_says_so(self, page):
        headings = [e for e in page.named("th") if e.get("scope") == "col"]
        assert {heading.get("aria-sort") for heading in headings} == {"none"}
        assert all(re.fullmatch(".*button", child.tag) for heading in headings for child in heading)

    def test_it_runs_one_script_by_its_hash_and_loads_nothing(self, page):
        scripts = page.named("script")
        [program] = [e for e in scripts if e.get("type") != "application/json"]
        [style] = page.named("style")
        [policy] = [e.get("content") for e in page.named("meta") if e.get("http-equiv")]
        for element, rule in ((program, "script-src"), (style, "style-src-elem")):
            digest = b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
            assert f"{rule} 'sha256-{digest}'" in policy
        assert policy.startswith("default-src 'none'")
        for element in page.elements:
            for name, value in element.attrib.items():
                assert not name.lower().startswith("on")
                if name in ("src", "href") or name.endswith("}href"):
                    assert value.startswith("#") or value == "data:,"
        assert "@import" not in style.text
        assert "url(" not in style.text

    def test_no_id_comes_twice_and_what_the_pictures_name_is_there(self, page):
        ids = [e.get("id") for e in page.elements if e.get("id")]
        assert len(ids) == len(set(ids))
        values = [value for e in page.elements for value in e.attrib.values()]
        named = {name for value in values for name in re.findall(r"url\(#([^)]+)\)", value)}
        items = [item for e in page.elements for item in e.attrib.items()]
        links = {v[1:] for k, v in items if k.endswith("href") and v.startswith("#")}
        assert named
        assert named | links <= set(ids)

    def test_it_has_every_answer_and_every_step_as_it_was(self, page):
        index, passages = page.data("index"), page.data("passages")
        assert index["cells"] == ["direct", "single", "single+gate"]
        for place, question in enumerate(index["questions"]):
            for cell, (name, records) in enumerate(cells().items()):
                assert question["r"][str(cell)]["p"] == records[place].prediction, name
        traced = page.data(f"traces-{index['questions'][2]['t']}")["2"]["1"]
        [searched, asked] = cells()["single"][2].trace
        assert passages[traced[0]["fetched"][0]["passages"][0]][2] == PASSAGE
        parts = traced[1]["asked"][0]["prompt"]
        prompt = "".join(passages[part][2] if isinstance(part, int) else part for part in parts)
        assert prompt == asked["asked"][0]["prompt"]
        assert sum(PASSAGE in json.dumps(step) for step in traced) == 0
        assert searched["fetched"][0]["query"] == traced[0]["fetched"][0]["query"]

    def test_how_an_answer_came_about_is_told_with_it(self, tmp_path):
        found = cells()
        found["direct"][2] = replace(found["direct"][2], mode="yes-no texts")
        page = Parsed(write_report(run_folder(tmp_path, found)).page)
        answers = [question["r"]["0"] for question in page.data("index")["questions"]]
        assert [answer.get("m") for answer in answers] == [None] * 2 + ["yes-no texts"] + [None] * 7

    def test_a_strangers_text_makes_no_element_and_turns_no_reading_order(self, page):
        assert "pwned" in page.text
        assert not [e for e in page.named("img") if e.get("src") == "x"]
        assert all("pwned" not in (e.text or "") for e in page.named("script") if not e.get("type"))
        assert "\u202e" not in page.words()
        assert "[U+202E]" in page.words()  # in the model's name
        failed = page.data("index")["questions"][9]["r"]["1"]
        assert failed["e"] == f"ModelFailed: {HOSTILE}"


@given(st.dictionaries(st.text(), st.lists(st.text() | st.none() | st.integers())))
def test_json_in_a_script_is_the_same_value_and_cannot_end_the_script(value):
    text = script_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)


def test_what_cannot_be_seen_is_shown_by_its_number():
    assert visible("a\u202eb\x00c\u2066 é 漢") == "a[U+202E]b[U+0000]c[U+2066] é 漢"
    assert visible("\ud83d \ufffe\uffff 😀") == "[U+D83D] [U+FFFE][U+FFFF] 😀"
    hidden = "\u00ad\u200b\u2060\u2064\ufeff\U000e0041\U000e007f"
    assert visible(hidden) == "".join(f"[U+{ord(one):04X}]" for one in hidden)
    joined = "क्\u200dष می\u200cخواهم 👩\u200d🚀"  # scripts and emoji need these
    assert visible(joined) == joined


def test_the_scripts_of_the_page_show_the_same_characters_by_their_number():
    script = (files("ltrag_plugins.report") / "assets/elements.js").read_text(encoding="utf-8")
    [unseen] = re.findall(r"UNSEEN = /(.*)/u;", script)
    unseen = re.sub(r"\\u\{(\w+)\}", lambda found: f"\\U{found[1]:>08}", unseen)  # as Python has it
    every = [chr(i) for i in (*range(0x11000), *range(0xE0000, 0xE0200))]
    assert [c for c in every if re.fullmatch(unseen, c)] == [c for c in every if visible(c) != c]


def test_no_two_names_have_the_same_slug_and_none_is_long():
    names = ["".join(some) for n in range(1, 7) for some in product("a3:-", repeat=n)]
    long = [f"{'漢' * 90}{letter}" for letter in "ab"]
    slugs = [*map(slug, names + long)]
    assert len({*slugs}) == len(slugs)
    assert not [one for one in slugs if not re.fullmatch("[A-Za-z0-9-]{1,80}", one)]


class TestPictures:
    def test_shares_are_not_rounded_to_another_tick(self):
        with styled():
            figure, [axes] = canvas()
            axes.set(ylim=(0, 0.1), yticks=[0, 0.025, 0.05, 0.075, 0.1])
            as_percent(axes.yaxis)
            figure.draw_without_rendering()
        ticks = [label.get_text() for label in axes.get_yticklabels()]
        assert ticks == ["0%", "2.5%", "5%", "7.5%", "10%"]
        assert (percent(0.025), percent(0.692), percent(1.0)) == ("2.5%", "69.2%", "100%")

    def test_each_is_a_png_and_an_svg(self, tmp_path):
        written = write_report(run_folder(tmp_path / "run"), pictures_to=tmp_path / "p")
        names = {path.stem for path in written.pictures}
        assert {"cost-calls", "cost-ms", "scores-gate", "rate-single-2b-gate"} <= names
        for path in written.pictures:
            assert path.parent == tmp_path / "p"
            if path.suffix == ".png":
                assert imread(path).std() > 0.01
            else:
                assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert len(written.pictures) == 2 * len(names)

    def test_a_cell_with_a_long_chinese_name_has_its_files(self, tmp_path):
        found = cells()
        found[f"single:template={'根据文章回答' * 9}+gate"] = found.pop("single+gate")
        written = write_report(run_folder(tmp_path / "run", found), pictures_to=tmp_path / "p")
        assert sum(path.name.startswith("rate-single-3a-") for path in written.pictures) == 2

    def test_a_name_is_drawn_as_it_is_written(self, tmp_path):
        name = "single+$x_1$<b>&"
        found = cells()
        found[name] = found.pop("single+gate")
        page = Parsed(write_report(run_folder(tmp_path, found)).page)
        assert sum(name in (e.text or "") for e in page.elements if e.tag.endswith("}text")) >= 2

    def test_names_beside_points_stay_in_the_picture_and_do_not_cover_each_other(self):
        with styled():
            figure, [axes] = canvas()
            points = [(0.1 * (x % 3), 0.5 + 0.02 * (x // 3)) for x in range(8)]
            axes.plot(*zip(*points, strict=True), "o")
            axes.set(xlim=(-1, 2), ylim=(0, 1))
            label_points(axes, points, [f"method {i}" for i in range(8)])
            figure.draw_without_rendering()
        boxes = [Text.get_window_extent(label) for label in axes.texts]
        assert len(boxes) == 8
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
        room = axes.get_window_extent()
        assert all(room.contains(*corner) for box in boxes for corner in (box.min, box.max))

    def test_a_training_and_rounds_in_the_folder_are_drawn_too(self, tmp_path):
        folder = run_folder(tmp_path)
        write_run(RUN, folder / "sgic_run.jsonl")
        history = {"history": [asdict(batch) for batch in HISTORY], "settings": {"shots": 5}}
        (folder / "dur_history.json").write_text(json.dumps(history))
        page = Parsed(write_report(folder).page)
        assert "DUR: loss and reward" in page.words()
        assert all(f"SGIC: {n}" in page.words() for n in ("paths", "turns", "wrongness"))
        (folder / "dur_history.json").write_text('{"history": []}')
        with pytest.raises(UnreadableArtifact, match=r"dur_history.json: .*no batch"):
            write_report(folder)
        (folder / "dur_history.json").unlink()
        (folder / "sgic_run.jsonl").write_text("{}\n")
        with pytest.raises(BadRecord, match=r"sgic_run.jsonl, line 1"):
            write_report(folder)


def test_an_unfinished_run_shows_what_is_there_and_says_what_is_not(page, tmp_path):
    assert "not finished" not in page.words()
    found = cells()
    found["single+gate"] = found["single+gate"][:4]
    run_folder(tmp_path, {**found, "ircot": []})
    cut = Parsed(write_report(tmp_path).page)
    assert "This run is not finished" in cut.words()
    assert re.search(r"single\+gate\s+6 of 10", cut.words())
    assert list(cut.rows("results")) == ["direct", "single"]
    assert [len(q["r"]) for q in cut.data("index")["questions"]] == [3] * 4 + [2] * 6


def test_traces_that_find_no_room_are_left_out_and_counted(tmp_path):
    found = listing(read_run_folder(run_folder(tmp_path)), most=10)
    assert found.left_out == 8
    assert [("t" in question) for question in found.questions] == [True] + [False] * 9
    assert found.questions[5]["r"][1]["n"] == 2


def test_an_answer_shows_the_passage_of_its_own_question(tmp_path):
    """Questions may number their passages themselves, from 0 in each."""
    rows, shown = [], {"passages": ({"id": "0", "title": "", "score": 1.0},)}
    for number, texts in enumerate((["a river"], ["a town", "a hill"], [])):
        found = [{"id": str(i), "title": "", "text": text} for i, text in enumerate(texts)]
        searched = ({"fetched": [{"query": "where?", "passages": found}]},)
        rows.append(record(number, True, **shown, trace=searched))
    alone = {"passages": ({"id": "1", "title": "", "score": None},)}
    rows.append(record(3, True, **alone, trace=()))
    listed = listing(read_run_folder(run_folder(tmp_path, {"single": rows})))
    texts, rows = (
        [text for *_, text in listed.passages],
        [one["r"][0]["g"] for one in listed.questions],
    )
    numbers = [[texts[number] for number in row[3:]] for [row] in rows]
    # the third question has no text of its own, and "0" is another in each of the others
    assert numbers == [["a river"], ["a town"], [], ["a hill"]]


def refused(folder: Path, kind, match, **more):
    before = sorted(folder.rglob("*"))
    with pytest.raises(kind, match=match):
        write_report(folder, **more)
    assert sorted(folder.rglob("*")) == before


def described(folder: Path, change) -> Path:
    """A run whose description is changed."""
    path = run_folder(folder) / "run.json"
    change(body := json.loads(path.read_text()))
    path.write_text(json.dumps(body))
    return folder


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"format": 9}', '{"format": 1, "identity": {}}']
)
def test_a_folder_without_a_description_or_with_a_damaged_one_is_named(tmp_path, text):
    if text is not None:
        (run_folder(tmp_path) / "run.json").write_text(text)
    refused(tmp_path, UnreadableArtifact, "run.json" if text else "there is no run.json")


ON = decision(0.5, True)


@pytest.mark.parametrize(("more", "said"), [
    ({"id": ["q1"]}, "id must be a text"),
    ({"prediction": None}, "prediction must be"),
    ({"scores": {}}, "scores must"),
    ({"scores": {"em": "1"}}, "scores must"),
    ({"scores": {"other": 1.0}}, "scores of other"),
    ({"ms": True}, "ms must be"),
    ({"ms": float("nan")}, "ms must be"),
    ({"uncertainty": 1.5}, "uncertainty must be"),
    ({"error": 5}, "error must be"),
    ({"mode": 5}, "mode must be"),
    ({"passages": ["text"]}, "passages must be"),
    ({"answers": [1]}, "answers must be"),
    ({"trace": ["step"]}, "trace must be"),
    ({"decision": "yes"}, "'str'"),
    ({"decision": {"retrieve": True}}, "score"),
    ({"decision": ON | {"retrieve": "yes"}}, "retrieve must be"),
    ({"decision": ON | {"score": "high"}}, "score must be a number or None, got 'high'"),
    ({"decision": ON | {"probability": 1.5}}, "probability must be"),
    ({"decision": ON | {"ingredients": [1]}}, "ingredients must be"),
    ({"unheard": 1}, "unheard"),
])  # fmt: skip
def test_a_damaged_record_is_named_by_its_line(tmp_path, more, said):
    path = run_folder(tmp_path) / "records" / "single.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = json.dumps(json.loads(lines[3]) | more)
    path.write_text("\n".join(lines) + "\n")
    refused(tmp_path, BadRecord, rf"single.jsonl, line 4: .*{re.escape(said)}")


@pytest.mark.parametrize("name", ["../../secret", "..", "", "a/b", "a\x07b"])
def test_a_cell_whose_name_leads_elsewhere_is_refused(tmp_path, name):
    folder = described(tmp_path, lambda body: body["identity"]["cells"].append(name))
    refused(folder, UnreadableArtifact, "of a cell|named after its method")


def test_a_description_that_says_little_is_enough(tmp_path):
    def shorten(body):
        body["identity"] = {"cells": body["identity"]["cells"]}

    assert write_report(described(tmp_path, shorten)).page.is_file()


TWO_RUNS = {"direct": [record(0, True)], "single": [record(1, True)]}


@pytest.mark.parametrize(("records", "more", "said"), [
    ({"direct": []}, {}, "no records yet"),
    (TWO_RUNS, {}, "different questions"),
    (None, {"compared": "nobody"}, "no row 'nobody'"),
])  # fmt: skip
def test_rows_that_cannot_be_compared_are_refused(tmp_path, records, more, said):
    refused(run_folder(tmp_path, records), InvalidInput, said, **more)


def test_behind_a_link_the_page_itself_is_replaced(tmp_path):
    run, page = run_folder(tmp_path / "run"), tmp_path / "public" / "page.html"
    page.parent.mkdir()
    page.write_text("old")
    link, dangling = tmp_path / "link.html", tmp_path / "dangling.html"
    link.symlink_to(Path("public") / "page.html")
    dangling.symlink_to(tmp_path / "public" / "new.html")
    whole = write_report(run).page.read_bytes()
    for out, found in ((link, page), (dangling, page.with_name("new.html"))):
        write_report(run, out=out)
        assert out.is_symlink()
        assert found.read_bytes() == whole
    assert sorted(one.name for one in page.parent.iterdir()) == ["new.html", "page.html"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name")
def test_a_pipe_is_written_to_and_stays(tmp_path):
    run, pipe = run_folder(tmp_path / "run"), tmp_path / "pipe"
    os.mkfifo(pipe)
    with (
        (tmp_path / "read").open("wb") as read,
        subprocess.Popen(["cat", pipe], stdout=read) as reader,
    ):
        try:
            write_report(run, out=pipe)
            assert pipe.is_fifo()
            assert reader.wait(timeout=60) == 0
        finally:
            reader.kill()
    assert (tmp_path / "read").read_bytes() == write_report(run).page.read_bytes()


def test_where_nothing_can_be_written_is_named(tmp_path):
    run_folder(tmp_path / "run")
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "x.html", tmp_path / "run" / "records"):
        refused(tmp_path / "run", UnwritableArtifact, "cannot write to", out=out)
