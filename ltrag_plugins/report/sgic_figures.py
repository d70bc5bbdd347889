"""Pictures of SGIC's rounds: uncertainty, answers that turn, single questions, P(wrong), attention.

Each function returns the path of the picture, whose suffix says the format (.png, .svg, .pdf).
A report draws them of the records of a method that calibrates, and of `RUN/sgic_run.jsonl`, which
`ltrag_plugins.sgic.write_run` wrote.

References:
    Chen et al. (SGIC), figures 1, 4, 5 and 6.
"""

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ltrag_plugins.artifacts import writing
from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.report.escaping import slug, visible
from ltrag_plugins.report.plots import (
    BLUE,
    INK,
    ORANGE,
    QUIET,
    Picture,
    as_percent,
    canvas,
    hatched,
    reliability_figure,
    saved,
    styled,
)
from ltrag_plugins.sgic.figures import (
    Since,
    Spread,
    answer_spread,
    document_spread,
    paths,
    turns,
    wrongness_reliability,
)
from ltrag_plugins.sgic.records import LabelledAnswer, from_record, read_run

try:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise missing_extra("matplotlib", "plots") from error

_FILE = "sgic_run.jsonl"
_COLUMNS = 5
"""Single questions side by side."""
_TURNS = (
    (BLUE, "-", "o", ""),  # right to right
    (ORANGE, "--", "v", "////"),  # right to wrong
    (BLUE, "--", "^", "////"),  # wrong to right
    (ORANGE, "-", "X", ""),  # wrong to wrong
)
_MARKS = ((True, BLUE, "o"), (False, ORANGE, "X"))
_BESIDE = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)}


@styled()
def spread_picture(run: Sequence[LabelledAnswer], path: str | Path, *, bins: int = 10) -> Path:
    """Uncertainty of right and wrong first answers, and of documents (figure 1)."""
    _check(run)
    answers, documents = answer_spread(run, bins=bins), document_spread(run, bins=bins)
    count = 1 if documents is None else 2
    figure, axes = canvas(1, count, size=(4.8 * count, 3.9))
    _draw_spread(axes[0], answers, "First answers", ("right", "wrong"))
    axes[0].set_ylabel("share of each kind")
    if documents is not None:
        _draw_spread(axes[1], documents, "Documents", ("helpful", "other"))
    return saved(figure, path)


def _draw_spread(axes: Axes, spread: Spread, title: str, names: tuple[str, str]) -> None:
    """Two histograms over each other, each as shares of its own kind, and their means."""
    highest = 1.0
    kinds = [(spread.good, names[0], False), (spread.bad, names[1], True)]
    for found, name, bad in kinds:
        if found.total:
            edges = [i / len(found.counts) for i in range(len(found.counts) + 1)]
            shares, mean = [count / found.total for count in found.counts], found.mean or 0.0
            label = f"{name}: {found.total}, mean {mean:.2f}"
            hatched(axes, shares, edges, bad=bad, label=label)
            axes.axvline(mean, color=ORANGE if bad else BLUE, linestyle=":" if bad else "--")
    highest = max((max(k.counts) / k.total for k, *_ in kinds if k.total), default=1)
    told = "" if spread.auroc is None else f", AUROC {spread.auroc:.2f}"
    axes.set_title(f"{title}{told}", loc="left")
    axes.set(xlim=(-0.01, 1.01), ylim=(0, min(1.02, 1.15 * highest)))
    axes.set_xlabel("uncertainty (lines: means)")
    as_percent(axes.yaxis)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


@styled()
def turns_picture(
    run: Sequence[LabelledAnswer], path: str | Path, *, since: Since = "before"
) -> Path:
    """Mean score of the answers that stay or turn in each round, and how many (figure 4)."""
    found = turns(run, since)
    if not found:
        raise InvalidInput("no answer has a round after the first, so none can turn")
    figure, [above, below] = canvas(2, size=(7.2, 5.6))
    rounds, bottom = [one.round for one in found], [0] * len(found)
    for kind, (colour, line, marker, hatch) in enumerate(_TURNS):
        ways = [one.turns[kind] for one in found]
        known = {n: way.score for n, way in zip(rounds, ways, strict=True) if way.score is not None}
        label, scores = ways[0].name, [*known.values()]
        above.plot([*known], scores, color=colour, linestyle=line, marker=marker, label=label)
        counts = [way.count for way in ways]
        below.bar(
            rounds, counts, 0.5, bottom, label=label, color=colour, hatch=hatch, edgecolor="white"
        )
        bottom = [a + b for a, b in zip(bottom, counts, strict=True)]
    start = "the round before" if since == "before" else "round 0"
    above.set_title(f"From the answer of {start} to that of this round", loc="left")
    above.set(ylabel="mean score, 0-100", ylim=(-4, 104))
    below.set(ylabel="answers", xlabel="round")
    _round_axis(above, 1, found[-1].round)
    for axes in (above, below):
        axes.legend(**_BESIDE)
    return saved(figure, path)


