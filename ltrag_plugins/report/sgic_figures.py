"""Pictures of SGIC's rounds, as figures 1, 4, 5 and 6 of Chen et al., and P(wrong)."""

import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.report import plots
from ltrag_plugins.report.escaping import slug, visible
from ltrag_plugins.sgic.analysis import Analysis, LabelledAnswer, analyse, from_record, read_run

_Answers = Sequence[LabelledAnswer]
_QUESTIONS, _COLUMNS = 10, 5  # single questions in a picture (paper: 10), and side by side
_TURNS = (
    (plots.BLUE, "-", "o", ""),  # right to right
    (plots.ORANGE, "--", "v", "////"),  # right to wrong
    (plots.BLUE, "--", "^", "////"),  # wrong to right
    (plots.ORANGE, "-", "X", ""),  # wrong to wrong
)
_MARKS = ((True, "right", plots.BLUE, "o"), (False, "wrong", plots.ORANGE, "X"))


def analysis_pictures(
    run: _Answers, folder: str | Path, *, formats: Iterable[str] = ("png",)
) -> list[Path]:
    """All that can be drawn of these answers, in files ("png", "svg", "pdf") of a folder; raises
    `InvalidInput` without answers, `UnwritableArtifact` where they cannot be written."""
    return plots.save_pictures(_pictures(run, "", "SGIC", paths_of_one=True), folder, formats)


@plots.styled()
def attention_picture(
    shares: Mapping[str, Sequence[float]], relevant: Sequence[bool], path: str | Path
) -> Path:
    """The share of attention on each document, one panel below the other (figure 6).

    Args:
        shares: by a panel's title, `AttentionShares.documents`, or `.relative`, which add up to 1.
        relevant: whether each document helps.
        path: its suffix says the format (.png, .svg, .pdf).

    Raises:
        InvalidInput: there are no documents or panels, or not a share and a label for each.
    """
    if not shares or not relevant or any(len(one) != len(relevant) for one in shares.values()):
        counts, remedy = [*map(len, shares.values())], "give at least one panel, and a label each"
        raise InvalidInput(f"shares of {counts} documents, {len(relevant)} labels; {remedy}")
    figure, axes = plots.canvas(len(shares), size=(7.2, 1.9 * len(shares) + 1.2), sharey=True)
    numbers = range(1, len(relevant) + 1)
    colours = [plots.BLUE if helps else plots.QUIET for helps in relevant]
    for place, (name, values) in zip(axes, shares.items(), strict=True):
        bars = place.bar(numbers, values, color=colours)
        labels = [f"{v:.1%}" if helps else "" for v, helps in zip(values, relevant, strict=True)]
        place.bar_label(bars, labels, color=plots.INK, padding=2)
        place.set_title(visible(name))
        plots.as_percent(place.yaxis)
        place.margins(y=0.2)
    axes[-1].set(xticks=numbers, xlabel="document")
    figure.supylabel("share of attention")
    for colour, label in ((plots.BLUE, "helpful (with its share)"), (plots.QUIET, "other")):
        axes[0].plot([], [], "s", color=colour, label=label)
    figure.legend(loc="outside upper right", ncols=2)
    return plots.save_figure(figure, path)


def round_pictures(run: Path, records: Mapping[str, Sequence[Record]]) -> list[plots.Picture]:
    """Those of each cell whose records have rounds, and of `sgic_run.jsonl`, if it is there."""
    found, path = [], run / "sgic_run.jsonl"
    for name, some in records.items():
        if judged := [from_record(one.rounds) for one in some if one.rounds is not None]:
            found += _pictures(judged, f"sgic-{slug(name)}-", visible(name))
    return found + (_pictures(read_run(path), "sgic-", "SGIC") if path.exists() else [])


@plots.styled()
def _pictures(
    run: _Answers, prefix: str, title: str, *, paths_of_one: bool = False
) -> list[plots.Picture]:
    found, questions = analyse(run), "Single questions, right or wrong in each round."
    beside, promise = found.documents is not None, found.reliability
    kinds: list[tuple[Any, ...]] = [
        ("uncertainty", "Of right and wrong first answers.", _spread(found), beside)
    ]
    if found.turns or paths_of_one:
        kinds.append(("paths", questions, _paths(run), True))
    if found.turns:
        kinds.append(("turns", "Answers that stay or turn, by round.", _turns(found), False))
    if promise is not None:
        figure = plots.reliability_figure(promise, f"P(wrong), ECE {promise.ece:.3f}")
        kinds.append(("wrongness", "P(wrong): said, and true.", figure, False))
    return [plots.Picture(f"{prefix}{name}", f"{title}: {name}", *x) for name, *x in kinds]


