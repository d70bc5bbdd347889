"""GECE with the reference at hand: for calibration, evaluation and analysis.

References:
    Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
    Language Models", eq. 2. The gradient is of the mean token NLL of the reference given the
    question; its mean is over the questions scored.
"""

from collections.abc import Iterable, Sequence

from ltrag_plugins.baselines.asking import asked
from ltrag_plugins.baselines.direct import direct_prompt
from ltrag_plugins.errors import MissingReferences
from ltrag_plugins.flow import Observer, World, agree, run_many
from ltrag_plugins.gece.drafting import drafting
from ltrag_plugins.gece.frequency import WordFrequencies
from ltrag_plugins.gece.mean_gradients import mean_gradient
from ltrag_plugins.gece.qualities import QUALITIES
from ltrag_plugins.gece.score import GECEScore, gece_score
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.metrics.answer import checked
from ltrag_plugins.types import Generation, GradientAgreement, Question
from ltrag_plugins.uncertainty import mean_probability


def score_questions(
    questions: Sequence[Question],
    *,
    llm: LLM,
    settings: GECESettings | None = None,
    frequencies: WordFrequencies | None = None,
    observers: Iterable[Observer] = (),
    batch: int | None = None,
) -> list[GECEScore]:
    """GECE of each question against its own accepted answers (the first one's gradient).

    Args:
        llm: gives token probabilities; and gradients, unless `settings.semantics` is off.
        batch: most prompts of one model call; see `run_many`.

    Raises:
        MissingReferences: a question has no accepted answers.
        NoTokenProbabilities, NeedsGradients: the model cannot give an ingredient.
    """
    settings, frequencies = settings or GECESettings(), frequencies or WordFrequencies()
    for question in questions:
        check_references(question)
    flows = [drafting(asked(q), settings, vectors=False) for q in questions]
    world, observers = World(llm=llm), tuple(observers)
    evidence = run_many(flows, world, observers=observers, batch=batch)
    drafts = [found.draft for found in evidence]
    agreements: Sequence[GradientAgreement | None] = [None] * len(questions)
    if settings.semantics:
        agreements = _agreements(questions, drafts, world, settings, observers, batch)
    return [
        gece_score(
            meteor=QUALITIES[settings.quality](draft.text, question.answers),
            mean_probability=mean_probability(draft),
            word_frequency=frequencies.mean(asked(question)),
            gradient_agreement=None if found is None else getattr(found, settings.agreement),
            settings=settings,
        )
        for question, draft, found in zip(questions, drafts, agreements, strict=True)
    ]


def _agreements(
    questions: Sequence[Question],
    drafts: Sequence[Generation],
    world: World,
    settings: GECESettings,
    observers: tuple[Observer, ...],
    batch: int | None,
) -> list[GradientAgreement]:
    assert world.llm is not None
    prompts, references = references_like(questions, drafts, settings)
    along = mean_gradient(prompts, references, world.llm, settings)
    cosine, layers = settings.agreement == "cosine", settings.layers
    flows = [
        agree([prompt], [reference], along=along, cosine=cosine, layers=layers)
        for prompt, reference in zip(prompts, references, strict=True)
    ]
    return [found for [found] in run_many(flows, world, observers=observers, batch=batch)]


def references_like(
    questions: Sequence[Question], drafts: Sequence[Generation], settings: GECESettings
) -> tuple[list[str], list[str]]:
    """Prompts, and the first accepted answers set off as the model sets off its own drafts.

    A base model goes on after "Answer:" with a blank, a chat model starts its turn without.
    """
    prompts = [direct_prompt(asked(question).strip(), settings.prompt) for question in questions]
    blanks = [draft.text[: len(draft.text) - len(draft.text.lstrip())] for draft in drafts]
    return prompts, [
        blank + question.answers[0] for blank, question in zip(blanks, questions, strict=True)
    ]


def check_references(question: Question) -> None:
    """Whether there is something to hold an answer against.

    Raises:
        MissingReferences: there is not; the message names the question.
        InvalidInput: the accepted answers are no texts.
    """
    if not question.answers:
        raise MissingReferences(
            f"question {question.id or question.text[:60]!r} has no accepted answers; add "
            "'answers', or leave it out"
        )
    checked(question.answers)
