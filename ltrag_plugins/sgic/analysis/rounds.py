"""What happens from round to round: right answers, uncertainty, turns, single questions.

References:
    Chen et al. (SGIC), section 5.3 with figures 4 and 5, and appendix A.5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.metrics.calibration import auroc
from ltrag_plugins.sgic.analysis.judged import Judged, checked_run
from ltrag_plugins.sgic.answer import Round

Since = Literal["before", "first"]
"""Which answer a turn starts from: that of the round before, or that of round 0."""


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """The answers of one round, or those returned."""

    name: str
    """"round 0", "round 1", ... or "returned"."""
    answers: int
    """Where questions stop early, later rounds have fewer."""
    right: float
    """Share of right ones, 0 to 1."""
    uncertainty: float
    """Mean, 0 to 1."""
    score: float
    """Mean, 0 to 100."""
    auroc: float | None
    """Of the uncertainty for "wrong", 0 to 1; None where all are right, or all wrong."""
    score_auroc: float | None
    """Of the score; another than `auroc` only where answers of several rounds stand together, as
    each round has its own scale, or where the scores are an oracle's."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The questions whose answer went one way."""

    before: bool
    """Whether the earlier answer was right."""
    after: bool
    """Whether the answer of the round is."""
    count: int
    uncertainty: float | None
    """Mean of the answers of the round, 0 to 1; None where there are none."""
    score: float | None
    """The same as a score, 0 to 100; what figure 4 draws."""

    @property
    def name(self) -> str:
        """As the paper writes it."""
        return f"{_RIGHT[self.before]} → {_RIGHT[self.after]}"


@dataclass(frozen=True, slots=True)
class Turns:
    """How answers changed in one round (figure 4)."""

    round: int
    """From 1 on."""
    since: Since
    turns: tuple[Turn, Turn, Turn, Turn]
    """Right to right, right to wrong, wrong to right, wrong to wrong."""


@dataclass(frozen=True, slots=True)
class AnswerPath:
    """One question on its way through the rounds (figure 5)."""

    question: str
    right: tuple[bool, ...]
    scores: tuple[float, ...]
    """0 to 100, one a round."""
    returned: int
    """The round whose answer was chosen."""


def round_figures(run: Sequence[Judged]) -> tuple[AnswerFigures, ...]:
    """Each round over the questions that got to it (A.5: of round 0 and 1).

    Raises:
        InvalidInput: there are no answers, or they are of several estimators.
    """
    rounds = max(len(one.right) for one in checked_run(run))
    return tuple(
        _figures(f"round {n}", [(one.answer.trace[n], one.right[n]) for one in _went(run, n)])
        for n in range(rounds)
    )


def returned_figures(run: Sequence[Judged]) -> AnswerFigures:
    """The answers that were chosen; raises as `round_figures`."""
    return _figures("returned", [(one.returned, one.returned_right) for one in checked_run(run)])


def turns(run: Sequence[Judged], since: Since = "before") -> tuple[Turns, ...]:
    """Right and wrong answers, and what became of them, for each round after the first.

    The paper says "how answers change in each calibration round": we read "before", from the
    answer of round n - 1 to that of round n. "first" goes from round 0 to n.

    Raises:
        InvalidInput: there are no answers, or they are of several estimators; or no such `since`.
    """
    if since not in ("before", "first"):
        raise InvalidInput(f"since must be 'before' or 'first', got {since!r}")
    rounds = max(len(one.right) for one in checked_run(run))
    return tuple(_turns(_went(run, n), n, since) for n in range(1, rounds))


def paths(
    run: Sequence[Judged], count: int | None = None, *, seed: int = 0
) -> tuple[AnswerPath, ...]:
    """The way of single questions, in their order.

    Args:
        count: that many, drawn at random (paper: 10); None, or more than there are: all.
    """
    drawn = range(len(run))
    if count is not None and count < len(run):
        drawn = sorted(Random(seed).sample(drawn, count))
    return tuple(
        AnswerPath(
            run[i].question,
            run[i].right,
            tuple(one.score for one in run[i].answer.trace),
            run[i].answer.round,
        )
        for i in drawn
    )


def auroc_or_none(scores: Sequence[float], wrong: Sequence[bool]) -> float | None:
    """AUROC in [0, 1]; None where there are not both kinds."""
    return auroc(scores, wrong) if len(set(wrong)) == 2 else None


def mean_or_none(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return sum(values) / len(values) if values else None


def _went(run: Sequence[Judged], number: int) -> list[Judged]:
    """The questions that got to this round."""
    return [one for one in run if number < len(one.right)]


def _figures(name: str, answers: Sequence[tuple[Round, bool]]) -> AnswerFigures:
    wrong = [not right for _, right in answers]
    uncertainties = [one.uncertainty for one, _ in answers]
    scores = [one.score for one, _ in answers]
    return AnswerFigures(
        name,
        len(answers),
        1 - sum(wrong) / len(wrong),
        sum(uncertainties) / len(wrong),
        sum(scores) / len(wrong),
        auroc_or_none(uncertainties, wrong),
        auroc_or_none(scores, wrong),
    )


def _turns(run: Sequence[Judged], number: int, since: Since) -> Turns:
    start = 0 if since == "first" else number - 1
    ways = ((True, True), (True, False), (False, True), (False, False))
    a, b, c, d = (_turn(run, start, number, before, after) for before, after in ways)
    return Turns(number, since, (a, b, c, d))


def _turn(run: Sequence[Judged], start: int, number: int, before: bool, after: bool) -> Turn:
    found = [
        one.answer.trace[number]
        for one in run
        if (one.right[start], one.right[number]) == (before, after)
    ]
    uncertainty = mean_or_none([one.uncertainty for one in found])
    return Turn(before, after, len(found), uncertainty, mean_or_none([one.score for one in found]))


_RIGHT = {True: "right", False: "wrong"}
