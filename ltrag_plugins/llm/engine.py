"""What a local model must do for `TransformersLLM`: read sequences, and write on from them.

Two ways stand behind it: `trees.TreeEngine` computes shared prefixes once, and
`plain.PlainEngine` takes any architecture, prompts of equal length at a time.

Attention masks for trees of tokens, one for each kind of attention layer a model has.

Keys and values of a model's layers, of which the first are taken without a copy.

Keys and values of prompts that were read, for the next prompt that begins like one of them.

What the prompts of one call share is planned in `prefix`; this is for calls that follow each
other: the rounds of a calibration about the same documents, the turns of a chat. What was
written after them is kept too, as a guess of what comes after the next: many a round repeats
the answer of the round before.

Run any causal model: sequences of equal length together, so nothing is padded or masked.

Slower than `trees.TreeEngine` and asks nothing of the architecture: recurrent layers, ALiBi,
chunked attention and attention kernels without custom masks all go this way.

Hidden states to logits, at the places that are read.

Plan which token sequences are computed together so that what they share is computed once.

Sequences that start alike form a `TokenTree`: each node is one token, and a token attends to
its ancestors alone, so a pass over the tree gives every sequence exactly what a pass of its
own would. One pass costs about ``n + n**2 / attention_scale`` for a tree of ``n`` tokens
(linear layers, and attention over the whole row, seen or not); a sequence joins a tree only
while that is cheaper than a pass of its own.

Rows that are written on, each with keys and values of its own.

Run a causal model over trees of tokens: what sequences share is computed once, exactly.

Each row of a batch is a `TokenTree`; a 4-D attention mask lets a token see its ancestors
alone, and position ids count along each path. To write on, every sequence takes its path's
keys and values out of the tree's cache into a row of its own.

Choose how a model is run: the exact shared way where it holds, else the plain way.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.errors import missing_extra

try:
    from torch import Tensor
except ImportError as error:
    raise missing_extra("torch", "local") from error

Ids = Sequence[int]
"""Token ids of one sequence."""
Place = tuple[int, int]
"""A token to predict: which sequence of the call, and where in it."""


@runtime_checkable
class Writing(Protocol):
    """Sequences that are being written on, a token each at a time."""

    members: list[int]
    """Which sequence of the call each row is."""
    logits: Float[Tensor, "rows vocabulary"]
    """Scores of the next token of each row."""

    def step(self, chosen: Int[Tensor, " rows"]) -> None:
        """Append one token to each row and score the next."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone."""
        ...


@runtime_checkable
class Ahead(Writing, Protocol):
    """A `Writing` that can try several tokens at once, and take some of them back.

    It may begin with tokens tried: those that `Engine.write` was told may come next.
    """

    guessed: Sequence[Ids]
    """What was tried on each row while it was read; where any was, `take` comes first."""
    tried: Float[Tensor, "rows tokens vocabulary"]
    """Scores after what each row ended with, and after each token that was tried on it."""

    def try_on(self, tokens: Int[Tensor, "rows tokens"]) -> Float[Tensor, "rows tokens vocabulary"]:
        """Append tokens to each row; the scores of what follows each of them."""
        ...

    def take(self, counts: Sequence[int]) -> None:
        """Keep the first tokens, at least one, of those that were tried on each row.

        Of tokens tried by `Engine.write`, the first is the last of the sequence itself.
        """
        ...


@runtime_checkable
class Engine(Protocol):
    """Runs the model."""

    def write(self, sequences: Sequence[Ids], guesses: Sequence[Ids] = ()) -> Iterator[Writing]:
        """The sequences, read and ready to be written on; each in one `Writing`.

        Args:
            sequences: each at least one token.
            guesses: tokens that may follow each of them; an `Ahead` tries them in the same pass,
                any other engine leaves them. Few, and for few sequences: each is a token more.
        """
        ...

    def read(
        self, sequences: Sequence[Ids], first: Sequence[int]
    ) -> Iterator[tuple[list[Place], Float[Tensor, "places vocabulary"]]]:
        """Scores that predict the tokens of each sequence from its place ``first`` (>= 1) on."""
        ...


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


try:
    from torch import Tensor
    from transformers.cache_utils import Cache, DynamicLayer
except ImportError as error:
    raise missing_extra("transformers", "local") from error


