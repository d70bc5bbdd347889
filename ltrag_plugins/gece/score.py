r"""GECE, eq. 2: the formula, and what a model makes of questions whose answers are known.

.. math:: GECE = \frac{|M(pred, ref) - \frac{1}{n}\sum_i p(t_i)|}
                      {\alpha \cdot \langle E[\nabla_{ins}], \nabla_{ins} \rangle}

The gradient is of the mean token NLL of the reference given the question; E is its mean over the
calibration questions. At run time no gradient is part of that mean, so the fit of a gate compares
each draft with the mean over the other folds (`mean_gradients`).

Source: Li et al., ACL 2024, eq. 2; ablations of table 3.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from ltrag_plugins import errors
from ltrag_plugins.data import check_labelled
from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.flow import (
    Flow,
    Observer,
    World,
    fetch,
    gradient_llm,
    run_many,
    wrap_provider_errors,
)
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import (
    SIGNALS,
    Evidence,
    OwnSignals,
    WordFrequencies,
    drafting,
    with_gradient_term,
)
from ltrag_plugins.llm.base import LLM, Direction, Encoder, GradientLLM
from ltrag_plugins.metrics.answer import is_right
from ltrag_plugins.prompts.templates import answer_from, render_question, searching_for
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Answer, Generation, Question
from ltrag_plugins.uncertainty import mean_probability

_FEWEST = 20  # calibration questions; at least two of them right, and two wrong


@dataclass(frozen=True, slots=True)
class GECEScore:
    """A GECE value with what went into it."""

    value: float
    """Larger means more long-tail; at least 0, finite."""
    meteor: float
    """M(pred, ref), in [0, 1]; chrF or 1 - TER where the settings say so."""
    mean_probability: float
    """Mean probability of the predicted tokens, in [0, 1]."""
    word_frequency: float
    """alpha: mean relative frequency of the question's words, in (0, 1]."""
    gradient_agreement: float | None
    """Agreement of the instance's gradient with the mean gradient; None when it was left out."""
    floored: bool
    """Whether the denominator met the floor: the instance pulls against the data set."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A calibration question: what was seen before retrieval, and what came of it."""

    evidence: Evidence
    right: bool
    """Whether the direct answer is right."""
    right_with_retrieval: bool | None = None
    """Whether the answer with retrieval is; None when nobody tried."""
    quality: float = 0.0
    """METEOR (or chrF, 1 - TER) of the direct answer; only the formula needs it."""


def gece_score(
    *,
    meteor: float,
    mean_probability: float,
    word_frequency: float,
    gradient_agreement: float | None,
    settings: GECESettings | None = None,
) -> GECEScore:
    """Put the ingredients together; a denominator below `settings.floor` becomes that."""
    settings = settings or GECESettings()
    denominator = word_frequency if settings.statistics else 1.0
    if settings.semantics and gradient_agreement is not None:
        denominator *= gradient_agreement
    value = abs(meteor - mean_probability) / max(denominator, settings.floor)
    floored = denominator <= settings.floor
    return GECEScore(value, meteor, mean_probability, word_frequency, gradient_agreement, floored)


def quality_of(prediction: str, references: Sequence[str], metric: str = "meteor") -> float:
    """The M of eq. 2, in [0, 1]: METEOR, chrF, or 1 - TER (at least 0)."""
    from ltrag_plugins.metrics import text  # brings nltk and sacrebleu, which a gate does without

    if metric == "ter":
        return max(0.0, 1.0 - text.ter(prediction, references))
    return (text.chrf if metric == "chrf" else text.meteor)(prediction, references)


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
    check_labelled(questions)
    if settings.semantics:
        gradient_llm(llm)  # refused before a draft is paid for
    together = partial(run_many, world=World(llm=llm), observers=tuple(observers), batch=batch)
    texts = [render_question(question).strip() for question in questions]
    drafts = [evidence.draft for evidence in together([drafting(t, settings) for t in texts])]
    agreements: list[float | None] = [None] * len(questions)
    if settings.semantics:
        prompts, references = references_like(questions, drafts, settings)
        along = _mean_gradient(prompts, references, llm, settings)
        known = [Evidence(t, Generation(r)) for t, r in zip(texts, references, strict=True)]
        terms = together([with_gradient_term(item, settings, along) for item in known])
        agreements = [getattr(item.agreement, settings.agreement) for item in terms]
    columns = (questions, texts, drafts, agreements)
    return [
        gece_score(
            meteor=quality_of(draft.text, question.answers, settings.quality),
            mean_probability=mean_probability(draft),
            word_frequency=frequencies.mean(text),
            gradient_agreement=agreement,
            settings=settings,
        )
        for question, text, draft, agreement in zip(*columns, strict=True)
    ]


