"""Run any causal model: sequences of equal length together, so nothing is padded or masked.

Slower than `trees.TreeEngine` and asks nothing of the architecture: recurrent layers, ALiBi,
chunked attention and attention kernels without custom masks all go this way.
"""

from collections.abc import Iterator, Sequence

from jaxtyping import Float, Int

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.llm.local.engine import Ids, Place

try:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel
except ImportError as error:
    raise missing_extra("transformers", "local") from error


class PlainEngine:
    """The model's own forward pass and cache; see `Engine`."""

    def __init__(self, model: PreTrainedModel, *, batch_tokens: int) -> None:
        self.model = model
        self._batch_tokens = batch_tokens

    def write(
        self, sequences: Sequence[Ids], guesses: Sequence[Ids] = ()
    ) -> Iterator["PlainWriting"]:
        """See `Engine`; guesses are left, as not every model's cache can be cut."""
        for members in _equal(sequences, self._batch_tokens):
            ids = self._tensor([sequences[i] for i in members])
            yield PlainWriting(self.model, members, ids)

    def read(
        self, sequences: Sequence[Ids], first: Sequence[int]
    ) -> Iterator[tuple[list[Place], Float[Tensor, "places vocabulary"]]]:
        """See `Engine`."""
        for members in _equal(sequences, self._batch_tokens):
            length = len(sequences[members[0]])
            last = max(length - first[i] for i in members) + 1
            ids = self._tensor([sequences[i] for i in members])
            out = self.model(input_ids=ids, use_cache=False, logits_to_keep=last)
            for row, member in enumerate(members):
                places = range(first[member], length)
                yield (
                    [(member, p) for p in places],
                    out.logits[row, first[member] - 1 - length : -1],
                )

    def _tensor(self, rows: Sequence[Ids]) -> Int[Tensor, "rows tokens"]:
        return torch.tensor([list(row) for row in rows], device=self.model.device)


class PlainWriting:
    """Rows of equal length with the model's own cache; see `Writing`."""

    def __init__(
        self, model: PreTrainedModel, members: list[int], ids: Int[Tensor, "rows tokens"]
    ) -> None:
        self.members = members
        self._model = model
        self._ids = ids
        self._rows = torch.arange(len(members), device=ids.device)
        self._cache = None
        self._forward(ids)

    def step(self, chosen: Int[Tensor, " rows"]) -> None:
        """See `Writing`."""
        # rows that are no longer wanted stay in the cache, which not every model lets us cut
        ids = self._ids[:, -1:].clone()
        ids[self._rows, 0] = chosen
        self._ids = torch.cat([self._ids, ids], dim=1)
        self._forward(self._ids if self._cache is None else ids)

    def keep(self, rows: Sequence[int]) -> None:
        """See `Writing`."""
        self.members = [self.members[row] for row in rows]
        index = torch.tensor(rows, device=self._rows.device)
        self._rows, self.logits = self._rows[index], self.logits[index]

    def _forward(self, ids: Int[Tensor, "rows tokens"]) -> None:
        out = self._model(
            input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1
        )
        self._cache = out.get("past_key_values")
        self.logits = out.logits[self._rows, -1]


def _equal(sequences: Sequence[Ids], batch_tokens: int) -> Iterator[list[int]]:
    by_length: dict[int, list[int]] = {}
    for i, sequence in enumerate(sequences):
        by_length.setdefault(len(sequence), []).append(i)
    for length, members in by_length.items():
        size = max(1, batch_tokens // length)
        for start in range(0, len(members), size):
            yield members[start : start + size]