@final
class TakenLayer(DynamicLayer):
    """Grows by copies, as `DynamicLayer` does, but holds what it is given first as it is."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """See `DynamicLayer`."""
        if self.is_initialized:
            return super().update(key_states, value_states, *args, **kwargs)
        self.lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states, value_states
        return key_states, value_states


def new_cache() -> Cache:
    """An empty cache of any number of layers."""
    return Cache(layer_class_to_replicate=TakenLayer)


try:
    from torch import Tensor
    from torch.nn.utils.rnn import pad_sequence
    from transformers.cache_utils import Cache
except ImportError as error:
    raise missing_extra("transformers", "local") from error

LEAST = 32
"""Tokens below which a shared beginning is computed again: fetching it costs as much."""

SPARE = 1.25
"""Times the memory of what is kept that may be held for it."""

Layer = tuple[Float[Tensor, "heads tokens size"], Float[Tensor, "heads tokens size"]]
"""Keys and values of one layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A sequence that was read."""

    ids: Int[np.ndarray, " tokens"]
    layers: tuple[Layer, ...]
    written: tuple[int, ...] = ()
    """What the model wrote after it."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What may be written after a sequence."""

    tokens: tuple[int, ...] = ()
    share: float = 0.0
    """How much of the sequence stood in the one that it was written after; 0-1."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The beginning of a sequence, as far as it was read before."""

    read: Read
    tokens: int
    """How many of its first tokens are the sequence's; at least `LEAST`."""


class PrefixMemory:
    """The sequences read last, up to a number of tokens.

    A sequence that shares more than half of a kept one takes its place: the rounds of a
    calibration then need room for one prompt, not for all.

    Args:
        most_tokens: of all kept sequences together; 0 keeps none.
    """

    def __init__(self, most_tokens: int) -> None:
        self.most_tokens = most_tokens
        self._kept: list[Read] = []
        self._misled = 0.0

    def __len__(self) -> int:
        return sum(len(read.ids) for read in self._kept)

    def forget(self) -> None:
        """Keep none of them any more."""
        self._kept = []
        self._misled = 0.0

    def known(self, sequence: Sequence[int]) -> Known | None:
        """The longest beginning of the sequence that is kept, but for its last token.

        The last token has to be read again: what it predicts is not kept.
        """
        if not self._kept:
            return None
        ids = np.asarray(sequence)
        found = [Known(read, min(_shared(read.ids, ids), len(ids) - 1)) for read in self._kept]
        best = max(found, key=lambda known: known.tokens)
        return best if best.tokens >= LEAST else None

    def keep(self, sequence: Sequence[int], cache: Cache, row: int) -> None:
        """Hold the sequence's keys and values: the first places of a cache's row."""
        ids = np.asarray(sequence)
        if not LEAST <= len(ids) <= self.most_tokens:
            return
        layers = tuple(
            (_own(layer.keys, row, len(ids)), _own(layer.values, row, len(ids)))
            for layer in _layers(cache)
        )
        others = [read for read in self._kept if 2 * _shared(read.ids, ids) <= len(read.ids)]
        self._kept = [*others, Read(ids, layers)]
        while len(self) > self.most_tokens:
            self._kept.pop(0)

    def wrote(self, sequence: Sequence[int], tokens: Sequence[int]) -> None:
        """What the model wrote after a sequence, if that is kept."""
        ids = np.asarray(sequence)
        self._kept = [
            replace(read, written=tuple(tokens)) if np.array_equal(read.ids, ids) else read
            for read in self._kept
        ]

    def guess(self, sequence: Sequence[int], most: int) -> Guess:
        """What was written after the kept sequence that shares the longest beginning with it.

        After a guess that was wrong there are none for sequences that share no more than that
        one did, until one is right: other questions with the same instructions cost little.

        Args:
            sequence: token ids.
            most: tokens of the guess.
        """
        known = self.known(sequence)
        if known is None or known.tokens <= self._misled * len(sequence):
            return Guess()
        return Guess(known.read.written[:most], known.tokens / len(sequence))

    def learn(self, guess: Guess, written: Sequence[int]) -> None:
        """What was written where this was guessed."""
        if guess.tokens:
            self._misled = 0.0 if guess.tokens[0] in written[:1] else guess.share


def beginnings(known: Sequence[Known]) -> Cache:
    """A cache with a row for each, right-padded to the longest."""
    cache = new_cache()
    for i in range(len(known[0].read.layers)):
        cut = [[part[:, : one.tokens] for part in one.read.layers[i]] for one in known]
        keys, values = map(_side_by_side, zip(*cut, strict=True))
        cache.update(keys, values, i)
    return cache


def _side_by_side(
    rows: Sequence[Float[Tensor, "heads _ size"]],
) -> Float[Tensor, "rows heads tokens size"]:
    """Right-padded to the longest; one alone is not copied."""
    if len(rows) == 1:
        return rows[0][None]
    tokens_first = [row.transpose(0, 1) for row in rows]
    return pad_sequence(tokens_first, batch_first=True).transpose(1, 2)


def _layers(cache: Cache) -> list[Any]:
    return cache.layers


