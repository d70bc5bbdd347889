"""How a gate's models learn, with scikit-learn.

`fit_failure` stacks small models of "the direct answer fails": a logistic regression on the
plain signals, one on signals and traits, one on the embeddings, boosted trees on signals and
traits, the best plain signal by itself, and the unweighted mean of the token-probability signals
(Dawes, "The robust beauty of improper linear models in decision making", American Psychologist
1979), which cannot overfit.
Their weights are not negative (Breiman, "Stacked Regressions", Machine Learning 1996) and are
pulled towards equal ones: with few questions an even mean is better than learned weights.
`fit_gain` is a ridge regression of what retrieval changes: +1 mended, 0 no change, -1 spoiled.

A threshold belongs to one model: two fits of the same kind rank alike, but spread their scores
otherwise. So each fit also returns its scores of questions that it has not seen, on its own scale.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import nnls
from sklearn import config_context
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.model_selection import KFold

from ltrag_plugins.calibration import stratified
from ltrag_plugins.errors import CalibrationError
from ltrag_plugins.gece.models import FailureModel, Formula, GainModel, Linear, OneSignal, Trees
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
_Table = Float[np.ndarray, "rows columns"]
_Scores = Float[np.ndarray, " questions"]
_Bits = Int[np.ndarray, " questions"]


def fit_scorer(
    features: Features, fails: _Bits, quality: _Scores, names: list[str], settings: GECESettings
) -> tuple[FailureModel | Formula | OneSignal, _Scores]:
    """Fit what `settings.scorer` names, with its scores of unseen questions."""

    def column(name: str) -> int:
        if name not in names:
            raise CalibrationError(
                f"the scorer needs the signal {name!r}; at hand here are {names}. Use a model that "
                "gives token probabilities (local weights, for gradients), or another scorer."
            )
        return names.index(name)

    if settings.scorer == "fitted":
        return fit_failure(features, fails, settings.seed)
    if settings.scorer == "gece":
        gradient = column(f"gradient_{settings.agreement}") if settings.semantics else -1
        columns = (column("mean_probability"), column("word_frequency"), gradient)
        bare = replace(features, vectors=features.vectors[:, :0])
        scorer = Formula(fit_gain(bare, quality, seed=0)[0].scalars, columns, settings)
    else:
        scorer = OneSignal(column(settings.scorer))
    return scorer, scorer(features)


def fit_failure(features: Features, fails: _Bits, seed: int) -> tuple[FailureModel, _Scores]:
    """Fit the members on all rows, and their weights on what each says of rows it has not seen.

    The scores are those that spread over unseen questions.
    """
    model = _fit_members(features, fails, seed)
    unseen = np.zeros(model.members(features).shape)
    for train, test in stratified(fails, _INNER_FOLDS, seed).split(unseen, fails):
        unseen[test] = _fit_members(features[train], fails[train], seed).members(features[test])
    stack = stacked(unseen, fails)
    return replace(model, stack=stack), stack(unseen)


def fit_gain(features: Features, gain: _Scores, seed: int) -> tuple[GainModel, _Scores]:
    """Fit the ridge regression, its strength by leave-one-out error; scores as `fit_failure`."""
    scalars, vectors = features.scalars, features.vectors
    mean, scale = scalars.mean(axis=0), _deviations(scalars) / _SCALAR_WEIGHT
    center = vectors.mean(axis=0)
    x = np.hstack([(scalars - mean) / scale, vectors - center])
    model = RidgeCV(alphas=np.logspace(0, 3, 13)).fit(x, gain)
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
    return GainModel(on_scalars, on_vectors if len(center) else None), model.intercept_ + slopes


def stacked(unseen: Float[np.ndarray, "rows members"], fails: _Bits) -> Linear:
    """Least squares with weights of at least 0, pulled towards those of the even mean."""
    mean, scale = unseen.mean(axis=0), _deviations(unseen)
    x, y = (unseen - mean) / scale, fails - fails.mean()
    even = x.mean(axis=1)
    slope = max(_LEAST_SLOPE, float(even @ y / (even @ even)) if even.any() else 0.0)
    pull = np.sqrt(_EVENNESS) * np.eye(x.shape[1])
    weights, _ = nnls(
        np.vstack([x, pull]), np.concatenate([y, pull.sum(axis=1) * slope / len(pull)])
    )
    return Linear(mean, scale, weights, float(fails.mean()))


def _fit_members(features: Features, fails: _Bits, seed: int) -> FailureModel:
    signals, scalars, vectors = features.signals, features.scalars, features.vectors
    tokens = features.probability
    areas = [auroc(column, fails) for column in signals.T]
    none = np.zeros(0)
    return FailureModel(
        signals=_logistic(signals, fails, c=1.0),
        scalars=_logistic(scalars, fails, c=0.1),
        vectors=_logistic(vectors, fails, c=1.0, unit=True) if vectors.shape[1] else None,
        trees=_boosted_trees(scalars, fails, seed),
        consensus=_weighted_mean(signals, tokens / tokens.sum()) if tokens.any() else None,
        single=_weighted_mean(signals, np.eye(len(areas))[int(np.argmax(areas))]),
        stack=Linear(none, none, none, 0.0),
    )


def _logistic(x: _Table, y: _Bits, *, c: float, unit: bool = False) -> Linear:
    """A logistic regression; `unit` columns are centred but not rescaled (embeddings)."""
    mean, scale = x.mean(axis=0), np.ones(x.shape[1]) if unit else _deviations(x)
    model = LogisticRegression(C=c, max_iter=2000).fit((x - mean) / scale, y)
    return Linear(mean, scale, model.coef_[0], float(model.intercept_[0]))


def _weighted_mean(x: _Table, weights: Float[np.ndarray, " columns"]) -> Linear:
    return Linear(x.mean(axis=0), _deviations(x), weights, 0.0)


def _deviations(x: _Table) -> Float[np.ndarray, " columns"]:
    """Standard deviations to divide by; 1 where a column never changes."""
    found = x.std(axis=0)
    return np.where(found > 1e-9, found, 1.0)


def _boosted_trees(x: _Table, y: _Bits, seed: int) -> Trees:
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
    own = np.arange(max(part.node_count for part in parts))

    def padded(values: np.ndarray, fill: float = 0) -> np.ndarray:
        return np.pad(values, (0, len(own) - len(values)), constant_values=fill)

    def child(nodes: np.ndarray) -> np.ndarray:
        return np.where(padded(nodes, -1) < 0, own, padded(nodes, -1)).astype(int)

    prior = float(np.mean(y))
    return Trees(
        feature=np.stack([padded(np.maximum(p.feature, 0)) for p in parts]).astype(int),
        threshold=np.stack([padded(p.threshold) for p in parts]),
        left=np.stack([child(p.children_left) for p in parts]),
        right=np.stack([child(p.children_right) for p in parts]),
        value=np.stack([padded(p.value[:, 0, 0] * model.learning_rate) for p in parts]),
        base=float(np.log(prior / (1 - prior))),
        depth=int(model.max_depth),
    )
