"""Hidden states to logits, at the places that are read."""

from typing import Any

from jaxtyping import Float

from ltrag_plugins.errors import missing_extra

try:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel
except ImportError as error:
    raise missing_extra("transformers", "local") from error


class Head:
    """Hidden states to logits, as the model's own forward does it."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        self._layer: Any = model.get_output_embeddings()
        self.vocabulary: int = config.vocab_size
        self._times = getattr(config, "logit_scale", None) or 1.0
        self._times /= getattr(config, "logits_scaling", None) or 1.0
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)

    def __call__(self, hidden: Float[Tensor, "*places hidden"]) -> Float[Tensor, "*places vocab"]:
        """Score every token of the vocabulary."""
        logits = self._layer(hidden) * self._times
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits
