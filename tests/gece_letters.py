"""A model whose gradients are known by hand."""

import numpy as np

from ltrag_plugins.types import GenerationSettings, GradientAgreement
from tests.gece_parts import answer


class Local:
    """A model whose "gradient" counts letters, so that dot products are known by hand."""

    name = "letters"

    def __init__(self) -> None:
        self.seen: list[tuple[list[str], list[str], int]] = []

    def generate(self, prompts, settings=GenerationSettings()):
        return [answer(prompt) for prompt in prompts]

    def score(self, prompts, continuations):
        raise NotImplementedError

    def mean_gradient(self, prompts, continuations, *, layers=4):
        self.seen.append((list(prompts), list(continuations), layers))
        return {"w": np.mean([gradient(c) for c in continuations], axis=0)}

    def gradient_agreement(self, prompts, continuations, *, along, cosine=False, layers=4):
        self.seen.append((list(prompts), list(continuations), layers))
        return [agreement(gradient(c), along["w"], cosine) for c in continuations]


def gradient(text: str) -> np.ndarray:
    return np.array([len(text), text.count("e"), -text.count("l")], dtype=np.float32)


def agreement(g: np.ndarray, along: np.ndarray, cosine: bool) -> GradientAgreement:
    dot = float(g @ along)
    return GradientAgreement(
        dot, dot / float(np.linalg.norm(g) * np.linalg.norm(along)) if cosine else None
    )
