"""What became of wrong first answers, and of right ones.

References:
    Chen et al. (SGIC), section 5.6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ltrag_plugins.sgic.analysis.judged import Judged, checked_run
from ltrag_plugins.sgic.analysis.rounds import mean_or_none

EARLY = 2
"""Rounds within which the paper finds three in four of what is mended."""


@dataclass(frozen=True, slots=True)
class Mending:
    """Counts of questions: `kept + spoiled + mended + failed` is all of them."""

    questions: int
    kept: int
    """Right at first, and right in the end (the answer returned)."""
    spoiled: int
    """Right at first, wrong in the end. The paper does not count them."""
    mended: int
    """Wrong at first, right in the end."""
    mended_early: int
    """Of those, first right in round 1 or 2."""
    failed: int
    """Wrong at first and in the end; the three below add up to it."""
    fell: int
    """Failed, the last answer less uncertain than the first (paper: "declining uncertainty")."""
    rose: int
    """Failed, after all rounds, the last answer no less uncertain than the first (paper: "reached
    the 5-round limit with rising uncertainty")."""
    stopped: int
    """Failed, no less uncertain, and ended before the round limit; see `CalibratedAnswer.stop`."""
    missed: int
    """Failed though some round had it right: another answer was chosen."""
    mended_uncertainty: float | None
    """Mean of the first answers that were mended, 0 to 1; None of nothing."""
    failed_uncertainty: float | None
    """Mean of the first answers that were not, 0 to 1; None of nothing."""

    def share(self, count: int) -> float:
        """Of all questions, 0 to 1."""
        return count / self.questions


def mending(run: Sequence[Judged]) -> Mending:
    """Count them.

    Raises:
        InvalidInput: there are no answers, or they are of several estimators.
    """
    ways = {
        (first, last): [
            one for one in run if (one.first_right, one.returned_right) == (first, last)
        ]
        for first in (True, False)
        for last in (True, False)
    }
    mended, failed = ways[False, True], ways[False, False]
    fell = [one for one in failed if _change(one) < 0]
    limit = [one for one in failed if _change(one) >= 0 and one.answer.stop == "rounds"]
    return Mending(
        questions=len(checked_run(run)),
        kept=len(ways[True, True]),
        spoiled=len(ways[True, False]),
        mended=len(mended),
        mended_early=sum(one.right.index(True) <= EARLY for one in mended),
        failed=len(failed),
        fell=len(fell),
        rose=len(limit),
        stopped=len(failed) - len(fell) - len(limit),
        missed=sum(any(one.right) for one in failed),
        mended_uncertainty=mean_or_none([one.first.uncertainty for one in mended]),
        failed_uncertainty=mean_or_none([one.first.uncertainty for one in failed]),
    )


def _change(one: Judged) -> float:
    """Of the uncertainty from the first round to the last."""
    return one.answer.trace[-1].uncertainty - one.first.uncertainty
