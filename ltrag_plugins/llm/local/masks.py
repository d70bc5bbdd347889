"""Attention masks for trees of tokens, one for each kind of attention layer a model has."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int

from ltrag_plugins.errors import missing_extra

try:
    import torch
    from torch import Tensor
    from transformers import PretrainedConfig
except ImportError as error:
    raise missing_extra("transformers", "local") from error

Mask = Float[Tensor, "rows 1 queries keys"]
Masks = Mask | dict[str, Mask]
"""One mask for all layers, or one for each kind of layer."""


@dataclass(frozen=True, slots=True)
class Windows:
    """How far back each kind of attention layer sees: tokens, itself included; None: all."""

    by_kind: Mapping[str, int | None]

    @classmethod
    def of(cls, config: PretrainedConfig) -> "Windows | None":
        """Read off a text model's configuration; None where layers are of another kind."""
        window = getattr(config, "sliding_window", None)
        kinds = set(getattr(config, "layer_types", None) or ())
        if not kinds:
            return cls({"all": window})
        if not kinds <= {"full_attention", "sliding_attention"}:
            return None
        return cls({kind: window if kind == "sliding_attention" else None for kind in kinds})

    def masks(
        self,
        visible: Bool[Tensor, "rows queries keys"],
        query_positions: Int[Tensor, "rows queries"],
        key_positions: Int[Tensor, "rows keys"],
        dtype: torch.dtype,
    ) -> Masks:
        """Additive masks: 0 where a query sees a key, the least number of `dtype` elsewhere."""
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        masks = {
            kind: _additive(visible if window is None else visible & (distance < window), dtype)
            for kind, window in self.by_kind.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _additive(seen: Bool[Tensor, "rows queries keys"], dtype: torch.dtype) -> Mask:
    # the least finite number, not -inf: a padding row sees nothing, and softmax of -inf is NaN
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
