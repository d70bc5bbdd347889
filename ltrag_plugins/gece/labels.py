"""What is known of the calibration questions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.gece.fitted import Outcome

FEWEST = 20
"""Fewest calibration questions; at least two of them right, and two wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Outcomes as columns."""

    fails: Int[np.ndarray, " questions"]
    """1 where the direct answer is wrong."""
    quality: Float[np.ndarray, " questions"]
    """METEOR (or chrF, 1 - TER) of the direct answer; 0 everywhere if no references are known."""
    mended: Int[np.ndarray, " questions"] | None = None
    """1 where the answer with retrieval is right; None when nobody tried."""

    def __getitem__(self, rows: Int[np.ndarray, " rows"]) -> "Labels":
        mended = None if self.mended is None else self.mended[rows]
        return Labels(self.fails[rows], self.quality[rows], mended)

    @property
    def gain(self) -> Float[np.ndarray, " questions"]:
        """What retrieval changes: +1, 0 or -1."""
        assert self.mended is not None
        return (self.mended - (1 - self.fails)).astype(float)

    @property
    def rarer(self) -> int:
        """How many there are of the rarer kind, right or wrong."""
        return int(min(self.fails.sum(), len(self.fails) - self.fails.sum()))


def labels_of(outcomes: Sequence[Outcome]) -> Labels:
    """The outcomes as columns, if a gate can be fitted on them.

    Raises:
        CalibrationError: too few, or all right or all wrong.
        InvalidInput: answers with retrieval for some of the questions, or a quality of NaN.
    """
    check_count(len(outcomes))
    right = [bool(outcome.right) for outcome in outcomes]
    _check_both_kinds(right)
    tried = [outcome.right_with_retrieval for outcome in outcomes]
    known = [bool(t) for t in tried if t is not None]
    if known and len(known) < len(tried):
        raise InvalidInput(
            f"right_with_retrieval is given for {len(known)} of {len(tried)} calibration "
            "questions; give it for all or for none"
        )
    quality = [float(outcome.quality) for outcome in outcomes]
    if not all(map(math.isfinite, quality)):
        raise InvalidInput("an Outcome.quality is not finite; it is METEOR, chrF or 1 - TER")
    return Labels(
        fails=1 - np.array(right, dtype=int),
        quality=np.array(quality),
        mended=np.array(known, dtype=int) if known else None,
    )


def check_count(questions: int) -> None:
    """Whether there are questions enough.

    Raises:
        CalibrationError: there are not.
    """
    if questions < FEWEST:
        raise CalibrationError(
            f"{questions or 'no'} calibration questions; a gate needs at least {FEWEST}, better 200"
        )


def _check_both_kinds(right: Sequence[bool]) -> None:
    if 2 <= sum(right) <= len(right) - 2:
        return
    kind, remedy = (
        ("right", "Answer directly without a gate, or calibrate on harder questions.")
        if sum(right) >= 2
        else (
            "wrong",
            "Always retrieve without a gate, calibrate on easier questions, look whether the "
            "prompt suits the model, or loosen GECESettings.correct.",
        )
    )
    raise CalibrationError(
        f"the direct answer is {kind} on (nearly) all {len(right)} calibration questions, so there "
        f"is nothing to tell apart. {remedy}"
    )
