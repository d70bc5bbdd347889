"""Pictures of a run: uncertainty, answers that turn, single questions, P(wrong), attention.

Each function returns the path of the picture, whose suffix says the format (.png, .svg, .pdf).
Good and bad differ in more than colour (marks, hatching), and the colours are blue and orange: they
can be told apart in print, and by eyes that see red and green alike.

References:
    Chen et al. (SGIC), figures 1, 4, 5 and 6.

What the pictures of a run are made of: colours, marks, axes, and what goes onto them.

Pictures of SGIC's rounds: of the records of a run, or of a file that lies in its folder.

::

    RUN/records/CELL.jsonl   those of a method that calibrates
    RUN/sgic_run.jsonl       what `ltrag_plugins.sgic.write_run` wrote
"""

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ltrag_plugins.artifacts import writing
from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.report.escaping import slug, visible
from ltrag_plugins.report.plots import Picture
from ltrag_plugins.sgic.figures import (
    AnswerPath,
    Since,
    Spread,
    Turns,
    answer_spread,
    document_spread,
    paths,
    reliability,
    turns,
)
from ltrag_plugins.sgic.judged import Judged, from_record, read_run

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


def sgic_canvas(
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


try:
    from matplotlib.patches import Patch
    from matplotlib.ticker import PercentFormatter
except ImportError as error:
    raise missing_extra("matplotlib", "plots") from error

_COLUMNS = 5  # of single questions side by side


def spread_picture(run: Sequence[Judged], path: str | Path, *, bins: int = 10) -> Path:
    """Uncertainty of right and wrong first answers, and of documents (figure 1).

    Raises:
        InvalidInput: there are no answers.
    """
    _check(run)
    answers, documents = answer_spread(run, bins=bins), document_spread(run, bins=bins)
    count = 1 if documents is None else 2
    figure, axes = sgic_canvas(1, count, size=(4.8 * count, 3.9))
    draw_spread(axes[0], answers, "First answers", ("right", "wrong"))
    axes[0].set_ylabel("share of each kind")
    if documents is not None:
        draw_spread(axes[1], documents, "Documents", ("helpful", "other"))
    return saved(figure, path)


def turns_picture(run: Sequence[Judged], path: str | Path, *, since: Since = "before") -> Path:
    """Mean score of the answers that stay or turn in each round, and how many (figure 4).

    Raises:
        InvalidInput: there are no answers, or none has a second round.
    """
    found = turns(run, since)
    if not found:
        raise InvalidInput("no answer has a round after the first, so none can turn")
    figure, [above, below] = sgic_canvas(2, 1, size=(7.2, 5.6))
    draw_turn_lines(above, found)
    draw_turn_bars(below, found)
    start = "the round before" if since == "before" else "round 0"
    above.set_title(f"From the answer of {start} to that of this round", loc="left")
    above.set_ylabel("mean score, 0-100")
    above.set_ylim(-4, 104)
    below.set_ylabel("answers")
    below.set_xlabel("round")
    for axes in (above, below):
        round_axis(axes, 1, found[-1].round)
    return saved(figure, path)


def paths_picture(
    run: Sequence[Judged], path: str | Path, *, count: int = 10, seed: int = 0
) -> Path:
    """Right or wrong, and the score, of single questions in each round (figure 5).

    Args:
        count: questions, drawn at random (paper: 10).

    Raises:
        InvalidInput: there are no answers, or fewer than 1 is to be shown.
    """
    _check(run)
    if count < 1:
        raise InvalidInput(f"count must be at least 1, got {count}")
    found = paths(run, count, seed=seed)
    columns = min(_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    figure, axes = sgic_canvas(
        rows, columns, size=(max(2.4 * columns, 4.8), 2.3 * rows + 0.6), share=True
    )
    for place, one in zip(axes, found, strict=False):
        draw_path(place, one)
    for place in axes[len(found) :]:
        place.set_visible(False)
    last = max(len(one.scores) for one in found) - 1
    round_axis(axes[0], 0, last)
    axes[0].set_ylim(-8, 108)
    figure.supxlabel("round")
    figure.supylabel("score, 0-100 (larger: less certain)")
    figure.legend(handles=path_marks(), loc="outside upper right", ncols=3, frameon=False)
    return saved(figure, path)


def reliability_picture(run: Sequence[Judged], path: str | Path, *, bins: int = 10) -> Path:
    """Said and true shares of wrong answers, and how many answers stand behind each.

    Raises:
        InvalidInput: no answer has a probability of being wrong.
    """
    if (found := reliability(run, bins=bins)) is None:
        raise InvalidInput(
            "no answer has P(wrong); pass calibrate a wrongness=..., as `fit` makes one"
        )
    figure, [above, below] = sgic_canvas(2, 1, size=(5.2, 5.8))
    above.plot([0, 1], [0, 1], color=QUIET, linestyle="--", label="as promised")
    said = [one.said for one in found.bins if one.said is not None]
    wrong = [one.wrong for one in found.bins if one.wrong is not None]
    above.plot(said, wrong, color=BAD, marker="o", label=f"this run, ECE {found.ece:.3f}")
    above.set(xlim=(0, 1), ylim=(-0.03, 1.03), ylabel="share of wrong answers")
    above.set_title("P(wrong) and what came true", loc="left")
    above.legend(frameon=False)
    places = [(one.low + one.high) / 2 for one in found.bins]
    bars = below.bar(places, [one.count for one in found.bins], 0.9 / len(places), color=QUIET)
    below.bar_label(bars, [str(one.count or "") for one in found.bins], color=INK, padding=2)
    below.set(xlim=(0, 1), xlabel="P(wrong)", ylabel="answers")
    below.margins(y=0.2)
    figure.align_ylabels()
    return saved(figure, path)


def attention_picture(
    shares: Mapping[str, Sequence[float]], relevant: Sequence[bool], path: str | Path
) -> Path:
    """The share of attention on each document, one panel below the other (figure 6).

    Args:
        shares: of each document, by what the panel is called ("first answer", "round 1");
            `AttentionShares.documents`, or `.relative` for shares that add up to 1.
        relevant: whether each document helps.

    Raises:
        InvalidInput: there is nothing to show, or not one label for each share.
    """
    if not shares or not relevant or any(len(one) != len(relevant) for one in shares.values()):
        raise InvalidInput(
            f"shares of {[len(one) for one in shares.values()]} documents came with "
            f"{len(relevant)} labels; give one for each, and at least one panel"
        )
    figure, axes = sgic_canvas(len(shares), 1, size=(7.2, 1.9 * len(shares) + 1.2), share=True)
    numbers = range(1, len(relevant) + 1)
    for place, (name, values) in zip(axes, shares.items(), strict=True):
        bars = place.bar(numbers, values, color=[GOOD if helps else QUIET for helps in relevant])
        labels = [f"{v:.1%}" if helps else "" for v, helps in zip(values, relevant, strict=True)]
        place.bar_label(bars, labels, color=INK, padding=2)
        place.set_title(name, loc="left")
        place.yaxis.set_major_formatter(PercentFormatter(1.0))
        place.margins(y=0.2)
    axes[-1].set_xticks(numbers)
    axes[-1].set_xlabel("document")
    figure.supylabel("share of attention")
    kinds = [Patch(color=GOOD, label="helpful (with its share)"), Patch(color=QUIET, label="other")]
    figure.legend(handles=kinds, loc="outside upper right", ncols=2, frameon=False)
    return saved(figure, path)


def analysis_pictures(run: Sequence[Judged], folder: str | Path) -> list[Path]:
    """All that can be drawn of these answers, as PNG files; the folder is made.

    Raises:
        InvalidInput: there are no answers.
        UnwritableArtifact: the folder cannot be made or written to.
    """
    _check(run)
    folder = Path(folder)
    with writing(folder):
        drawn = [
            spread_picture(run, folder / "uncertainty.png"),
            paths_picture(run, folder / "paths.png"),
        ]
        if any(len(one.right) > 1 for one in run):
            drawn.append(turns_picture(run, folder / "turns.png"))
        if any(one.answer.p_wrong is not None for one in run):
            drawn.append(reliability_picture(run, folder / "wrongness.png"))
    return drawn


def _check(run: Sequence[Judged]) -> None:
    if not run:
        raise InvalidInput("there are no answers to draw; run `calibrate` on some questions")


ROUNDS_FILE = "sgic_run.jsonl"


def round_pictures(run: Path, records: Mapping[str, Sequence[Record]]) -> list[Picture]:
    """Those of each cell whose records have rounds, and of the file, if it is there.

    Raises:
        BadRecord: a line of the file is damaged.
        InvalidInput: the file is empty, or cannot be read.
    """
    found = []
    for name, some in records.items():
        judged = [from_record(one.rounds) for one in some if one.rounds is not None]
        if judged:
            found += _of(judged, f"sgic-{slug(name)}", visible(name))
    path = run / ROUNDS_FILE
    if path.exists():
        judged = read_run(path)
        if not judged:
            raise InvalidInput(f"{path} holds no answers; take it away, or write it with write_run")
        found += _of(judged, "sgic", "SGIC")
    return found


def _of(run: Sequence[Judged], slug: str, title: str) -> list[Picture]:
    again = any(len(one.right) > 1 for one in run)
    promised = any(one.answer.p_wrong is not None for one in run)
    known = any(one.relevant for one in run)
    paths = "Single questions, right or wrong in each round."
    kinds = (  # whether it can be drawn, and whether its panels stand side by side
        ("uncertainty", "Of right and wrong first answers.", spread_picture, True, known),
        ("paths", paths, paths_picture, again, True),
        ("turns", "Answers that stay or turn, by round.", turns_picture, again, False),
        ("wrongness", "P(wrong): said, and true.", reliability_picture, promised, False),
    )
    return [
        Picture(f"{slug}-{name}", f"{title}: {name}", told, partial(draw, run), wide=wide)
        for name, told, draw, possible, wide in kinds
        if possible
    ]
