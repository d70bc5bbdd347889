"""Rows that are written on, each with keys and values of its own."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int

from ltrag_plugins.errors import missing_extra

try:
    import torch
    from torch import Tensor
    from transformers import DynamicCache
except ImportError as error:
    raise missing_extra("transformers", "local") from error


@runtime_checkable
class Steps(Protocol):
    """What reads one token more in each row; `TreeEngine` does."""

    device: torch.device

    def step(
        self,
        ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        key_positions: Int[Tensor, "rows keys"],
        cache: DynamicCache,
    ) -> Float[Tensor, "rows vocabulary"]:
        """Logits after it; `cache` grows by it."""
        ...


class TreeWriting:
    """Rows with caches of their own; see `Writing`."""

    def __init__(
        self,
        engine: Steps,
        members: list[int],
        cache: DynamicCache,
        lengths: Sequence[int],
        logits: Float[Tensor, "rows vocabulary"],
    ) -> None:
        self.members = members
        self.logits = logits
        self._engine = engine
        self._cache = cache
        self._lengths = torch.tensor(lengths, device=engine.device)
        places = torch.arange(cache.get_seq_length(), device=engine.device)[None]
        self._key_positions = torch.where(places < self._lengths[:, None], places, -1)

    def step(self, chosen: Int[Tensor, " rows"]) -> None:
        """See `Writing`."""
        self._key_positions = torch.cat([self._key_positions, self._lengths[:, None]], dim=1)
        self.logits = self._engine.step(chosen, self._lengths, self._key_positions, self._cache)
        self._lengths = self._lengths + 1

    def keep(self, rows: Sequence[int]) -> None:
        """See `Writing`."""
        self.members = [self.members[row] for row in rows]
        index = torch.tensor(rows, device=self._engine.device)
        self._cache.batch_select_indices(index)
        self._lengths, self.logits = self._lengths[index], self.logits[index]
        self._key_positions = self._key_positions[index]
