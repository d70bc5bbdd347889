"""What an analysis reads: an answer with its rounds, and what is true of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.metrics.answer import normalized_exact_match
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round
from ltrag_plugins.sgic.documents import Truth

Measure = Callable[[str, Sequence[str]], float]
"""From an answer and the accepted ones to a quality in [0, 1], as in `metrics.answer`."""


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer, and what is true of it.

    Raises:
        InvalidInput: the answer has no trace, or the labels are not one for each.
    """

    answer: CalibratedAnswer
    right: tuple[bool, ...]
    """Whether the answer of each round is, in the order of the trace."""
    relevant: tuple[bool, ...] = ()
    """Whether each document helps to answer, in their order; empty where nobody knows."""
    question: str = ""

    def __post_init__(self) -> None:
        trace, documents = self.answer.trace, self.answer.documents
        if not 0 <= self.answer.round < len(trace):
            raise InvalidInput(
                f"the answer {self.answer.text[:40]!r} is of round {self.answer.round}, and its "
                f"trace has {len(trace)}; an analysis needs the trace as `calibrate` returns it"
            )
        if len(self.right) != len(trace):
            raise InvalidInput(
                f"{len(self.right)} labels came for {len(trace)} rounds; give one for each"
            )
        if self.relevant and len(self.relevant) != len(documents):
            raise InvalidInput(
                f"{len(self.relevant)} labels came for {len(documents)} documents; give one for "
                "each, or none"
            )

    @property
    def first(self) -> Round:
        """The answer of round 0."""
        return self.answer.trace[0]

    @property
    def returned(self) -> Round:
        """The answer that was chosen."""
        return self.answer.trace[self.answer.round]

    @property
    def first_right(self) -> bool:
        """Whether the answer of round 0 is."""
        return self.right[0]

    @property
    def returned_right(self) -> bool:
        """Whether the chosen answer is."""
        return self.right[self.answer.round]


def judged(
    answers: Sequence[CalibratedAnswer],
    truths: Sequence[Truth],
    *,
    questions: Sequence[str] = (),
    measure: Measure = normalized_exact_match,
) -> tuple[Judged, ...]:
    """Hold each answer, and each of its rounds, against the truth.

    Args:
        answers: of `calibrate` (or `sampled`).
        truths: one for each answer; an empty `relevant` where nobody knows which documents help.
        questions: their texts, for the pictures; or none.
        measure: an answer is right where it gives 0.5 or more; the default is SQuAD's EM.

    Raises:
        InvalidInput: there are more answers than truths, or fewer; see `Judged`.
        MissingReferences: a question has no accepted answers.
    """
    texts = questions or ("",) * len(answers)
    if not len(answers) == len(truths) == len(texts):
        raise InvalidInput(
            f"{len(answers)} answers came with {len(truths)} truths and {len(questions)} "
            "questions; give one truth for each answer, and one question each or none"
        )
    return tuple(
        Judged(
            answer,
            tuple(measure(one.text, truth.answers) >= 0.5 for one in answer.trace),
            truth.relevant,
            text,
        )
        for answer, truth, text in zip(answers, truths, texts, strict=True)
    )


def checked_run(run: Sequence[Judged]) -> Sequence[Judged]:
    """The run, if there is something in it that can be held side by side.

    Raises:
        InvalidInput: it is empty, or its answers are of several estimators.
    """
    if not run:
        raise InvalidInput("there are no answers to analyse; run `calibrate` on some questions")
    if len(estimators := {one.answer.estimator for one in run}) > 1:
        raise InvalidInput(
            f"these answers are of the estimators {', '.join(sorted(estimators))}, whose numbers "
            "cannot be compared; analyse one at a time"
        )
    return run
