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

Prompts with their continuations, as token batches.

The losses of a batch as a function of the feed-forward weights of a model's last layers.

The model itself is never touched. `FeedForwardTail` works on a twin: modules, settings and
hooks of its own over the caller's own weight memory, with eager attention (the one
implementation that can be differentiated forward) and without dropout. The twin runs the
model's own code from the embedding to the logits, so masks, sliding windows, rotary
embeddings and soft caps are the model's own, whatever its family.

Dtypes: the last layers, the final norm and the logits are computed in float32 whatever the
dtype of the model (a bfloat16 product of gradients is good to about two digits); the layers
below run in the model's dtype. Nothing is copied where the weights are float32 already.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.errors import InvalidInput, NeedsGradients, missing_extra
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.types import GradientAgreement

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_extra("torch", "local") from error


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Prompts with their continuations, as tokens, padded on the right."""

    input_ids: Int[Tensor, "batch time"]
    attention_mask: Int[Tensor, "batch time"]
    """1 for tokens, 0 for padding."""
    targets: Bool[Tensor, "batch time"]
    """True where a continuation token stands; it is predicted from the position before."""

    def to(self, device: torch.device) -> "TokenBatch":
        """The same batch on a device."""
        return TokenBatch(
            self.input_ids.to(device), self.attention_mask.to(device), self.targets.to(device)
        )

    def checked(self) -> "TokenBatch":
        """The batch itself, if each instance can be scored.

        Raises:
            InvalidInput: naming the first instance that cannot.
        """
        mask, targets = self.attention_mask.bool(), self.targets
        wrong = {
            "no target tokens: its continuation is empty": ~targets.any(1),
            "a target at its first token, which nothing predicts": targets[:, :1].any(1),
            "a target on padding": (targets & ~mask).any(1),
            "padding before a token; pad on the right": (mask[:, 1:] & ~mask[:, :-1]).any(1),
        }
        for problem, instances in wrong.items():
            if instances.any():
                number = int(instances.nonzero()[0]) + 1
                raise InvalidInput(f"instance {number} of {len(targets)} has {problem}.")
        return self

    def shared_prefix(self) -> int:
        """How many tokens all instances begin with that come before any prediction.

        0 for a single instance: there is nobody to share with.
        """
        if len(self.input_ids) < 2:
            return 0
        same = (self.input_ids == self.input_ids[0]) & self.attention_mask.bool()
        before = same.all(0) & ~self.targets.roll(-1, 1).any(0)
        return int(before.long().cumprod(0).sum())


try:
    import torch
    from torch import Tensor, nn
    from torch.func import functional_call
    from transformers import DynamicCache, PreTrainedModel
except ImportError as error:
    raise missing_extra("transformers", "local") from error

SUPPORTED = (
    "Supported are causal language models of transformers that are a stack of `layers`, each "
    "with a dense `mlp` of torch.nn.Linear with floating-point weights, under one "
    "torch.nn.Linear head: the Llama, Mistral, Qwen2, Qwen3 and Gemma-3 families among others "
    "(no mixture of experts, quantized weights or unmerged adapters). With any other model fit "
    "the gate with gradients='never'."
)

WORTH_SHARING = 32
"""Tokens that a shared prefix must save: the extra call that it takes costs about as many."""


class FeedForwardTail:
    """The losses of a batch as a function of the last layers' feed-forward matrices.

    Raises:
        NeedsGradients: the model has no such matrices; the message says what is supported.
        InvalidInput: the model has fewer than `layers` layers, or `layers` is under 1.
    """

    def __init__(self, model: nn.Module, layers: int) -> None:
        self._twin = _twin(model)
        self._stack = _stack(self._twin)
        if not 1 <= layers <= len(self._stack):
            raise InvalidInput(
                f"layers={layers}, but {type(model).__name__} has {len(self._stack)} layers; "
                f"take 1 to {len(self._stack)} (default 4)."
            )
        self._head = _TargetHead(_head(self._twin))
        self._twin.set_output_embeddings(self._head)
        last = self._stack[-layers:]
        self._below = len(self._stack) - layers
        self._entered: list[Tensor] = []
        self._resume_from: Tensor | None = None
        last[0].register_forward_pre_hook(self._enter)
        for layer in last:
            layer.float().register_forward_pre_hook(_in_float32, with_kwargs=True)
        parts = {part for layer in last for part in _feed_forward(layer)}
        self.linears: dict[str, nn.Linear] = {
            f"{name}.weight": module
            for name, module in self._twin.named_modules()
            if isinstance(module, nn.Linear) and module in parts
        }
        """The modules that hold the matrices, by parameter name, in the model's order."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """The feed-forward matrices in float32, by their names in `model.named_parameters()`."""
        return {name: linear.weight.detach() for name, linear in self.linears.items()}

    @property
    def entered(self) -> Float[Tensor, "batch time dim"]:
        """The states that entered the last layers when the losses were last computed."""
        return torch.cat([s.expand(len(self._entered[-1]), -1, -1) for s in self._entered], 1)

    def resume_from(self, entered: Float[Tensor, "batch time dim"]) -> None:
        """From here on leave out the layers below, and let these states enter the last ones."""
        self._resume_from = entered
        for index in range(self._below):
            self._stack[index] = _Skipped()

    def losses(
        self, weights: Mapping[str, Tensor], batch: TokenBatch, *, shared: bool = True
    ) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood, in nats a token, of each instance's targets.

        Logits are computed at the target positions only.

        Args:
            weights: what to take in the place of the model's own feed-forward matrices.
            shared: compute what all prompts begin with (a chat template, instructions) once.
                Losses, tangents and summed gradients are the same; what one instance's loss
                says about activations there can no longer be told apart.

        Raises:
            InvalidInput: an instance has no targets, or is not padded on the right.
        """
        batch = batch.checked().to(self._twin.device)
        start = batch.shared_prefix() if shared else 0
        start = start if start * (len(batch.targets) - 1) >= WORTH_SHARING else 0
        rows, columns = batch.targets.nonzero(as_tuple=True)
        self._entered = []
        cache = self._cache(weights, batch, start) if start else None
        self._head.read_at = (rows, columns - 1 - start)
        ids, mask = batch.input_ids[:, start:], batch.attention_mask
        logits = self._run(weights, input_ids=ids, attention_mask=mask, past_key_values=cache)
        target_logits = logits.gather(-1, batch.input_ids[rows, columns].unsqueeze(-1)).squeeze(-1)
        surprise = logits.logsumexp(-1) - target_logits
        totals = surprise.new_zeros(len(ids)).index_add(0, rows, surprise)
        return totals / batch.targets.sum(1)

    def _cache(self, weights: Mapping[str, Tensor], batch: TokenBatch, time: int) -> DynamicCache:
        """What the layers remember of the first tokens, for all instances."""
        cache = DynamicCache(config=self._twin.config)
        self._head.read_at = (slice(0), slice(0))
        self._run(weights, input_ids=batch.input_ids[:1, :time], past_key_values=cache)
        cache.batch_repeat_interleave(len(batch.input_ids))
        return cache

    def _run(self, weights: Mapping[str, Tensor], **arguments: Any) -> Tensor:
        cached = arguments.get("past_key_values") is not None
        return functional_call(
            self._twin, dict(weights), kwargs={**arguments, "use_cache": cached}
        ).logits

    def _enter(self, module: nn.Module, positional: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._resume_from is not None:
            return (self._resume_from, *positional[1:])
        self._entered.append(positional[0])
        return positional


class _TargetHead(nn.Module):
    """A head that computes the logits of some (row, column) positions only, in float32."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias
        self.read_at: tuple[Any, Any] = (slice(None), slice(None))

    def forward(self, hidden: Float[Tensor, "batch time dim"]) -> Float[Tensor, "... vocab"]:
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.linear(hidden[self.read_at].float(), self.weight.float(), bias)


