"""How a gate learns, with scikit-learn.

`fit_failure` stacks small models of "the direct answer fails": a logistic regression on the
plain signals, one on signals and traits, one on the embeddings, boosted trees on signals and
traits, the best plain signal by itself, and the unweighted mean of the token-probability signals
(Dawes, "The robust beauty of improper linear models in decision making", American Psychologist
1979), which cannot overfit.
Their weights are not negative (Breiman, "Stacked Regressions", Machine Learning 1996) and are
pulled towards equal ones: with few questions an even mean is better than learned weights.
`fit_gain` is a ridge regression of what retrieval changes: +1 mended, 0 no change, -1 spoiled.

A threshold belongs to one model: two fits of the same kind rank alike, but one spreads its scores
wide where the other does not. So each fit also tells what it says of questions that it has not
seen, on its own scale (`Fit.unseen`).
"""

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import nnls
from sklearn import config_context
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.model_selection import KFold

from ltrag_plugins.calibration import stratified
from ltrag_plugins.errors import CalibrationError
from ltrag_plugins.gece.fit import Labels
from ltrag_plugins.gece.models import (
    FailureModel,
    Formula,
    GainModel,
    Linear,
    OneSignal,
    Scorer,
    Trees,
    members,
)
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import Features
from ltrag_plugins.metrics.calibration import auroc

_INNER_FOLDS = 4
_GAIN_FOLDS = 10
_EVENNESS = 500.0
"""Questions that the even mean of the members is worth against learned weights."""
_LEAST_SLOPE = 0.01  # of the even mean, where the members know nothing
_SCALAR_WEIGHT = 0.1
"""Weight of a standardized scalar beside unit-length embeddings in the ridge regression."""


Model = TypeVar("Model")


@dataclass(frozen=True, slots=True, eq=False)
class Fit(Generic[Model]):
    """A fitted model, and what it would say of its own questions, had it not seen them."""

    model: Model
    unseen: Float[np.ndarray, " questions"]
    """Scores on the scale of `model`, as they spread over new questions."""


def logistic(
    x: Float[np.ndarray, "rows columns"], y: Int[np.ndarray, " rows"], *, c: float, unit: bool
) -> Linear:
    """Fit a logistic regression; `unit` columns are centred but not rescaled (embeddings)."""
    mean = x.mean(axis=0)
    deviation = np.ones(x.shape[1]) if unit else x.std(axis=0)
    scale = np.where(deviation > 1e-9, deviation, 1.0)
    model = LogisticRegression(C=c, max_iter=2000).fit((x - mean) / scale, y)
    return Linear(mean, scale, model.coef_[0], float(model.intercept_[0]))


def boosted_trees(
    x: Float[np.ndarray, "rows columns"], y: Int[np.ndarray, " rows"], *, seed: int
) -> Trees:
    """Fit boosted trees and read them into arrays."""
    # each of the 150 stages checks its input again; the table was checked before
    with config_context(assume_finite=True, skip_parameter_validation=True):
        model = boosting(len(y), seed).fit(x, y)
    return read_trees(model, prior=float(np.mean(y)))


