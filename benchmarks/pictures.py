"""The pictures of README and docs as SVG files, each in light and in dark.

    LTRAG_DATA=/path/to/data python benchmarks/pictures.py docs/assets
    python benchmarks/pictures.py docs/assets --only flows

flows: the way of a question, and how each part works. curve: accuracy against retrieval rate on
recorded answers of an 8B model, each question judged by a gate that was fitted without it (needs
LTRAG_DATA; some minutes). learn: a scripted application while its gate learns (a minute or two).
Run again, nothing changes.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Float
from learning_pictures import learning_pictures
from matplotlib.patches import FancyBboxPatch

from ltrag_plugins.report.plots import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    PAPER,
    QUIET,
    SOFT,
    Picture,
    as_percent,
    canvas,
    styled,
)

TINT, WARM, WARM_INK = "#eef4f9", "#fdf1e7", "#9a4400"  # as in the page's style sheet
FACES = {"ours": (TINT, BLUE, BLUE), "yours": (PAPER, QUIET, INK), "end": (FAINT, FAINT, INK)}
FACES |= {"refusal": (WARM, ORANGE, WARM_INK)}
"""Of a kind of box: fill, edge, heading."""
HEAD, LINE = 16, 14.5  # points; at the width of a phone about 11 and 10 pixels
ARROW: Any = {"arrowstyle": "-|>,head_width=0.22,head_length=0.45", "color": SOFT, "lw": 1.8}
ARROW |= {"shrinkA": 0, "shrinkB": 0, "mutation_scale": 16}
SCALE = 1.25  # pixels a point, where the page has the width
RATES = np.linspace(0, 1, 101)
RESAMPLES = 2000


@dataclass(frozen=True)
class Box:
    """A step of a flow; places in points, y down, of the middle."""

    x: float
    y: float
    width: float
    height: float
    head: str
    line: str = ""
    kind: Literal["ours", "yours", "end", "refusal"] = "yours"


@dataclass(frozen=True)
class Way:
    """An arrow along points, or none, and a word at `at`."""

    points: Sequence[tuple[float, float]]
    word: str = ""
    at: tuple[float, float] = (0, 0)
    side: Literal["left", "center", "right"] = "left"


@styled()
def flow(
    name: str, title: str, caption: str, height: float, boxes: Iterable[Box], ways: Iterable[Way]
) -> Picture:
    """Boxes and arrows, 504 points wide."""
    figure, [axes] = canvas(size=(504 / 72, height / 72))
    axes.set(xlim=(0, 504), ylim=(height, 0))
    axes.set_axis_off()
    for box in boxes:
        fill, edge, ink = FACES[box.kind]
        corner = box.x - box.width / 2, box.y - box.height / 2
        round_ = f"round,pad=0,rounding_size={box.height / 2 if box.kind == 'end' else 7}"
        look: Any = {"facecolor": fill, "edgecolor": edge, "linewidth": 1.6, "boxstyle": round_}
        axes.add_patch(FancyBboxPatch(corner, box.width, box.height, **look))
        lines = box.line.split("\n") if box.line else []
        top = box.y - 9.5 * len(lines)
        middle: Any = {"ha": "center", "va": "center"}
        axes.text(box.x, top, box.head, color=ink, fontsize=HEAD, fontweight="bold", **middle)
        for i, text in enumerate(lines):
            axes.text(box.x, top + 19 * (i + 1), text, color=INK, fontsize=LINE, **middle)
    for way in ways:
        if way.points:
            *_, before, last = way.points
            axes.plot(*zip(*way.points[:-1], strict=True), color=SOFT, lw=1.8)
            axes.annotate("", last, before, arrowprops=ARROW)
        axes.text(*way.at, way.word, color=SOFT, fontsize=LINE, ha=way.side, va="center")
    return Picture(name, title, caption, figure)


def question() -> Picture:
    """The way of a question through all three parts."""
    boxes = [
        Box(252, 22, 150, 34, "question", kind="end"),
        Box(252, 96, 488, 62, "GECERouter", "your model drafts an answer: how sure is it?", "ours"),
        Box(332, 180, 280, 38, "your retriever"),
        Box(332, 254, 280, 60, "DURReranker", "keeps what helps your model", "ours"),
        Box(332, 354, 280, 60, "SGICCalibrator", "your model answers: how sure?", "ours"),
        Box(80, 452, 144, 64, "answer", "the draft", "end"),
        Box(252, 452, 168, 64, "answer", "with P(wrong)", "end"),
        Box(424, 452, 144, 64, "refusal", "P(wrong) too high", "refusal"),
    ]
    ways = [
        Way([(252, 39), (252, 64)]),
        Way([(80, 127), (80, 419)], "sure:\nno search,\nno further\ncall", (90, 250)),
        Way([(332, 127), (332, 160)], "unsure: retrieve", (342, 142)),
        Way([(332, 199), (332, 223)]),
        Way([(332, 284), (332, 323)]),
        Way(
            [(472, 360), (492, 360), (492, 304), (400, 304), (400, 323)],
            "look again",
            (486, 294),
            "right",
        ),
        Way([(252, 384), (252, 419)]),
        Way([(424, 384), (424, 419)]),
    ]
    told = "The gate answers what the model knows; the rest is retrieved, reranked and calibrated."
    return flow("question", "The way of a question", told, 490, boxes, ways)


LEARNED = "where does a draft\nfail, or retrieval\nhelp?"


def gece() -> Picture:
    """The gate: what each question meets, and what a fit learns."""
    boxes = [
        Box(128, 50, 150, 34, "question", kind="end"),
        Box(128, 124, 244, 60, "your model", "a short draft, no passages"),
        Box(128, 218, 244, 60, "signals", "of draft and question", "ours"),
        Box(128, 312, 244, 60, "scorer", "how likely does it fail?", "ours"),
        Box(66, 420, 120, 64, "answer", "the draft", "end"),
        Box(210, 420, 144, 64, "your chain", "retrieves"),
        Box(394, 50, 208, 34, "your questions", kind="end"),
        Box(394, 142, 208, 96, "your model", "answers each one\nwithout and with\npassages"),
        Box(394, 294, 208, 96, "GECEGate.fit", LEARNED, "ours"),
    ]
    ways = [
        Way((), "each question", (128, 14), "center"),
        Way((), "once", (394, 14), "center"),
        Way([(128, 67), (128, 93)]),
        Way([(128, 154), (128, 187)]),
        Way([(128, 248), (128, 281)]),
        Way([(66, 342), (66, 387)], "unlikely", (74, 361)),
        Way([(190, 342), (190, 387)], "likely", (198, 361)),
        Way([(394, 67), (394, 93)]),
        Way([(394, 190), (394, 245)]),
        Way([(290, 312), (251, 312)]),
    ]
    told = "Left, each question. Right, once: the fit."
    return flow("gece", "The gate", told, 458, boxes, ways)


def dur() -> Picture:
    """The reranker: how its head learns, and what ranking costs."""
    boxes = [
        Box(142, 58, 232, 60, "your questions", "and their candidates", "end"),
        Box(142, 152, 232, 60, "head", "scores the candidates", "ours"),
        Box(142, 246, 232, 60, "your model", "sees the best 0, 1, …, k"),
        Box(142, 340, 232, 60, "credit", "what each one changed", "ours"),
        Box(394, 58, 208, 60, "question", "and found passages", "end"),
        Box(394, 152, 208, 60, "DURReranker", "the trained head", "ours"),
        Box(394, 246, 208, 60, "best first", "no call of the model", "end"),
    ]
    ways = [
        Way((), "training, once", (142, 14), "center"),
        Way((), "each question", (394, 14), "center"),
        Way([(142, 88), (142, 121)]),
        Way([(142, 182), (142, 215)]),
        Way([(142, 276), (142, 309)]),
        Way([(26, 340), (10, 340), (10, 152), (25, 152)]),
        Way([(258, 152), (289, 152)]),
        Way([(394, 88), (394, 121)]),
        Way([(394, 182), (394, 215)]),
    ]
    told = "Left, once: the head learns what changed the model's answers. Right: it ranks."
    return flow("dur", "The reranker", told, 378, boxes, ways)


def sgic() -> Picture:
    """The calibrator: answer, measure, look again, keep the surest."""
    boxes = [
        Box(130, 22, 246, 34, "question, documents", kind="end"),
        Box(130, 102, 246, 60, "your model", "answers from all of them"),
        Box(130, 206, 246, 60, "score, 0 to 100", "from token probabilities", "ours"),
        Box(412, 206, 176, 84, "each document", "alone, once: an\nanswer, a score", "ours"),
        Box(412, 102, 176, 84, "look again", "with all scores\nin view", "ours"),
        Box(130, 310, 246, 60, "the surest answer", "how likely is it wrong?", "ours"),
        Box(66, 418, 124, 64, "answer", "with P(wrong)", "end"),
        Box(222, 418, 164, 64, "refusal", "P(wrong) too high", "refusal"),
    ]
    ways = [
        Way([(130, 39), (130, 71)]),
        Way([(130, 132), (130, 175)]),
        Way([(253, 206), (323, 206)], "unsure", (286, 192), "center"),
        Way([(412, 164), (412, 145)]),
        Way([(324, 102), (254, 102)]),
        Way([(130, 236), (130, 279)], "sure, or rounds are over", (140, 256)),
        Way([(66, 340), (66, 385)]),
        Way([(200, 340), (200, 385)]),
    ]
    told = "An unsure answer is looked at again with scores in view; the surest one wins."
    return flow("sgic", "The calibrator", told, 456, boxes, ways)


def above_chance(
    scores: Float[np.ndarray, " questions"],
    gain: Float[np.ndarray, " questions"],
    rates: Float[np.ndarray, " rates"],
) -> Float[np.ndarray, " rates"]:
    """Accuracy above that of a random choice of as many questions, where those of the largest
    scores retrieve; `gain` is what retrieval changes of each."""
    gained = np.concatenate([[0], np.cumsum(gain[np.argsort(-scores, kind="stable")])])
    return gained[np.rint(rates * len(gain)).astype(int)] / len(gain) - rates * gain.mean()


@styled()
def curve() -> Picture:
    """Accuracy against retrieval rate, cross-validated over all recorded questions."""
    from recorded_outcomes import outcomes, records, table

    from ltrag_plugins.gece import GECESettings
    from ltrag_plugins.gece.fit import _area, _cross_validated, higher
    from ltrag_plugins.llm.embedded import embedded_encoder

    rows = [row for split in ("train", "dev_test") for row in records(split)]
    columns, labels, names = table(outcomes(rows, embedded_encoder(), recorded=False))
    settings = GECESettings()
    failure, gain = _cross_validated(columns, labels, names, settings)
    assert gain is not None
    chosen = gain if higher(_area, gain, failure, labels.gain, settings.seed) else failure
    count, never = len(rows), 1 - labels.fails.mean()

    rng, above = np.random.default_rng(0), partial(above_chance, rates=RATES)
    drawn = [
        above(chosen[some], labels.gain[some])
        for some in (rng.integers(count, size=count) for _ in range(RESAMPLES))
    ]
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    chord = never + RATES * labels.gain.mean()
    gated = chord + above(chosen, labels.gain)
    figure, [axes] = canvas(size=(4.8, 3.6))
    perfect = chord + above(labels.gain, labels.gain)
    axes.plot(RATES, perfect, ":", color=SOFT, lw=1.6)
    axes.fill_between(RATES, chord + low, chord + high, color=BLUE, alpha=0.2, lw=0)
    axes.plot(RATES, gated, color=BLUE)
    axes.plot(RATES, chord, "--", color=SOFT, lw=1.6)
    axes.plot([0, 1], chord[[0, -1]], "o", color=INK, clip_on=False, zorder=3)
    for text, at, line, away, side, ink in (
        ("perfect gate", 50, perfect, (0, -12), "center", SOFT),
        ("fitted gate", 50, chord + high, (0, 8), "center", BLUE),
        ("random choice", 60, chord, (0, -14), "center", SOFT),
        ("never", 0, chord, (8, -10), "left", INK),
        ("always", 100, chord, (0, -18), "right", INK),
    ):
        where: Any = {"xytext": away, "textcoords": "offset points", "ha": side, "va": "center"}
        axes.annotate(text, (RATES[at], line[at]), color=ink, **where)
    axes.margins(y=0.08)
    axes.set(xlabel="questions that retrieve", ylabel="right answers (EM)", xlim=(-0.01, 1.01))
    as_percent(axes.xaxis)
    as_percent(axes.yaxis)
    for at in (10, 20, 30, 40, 50, 60, 80):
        print(
            f"{RATES[at]:.0%}: {gated[at]:.4f}, {gated[at] - chord[at]:+.4f} above a random choice "
            f"({low[at]:+.4f} to {high[at]:+.4f})"
        )
    print(f"area above a random choice {_area(chosen, labels.gain):+.4f}")
    told = (
        f"{count:,} questions, Llama-3.1-8B-Instruct. Band: 95 % interval of the distance to a "
        "random choice."
    )
    return Picture("curve", "Accuracy against retrieval rate", told, figure)


def themes() -> dict[str, dict[str, str]]:
    """The colours of the report's page, in light and in the dark."""
    style = (files("ltrag_plugins.report") / "assets" / "page.css").read_text(encoding="utf-8")
    light, dark = style.split("prefers-color-scheme: dark")[:2]
    parts = {"light": light, "dark": dark.partition("}")[0]}
    return {n: dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", part)) for n, part in parts.items()}


def save(picture: Picture, folder: Path) -> None:
    """As two files, on paper of their own: a picture in an <img> knows nothing of its page."""
    root = ElementTree.fromstring(picture.inline())
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    root.attrib |= {"width": f"{width * SCALE:.0f}", "height": f"{height * SCALE:.0f}"}
    told = ElementTree.Element("title")
    told.text = root.attrib["aria-label"]
    look = {"rx": "6", "fill": PAPER, "stroke": FAINT}
    place = {"x": "0.5", "y": "0.5", "width": f"{width - 1:g}", "height": f"{height - 1:g}"}
    root[:0] = [told, ElementTree.Element("rect", place | look)]
    svg, colours = ElementTree.tostring(root, encoding="unicode"), themes()
    svg = re.sub(r"'DejaVu Sans'|var\(--sans\)", "system-ui, sans-serif", svg)
    for name, light in colours["light"].items():
        svg = svg.replace(light, f"var({name})")
    for theme, known in colours.items():
        text = re.sub(r"var\((--[\w-]+)\)", lambda found, known=known: known[found[1]], svg)
        (folder / f"{picture.name}-{theme}.svg").write_text(f"{text}\n", encoding="utf-8")


KINDS: dict[str, Callable[[], list[Picture]]] = {
    "flows": lambda: [question(), gece(), dur(), sgic()],
    "curve": lambda: [curve()],
    "learn": learning_pictures,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=KINDS)
    options = parser.parse_args()
    for kind in [options.only] if options.only else KINDS:
        if kind == "curve" and not os.environ.get("LTRAG_DATA"):
            print("curve: left as it is, as LTRAG_DATA is not set")
            continue
        for picture in KINDS[kind]():
            save(picture, options.folder)


if __name__ == "__main__":
    main()
