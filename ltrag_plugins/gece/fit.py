"""From questions with accepted answers to a fitted gate.

`fit_questions` asks the model and sees what comes of it. `fit_outcomes` calls no model, so recorded
outcomes do as well. The threshold is a target rate, or a target accuracy at the lowest rate that
reaches it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float

from ltrag_plugins.calibration import cross_calibrated, fit_calibrator, stratified
from ltrag_plugins.errors import CalibrationError, InvalidInput, NoTokenProbabilities
from ltrag_plugins.flow import Flow, Observer, World, fetch, run_many
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.draft import drafting, with_gradient_term
from ltrag_plugins.gece.models import FittedGate, Outcome, rate_threshold
from ltrag_plugins.gece.report import FitReport, Labels, report_of
from ltrag_plugins.gece.score import (
    check_references,
    gradient_llm,
    mean_gradients,
    quality_of,
    references_like,
)
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import (
    SIGNALS,
    Evidence,
    Features,
    WordFrequencies,
    available_signals,
    features,
)
from ltrag_plugins.gece.train import fit_gain, fit_scorer
from ltrag_plugins.llm.base import LLM, Direction, Encoder, GradientLLM
from ltrag_plugins.metrics.answer import is_right
from ltrag_plugins.prompts.question import render_question, searching_for
from ltrag_plugins.prompts.templates import answer_from
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Answer, Question

_FEWEST = 20
"""Fewest calibration questions; at least two of them right, and two wrong."""
_RATE = 0.2
"""Share of questions that may retrieve where no target is given (paper: the top 20 %)."""
_REMEDIES = {
    "right": "Answer directly without a gate, or calibrate on harder questions.",
    "wrong": "Always retrieve without a gate, calibrate on easier questions, look whether the "
    "prompt suits the model, or loosen GECESettings.correct.",
}
_Scores = Float[np.ndarray, " questions"]


def fit_questions(
    questions: Sequence[Question],
    world: World,
    settings: GECESettings,
    *,
    target_rate: float | None = None,
    target_accuracy: float | None = None,
    retrieving: Callable[[str], Flow[Answer]] | None = None,
    retrieved_answers: Sequence[str] | None = None,
    frequencies: WordFrequencies | None = None,
    observers: Iterable[Observer] = (),
    batch: int | None = None,
) -> tuple[FittedGate, FitReport, Direction | None]:
    """Ask the model each question and fit a gate; its mean gradient, if it reads gradients.

    Arguments and errors: see `GECEGate.fit`. What cannot end well is refused before the model is
    asked anything.
    """
    _check_targets(target_rate, target_accuracy)
    (frequencies or WordFrequencies()).of_word("a")  # an unknown language is named now
    _check_questions(questions, retrieved_answers)
    _check_scorer(settings)
    _check_world(world)
    if settings.gradients == "always" and world.llm is not None:
        gradient_llm(world.llm)
    fitted = partial(
        fit_outcomes,
        target_rate=target_rate,
        target_accuracy=target_accuracy,
        settings=settings,
        frequencies=frequencies,
    )
    outcomes, along = collect(
        questions,
        world,
        settings,
        retrieving=retrieving,
        retrieved_answers=retrieved_answers,
        observers=observers,
        batch=batch,
    )
    gate, report = fitted(outcomes)
    if along is not None and settings.gradients == "auto":
        bare = [replace(o, evidence=replace(o.evidence, agreement=None)) for o in outcomes]
        plain, plain_report = fitted(bare)
        # the gradient must lift the AUROC above the whole interval of the gate without it
        if report.auroc.value <= plain_report.auroc.high:
            return plain, plain_report, None
    return gate, report, along


def fit_outcomes(
    outcomes: Sequence[Outcome],
    *,
    target_rate: float | None = None,
    target_accuracy: float | None = None,
    settings: GECESettings | None = None,
    frequencies: WordFrequencies | None = None,
) -> tuple[FittedGate, FitReport]:
    """Fit a gate.

    Args:
        target_rate: share of questions that may retrieve, 0 to 1 (paper: 0.2, the default).
        target_accuracy: in its place, the lowest rate at which this share of answers is right:
            of all answers where answers with retrieval are known, else of those given directly.

    Raises:
        CalibrationError: too few questions, all right or all wrong, or a target out of reach.
        NoTokenProbabilities: tier "probabilities" was asked for and a draft has none.
        InvalidInput: a signal or an embedding is not finite.
    """
    settings, frequencies = settings or GECESettings(), frequencies or WordFrequencies()
    _check_targets(target_rate, target_accuracy)
    labels = labels_of(outcomes)
    evidence = [outcome.evidence for outcome in outcomes]
    names = _signals_of_tier(evidence, settings, frequencies)
    columns = features(evidence, names, frequencies)
    unseen, unseen_gain = cross_validated(columns, labels, names, settings)
    by_gain = unseen_gain is not None and _gain_pays(unseen, unseen_gain, labels)
    scores = unseen_gain if by_gain and unseen_gain is not None else unseen
    if target_accuracy is None:
        rate = _RATE if target_rate is None else target_rate
        cut, target = rate_threshold(scores, rate), f"target rate {rate:g}"
    else:
        cut = accuracy_threshold(scores, labels, target_accuracy)
        target = f"target accuracy {target_accuracy:g}"
    retrieve = scores >= cut
    failure, own_failure = fit_scorer(columns, labels, names, settings)
    gain, own = fit_gain(columns, labels.gain, settings.seed) if by_gain else (None, own_failure)
    method, logarithm = settings.calibration, settings.scorer == "gece"
    fitted = FittedGate(
        settings=settings,
        tier=_tier(names),
        names=tuple(names),
        frequencies=frequencies,
        failure=failure,
        gain=gain,
        calibrator=fit_calibrator(own_failure, labels.fails, method, logarithm=logarithm),
        # the folds' scores say how many may retrieve; only the gate's own say from where on
        threshold=rate_threshold(own, float(retrieve.mean())),
        quantiles=np.quantile(columns.signals, np.linspace(0, 1, 21), axis=0).T,
        scores=np.sort(own),
    )
    probabilities = cross_calibrated(
        unseen,
        labels.fails,
        method,
        logarithm=logarithm,
        folds=settings.folds,
        seed=settings.seed,
    )
    report = report_of(
        fitted,
        labels,
        columns.signals,
        failure=unseen,
        scores=scores,
        retrieve=retrieve,
        probabilities=probabilities,
        target=target,
        target_rate=target_rate,
        silent=sum(item.draft.tokens is None for item in evidence),
    )
    return fitted, report


def cross_validated(
    columns: Features, labels: Labels, names: list[str], settings: GECESettings
) -> tuple[_Scores, _Scores | None]:
    """Scores of each question by scorers that were fitted without it.

    The second are expected gains; None where nobody retrieved, or a scorer was named.
    """
    fails, fitted = labels.fails, settings.scorer == "fitted"
    if settings.scorer == "gece" and not labels.quality.any():
        raise CalibrationError(
            "the formula needs the METEOR (chrF, 1 - TER) of the calibration answers, and it is 0 "
            "for all of them; set Outcome.quality, or use another scorer"
        )
    unseen = np.zeros(len(fails))
    gain = np.zeros(len(fails)) if fitted and labels.mended is not None else None
    for train, test in stratified(fails, settings.folds, settings.seed).split(unseen, fails):
        known = labels[train]
        if fitted and min(known.fails.sum(), (1 - known.fails).sum()) < 2:
            unseen[test] = fails.mean()  # too few for the folds inside: no opinion
        else:
            unseen[test] = fit_scorer(columns[train], known, names, settings)[0](columns[test])
        if gain is not None:
            gain[test] = fit_gain(columns[train], known.gain, settings.seed)[0](columns[test])
    return unseen, gain


def accuracy_threshold(scores: _Scores, labels: Labels, target: float) -> float:
    """The threshold with the lowest retrieval rate at which `target` of the answers are right.

    Of all answers where those with retrieval are known, else of those given directly.
    """
    ordered, count = np.sort(scores), len(scores)
    kept = np.append(np.unique(np.searchsorted(ordered, ordered)), count)  # ties stay together
    accuracy = _accuracies(np.argsort(scores, kind="stable"), labels)[kept]
    reached = kept[accuracy >= target]
    if not reached.size:
        best = int(np.flatnonzero(accuracy == accuracy.max())[-1])
        raise CalibrationError(
            f"target_accuracy={target:g} is out of reach on these {count} questions: the best at "
            f"any retrieval rate is {accuracy[best]:.3f}, at {1 - kept[best] / count:.0%}. Ask for "
            "less, use target_rate, or look at the retriever and the prompts."
        )
    return rate_threshold(scores, 1 - reached[-1] / count)


def _accuracies(order: np.ndarray, labels: Labels) -> Float[np.ndarray, " questions_and_one"]:
    """Accuracy where the first 0, 1, ..., all questions in `order` are answered directly.

    Where only direct answers are known and there are none, it is 0.
    """
    direct = np.concatenate([[0], np.cumsum(1 - labels.fails[order])])
    if labels.mended is None:
        return direct / np.maximum(1, np.arange(len(direct)))
    mended = np.concatenate([[0], np.cumsum(labels.mended[order])])
    return (direct + mended[-1] - mended) / len(order)


def _gain_pays(unseen: _Scores, unseen_gain: _Scores, labels: Labels) -> bool:
    """Whether the gain score gives the better answers over the rates that gates are used at."""
    rates = np.arange(0.05, 0.55, 0.05)
    by_gain = sum(labels.gated_accuracy(unseen_gain, rate) for rate in rates)
    return by_gain > sum(labels.gated_accuracy(unseen, rate) for rate in rates)


def _signals_of_tier(
    evidence: Sequence[Evidence], settings: GECESettings, frequencies: WordFrequencies
) -> list[str]:
    only = "text" if settings.tier == "text" else None
    names = available_signals(evidence, frequencies, only=only)
    if settings.tier == "probabilities" and "mean_logprob" not in names:
        raise NoTokenProbabilities(
            "tier='probabilities' was asked for, but some drafts came without token probabilities. "
            "Ask the provider for them (ChatOpenAI: logprobs=True), or use tier='text'."
        )
    return names


def _tier(names: Sequence[str]) -> Tier:
    tiers = {SIGNALS[name].tier for name in names if name in SIGNALS}
    if "gradients" in tiers:
        return "gradients"
    return "probabilities" if "probabilities" in tiers else "text"


def labels_of(outcomes: Sequence[Outcome]) -> Labels:
    """The outcomes as columns, if a gate can be fitted on them."""
    check_count(len(outcomes))
    right = [bool(outcome.right) for outcome in outcomes]
    if not 2 <= sum(right) <= len(right) - 2:
        kind = "right" if sum(right) >= 2 else "wrong"
        raise CalibrationError(
            f"the direct answer is {kind} on (nearly) all {len(right)} calibration questions, so "
            f"there is nothing to tell apart. {_REMEDIES[kind]}"
        )
    tried = [outcome.right_with_retrieval for outcome in outcomes]
    known = [bool(t) for t in tried if t is not None]
    if known and len(known) < len(tried):
        raise InvalidInput(
            f"right_with_retrieval is given for {len(known)} of {len(tried)} calibration "
            "questions; give it for all or for none"
        )
    quality = [float(outcome.quality) for outcome in outcomes]
    if not all(map(math.isfinite, quality)):
        raise InvalidInput("an Outcome.quality is not finite; it is METEOR, chrF or 1 - TER")
    return Labels(
        fails=1 - np.array(right, dtype=int),
        quality=np.array(quality),
        mended=np.array(known, dtype=int) if known else None,
    )


def check_count(questions: int) -> None:
    """Refuse too few calibration questions."""
    if questions < _FEWEST:
        count = questions or "no"
        raise CalibrationError(
            f"{count} calibration questions; a gate needs at least {_FEWEST}, better 200"
        )


def collect(
    questions: Sequence[Question],
    world: World,
    settings: GECESettings,
    *,
    retrieving: Callable[[str], Flow[Answer]] | None = None,
    retrieved_answers: Sequence[str] | None = None,
    observers: Iterable[Observer] = (),
    batch: int | None = None,
) -> tuple[list[Outcome], Direction | None]:
    """Draft an answer to every question, and answer it with retrieval where that is possible.

    Options and context are part of the prompt; searches are by the question's text alone.
    """
    together = partial(run_many, world=world, observers=tuple(observers), batch=batch)
    whole = [render_question(question) for question in questions]
    vectors = world.encoder is not None
    drafts = together([drafting(text, settings, vectors=vectors) for text in whole])
    along = None
    wants_gradients = settings.gradients != "never" and settings.tier != "text"
    if wants_gradients and isinstance(world.llm, GradientLLM):
        prompts, references = references_like(questions, [e.draft for e in drafts], settings)
        along, without = mean_gradients(prompts, references, world.llm, settings)
        pairs = zip(drafts, without, strict=True)
        drafts = together([with_gradient_term(draft, settings, mean) for draft, mean in pairs])
    answers = retrieved_answers
    if answers is None and (retrieving is not None or world.retriever is not None):
        reading = retrieving or _reading
        asking = zip(questions, whole, strict=True)
        found = together([searching_for([question], reading(text)) for question, text in asking])
        answers = [answer.text for answer in found]

    def right(text: str, question: Question) -> bool:
        return is_right(text, question.answers, settings.correct)

    outcomes = [
        Outcome(
            evidence,
            right=right(evidence.draft.text, question),
            right_with_retrieval=None if answers is None else right(answers[i], question),
            quality=quality_of(evidence.draft.text, question.answers, settings.quality),
        )
        for i, (question, evidence) in enumerate(zip(questions, drafts, strict=True))
    ]
    return outcomes, along


def _reading(question: str) -> Flow[Answer]:
    [found] = yield from fetch(question, k=3)
    return (yield from answer_from(question, found))


def _check_targets(target_rate: float | None, target_accuracy: float | None) -> None:
    if target_rate is not None and target_accuracy is not None:
        raise InvalidInput("give target_rate or target_accuracy, not both")
    for name, value in (("target_rate", target_rate), ("target_accuracy", target_accuracy)):
        if value is not None and not 0 <= value <= 1:
            raise InvalidInput(f"{name} must lie in [0, 1], got {value}; 0.2 means one in five")


def _check_questions(questions: Sequence[Question], answers: Sequence[str] | None) -> None:
    for question in questions:
        if not isinstance(question, Question):
            raise InvalidInput(
                f"calibration questions are Question(text, answers), got {question!r:.60}"
            )
        check_references(question)
    check_count(len(questions))
    if answers is not None and len(answers) != len(questions):
        raise InvalidInput(
            f"{len(answers)} retrieved_answers for {len(questions)} questions; give one for each, "
            "in their order"
        )
    for answer in answers or ():
        if not isinstance(answer, str):
            raise InvalidInput(
                f"retrieved_answers are texts, got {type(answer).__name__}; of LangChain messages "
                "take .text, of LlamaIndex responses str(response)"
            )


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
    scorer = settings.scorer
    if scorer not in ("fitted", "gece", *SIGNALS):
        raise CalibrationError(
            f"there is no scorer {scorer!r}; there are fitted, gece, {', '.join(SIGNALS)}"
        )
    if scorer == "disagreement" and not settings.samples:
        raise CalibrationError("the scorer 'disagreement' needs GECESettings(samples=3) or more")
    if scorer == "gradient_cosine" and settings.agreement != "cosine":
        raise CalibrationError(f"the scorer {scorer!r} needs GECESettings(agreement='cosine')")
    formula = scorer == "gece" and settings.semantics
    if (formula or scorer.startswith("gradient_")) and settings.gradients != "always":
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
