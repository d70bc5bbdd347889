"""What can be set about training data: when an answer is right, and which examples are made."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Literal, Self, get_args

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.metrics.answer import f1, normalized_exact_match

Form = Literal["sgic", "direct"]
IncludeDirect = Literal["all", "kept", "none"]
Judge = Callable[[str, Sequence[str]], float]
"""From an answer and the accepted ones to how right it is, 0 to 1 (or a bool)."""
JUDGES: Mapping[str, Judge] = {"em": normalized_exact_match, "f1": f1}


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """Which examples are made of calibrated questions.

    Raises:
        InvalidInput: a value is out of its range.
    """

    form: Form = "sgic"
    """"sgic": prompts of the rounds. "direct": the plain first prompt of every question with its
    accepted answer, and no call of a model; tuned on that, a model is the baseline."""
    include_direct: IncludeDirect = "all"
    """Whether the plain first prompts are added, line for line those of form="direct": of all
    questions, of those that got right, or none (paper). A tuned model gives its first answer, and
    its answer to each document, from such prompts; without them it unlearns their form."""
    keep_wrong: float = 0.0
    """Share, 0 to 1, of the questions that never got right that stay, their last prompt with the
    accepted answer (paper: 0). For models that are right too rarely to learn from the rest."""
    right: Literal["em", "f1"] | Judge = "em"
    """When an answer is right: exact match after SQuAD's normalization (paper), word F1, or a
    function of yours."""
    right_from: float = 0.8
    """The least value of `right`, in (0, 1], with which an answer is right."""
    certain_below: float = 50.0
    """A right first answer with a score, 0-100, under this is the target as it stands; a less
    certain one is replaced by the accepted answer. 50 is the mean of first answers."""
    seed: int = 0
    """Of the draw of `keep_wrong`."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidInput(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        if not callable(self.right) and self.right not in JUDGES:
            raise InvalidInput(
                f"right must be one of {list(JUDGES)} or a function of an answer and the accepted "
                f"ones, got {self.right!r}"
            )
        _within("keep_wrong", self.keep_wrong, 0, 1)
        _within("certain_below", self.certain_below, 0, 100)
        _within("right_from", self.right_from, 0, 1)
        if not self.right_from:
            raise InvalidInput("right_from must be above 0; with 0 every answer is right")

    @classmethod
    def paper(cls) -> Self:
        """Section 3.3 to the letter: examples of the rounds alone, wrong questions dropped."""
        return cls(include_direct="none")

    def is_right(self, answer: str, references: Sequence[str]) -> bool:
        """Whether the answer is right; a blank one never is.

        Raises:
            InvalidInput: the function of `right` raised, or gave something else than a number.
        """
        if not answer.strip():
            return False
        judge = self.right if callable(self.right) else JUDGES[self.right]
        try:
            value = float(judge(answer, references))
        except Exception as error:
            raise InvalidInput(
                f"the function of 'right' raised {type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(value):
            raise InvalidInput(f"the function of 'right' gave {value} for {answer[:60]!r}")
        return value >= self.right_from

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a function by its name."""
        right = self.right if isinstance(self.right, str) else named(self.right)
        return {**asdict(self), "right": right, "keep_wrong": float(self.keep_wrong)}


def named(function: Callable[..., object]) -> str:
    """What a function is called, to tell it from others in a manifest."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _within(name: str, value: object, least: float, most: float) -> None:
    if not isinstance(value, Real) or not least <= float(value) <= most:
        raise InvalidInput(f"{name} must lie in [{least}, {most}], got {value!r}")


_CHOICES = {"form": get_args(Form), "include_direct": get_args(IncludeDirect)}
