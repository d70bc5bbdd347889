from dataclasses import replace

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.isotonic import IsotonicRegression
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ltrag_plugins.calibration import cross_calibrated, fit_calibrator, stratified
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece.fit import fit_failure, fit_gain, stacked
from ltrag_plugins.gece.models import FailureModel, GainModel
from ltrag_plugins.gece.signals import Features
from ltrag_plugins.metrics.calibration import auroc


def table(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns)) * [
        10.0**i for i in range(columns)
    ]


def labels(x: np.ndarray, seed: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=len(x))
    return (x[:, 0] + 0.3 * noise > 0).astype(int)


def columns(rows: int = 80, dims: int = 4, seed: int = 0) -> Features:
    return Features(
        table(rows, 3, seed),
        table(rows, 2, seed + 1),
        table(rows, dims, seed + 2) / 1e3,
        np.array([True, True, False]),
    )


def asked(rng: np.random.Generator, rows: int) -> tuple[Features, np.ndarray]:
    """Questions, and what their outcome hangs on: the first signal, and much chance."""
    some = Features(
        rng.normal(size=(rows, 3)),
        rng.normal(size=(rows, 5)),
        rng.normal(size=(rows, 16)) / 4,
        np.array([True, True, False]),
    )
    return some, 0.3 * some.signals[:, 0] + rng.normal(size=rows)


def failure_of_few(rng: np.random.Generator) -> tuple[FailureModel, np.ndarray]:
    """Learned from 60 answers, of which 24 are right."""
    some, certain = asked(rng, 60)
    return fit_failure(some, (certain > np.quantile(certain, 0.4)).astype(int), seed=0)


def gain_of_few(rng: np.random.Generator) -> tuple[GainModel, np.ndarray]:
    """Learned from 60 questions, of which retrieval mends 6."""
    some, mends = asked(rng, 60)
    return fit_gain(some, (mends > np.quantile(mends, 0.9)).astype(float), seed=0)


def boosting(questions: int, seed: int) -> GradientBoostingClassifier:
    """As the gate's trees are grown."""
    leaf = max(2, min(20, questions // 20))
    return GradientBoostingClassifier(
        n_estimators=150, learning_rate=0.05, max_depth=3, subsample=0.7, max_features="sqrt",
        min_samples_leaf=leaf, random_state=seed,
    )  # fmt: skip


@pytest.mark.parametrize("rows", [24, 150])
def test_trees_in_numpy_give_scikit_learns_log_odds(rows):
    some, new = columns(rows, dims=0), columns(300, dims=0, seed=5)
    y = labels(some.signals)
    model = boosting(rows, seed=3).fit(some.scalars, y)
    trees = fit_failure(some, y, 3)[0].trees
    for x in (new.scalars, some.scalars):
        assert trees(x) == pytest.approx(model.decision_function(x), abs=1e-9)


def test_trees_split_where_scikit_learn_does_down_to_the_last_bit():
    steps, none = np.linspace(0, 1, 40)[:, None], np.zeros((40, 0))
    y = (steps[:, 0] > 0.5).astype(int)
    some = Features(steps, steps, none, np.array([False]))
    model = boosting(len(y), seed=0).fit(some.scalars, y)
    edges = np.unique([t.tree_.threshold[0] for t in model.estimators_[:, 0]])
    near = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)])
    near = np.column_stack([near, near])
    trees = fit_failure(some, y, 0)[0].trees
    assert trees(near) == pytest.approx(model.decision_function(near))


def test_linear_members_are_scikit_learns_pipelines():
    some, new = columns(60), columns(20, seed=9)
    y = labels(some.signals)
    model = fit_failure(some, y, 0)[0]
    for member, c, x, other in (
        (model.signals, 0.03, some.signals, new.signals),
        (model.scalars, 0.1, some.scalars, new.scalars),
    ):
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000)).fit(x, y)
        assert member(other) == pytest.approx(pipeline.decision_function(other), abs=1e-6)


