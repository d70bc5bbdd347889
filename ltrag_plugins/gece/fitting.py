"""Fit a gate on outcomes: no model is called here, so recorded outcomes do as well."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from sklearn.model_selection import StratifiedKFold

from ltrag_plugins.errors import CalibrationError, InvalidInput, NoTokenProbabilities
from ltrag_plugins.gece.calibrators import Calibrator, fit_calibrator
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.features import Features, available_signals, features
from ltrag_plugins.gece.frequency import WordFrequencies
from ltrag_plugins.gece.learners import GainModel
from ltrag_plugins.gece.report import FitReport
from ltrag_plugins.gece.scorers import AnyScorer, Labels, fit_gain_scorer, fit_scorer
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import SIGNALS, Evidence
from ltrag_plugins.metrics.calibration import (
    Interval,
    auroc,
    bootstrap_interval,
    expected_calibration_error,
    mean_interval,
)

FEWEST = 20
"""Fewest calibration questions, and at least two of either kind."""


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


@dataclass(frozen=True, slots=True, eq=False)
class FittedGate:
    """All that a gate learned; applied by `GECEGate`."""

    settings: GECESettings
    tier: Tier
    names: tuple[str, ...]
    frequencies: WordFrequencies
    failure: AnyScorer
    gain: GainModel | None
    """Thresholded in place of the failure score where the objective is "gain"."""
    calibrator: Calibrator
    threshold: float
    quantiles: Float[np.ndarray, "signals points"]
    """Each signal's quantiles on the calibration questions, for explanations."""
    scores: Float[np.ndarray, " questions"]
    """Cross-validated scores of the calibration questions, sorted, for pictures."""


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
    """
    settings, frequencies = settings or GECESettings(), frequencies or WordFrequencies()
    _check_targets(target_rate, target_accuracy)
    labels = _labels(outcomes)
    evidence = [outcome.evidence for outcome in outcomes]
    names = _signals_of_tier(evidence, settings, frequencies)
    columns = features(evidence, names, frequencies)
    unseen, unseen_gain = _cross_validated(columns, labels, names, settings)
    by_gain = unseen_gain is not None and _gain_pays(unseen, unseen_gain, labels)
    scores = unseen_gain if by_gain and unseen_gain is not None else unseen
    threshold = _threshold(scores, labels, target_rate, target_accuracy)
    calibrator = fit_calibrator(unseen, labels.fails, settings.calibration)
    fitted = FittedGate(
        settings=settings,
        tier=_tier(names),
        names=tuple(names),
        frequencies=frequencies,
        failure=fit_scorer(columns, labels, names, settings),
        gain=fit_gain_scorer(columns, labels) if by_gain else None,
        calibrator=calibrator,
        threshold=threshold,
        quantiles=np.quantile(columns.signals, np.linspace(0, 1, 21), axis=0).T,
        scores=np.sort(scores),
    )
    target = (
        f"target accuracy {target_accuracy:g}"
        if target_accuracy is not None
        else f"target rate {0.2 if target_rate is None else target_rate:g}"
    )
    return fitted, _report(fitted, columns, labels, unseen, scores, target)


def _labels(outcomes: Sequence[Outcome]) -> Labels:
    right = [outcome.right for outcome in outcomes]
    if len(outcomes) < FEWEST:
        raise CalibrationError(
            f"{len(outcomes)} calibration questions; a gate needs at least {FEWEST}, better 200"
        )
    if min(sum(right), len(right) - sum(right)) < 2:
        kind = "right" if sum(right) > 1 else "wrong"
        raise CalibrationError(
            f"the direct answer is {kind} on (nearly) all {len(right)} calibration questions, so "
            "there is nothing to tell apart. "
            + (
                "Answer directly without a gate, or calibrate on harder questions."
                if kind == "right"
                else "Always retrieve, calibrate on easier questions, or loosen "
                "GECESettings.correct."
            )
        )
    tried = [outcome.right_with_retrieval for outcome in outcomes]
    if None in tried and any(t is not None for t in tried):
        raise InvalidInput(
            "right_with_retrieval must be given for all calibration questions or none"
        )
    return Labels(
        fails=1 - np.array(right, dtype=int),
        quality=np.array([outcome.quality for outcome in outcomes], dtype=float),
        mended=None if None in tried else np.array(tried, dtype=int),
    )


def _signals_of_tier(
    evidence: Sequence[Evidence], settings: GECESettings, frequencies: WordFrequencies
) -> list[str]:
    names = available_signals(evidence, frequencies)
    if settings.tier == "text":
        return [n for n in names if n not in SIGNALS or SIGNALS[n].tier != "probabilities"]
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


def _cross_validated(
    columns: Features, labels: Labels, names: list[str], settings: GECESettings
) -> tuple[Float[np.ndarray, " questions"], Float[np.ndarray, " questions"] | None]:
    """Scores of each question by scorers that were fitted without it."""
    fails = labels.fails
    unseen = np.zeros(len(fails))
    gain = None if labels.mended is None else np.zeros(len(fails))
    rarer = int(min(fails.sum(), len(fails) - fails.sum()))
    folds = StratifiedKFold(min(settings.folds, rarer), shuffle=True, random_state=settings.seed)
    for train, test in folds.split(unseen, fails):
        few = int(min(fails[train].sum(), (1 - fails[train]).sum())) < 2
        if few and settings.scorer == "fitted":
            unseen[test] = fails[train].mean()
        else:
            unseen[test] = fit_scorer(columns[train], labels[train], names, settings)(columns[test])
        if gain is not None:
            gain[test] = fit_gain_scorer(columns[train], labels[train])(columns[test])
    return unseen, gain


def gated_accuracy(scores: Float[np.ndarray, " questions"], labels: Labels, rate: float) -> float:
    """Share of right answers when the `rate` of questions with the largest scores retrieve."""
    assert labels.mended is not None
    retrieve = np.zeros(len(scores), dtype=bool)
    retrieve[np.argsort(-scores, kind="stable")[: round(rate * len(scores))]] = True
    return float(np.where(retrieve, labels.mended, 1 - labels.fails).mean())


def _gain_pays(
    unseen: Float[np.ndarray, " questions"],
    unseen_gain: Float[np.ndarray, " questions"],
    labels: Labels,
) -> bool:
    """Whether the gain score gives the better answers over the rates that gates are used at."""
    rates = np.arange(0.05, 0.55, 0.05)
    by_gain = sum(gated_accuracy(unseen_gain, labels, rate) for rate in rates)
    return by_gain > sum(gated_accuracy(unseen, labels, rate) for rate in rates)


def _threshold(
    scores: Float[np.ndarray, " questions"],
    labels: Labels,
    target_rate: float | None,
    target_accuracy: float | None,
) -> float:
    if target_accuracy is None:
        rate = 0.2 if target_rate is None else target_rate
        return _cut(np.sort(scores), len(scores) - round(rate * len(scores)))
    order = np.argsort(scores, kind="stable")
    right = 1 - labels.fails[order]
    kept = np.arange(1, len(scores) + 1)
    if labels.mended is None:
        accuracy = np.cumsum(right) / kept
    else:
        after = labels.mended[order]
        accuracy = (np.cumsum(right) + after.sum() - np.cumsum(after)) / len(scores)
        if after.mean() >= target_accuracy > accuracy.max():
            return -np.inf
    reached = np.flatnonzero(accuracy >= target_accuracy)
    if not reached.size:
        raise CalibrationError(
            f"target_accuracy={target_accuracy:g} is out of reach: the best at any retrieval rate "
            f"is {accuracy.max():.3f}. Ask for less, or use target_rate."
        )
    return _cut(np.sort(scores), int(reached[-1]) + 1)


def _cut(ordered: Float[np.ndarray, " questions"], kept: int) -> float:
    """A threshold under which `kept` of the scores lie (ties go together)."""
    if kept <= 0:
        return -np.inf
    if kept >= len(ordered):
        return np.inf
    return float((ordered[kept - 1] + ordered[kept]) / 2)


def _report(
    fitted: FittedGate,
    columns: Features,
    labels: Labels,
    unseen: Float[np.ndarray, " questions"],
    scores: Float[np.ndarray, " questions"],
    target: str,
) -> FitReport:
    fails, mended, seed = labels.fails, labels.mended, fitted.settings.seed
    retrieve = scores >= fitted.threshold
    kept = 1 - fails[~retrieve]
    probabilities = fitted.calibrator(unseen)
    signal_aurocs = {
        name: auroc(columns.signals[:, i], fails) for i, name in enumerate(fitted.names)
    }
    return FitReport(
        questions=len(fails),
        tier=fitted.tier,
        scorer=fitted.settings.scorer,
        objective="failure" if fitted.gain is None else "gain",
        target=target,
        threshold=fitted.threshold,
        direct_accuracy=float(1 - fails.mean()),
        retrieval_accuracy=None if mended is None else float(mended.mean()),
        retrieval_rate=mean_interval(retrieve, seed=seed),
        accuracy=None
        if mended is None
        else mean_interval(np.where(retrieve, mended, 1 - fails), seed=seed),
        kept_accuracy=mean_interval(kept, seed=seed)
        if kept.size
        else Interval(0.0, 0.0, 0.0, 0.95),
        auroc=bootstrap_interval(unseen, fails, statistic=auroc, resamples=500, seed=seed),
        ece=expected_calibration_error(probabilities, fails),
        signal_aurocs=signal_aurocs,
        curve=()
        if mended is None
        else tuple((r, gated_accuracy(scores, labels, r)) for r in np.linspace(0, 1, 21).tolist()),
        notes=_notes(len(fails), unseen, labels, signal_aurocs),
    )


def _notes(
    questions: int,
    unseen: Float[np.ndarray, " questions"],
    labels: Labels,
    signal_aurocs: dict[str, float],
) -> tuple[str, ...]:
    notes = []
    best = max(signal_aurocs, key=lambda name: signal_aurocs[name])
    if auroc(unseen, labels.fails) < signal_aurocs[best] - 0.005:
        notes.append(
            f"the signal {best!r} alone tells failing answers better than this gate; with "
            f"{questions} questions consider GECESettings(scorer={best!r})"
        )
    if labels.mended is not None and labels.mended.mean() <= 1 - labels.fails.mean():
        notes.append(
            "always retrieving is no better than never: look at the retriever or the prompt first"
        )
    if questions < 100:
        notes.append(f"{questions} questions leave wide intervals; 200 or more are better")
    return tuple(notes)


def _check_targets(target_rate: float | None, target_accuracy: float | None) -> None:
    if target_rate is not None and target_accuracy is not None:
        raise InvalidInput("give target_rate or target_accuracy, not both")
    for name, value in (("target_rate", target_rate), ("target_accuracy", target_accuracy)):
        if value is not None and not 0 <= value <= 1:
            raise InvalidInput(f"{name} must lie in [0, 1], got {value}")
