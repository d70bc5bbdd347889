"""Adam, on the two arrays of a head.

References:
    Kingma & Ba, ICLR 2015, "Adam: A Method for Stochastic Optimization", algorithm 1.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from ltrag_plugins.dur.head import Gradient, Head

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Adam:
    """The running means of the gradient and of its square, after `steps` steps."""

    mean: Gradient
    square: Gradient
    steps: int = 0

    @classmethod
    def start(cls, head: Head) -> Self:
        """Before the first step."""
        zero = Gradient(np.zeros_like(head.weight), np.zeros_like(head.bias))
        return cls(zero, zero)

    def step(self, head: Head, gradient: Gradient, rate: float) -> tuple[Head, "Adam"]:
        """The head one step down the gradient, and the state after it."""
        t = self.steps + 1
        parts = {}
        for name in ("weight", "bias"):
            g = getattr(gradient, name)
            m = _BETA1 * getattr(self.mean, name) + (1 - _BETA1) * g
            v = _BETA2 * getattr(self.square, name) + (1 - _BETA2) * g * g
            spread = np.sqrt(v / (1 - _BETA2**t)) + _EPSILON
            parts[name] = getattr(head, name) - rate * (m / (1 - _BETA1**t)) / spread, m, v
        columns = zip(*parts.values(), strict=True)
        values, means, squares = (dict(zip(parts, x, strict=True)) for x in columns)
        return Head(**values), Adam(Gradient(**means), Gradient(**squares), t)
