"""Pictures of a run: uncertainty, answers that turn, single questions, P(wrong), attention.

Each function returns the path of the picture, whose suffix says the format (.png, .svg, .pdf).
Good and bad differ in more than colour (marks, hatching), and the colours are blue and orange: they
can be told apart in print, and by eyes that see red and green alike.

References:
    Chen et al. (SGIC), figures 1, 4, 5 and 6.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ltrag_plugins.artifacts import writing
from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.sgic.analysis.drawing import (
    BAD,
    GOOD,
    INK,
    QUIET,
    canvas,
    draw_path,
    draw_spread,
    draw_turn_bars,
    draw_turn_lines,
    path_marks,
    round_axis,
    saved,
)
from ltrag_plugins.sgic.analysis.judged import Judged
from ltrag_plugins.sgic.analysis.rounds import Since, paths, turns
from ltrag_plugins.sgic.analysis.spread import answer_spread, document_spread, reliability

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
    figure, axes = canvas(1, count, size=(4.8 * count, 3.9))
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
    figure, [above, below] = canvas(2, 1, size=(7.2, 5.6))
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
    figure, axes = canvas(
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
    figure, [above, below] = canvas(2, 1, size=(5.2, 5.8))
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
    figure, axes = canvas(len(shares), 1, size=(7.2, 1.9 * len(shares) + 1.2), share=True)
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
