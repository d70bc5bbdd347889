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
    """What reads some tokens more in each row; `TreeEngine` does."""

    device: torch.device

    def step(
        self,
        ids: Int[Tensor, "rows tokens"],
        positions: Int[Tensor, "rows tokens"],
        key_positions: Int[Tensor, "rows keys"],
        cache: DynamicCache,
    ) -> Float[Tensor, "rows tokens vocabulary"]:
        """Logits after each of them; `cache` grows by them."""
        ...


class TreeWriting:
    """Rows with caches of their own; see `Writing` and `Ahead`."""

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
        self._tried = logits[:, None]
        self._lengths = torch.tensor(lengths, device=engine.device)
        places = torch.arange(cache.get_seq_length(), device=engine.device)[None]
        self._key_positions = torch.where(places < self._lengths[:, None], places, -1)

    def step(self, chosen: Int[Tensor, " rows"]) -> None:
        """See `Writing`."""
        self.logits = self._appended(chosen[:, None])[:, 0]

    def try_on(self, tokens: Int[Tensor, "rows tokens"]) -> Float[Tensor, "rows tokens vocabulary"]:
        """See `Ahead`."""
        self._tried = self._appended(tokens)
        return self._tried

    def take(self, counts: Sequence[int]) -> None:
        """See `Ahead`."""
        taken = torch.tensor(counts, device=self._engine.device)
        rows, tried = self._tried.shape[:2]
        self.logits = self._tried[torch.arange(rows, device=taken.device), taken - 1]
        self._lengths = self._lengths - tried + taken
        # the end that no row takes is cut off; what a row leaves below it, no query sees again
        most = max(counts)
        if most < tried:
            self._cache.crop(most - tried)
        before = self._key_positions.shape[1] - tried
        places = torch.arange(most, device=taken.device)[None]
        new = self._key_positions[:, before : before + most].where(places < taken[:, None], -1)
        self._key_positions = torch.cat([self._key_positions[:, :before], new], dim=1)

    def keep(self, rows: Sequence[int]) -> None:
        """See `Writing`."""
        self.members = [self.members[row] for row in rows]
        index = torch.tensor(rows, device=self._engine.device)
        self._cache.batch_select_indices(index)
        self._lengths, self.logits = self._lengths[index], self.logits[index]
        self._key_positions = self._key_positions[index]

    def _appended(
        self, tokens: Int[Tensor, "rows tokens"]
    ) -> Float[Tensor, "rows tokens vocabulary"]:
        more = torch.arange(tokens.shape[1], device=tokens.device)[None]
        positions = self._lengths[:, None] + more
        self._key_positions = torch.cat([self._key_positions, positions], dim=1)
        self._lengths = self._lengths + tokens.shape[1]
        return self._engine.step(tokens, positions, self._key_positions, self._cache)
