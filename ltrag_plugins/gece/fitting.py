"""Fit a gate on outcomes: no model is called here, so recorded outcomes do as well."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ltrag_plugins.calibrator_fitting import cross_calibrated, fit_calibrator, stratified
from ltrag_plugins.errors import CalibrationError, NoTokenProbabilities
from ltrag_plugins.gece.choosing import fit_gain_scorer, fit_scorer
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.features import Features, available_signals, features
from ltrag_plugins.gece.fitted import FittedGate, Outcome
from ltrag_plugins.gece.frequency import WordFrequencies
from ltrag_plugins.gece.labels import Labels, labels_of
from ltrag_plugins.gece.report import FitReport
from ltrag_plugins.gece.reporting import Judged, report
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import SIGNALS, Evidence
from ltrag_plugins.gece.thresholds import (
    DEFAULT_RATE,
    accuracy_threshold,
    check_targets,
    gated_accuracy,
    rate_threshold,
)

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
