"""Questions that a method learns from."""

from collections.abc import Sequence
from typing import get_args

from ltrag_plugins.errors import CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.metrics.answer import Correct
from ltrag_plugins.types import Question


def some(questions: Sequence[Question], method: str) -> tuple[Question, ...]:
    """The questions, if there are any.

    Raises:
        CalibrationError: there are none.
    """
    if not questions:
        raise CalibrationError(
            f"{method} learns from labelled questions and got none; give it some that are not "
            "those it is judged on"
        )
    return tuple(questions)


def labelled(questions: Sequence[Question], method: str) -> tuple[Question, ...]:
    """The questions, if there are any and each has an accepted answer.

    Raises:
        CalibrationError: there are none.
        MissingReferences: one has no answers; names it.
    """
    for i, question in enumerate(some(questions, method)):
        if not question.answers:
            raise MissingReferences(
                f"labelled question {i + 1} ({question.text[:40]!r}) has no accepted answer, which "
                f"{method} learns from. Add one, or leave the question out."
            )
    return tuple(questions)


def check_correct(correct: str) -> None:
    """Whether there is such a way to tell right from wrong.

    Raises:
        InvalidInput: there is not.
    """
    if correct not in get_args(Correct):
        raise InvalidInput(
            f"correct must be one of {', '.join(get_args(Correct))}; got {correct!r}"
        )


def number(name: str, value: object, least: float, most: float) -> None:
    """Check a number of some settings.

    Raises:
        InvalidInput: it is none, or out of [least, most].
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidInput(f"{name} must be a number from {least:g} to {most:g}, got {value!r}")
