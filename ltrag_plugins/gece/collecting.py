"""Ask the model the calibration questions, and see what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ltrag_plugins.baselines.asking import asked, searching_for
from ltrag_plugins.baselines.single import single_retrieval
from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.flow import Flow, Observer, World, run_many
from ltrag_plugins.gece.drafting import drafting, holding
from ltrag_plugins.gece.fitted import Outcome
from ltrag_plugins.gece.labels import check_count
from ltrag_plugins.gece.mean_gradients import MeanGradients, gradient_llm, mean_gradients
from ltrag_plugins.gece.qualities import QUALITIES
from ltrag_plugins.gece.reference import check_references, references_like
from ltrag_plugins.gece.settings import Correct, GECESettings
from ltrag_plugins.gece.signals import SIGNALS, Evidence
from ltrag_plugins.llm.base import LLM, Direction, Encoder, GradientLLM
from ltrag_plugins.metrics import answer as metrics
from ltrag_plugins.retrieval.base import Retriever
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
    _check_questions(questions)
    _check_retrieved(retrieved_answers, len(questions))
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
    means = _mean_gradients(questions, drafts, world, settings)
    if means is not None:
        holdings = [
            holding(evidence, settings, along)
            for evidence, along in zip(drafts, means.without, strict=True)
        ]
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
    outcomes = tuple(_outcomes(questions, drafts, answers, settings))
    return Collected(outcomes, None if means is None else means.overall)


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


def _mean_gradients(
    questions: Sequence[Question],
    drafts: Sequence[Evidence],
    world: World,
    settings: GECESettings,
) -> MeanGradients | None:
    without = settings.gradients == "never" or settings.tier == "text"
    if without or not isinstance(world.llm, GradientLLM):
        return None
    prompts, references = references_like(questions, [d.draft for d in drafts], settings)
    return mean_gradients(prompts, references, world.llm, settings)


def _check_questions(questions: Sequence[Question]) -> None:
    for question in questions:
        if not isinstance(question, Question):
            raise InvalidInput(
                f"calibration questions are Question(text, answers), got {question!r:.60}"
            )
        check_references(question)
    check_count(len(questions))


def _check_retrieved(answers: Sequence[str] | None, questions: int) -> None:
    if answers is None:
        return
    if len(answers) != questions:
        raise InvalidInput(
            f"{len(answers)} retrieved_answers for {questions} questions; give one for each, in "
            "their order"
        )
    for answer in answers:
        if not isinstance(answer, str):
            raise InvalidInput(
                f"retrieved_answers are texts, got {type(answer).__name__}; of LangChain messages "
                "take .text, of LlamaIndex responses str(response)"
            )


def _check_parts(world: World) -> None:
    for what, part, kind in (
        ("llm", world.llm, LLM),
        ("encoder", world.encoder, Encoder),
        ("retriever", world.retriever, Retriever),
    ):
        if part is not None and (hasattr(part, "invoke") or not isinstance(part, kind)):
            name = {"llm": "LLM", "encoder": "Encoder", "retriever": "Retriever"}[what]
            raise InvalidInput(
                f"{what}={type(part).__name__} cannot be used as it is: wrap what comes from "
                f"LangChain or LlamaIndex in LangChain{name} or LlamaIndex{name}"
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
    signal = SIGNALS.get(scorer)
    if settings.tier == "text" and (scorer == "gece" or (signal and signal.tier != "text")):
        raise CalibrationError(
            f"the scorer {scorer!r} reads token probabilities or gradients, and tier='text' reads "
            "neither; leave tier as it is, or take another scorer"
        )


def needs_gradients(settings: GECESettings) -> bool:
    """Whether the scorer cannot do without the gradient term."""
    formula = settings.scorer == "gece" and settings.semantics
    return formula or settings.scorer.startswith("gradient_")