def test_embeddings_are_centred_and_keep_their_lengths():
    some = columns(60)
    x, y = some.vectors, labels(some.signals)
    found = fit_failure(some, y, 0)[0].vectors
    model = LogisticRegression(max_iter=2000).fit(x - x.mean(axis=0), y)
    assert found(x) == pytest.approx(model.decision_function(x - x.mean(axis=0)))


def test_a_column_that_never_changes_says_nothing():
    some = columns(40)
    some.signals[:, 1] = 7.0
    found = fit_failure(some, labels(some.signals), 0)[0].signals
    assert found.weights[1] == 0
    assert np.isfinite(found(some.signals)).all()


def test_other_columns_than_the_fit_saw_are_refused():
    some = columns(40)
    with pytest.raises(InvalidInput, match="3 columns and got 2"):
        fit_failure(some, labels(some.signals), 0)[0].signals(some.signals[:, :2])


@pytest.mark.parametrize("dims", [0, 4])
def test_the_gain_is_scikit_learns_ridge_regression(dims):
    some = columns(dims=dims)
    gain = np.random.default_rng(2).integers(-1, 2, size=80).astype(float)
    center = some.vectors.mean(axis=0)
    x = np.hstack([StandardScaler().fit_transform(some.scalars) * 0.1, some.vectors - center])
    model = RidgeCV(alphas=np.logspace(-2, 3, 21)).fit(x, gain)
    found, _ = fit_gain(some, gain, seed=0)
    assert found(some) == pytest.approx(model.predict(x))
    assert (found.vectors is None) == (dims == 0)


def test_what_is_known_without_noise_keeps_its_slope_with_few_questions():
    # as METEOR would in the formula, were it a linear function of the signals
    some, new = columns(60, dims=0), columns(300, dims=0, seed=5)
    known = np.array([0.3, 0.02, 0.001]) / 4
    found, _ = fit_gain(some, some.signals @ known, seed=0)
    slope = np.polyfit(new.signals @ known, found(new), 1)[0]
    assert slope > 0.9


@pytest.mark.parametrize("learned", [failure_of_few, gain_of_few])
def test_what_a_fit_says_of_unseen_questions_spreads_as_over_new_ones(learned):
    above = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        model, unseen = learned(rng)
        new = model(asked(rng, 1000)[0])
        above.append([np.mean(new >= np.quantile(unseen, 1 - rate)) for rate in (0.3, 0.7)])
    # 60 questions leave 0.06 to chance each time, 0.02 in the mean of ten
    assert np.mean(above, axis=0) == pytest.approx([0.3, 0.7], abs=0.06)


@pytest.mark.parametrize("seed", range(2))
def test_no_member_of_the_stack_is_turned_round(seed):
    some = columns(rows=40, seed=seed)
    fails = np.random.default_rng(seed).integers(0, 2, size=40)
    model = fit_failure(some, fails, seed)[0]
    assert (model.stack.weights >= 0).all()
    standard = (model.members(some) - model.stack.mean) / model.stack.scale
    assert model(some) == pytest.approx(standard @ model.stack.weights + model.stack.intercept)


def test_on_few_questions_the_members_weigh_about_the_same_and_on_many_they_do_not():
    def weights(rows: int) -> np.ndarray:
        some = columns(rows=rows, seed=3)
        found = fit_failure(some, labels(some.signals), 0)[0].stack.weights
        return found / found.sum()

    assert weights(40).std() < 0.05
    assert weights(4000).std() > 2 * weights(40).std()


def test_stack_weights_are_those_of_a_ridge_regression_towards_the_even_mean():
    x = np.random.default_rng(0).normal(size=(60, 3)) * [1, 5, 0.2] + 3
    fails = (x[:, 0] + x[:, 1] / 5 > 6.2).astype(int)
    found = stacked(x, fails)
    z, y = (x - x.mean(0)) / x.std(0), fails - fails.mean()
    slope = np.linalg.lstsq(z.mean(1)[:, None], y, rcond=None)[0][0]
    even = np.full(3, slope / 3)
    # Ridge shrinks to 0: regress on what the even mean leaves, and add it again
    rest = Ridge(alpha=125.0 / fails.var(), fit_intercept=False).fit(z, y - z @ even).coef_
    assert found.weights == pytest.approx(even + rest, rel=1e-6)


