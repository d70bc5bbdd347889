"""From what came of questions with accepted answers to a fitted gate; no model is called.

The threshold is a target rate, or a target accuracy at the lowest rate that reaches it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.calibration import cross_calibrated, fit_calibrator, stratified
from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.models import FitReport, FittedGate, rate_threshold
from ltrag_plugins.gece.score import Outcome, check_count
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import (
    SIGNALS,
    Features,
    WordFrequencies,
    available_signals,
    features,
)
from ltrag_plugins.gece.train import fit_gain, fit_scorer
from ltrag_plugins.metrics.calibration import auroc, bootstrap_interval, expected_calibration_error

_RATE = 0.2
"""Share of questions that may retrieve where no target is given (paper: the top 20 %)."""
_REMEDIES = {
    "right": "Answer directly without a gate, or calibrate on harder questions.",
    "wrong": "Always retrieve without a gate, calibrate on easier questions, look whether the "
    "prompt suits the model, or loosen GECESettings.correct.",
}
_Scores = Float[np.ndarray, " questions"]


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Outcomes as columns."""

    fails: Int[np.ndarray, " questions"]
    """1 where the direct answer is wrong."""
    quality: _Scores
    """METEOR (or chrF, 1 - TER) of the direct answer; 0 everywhere if no references are known."""
    mended: Int[np.ndarray, " questions"] | None = None
    """1 where the answer with retrieval is right; None when nobody tried."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "Labels":
        """The outcomes as columns, if a gate can be fitted on them."""
        check_count(len(outcomes))
        right = np.array([bool(outcome.right) for outcome in outcomes], dtype=int)
        if not 2 <= right.sum() <= len(right) - 2:
            kind = "right" if right.sum() >= 2 else "wrong"
            raise CalibrationError(
                f"the direct answer is {kind} on (nearly) all {len(right)} calibration questions, "
                f"so there is nothing to tell apart. {_REMEDIES[kind]}"
            )
        tried = [outcome.right_with_retrieval for outcome in outcomes]
        known = [bool(t) for t in tried if t is not None]
        if known and len(known) < len(tried):
            raise InvalidInput(
                f"right_with_retrieval is given for {len(known)} of {len(tried)} calibration "
                "questions; give it for all or for none"
            )
        quality = np.array([float(outcome.quality) for outcome in outcomes])
        if not np.isfinite(quality).all():
            raise InvalidInput("an Outcome.quality is not finite; it is METEOR, chrF or 1 - TER")
        return cls(1 - right, quality, np.array(known, dtype=int) if known else None)

    def __getitem__(self, rows: Int[np.ndarray, " rows"]) -> "Labels":
        mended = None if self.mended is None else self.mended[rows]
        return Labels(self.fails[rows], self.quality[rows], mended)

    @property
    def gain(self) -> _Scores:
        """What retrieval changes: +1, 0 or -1."""
        assert self.mended is not None
        return (self.mended - (1 - self.fails)).astype(float)

    def gated_accuracy(self, scores: _Scores, rate: float) -> float:
        """Share of right answers when the `rate` of questions with the largest scores retrieve."""
        assert self.mended is not None
        retrieve = np.zeros(len(scores), dtype=bool)
        retrieve[np.argsort(-scores, kind="stable")[: round(rate * len(scores))]] = True
        return float(np.where(retrieve, self.mended, 1 - self.fails).mean())

    def accuracy_threshold(self, scores: _Scores, target: float) -> float:
        """The threshold with the lowest retrieval rate at which `target` of the answers are right.

        Of all answers where those with retrieval are known, else of those given directly.
        """
        ordered, order, count = np.sort(scores), np.argsort(scores, kind="stable"), len(scores)
        # accuracy where the first 0, 1, ..., all questions are answered directly
        direct = np.concatenate([[0], np.cumsum(1 - self.fails[order])])
        if self.mended is None:
            accuracy = direct / np.maximum(1, np.arange(count + 1))
        else:
            mended = np.concatenate([[0], np.cumsum(self.mended[order])])
            accuracy = (direct + mended[-1] - mended) / count
        kept = np.append(np.unique(np.searchsorted(ordered, ordered)), count)  # ties stay together
        accuracy = accuracy[kept]
        reached = kept[accuracy >= target]
        if not reached.size:
            best = int(np.flatnonzero(accuracy == accuracy.max())[-1])
            raise CalibrationError(
                f"target_accuracy={target:g} is out of reach on these {count} questions: the best "
                f"at any retrieval rate is {accuracy[best]:.3f}, at {1 - kept[best] / count:.0%}. "
                "Ask for less, use target_rate, or look at the retriever and the prompts."
            )
        return rate_threshold(scores, 1 - reached[-1] / count)


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
    labels = Labels.of(outcomes)
    evidence = [outcome.evidence for outcome in outcomes]
    names = available_signals(evidence, frequencies, tier=settings.tier)
    columns = features(evidence, names, frequencies)
    unseen, unseen_gain = _cross_validated(columns, labels, names, settings)
    scores = unseen
    if unseen_gain is not None:  # the better answers over the rates that gates are used at decide
        by_failure, by_gain = (
            sum(labels.gated_accuracy(ranking, rate) for rate in np.arange(0.05, 0.55, 0.05))
            for ranking in (unseen, unseen_gain)
        )
        scores = unseen_gain if by_gain > by_failure else unseen
    if target_accuracy is None:
        rate = _RATE if target_rate is None else target_rate
        cut, target = rate_threshold(scores, rate), f"target rate {rate:g}"
    else:
        cut = labels.accuracy_threshold(scores, target_accuracy)
        target = f"target accuracy {target_accuracy:g}"
    retrieve = scores >= cut
    failure, own_failure = fit_scorer(columns, labels.fails, labels.quality, names, settings)
    gain, own = None, own_failure
    if scores is unseen_gain:
        gain, own = fit_gain(columns, labels.gain, settings.seed)
    method, logarithm = settings.calibration, settings.scorer == "gece"
    tiers = {"text", *(SIGNALS[name].tier for name in names if name in SIGNALS)}
    fitted = FittedGate(
        settings=settings,
        tier=next(tier for tier in get_args(Tier) if tier in tiers),
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
    silent = sum(item.draft.tokens is None for item in evidence)
    figures = (columns.signals, unseen, scores, retrieve)
    return fitted, _report(fitted, labels, *figures, target, target_rate, silent)


def _cross_validated(
    columns: Features, labels: Labels, names: list[str], settings: GECESettings
) -> tuple[_Scores, _Scores | None]:
    """Scores of each question by scorers that were fitted without it.

    The second are expected gains; None where nobody retrieved, or a scorer was named.
    """
    fails, fitted = labels.fails, settings.scorer == "fitted"
    if settings.scorer == "gece" and not labels.quality.any():
        raise CalibrationError(
            "the formula needs the quality of the calibration answers, and it is 0 for all; set "
            "Outcome.quality (METEOR, chrF, 1 - TER), or use another scorer"
        )
    unseen = np.zeros(len(fails))
    gain = np.zeros(len(fails)) if fitted and labels.mended is not None else None
    for train, test in stratified(fails, settings.folds, settings.seed).split(unseen, fails):
        known = labels[train]
        if fitted and min(known.fails.sum(), (1 - known.fails).sum()) < 2:
            unseen[test] = fails.mean()  # too few for the folds inside: no opinion
        else:
            scorer, _ = fit_scorer(columns[train], known.fails, known.quality, names, settings)
            unseen[test] = scorer(columns[test])
        if gain is not None:
            gain[test] = fit_gain(columns[train], known.gain, settings.seed)[0](columns[test])
    return unseen, gain


def _report(
    fitted: FittedGate,
    labels: Labels,
    signals: Float[np.ndarray, "questions signals"],
    unseen: _Scores,
    scores: _Scores,
    retrieve: Bool[np.ndarray, " questions"],
    target: str,
    target_rate: float | None,
    silent: int,
) -> FitReport:
    """The figures of a fit, each question judged by a gate that was fitted without it.

    `unseen` says that the direct answer fails; `scores` rank the questions: the same, or expected
    gains. `retrieve` are those that the target sends to retrieval; `silent` drafts came without
    token probabilities.
    """
    settings, fails, mended, count = fitted.settings, labels.fails, labels.mended, len(labels.fails)
    seed, kept = settings.seed, 1 - fails[~retrieve]
    method, logarithm = settings.calibration, settings.scorer == "gece"
    probabilities = cross_calibrated(
        unseen, fails, method, logarithm=logarithm, folds=settings.folds, seed=seed
    )
    areas = {name: auroc(signals[:, i], fails) for i, name in enumerate(fitted.names)}
    own, best = auroc(unseen, fails), max(areas, key=lambda name: areas[name])
    gated = None if mended is None else np.where(retrieve, mended, 1 - fails)
    rates = [] if mended is None else np.linspace(0, 1, 21).tolist()
    never, rate = float(1 - fails.mean()), float(retrieve.mean())
    always, behind = (math.inf if x is None else float(x.mean()) for x in (mended, gated))
    asked = rate if target_rate is None else target_rate
    notes = {
        f"the signal {best!r} alone tells failing answers better than this gate; with {count} "
        f"questions consider GECESettings(scorer={best!r})": own < areas[best] - 0.005,
        "larger scores go with right answers here: do not rely on this gate": own < 0.5,
        f"{silent} of {count} drafts came without token probabilities, so the gate reads none; "
        "if the provider can send them, fit again": 0 < silent < count,
        "always retrieving is no better than never: look at the retriever or the prompt "
        "first": always <= never,
        f"{count} questions leave wide intervals; 200 or more are better": count < 100,
        f"never retrieving is right more often ({never:.3f}) than this gate ({behind:.3f}): "
        "choose a lower target_rate, or look at the retriever": behind < never,
        f"many scores are equal, so {rate:.1%} retrieve; the target was {asked:.1%}": (
            abs(rate - asked) * count > 1
        ),
    }
    return FitReport(
        questions=count,
        tier=fitted.tier,
        scorer=settings.scorer,
        objective="failure" if fitted.gain is None else "gain",
        target=target,
        threshold=fitted.threshold,
        direct_accuracy=never,
        retrieval_accuracy=None if mended is None else always,
        retrieval_rate=bootstrap_interval(retrieve, seed=seed),
        accuracy=None if gated is None else bootstrap_interval(gated, seed=seed),
        kept_accuracy=bootstrap_interval(kept, seed=seed) if kept.size else None,
        auroc=bootstrap_interval(unseen, fails, statistic=auroc, resamples=500, seed=seed),
        ece=expected_calibration_error(probabilities, fails),
        signal_aurocs=areas,
        curve=tuple((rate, labels.gated_accuracy(scores, rate)) for rate in rates),
        notes=tuple(note for note, holds in notes.items() if holds),
    )


def check_targets(target_rate: float | None, target_accuracy: float | None) -> None:
    """Refuse two targets at once, and one that is no share."""
    if target_rate is not None and target_accuracy is not None:
        raise InvalidInput("give target_rate or target_accuracy, not both")
    for name, value in (("target_rate", target_rate), ("target_accuracy", target_accuracy)):
        if value is not None and not 0 <= value <= 1:
            raise InvalidInput(f"{name} must lie in [0, 1], got {value}; 0.2 means one in five")
