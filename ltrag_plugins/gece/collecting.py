"""Ask the model the calibration questions, and see what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ltrag_plugins.baselines.asking import asked, searching_for
from ltrag_plugins.baselines.single import single_retrieval
from ltrag_plugins.errors import CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.flow import Flow, Observer, World, run_many
from ltrag_plugins.gece.drafting import drafting, holding
from ltrag_plugins.gece.fitted import Outcome
from ltrag_plugins.gece.labels import check_count
from ltrag_plugins.gece.qualities import QUALITIES
from ltrag_plugins.gece.reference import gradient_llm, mean_reference_gradient
from ltrag_plugins.gece.settings import Correct, GECESettings
from ltrag_plugins.gece.signals import SIGNALS, Evidence
from ltrag_plugins.llm.base import LLM, Direction, Encoder, GradientLLM
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
    batch: int | None = None,
) -> Collected:
    """Draft an answer to every question, and answer it with retrieval where that is possible.

    Options and context are part of what is asked, but for searches.

    What cannot end well is refused before the model is asked anything.

    Raises:
        CalibrationError, MissingReferences, InvalidInput: these questions or settings cannot do.
        NeedsGradients: the settings ask for gradients, and the model has none.
    """
    _check_questions(questions, retrieved_answers)
    _check_scorer(settings)
    _check_parts(world)
    if settings.gradients == "always" and world.llm is not None:
        gradient_llm(world.llm)
    whole = [asked(question) for question in questions]
    drafts = run_many(
        [drafting(text, settings, vectors=world.encoder is not None) for text in whole],
        world,
        observers=observers,
        batch=batch,
    )
    along = _mean_gradient(questions, drafts, world, settings)
    if along is not None:
        holdings = [holding(evidence, settings, along) for evidence in drafts]
        drafts = run_many(holdings, world, observers=observers, batch=batch)
    answers = retrieved_answers
    if answers is None and (retrieving is not None or world.retriever is not None):
        reading = retrieving or partial(single_retrieval, k=3)
        flows = [
            searching_for([question], reading(text))
            for question, text in zip(questions, whole, strict=True)
        ]
        found = run_many(flows, world, observers=observers, batch=batch)
        answers = [answer.text for answer in found]
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
    if settings.gradients == "never" or not isinstance(world.llm, GradientLLM):
        return None
    return mean_reference_gradient(questions, [d.draft for d in drafts], world.llm, settings)


def _check_questions(
    questions: Sequence[Question], retrieved_answers: Sequence[str] | None
) -> None:
    for question in questions:
        if not isinstance(question, Question):
            raise InvalidInput(
                f"calibration questions are Question(text, answers), got {question!r:.60}"
            )
        if not question.answers:
            raise MissingReferences(
                f"calibration question {question.id or question.text[:60]!r} has no accepted "
                "answers; add 'answers', or leave it out"
            )
        metrics.checked(question.answers)
    check_count(len(questions))
    if retrieved_answers is not None and len(retrieved_answers) != len(questions):
        raise InvalidInput(
            f"{len(retrieved_answers)} retrieved_answers for {len(questions)} questions; give one "
            "for each, in their order"
        )


def _check_parts(world: World) -> None:
    for what, part, kind in (("llm", world.llm, LLM), ("encoder", world.encoder, Encoder)):
        if part is not None and (hasattr(part, "invoke") or not isinstance(part, kind)):
            raise InvalidInput(
                f"{what}={type(part).__name__} cannot be used as it is: wrap a model or embeddings "
                "of LangChain or LlamaIndex (LangChainLLM, LlamaIndexLLM, LangChainEncoder, "
                "LlamaIndexEncoder)"
            )


def _check_scorer(settings: GECESettings) -> None:
    scorer = settings.scorer
    if scorer not in ("fitted", "gece", *SIGNALS):
        raise CalibrationError(
            f"there is no scorer {scorer!r}; there are fitted, gece, {', '.join(SIGNALS)}"
        )
    if scorer == "disagreement" and not settings.samples:
        raise CalibrationError("the scorer 'disagreement' needs GECESettings(samples=3) or more")
    if scorer == "gradient_cosine" and settings.agreement != "cosine":
        raise CalibrationError(f"the scorer {scorer!r} needs GECESettings(agreement='cosine')")
    if needs_gradients(settings) and settings.gradients != "always":
        raise CalibrationError(
            f"the scorer {scorer!r} needs the gradient term: set gradients='always' (local weights "
            "only), or, for the formula without it, semantics=False"
        )


def needs_gradients(settings: GECESettings) -> bool:
    """Whether the scorer cannot do without the gradient term."""
    formula = settings.scorer == "gece" and settings.semantics
    return formula or settings.scorer.startswith("gradient_")
