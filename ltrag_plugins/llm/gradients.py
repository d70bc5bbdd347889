r"""How an instance's gradient lies to the mean gradient of a data set.

.. math:: \langle \nabla_i, E[\nabla] \rangle, \qquad
    \nabla_i = \partial\, \frac{1}{n_i} \sum_t -\log p(t) \,/\, \partial W

with W the feed-forward matrices of the last layers, and t the tokens of the continuation. No
gradient of a single instance is ever held: in forward mode the tangent of the vector of losses
along a direction *is* the vector of dot products with it. What the prompts of a batch begin with is
computed once: a token's tangent depends on the tokens before it alone.

Source: Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
Language Models", eq. 2 (denominator) and appendix A (which weights).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.errors import InvalidInput, NeedsGradients, missing_extra
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.llm.loading import twin
from ltrag_plugins.llm.prompting import Scored
from ltrag_plugins.types import GradientAgreement

try:
    import torch
    from torch import Tensor, nn
    from torch.func import functional_call
    from torch.nn.utils.rnn import pad_sequence
    from transformers import DynamicCache, PreTrainedModel
except ImportError as error:
    raise missing_extra("torch and transformers", "local") from error

_WORTH_SHARING = 32  # tokens that a shared prefix must save: the extra call costs about as many


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Prompts with their continuations, as tokens, padded on the right."""

    input_ids: Int[Tensor, "batch time"]
    attention_mask: Int[Tensor, "batch time"]
    """1 for tokens, 0 for padding."""
    targets: Bool[Tensor, "batch time"]
    """True where a continuation token stands; it is predicted from the position before."""

    def shared_prefix(self) -> int:
        """How many tokens all instances begin with before any prediction; 0 for a single one."""
        if len(self.input_ids) < 2:
            return 0
        same = (self.input_ids == self.input_ids[0]) & self.attention_mask.bool()
        before = same.all(0) & ~self.targets.roll(-1, 1).any(0)
        return int(before.long().cumprod(0).sum())


