"""Questions that a method learns from."""

from collections.abc import Sequence

from ltrag_plugins.errors import CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.types import Question


def labelled(questions: Sequence[Question], method: str) -> tuple[Question, ...]:
    """The questions, if there are any and each has an accepted answer.

    Raises:
        CalibrationError: there are none.
        MissingReferences: one has no answers; names it.
    """
    if not questions:
        raise CalibrationError(
            f"{method} learns from labelled questions and got none; give it some that are not "
            "those it is judged on"
        )
    for i, question in enumerate(questions):
        if not question.answers:
            raise MissingReferences(
                f"labelled question {i + 1} ({question.text[:40]!r}) has no accepted answer, which "
                f"{method} learns from. Add one, or leave the question out."
            )
    return tuple(questions)


def number(name: str, value: object, least: float, most: float) -> None:
    """Check a number of some settings.

    Raises:
        InvalidInput: it is none, or out of [least, most].
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidInput(f"{name} must be a number from {least:g} to {most:g}, got {value!r}")