def _own(
    part: Float[Tensor, "rows heads places size"], row: int, tokens: int
) -> Float[Tensor, "heads tokens size"]:
    """The first places of a row: a copy, where much else would be held on to with it.

    That is other rows, or queries that were computed in one tensor with the keys. A cache is
    never written to in place: what grows out of it is a copy.
    """
    mine = part[row, :, :tokens]
    return mine if mine.untyped_storage().nbytes() <= SPARE * mine.nbytes else mine.clone()


def _shared(one: Int[np.ndarray, " _"], other: Int[np.ndarray, " _"]) -> int:
    """Tokens that both begin with."""
    most = min(len(one), len(other))
    differ = np.flatnonzero(one[:most] != other[:most])
    return int(differ[0]) if len(differ) else most


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


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """Sequences laid over each other along their shared beginnings."""

    ids: Int[np.ndarray, " nodes"]
    """Token of each node; a parent comes before its children."""
    positions: Int[np.ndarray, " nodes"]
    """Place of each node in its sequences, from 0."""
    ancestors: Bool[np.ndarray, "nodes nodes"] | None
    """``[i, j]``: node j is node i or stands before it; None for a chain (then ``j <= i``)."""
    members: tuple[int, ...]
    """Which sequences of the call lie in this tree."""
    paths: tuple[Int[np.ndarray, " _"], ...]
    """For each member the nodes of its tokens, first to last."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class _Growing:
    """A tree to which sequences are added in sorted order."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    branches: list[tuple[int, list[int]]] = field(default_factory=list)
    """First node of each branch, and the path that leads to it."""

    def shared_with(self, sequence: Sequence[int]) -> int:
        """Tokens of `sequence` that the tree has already.

        In sorted order the longest match is with the sequence added last.
        """
        last = self.paths[-1]
        most = min(len(last), len(sequence))
        for i in range(most):
            if self.ids[last[i]] != sequence[i]:
                return i
        return most

    def add(self, member: int, sequence: Sequence[int], shared: int) -> "_Growing":
        before = self.paths[-1][:shared] if self.paths else []
        start, new = len(self.ids), len(sequence) - shared
        if new:
            self.branches.append((start, before))
        self.ids += sequence[shared:]
        self.positions += range(shared, len(sequence))
        self.members.append(member)
        self.paths.append([*before, *range(start, start + new)])
        return self

    def grown(self) -> TokenTree:
        return TokenTree(
            np.array(self.ids, dtype=np.int64),
            np.array(self.positions, dtype=np.int64),
            self._ancestors() if len(self.branches) > 1 else None,
            tuple(self.members),
            tuple(np.array(path, dtype=np.int64) for path in self.paths),
        )

    def _ancestors(self) -> Bool[np.ndarray, "nodes nodes"]:
        size = len(self.ids)
        seen = np.zeros((size, size), dtype=bool)
        stops = [start for start, _ in self.branches[1:]] + [size]
        for (start, before), stop in zip(self.branches, stops, strict=True):
            seen[start:stop, before] = True
            seen[start:stop, start:stop] = np.tri(stop - start, dtype=bool)
        return seen


def plan(
    sequences: Sequence[Sequence[int]],
    *,
    batch_tokens: int,
    attention_scale: float,
    padding: float = 0.5,
    share: bool = True,
) -> list[list[TokenTree]]:
    """Lay the sequences into trees, and the trees into batches.

    Args:
        sequences: token ids, each sequence at least one token long.
        batch_tokens: most tokens in one batch, padding included; a longer sequence gets a
            batch of its own.
        attention_scale: tokens in a row at which attention costs as much as the linear layers.
        padding: most of a row that may be padding, 0 to 1.
        share: False gives every sequence a tree of its own.

    Returns:
        Batches of trees of similar size, longest first; each sequence is a member of one tree.
    """
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    trees = list(_trees(sequences, order, batch_tokens, attention_scale, share))
    batches: list[list[TokenTree]] = []
    for tree in sorted(trees, key=len, reverse=True):
        if batches and _fits(tree, batches[-1], batch_tokens, padding):
            batches[-1].append(tree)
        else:
            batches.append([tree])
    return batches


def _trees(
    sequences: Sequence[Sequence[int]],
    order: Sequence[int],
    most: int,
    scale: float,
    share: bool,
) -> Iterator[TokenTree]:
    growing: _Growing | None = None
    for i in order:
        sequence = list(sequences[i])
        if growing is not None and share:
            shared = growing.shared_with(sequence)
            size, longer = len(growing.ids), len(growing.ids) + len(sequence) - shared
            joined = _cost(longer, scale) - _cost(size, scale)
            if longer <= most and joined < _cost(len(sequence), scale):
                growing.add(i, sequence, shared)
                continue
        if growing is not None:
            yield growing.grown()
        growing = _Growing().add(i, sequence, 0)
    if growing is not None:
        yield growing.grown()


