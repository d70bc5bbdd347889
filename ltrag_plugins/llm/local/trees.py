"""Run a causal model over trees of tokens: what sequences share is computed once, exactly.

Each row of a batch is a `TokenTree`; a 4-D attention mask lets a token see its ancestors
alone, and position ids count along each path. To write on, every sequence takes its path's
keys and values out of the tree's cache into a row of its own.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.llm.local.engine import Ids, Place
from ltrag_plugins.llm.local.masks import Masks, Windows
from ltrag_plugins.llm.local.prefix import TokenTree, plan

try:
    import torch
    from torch import Tensor
    from transformers import DynamicCache, PreTrainedModel
except ImportError as error:
    raise missing_extra("transformers", "local") from error

LOGITS_AT_ONCE = 2**24
"""Most numbers held for logits at a time while reading."""
ATTENTION_SCALE = 3.0
"""Tokens in a row, in hidden sizes, at which attention costs as much as the linear layers."""
PADDING_READING, PADDING_WRITING = 0.25, 0.5
"""Most of a row that may be padding; more to write on, where rows side by side pay again."""
WRITING_FACTOR = 4
"""Rows being written hold this many times as many tokens as a batch being read."""


class TreeEngine:
    """The exact way for models of full and sliding attention with position ids."""

    def __init__(
        self, model: PreTrainedModel, windows: Windows, *, batch_tokens: int, share: bool = True
    ) -> None:
        self._base = model.base_model
        self._dtype = model.dtype
        self.device: torch.device = model.device
        """Where the model lies."""
        self._head = Head(model)
        self._windows = windows
        self._batch_tokens = batch_tokens
        self._share = share
        # a layer's matrices cost about 24 h**2 a token, attention about 4 h for each pair
        self._attention_scale = ATTENTION_SCALE * model.config.get_text_config().hidden_size

    def write(self, sequences: Sequence[Ids]) -> Iterator["TreeWriting"]:
        """See `Engine`."""
        for batch in self._plan(sequences, PADDING_WRITING):
            hidden, cache = self._run(batch, keep=True)
            where = [(row, path) for row, tree in enumerate(batch) for path in tree.paths]
            members = [member for tree in batch for member in tree.members]
            most = WRITING_FACTOR * self._batch_tokens // max(len(path) for _, path in where)
            whole = len(where) <= most and all(_is_chain(tree) for tree in batch)
            rows = iter(zip(members, where, strict=True))
            while group := list(islice(rows, max(1, most))):
                places = [place for _, place in group]
                at = [int(path[-1]) for _, path in places]
                logits = self._head(hidden[[row for row, _ in places], at])
                own = cache if whole else _gathered(cache, places)
                lengths = [len(path) for _, path in places]
                yield TreeWriting(self, [m for m, _ in group], own, lengths, logits)

    def read(
        self, sequences: Sequence[Ids], first: Sequence[int]
    ) -> Iterator[tuple[list[Place], Float[Tensor, "places vocabulary"]]]:
        """See `Engine`."""
        # the last token is predicted, and predicts nothing that is asked for
        for batch in self._plan([sequence[:-1] for sequence in sequences], PADDING_READING):
            hidden, _ = self._run(batch, keep=False)
            wanted = [
                (row, int(path[place - 1]), (member, place))
                for row, tree in enumerate(batch)
                for member, path in zip(tree.members, tree.paths, strict=True)
                for place in range(first[member], len(sequences[member]))
            ]
            size = max(1, LOGITS_AT_ONCE // self._head.vocabulary)
            for start in range(0, len(wanted), size):
                some = wanted[start : start + size]
                logits = self._head(hidden[[row for row, _, _ in some], [at for _, at, _ in some]])
                yield [place for _, _, place in some], logits

    def forward(
        self,
        ids: Int[Tensor, "rows queries"],
        positions: Int[Tensor, "rows queries"],
        masks: Masks | None,
        cache: DynamicCache | None,
    ) -> Float[Tensor, "rows queries hidden"]:
        """The last hidden states; `cache` grows by the queries."""
        return self._base(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state

    def step(
        self,
        ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        key_positions: Int[Tensor, "rows keys"],
        cache: DynamicCache,
    ) -> Float[Tensor, "rows vocabulary"]:
        """Logits after one more token in each row; a key position below 0 is padding."""
        masks = self._windows.masks(
            (key_positions >= 0)[:, None], positions[:, None], key_positions, self._dtype
        )
        return self._head(self.forward(ids[:, None], positions[:, None], masks, cache)[:, 0])

    def _plan(self, sequences: Sequence[Ids], padding: float) -> list[list[TokenTree]]:
        return plan(
            sequences,
            batch_tokens=self._batch_tokens,
            attention_scale=self._attention_scale,
            padding=padding,
            share=self._share,
        )

    def _run(
        self, batch: Sequence[TokenTree], *, keep: bool
    ) -> tuple[Float[Tensor, "trees nodes hidden"], DynamicCache]:
        ids = torch.from_numpy(_padded([tree.ids for tree in batch])).to(self.device)
        cache = DynamicCache()
        if all(tree.ancestors is None for tree in batch):
            # right padding comes after everything that is read: the causal mask is enough
            positions = torch.arange(ids.shape[1], device=self.device).expand(ids.shape)
            masks = None
        else:
            positions = torch.from_numpy(_padded([tree.positions for tree in batch]))
            positions = positions.to(self.device)
            visible = torch.from_numpy(_visible(batch)).to(self.device)
            masks = self._windows.masks(visible, positions, positions, self._dtype)
        return self.forward(ids, positions, masks, cache if keep else None), cache


class TreeWriting:
    """Rows with caches of their own; see `Writing`."""

    def __init__(
        self,
        engine: TreeEngine,
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


class Head:
    """Hidden states to logits, as the model's own forward does it."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        self._layer: Any = model.get_output_embeddings()
        self.vocabulary: int = config.vocab_size
        self._times = getattr(config, "logit_scale", None) or 1.0
        self._times /= getattr(config, "logits_scaling", None) or 1.0
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)

    def __call__(self, hidden: Float[Tensor, "places hidden"]) -> Float[Tensor, "places vocab"]:
        """Score every token of the vocabulary."""
        logits = self._layer(hidden) * self._times
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits


def _padded(rows: Sequence[Int[np.ndarray, " _"]]) -> Int[np.ndarray, "trees nodes"]:
    padded = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def _visible(batch: Sequence[TokenTree]) -> Bool[np.ndarray, "trees nodes nodes"]:
    size = max(map(len, batch))
    visible = np.zeros((len(batch), size, size), dtype=bool)
    for i, tree in enumerate(batch):
        nodes = len(tree)
        seen = tree.ancestors if tree.ancestors is not None else np.tri(nodes, dtype=bool)
        visible[i, :nodes, :nodes] = seen
    return visible


def _is_chain(tree: TokenTree) -> bool:
    return tree.ancestors is None and len(tree.members) == 1


def _gathered(
    cache: DynamicCache, places: Sequence[tuple[int, Int[np.ndarray, " _"]]]
) -> DynamicCache:
    """Keys and values along each (row, path), right-padded to the longest path."""
    rows = torch.tensor([row for row, _ in places])[:, None]
    nodes = torch.from_numpy(_padded([path for _, path in places]))
    own = DynamicCache()
    layers: list[Any] = cache.layers
    for i, layer in enumerate(layers):
        own.update(
            layer.keys.transpose(1, 2)[rows, nodes].transpose(1, 2),
            layer.values.transpose(1, 2)[rows, nodes].transpose(1, 2),
            i,
        )
    return own
