"""What the pictures of a run are made of: colours, marks, axes, and what goes onto them."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.sgic.analysis.rounds import AnswerPath, Turns
from ltrag_plugins.sgic.analysis.spread import Spread

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator, PercentFormatter
except ImportError as error:
    raise missing_extra("matplotlib", "plots") from error

# far apart in lightness too, for print without colour
INK, GOOD, BAD, QUIET = "#1f2933", "#0b5c93", "#e07b1a", "#9fb3c8"
MARK_GOOD, MARK_BAD = "o", "X"
_TURNS = (
    (GOOD, "-", "o", ""),  # right to right
    (BAD, "--", "v", "////"),  # right to wrong
    (GOOD, "--", "^", "////"),  # wrong to right
    (BAD, "-", "X", ""),  # wrong to wrong
)
_BESIDE = {"frameon": False, "loc": "center left", "bbox_to_anchor": (1.02, 0.5)}


def canvas(
    rows: int, columns: int, *, size: tuple[float, float], share: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure, and its axes row by row.

    Args:
        size: width and height in inches.
        share: one x and one y axis for all.
    """
    # a figure of its own, not pyplot's: the caller's backend is the caller's
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False)
    found = grid.ravel().tolist()
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, found


def saved(figure: Figure, path: str | Path) -> Path:
    """Write the picture."""
    path = Path(path)
    figure.savefig(path, dpi=150)
    return path


def round_axis(axes: Axes, first: int, last: int) -> None:
    """Rounds on the x axis, whole numbers."""
    axes.set_xlim(first - 0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def path_marks() -> list[Line2D]:
    """The legend of `draw_path`."""
    right, wrong = (
        Line2D([], [], marker=marker, color=colour, linestyle="none", label=name)
        for marker, colour, name in ((MARK_GOOD, GOOD, "right"), (MARK_BAD, BAD, "wrong"))
    )
    ring = Line2D([], [], marker="o", color=INK, linestyle="none", label="returned")
    ring.set(markerfacecolor="none", markersize=12)
    return [right, wrong, ring]


def draw_spread(axes: Axes, spread: Spread, title: str, names: tuple[str, str]) -> None:
    """Two histograms over each other, each as shares of its own kind, and their means."""
    kinds = zip((spread.good, spread.bad), names, (GOOD, BAD), ("", "////"), strict=True)
    for found, name, colour, hatch in kinds:
        if not found.total:
            continue
        edges = [i / len(found.counts) for i in range(len(found.counts) + 1)]
        shares = [count / found.total for count in found.counts]
        mean = found.mean or 0.0
        axes.stairs(
            shares, edges, fill=True, facecolor=(colour, 0.25), edgecolor=colour, hatch=hatch,
            linewidth=1.6, label=f"{name}: {found.total}, mean {mean:.2f}",
        )  # fmt: skip
        axes.axvline(mean, color=colour, linestyle=":" if hatch else "--", linewidth=2)
    told = "" if spread.auroc is None else f", AUROC {spread.auroc:.2f}"
    axes.set_title(f"{title}{told}", loc="left")
    highest = max(
        (max(k.counts) / k.total for k in (spread.good, spread.bad) if k.total), default=1
    )
    axes.set(xlim=(-0.01, 1.01), ylim=(0, min(1.02, 1.15 * highest)))
    axes.set_xlabel("uncertainty (lines: means)")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def draw_turn_lines(axes: Axes, found: Sequence[Turns]) -> None:
    """Mean score by round, a line for each of the four ways that questions went along."""
    for kind, (colour, line, marker, _) in enumerate(_TURNS):
        there = {one.round: one.turns[kind].score for one in found}
        known = {number: score for number, score in there.items() if score is not None}
        name = found[0].turns[kind].name
        scores = [*known.values()]
        axes.plot([*known], scores, color=colour, linestyle=line, marker=marker, label=name)
    axes.legend(**_BESIDE)


def draw_turn_bars(axes: Axes, found: Sequence[Turns]) -> None:
    """How many questions went which way, one bar a round."""
    rounds, bottom = [one.round for one in found], [0] * len(found)
    for kind, (colour, _, _, hatch) in enumerate(_TURNS):
        counts = [one.turns[kind].count for one in found]
        name = found[0].turns[kind].name
        axes.bar(
            rounds, counts, 0.5, bottom, label=name, color=colour, hatch=hatch, edgecolor="white"
        )
        bottom = [a + b for a, b in zip(bottom, counts, strict=True)]
    axes.legend(**_BESIDE)


def draw_path(axes: Axes, one: AnswerPath) -> None:
    """The score of one question by round, with marks for right and wrong."""
    axes.plot(range(len(one.scores)), one.scores, color=QUIET, linewidth=1.5, zorder=1)
    for kind, colour, marker in ((True, GOOD, MARK_GOOD), (False, BAD, MARK_BAD)):
        rounds = [n for n, right in enumerate(one.right) if right is kind]
        scores = [one.scores[n] for n in rounds]
        axes.scatter(rounds, scores, color=colour, marker=marker, s=55, zorder=2)
    chosen = one.scores[one.returned]
    axes.scatter([one.returned], [chosen], s=150, facecolors="none", edgecolors=INK, zorder=3)
    lines = textwrap.wrap(one.question, 30, max_lines=2, placeholder=" …")
    axes.set_title("\n".join(lines), fontsize=8, loc="left")
