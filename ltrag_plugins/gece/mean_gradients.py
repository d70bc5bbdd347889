"""The mean gradient of the references, E[grad] of eq. 2, also without a question's own.

A draft that equals its reference would be held against a mean that its own gradient is part of,
which at run time it never is. So while a gate is fitted, each draft is held against the mean over
other folds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ltrag_plugins.errors import NeedsGradients
from ltrag_plugins.flow.world import explained
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.llm.base import LLM, Direction, GradientLLM


@dataclass(frozen=True, slots=True, eq=False)
class MeanGradients:
    """The mean over all questions, and for each question one without it."""

    overall: Direction
    without: tuple[Direction, ...]
    """In the order of the questions; questions of a fold share theirs."""


def mean_gradients(
    prompts: Sequence[str], references: Sequence[str], llm: LLM, settings: GECESettings
) -> MeanGradients:
    """Each gradient is computed once; the folds are `settings.folds`, drawn with its seed.

    Raises:
        NeedsGradients: the model has none.
        ModelFailed: the model's call raised.
    """
    count = len(prompts)
    order = np.random.default_rng(settings.seed).permutation(count)
    folds: list[list[int]] = [
        fold.tolist() for fold in np.array_split(order, settings.folds) if len(fold)
    ]
    means = [
        mean_gradient([prompts[i] for i in fold], [references[i] for i in fold], llm, settings)
        for fold in folds
    ]
    shares = [len(fold) / count for fold in folds]
    overall = _weighted(means, shares)
    without: list[Direction] = [overall] * count
    for fold, share in zip(folds, shares, strict=True):
        mean = means.pop(0)  # each is as large as the weights it is about
        if share < 1:
            others = _weighted([overall, mean], [1 / (1 - share), -share / (1 - share)])
            for i in fold:
                without[i] = others
    return MeanGradients(overall, tuple(without))


def mean_gradient(
    prompts: Sequence[str], references: Sequence[str], llm: LLM, settings: GECESettings
) -> Direction:
    """The mean gradient of these references.

    Raises:
        NeedsGradients: the model has none.
        ModelFailed: the model's call raised.
    """
    model = gradient_llm(llm)
    with explained("model"):
        return model.mean_gradient(prompts, references, layers=settings.layers)


def gradient_llm(llm: LLM) -> GradientLLM:
    """The model itself, if it has gradients.

    Raises:
        NeedsGradients: it has not; the message has the remedy.
    """
    if not isinstance(llm, GradientLLM):
        raise NeedsGradients(
            f"{llm.name} has no gradients. Load local weights with TransformersLLM, or leave the "
            "term out: GECESettings(gradients='never'), for scores GECESettings(semantics=False)."
        )
    return llm


def _weighted(means: Sequence[Direction], weights: Sequence[float]) -> Direction:
    names = means[0].keys()
    return {name: _sum([mean[name] for mean in means], weights) for name in names}


def _sum(arrays: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    total = np.zeros_like(arrays[0])
    for array, weight in zip(arrays, weights, strict=True):
        total += np.float32(weight) * array
    return total
