"""The plotting kit: one look for all pictures, in files and in the page of a report.

The palette is blue and orange, which eyes that see red and green alike tell apart; kinds differ in
marks or hatching too. In the page each colour becomes a CSS variable, so that a picture follows
the page into the dark.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.metrics.calibration import Reliability

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation, Text
    from matplotlib.ticker import MaxNLocator, PercentFormatter
    from matplotlib.transforms import Bbox
except ImportError as error:
    raise missing_extra("matplotlib", "plots") from error

INK, SOFT, QUIET, FAINT = "#1f2933", "#52606d", "#9fb3c8", "#e4e9ef"
BLUE, ORANGE, PAPER = "#0b5c93", "#d55e00", "#ffffff"
_VARIABLES = {
    INK: "--ink",
    SOFT: "--soft",
    QUIET: "--quiet",
    FAINT: "--faint",
    BLUE: "--blue",
    ORANGE: "--orange",
    PAPER: "--paper",
    "#000000": "--ink",
}
SMALL, LARGE = (4.4, 3.3), (5.4, 4.7)
"""Inches; at 72 points each not much wider than a phone, so that text keeps its size there."""
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollar signs is no formula
    "axes.edgecolor": QUIET,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 10,
    "axes.titlesize": 11,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 2.0,
    "lines.markersize": 7,
    "hatch.linewidth": 0.7,
    "savefig.dpi": 200,
    "savefig.facecolor": PAPER,
    "svg.hashsalt": "ltrag",
}
_IN_PAGE: dict[Any, Any] = {"svg.fonttype": "none", "savefig.transparent": True}
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_DROPPED = (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")
_FONT = re.compile(r"font: ([^;]*?[\d.]+px)[^;]*")


@contextmanager
def styled(*, in_page: bool = False) -> Iterator[None]:
    """The report's style inside, the caller's own again after it.

    Args:
        in_page: text as text, and no background.
    """
    with mpl.rc_context(_STYLE), mpl.rc_context(_IN_PAGE if in_page else None):
        yield


def canvas(
    rows: int = 1,
    columns: int = 1,
    *,
    size: tuple[float, float] = SMALL,
    heights: Sequence[float] | None = None,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """A figure, and its axes row by row; rows share their x axis.

    It is a figure of its own, not pyplot's: the caller's backend is the caller's.
    """
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(
        rows, columns, sharex="col" if rows > 1 else False, sharey=sharey, squeeze=False,
        height_ratios=heights,
    )  # fmt: skip
    return figure, grid.ravel().tolist()


def saved(figure: Figure, path: str | Path) -> Path:
    """Write the picture; the path's suffix says the format (.png, .svg, .pdf)."""
    path = Path(path)
    undated = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=undated)
    return path


def whiskers(axes: Axes, x: float, value: float, low: float, high: float) -> None:
    """An interval around a point."""
    spread = [[max(0.0, value - low)], [max(0.0, high - value)]]
    axes.errorbar([x], [value], yerr=spread, color=QUIET, elinewidth=1.3, capsize=3, zorder=1)


def hatched(
    axes: Axes, shares: Sequence[float], edges: Sequence[float], *, bad: bool, label: str
) -> None:
    """A histogram of one of two kinds, which lie over each other."""
    colour, hatch = (ORANGE, "////") if bad else (BLUE, "")
    axes.stairs(shares, edges, fill=True, facecolor=(colour, 0.28))
    # in SVG a fill that is half transparent would make its own hatching vanish
    axes.stairs(
        shares, edges, fill=True, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=1.6,
        label=label,
    )  # fmt: skip


