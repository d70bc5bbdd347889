"""What a fitted gate learns: small models, trained with scikit-learn, applied with numpy.

The arrays below are all there is to save, so a gate is stored without pickle and applied
without scikit-learn.

`FailureModel` stacks small models of "the direct answer fails": a logistic regression on the
plain signals, one on signals and traits, one on the embeddings, and boosted trees on signals
and traits. Their weights are not negative (Breiman, "Stacked Regressions", Machine Learning
1996), so that on few questions a member that is noise is left out instead of turned round.
`GainModel` is a ridge regression of what retrieval changes: +1 mended, 0 no change, -1 spoiled.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import expit
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.model_selection import StratifiedKFold

from ltrag_plugins.gece.features import Features

_INNER_FOLDS = 4
_SCALAR_WEIGHT = 0.1
"""Weight of a standardized scalar beside unit-length embeddings in the ridge regression."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear function of standardized columns."""

    mean: Float[np.ndarray, " columns"]
    scale: Float[np.ndarray, " columns"]
    weights: Float[np.ndarray, " columns"]
    intercept: float

    def __call__(self, x: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, " rows"]:
        """The function's value for each row."""
        return (x - self.mean) / self.scale @ self.weights + self.intercept


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Boosted regression trees, padded to one size; a leaf points to itself."""

    feature: Int[np.ndarray, "trees nodes"]
    threshold: Float[np.ndarray, "trees nodes"]
    left: Int[np.ndarray, "trees nodes"]
    right: Int[np.ndarray, "trees nodes"]
    value: Float[np.ndarray, "trees nodes"]
    base: float
    depth: int

    def __call__(self, x: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, " rows"]:
        """The sum of the trees for each row: log-odds."""
        single = x.astype(np.float32)  # scikit-learn splits in single precision
        rows, trees = np.arange(len(x))[:, None], np.arange(len(self.value))[None, :]
        node = np.zeros((len(x), len(self.value)), dtype=int)
        for _ in range(self.depth):
            goes_left = single[rows, self.feature[trees, node]] <= self.threshold[trees, node]
            node = np.where(goes_left, self.left[trees, node], self.right[trees, node])
        return self.base + self.value[trees, node].sum(axis=1)


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
    model = GradientBoostingClassifier(
        n_estimators=150,
        learning_rate=0.05,
        max_depth=3,
        subsample=0.7,
        max_features="sqrt",
        min_samples_leaf=max(2, min(20, len(y) // 20)),
        random_state=seed,
    ).fit(x, y)
    parts = [tree.tree_ for tree in model.estimators_[:, 0]]
    size = max(part.node_count for part in parts)
    own = np.arange(size)

    def padded(values: np.ndarray, fill: np.ndarray | float) -> np.ndarray:
        out = np.broadcast_to(fill, (size,)).astype(np.asarray(values).dtype).copy()
        out[: len(values)] = values
        return out

    def child(part: object, side: str) -> np.ndarray:
        nodes = getattr(part, side)
        return padded(np.where(nodes < 0, own[: len(nodes)], nodes), own)

    prior = float(np.clip(np.mean(y), 1e-6, 1 - 1e-6))
    return Trees(
        feature=np.stack([padded(np.maximum(p.feature, 0), 0) for p in parts]),
        threshold=np.stack([padded(p.threshold, 0.0) for p in parts]),
        left=np.stack([child(p, "children_left") for p in parts]),
        right=np.stack([child(p, "children_right") for p in parts]),
        value=np.stack([padded(p.value[:, 0, 0] * model.learning_rate, 0.0) for p in parts]),
        base=float(np.log(prior / (1 - prior))),
        depth=3,
    )


@dataclass(frozen=True, slots=True, eq=False)
class FailureModel:
    """Score, about 0 to 1, for "the direct answer fails"; to be calibrated."""

    signals: Linear
    scalars: Linear
    vectors: Linear | None
    trees: Trees
    stack: Linear

    def __call__(self, features: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        return self.stack(_members(self, features))


@dataclass(frozen=True, slots=True, eq=False)
class GainModel:
    """Expected change in correctness if the question is answered with retrieval, in [-1, 1]."""

    scalars: Linear
    vectors: Linear | None

    def __call__(self, features: Features) -> Float[np.ndarray, " questions"]:
        """The expected gain of each question."""
        gain = self.scalars(features.scalars)
        return gain if self.vectors is None else gain + self.vectors(features.vectors)


def fit_failure(
    features: Features, fails: Int[np.ndarray, " questions"], seed: int
) -> FailureModel:
    """Fit the members on all rows, and their weights on what each says of rows it has not seen."""
    unseen = np.zeros((len(fails), 4 if features.vectors.shape[1] else 3))
    rarer = int(min(fails.sum(), len(fails) - fails.sum()))
    folds = StratifiedKFold(min(_INNER_FOLDS, rarer), shuffle=True, random_state=seed)
    for train, test in folds.split(unseen, fails):
        unseen[test] = _members(_fit_members(features[train], fails[train], seed), features[test])
    members = _fit_members(features, fails, seed)
    stack = _stack(unseen, fails)
    return FailureModel(members.signals, members.scalars, members.vectors, members.trees, stack)


def fit_gain(features: Features, gain: Float[np.ndarray, " questions"]) -> GainModel:
    """Fit the ridge regression, its strength by leave-one-out error."""
    scalars, vectors = features.scalars, features.vectors
    mean, deviation = scalars.mean(axis=0), scalars.std(axis=0)
    scale = np.where(deviation > 1e-9, deviation, 1.0) / _SCALAR_WEIGHT
    center = vectors.mean(axis=0)
    x = np.hstack([(scalars - mean) / scale, vectors - center])
    model = RidgeCV(alphas=np.logspace(0, 3, 13)).fit(x, gain)
    weights, size = np.asarray(model.coef_), scalars.shape[1]
    on_scalars = Linear(mean, scale, weights[:size], float(model.intercept_))
    on_vectors = Linear(center, np.ones_like(center), weights[size:], 0.0)
    return GainModel(on_scalars, on_vectors if len(center) else None)


def _stack(unseen: Float[np.ndarray, "rows members"], fails: Int[np.ndarray, " rows"]) -> Linear:
    model = Ridge(alpha=1.0, positive=True).fit(unseen, fails)
    weights = model.coef_ if model.coef_.any() else np.full(unseen.shape[1], 1 / unseen.shape[1])
    zeros, ones = np.zeros(unseen.shape[1]), np.ones(unseen.shape[1])
    return Linear(zeros, ones, weights, float(fails.mean() - unseen.mean(axis=0) @ weights))


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
        stack=Linear(none, none, none, 0.0),
    )


def _members(model: FailureModel, features: Features) -> Float[np.ndarray, "questions members"]:
    columns = [
        model.signals(features.signals),
        model.scalars(features.scalars),
        model.trees(features.scalars),
    ]
    if model.vectors is not None:
        columns.append(model.vectors(features.vectors))
    return expit(np.column_stack(columns))