def token_batches(
    scored: Sequence[Scored], batch_tokens: int
) -> Iterator[tuple[list[int], TokenBatch]]:
    """Batches of similar length, each with its members' indices."""
    for i, one in enumerate(scored):
        if not one.continuation:
            raise InvalidInput(f"continuation {i} is empty; it has no loss to differentiate.")
    order = sorted(range(len(scored)), key=lambda i: len(scored[i]), reverse=True)
    while order:
        size = max(1, batch_tokens // len(scored[order[0]]))
        members, order = order[:size], order[size:]
        some = [scored[i] for i in members]
        columns = (
            [torch.tensor(one.prompt + one.continuation) for one in some],
            [torch.ones(len(one), dtype=torch.long) for one in some],
            [torch.arange(len(one)) >= len(one.prompt) for one in some],
        )
        yield members, TokenBatch(*(pad_sequence(rows, batch_first=True) for rows in columns))


def mean_gradient(model: nn.Module, batches: Iterable[TokenBatch], *, layers: int = 4) -> Direction:
    """The gradient of the mean token loss, averaged over all instances of all batches alike, as
    float32 arrays by parameter name, as in `model.named_parameters()`.

    Args:
        model: a causal language model of transformers; it is not changed.
        layers: how many of the last layers' feed-forward matrices to differentiate by.
    """
    tail = FeedForwardTail(model, layers)
    with torch.inference_mode(False), torch.enable_grad():
        weights = {name: weight.requires_grad_() for name, weight in tail.weights.items()}
        totals, instances = [torch.zeros_like(weight) for weight in weights.values()], 0
        for batch in batches:
            summed = tail.losses(weights, batch).sum()
            parts = torch.autograd.grad(summed, list(weights.values()))
            for total, part in zip(totals, parts, strict=True):
                total.add_(part)
            instances += len(batch.targets)
    if not instances:
        raise InvalidInput("a mean gradient of no instances; give at least one question.")
    means = ((total / instances).cpu().numpy() for total in totals)
    return dict(zip(weights, means, strict=True))


def gradient_agreement(
    model: nn.Module, batch: TokenBatch, *, along: Direction, cosine: bool = False, layers: int = 4
) -> list[GradientAgreement]:
    """The dot product of each instance's gradient with `along`, in the batch's order.

    Args:
        along: a direction in the same weights, as `mean_gradient` gives it.
        cosine: the dot product over both norms too (0 where a norm is 0); a backward pass more.
        model, layers: as in `mean_gradient`.
    """
    tail = FeedForwardTail(model, layers)
    shapes = {name: tuple(weight.shape) for name, weight in tail.weights.items()}
    if {name: array.shape for name, array in along.items()} != shapes:
        raise InvalidInput(
            f"the direction's arrays ({', '.join(list(along)[:2])}, ...) do not match this model's "
            f"({', '.join(list(shapes)[:2])}, ...); take it from mean_gradient with the same model "
            "and the same number of layers."
        )
    tangent = {name: torch.as_tensor(along[name]).to(w) for name, w in tail.weights.items()}

    def losses(weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return tail.losses(weights, batch), tail.entered

    with torch.inference_mode(False), torch.enable_grad():
        result: Any = torch.func.jvp(losses, (tail.weights,), (tangent,), has_aux=True)
        _, dots, entered = result
        if not cosine:
            return [GradientAgreement(dot) for dot in dots.tolist()]
        tail.resume_from(entered)
        norms = _gradient_norms(tail, batch)
    length = float(np.sqrt(sum(np.square(a, dtype=np.float64).sum() for a in along.values())))
    return [
        GradientAgreement(dot, dot / (length * norm) if length * norm > 0 else 0.0)
        for dot, norm in zip(dots.tolist(), norms.tolist(), strict=True)
    ]


def _gradient_norms(tail: "FeedForwardTail", batch: TokenBatch) -> Float[Tensor, " batch"]:
    r"""The norm of each instance's gradient, from one backward pass for all of them.

    For a matrix with inputs :math:`x_t` and loss gradients :math:`d_t` at its outputs its square is
    :math:`\sum_{t,t'} (x_t \cdot x_{t'}) (d_t \cdot d_{t'})`: time by time, not weight by weight.

    Source: Li et al., ICLR 2022, "Large Language Models Can Be Strong Differentially Private
    Learners", section 4 (ghost clipping).
    """
    seen = list[tuple[Tensor, Any]]()
    for linear in tail.linears.values():
        linear.register_forward_hook(lambda _, given, out: seen.append((given[0].detach(), out)))
    weights = {name: weight.requires_grad_() for name, weight in tail.weights.items()}
    losses = tail.losses(weights, batch, shared=False)
    deltas = torch.autograd.grad(losses.sum(), [output for _, output in seen])
    squared = torch.zeros_like(losses, dtype=torch.float64)
    for (inputs, _), delta in zip(seen, deltas, strict=True):
        pairs = (inputs @ inputs.mT) * (delta @ delta.mT)
        squared += pairs.sum((1, 2), dtype=torch.float64)
    return squared.detach().clamp_min(0).sqrt()


class FeedForwardTail:
    """The losses of a batch as a function of the last layers' feed-forward matrices. A twin of the
    model (`loading.twin`) runs the model's own code, with eager attention, the one implementation
    that can be differentiated forward. The last layers, the final norm and the logits are computed
    in float32 (a bfloat16 product of gradients is good to about two digits)."""

    def __init__(self, model: nn.Module, layers: int) -> None:
        if not isinstance(model, PreTrainedModel):
            raise _unsupported(model, "it is not a transformers.PreTrainedModel")
        self._twin = twin(model)
        self._twin.set_attn_implementation("eager")
        stack = getattr(self._twin.get_decoder(), "layers", None)
        if not isinstance(stack, nn.ModuleList) or not all(map(_is_dense, stack)):
            raise _unsupported(model, "its decoder is no list of `layers` with dense `mlp`s")
        if not 1 <= layers <= len(stack):
            why = f"layers={layers}, but {type(model).__name__} has {len(stack)} layers"
            raise InvalidInput(f"{why}; take 1 to {len(stack)} (default 4).")
        head = self._twin.get_output_embeddings()
        if not isinstance(head, nn.Linear) or not head.weight.is_floating_point():
            raise _unsupported(model, "its head is not a plain torch.nn.Linear")
        self._head = _TargetHead(head)
        self._twin.set_output_embeddings(self._head)
        self._stack, self._last = stack, stack[-layers:]
        self._entrance = _Entrance()
        self._last[0].register_forward_pre_hook(self._entrance)
        for layer in self._last:
            layer.float().register_forward_pre_hook(
                lambda _, *given: _widened(given), with_kwargs=True
            )
        parts = {part for layer in self._last for part in _feed_forward(layer)}
        modules = self._twin.named_modules()  # in the model's order
        self.linears: dict[str, Any] = {f"{n}.weight": part for n, part in modules if part in parts}
        """The modules that hold the matrices, by parameter name."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """The feed-forward matrices in float32, by their names in `model.named_parameters()`."""
        return {name: linear.weight.detach() for name, linear in self.linears.items()}

    @property
    def entered(self) -> Float[Tensor, "batch time dim"]:
        """The states that entered the last layers when the losses were last computed."""
        seen = self._entrance.seen
        return torch.cat([states.expand(len(seen[-1]), -1, -1) for states in seen], 1)

    def resume_from(self, entered: Float[Tensor, "batch time dim"]) -> None:
        """From here on leave out the layers below, and let these states enter the last ones."""
        self._entrance.instead = entered
        for index in range(len(self._stack) - len(self._last)):
            self._stack[index] = _Skipped()

    def losses(
        self, weights: Mapping[str, Tensor], batch: TokenBatch, *, shared: bool = True
    ) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood, in nats a token, of each instance's targets. `weights` take
        the place of the model's own. With `shared`, what all prompts begin with is computed once:
        then the activations there belong to no one instance."""
        columns = (batch.input_ids, batch.attention_mask, batch.targets)
        ids, mask, targets = (column.to(self._twin.device) for column in columns)
        start = batch.shared_prefix() if shared else 0
        start = start if start * (len(ids) - 1) >= _WORTH_SHARING else 0
        rows, columns = targets.nonzero(as_tuple=True)
        self._entrance.seen, cache = [], None

        def run(**read: Any) -> Tensor:
            read |= {"past_key_values": cache, "use_cache": cache is not None}
            return functional_call(self._twin, dict(weights), kwargs=read).logits

        if start:
            cache = DynamicCache(config=self._twin.config)
            self._head.read_at = (slice(0), slice(0))
            run(input_ids=ids[:1, :start])
            cache.batch_repeat_interleave(len(ids))
        self._head.read_at = (rows, columns - 1 - start)
        logits = run(input_ids=ids[:, start:], attention_mask=mask)
        target_logits = logits.gather(-1, ids[rows, columns].unsqueeze(-1)).squeeze(-1)
        surprise = logits.logsumexp(-1) - target_logits
        totals = surprise.new_zeros(len(ids)).index_add(0, rows, surprise)
        return totals / targets.sum(1)


@dataclass(slots=True)
class _Entrance:
    """A hook: the states that enter the last layers, or those that do so in their place. It knows
    nothing of the model, which would outlive its last use in a cycle, float32 layers and all."""

    seen: list[Tensor] = field(default_factory=list)
    instead: Tensor | None = None

    def __call__(self, module: nn.Module, positional: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.instead is not None:
            return (self.instead, *positional[1:])
        self.seen.append(positional[0])
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


def _is_dense(layer: nn.Module) -> bool:
    """Whether all matrices of its `mlp` are those of plain linear modules, in floating point."""
    if not isinstance(mlp := getattr(layer, "mlp", None), nn.Module):
        return False
    matrices = {id(weight) for weight in mlp.parameters() if weight.ndim > 1}
    plain = {id(p.weight) for p in _feed_forward(layer) if p.weight.is_floating_point()}
    return bool(matrices) and matrices == plain


def _feed_forward(layer: nn.Module) -> list[nn.Linear]:
    return [part for part in layer.get_submodule("mlp").children() if type(part) is nn.Linear]


def _widened(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_widened, value))
    if isinstance(value, dict):
        return {key: _widened(part) for key, part in value.items()}
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    if value.dtype == torch.float64:  # a mask holds its least number, which float32 has not
        value = value.clamp(min=torch.finfo(torch.float32).min)
    return value.float()


def _unsupported(model: object, reason: str) -> NeedsGradients:
    return NeedsGradients(
        f"the gradient term cannot be computed for {type(model).__name__}: {reason}. It needs a "
        "stack of `layers`, each with a dense `mlp` of floating-point torch.nn.Linear, under one "
        "such head (Llama, Mistral, Qwen2, Qwen3, Gemma-3, ...). With any other model fit the gate "
        "with gradients='never'."
    )
