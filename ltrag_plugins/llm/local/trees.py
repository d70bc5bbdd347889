"""Run a causal model over trees of tokens: what sequences share is computed once, exactly.

Each row of a batch is a `TokenTree`; a 4-D attention mask lets a token see its ancestors
alone, and position ids count along each path. To write on, every sequence takes its path's
keys and values out of the tree's cache into a row of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.llm.local.caches import new_cache
from ltrag_plugins.llm.local.engine import Ids, Place
from ltrag_plugins.llm.local.head import Head
from ltrag_plugins.llm.local.masks import Masks, Windows
from ltrag_plugins.llm.local.memory import Known, PrefixMemory, beginnings
from ltrag_plugins.llm.local.prefix import TokenTree, padded, plan, visible
from ltrag_plugins.llm.local.tree_writing import TreeWriting

try:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache
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


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A tree of tokens that follows a beginning that was read before."""

    known: Known
    tree: TokenTree

    def __len__(self) -> int:
        return self.known.tokens + len(self.tree)


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A sequence that was read, and a guess of what follows it: where it lies in a batch."""

    member: int
    row: int
    path: Int[np.ndarray, " tokens"]
    """Places of its tokens in the row's cache, those of the guess last."""
    known: int = 0
    """Places of the row that were not read now: hidden states begin after them."""


