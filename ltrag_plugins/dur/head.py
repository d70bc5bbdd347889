r"""The trainable head: one linear map that questions and candidates share.

.. math:: h(x) = W\,\mathrm{enc}(x) + b, \qquad s(e \mid p) = h(p) \cdot h(e)

The ranking score is the softmax of s over a question's candidates (eq. 4); only W and b learn.

Source: Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", section 5.1, eq. 4.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Float

from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput
from ltrag_plugins.retrieval.dense import finite_rows

_Vector = Float[np.ndarray, " dim"]
_Vectors = Float[np.ndarray, "docs dim"]
_Scores = Float[np.ndarray, " docs"]
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # of Adam


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """W and b; applied with numpy alone. Gradients with respect to them have the same form."""

    weight: Float[np.ndarray, "out dim"]
    bias: Float[np.ndarray, " out"]

    def __call__(self, vectors: _Vectors) -> Float[np.ndarray, "docs out"]:
        """h of each row."""
        if vectors.shape[-1] != self.weight.shape[1]:
            sizes = f"{self.weight.shape[1]} numbers, and the encoder gives {vectors.shape[-1]}"
            remedy = "Use its own encoder, or train a head for this one."
            raise ArtifactMismatch(f"this head reads vectors of {sizes}. {remedy}")
        return finite_rows(vectors) @ self.weight.T + self.bias

    def scores(self, question: _Vector, candidates: _Vectors) -> _Scores:
        """s of each candidate, before the softmax."""
        return self(candidates) @ self(question[None])[0]

    def gradient(self, question: _Vector, candidates: _Vectors, by_score: _Scores) -> "Head":
        """From the gradient with respect to the scores to the one with respect to W and b."""
        asked, offered = self(question[None])[0], self(candidates)
        mixed = by_score @ candidates
        weight = np.outer(by_score @ offered, question) + np.outer(asked, mixed)
        return Head(weight, by_score @ offered + by_score.sum() * asked)


@dataclass(frozen=True, slots=True, eq=False)
class Adam:
    """A head after `steps` steps of Adam (Kingma & Ba, ICLR 2015), means of gradient and square."""

    head: Head
    mean: Head
    square: Head
    steps: int = 0

    @classmethod
    def start(cls, head: Head) -> Self:
        """Before the first step."""
        zero = Head(np.zeros_like(head.weight), np.zeros_like(head.bias))
        return cls(head, zero, zero)

    def step(self, gradient: Head, rate: float) -> "Adam":
        """The state one step down the gradient."""
        t = self.steps + 1
        parts = []
        for name in ("weight", "bias"):
            x, m, v, g = (getattr(p, name) for p in (self.head, self.mean, self.square, gradient))
            m = _BETA1 * m + (1 - _BETA1) * g
            v = _BETA2 * v + (1 - _BETA2) * g * g
            root = np.sqrt(v / (1 - _BETA2**t)) + _EPSILON
            parts.append((x - rate * (m / (1 - _BETA1**t)) / root, m, v))
        weights, biases = parts
        return Adam(*map(Head, weights, biases), steps=t)


def initial_head(vectors: _Vectors, settings: DURSettings) -> Head:
    r"""A head before training.

    "random" is what `torch.nn.Linear` begins with: uniform in :math:`\pm 1/\sqrt{n}`, n the
    encoder's dimension. "encoder" ranks by the dot products of the encoder's own vectors, less
    their mean, which b takes out. W maps onto the `dim` directions in which the vectors vary most,
    then others; the scores of different texts have the standard deviation `sharpness`.
    """
    size, dim = finite_rows(vectors).shape[1], settings.dim
    if settings.initial == "random":
        random, bound = np.random.default_rng([settings.seed, 0]), 1 / np.sqrt(size)
        weight = random.uniform(-bound, bound, (dim, size))
        return Head(weight, random.uniform(-bound, bound, dim))
    mean = vectors.mean(axis=0)
    _, spread, directions = np.linalg.svd(vectors - mean, full_matrices=False)
    if spread[0] < 1e-9:
        raise InvalidInput("all candidates and questions have the same vector; nothing to rank by")
    if len(directions) < dim:  # few texts span few; a new question may vary in the others
        others = np.linalg.svd(directions)[2][len(directions) :]
        directions = np.concatenate([directions, others])
    weight = np.zeros((dim, size))
    weight[: len(directions)] = directions[:dim]
    scale = np.sqrt(settings.sharpness / _scatter((vectors - mean) @ weight.T))
    return Head(weight * scale, -(weight @ mean) * scale)


def _scatter(seen: _Vectors) -> float:
    """Standard deviation of the dot products of different texts; their largest, if it is 0."""
    own = (seen**2).sum(axis=1)
    pairs = len(seen) * (len(seen) - 1)
    mean = ((seen.sum(axis=0) ** 2).sum() - own.sum()) / pairs
    square = (((seen.T @ seen) ** 2).sum() - (own**2).sum()) / pairs
    scatter, most = float(np.sqrt(max(0.0, square - mean**2))), float(own.max())
    if scatter > 1e-6 * most:
        return scatter
    rows = enumerate(seen[:100])
    return max(float(np.abs(np.delete(seen, i, axis=0) @ row).max()) for i, row in rows)
