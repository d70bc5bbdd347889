r"""How an instance's gradient lies to the mean gradient of a data set.

.. math:: \langle \nabla_i, E[\nabla] \rangle, \qquad
    \nabla_i = \partial\, \frac{1}{n_i} \sum_t -\log p(t) \,/\, \partial W

with W the feed-forward matrices of the last layers, and t the tokens of the continuation
given the prompt. No gradient of a single instance is ever held: in forward mode the tangent
of the vector of losses along a direction *is* the vector of dot products with it. A token's
tangent depends on the tokens before it alone, so that forward mode, unlike a backward pass for
each instance, computes what the prompts of a batch begin with once for all of them.

References:
    Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
    Language Models", eq. 2 (denominator) and appendix A (which weights).
"""

from collections.abc import Iterable
from typing import cast

import numpy as np
from jaxtyping import Float

from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.llm.local.tail import FeedForwardTail
from ltrag_plugins.llm.local.tokens import TokenBatch
from ltrag_plugins.types import GradientAgreement

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise missing_extra("torch", "local") from error

__all__ = ["TokenBatch", "gradient_agreement", "mean_gradient"]


def mean_gradient(model: nn.Module, batches: Iterable[TokenBatch], *, layers: int = 4) -> Direction:
    """The gradient of the mean token loss, averaged over all instances of all batches.

    One backward pass a batch, for the sum of its instances' losses. Long and short
    continuations weigh the same, and so do full and half-empty batches.

    Args:
        model: a causal language model of transformers; it is not changed.
        layers: how many of the last layers' feed-forward matrices to differentiate by.

    Returns:
        float32 arrays by parameter name, as in `model.named_parameters()`.

    Raises:
        NeedsGradients: the model has no such matrices; the message says what is supported.
        InvalidInput: no instances, or one without target tokens.
    """
    tail = FeedForwardTail(model, layers)
    with torch.inference_mode(False), torch.enable_grad():
        weights = {name: weight.requires_grad_() for name, weight in tail.weights.items()}
        totals = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        instances = 0
        for batch in batches:
            summed = tail.losses(weights, batch).sum()
            for total, part in zip(
                totals.values(), torch.autograd.grad(summed, list(weights.values())), strict=True
            ):
                total.add_(part)
            instances += len(batch.targets)
    if not instances:
        raise InvalidInput("a mean gradient of no instances; give at least one question.")
    return {name: (total / instances).cpu().numpy() for name, total in totals.items()}


def gradient_agreement(
    model: nn.Module,
    batch: TokenBatch,
    *,
    along: Direction,
    cosine: bool = False,
    layers: int = 4,
) -> list[GradientAgreement]:
    """The dot product of each instance's gradient with `along`, in the batch's order.

    One batched forward-mode pass. The memory grows with the batch's tokens (attention: with
    the square of its length), never with instances times weights.

    Args:
        model: as in `mean_gradient`.
        along: a direction in the same weights, as `mean_gradient` gives it.
        cosine: the dot product over both norms too; costs a backward pass more.
            0 where a norm is 0.
        layers: as in `mean_gradient`.

    Raises:
        NeedsGradients: the model has no such matrices; the message says what is supported.
        InvalidInput: an instance without target tokens, or `along` is of other weights.
    """
    tail = FeedForwardTail(model, layers)
    weights = tail.weights
    with torch.inference_mode(False), torch.enable_grad():
        result = torch.func.jvp(
            lambda weights: (tail.losses(weights, batch), tail.entered),
            (weights,),
            (_tangent(along, weights),),
            has_aux=True,
        )
        _, dots, entered = cast(tuple[Tensor, Tensor, Tensor], result)
        if not cosine:
            return [GradientAgreement(dot) for dot in dots.tolist()]
        tail.resume_from(entered)
        norms = _gradient_norms(tail, batch)
    length = _norm(along)
    return [
        GradientAgreement(dot, _ratio(dot, length * norm))
        for dot, norm in zip(dots.tolist(), norms.tolist(), strict=True)
    ]


def _gradient_norms(tail: FeedForwardTail, batch: TokenBatch) -> Float[Tensor, " batch"]:
    r"""The norm of each instance's gradient, from one backward pass for all of them.

    For a matrix with inputs :math:`x_t` and loss gradients :math:`d_t` at its outputs the
    gradient is :math:`\sum_t d_t x_t^\top`, so that its squared norm is
    :math:`\sum_{t,t'} (x_t \cdot x_{t'}) (d_t \cdot d_{t'})`: time by time, not weight by weight.

    References:
        Li et al., ICLR 2022, "Large Language Models Can Be Strong Differentially Private
        Learners", section 4 (ghost clipping).
    """
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((inputs[0].detach(), output))

    for linear in tail.linears.values():
        linear.register_forward_hook(keep)
    weights = {name: weight.requires_grad_() for name, weight in tail.weights.items()}
    losses = tail.losses(weights, batch, shared=False)
    deltas = torch.autograd.grad(losses.sum(), [output for _, output in seen])
    squared = torch.zeros_like(losses, dtype=torch.float64)
    for (inputs, _), delta in zip(seen, deltas, strict=True):
        pairs = (inputs @ inputs.mT) * (delta @ delta.mT)
        squared += pairs.sum((1, 2), dtype=torch.float64)
    return squared.detach().clamp_min(0).sqrt()


def _tangent(along: Direction, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    if {name: array.shape for name, array in along.items()} != shapes:
        raise InvalidInput(
            f"the direction has {len(along)} arrays ({', '.join(list(along)[:2])}, ...) that do "
            f"not match the {len(shapes)} feed-forward matrices ({', '.join(list(shapes)[:2])}, "
            "...) of this model's last layers. Take it from mean_gradient with the same model "
            "and the same number of layers."
        )
    return {
        name: torch.as_tensor(along[name], dtype=weight.dtype, device=weight.device)
        for name, weight in weights.items()
    }


def _norm(direction: Direction) -> float:
    return float(np.sqrt(sum(np.sum(np.square(a, dtype=np.float64)) for a in direction.values())))


def _ratio(dot: float, norms: float) -> float:
    return dot / norms if norms > 0 else 0.0