def as_percent(axis: Axis) -> None:
    """Shares in percent, without decimals."""
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def reliability_figure(found: Reliability, what: str) -> Figure:
    """Said and true shares of wrong answers, and how many answers stand behind each."""
    figure, [above, below] = canvas(2, heights=(2.4, 1))
    above.plot([0, 1], [0, 1], "--", color=QUIET, label="as promised")
    known = [one for one in found.bins if one.said is not None and one.wrong is not None]
    said, wrong = [one.said or 0.0 for one in known], [one.wrong or 0.0 for one in known]
    above.plot(said, wrong, "o-", color=ORANGE, label="this run", clip_on=False, zorder=3)
    above.set(xlim=(0, 1), ylim=(-0.02, 1.04), ylabel="wrong answers")
    below.bar(said, [one.count for one in known], 0.05, color=BLUE)
    below.set(ylabel="answers", xlabel=what)
    below.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    for axis in (above.yaxis, below.xaxis):
        as_percent(axis)
    figure.align_ylabels()
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def _themed(svg: bytes, name: str, told: str) -> str:
    """An SVG file as an element of a page: own ids, the page's colours and font, no style sheet.

    Args:
        name: of letters, digits and hyphens; stands before every id.
        told: what it shows, for those who do not see it.
    """
    root = ElementTree.fromstring(svg)
    for parent in root.iter():
        for child in [child for child in parent if child.tag in _DROPPED]:
            parent.remove(child)
    for element in root.iter():
        element.attrib.update(
            {key: _value(key, value, name) for key, value in element.attrib.items()}
        )
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.attrib.update({"role": "img", "aria-label": told, "class": "picture"})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _value(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == f"{{{_XLINK}}}href":
        return value.replace("#", f"#{name}-", 1)
    if key not in ("style", "fill", "stroke", "clip-path"):
        return value
    value = value.replace("url(#", f"url(#{name}-")
    for colour, variable in _VARIABLES.items():
        value = value.replace(colour, f"var({variable})")
    return _FONT.sub(r"font: \1 var(--sans)", value)


@dataclass(frozen=True, slots=True)
class Picture:
    """What can be drawn into a file of any format that matplotlib writes."""

    name: str
    """Of letters, digits and hyphens; a file name and the start of its ids."""
    title: str
    caption: str
    """One or two sentences: what to look for."""
    draw: Callable[[Path], Any]
    """Writes the file; its suffix says the format."""
    wide: bool = False
    """Two panels side by side."""

    def inline(self) -> str:
        """An SVG element in the colours and the font of the page."""
        with tempfile.TemporaryDirectory() as folder, styled(in_page=True):
            path = Path(folder) / "picture.svg"
            self.draw(path)
            return _themed(path.read_bytes(), self.name, f"{self.title}. {self.caption}")

    def save(self, folder: Path) -> list[Path]:
        """Write it as PNG and SVG, on white."""
        paths = [folder / f"{self.name}.png", folder / f"{self.name}.svg"]
        with styled():
            for path in paths:
                self.draw(path)
        return paths


_SIDES = (
    (1, 0, "left", "center"),
    (-1, 0, "right", "center"),
    (0.6, 1, "left", "bottom"),
    (0.6, -1, "left", "top"),
    (-0.6, 1, "right", "bottom"),
    (-0.6, -1, "right", "top"),
    (0, 1, "center", "bottom"),
    (0, -1, "center", "top"),
)
_DISTANCES = (8, 18, 30, 44, 60, 80, 105)
_LINE_FROM = 18  # points; a label further off has a line to its point
_MARK = 5  # half of a mark's width, points
_LONGEST = 24

_Point = tuple[float, float]


def label_points(
    axes: Axes, points: Sequence[_Point], names: Sequence[str], avoid: Sequence[_Point] = ()
) -> None:
    """Write each name where there is room, near its point.

    Args:
        axes: with everything else drawn and its limits set.
        avoid: other points that should stay uncovered.
    """
    figure = axes.figure.get_figure(root=True)
    if figure is None or not isinstance(figure.canvas, FigureCanvasAgg):
        raise TypeError("labels are placed on a figure of `canvas`")
    figure.draw_without_rendering()
    scale = figure.dpi / 72
    taken = [_around(axes, point, _MARK * scale) for point in points]
    taken += [_around(axes, point, scale) for point in avoid]
    room = axes.get_window_extent()
    for point, name in sorted(zip(points, names, strict=True), key=lambda pair: -pair[0][1]):
        best = _best(axes, point, _shortened(name), taken, room)
        taken.append(_box(best))


def _shortened(name: str) -> str:
    """The name, cut in the middle where it is long."""
    if len(name) <= _LONGEST:
        return name
    half = (_LONGEST - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _best(axes: Axes, point: _Point, name: str, taken: Sequence[Bbox], room: Bbox) -> Annotation:
    """The first place without overlap; where there is none, that with the least."""
    found: list[tuple[float, float, tuple]] = []
    for distance in _DISTANCES:
        for side in _SIDES:
            label = _annotation(axes, point, name, distance, side)
            box = _box(label)
            label.remove()
            cost = sum(_shared(box, other) for other in taken) + _area(box) - _shared(box, room)
            found.append((cost, distance, side))
            if cost <= 1e-6:
                return _annotation(axes, point, name, distance, side)
    _, distance, side = min(found, key=lambda one: one[:2])
    return _annotation(axes, point, name, distance, side)


def _annotation(axes: Axes, point: _Point, name: str, distance: float, side: tuple) -> Annotation:
    dx, dy, ha, va = side
    line = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.8, "shrinkA": 1, "shrinkB": 4}
    label = axes.annotate(
        name,
        point,
        (dx * distance, dy * distance),
        textcoords="offset points",
        ha=ha,
        va=va,
        color=INK,
        fontsize=9,
        arrowprops=line if distance >= _LINE_FROM else None,
        annotation_clip=False,
    )
    label.set_in_layout(False)
    return label


def _box(label: Annotation) -> Bbox:
    """Where its text is; an annotation's own extent has its line in it."""
    label.get_window_extent()  # else the text is where it was made, without its offset
    return Text.get_window_extent(label)


def _around(axes: Axes, point: _Point, half: float) -> Bbox:
    x, y = (float(place) for place in axes.transData.transform(point))
    return Bbox.from_extents(x - half, y - half, x + half, y + half)


def _area(box: Bbox) -> float:
    return box.width * box.height


def _shared(one: Bbox, other: Bbox) -> float:
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else _area(both)
