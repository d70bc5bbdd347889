"""The plotting kit: one look for all pictures, in files and in the page of a report.

Eyes that see red and green alike tell blue and orange apart; kinds differ in marks or hatching too.
In the page each colour becomes a CSS variable, so that a picture follows it into the dark.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ltrag_plugins.artifacts import writing
from ltrag_plugins.errors import missing_extra, path_of
from ltrag_plugins.metrics.calibration import Interval, Reliability, wilson_interval

try:
    import matplotlib as mpl
    from matplotlib import font_manager, ticker
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox
except ImportError as error:
    raise missing_extra("matplotlib", "plots") from error

INK, SOFT, QUIET, FAINT = "#1f2933", "#52606d", "#9fb3c8", "#e4e9ef"
BLUE, ORANGE, PAPER = "#0b5c93", "#d55e00", "#ffffff"
_VARIABLES = {
    INK: "--ink", SOFT: "--soft", QUIET: "--quiet", FAINT: "--faint", BLUE: "--blue",
    ORANGE: "--orange", PAPER: "--paper", "#000000": "--ink",
}  # fmt: skip
SMALL, LARGE = (4.4, 3.3), (5.4, 4.7)
"""Inches; at 72 points each not much wider than a phone, so that text keeps its size there."""
_ASIAN = ("Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Microsoft YaHei")
_FONTS = {*font_manager.get_font_names()}  # of any other matplotlib warns at each text
_STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans", *(name for name in _ASIAN if name in _FONTS)],
    **dict.fromkeys(("font.size", "axes.labelsize", "legend.fontsize"), 10),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), QUIET),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), SOFT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollar signs is no formula
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "lines.markersize": 7,
    "hatch.linewidth": 0.7,
    "savefig.dpi": 200,
    "savefig.facecolor": PAPER,
    "svg.hashsalt": "ltrag",
}
_IN_PAGE: dict[Any, Any] = {"svg.fonttype": "none", "savefig.transparent": True}
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_FONT = re.compile(r"(font: [^;]*?[\d.]+px |font-family: )[^;]*")


@contextmanager
def styled() -> Iterator[None]:
    """The report's style in a `with` or on a function; after it the caller's own again. No warning
    for each character that no font here has: a file shows a box, a page has the browser's fonts."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def canvas(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = SMALL, **more: Any
) -> tuple[Figure, list[Axes]]:
    """A figure (not pyplot's) and its axes, row by row; rows share their x axis, and `more` is for
    `subplots`."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharex="col", squeeze=False, **more)
    return figure, grid.ravel().tolist()


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A figure for the page, or for a file of any format that matplotlib writes."""

    name: str
    """Of letters, digits and hyphens; a file name and the start of its ids."""
    title: str
    caption: str
    """One or two sentences: what to look for."""
    figure: Figure
    wide: bool = False
    """Two panels side by side."""

    def inline(self) -> str:
        """An SVG element for a page: own ids, the page's colours and font, no style sheet."""
        with styled(), mpl.rc_context(_IN_PAGE), BytesIO() as file:
            # a copy: to lay a figure out again moves its parts a little
            deepcopy(self.figure).savefig(file, format="svg", metadata={"Date": None})
            root = ElementTree.fromstring(file.getvalue())
        for element in root.iter():
            for child in [*element]:
                if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                    element.remove(child)
            for key, value in element.items():
                element.set(key, self._in_page(key, value))
        del root.attrib["width"], root.attrib["height"]
        told = f"{self.title}. {self.caption}"
        root.attrib.update({"role": "img", "aria-label": told, "class": "picture"})
        ElementTree.register_namespace("", _SVG)
        ElementTree.register_namespace("xlink", _XLINK)
        return ElementTree.tostring(root, encoding="unicode")

    def _in_page(self, key: str, value: str) -> str:
        """An attribute's value: the name stands before ids, colours are the page's variables."""
        if key == "id":
            return f"{self.name}-{value}"
        if key == f"{{{_XLINK}}}href":
            return value.replace("#", f"#{self.name}-", 1)
        if key not in ("style", "fill", "stroke", "clip-path"):
            return value
        value = value.replace("url(#", f"url(#{self.name}-")
        for colour, variable in _VARIABLES.items():
            value = value.replace(colour, f"var({variable})")
        return _FONT.sub(r"\1var(--sans)", value)


@styled()
def save_pictures(
    drawn: Iterable[Picture], folder: str | Path, formats: Iterable[str] = ("png",)
) -> list[Path]:
    """Write each picture on white, once in each format; the folder is made."""
    folder = path_of(folder)
    with writing(folder):
        pairs = product(drawn, formats)
        return [save_figure(one.figure, folder / f"{one.name}.{suffix}") for one, suffix in pairs]


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the picture; the path's suffix says the format (.png, .svg, .pdf)."""
    path = path_of(path)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def percent(share: float, digits: int = 1) -> str:
    """A share in percent, as short as it goes: 60%, 2.5%."""
    return f"{round(100 * share, digits) + 0.0:g}%"


