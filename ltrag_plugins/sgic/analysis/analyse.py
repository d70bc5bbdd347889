"""All figures of a run: what its uncertainty tells, and what the rounds did.

References:
    Chen et al. (SGIC), figures 1, 4 and 5, sections 5.3 and 5.6, appendix A.5.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ltrag_plugins.sgic.analysis.judged import Judged, checked_run, judged
from ltrag_plugins.sgic.analysis.mending import EARLY, Mending, mending
from ltrag_plugins.sgic.analysis.ranking import document_recall
from ltrag_plugins.sgic.analysis.rounds import (
    AnswerFigures,
    Turn,
    Turns,
    returned_figures,
    round_figures,
    turns,
)
from ltrag_plugins.sgic.analysis.spread import (
    Reliability,
    Spread,
    answer_spread,
    document_spread,
    reliability,
)

__all__ = ["Analysis", "Judged", "analyse", "judged"]

ENOUGH = 30
"""Right and wrong answers each, below which an AUROC is called a guess."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Figures of a run; `print` shows them as a table."""

    estimator: str
    rounds: tuple[AnswerFigures, ...]
    """Round 0 first."""
    returned: AnswerFigures
    turns: tuple[Turns, ...]
    """From the round before, from round 1 on (figure 4)."""
    turns_from_first: tuple[Turns, ...]
    """From round 0."""
    first: Spread
    """Of the first answers (figure 1)."""
    chosen: Spread
    """Of the answers returned."""
    documents: Spread | None
    """None where nobody knows which help, or none was asked about alone."""
    recall: Mapping[int, float]
    """R@k of the documents that help, least uncertain first, by k; empty as for `documents`."""
    mending: Mending
    reliability: Reliability | None
    """Of P(wrong); None where the answers have none."""
    notes: tuple[str, ...] = ()
    """What a reader should know before relying on it."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"recall": {f"R@{k}": value for k, value in self.recall.items()}}

    def __str__(self) -> str:
        rows = [_name(f"{self.mending.questions} questions, by {self.estimator}")[:_WIDE] + _HEAD]
        rows += [_figures(row) for row in (*self.rounds, self.returned)]
        rows += ["", _name("answers that turn, mean score") + "".join(_KINDS)]
        rows += [_turns(f"round {t.round - 1} to {t.round}", t) for t in self.turns]
        rows += [_turns(f"round 0 to {t.round}", t) for t in self.turns_from_first[1:]]
        rows += ["", *_mending(self.mending), *self._documents(), *self._promise()]
        return "\n".join(rows + [f"note: {note}" for note in self.notes])

    def _documents(self) -> list[str]:
        rows = []
        if (found := self.documents) is not None:
            helps, others = found.good, found.bad
            rows = [
                _name("documents that help") + _mean(helps.total, helps.mean),
                _name("documents that do not") + _mean(others.total, others.mean),
                _name("AUROC of documents") + _number(found.auroc),
            ]
        return rows + [_name(f"R@{k}") + f"{value:.3f}" for k, value in self.recall.items()]

    def _promise(self) -> list[str]:
        if (found := self.reliability) is None:
            return []
        return [
            _name("P(wrong): AUROC, calibration error") + f"{_number(found.auroc)}, {found.ece:.3f}"
        ]


def analyse(run: Sequence[Judged], *, bins: int = 10, ks: Iterable[int] = (1, 2)) -> Analysis:
    """Everything that can be said of these answers.

    Args:
        run: from `judged`, or read with `read_run`.
        bins: of the histograms over [0, 1], and of the reliability.
        ks: of R@k.

    Raises:
        InvalidInput: there are no answers, or they are of several estimators; or fewer than 1 bin.
    """
    checked_run(run)
    return Analysis(
        estimator=run[0].answer.estimator,
        rounds=round_figures(run),
        returned=returned_figures(run),
        turns=turns(run),
        turns_from_first=turns(run, "first"),
        first=answer_spread(run, bins=bins),
        chosen=answer_spread(run, returned=True, bins=bins),
        documents=document_spread(run, bins=bins),
        recall=document_recall(run, ks),
        mending=mending(run),
        reliability=reliability(run, bins=bins),
        notes=tuple(_notes(run)),
    )


def _notes(run: Sequence[Judged]) -> list[str]:
    notes, right = [], sum(one.first_right for one in run)
    rarer, kind = min((right, "right"), (len(run) - right, "wrong"))
    if rarer < ENOUGH:
        notes.append(f"only {rarer} first answers are {kind}: the AUROCs are guesses")
    lengths = [len(one.right) for one in run]
    if short := sum(length < max(lengths) for length in lengths):
        notes.append(
            f"{short} of {len(run)} questions stopped before the last round: the figures of later "
            "rounds are of the others"
        )
    if unscored := sum(not _scored(one) for one in run if one.relevant):
        notes.append(f"{unscored} of {len(run)} questions have documents without an uncertainty")
    return notes


def _scored(one: Judged) -> bool:
    return all(document.uncertainty is not None for document in one.answer.documents)


def _figures(row: AnswerFigures) -> str:
    auroc = _number(row.auroc)
    if row.score_auroc != row.auroc:
        auroc += f" (of the score: {_number(row.score_auroc)})"
    figures = f"{row.answers:9d}{row.right:8.3f}{row.uncertainty:13.3f}{row.score:8.1f}  {auroc}"
    return _name(row.name) + figures


def _turns(name: str, found: Turns) -> str:
    return _name(name) + "".join(f"{_turn(turn):>{_CELL}}" for turn in found.turns)


def _turn(turn: Turn) -> str:
    return f"{turn.count}" if turn.score is None else f"{turn.count} ({turn.score:.1f})"


def _mending(found: Mending) -> list[str]:
    counts = {
        "mended": (found.mended, f"{found.mended_early} of them within {EARLY} rounds"),
        "failed": (
            found.failed,
            f"{found.fell} grew less uncertain, {found.rose} did not in all rounds, "
            f"{found.stopped} stopped early; {found.missed} were right in some round",
        ),
        "spoiled": (found.spoiled, ""),
        "kept": (found.kept, ""),
    }
    return [
        (
            _name(name)
            + f"{count} ({found.share(count):.1%})"
            + (f": {more}" if count and more else "")
        )
        for name, (count, more) in counts.items()
    ]


def _name(text: str) -> str:
    return f"{text:<{_WIDE}}"


def _mean(count: int, mean: float | None) -> str:
    return f"{count}, uncertainty {_number(mean)}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


_WIDE, _CELL = 36, 16
_HEAD = f"{'answers':>9}{'right':>8}{'uncertainty':>13}{'score':>8}  AUROC for wrong"
_KINDS = [
    f"{name:>{_CELL}}"
    for name in ("right → right", "right → wrong", "wrong → right", "wrong → wrong")
]
