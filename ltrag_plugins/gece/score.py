r"""GECE, eq. 2: the formula, and its value where accepted answers are known.

.. math:: GECE = \frac{|M(pred, ref) - \frac{1}{n}\sum_i p(t_i)|}
                      {\alpha \cdot \langle E[\nabla_{ins}], \nabla_{ins} \rangle}

The gradient is of the mean token NLL of the reference given the question; E is its mean over the
calibration questions. A draft that equals its reference would be compared with a mean that its own
gradient is part of, which at run time never happens. So the fit of a gate compares each draft with
the mean over the other folds (`mean_gradients`).

References:
    Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
    Language Models", eq. 2; ablations of table 3.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ltrag_plugins.errors import MissingReferences, NeedsGradients
from ltrag_plugins.flow import Observer, World, agree, run_many
from ltrag_plugins.flow.drivers import wrap_provider_errors
from ltrag_plugins.gece.draft import draft_prompt, drafting
from ltrag_plugins.gece.settings import GECESettings, Quality
from ltrag_plugins.gece.signals import WordFrequencies
from ltrag_plugins.llm.base import LLM, Direction, GradientLLM
from ltrag_plugins.metrics.answer import checked
from ltrag_plugins.prompts.question import render_question
from ltrag_plugins.types import Generation, Question
from ltrag_plugins.uncertainty import mean_probability


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


def gece_score(
    *,
    meteor: float,
    mean_probability: float,
    word_frequency: float,
    gradient_agreement: float | None,
    settings: GECESettings | None = None,
) -> GECEScore:
    """Put the ingredients together as the settings say.

    The product of the denominator can be zero or negative; it is floored at
    `settings.floor`, so the score is finite and largest there.
    """
    settings = settings or GECESettings()
    denominator = word_frequency if settings.statistics else 1.0
    if settings.semantics and gradient_agreement is not None:
        denominator *= gradient_agreement
    return GECEScore(
        value=abs(meteor - mean_probability) / max(denominator, settings.floor),
        meteor=meteor,
        mean_probability=mean_probability,
        word_frequency=word_frequency,
        gradient_agreement=gradient_agreement,
        floored=denominator <= settings.floor,
    )


def quality_of(prediction: str, references: Sequence[str], metric: Quality = "meteor") -> float:
    """The M of eq. 2, in [0, 1]: METEOR, chrF, or 1 - TER (at least 0)."""
    from ltrag_plugins.metrics import text  # brings nltk and sacrebleu, which a gate does without

    measure = {"meteor": text.meteor, "chrf": text.chrf, "ter": text.ter_quality}[metric]
    return measure(prediction, references)


def mean_gradients(
    prompts: Sequence[str], references: Sequence[str], llm: LLM, settings: GECESettings
) -> tuple[Direction, list[Direction]]:
    """The mean gradient over all questions, and for each question one without its own.

    Each gradient is computed once; the folds are `settings.folds`, drawn with its seed, and
    questions of a fold share theirs.
    """
    count = len(prompts)
    order = np.random.default_rng(settings.seed).permutation(count)
    parts = np.array_split(order, settings.folds)
    folds: list[list[int]] = [part.tolist() for part in parts if len(part)]
    means = [
        _mean_gradient([prompts[i] for i in fold], [references[i] for i in fold], llm, settings)
        for fold in folds
    ]
    shares = [len(fold) / count for fold in folds]
    overall = _weighted(means, shares)
    without = [overall] * count
    for fold, share in zip(folds, shares, strict=True):
        mean = means.pop(0)  # each is as large as the weights it is about
        if share < 1:
            others = _weighted([overall, mean], [1 / (1 - share), -share / (1 - share)])
            for i in fold:
                without[i] = others
    return overall, without


def gradient_llm(llm: LLM) -> GradientLLM:
    """The model itself, if it has gradients."""
    if not isinstance(llm, GradientLLM):
        raise NeedsGradients(
            f"{llm.name} has no gradients. Load local weights with TransformersLLM, or leave the "
            "term out: GECESettings(gradients='never'), for scores GECESettings(semantics=False)."
        )
    return llm


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
    world, observers = World(llm=llm), tuple(observers)
    flows = [drafting(render_question(question), settings) for question in questions]
    drafts = [e.draft for e in run_many(flows, world, observers=observers, batch=batch)]
    agreements: list[float | None] = [None] * len(questions)
    if settings.semantics:
        prompts, references = references_like(questions, drafts, settings)
        along = _mean_gradient(prompts, references, llm, settings)
        cosine, layers = settings.agreement == "cosine", settings.layers
        terms = [
            agree([prompt], [reference], along=along, cosine=cosine, layers=layers)
            for prompt, reference in zip(prompts, references, strict=True)
        ]
        found = run_many(terms, world, observers=observers, batch=batch)
        agreements = [getattr(one, settings.agreement) for [one] in found]
    return [
        gece_score(
            meteor=quality_of(draft.text, question.answers, settings.quality),
            mean_probability=mean_probability(draft),
            word_frequency=frequencies.mean(render_question(question)),
            gradient_agreement=agreement,
            settings=settings,
        )
        for question, draft, agreement in zip(questions, drafts, agreements, strict=True)
    ]


def references_like(
    questions: Sequence[Question], drafts: Sequence[Generation], settings: GECESettings
) -> tuple[list[str], list[str]]:
    """Prompts, and the first accepted answers with the white space that the drafts begin with.

    A base model goes on after "Answer:" with a blank, a chat model starts its turn without.
    """
    prompts = [draft_prompt(render_question(question).strip(), settings) for question in questions]
    blanks = [draft.text[: len(draft.text) - len(draft.text.lstrip())] for draft in drafts]
    return prompts, [
        blank + question.answers[0] for blank, question in zip(blanks, questions, strict=True)
    ]


def check_references(question: Question) -> None:
    """Whether an answer can be compared with anything."""
    if not question.answers:
        raise MissingReferences(
            f"question {question.id or question.text[:60]!r} has no accepted answers; add "
            "'answers', or leave it out"
        )
    checked(question.answers)


def _mean_gradient(
    prompts: Sequence[str], references: Sequence[str], llm: LLM, settings: GECESettings
) -> Direction:
    model = gradient_llm(llm)
    with wrap_provider_errors("model"):
        return model.mean_gradient(prompts, references, layers=settings.layers)


def _weighted(means: Sequence[Direction], weights: Sequence[float]) -> Direction:
    def total(name: str) -> np.ndarray:
        found = np.zeros_like(means[0][name])
        for mean, weight in zip(means, weights, strict=True):
            found += np.float32(weight) * mean[name]
        return found

    return {name: total(name) for name in means[0]}
