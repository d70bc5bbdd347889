"""Say so instead of answering, where an answer is too uncertain."""

from dataclasses import dataclass
from numbers import Real

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.sgic.answer import CalibratedAnswer

REFUSAL = "I am not sure enough to answer."
"""What is said unless the caller words it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """When to refuse an answer, and in which words; without a limit nothing is refused.

    Raises:
        InvalidInput: a limit is no number, or out of its range.
    """

    above: float | None = None
    """Refuse answers with a score above this, 0-100."""
    p_wrong_above: float | None = None
    """Refuse answers that are wrong with a probability above this, 0-1; needs a calibration."""
    text: str = REFUSAL
    """What is said instead."""

    def __post_init__(self) -> None:
        if not _within(self.above, 100):
            raise InvalidInput(f"refuse_above is a score in [0, 100], got {self.above!r}")
        if not _within(self.p_wrong_above, 1):
            raise InvalidInput(
                f"refuse_p_wrong_above is a probability in [0, 1], got {self.p_wrong_above!r}"
            )

    def refuses(self, answer: CalibratedAnswer) -> bool:
        """Whether this answer is to be kept back; the answer itself is not changed.

        With a limit on P(wrong), an answer without documents is: nobody knows how likely it is
        to be wrong.

        Raises:
            InvalidInput: there is a limit on P(wrong), and the answer has none.
        """
        if self.p_wrong_above is None:
            return self.above is not None and answer.score > self.above
        if answer.p_wrong is None and not answer.documents:
            return True
        if answer.p_wrong is None:
            raise InvalidInput(
                "refuse_p_wrong_above needs answers with P(wrong): calibrate with a fitted "
                "WrongnessCalibration, or refuse by the score (refuse_above, 0-100)"
            )
        too_likely_wrong = answer.p_wrong > self.p_wrong_above
        return too_likely_wrong or (self.above is not None and answer.score > self.above)

    def said(self, answer: CalibratedAnswer) -> str:
        """The answer's text, or the refusal."""
        return self.text if self.refuses(answer) else answer.text


def _within(limit: object, most: float) -> bool:
    return limit is None or (isinstance(limit, Real) and 0 <= float(limit) <= most)