def as_percent(axis: Axis) -> None:
    """Shares in percent, with as many decimals as the ticks need."""
    axis.set_major_formatter(ticker.FuncFormatter(lambda share, _: percent(share, 3)))


def count_axis(axes: Axes, label: str, first: int, last: int, margin: float = 0.5) -> None:
    """Whole numbers from first to last along x."""
    axes.set(xlabel=label, xlim=(first - margin, last + margin))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))


def whiskers(axes: Axes, x: float, found: Interval) -> None:
    """An interval around a point."""
    spread = [[max(0.0, found.value - found.low)], [max(0.0, found.high - found.value)]]
    style: Any = {"elinewidth": 1.3, "capsize": 3, "zorder": 1, "clip_on": False}
    axes.errorbar([x], [found.value], spread, color=QUIET, **style)


def hatched(
    axes: Axes, shares: Sequence[float], edges: Sequence[float], bad: bool, label: str
) -> None:
    """A histogram of one of two kinds, which lie over each other."""
    colour, hatch = (ORANGE, "////") if bad else (BLUE, "")
    bars = partial(axes.stairs, shares, edges, fill=True)
    bars(facecolor=(colour, 0.28))
    # in SVG a fill that is half transparent would make its own hatching vanish
    bars(facecolor="none", edgecolor=colour, hatch=hatch, linewidth=1.6, label=label)


def reliability_figure(found: Reliability, what: str) -> Figure:
    """Said and true shares of wrong answers, and how many answers stand behind each."""
    figure, [above, below] = canvas(2, height_ratios=(2.4, 1))
    above.plot([0, 1], [0, 1], "--", color=QUIET, label="as promised")
    known = [(b.said, b.wrong, b.count) for b in found.bins if b.count]
    said, wrong, counts = zip(*known, strict=True)
    for bin_said, share, count in known:
        whiskers(above, bin_said or 0.0, wilson_interval(share or 0.0, count))
    above.plot(said, wrong, "o-", color=ORANGE, label="this run", clip_on=False, zorder=3)
    above.set(xlim=(0, 1), ylim=(-0.02, 1.04), ylabel="wrong answers")
    below.bar(said, counts, 0.05, color=BLUE)
    below.set(ylabel="answers", xlabel=what)
    below.yaxis.set_major_locator(ticker.MaxNLocator(nbins=3, integer=True))
    as_percent(above.yaxis)
    as_percent(below.xaxis)
    figure.align_ylabels()
    figure.legend(loc="outside upper left", ncols=2)
    return figure


_SIDES = ((1, 0), (-1, 0), (0.6, 1), (0.6, -1), (-0.6, 1), (-0.6, -1), (0, 1), (0, -1))
_DISTANCES = (8, 18, 30, 44, 60, 80, 105)
_LINE = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.8, "shrinkA": 1, "shrinkB": 4}
_LINE_FROM = 18  # points; a label further off has a line to its point
_MARK = 5  # half of a mark's width, points
_Point = tuple[float, float]


def label_points(
    axes: Axes, points: Sequence[_Point], names: Sequence[str], avoid: Iterable[_Point] = ()
) -> None:
    """Write each name near its point, with the least overlap, on axes of a `canvas` on which all
    else is drawn; points to `avoid` stay uncovered."""
    figure: Any = axes.get_figure(root=True)
    figure.draw_without_rendering()
    room, scale = axes.get_window_extent(), figure.dpi / 72
    taken: list[Bbox] = []
    for half, some in ((_MARK * scale, points), (scale, avoid)):
        for x, y in map(axes.transData.transform, some):
            taken.append(Bbox.from_extents(x - half, y - half, x + half, y + half))
    for point, name in sorted(zip(points, names, strict=True), key=lambda pair: -pair[0][1]):
        taken.append(_label(axes, point, name, taken, room))


def _label(axes: Axes, point: _Point, name: str, taken: Sequence[Bbox], room: Bbox) -> Bbox:
    tried: list[tuple[float, Text, Bbox]] = []
    for distance, (dx, dy) in product(_DISTANCES, _SIDES):
        label = axes.annotate(
            name, point, (dx * distance, dy * distance), textcoords="offset points",
            ha=("center", "left", "right")[(dx > 0) - (dx < 0)],
            va=("center", "bottom", "top")[(dy > 0) - (dy < 0)],
            color=INK, fontsize=9, annotation_clip=False,
            arrowprops=_LINE if distance >= _LINE_FROM else None,
        )  # fmt: skip
        label.set_in_layout(False)
        label.get_window_extent()  # else the text is where it was made, without its offset
        box = Text.get_window_extent(label)  # an annotation's own extent has its line in it
        cost = sum(_shared(box, other) for other in taken) + _shared(box, box) - _shared(box, room)
        tried.append((cost, label, box))
        if cost <= 1e-6:
            break
    tried.sort(key=itemgetter(0))
    for _, label, _ in tried[1:]:
        label.remove()
    return tried[0][2]


def _shared(one: Bbox, other: Bbox) -> float:
    """The area of their overlap."""
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else both.width * both.height
