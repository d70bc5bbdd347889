"""From what came of questions with accepted answers to a fitted gate; no model is called.

`fit_failure` stacks small models of "the direct answer fails": a logistic regression on the
plain signals, one on signals and traits, one on the embeddings, boosted trees on signals and
traits, a memory of the questions that are most alike (kernel ridge regression), the plain signals
weighted by how well each tells failures alone, and the unweighted mean of the token-probability
signals (Dawes, American Psychologist 1979), which cannot overfit. Their weights are not negative
(Breiman, "Stacked Regressions", Machine Learning 1996) and are pulled towards equal ones: with few
questions an even mean is better, and with few right answers, or few wrong ones, a mean that leans
on the last two members. `fit_gain` is a ridge regression of what retrieval changes: +1 mended, 0 no
change, -1 spoiled.

A threshold belongs to one model: two fits of the same kind rank alike, but spread their scores
otherwise. So each fit also returns its scores of questions that it has not seen, on its own scale.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.calibration import cross_calibrated, fit_calibrator, stratified
from ltrag_plugins.errors import CalibrationError, InvalidInput, missing_extra
from ltrag_plugins.gece import models
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.labels import NO_COST, NO_RETRIEVAL, Outcome, check_count
from ltrag_plugins.gece.models import AS_ALWAYS, FitReport, FittedGate, Linear, rate_threshold
from ltrag_plugins.gece.savings import Usage
from ltrag_plugins.gece.settings import GECESettings, Targets
from ltrag_plugins.gece.signals import (
    SIGNALS,
    Evidence,
    Features,
    WordFrequencies,
    available_signals,
    features,
    frequencies_for,
)
from ltrag_plugins.metrics.calibration import auroc, bootstrap_interval, expected_calibration_error
from ltrag_plugins.tokenize import words

try:
    from scipy.linalg import solve
    from scipy.optimize import nnls
    from scipy.stats import rankdata
    from sklearn import config_context
    from sklearn.decomposition import PCA
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
    from sklearn.model_selection import KFold
except ImportError as error:
    raise missing_extra("scikit-learn", "fit") from error

_logger = logging.getLogger(__name__)
_RATE = 0.2  # share of questions that retrieve where no target is given (paper: the top 20 %)
_REMEDIES = {
    "right": "Answer directly without a gate, or calibrate on harder questions.",
    "wrong": "Always retrieve without a gate, calibrate on easier questions, look whether the "
    "prompt suits the model, or loosen the setting correct.",
}
_DISAGREE = 0.05  # of the answers, that may differ from the chain's and the gate be as good
_NO_GATE = 0.95  # of the questions; retrieving for more saves less than a draft costs
_INNER_FOLDS = 4
_GAIN_FOLDS = 10
_EVENNESS = 500.0  # questions, half of them right, that the even mean is worth against weights
_LEANING = 4.0  # right answers, or wrong ones, that plain signals without an error are worth
_LEANS = 0.1  # of the pull; from here on the report says so
_LEAST_SLOPE = 0.01  # of the even mean, where the members know nothing
_SCALAR_WEIGHT = 0.1  # of a standardized scalar beside unit-length embeddings, in the ridge
_REMEMBERED = 4000  # calibration questions that a memory holds; a saved gate stays below 1 MB
_DIRECTIONS = 96  # of the embeddings, in the memory
_VECTORS_APART = 3.0  # mean squared distance from the center; within 1, two questions are near
_MEMORY_RIDGE = 0.3  # a question's own weight is 1
_Table = Float[np.ndarray, "rows columns"]
_Scores = Float[np.ndarray, " questions"]
_Bits = Int[np.ndarray, " questions"]


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Outcomes as columns."""

    fails: _Bits
    """1 where the direct answer is wrong."""
    quality: _Scores
    """METEOR (or chrF, 1 - TER) of the direct answer; 0 everywhere if no references are known."""
    mended: _Bits | None = None
    """1 where the answer with retrieval is right; None when nobody tried."""
    agreement: float = 0.0
    """Share of the questions where right means agreement with the answer with retrieval."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "Labels":
        """The outcomes as columns, if a gate can be fitted on them."""
        check_count(outcomes)
        right = np.array([bool(outcome.right) for outcome in outcomes], dtype=int)
        if not 2 <= right.sum() <= len(right) - 2:
            kind = "right" if right.sum() >= 2 else "wrong"
            raise CalibrationError(
                f"the direct answer is {kind} on (nearly) all {len(right)} calibration questions, "
                f"so there is nothing to tell apart. {_REMEDIES[kind]}"
            )
        tried = [o.right_with_retrieval for o in outcomes if o.right_with_retrieval is not None]
        if tried and len(tried) < len(outcomes):
            given = f"{len(tried)} of {len(outcomes)} questions"
            raise InvalidInput(
                f"right_with_retrieval is given for {given}; give it for all or none"
            )
        quality = np.array([float(outcome.quality) for outcome in outcomes])
        if not np.isfinite(quality).all():
            raise InvalidInput("an Outcome.quality is not finite; it is METEOR, chrF or 1 - TER")
        mended = np.array(tried, dtype=bool).astype(int) if tried else None
        return cls(1 - right, quality, mended, float(np.mean([o.agreement for o in outcomes])))

    def __getitem__(self, rows: Int[np.ndarray, " rows"]) -> "Labels":
        mended = None if self.mended is None else self.mended[rows]
        return replace(self, fails=self.fails[rows], quality=self.quality[rows], mended=mended)

    @property
    def gain(self) -> _Scores:
        """What retrieval changes: +1, 0 or -1."""
        assert self.mended is not None
        return (self.mended - (1 - self.fails)).astype(float)

    @property
    def as_good_as_always(self) -> float:
        """The accuracy of always retrieving; less 5 % of what is agreement with itself."""
        if self.mended is None:
            raise InvalidInput(NO_RETRIEVAL)
        return float(self.mended.mean()) - _DISAGREE * self.agreement

    def gated(self, scores: _Scores, rate: float) -> Float[np.ndarray, " questions"]:
        """1 for right answers when the `rate` of questions with the largest scores retrieve."""
        assert self.mended is not None
        retrieve = np.zeros(len(scores), dtype=bool)
        retrieve[np.argsort(-scores, kind="stable")[: round(rate * len(scores))]] = True
        return np.where(retrieve, self.mended, 1 - self.fails).astype(float)

    def accuracy_threshold(self, scores: _Scores, target: float) -> float:
        """The threshold of the lowest retrieval rate at which `target` of the answers are right."""
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
    target_accuracy: float | Literal["always"] | None = None,
    budget: float | None = None,
    costs: tuple[Usage, Usage] | None = None,
    settings: GECESettings | None = None,
    frequencies: WordFrequencies | None = None,
) -> tuple[FittedGate, FitReport]:
    """Fit a gate; for the targets and what is raised see `GECEGate.fit`.

    Args:
        costs: of a question's draft and of its answer with retrieval; a `budget` needs them.

    Raises:
        InvalidInput: a signal or an embedding is not finite.
    """
    frequencies = frequencies_for(settings := settings or GECESettings(), frequencies)
    Targets(target_rate, target_accuracy, budget)  # refuses what is no share, or two at once
    labels, evidence = Labels.of(outcomes), [outcome.evidence for outcome in outcomes]
    if settings.gradients == "auto" and any(one.agreement for one in evidence):
        evidence = _paying(evidence, labels, settings, frequencies)
    names = available_signals(evidence, frequencies, tier=settings.tier)
    columns = features(evidence, names, frequencies)
    unseen, unseen_gain = _cross_validated(columns, labels, names, settings)
    scores = unseen
    if unseen_gain is not None and higher(_area, unseen_gain, unseen, labels.gain, settings.seed):
        scores = unseen_gain
    by_gain, silent = scores is unseen_gain, [not e.draft.text.strip() for e in evidence]
    scores = _with_silent_first(scores, silent)
    rate = _RATE if target_rate is None else target_rate
    if budget is not None:
        rate = target_rate = _rate_within(budget, costs)
    elif target_rate is None and target_accuracy is None and labels.mended is not None:
        target_accuracy = "always"
    if target_accuracy is None:
        rate = rate and max(rate, float(np.mean(silent)))  # these retrieve, unless nothing does
        cut, target = rate_threshold(scores, rate), f"target rate {rate:g}"
        target = target if budget is None else f"budget {budget:g} of always retrieving's cost"
    else:
        always = target_accuracy == "always"
        wanted = labels.as_good_as_always if always else float(target_accuracy)
        cut = labels.accuracy_threshold(scores, wanted)
        target = AS_ALWAYS if always else f"target accuracy {wanted:g}"
    retrieve = scores >= cut
    failure, own_failure = _fit_scorer(columns, labels, names, settings)
    gain, own = None, own_failure
    if by_gain:
        gain, own = fit_gain(columns, labels.gain, settings.seed)
    ranked = _with_silent_first(own, silent)
    if target_accuracy is None and abs(retrieve.mean() - rate) * len(scores) > 1:
        # folds with one right answer have no opinion, so their scores tie; the gate's own may not
        retrieve = ranked >= rate_threshold(ranked, rate)
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
        threshold=rate_threshold(ranked, float(retrieve.mean())),
        quantiles=np.quantile(columns.signals, np.linspace(0, 1, 21), axis=0).T,
        scores=np.sort(own),
    )
    figures = (columns.signals, unseen, scores, retrieve)
    return fitted, _report(fitted, labels, evidence, *figures, target, target_rate, costs)


def _with_silent_first(scores: _Scores, silent: Sequence[bool]) -> _Scores:
    """The scores, those of empty drafts above all: they retrieve, whatever the gate says."""
    return np.where(silent, scores.max() + 1.0, scores)


def _rate_within(budget: float, costs: tuple[Usage, Usage] | None) -> float:
    """How many questions may retrieve for that share of what always retrieving costs."""
    own = None if costs is None else costs[0].share_of(costs[1])
    if own is None:
        raise InvalidInput(NO_COST)
    if budget <= own:
        raise CalibrationError(
            f"budget={budget:g} is out of reach: the gate's own draft costs {own:.2f} of an answer "
            "with retrieval. Ask for more, shorten the draft, or always retrieve without a gate."
        )
    return min(1.0, budget - own)


def _cross_validated(
    columns: Features, labels: Labels, names: list[str], settings: GECESettings
) -> tuple[_Scores, _Scores | None]:
    """Scores of each question by scorers fitted without it; the second are expected gains,
    None where nobody retrieved, or a scorer was named."""
    fails, fitted = labels.fails, settings.scorer == "fitted"
    if settings.scorer == "gece" and not labels.quality.any():
        raise CalibrationError(
            "the formula needs Outcome.quality (METEOR, chrF, 1 - TER), which is 0 for all; set "
            "it, or use another scorer"
        )
    unseen = np.zeros(len(fails))
    gain = np.zeros(len(fails)) if fitted and labels.mended is not None else None
    for train, test in stratified(fails, settings.folds, settings.seed).split(unseen, fails):
        known = labels[train]
        if fitted and min(known.fails.sum(), (1 - known.fails).sum()) < 2:
            unseen[test] = fails.mean()  # too few for the folds inside: no opinion
        else:
            unseen[test] = _fit_scorer(columns[train], known, names, settings)[0](columns[test])
        if gain is not None:
            gain[test] = fit_gain(columns[train], known.gain, settings.seed)[0](columns[test])
    return unseen, gain


def _area(scores: _Scores, gain: _Scores) -> float:
    r"""Mean over all retrieval rates of the accuracy above a random choice of as many questions.

    .. math:: \frac{1}{n} \sum_i g_i \left(\frac{r_i - 1/2}{n} - \frac{1}{2}\right)

    with g what retrieval changes and r the rank of the score, the largest n, of ties the mean: the
    area between the curve of accuracy over retrieval rate and the chord from never to always.
    """
    return float(gain @ (rankdata(scores) - (len(gain) + 1) / 2)) / len(gain) ** 2


def _paying(
    evidence: list[Evidence],
    labels: Labels,
    settings: GECESettings,
    frequencies: WordFrequencies | None,
) -> list[Evidence]:
    """The evidence without its gradients, unless they lift the AUROC for certain."""
    bare, unseen = [replace(one, agreement=None) for one in evidence], list[_Scores]()
    for some in (evidence, bare):
        names = available_signals(some, frequencies, tier=settings.tier)
        columns = features(some, names, frequencies)
        unseen.append(_cross_validated(columns, labels, names, settings)[0])
    gated, plain = unseen
    return evidence if higher(auroc, gated, plain, labels.fails, settings.seed) else bare


def higher(
    statistic: Callable[[_Scores, Any], float],
    scores: _Scores, others: _Scores, outcomes: Any, seed: int,
) -> bool:  # fmt: skip
    """Whether the whole paired bootstrap interval of the difference is above 0."""

    def difference(*columns: _Scores) -> float:
        return statistic(columns[0], columns[2]) - statistic(*columns[1:])

    columns = (scores, others, outcomes)
    return bootstrap_interval(*columns, statistic=difference, resamples=500, seed=seed).low > 0


def _report(
    fitted: FittedGate,
    labels: Labels,
    evidence: Sequence[Evidence],
    signals: Float[np.ndarray, "questions signals"],
    unseen: _Scores,
    scores: _Scores,
    retrieve: Bool[np.ndarray, " questions"],
    target: str,
    target_rate: float | None,
    costs: tuple[Usage, Usage] | None,
) -> FitReport:
    """`unseen` says that the direct answer fails; by `scores`, the same or expected gains, the
    questions `retrieve`."""
    settings, fails, mended, count = fitted.settings, labels.fails, labels.mended, len(labels.fails)
    kept, interval = 1 - fails[~retrieve], partial(bootstrap_interval, seed=settings.seed)
    parts = {"folds": settings.folds, "seed": settings.seed, "logarithm": settings.scorer == "gece"}
    probabilities = cross_calibrated(unseen, fails, settings.calibration, **parts)
    areas = {name: auroc(signals[:, i], fails) for i, name in enumerate(fitted.names)}
    own, best = auroc(unseen, fails), max(areas, key=lambda name: areas[name])
    never, rate = float(1 - fails.mean()), float(retrieve.mean())
    gated, against, area, curve, costly = None, None, None, (), ""
    always = behind = math.inf
    if mended is not None:
        gated = np.where(retrieve, mended, 1 - fails)
        always, behind = float(mended.mean()), float(gated.mean())
        rates = np.linspace(0, 1, 21).tolist()
        curve = tuple((r, float(labels.gated(scores, r).mean())) for r in rates)
        area = interval(scores, labels.gain, statistic=_area, resamples=500)
        against = interval(gated - mended)
        if against.high < 0 and target != AS_ALWAYS:  # more than chance explains
            higher = np.arange(rate, 1, 0.05)
            least = (r for r in higher if interval(labels.gated(scores, r) - mended).high >= 0)
            loses = "loses" if labels.agreement < 1 else "changes"
            costly = (
                f"costly: retrieving for {rate:.0%} {loses} {-against.value:.3f} of the "
                f"answers against always retrieving (95 % interval {-against.high:.3f} to "
                f"{-against.low:.3f}); from {next(least, 1):.0%} on chance would explain it"
            )
            _logger.warning(costly)
    asked = rate if target_rate is None else target_rate
    gate, retrieval = costs or (None, None)
    share = gate.share_of(retrieval) if gate and retrieval else None
    rare = min((int(fails.sum()), "wrong"), (int((1 - fails).sum()), "right"))
    silent = sum(item.draft.tokens is None for item in evidence)
    mute = float(np.mean([not item.draft.text.strip() for item in evidence]))
    lengths = [len(words(item.question)) for item in evidence]
    hopeless = fitted.threshold == -math.inf or (target == AS_ALWAYS and rate > _NO_GATE)
    leans = settings.scorer == "fitted" and _leaning([areas[best]], fails) >= _LEANS
    unlabelled = f"{round(labels.agreement * count)} of {count} questions have no accepted answers"
    notes = {
        costly: bool(costly),
        "always retrieve: no gate pays on these questions": hopeless,
        f"the gate's drafts cost {share or 0:.0%} of what always retrieving costs and it avoids "
        f"{1 - rate:.0%} of it: always retrieve without a gate, or shorten the draft": (
            share is not None and share > 1 - rate
        ),
        f"{unlabelled}: right means there that the direct answer agrees with the one with "
        "retrieval, so the gate learns where retrieval changes the answer": labels.agreement > 0,
        f"the signal {best!r} alone tells failing answers better than this gate; with {count} "
        f"questions consider GECESettings(scorer={best!r})": own < areas[best] - 0.005,
        f"only {rare[0]} {rare[1]} answers to learn from: the gate leans on its plain signals, on "
        f"{best!r} most": leans,
        "larger scores go with right answers here: do not rely on this gate": own < 0.5,
        "it reads word frequencies: where it runs, pip install 'ltrag-plugins[frequency]'": (
            fitted.frequencies is not None and not fitted.frequencies.counts
        ),
        f"{silent} of {count} drafts came without token probabilities, so the gate reads none; "
        "if the provider can send them, fit again": 0 < silent < count,
        "always retrieving is no better than never: look at the retriever or the prompt "
        "first": always <= never,
        f"{count} questions leave wide intervals; 200 or more are better": count < 100,
        f"never retrieving is right more often ({never:.3f}) than this gate ({behind:.3f}): "
        "choose a lower target_rate, or look at the retriever": behind < never,
        f"many scores are equal, so {rate:.1%} retrieve; the target was {asked:.1%}": (
            abs(rate - asked) * count > 1 and mute <= asked
        ),
        f"{mute:.1%} of the drafts are empty and retrieve, so {rate:.1%} do; the target was "
        f"{asked:.1%}": abs(rate - asked) * count > 1 and mute > asked,
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
        retrieval_rate=interval(retrieve),
        accuracy=None if gated is None else interval(gated),
        against_always=against,
        area=area,
        agreement=labels.agreement,
        gate_cost=gate,
        retrieval_cost=retrieval,
        kept_accuracy=interval(kept) if kept.size else None,
        auroc=interval(unseen, fails, statistic=auroc, resamples=500),
        ece=expected_calibration_error(probabilities, fails),
        signal_aurocs=areas,
        curve=curve,
        question_words=tuple(np.quantile(lengths, np.linspace(0, 1, 21)).tolist()),
        notes=tuple(note for note, holds in notes.items() if holds),
    )


def _fit_scorer(
    columns: Features, labels: Labels, names: list[str], settings: GECESettings
) -> tuple[models.Scorer, _Scores]:
    """Fit what `settings.scorer` names, with its scores of unseen questions."""

    def place(name: str) -> int:
        if name not in names:
            raise CalibrationError(
                f"the scorer needs the signal {name!r}; at hand here are {names}. Use a model that "
                "gives token probabilities (local weights, for gradients), or another scorer."
            )
        return names.index(name)

    if settings.scorer == "fitted":
        return fit_failure(columns, labels.fails, settings.seed)
    if settings.scorer == "gece":
        gradient = place(f"gradient_{settings.agreement}") if settings.semantics else -1
        places = (place("mean_probability"), place("word_frequency"), gradient)
        bare = replace(columns, vectors=columns.vectors[:, :0])
        meteor = fit_gain(bare, labels.quality, seed=0)[0].scalars
        scorer = models.Formula(meteor, places, settings)
    else:
        scorer = models.OneSignal(place(settings.scorer))
    return scorer, scorer(columns)


def fit_failure(features: Features, fails: _Bits, seed: int) -> tuple[models._MemoryModel, _Scores]:
    """Fit the members on all rows, and their weights on what each says of rows it has not seen."""
    model = _fit_members(features, fails, seed)
    unseen = np.zeros(model.members(features).shape)
    for train, test in stratified(fails, _INNER_FOLDS, seed).split(unseen, fails):
        unseen[test] = _fit_members(features[train], fails[train], seed).members(features[test])
    stack = stacked(unseen, fails, model.plain)
    return replace(model, stack=stack), stack(unseen)


def fit_gain(features: Features, gain: _Scores, seed: int) -> tuple[models.GainModel, _Scores]:
    """Fit the ridge regression, its strength by leave-one-out error; scores as `fit_failure`."""
    scalars, vectors = features.scalars, features.vectors
    mean, scale = scalars.mean(axis=0), _deviations(scalars) / _SCALAR_WEIGHT
    center = vectors.mean(axis=0)
    x = np.hstack([(scalars - mean) / scale, vectors - center])
    # down to 0.01: the scaled scalars of 60 questions have a sum of squares of 0.6
    model = RidgeCV(alphas=np.logspace(-2, 3, 21)).fit(x, gain)
    weights, size = np.asarray(model.coef_), scalars.shape[1]
    on_scalars = Linear(mean, scale, weights[:size], float(model.intercept_))
    on_vectors = Linear(center, np.ones_like(center), weights[size:], 0.0)
    # The intercept stays that of all rows: without a row that was mended it is lower, and where
    # the weights are small that alone would put the row last.
    slopes = np.zeros(len(gain))
    alpha: Any = model.alpha_  # annotated as possibly None
    for train, test in KFold(_GAIN_FOLDS, shuffle=True, random_state=seed).split(x):
        ridge = Ridge(alpha=float(alpha) * len(train) / len(gain)).fit(x[train], gain[train])
        slopes[test] = x[test] @ ridge.coef_
    gains = models.GainModel(on_scalars, on_vectors if len(center) else None)
    return gains, model.intercept_ + slopes


def stacked(
    unseen: Float[np.ndarray, "rows members"], fails: _Bits, plain: Sequence[int] = ()
) -> Linear:
    """Least squares with weights of at least 0, pulled towards those of the even mean: the harder,
    the rarer one of the outcomes is. A part of the pull goes to the `plain` members alone: the
    larger, the rarer that outcome is and the better they tell failures."""
    mean, scale = unseen.mean(axis=0), _deviations(unseen)
    x, y = (unseen - mean) / scale, fails - fails.mean()
    share = np.full(x.shape[1], 1 / x.shape[1])
    if plain:
        leaning = _leaning([auroc(unseen[:, i], fails) for i in plain], fails)
        share *= 1 - leaning
        share[[*plain]] += leaning / len(plain)
    middle = x @ share
    slope = max(_LEAST_SLOPE, float(middle @ y / (middle @ middle)) if middle.any() else 0.0)
    pull = np.sqrt(_EVENNESS / (4 * fails.var())) * np.eye(x.shape[1])
    weights, _ = nnls(np.vstack([x, pull]), np.concatenate([y, pull @ share * slope]))
    return Linear(mean, scale, weights, float(fails.mean()))


def _leaning(areas: Sequence[float], fails: _Bits) -> float:
    """How far to lean on plain signals with these AUROCs, 0 to 1."""
    worth = _LEANING * float(np.mean([max(0.0, 2 * area - 1) for area in areas]))
    return worth / (worth + min(fails.sum(), (1 - fails).sum()))


def _fit_members(features: Features, fails: _Bits, seed: int) -> models._MemoryModel:
    signals, vectors, tokens = features.signals, features.vectors, features.probability
    mean, scale, none = signals.mean(axis=0), _deviations(signals), np.zeros(0)
    alone = np.array([max(0.0, auroc(column, fails) - 0.5) ** 2 for column in signals.T])
    alone = alone if alone.any() else np.ones(len(alone))
    even = Linear(mean, scale, tokens / max(1, tokens.sum()), 0.0)
    return models._MemoryModel(
        signals=_logistic(signals, fails, c=0.03),
        scalars=_logistic(features.scalars, fails, c=0.1),
        vectors=_logistic(vectors, fails, c=1.0, unit=True) if vectors.shape[1] else None,
        trees=_boosted_trees(features.scalars, fails, seed),
        consensus=even if tokens.any() else None,
        single=Linear(mean, scale, alone / alone.sum(), 0.0),
        stack=Linear(none, none, none, 0.0),
        memory=_memory(features, fails, seed),
    )


def _memory(features: Features, fails: _Bits, seed: int) -> models._Memory:
    kept = np.random.default_rng(seed).permutation(len(fails))[:_REMEMBERED]
    some, vectors = features[kept], features.vectors[kept]
    center, axes = vectors.mean(axis=0), np.zeros((vectors.shape[1], 0))
    apart = float(vectors.var(axis=0).sum())
    if apart > 1e-9:  # equal ones have no direction
        places = min(_DIRECTIONS, *vectors.shape)
        found = PCA(places, svd_solver="randomized", random_state=seed).fit(vectors)
        axes = np.asarray(found.components_).T * np.sqrt(_VECTORS_APART / apart)
    memory = models._Memory(
        mean=some.scalars.mean(axis=0),
        scale=_deviations(some.scalars),
        center=center,
        axes=axes.astype(np.float16),
        points=np.zeros((0, 0), dtype=np.int8),
        step=1.0,
        weights=np.zeros(0),
    )
    places = memory.places(vectors, some.scalars)
    step = max(1e-9, float(np.abs(places).max()) / 127)
    memory = replace(memory, points=np.round(places / step).astype(np.int8), step=step)
    kernel = memory.nearness(memory.points * step) + _MEMORY_RIDGE * np.eye(len(kept))
    return replace(memory, weights=solve(kernel, fails[kept] - fails.mean(), assume_a="pos"))


def _logistic(x: _Table, y: _Bits, *, c: float, unit: bool = False) -> Linear:
    """A logistic regression; `unit` columns are centred but not rescaled (embeddings)."""
    mean, scale = x.mean(axis=0), np.ones(x.shape[1]) if unit else _deviations(x)
    model = LogisticRegression(C=c, max_iter=2000).fit((x - mean) / scale, y)
    return Linear(mean, scale, model.coef_[0], float(model.intercept_[0]))


def _deviations(x: _Table) -> Float[np.ndarray, " columns"]:
    """Standard deviations to divide by; 1 where a column never changes."""
    found = x.std(axis=0)
    return np.where(found > 1e-9, found, 1.0)


def _boosted_trees(x: _Table, y: _Bits, seed: int) -> models.Trees:
    """Boosted trees as arrays; leaves hold 5 % of the questions, 2 at least, 20 at most."""
    model = GradientBoostingClassifier(
        n_estimators=150,
        learning_rate=0.05,
        max_depth=3,
        subsample=0.7,
        max_features="sqrt",
        min_samples_leaf=max(2, min(20, len(y) // 20)),
        random_state=seed,
    )
    # each of the 150 stages checks its input again; the table was checked before
    with config_context(assume_finite=True, skip_parameter_validation=True):
        model.fit(x, y)
    parts = [tree.tree_ for tree in model.estimators_[:, 0]]
    nodes = np.arange(max(part.node_count for part in parts))

    def table(name: str, fill: float = 0.0) -> np.ndarray:
        rows = np.full((len(parts), len(nodes)), fill)
        for row, part in zip(rows, parts, strict=True):
            row[: part.node_count] = getattr(part, name).ravel()
        return rows

    left, right = table("children_left", -1.0), table("children_right", -1.0)
    prior = float(np.mean(y))
    return models.Trees(
        feature=np.maximum(table("feature"), 0).astype(int),
        threshold=table("threshold"),
        left=np.where(left < 0, nodes, left).astype(int),
        right=np.where(right < 0, nodes, right).astype(int),
        value=table("value") * model.learning_rate,
        base=float(np.log(prior / (1 - prior))),
        depth=int(model.max_depth),
    )