class TreeEngine:
    """The exact way for models of full and sliding attention with position ids."""

    def __init__(
        self,
        model: PreTrainedModel,
        windows: Windows,
        *,
        batch_tokens: int,
        share: bool = True,
        memory: PrefixMemory | None = None,
    ) -> None:
        self._base = model.base_model
        self._dtype = model.dtype
        self.device: torch.device = model.device
        """Where the model lies."""
        self._head = Head(model)
        self._windows = windows
        self._batch_tokens = batch_tokens
        self._share = share
        self._memory = PrefixMemory(0) if memory is None else memory
        # a layer's matrices cost about 24 h**2 a token, attention about 4 h for each pair
        self._attention_scale = ATTENTION_SCALE * model.config.get_text_config().hidden_size

    def write(
        self, sequences: Sequence[Ids], guesses: Sequence[Ids] = ()
    ) -> Iterator["TreeWriting"]:
        """See `Engine`."""
        known = {i: one for i, ids in enumerate(sequences) if (one := self._memory.known(ids))}
        whole = [[*ids, *more] for ids, more in zip_longest(sequences, guesses, fillvalue=())]
        for batch in self._branches(whole, known):
            yield from self._begun(sequences, whole, *self._continued(batch))
        new = [i for i in range(len(sequences)) if i not in known]
        for batch in self._plan([whole[i] for i in new], PADDING_WRITING):
            hidden, cache = self._run(batch, keep=True)
            rows = [
                Begun(new[member], row, path)
                for row, tree in enumerate(batch)
                for member, path in zip(tree.members, tree.paths, strict=True)
            ]
            yield from self._begun(sequences, whole, hidden, cache, rows)

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
        cache: Cache | None,
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
        ids: Int[Tensor, "rows tokens"],
        positions: Int[Tensor, "rows tokens"],
        key_positions: Int[Tensor, "rows keys"],
        cache: Cache,
    ) -> Float[Tensor, "rows tokens vocabulary"]:
        """Logits after each more token of each row; a key position below 0 is padding."""
        keys = key_positions[:, None]
        visible = (keys >= 0) & (keys <= positions[:, :, None])
        masks = self._windows.masks(visible, positions, key_positions, self._dtype)
        return self._head(self.forward(ids, positions, masks, cache))

    def _begun(
        self,
        sequences: Sequence[Ids],
        whole: Sequence[Ids],
        hidden: Float[Tensor, "trees nodes hidden"],
        cache: Cache,
        rows: "Sequence[Begun]",
    ) -> Iterator["TreeWriting"]:
        """Rows of their own, each with scores after its sequence and after each guessed token."""
        most = max(1, WRITING_FACTOR * self._batch_tokens // max(len(one.path) for one in rows))
        left = iter(rows)
        while group := list(islice(left, most)):
            members = [one.member for one in group]
            lengths = [len(sequences[member]) for member in members]
            guessed = [whole[i][n:] for i, n in zip(members, lengths, strict=True)]
            own = len(group) == len(rows) and _apart(group, guessed)
            mine = cache if own else _gathered(cache, group, lengths)
            for row, member in enumerate(members):
                self._memory.keep(sequences[member], mine, row)
            last = padded(
                [one.path[n - 1 :] - one.known for one, n in zip(group, lengths, strict=True)]
            )
            tried = self._head(hidden[[[one.row] for one in group], last])
            yield TreeWriting(self, members, mine, lengths, guessed, tried)

    def _branches(
        self, sequences: Sequence[Ids], known: Mapping[int, Known]
    ) -> "Iterator[list[Branch]]":
        """What follows a beginning that was read before, in batches of similar size."""
        alike: dict[tuple[int, int], list[int]] = {}
        for i, one in known.items():
            alike.setdefault((id(one.read), one.tokens), []).append(i)
        found = []
        for members in alike.values():
            beginning = known[members[0]]
            rest = [sequences[i][beginning.tokens :] for i in members]
            for tree in chain.from_iterable(self._plan(rest, PADDING_WRITING)):
                of_call = tuple(members[member] for member in tree.members)
                found.append(Branch(beginning, replace(tree, members=of_call)))
        found.sort(key=len, reverse=True)
        while found:
            # what is known is held, and only what is new is computed
            held = WRITING_FACTOR * self._batch_tokens // len(found[0])
            computed = self._batch_tokens // max(len(branch.tree) for branch in found)
            most = max(1, min(held, computed))
            yield found[:most]
            del found[:most]

    def _continued(
        self, batch: "Sequence[Branch]"
    ) -> "tuple[Float[Tensor, 'rows nodes hidden'], Cache, list[Begun]]":
        trees, before = [one.tree for one in batch], [one.known.tokens for one in batch]
        first = max(before)
        ids = self._tensor(padded([tree.ids for tree in trees]))
        begun = torch.tensor(before, device=self.device)[:, None]
        positions = begun + self._tensor(padded([tree.positions for tree in trees]))
        places = torch.arange(first, device=self.device)[None].expand(len(batch), -1)
        behind = (places < begun)[:, None].expand(-1, ids.shape[1], -1)
        seen = torch.cat([behind, self._tensor(visible(trees))], dim=2)
        keys = torch.cat([places, positions], dim=1)
        masks = self._windows.masks(seen, positions, keys, self._dtype)
        cache = beginnings([one.known for one in batch])
        hidden = self.forward(ids, positions, masks, cache)
        rows = [
            Begun(member, row, np.concatenate([np.arange(tokens), first + path]), first)
            for row, (tree, tokens) in enumerate(zip(trees, before, strict=True))
            for member, path in zip(tree.members, tree.paths, strict=True)
        ]
        return hidden, cache, rows

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

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
    ) -> tuple[Float[Tensor, "trees nodes hidden"], Cache]:
        ids = self._tensor(padded([tree.ids for tree in batch]))
        cache = new_cache()
        if all(tree.ancestors is None for tree in batch):
            # right padding comes after everything that is read: the causal mask is enough
            positions = torch.arange(ids.shape[1], device=self.device).expand(ids.shape)
            masks = None
        else:
            positions = self._tensor(padded([tree.positions for tree in batch]))
            masks = self._windows.masks(
                self._tensor(visible(batch)), positions, positions, self._dtype
            )
        return self.forward(ids, positions, masks, cache if keep else None), cache


def _apart(begun: Sequence[Begun], guessed: Sequence[Ids]) -> bool:
    """Whether each has a row of the cache for itself already, and the guesses stand in line."""
    return (len(begun) == 1 or not any(guessed)) and all(
        one.row == row and np.array_equal(one.path, np.arange(len(one.path)))
        for row, one in enumerate(begun)
    )


def _gathered(cache: Cache, begun: Sequence[Begun], lengths: Sequence[int]) -> Cache:
    """Keys and values along each path: sequences right-padded to the longest, then guesses."""
    rows = torch.tensor([one.row for one in begun])[:, None]
    cut = [np.split(one.path, [n]) for one, n in zip(begun, lengths, strict=True)]
    parts = [padded(list(paths)) for paths in zip(*cut, strict=True)]
    nodes = torch.from_numpy(np.concatenate(parts, axis=1))
    own = new_cache()
    layers: list[Any] = cache.layers
    for i, layer in enumerate(layers):
        own.update(
            layer.keys.transpose(1, 2)[rows, nodes].transpose(1, 2),
            layer.values.transpose(1, 2)[rows, nodes].transpose(1, 2),
            i,
        )
    return own
