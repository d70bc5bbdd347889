"""Names beside points, placed so that they cover neither each other nor the points."""

from collections.abc import Sequence

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.report.style import INK, QUIET

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Annotation, Text
    from matplotlib.transforms import Bbox
except ImportError as error:
    raise missing_extra("matplotlib", "report") from error

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

Point = tuple[float, float]


def label_points(
    axes: Axes, points: Sequence[Point], names: Sequence[str], avoid: Sequence[Point] = ()
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
        best = _best(axes, point, shortened(name), taken, room)
        taken.append(_box(best))


def shortened(name: str) -> str:
    """The name, cut in the middle where it is long."""
    if len(name) <= _LONGEST:
        return name
    half = (_LONGEST - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _best(axes: Axes, point: Point, name: str, taken: Sequence[Bbox], room: Bbox) -> Annotation:
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


def _annotation(axes: Axes, point: Point, name: str, distance: float, side: tuple) -> Annotation:
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


def _around(axes: Axes, point: Point, half: float) -> Bbox:
    x, y = (float(place) for place in axes.transData.transform(point))
    return Bbox.from_extents(x - half, y - half, x + half, y + half)


def _area(box: Bbox) -> float:
    return box.width * box.height


def _shared(one: Bbox, other: Bbox) -> float:
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else _area(both)
