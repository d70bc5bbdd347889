"""The head and its optimizer, beside torch and plain linear algebra."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.dur import DURSettings
from ltrag_plugins.dur.head import Adam, Head, initial_head
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput, ModelError


def vectors(texts: int, dim: int, *, rank: int | None = None, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if rank is None:
        return random.normal(size=(texts, dim)) + 2
    return random.normal(size=(texts, rank)) @ random.normal(size=(rank, dim)) + 2


def encoder_head(rows: np.ndarray, dim: int = 128, sharpness: float = 1.0) -> Head:
    return initial_head(rows, DURSettings(dim=dim, sharpness=sharpness))


def test_scores_and_gradient_are_torchs():
    random = np.random.default_rng(1)
    rows, question, by_score = random.normal(size=(6, 9)), random.normal(size=9), np.arange(6.0)
    linear = torch.nn.Linear(9, 4, dtype=torch.float64)
    head = Head(linear.weight.detach().numpy(), linear.bias.detach().numpy())
    scores = linear(torch.tensor(rows)) @ linear(torch.tensor(question))
    assert head.scores(question, rows) == pytest.approx(scores.detach().numpy())
    (scores @ torch.tensor(by_score)).backward()
    told = head.gradient(question, rows, by_score)
    assert told.weight == pytest.approx(linear.weight.grad.numpy())
    assert told.bias == pytest.approx(linear.bias.grad.numpy())


@pytest.mark.parametrize("rank", [None, 3])
def test_an_encoder_head_ranks_by_the_dot_product_of_centred_vectors(rank):
    rows = vectors(20, 12, rank=rank)
    head = encoder_head(rows, dim=12 if rank is None else 3)
    centred = rows - rows.mean(axis=0)
    for i in range(3):
        others = np.delete(np.arange(20), i)
        told = head.scores(rows[i], rows[others])
        plain = centred[others] @ centred[i]
        assert told / told[0] == pytest.approx(plain / plain[0])
        assert np.sign(told[0]) == np.sign(plain[0])


def test_on_centred_vectors_of_one_length_that_is_the_ranking_by_cosine():
    half = vectors(8, 5) - 2
    half /= np.linalg.norm(half, axis=1, keepdims=True)
    rows = np.concatenate([half, -half])  # of length 1, their mean is 0
    head = encoder_head(rows)
    for i in range(16):
        cosines = rows @ rows[i]
        told = head.scores(rows[i], rows)
        assert np.argsort(told).tolist() == np.argsort(cosines).tolist()
        assert np.corrcoef(told, cosines)[0, 1] == pytest.approx(1)


def test_with_few_dimensions_it_keeps_the_directions_that_vary_most():
    rows = vectors(40, 6) * np.array([9, 5, 1, 1, 1, 1.0])
    head = encoder_head(rows, dim=2)
    centred = rows - rows.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    seen = centred @ directions[:, -2:]
    told, plain = head.scores(rows[0], rows[1:]), seen[1:] @ seen[0]
    assert told / told[0] == pytest.approx(plain / plain[0])


@pytest.mark.parametrize("sharpness", [0.2, 7.0])
@pytest.mark.parametrize("texts", [3, 25])
def test_the_scores_of_an_encoder_head_are_as_sharp_as_they_were_asked_to_be(texts, sharpness):
    rows = vectors(texts, 8)
    head = encoder_head(rows, sharpness=sharpness)
    scores = [head.scores(rows[i], np.delete(rows, i, axis=0)) for i in range(texts)]
    assert np.std(scores) == pytest.approx(sharpness)


@pytest.mark.parametrize(
    "rows",
    [np.array([[1.0, 0.0], [0.0, 1.0]]), np.eye(3), np.eye(4), np.array([[0.0, 0.0], [1.0, 0.0]])],
    ids=["two texts", "a triangle", "a pyramid", "one is nothing"],
)
def test_vectors_that_are_all_equally_far_apart_are_scaled_by_their_product(rows):
    head = encoder_head(rows, dim=4, sharpness=0.3)
    assert head.scores(rows[0], rows[1:]) == pytest.approx(-0.3)


def test_a_random_head_begins_where_a_linear_layer_of_torch_does():
    head = initial_head(vectors(3, 400), DURSettings(initial="random", dim=200))
    torch.manual_seed(0)
    linear = torch.nn.Linear(400, 200)
    for mine, theirs in ((head.weight, linear.weight), (head.bias, linear.bias)):
        theirs = theirs.detach().numpy()
        assert mine.shape == theirs.shape
        assert mine.std() == pytest.approx(theirs.std(), rel=0.1)
        assert np.abs(mine).max() == pytest.approx(np.abs(theirs).max(), rel=0.02)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_of_no_use_are_named(bad):
    rows = vectors(4, 3)
    head = encoder_head(rows)
    rows[1, 1] = bad
    with pytest.raises(ModelError, match=r"encoder gave NaN or infinity"):
        encoder_head(rows)
    with pytest.raises(ModelError, match=r"encoder gave NaN or infinity"):
        head.scores(rows[0], rows)
    with pytest.raises(InvalidInput, match="all candidates and questions have the same vector"):
        encoder_head(np.ones((4, 3)))
    with pytest.raises(ArtifactMismatch, match=r"vectors of 3 numbers.*gives 4.*train a head"):
        head.scores(np.ones(4), np.ones((3, 4)))


@given(st.integers(0, 10_000), st.floats(1e-5, 1.0))
def test_adam_is_torchs(seed, rate):
    random = np.random.default_rng(seed)
    head = Head(random.normal(size=(3, 4)), random.normal(size=3))
    theirs = [torch.tensor(a.copy(), requires_grad=True) for a in (head.weight, head.bias)]
    optimizer = torch.optim.Adam(theirs, lr=rate)
    adam, before = Adam.start(head), head.weight.copy()
    for _ in range(6):
        scale = 10.0 ** random.integers(-6, 3)
        gradient = Head(random.normal(size=(3, 4)) * scale, random.normal(size=3) * scale)
        adam = adam.step(gradient, rate)
        for value, by in zip(theirs, (gradient.weight, gradient.bias), strict=True):
            value.grad = torch.tensor(by)
        optimizer.step()
    assert adam.steps == 6
    assert (head.weight == before).all()
    for ours, other in zip((adam.head.weight, adam.head.bias), theirs, strict=True):
        np.testing.assert_allclose(ours, other.detach().numpy(), rtol=1e-10, atol=1e-13)


def test_of_few_texts_the_head_still_tells_new_ones_apart():
    """Six texts span five directions; a question may differ from them in any other."""
    random = np.random.default_rng(0)
    head = initial_head(random.normal(size=(6, 40)), DURSettings(dim=40))
    new = random.normal(size=(8, 40))
    ranked = np.argsort(head.scores(new[0], new[1:]))
    mean = -head.weight.T @ head.bias / (head.weight**2).sum(axis=1)[0]
    assert ranked.tolist() == np.argsort((new[1:] - mean) @ (new[0] - mean)).tolist()
