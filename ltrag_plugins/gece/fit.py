"""From questions with accepted answers to a fitted gate.

`collect` asks the model and sees what comes of it. `fit_outcomes` calls no model, so recorded
outcomes do as well. The threshold is a target rate, or a target accuracy at the lowest rate that
reaches it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.calibration import cross_calibrated, fit_calibrator, stratified
from ltrag_plugins.errors import CalibrationError, InvalidInput, NoTokenProbabilities
from ltrag_plugins.flow import Flow, Observer, World, fetch, run_many
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.draft import drafting, holding
from ltrag_plugins.gece.models import FittedGate, Outcome
from ltrag_plugins.gece.report import FitReport, Judged, Labels, gated_accuracy, report
from ltrag_plugins.gece.score import (
    MeanGradients,
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
from ltrag_plugins.gece.train import fit_gain_scorer, fit_scorer
from ltrag_plugins.llm.base import LLM, Direction, Encoder, GradientLLM
from ltrag_plugins.metrics.answer import is_right
from ltrag_plugins.prompts.question import render_question, searching_for
from ltrag_plugins.prompts.templates import answer_from
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Answer, Question

FEWEST = 20
"""Fewest calibration questions; at least two of them right, and two wrong."""


def labels_of(outcomes: Sequence[Outcome]) -> Labels:
    """The outcomes as columns, if a gate can be fitted on them.

    Raises:
        CalibrationError: too few, or all right or all wrong.
        InvalidInput: answers with retrieval for some of the questions, or a quality of NaN.
    """
    check_count(len(outcomes))
    right = [bool(outcome.right) for outcome in outcomes]
    _check_both_kinds(right)
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
    """Whether there are questions enough.

    Raises:
        CalibrationError: there are not.
    """
    if questions < FEWEST:
        raise CalibrationError(
            f"{questions or 'no'} calibration questions; a gate needs at least {FEWEST}, better 200"
        )


def _check_both_kinds(right: Sequence[bool]) -> None:
    if 2 <= sum(right) <= len(right) - 2:
        return
    kind, remedy = (
        ("right", "Answer directly without a gate, or calibrate on harder questions.")
        if sum(right) >= 2
        else (
            "wrong",
            "Always retrieve without a gate, calibrate on easier questions, look whether the "
            "prompt suits the model, or loosen GECESettings.correct.",
        )
    )
    raise CalibrationError(
        f"the direct answer is {kind} on (nearly) all {len(right)} calibration questions, so there "
        f"is nothing to tell apart. {remedy}"
    )


DEFAULT_RATE = 0.2
"""Share of questions that may retrieve where no target is given (paper: the top 20 %)."""


def check_targets(target_rate: float | None, target_accuracy: float | None) -> None:
    """Whether the targets can be such.

    Raises:
        InvalidInput: both were given, or one lies outside [0, 1].
    """
    if target_rate is not None and target_accuracy is not None:
        raise InvalidInput("give target_rate or target_accuracy, not both")
    for name, value in (("target_rate", target_rate), ("target_accuracy", target_accuracy)):
        if value is not None and not 0 <= value <= 1:
            raise InvalidInput(f"{name} must lie in [0, 1], got {value}; 0.2 means one in five")


def rate_threshold(scores: Float[np.ndarray, " questions"], rate: float) -> float:
    """The threshold whose retrieval rate is nearest to `rate`; of two, the lower rate.

    Equal scores go together, so that the rate of a score with many ties may be off.
    """
    ordered = np.sort(scores)
    kept = _possible(ordered)
    off = np.abs((len(scores) - kept) - rate * len(scores))
    return _cut(ordered, int(kept[::-1][np.argmin(off[::-1])]))


def accuracy_threshold(
    scores: Float[np.ndarray, " questions"], labels: Labels, target: float
) -> float:
    """The threshold with the lowest retrieval rate at which `target` of the answers are right.

    Of all answers where those with retrieval are known, else of those given directly.

    Raises:
        CalibrationError: no rate reaches it; the message has the best.
    """
    ordered = np.sort(scores)
    kept = _possible(ordered)
    accuracy = _accuracies(np.argsort(scores, kind="stable"), labels)[kept]
    reached = kept[accuracy >= target]
    if not reached.size:
        best = int(np.flatnonzero(accuracy == accuracy.max())[-1])
        rate = 1 - kept[best] / len(scores)
        raise CalibrationError(
            f"target_accuracy={target:g} is out of reach on these {len(scores)} questions: the "
            f"best at any retrieval rate is {accuracy[best]:.3f}, at {rate:.0%}. Ask for less, use "
            "target_rate, or look at the retriever and the prompts."
        )
    return _cut(ordered, int(reached[-1]))


def _accuracies(
    order: Int[np.ndarray, " questions"], labels: Labels
) -> Float[np.ndarray, " questions_and_one"]:
    """Accuracy where the first 0, 1, ..., all questions in `order` are answered directly.

    Where only direct answers are known and there are none, it is 0.
    """
    direct = np.concatenate([[0], np.cumsum(1 - labels.fails[order])])
    if labels.mended is None:
        return direct / np.maximum(1, np.arange(len(direct)))
    mended = np.concatenate([[0], np.cumsum(labels.mended[order])])
    return (direct + mended[-1] - mended) / len(order)


def _possible(ordered: Float[np.ndarray, " questions"]) -> Int[np.ndarray, " cuts"]:
    """How many questions a threshold can leave to the model: ties cannot be parted."""
    inner = 1 + np.flatnonzero(ordered[:-1] < ordered[1:])
    return np.concatenate([[0], inner, [len(ordered)]])


def _cut(ordered: Float[np.ndarray, " questions"], kept: int) -> float:
    """A threshold under which `kept` of the scores lie."""
    if kept == 0:
        return -np.inf
    if kept == len(ordered):
        return np.inf
    low, high = float(ordered[kept - 1]), float(ordered[kept])
    middle = low + (high - low) / 2
    return middle if low < middle else high  # between neighbours there is no middle


Scores = Float[np.ndarray, " questions"]


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
    check_targets(target_rate, target_accuracy)
    labels = labels_of(outcomes)
    evidence = [outcome.evidence for outcome in outcomes]
    names = _signals_of_tier(evidence, settings, frequencies)
    columns = features(evidence, names, frequencies)
    unseen, unseen_gain = cross_validated(columns, labels, names, settings)
    by_gain = unseen_gain is not None and _gain_pays(unseen, unseen_gain, labels)
    scores = unseen_gain if by_gain and unseen_gain is not None else unseen
    if target_accuracy is None:
        rate = DEFAULT_RATE if target_rate is None else target_rate
        cut, target = rate_threshold(scores, rate), f"target rate {rate:g}"
    else:
        cut = accuracy_threshold(scores, labels, target_accuracy)
        target = f"target accuracy {target_accuracy:g}"
    logarithm = settings.scorer == "gece"
    calibration = settings.calibration
    failure = fit_scorer(columns, labels, names, settings)
    gain = fit_gain_scorer(columns, labels, settings) if by_gain else None
    own = failure.unseen if gain is None else gain.unseen
    retrieve = scores >= cut
    fitted = FittedGate(
        settings=settings,
        tier=_tier(names),
        names=tuple(names),
        frequencies=frequencies,
        failure=failure.model,
        gain=None if gain is None else gain.model,
        calibrator=fit_calibrator(failure.unseen, labels.fails, calibration, logarithm=logarithm),
        # the folds' scores say how many may retrieve; only the gate's own say from where on
        threshold=rate_threshold(own, float(retrieve.mean())),
        quantiles=np.quantile(columns.signals, np.linspace(0, 1, 21), axis=0).T,
        scores=np.sort(own),
    )
    probabilities = cross_calibrated(
        unseen,
        labels.fails,
        calibration,
        logarithm=logarithm,
        folds=settings.folds,
        seed=settings.seed,
    )
    judged = Judged(labels, columns.signals, unseen, scores, retrieve, probabilities)
    silent = sum(item.draft.tokens is None for item in evidence)
    return fitted, report(fitted, judged, target, target_rate=target_rate, silent=silent)


def _signals_of_tier(
    evidence: Sequence[Evidence], settings: GECESettings, frequencies: WordFrequencies
) -> list[str]:
    if settings.tier == "text":
        return available_signals(evidence, frequencies, only="text")
    names = available_signals(evidence, frequencies)
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


def cross_validated(
    columns: Features, labels: Labels, names: list[str], settings: GECESettings
) -> tuple[Scores, Scores | None]:
    """Scores of each question by scorers that were fitted without it.

    The second are expected gains; None where nobody retrieved, or a scorer was named.
    """
    fails, fitted = labels.fails, settings.scorer == "fitted"
    _check_quality(labels, settings)
    unseen = np.zeros(len(fails))
    gain = np.zeros(len(fails)) if fitted and labels.mended is not None else None
    for train, test in stratified(fails, settings.folds, settings.seed).split(unseen, fails):
        if fitted and labels[train].rarer < 2:  # too few for the folds inside: no opinion
            unseen[test] = fails.mean()
        else:
            scorer = fit_scorer(columns[train], labels[train], names, settings).model
            unseen[test] = scorer(columns[test])
        if gain is not None:
            gain[test] = fit_gain_scorer(columns[train], labels[train], settings).model(
                columns[test]
            )
    return unseen, gain


def _check_quality(labels: Labels, settings: GECESettings) -> None:
    if settings.scorer == "gece" and not labels.quality.any():
        raise CalibrationError(
            "the formula needs the METEOR (chrF, 1 - TER) of the calibration answers, and it is 0 "
            "for all of them; set Outcome.quality, or use another scorer"
        )


def _gain_pays(unseen: Scores, unseen_gain: Scores, labels: Labels) -> bool:
    """Whether the gain score gives the better answers over the rates that gates are used at."""
    rates = np.arange(0.05, 0.55, 0.05)
    by_gain = sum(gated_accuracy(unseen_gain, labels, rate) for rate in rates)
    return by_gain > sum(gated_accuracy(unseen, labels, rate) for rate in rates)


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """Outcomes of the calibration questions, and the mean gradient if it was asked for."""

    outcomes: tuple[Outcome, ...]
    along: Direction | None


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
    whole = [render_question(question) for question in questions]
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
        reading = retrieving or _reading
        flows = [
            searching_for([question], reading(text))
            for question, text in zip(questions, whole, strict=True)
        ]
        found = run_many(flows, world, observers=observers, batch=batch)
        answers = [answer.text for answer in found]
    outcomes = tuple(_outcomes(questions, drafts, answers, settings))
    return Collected(outcomes, None if means is None else means.overall)


def _reading(question: str) -> Flow[Answer]:
    [found] = yield from fetch(question, k=3)
    return (yield from answer_from(question, found))


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
            quality=quality_of(evidence.draft.text, question.answers, settings.quality),
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
