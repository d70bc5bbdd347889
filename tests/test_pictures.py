"""The pictures of README and docs: the same each time, and readable in light and in dark."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from ltrag_plugins import gece, langchain
from ltrag_plugins.gece.fit import _area

ROOT = Path(__file__).parents[1]
KEPT = sorted((ROOT / "docs" / "assets").glob("*.svg"))
NAMES = "question gece dur sgic curve learn-course learn-agreement learn-retrieved learn-scores"


@pytest.fixture
def pictures(load):
    return load("pictures")


def test_there_is_one_of_each_in_light_and_in_dark():
    assert {p.stem for p in KEPT} == {f"{n}-{t}" for n in NAMES.split() for t in ("light", "dark")}


def test_drawn_again_the_flows_are_those_that_are_kept(pictures, tmp_path):
    for picture in pictures.KINDS["flows"]():
        pictures.save(picture, tmp_path)
    for drawn in tmp_path.iterdir():
        kept = ROOT / "docs" / "assets" / drawn.name
        why = f"run benchmarks/pictures.py docs/assets --only flows: {drawn.name} is another"
        assert drawn.read_bytes() == kept.read_bytes(), why


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_picture_says_what_it_is_and_takes_nothing_from_the_net(path):
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.findtext("{*}title") == root.get("aria-label")
    assert {*re.findall(r'https?://[^"\s]+', text)} <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert {*re.findall(r"font-family: ([^;\"]+)", text)} == {"system-ui, sans-serif"}
    assert "@" not in text
    assert "var(" not in text


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_every_text_has_a_contrast_of_4_5_on_every_ground(pictures, path):
    text = path.read_text(encoding="utf-8")
    colours = pictures.themes()[path.stem.rsplit("-", 1)[1]]
    grounds = [colours[name] for name in ("--paper", "--tint", "--warm", "--faint")]
    inks = {*re.findall(r"<text [^>]*fill: (#[0-9a-f]{6})", text)}
    assert inks
    for ground in grounds:
        if f'fill="{ground}"' in text or f"fill: {ground}" in text:
            assert min(contrast(ink, ground) for ink in inks) >= 4.5, ground


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio of two colours."""
    light, dark = sorted(map(luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_a_class_that_a_flow_names_is_one_of_ours():
    text = "".join(path.read_text(encoding="utf-8") for path in KEPT)
    named = {*re.findall(r">((?:GECE|DUR|SGIC)\w+)(?:\.fit)?<", text)}
    assert named == {"GECERouter", "GECEGate", "DURReranker", "SGICCalibrator"}
    assert all(hasattr(langchain, name) or hasattr(gece, name) for name in named)


def test_the_mean_height_of_the_curve_is_the_area_that_a_fit_reports(pictures):
    rng = np.random.default_rng(0)
    scores, gain = rng.permutation(400).astype(float), rng.integers(-1, 2, size=400).astype(float)
    rates = np.linspace(0, 1, 401)
    above = pictures.above_chance(scores, gain, rates)
    assert np.trapezoid(above, rates) == pytest.approx(_area(scores, gain), abs=1e-12)
    assert above[[0, -1]] == pytest.approx([0, 0])
