"""Rows that are written on, each with keys and values of its own."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.llm.local.engine import Ids

try:
    import torch
    from torch import Tensor
    from transformers import Cache
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
        cache: Cache,
    ) -> Float[Tensor, "rows tokens vocabulary"]:
        """Logits after each of them; `cache` grows by them."""
        ...


class TreeWriting:
    """Rows with caches of their own; see `Writing` and `Ahead`.

    Args:
        engine: what reads more tokens.
        members: which sequence of the call each row is.
        cache: of each row its sequence, padded to the longest, then its guess, padded likewise.
        lengths: tokens of each sequence.
        guessed: tokens of each guess.
        tried: scores after each sequence, and after each token of its guess.
    """

    def __init__(
        self,
        engine: Steps,
        members: list[int],
        cache: Cache,
        lengths: Sequence[int],
        guessed: Sequence[Ids],
        tried: Float[Tensor, "rows tokens vocabulary"],
    ) -> None:
        self.members = members
        self.logits = tried[:, 0]
        self.guessed = guessed
        self.tried = tried
        self._engine = engine
        self._cache = cache
        self._lengths = torch.tensor(lengths, device=engine.device)
        places = torch.arange(max(lengths), device=engine.device)[None]
        self._key_positions = torch.where(places < self._lengths[:, None], places, -1)
        self._append(tried.shape[1] - 1)

    def step(self, chosen: Int[Tensor, " rows"]) -> None:
        """See `Writing`."""
        self.logits = self._appended(chosen[:, None])[:, 0]

    def try_on(self, tokens: Int[Tensor, "rows tokens"]) -> Float[Tensor, "rows tokens vocabulary"]:
        """See `Ahead`."""
        self.tried = self._appended(tokens)
        return self.tried

    def take(self, counts: Sequence[int]) -> None:
        """See `Ahead`."""
        taken = torch.tensor(counts, device=self._engine.device)
        rows, tried = self.tried.shape[:2]
        self.logits = self.tried[torch.arange(rows, device=taken.device), taken - 1]
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
        positions = self._append(tokens.shape[1])
        return self._engine.step(tokens, positions, self._key_positions, self._cache)

    def _append(self, tokens: int) -> Int[Tensor, "rows tokens"]:
        """Places for so many tokens more, one after another in each row."""
        positions = self._lengths[:, None] + torch.arange(tokens, device=self._lengths.device)
        self._key_positions = torch.cat([self._key_positions, positions], dim=1)
        self._lengths = self._lengths + tokens
        return positions