class _Skipped(nn.Module):
    def forward(self, hidden: Tensor, *positional: Any, **named: Any) -> Tensor:
        return hidden


def _twin(model: nn.Module) -> PreTrainedModel:
    if not isinstance(model, PreTrainedModel):
        raise _unsupported(model, "it is not a transformers.PreTrainedModel")
    # deepcopy takes what it finds in the memo: the twin gets parameters of its own over the
    # same memory, so its requires_grad, grad and dtype are not the caller's.
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for weight in model.parameters():
        floating = weight.is_floating_point()
        memo[id(weight)] = nn.Parameter(weight.detach(), False) if floating else weight
    twin = copy.deepcopy(model, memo).eval()
    twin.set_attn_implementation("eager")
    return twin


def _stack(model: PreTrainedModel) -> nn.ModuleList:
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise _unsupported(model, "its decoder has no list of `layers`")
    for layer in layers:
        if reason := _no_feed_forward(layer):
            raise _unsupported(model, reason)
    return layers


def _head(model: PreTrainedModel) -> nn.Linear:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or not head.weight.is_floating_point():
        raise _unsupported(model, "its head is not a plain torch.nn.Linear")
    return head


def _feed_forward(layer: nn.Module) -> list[nn.Linear]:
    return [part for part in layer.get_submodule("mlp").children() if type(part) is nn.Linear]


def _no_feed_forward(layer: nn.Module) -> str | None:
    """Why the matrices of a layer's mlp cannot be had; None when they can."""
    if not isinstance(mlp := getattr(layer, "mlp", None), nn.Module):
        return "a layer has no `mlp`"
    matrices = {id(weight) for weight in mlp.parameters() if weight.ndim > 1}
    plain = {id(p.weight) for p in _feed_forward(layer) if p.weight.is_floating_point()}
    if not matrices or matrices != plain:
        return "the matrices of an `mlp` are not those of plain torch.nn.Linear modules"
    return None


def _in_float32(
    module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return _widened(positional), {key: _widened(value) for key, value in named.items()}


def _widened(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_widened, value))
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    if value.dtype == torch.float64:  # a mask holds its least number, which float32 has not
        value = value.clamp(min=torch.finfo(torch.float32).min)
    return value.float()


def _unsupported(model: object, reason: str) -> NeedsGradients:
    return NeedsGradients(
        f"the gradient term cannot be computed for {type(model).__name__}: {reason}. {SUPPORTED}"
    )


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