def collect(
    questions: Sequence[Question],
    world: World,
    settings: GECESettings,
    *,
    retrieving: Callable[[str], Flow[Answer]] | None = None,
    retrieved_answers: Sequence[str] | None = None,
    own: OwnSignals = MappingProxyType({}),
    observers: Iterable[Observer] = (),
    batch: int | None = None,
) -> tuple[list[Outcome], Direction | None]:
    """Draft an answer to every question, and answer it with retrieval where that is possible.

    Searches are by the question's text alone. The mean gradient comes along if the gate may read
    it and the model has one. What no gate can be fitted on is refused before any call.
    """
    check_labelled(questions)
    check_count(len(questions))
    if retrieved_answers is not None and len(retrieved_answers) != len(questions):
        found = f"{len(retrieved_answers)} retrieved_answers for {len(questions)} questions"
        raise InvalidInput(f"{found}; give one for each")
    if wrong := [answer for answer in retrieved_answers or () if not isinstance(answer, str)]:
        raise InvalidInput(
            f"retrieved_answers are texts, got {type(wrong[0]).__name__}; take .text of a "
            "LangChain message, str(...) of a LlamaIndex response"
        )
    _check_scorer(settings)
    _check_world(world)
    if taken := sorted(own.keys() & SIGNALS.keys()):
        raise InvalidInput(f"signals has {taken}, which are names of ours; rename yours")
    if settings.gradients == "always":
        gradient_llm(world.llm)
    together = partial(run_many, world=world, observers=tuple(observers), batch=batch)
    whole = [render_question(question) for question in questions]
    draft = partial(drafting, settings=settings, vectors=world.encoder is not None, own=own)
    seen, along = together([draft(text) for text in whole]), None
    wants_gradients = settings.gradients != "never" and settings.tier != "text"
    if wants_gradients and isinstance(world.llm, GradientLLM):
        prompts, references = references_like(questions, [e.draft for e in seen], settings)
        along, without = mean_gradients(prompts, references, world.llm, settings)
        pairs = zip(seen, without, strict=True)
        seen = together([with_gradient_term(one, settings, mean) for one, mean in pairs])

    def reading(question: str) -> Flow[Answer]:
        [found] = yield from fetch(question, k=3)
        return (yield from answer_from(question, found))

    if retrieved_answers is None and (retrieving is not None or world.retriever is not None):
        pairs = zip(questions, whole, strict=True)
        flows = [searching_for([q], (retrieving or reading)(text)) for q, text in pairs]
        retrieved_answers = [answer.text for answer in together(flows)]
    retrieved: Sequence[str | None] = retrieved_answers or [None] * len(questions)
    outcomes = [
        Outcome(
            evidence,
            is_right(evidence.draft.text, question.answers, settings.correct),
            None if later is None else is_right(later, question.answers, settings.correct),
            quality_of(evidence.draft.text, question.answers, settings.quality),
        )
        for question, evidence, later in zip(questions, seen, retrieved, strict=True)
    ]
    return outcomes, along


def mean_gradients(
    prompts: Sequence[str], references: Sequence[str], llm: LLM, settings: GECESettings
) -> tuple[Direction, list[Direction]]:
    """The mean gradient over all questions, and for each that over the other `settings.folds`."""
    count, found = len(prompts), []
    order = np.random.default_rng(settings.seed).permutation(count)
    parts = np.array_split(order, settings.folds)
    folds: list[list[int]] = [part.tolist() for part in parts if len(part)]
    for fold in folds:
        asked, said = [prompts[i] for i in fold], [references[i] for i in fold]
        found.append(_mean_gradient(asked, said, llm, settings))
    overall = _weighted(found, [len(fold) / count for fold in folds])
    without = [overall] * count
    for fold in folds:
        mean, share = found.pop(0), len(fold) / count  # each is as large as the model's weights
        if share < 1:
            others = _weighted([overall, mean], [1 / (1 - share), -share / (1 - share)])
            for i in fold:
                without[i] = others
    return overall, without


def references_like(
    questions: Sequence[Question], drafts: Sequence[Generation], settings: GECESettings
) -> tuple[list[str], list[str]]:
    """Prompts, and the first accepted answers with the white space that the drafts begin with."""
    prompts = [settings.prompt.replace("{question}", render_question(q).strip()) for q in questions]
    return prompts, [
        draft.text[: len(draft.text) - len(draft.text.lstrip())] + question.answers[0]
        for draft, question in zip(drafts, questions, strict=True)
    ]


def check_count(questions: int) -> None:
    """Refuse too few calibration questions."""
    if questions < _FEWEST:
        found = f"{questions or 'no'} calibration questions"
        raise CalibrationError(f"{found}; a gate needs at least {_FEWEST}, better 200")


def _check_world(world: World) -> None:
    for kind in (LLM, Encoder, Retriever):
        name = kind.__name__
        part = getattr(world, name.lower())
        if part is not None and (hasattr(part, "invoke") or not isinstance(part, kind)):
            raise InvalidInput(
                f"{name.lower()}={type(part).__name__} cannot be used as it is: wrap what comes "
                f"from LangChain or LlamaIndex in LangChain{name} or LlamaIndex{name}"
            )


def _check_scorer(settings: GECESettings) -> None:
    scorer, formula = settings.scorer, settings.scorer == "gece"
    if scorer not in ("fitted", "gece", *SIGNALS):
        raise errors.unknown_name("scorer", scorer, ["fitted", "gece", *SIGNALS])
    tier = SIGNALS[scorer].tier if scorer in SIGNALS else "probabilities" if formula else "text"
    for lacks, needs in (
        (scorer == "disagreement" and not settings.samples, "samples=3 or more"),
        (scorer == "gradient_cosine" and settings.agreement != "cosine", "agreement='cosine'"),
        (
            settings.gradients != "always"
            and (tier == "gradients" or formula * settings.semantics),
            "the gradient term: gradients='always', or, as the formula, semantics=False",
        ),
        (tier != "text" and settings.tier == "text", "more than text: leave tier as it is"),
    ):
        if lacks:
            raise CalibrationError(f"the scorer {scorer!r} needs {needs}; or take another scorer")


def _mean_gradient(
    prompts: Sequence[str], references: Sequence[str], llm: LLM, settings: GECESettings
) -> Direction:
    with wrap_provider_errors("model"):
        return gradient_llm(llm).mean_gradient(prompts, references, layers=settings.layers)


def _weighted(means: Sequence[Direction], weights: Sequence[float]) -> Direction:
    pairs: list[Any] = [*zip(map(np.float32, weights), means, strict=True)]
    return {name: np.asarray(sum(w * mean[name] for w, mean in pairs)) for name in means[0]}