def test_beside_the_learners_stand_two_means_of_plain_signals():
    some = columns(rows=50)
    fails = labels(some.signals)
    model = fit_failure(some, fails, 0)[0]
    assert model.consensus is not None
    z = StandardScaler().fit_transform(some.signals)
    assert model.consensus(some.signals) == pytest.approx(z[:, :2].mean(axis=1))
    above = [max(0, auroc(column, fails) - 0.5) ** 2 for column in some.signals.T]
    assert model.single(some.signals) == pytest.approx(z @ above / sum(above))
    assert model.members(some)[:, [*model.plain]] == pytest.approx(
        np.column_stack([model.single(some.signals), model.consensus(some.signals)])
    )
    silent = replace(some, probability=np.zeros(3, dtype=bool))
    assert fit_failure(silent, labels(some.signals), 0)[0].consensus is None


@pytest.mark.parametrize("told", [True, False])
def test_the_rarer_an_outcome_the_more_the_stack_leans_on_plain_signals_that_tell(told):
    rng, share = np.random.default_rng(0), []
    for right in (150, 40, 10, 5):
        fails = np.array([0] * right + [1] * (300 - right))
        x = rng.normal(size=(300, 5))
        x[:, 1:] += 2 * fails[:, None]
        x[:, 0] = told * (2 * fails + rng.normal(size=300))
        # without the pull's lean, to see what the lean adds
        leaning, even = (stacked(x, fails, plain).weights for plain in ([0], []))
        share.append(leaning[0] / leaning.sum() - even[0] / even.sum())
    if told:
        assert share == sorted(share)
        # 4 right answers' worth against 5, times how well it tells (Somers' D of 2 sd: 0.84)
        assert 0.02 > share[0] > 0
        assert share[-1] == pytest.approx(0.8 * 3.37 / (3.37 + 5), abs=0.1)
    else:
        assert np.abs(share).max() < 0.05


def test_the_rarer_an_outcome_the_more_even_the_weights():
    x = np.random.default_rng(0).normal(size=(400, 3))
    spread = []
    for share in (0.5, 0.1, 0.03):
        weights = stacked(x, (x[:, 0] < np.quantile(x[:, 0], share)).astype(int) ^ 1).weights
        spread.append(weights.std() / weights.mean())
    assert spread == sorted(spread, reverse=True)


@pytest.mark.parametrize("dims", [0, 4])
def test_the_memory_is_scikit_learns_kernel_ridge_regression_in_its_own_coordinates(dims):
    some, new = columns(dims=dims), columns(30, dims=dims, seed=7)
    fails = labels(some.signals)
    memory = fit_failure(some, fails, 0)[0].memory
    points = memory.points * memory.step  # rounded to a byte each
    order = np.random.default_rng(0).permutation(len(fails))
    assert points == pytest.approx(
        memory.places(some.vectors, some.scalars)[order], abs=memory.step * 0.51
    )
    model = KernelRidge(alpha=0.3, kernel="rbf", gamma=1.0).fit(
        points, (fails - fails.mean())[order]
    )
    assert memory(new.vectors, new.scalars) == pytest.approx(
        model.predict(memory.places(new.vectors, new.scalars)), abs=1e-9
    )


def test_the_coordinates_of_embeddings_are_their_principal_components():
    some = columns(dims=4)
    memory = fit_failure(some, labels(some.signals), 0)[0].memory
    found = memory.places(some.vectors, some.scalars)[:, :4]
    wanted = PCA(4).fit_transform(some.vectors)
    # as many directions as there are, so only the scale differs: 3 is the mean square in all
    apart = (wanted**2).sum(axis=1).mean()
    assert np.abs(found) == pytest.approx(np.abs(wanted) * np.sqrt(3 / apart), abs=0.01)