@styled()
def paths_picture(
    run: Sequence[LabelledAnswer], path: str | Path, *, count: int = 10, seed: int = 0
) -> Path:
    """Right or wrong, and the score, of single questions in each round (figure 5).

    Args:
        count: questions, drawn at random (paper: 10).
    """
    _check(run)
    if count < 1:
        raise InvalidInput(f"count must be at least 1, got {count}")
    found = paths(run, count, seed=seed)
    columns = min(_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    size = (max(2.4 * columns, 4.8), 2.3 * rows + 0.6)
    figure, axes = canvas(rows, columns, size=size, sharey=True)
    last = max(len(one.scores) for one in found) - 1
    for place, one in zip(axes, found, strict=False):
        place.plot(range(len(one.scores)), one.scores, color=QUIET, linewidth=1.5, zorder=1)
        for kind, colour, marker in _MARKS:
            of_kind = [n for n, right in enumerate(one.right) if right is kind]
            scores = [one.scores[n] for n in of_kind]
            place.scatter(of_kind, scores, color=colour, marker=marker, s=55, zorder=2)
        ring = {"facecolors": "none", "edgecolors": INK, "s": 150, "zorder": 3}
        place.scatter([one.returned], [one.scores[one.returned]], **ring)
        lines = textwrap.wrap(one.question, 30, max_lines=2, placeholder=" …")
        place.set_title("\n".join(lines), fontsize=8, loc="left")
        _round_axis(place, 0, last)
    for place in axes[len(found) :]:
        place.set_visible(False)
    axes[0].set_ylim(-8, 108)
    figure.supxlabel("round")
    figure.supylabel("score, 0-100 (larger: less certain)")
    marks = [
        Line2D([], [], marker=marker, color=colour, linestyle="none", label=name)
        for (_, colour, marker), name in zip(_MARKS, ("right", "wrong"), strict=True)
    ]
    ring = Line2D([], [], marker="o", color=INK, linestyle="none", label="returned")
    ring.set(markerfacecolor="none", markersize=12)
    figure.legend(handles=[*marks, ring], loc="outside upper right", ncols=3)
    return saved(figure, path)


@styled()
def reliability_picture(run: Sequence[LabelledAnswer], path: str | Path, *, bins: int = 10) -> Path:
    """Said and true shares of wrong answers, and how many answers stand behind each."""
    if (found := wrongness_reliability(run, bins=bins)) is None:
        raise InvalidInput(
            "no answer has P(wrong); pass calibrate a wrongness=..., as `fit` makes one"
        )
    return saved(reliability_figure(found, f"P(wrong), ECE {found.ece:.3f}"), path)


@styled()
def attention_picture(
    shares: Mapping[str, Sequence[float]], relevant: Sequence[bool], path: str | Path
) -> Path:
    """The share of attention on each document, one panel below the other (figure 6).

    Args:
        shares: of each document, by what the panel is called ("first answer", "round 1");
            `AttentionShares.documents`, or `.relative` for shares that add up to 1.
        relevant: whether each document helps.
    """
    if not shares or not relevant or any(len(one) != len(relevant) for one in shares.values()):
        raise InvalidInput(
            f"shares of {[len(one) for one in shares.values()]} documents came with "
            f"{len(relevant)} labels; give one for each, and at least one panel"
        )
    figure, axes = canvas(len(shares), size=(7.2, 1.9 * len(shares) + 1.2), sharey=True)
    numbers = range(1, len(relevant) + 1)
    for place, (name, values) in zip(axes, shares.items(), strict=True):
        bars = place.bar(numbers, values, color=[BLUE if helps else QUIET for helps in relevant])
        labels = [f"{v:.1%}" if helps else "" for v, helps in zip(values, relevant, strict=True)]
        place.bar_label(bars, labels, color=INK, padding=2)
        place.set_title(name, loc="left")
        as_percent(place.yaxis)
        place.margins(y=0.2)
    axes[-1].set_xticks(numbers)
    axes[-1].set_xlabel("document")
    figure.supylabel("share of attention")
    kinds = [Patch(color=BLUE, label="helpful (with its share)"), Patch(color=QUIET, label="other")]
    figure.legend(handles=kinds, loc="outside upper right", ncols=2)
    return saved(figure, path)


def analysis_pictures(run: Sequence[LabelledAnswer], folder: str | Path) -> list[Path]:
    """All that can be drawn of these answers, as PNG files; the folder is made."""
    _check(run)
    with writing(Path(folder)):
        return [
            picture.draw(Path(folder) / f"{picture.name}.png")
            for picture in _pictures(run, "", "SGIC", paths_of_one=True)
        ]


def round_pictures(run: Path, records: Mapping[str, Sequence[Record]]) -> list[Picture]:
    """Those of each cell whose records have rounds, and of the file, if it is there."""
    found = []
    for name, some in records.items():
        judged = [from_record(one.rounds) for one in some if one.rounds is not None]
        if judged:
            found += _pictures(judged, f"sgic-{slug(name)}-", visible(name))
    path = run / _FILE
    if path.exists():
        judged = read_run(path)
        if not judged:
            raise InvalidInput(f"{path} holds no answers; take it away, or write it with write_run")
        found += _pictures(judged, "sgic-", "SGIC")
    return found


def _pictures(
    run: Sequence[LabelledAnswer], prefix: str, title: str, *, paths_of_one: bool = False
) -> list[Picture]:
    again = any(len(one.right) > 1 for one in run)
    promised = any(one.answer.p_wrong is not None for one in run)
    known = any(one.relevant for one in run)
    questions = "Single questions, right or wrong in each round."
    kinds = (  # whether it can be drawn, and whether its panels stand side by side
        ("uncertainty", "Of right and wrong first answers.", spread_picture, True, known),
        ("paths", questions, paths_picture, again or paths_of_one, True),
        ("turns", "Answers that stay or turn, by round.", turns_picture, again, False),
        ("wrongness", "P(wrong): said, and true.", reliability_picture, promised, False),
    )
    return [
        Picture(f"{prefix}{name}", f"{title}: {name}", told, partial(draw, run), wide=wide)
        for name, told, draw, possible, wide in kinds
        if possible
    ]


def _round_axis(axes: Axes, first: int, last: int) -> None:
    axes.set_xlim(first - 0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _check(run: Sequence[LabelledAnswer]) -> None:
    if not run:
        raise InvalidInput("there are no answers to draw; run `calibrate` on some questions")
