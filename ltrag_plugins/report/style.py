"""One look for all pictures of a report, in files and in the page.

The palette is blue and orange, which eyes that see red and green alike tell apart; kinds differ in
marks or hatching too. In the page each colour becomes a CSS variable, so that a picture follows
the page into the dark.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

from ltrag_plugins.errors import missing_extra

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise missing_extra("matplotlib", "report") from error

INK, SOFT, QUIET, FAINT = "#1f2933", "#52606d", "#9fb3c8", "#e4e9ef"
BLUE, ORANGE, PAPER = "#0b5c93", "#d55e00", "#ffffff"
_VARIABLES = {
    INK: "--ink",
    SOFT: "--soft",
    QUIET: "--quiet",
    FAINT: "--faint",
    BLUE: "--blue",
    ORANGE: "--orange",
    "#e07b1a": "--orange",  # of SGIC's pictures
    "#c2410c": "--orange",  # of DUR's
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
    size: tuple[float, float] = SMALL, heights: tuple[float, ...] = (1,)
) -> tuple[Figure, list[Axes]]:
    """A figure, and its axes from top to bottom, as many as there are heights."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    return figure, grid.ravel().tolist()


def themed(svg: bytes, name: str, told: str) -> str:
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
