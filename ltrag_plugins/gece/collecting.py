"""Ask the model the calibration questions, and see what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ltrag_plugins.baselines.single import single_retrieval
from ltrag_plugins.errors import CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.flow import Flow, Observer, World, run_many
from ltrag_plugins.gece.drafting import drafting, holding
from ltrag_plugins.gece.fitting import Outcome
from ltrag_plugins.gece.reference import mean_reference_gradient
from ltrag_plugins.gece.score import QUALITIES
from ltrag_plugins.gece.settings import Correct, GECESettings
from ltrag_plugins.gece.signals import Evidence
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.metrics import answer as metrics
from ltrag_plugins.types import Answer, Question


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """Outcomes of the calibration questions, and the mean gradient if it was asked for."""

    outcomes: tuple[Outcome, ...]
    along: Direction | None


def is_right(prediction: str, references: Sequence[str], correct: Correct) -> bool:
    """Whether an answer counts as right; token F1 counts from 0.5."""
    return getattr(metrics, correct)(prediction, references) >= 0.5


def collect(
    questions: Sequence[Question],
    world: World,
    settings: GECESettings,
    *,
    retrieving: Callable[[str], Flow[Answer]] | None,
    retrieved_answers: Sequence[str] | None,
    observers: tuple[Observer, ...],
) -> Collected:
    """Draft an answer to every question, and answer it with retrieval where that is possible."""
    _check(questions, world, retrieved_answers)
    drafts = run_many(
        [drafting(q.text, settings, vectors=world.encoder is not None) for q in questions],
        world,
        observers=observers,
    )
    along = _mean_gradient(questions, drafts, world, settings)
    if along is not None:
        drafts = run_many(
            [holding(evidence, settings, along) for evidence in drafts], world, observers=observers
        )
    answers = retrieved_answers
    if answers is None and world.retriever is not None:
        flows = [(retrieving or partial(single_retrieval, k=3))(q.text) for q in questions]
        answers = [answer.text for answer in run_many(flows, world, observers=observers)]
    return Collected(tuple(_outcomes(questions, drafts, answers, settings)), along)


def _outcomes(
    questions: Sequence[Question],
    drafts: Sequence[Evidence],
    answers: Sequence[str] | None,
    settings: GECESettings,
) -> list[Outcome]:
    right = partial(is_right, correct=settings.correct)
    return [
        Outcome(
            evidence,
            right=right(evidence.draft.text, question.answers),
            right_with_retrieval=None if answers is None else right(answers[i], question.answers),
            quality=QUALITIES[settings.quality](evidence.draft.text, question.answers),
        )
        for i, (question, evidence) in enumerate(zip(questions, drafts, strict=True))
    ]


def _mean_gradient(
    questions: Sequence[Question],
    drafts: Sequence[Evidence],
    world: World,
    settings: GECESettings,
) -> Direction | None:
    if settings.gradients == "never" or world.llm is None:
        return None
    return mean_reference_gradient(questions, [d.draft for d in drafts], world.llm, settings)


def _check(
    questions: Sequence[Question], world: World, retrieved_answers: Sequence[str] | None
) -> None:
    if not questions:
        raise CalibrationError("no calibration questions; give at least 20, better 200")
    for question in questions:
        if not question.answers:
            raise MissingReferences(
                f"calibration question {question.id or question.text[:60]!r} has no accepted "
                "answers; add 'answers', or leave it out"
            )
    if retrieved_answers is not None and len(retrieved_answers) != len(questions):
        raise InvalidInput(
            f"{len(retrieved_answers)} retrieved_answers for {len(questions)} questions; give one "
            "for each, in their order"
        )