def test_the_memory_knows_what_came_of_questions_alike_where_no_direction_tells():
    # parity of three coordinates: each alone, and any sum of them, says nothing
    rng = np.random.default_rng(0)
    corners = rng.integers(0, 2, size=(300, 3))
    fails, noise = corners.sum(axis=1) % 2, rng.normal(size=(300, 2))
    vectors = 2.0 * corners - 1 + 0.1 * rng.normal(size=(300, 3))
    some = Features(noise, noise, vectors, np.array([False, False]))
    model = fit_failure(some[:200], fails[:200], 0)[0]
    assert model.vectors is not None
    assert auroc(model.vectors(vectors[200:]), fails[200:]) < 0.65
    assert auroc(model.memory(some[200:].vectors, some[200:].scalars), fails[200:]) > 0.95
    assert auroc(model(some[200:]), fails[200:]) > 0.9


def test_folds_hold_the_rarer_outcome_in_every_one():
    fails = np.array([1, 1, 1] + [0] * 17)
    parts = list(stratified(fails, 5, seed=0).split(fails, fails))
    assert len(parts) == 3
    assert all(fails[test].sum() == 1 for _, test in parts)


def test_platt_is_a_logistic_regression_on_the_score():
    scores = np.linspace(-2, 2, 100)
    fails = (scores + np.random.default_rng(0).normal(size=100) > 0).astype(int)
    found = fit_calibrator(scores, fails, "platt")
    # with this little regularization the slope is that of maximum likelihood
    model = LogisticRegression(C=1e6).fit(scores[:, None], fails)
    assert found(scores) == pytest.approx(model.predict_proba(scores[:, None])[:, 1], abs=0.01)


def test_isotonic_is_scikit_learns_and_stays_so_outside_the_scores_seen():
    rng = np.random.default_rng(0)
    scores, fails = rng.normal(size=200), rng.integers(0, 2, size=200)
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(scores, fails)
    new = np.linspace(-9, 9, 500)
    assert fit_calibrator(scores, fails, "isotonic")(new) == pytest.approx(model.predict(new))


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_a_score_that_never_changes_gets_the_share_of_failures(method):
    fails = np.array([1] * 5 + [0] * 15)
    found = fit_calibrator(np.full(20, 3.0), fails, method)
    assert found(np.array([3.0, 100.0])) == pytest.approx([0.25, 0.25], abs=0.01)


def test_the_logarithm_tames_scores_over_many_powers_of_ten():
    rng = np.random.default_rng(0)
    exponent = rng.uniform(0, 9, size=400)
    fails = (rng.random(400) < exponent / 9).astype(int)
    probabilities = fit_calibrator(10**exponent, fails, "platt", logarithm=True)(10**exponent)
    assert np.abs(probabilities - exponent / 9).max() < 0.15
    plain = fit_calibrator(10**exponent, fails, "platt")(10**exponent)
    assert np.abs(plain - exponent / 9).max() > 0.3


def test_cross_calibration_never_sees_the_question_it_judges():
    scores = np.arange(40.0)
    fails = np.random.default_rng(0).integers(0, 2, size=40)
    settings = {"folds": 4, "seed": 0}
    found = cross_calibrated(scores, fails, "isotonic", **settings)
    for train, test in stratified(fails, 4, 0).split(scores, fails):
        alone = fit_calibrator(scores[train], fails[train], "isotonic")
        assert found[test] == pytest.approx(alone(scores[test]))


def test_embeddings_that_are_all_equal_have_no_directions():
    some = replace(columns(), vectors=np.ones((80, 4)))
    fails = labels(some.signals)
    model, _ = fit_failure(some, fails, 0)
    bare, _ = fit_failure(replace(some, vectors=np.zeros((80, 0))), fails, 0)
    assert model.memory.axes.shape == (4, 0)
    assert model.memory.weights == pytest.approx(bare.memory.weights)
