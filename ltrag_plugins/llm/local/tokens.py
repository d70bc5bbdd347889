"""Prompts with their continuations, as token batches."""

from dataclasses import dataclass

from jaxtyping import Bool, Int

from ltrag_plugins.errors import InvalidInput, missing_extra

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