def _spread(analysis: Analysis) -> plots.Figure:
    """Uncertainty of right and wrong first answers, and of documents (figure 1)."""
    kinds = [("First answers", analysis.first, ("right", "wrong"))]
    if analysis.documents is not None:
        kinds.append(("Documents", analysis.documents, ("helpful", "other")))
    figure, axes = plots.canvas(1, len(kinds), size=(4.8 * len(kinds), 3.9))
    for place, (title, spread, names) in zip(axes, kinds, strict=True):
        highest = 0.0
        for found, name, bad in ((spread.good, names[0], False), (spread.bad, names[1], True)):
            if total := sum(found.counts):
                edges = [i / len(found.counts) for i in range(len(found.counts) + 1)]
                shares, mean = [count / total for count in found.counts], found.mean or 0.0
                plots.hatched(place, shares, edges, bad, f"{name}: {total}, mean {mean:.2f}")
                colour, line = (plots.ORANGE, ":") if bad else (plots.BLUE, "--")
                place.axvline(mean, color=colour, linestyle=line)
                highest = max(highest, *shares)
        told = "" if spread.auroc is None else f", AUROC {spread.auroc:.2f}"
        place.set(title=f"{title}{told}", xlabel="uncertainty (lines: means)")
        place.set(xlim=(-0.01, 1.01), ylim=(0, min(1.02, 1.15 * highest)))
        plots.as_percent(place.yaxis)
        place.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    axes[0].set_ylabel("share of each kind")
    return figure


def _paths(run: _Answers) -> plots.Figure:
    """Right or wrong, and the score, of single questions in each round (figure 5)."""
    found = [run[i] for i in sorted(Random(0).sample(range(len(run)), min(_QUESTIONS, len(run))))]
    columns = min(_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    size = (max(2.4 * columns, 4.8), 2.3 * rows + 0.6)
    figure, axes = plots.canvas(rows, columns, size=size, sharey=True)
    for place, one in zip(axes, found, strict=False):
        scores = [answer.score for answer in one.answer.trace]
        place.plot(range(len(scores)), scores, color=plots.QUIET, linewidth=1.5, zorder=1)
        for kind, _, colour, marker in _MARKS:
            rounds = [n for n, right in enumerate(one.right) if right is kind]
            there = [scores[n] for n in rounds]
            place.scatter(rounds, there, color=colour, marker=marker, s=55, zorder=2)
        chosen = [one.answer.round], [one.answer.score]
        place.scatter(*chosen, s=150, facecolors="none", edgecolors=plots.INK, zorder=3)
        place.set_title(_wrapped(one.question), fontsize=8)
        plots.count_axis(place, "", 0, max(len(one.right) for one in found) - 1)
    for place in axes[len(found) :]:
        place.set_visible(False)
    axes[0].set_ylim(-8, 108)
    figure.supxlabel("round")
    figure.supylabel("score, 0-100 (larger: less certain)")
    for _, name, colour, marker in _MARKS:
        axes[0].plot([], [], marker, color=colour, label=name)
    axes[0].plot([], [], "o", color=plots.INK, mfc="none", markersize=12, label="returned")
    figure.legend(loc="outside upper right", ncols=3)
    return figure


def _wrapped(question: str) -> str:
    """Two lines at most of 30 columns, of which Chinese or Japanese characters take two each."""
    text = " ".join(visible(question).split())
    # behind a wide character a space, at which a line may end, of a kind that no visible text has
    spaced = "".join(f"{c}\v" if unicodedata.east_asian_width(c) in "WF" else c for c in text)
    cut: Any = {"max_lines": 2, "placeholder": " …", "replace_whitespace": False}
    return "\n".join(textwrap.wrap(spaced, 30, **cut)).replace("\v", "")


def _turns(analysis: Analysis) -> plots.Figure:
    """Mean score of the answers that stay or turn in each round, and how many (figure 4)."""
    figure, [above, below] = plots.canvas(2, size=(7.2, 5.6))
    found, rounds = analysis.turns, range(1, 1 + len(analysis.turns))
    bottom = [0] * len(found)
    for kind, (colour, line, marker, hatch) in enumerate(_TURNS):
        ways = [one[kind] for one in found]
        known = {n: way.score for n, way in zip(rounds, ways, strict=True) if way.score is not None}
        style: Any = {"color": colour, "label": ways[0].name}
        above.plot([*known], [*known.values()], linestyle=line, marker=marker, **style)
        counts = [way.answers for way in ways]
        below.bar(rounds, counts, 0.5, bottom, hatch=hatch, edgecolor="white", **style)
        bottom = [a + b for a, b in zip(bottom, counts, strict=True)]
    title = "From the answer of the round before to that of this round"
    above.set(title=title, ylabel="mean score, 0-100", ylim=(-4, 104))
    below.set(ylabel="answers")
    plots.count_axis(below, "round", 1, len(found))
    for axes in (above, below):
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure
