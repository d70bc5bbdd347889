r"""GECE, eq. 2: the formula, and what a model makes of questions whose answers are known.

.. math:: GECE = \frac{|M(pred, ref) - \frac{1}{n}\sum_i p(t_i)|}
                      {\alpha \cdot \langle E[\nabla_{ins}], \nabla_{ins} \rangle}

The gradient is of the mean token NLL of the reference given the question; E is its mean over the
calibration questions. At run time no gradient is part of that mean, so the fit of a gate compares
each draft with the mean over the other folds (`mean_gradients`).

Source: Li et al., ACL 2024, eq. 2; ablations of table 3.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ltrag_plugins.data import check_labelled
from ltrag_plugins.errors import require
from ltrag_plugins.flow import Observer, World, gradient_llm, run_many, wrap_provider_errors
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import Evidence, WordFrequencies, drafting, with_gradient_term
from ltrag_plugins.llm.base import LLM, Direction
from ltrag_plugins.prompts.replies import option_named
from ltrag_plugins.prompts.templates import render_question
from ltrag_plugins.types import Generation, Question
from ltrag_plugins.uncertainty import mean_probability

_LEAST = 1e-9  # a denominator of 0 as printed, so that values are finite


@dataclass(frozen=True, slots=True)
class GECEScore:
    """A GECE value with what went into it."""

    value: float
    """Larger means more long-tail; finite, and below 0 only where `opposed`, if no floor is set."""
    meteor: float
    """M(pred, ref), in [0, 1]; chrF or 1 - TER where the settings say so."""
    mean_probability: float
    """Mean probability of the predicted tokens, in [0, 1]."""
    word_frequency: float
    """alpha: mean relative frequency of the question's words, in (0, 1]."""
    gradient_agreement: float | None
    """Agreement of the instance's gradient with the mean gradient; None when it was left out."""
    opposed: bool
    """Whether the gradient agreement is below 0: the instance pulls against the data set."""


def gece_score(
    *,
    meteor: float,
    mean_probability: float,
    word_frequency: float,
    gradient_agreement: float | None,
    settings: GECESettings | None = None,
) -> GECEScore:
    """Put the ingredients together, as printed (`GECESettings.paper()`) unless told otherwise."""
    settings = settings or GECESettings.paper()
    denominator = word_frequency if settings.statistics else 1.0
    if settings.semantics and gradient_agreement is not None:
        denominator *= gradient_agreement
    opposed, floor = denominator < 0, settings.floor
    sign = -1.0 if opposed and floor is None else 1.0
    value = sign * abs(meteor - mean_probability) / max(sign * denominator, floor or _LEAST)
    return GECEScore(value, meteor, mean_probability, word_frequency, gradient_agreement, opposed)


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
        settings: None: `GECESettings.paper()`.
        batch: most prompts of one model call; see `run_many`.

    Raises:
        MissingReferences: a question has no accepted answers.
        NoTokenProbabilities, NeedsGradients: the model cannot give an ingredient.
        MissingExtra: word frequencies of a language need the extra `frequency`.
    """
    settings, frequencies = settings or GECESettings.paper(), frequencies or WordFrequencies()
    check_labelled(questions)
    require("evaluate")  # and the frequencies, before a draft is paid for
    frequencies.of_word("a")
    if settings.semantics:
        gradient_llm(llm)
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
    said = [option_named(d.text, q.options) for d, q in zip(drafts, questions, strict=True)]
    columns = (questions, texts, drafts, said, agreements)
    return [
        gece_score(
            meteor=quality_of(reply, question.answers, settings.quality),
            mean_probability=mean_probability(draft),
            word_frequency=frequencies.mean(text),
            gradient_agreement=agreement,
            settings=settings,
        )
        for question, text, draft, reply, agreement in zip(*columns, strict=True)
    ]


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


def _mean_gradient(
    prompts: Sequence[str], references: Sequence[str], llm: LLM, settings: GECESettings
) -> Direction:
    with wrap_provider_errors("model"):
        return gradient_llm(llm).mean_gradient(prompts, references, layers=settings.layers)


def _weighted(means: Sequence[Direction], weights: Sequence[float]) -> Direction:
    pairs: list[Any] = [*zip(map(np.float32, weights), means, strict=True)]
    return {name: np.asarray(sum(w * mean[name] for w, mean in pairs)) for name in means[0]}