def boosting(questions: int, seed: int) -> GradientBoostingClassifier:
    """The classifier before its fit; leaves hold 5 % of the questions, 2 at least, 20 at most."""
    return GradientBoostingClassifier(
        n_estimators=150,
        learning_rate=0.05,
        max_depth=3,
        subsample=0.7,
        max_features="sqrt",
        min_samples_leaf=max(2, min(20, questions // 20)),
        random_state=seed,
    )


def read_trees(model: GradientBoostingClassifier, *, prior: float) -> Trees:
    """The arrays of a fitted classifier whose training labels were 1 at the rate `prior`."""
    parts = [tree.tree_ for tree in model.estimators_[:, 0]]
    own = np.arange(max(part.node_count for part in parts))

    def padded(values: np.ndarray) -> np.ndarray:
        return np.pad(values, (0, len(own) - len(values)))

    def child(nodes: np.ndarray) -> np.ndarray:
        nodes = np.pad(nodes, (0, len(own) - len(nodes)), constant_values=-1)
        return np.where(nodes < 0, own, nodes).astype(int)

    return Trees(
        feature=np.stack([padded(np.maximum(p.feature, 0)) for p in parts]).astype(int),
        threshold=np.stack([padded(p.threshold) for p in parts]),
        left=np.stack([child(p.children_left) for p in parts]),
        right=np.stack([child(p.children_right) for p in parts]),
        value=np.stack([padded(p.value[:, 0, 0] * model.learning_rate) for p in parts]),
        base=float(np.log(prior / (1 - prior))),
        depth=int(model.max_depth),
    )


def fit_failure(
    features: Features, fails: Int[np.ndarray, " questions"], seed: int
) -> Fit[FailureModel]:
    """Fit the members on all rows, and their weights on what each says of rows it has not seen."""
    model = _fit_members(features, fails, seed)
    unseen = np.zeros(members(model, features).shape)
    for train, test in stratified(fails, _INNER_FOLDS, seed).split(unseen, fails):
        part = _fit_members(features[train], fails[train], seed)
        unseen[test] = members(part, features[test])
    stack = stacked(unseen, fails)
    return Fit(replace(model, stack=stack), stack(unseen))


def fit_gain(
    features: Features, gain: Float[np.ndarray, " questions"], seed: int
) -> Fit[GainModel]:
    """Fit the ridge regression, its strength by leave-one-out error."""
    scalars, vectors = features.scalars, features.vectors
    mean, deviation = scalars.mean(axis=0), scalars.std(axis=0)
    scale = np.where(deviation > 1e-9, deviation, 1.0) / _SCALAR_WEIGHT
    center = vectors.mean(axis=0)
    x = np.hstack([(scalars - mean) / scale, vectors - center])
    model = RidgeCV(alphas=np.logspace(0, 3, 13)).fit(x, gain)
    weights, size = np.asarray(model.coef_), scalars.shape[1]
    alpha: Any = model.alpha_  # annotated as possibly None
    on_scalars = Linear(mean, scale, weights[:size], float(model.intercept_))
    on_vectors = Linear(center, np.ones_like(center), weights[size:], 0.0)
    return Fit(
        GainModel(on_scalars, on_vectors if len(center) else None),
        model.intercept_ + _unseen_slopes(x, gain, float(alpha), seed),
    )


def _unseen_slopes(
    x: Float[np.ndarray, "rows columns"],
    gain: Float[np.ndarray, " rows"],
    alpha: float,
    seed: int,
) -> Float[np.ndarray, " rows"]:
    """What the centred `x` add to the intercept, by weights that were learned without the row.

    The intercept stays that of all rows: without a row that was mended it is lower, and where the
    weights are small that alone would put the row last.
    """
    found = np.zeros(len(gain))
    for train, test in KFold(_GAIN_FOLDS, shuffle=True, random_state=seed).split(x):
        ridge = Ridge(alpha=alpha * len(train) / len(gain)).fit(x[train], gain[train])
        found[test] = x[test] @ ridge.coef_
    return found


def stacked(unseen: Float[np.ndarray, "rows members"], fails: Int[np.ndarray, " rows"]) -> Linear:
    """Least squares with weights of at least 0, pulled towards those of the even mean."""
    mean, deviation = unseen.mean(axis=0), unseen.std(axis=0)
    scale = np.where(deviation > 1e-9, deviation, 1.0)
    x, y = (unseen - mean) / scale, fails - fails.mean()
    even = x.mean(axis=1)
    slope = max(_LEAST_SLOPE, float(even @ y / (even @ even)) if even.any() else 0.0)
    pull = np.sqrt(_EVENNESS) * np.eye(x.shape[1])
    weights, _ = nnls(
        np.vstack([x, pull]), np.concatenate([y, pull.sum(axis=1) * slope / len(pull)])
    )
    return Linear(mean, scale, weights, float(fails.mean()))


def _fit_members(
    features: Features, fails: Int[np.ndarray, " questions"], seed: int
) -> FailureModel:
    none = np.zeros(0)
    return FailureModel(
        signals=logistic(features.signals, fails, c=1.0, unit=False),
        scalars=logistic(features.scalars, fails, c=0.1, unit=False),
        vectors=logistic(features.vectors, fails, c=1.0, unit=True)
        if features.vectors.shape[1]
        else None,
        trees=boosted_trees(features.scalars, fails, seed=seed),
        consensus=_consensus(features),
        single=_single(features, fails),
        stack=Linear(none, none, none, 0.0),
    )


def _consensus(features: Features) -> Linear | None:
    chosen = features.probability
    return _mean_of(features.signals, chosen / chosen.sum()) if chosen.any() else None


def _single(features: Features, fails: Int[np.ndarray, " questions"]) -> Linear:
    areas = [auroc(column, fails) for column in features.signals.T]
    return _mean_of(features.signals, np.eye(len(areas))[int(np.argmax(areas))])


def _mean_of(
    x: Float[np.ndarray, "rows columns"], weights: Float[np.ndarray, " columns"]
) -> Linear:
    deviation = x.std(axis=0)
    return Linear(x.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0), weights, 0.0)


def fit_scorer(
    features: Features, labels: Labels, names: list[str], settings: GECESettings
) -> Fit[Scorer]:
    """Fit what `settings.scorer` names.

    Raises:
        CalibrationError: the named signal is not at hand on this tier.
    """
    if settings.scorer == "fitted":
        learned = fit_failure(features, labels.fails, settings.seed)
        return Fit(learned.model, learned.unseen)
    if settings.scorer == "gece":
        gradient = _column(names, f"gradient_{settings.agreement}") if settings.semantics else -1
        columns = (_column(names, "mean_probability"), _column(names, "word_frequency"), gradient)
        return _as_it_is(
            Formula(_quality_model(features, labels.quality), columns, settings), features
        )
    return _as_it_is(OneSignal(_column(names, settings.scorer)), features)


def fit_gain_scorer(features: Features, labels: Labels, settings: GECESettings) -> Fit[GainModel]:
    """Fit what retrieval is expected to change."""
    return fit_gain(features, labels.gain, settings.seed)


def _as_it_is(scorer: Formula | OneSignal, features: Features) -> Fit[Scorer]:
    return Fit(scorer, scorer(features))


def _quality_model(features: Features, quality: Float[np.ndarray, " questions"]) -> Linear:
    bare = replace(features, vectors=features.vectors[:, :0])
    return fit_gain(bare, quality, seed=0).model.scalars


def _column(names: list[str], name: str) -> int:
    if name not in names:
        raise CalibrationError(
            f"the scorer needs the signal {name!r}; at hand here are {names}. Use a model that "
            "gives token probabilities (or local weights, for gradients), or another scorer."
        )
    return names.index(name)