def _cost(tokens: int, scale: float) -> float:
    return tokens + tokens**2 / scale


def _fits(tree: TokenTree, batch: Sequence[TokenTree], most: int, padding: float) -> bool:
    longest = len(batch[0])
    return longest * (len(batch) + 1) <= most and len(tree) >= (1 - padding) * longest


def padded(rows: Sequence[Int[np.ndarray, " _"]]) -> Int[np.ndarray, "rows longest"]:
    """The rows side by side, with zeros behind the shorter ones."""
    side_by_side = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for i, row in enumerate(rows):
        side_by_side[i, : len(row)] = row
    return side_by_side


def visible(trees: Sequence[TokenTree]) -> Bool[np.ndarray, "trees nodes nodes"]:
    """Which node sees which, padded to the largest tree."""
    size = max(map(len, trees))
    sees = np.zeros((len(trees), size, size), dtype=bool)
    for i, tree in enumerate(trees):
        nodes = len(tree)
        sees[i, :nodes, :nodes] = (
            tree.ancestors if tree.ancestors is not None else np.tri(nodes, dtype=bool)
        )
    return sees


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


try:
    import torch
    from transformers import PreTrainedModel
except ImportError as error:
    raise missing_extra("transformers", "local") from error

log = logging.getLogger(__name__)

EXACT = frozenset(
    {
        "cohere",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "granite",
        "llama",
        "mistral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "smollm3",
    }
)
"""Families (`config.model_type`) whose shared prefixes the tests hold against their own passes."""
TOLERANCE = 1e-4
"""Mean difference of float32 log-probabilities that rounding explains."""


def best_engine(
    model: PreTrainedModel, *, batch_tokens: int, share: bool, memory: PrefixMemory | None = None
) -> Engine:
    """A `TreeEngine` if it gives this model's own log-probabilities, else a `PlainEngine`.

    Architectures differ in what they do with masks and positions handed in. Those in `EXACT`
    are known to be right; any other is tried on three short sequences, at the price of a few
    short passes and in float32 only, as half precision would drown the difference.
    """
    plain = PlainEngine(model, batch_tokens=batch_tokens)
    windows = Windows.of(model.config.get_text_config())
    # kernels other than these two do not read a mask of our making
    if windows is None or model.config._attn_implementation not in ("sdpa", "eager"):
        return _without_sharing(model, plain, "its kind of attention takes no masks of ours")
    trees = TreeEngine(model, windows, batch_tokens=batch_tokens, share=share, memory=memory)
    if model.config.model_type in EXACT:
        return trees
    if model.dtype != torch.float32:
        return _without_sharing(model, plain, "its family is not known; float32 could be tried")
    try:
        with torch.inference_mode():
            difference = _difference(trees, plain, model.config.get_text_config().vocab_size)
    except Exception as error:  # an architecture may refuse masks and positions in any way
        return _without_sharing(model, plain, str(error))
    if difference > TOLERANCE:
        why = f"they change its log-probabilities by {difference:.2g}"
        return _without_sharing(model, plain, why)
    return trees


def _without_sharing(model: PreTrainedModel, plain: PlainEngine, why: str) -> PlainEngine:
    log.warning("%s is run without shared prefixes: %s", type(model).__name__, why)
    return plain


def _difference(trees: TreeEngine, plain: PlainEngine, vocabulary: int) -> float:
    tokens = np.random.default_rng(0).integers(0, vocabulary, 24)
    start, a, b, c = (part.tolist() for part in np.split(tokens, [6, 11, 20]))
    sequences = [start + a, start + b, start[:3] + c]
    return max(_reading(trees, plain, sequences), _writing(trees, plain, sequences))


def _reading(trees: Engine, plain: Engine, sequences: list[Ids]) -> float:
    first = [1] * len(sequences)
    both = [
        {
            place: row
            for places, logits in engine.read(sequences, first)
            for place, row in zip(places, logits.float().log_softmax(-1), strict=True)
        }
        for engine in (trees, plain)
    ]
    return max(float((row - both[1][place]).abs().mean()) for place, row in both[0].items())


def _writing(trees: Engine, plain: Engine, sequences: list[Ids]) -> float:
    both = []
    for engine in (trees, plain):
        rows = {}
        for writing in engine.write(sequences):
            writing.step(torch.tensor(writing.members, device=writing.logits.device))
            rows |= dict(zip(writing.members, writing.logits.float().log_softmax(-1), strict=True))
        both.append(rows)
    return max(float((row - both[1][i]).abs().mean()) for i, row in both[0].items())
