"""Run a causal model over token sequences; what they share at their beginnings is computed once.

Sequences that start alike form a tree of tokens. A 4-D attention mask lets a token see its
ancestors alone, and position ids count along each path, so that one pass gives every sequence what
a pass of its own would. To write on, each takes its path's keys and values into a row of its own. A
pass costs about ``n + n**2 / attention_scale`` for ``n`` tokens (linear layers, and attention over
the whole row, seen or not); a sequence joins a tree only while that is cheaper than its own pass.
Other models go the plain way: sequences of equal length together, so that nothing is masked.

Of both engines ``read`` gives the scores that predict the tokens of each sequence; ``write`` gives
members of the call with a generator of their next tokens' scores, one row each, which is sent the
rows that go on, and a token for each of these.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from operator import eq
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.errors import missing_extra

try:
    import torch
    from torch import Tensor
    from torch.nn.utils.rnn import pad_sequence
    from transformers import DynamicCache, PreTrainedModel
except ImportError as error:
    raise missing_extra("torch and transformers", "local") from error

_Ids = Sequence[int]
"""Token ids of one sequence."""
_Place = tuple[int, int]
"""A token to predict: which sequence of the call, and where in it."""
_Steps = Generator[Float[Tensor, "rows vocabulary"], tuple[Sequence[int], Int[Tensor, " kept"]]]

_EXACT = frozenset((
    "apertus", "arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2",
    "gemma3_text", "glm", "glm4", "gpt2", "gpt_neox", "gpt_oss", "granite", "granitemoe",
    "helium", "llama", "ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo",
    "olmo2", "olmo3", "opt", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2", "vaultgemma",
))  # fmt: skip
"""Families (`config.model_type`) whose shared prefixes the tests hold against their own passes."""

_LOGITS_AT_ONCE = 2**24  # most numbers held for logits at a time while reading
_ATTENTION_SCALE = 3.0  # tokens, in hidden sizes, at which attention costs as much as the rest
_PADDING_READING, _PADDING_WRITING = 0.25, 0.5  # most of a row; rows side by side pay in writing
_WRITING_FACTOR = 4  # rows being written hold this many times the tokens of a batch being read
_WRITTEN_TOGETHER = 8192  # tokens, padding too, to which rows of several batches are joined

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _TokenTree:
    """Sequences laid over each other along their shared beginnings."""

    ids: list[int] = field(default_factory=list)
    """Token of each node; a parent comes before its children."""
    positions: list[int] = field(default_factory=list)
    """Place of each node in its sequences, from 0."""
    before: list[int] = field(default_factory=list)
    """The parent of each node; -1 for a first one."""
    paths: dict[int, list[int]] = field(default_factory=dict)
    """For each sequence of the call that lies here the nodes of its tokens, first to last."""

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, member: int, sequence: _Ids, shared: _Ids) -> None:
        """Lay one more sequence into the tree, whose first tokens are the `shared` nodes."""
        same, size = len(shared), len(self)
        path = self.paths[member] = [*shared, *range(size, size + len(sequence) - same)]
        self.before += [-1, *path][same:-1]
        self.ids += sequence[same:]
        self.positions += range(same, len(sequence))

    def visible(self) -> Bool[np.ndarray, "nodes nodes"]:
        """``[i, j]``: node j is node i or stands before it."""
        seen = np.eye(len(self), dtype=bool)
        for node, before in enumerate(self.before):
            if before >= 0:
                seen[node] |= seen[before]
        return seen


def _plan(
    sequences: Sequence[_Ids], batch_tokens: int, attention_scale: float, padding: float = 0.5
) -> list[list[_TokenTree]]:
    """Lay the sequences into trees, and the trees into batches of similar size, longest first.

    Args:
        sequences: token ids, each sequence at least one token long.
        batch_tokens: most tokens in one batch, padding included; a longer sequence is one alone.
        attention_scale: tokens in a row at which attention costs as much as the linear layers.
        padding: most of a row that may be padding, 0 to 1.
    """

    def cost(tokens: int) -> float:
        return tokens + tokens**2 / attention_scale

    trees, before, path = list[_TokenTree](), (), ()
    for i in sorted(range(len(sequences)), key=lambda i: tuple(sequences[i])):
        # in sorted order the longest match with a tree is with the sequence added last
        sequence, size = sequences[i], len(trees[-1]) if trees else 0
        shared = path[: sum(takewhile(bool, map(eq, before, sequence)))]
        longer = size + len(sequence) - len(shared)
        if longer > batch_tokens or cost(longer) - cost(size) >= cost(len(sequence)):
            trees.append(_TokenTree())
            shared = ()
        trees[-1].add(i, sequence, shared)
        before, path = sequence, trees[-1].paths[i]
    batches = list[list[_TokenTree]]()
    for tree in sorted(trees, key=len, reverse=True):
        longest = len(batches[-1][0]) if batches else 0
        fits = batches and longest * (len(batches[-1]) + 1) <= batch_tokens
        if not fits or len(tree) < (1 - padding) * longest:
            batches.append([])
        batches[-1].append(tree)
    return batches


def _padded(rows: Sequence[Sequence[int]]) -> Int[Tensor, "rows longest"]:
    """The rows side by side, with zeros behind the shorter ones."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


class _Read(NamedTuple):
    """Sequences of a batch that was read."""

    members: Sequence[int]
    cache: DynamicCache
    at: Sequence[int]
    """The row of the batch in which each lies."""
    paths: Sequence[_Ids]
    """The nodes of its tokens there."""
    logits: Float[Tensor, "members vocabulary"]
    """Of its next token."""
    alone: bool
    """Whether it is all of the batch."""


class TreeEngine:
    """The exact way for models of full and sliding attention."""

    def __init__(self, model: PreTrainedModel, *, batch_tokens: int) -> None:
        config = model.config.get_text_config()
        self._device, self._dtype = model.device, model.dtype
        self._base, self._batch_tokens = model.base_model, batch_tokens
        window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", ())
        # tokens that each kind of layer sees, itself included (None: all of them)
        self._windows: dict[str, int | None] = {
            kind: window if kind in ("sliding_attention", "all") else None
            for kind in set(kinds or ["all"])
        }
        # a layer's matrices cost about 24 h**2 a token, attention about 4 h for each pair
        self._attention_scale = _ATTENTION_SCALE * config.hidden_size
        self._head: Any = model.get_output_embeddings()
        self._times = getattr(config, "logit_scale", None) or 1.0
        self._times /= getattr(config, "logits_scaling", None) or 1.0
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)
        self._vocabulary: int = config.vocab_size

    def write(self, sequences: Sequence[_Ids]) -> Iterator[tuple[list[int], _Steps]]:
        """The sequences, read and ready to be written on; each in one row of one writing."""
        held, waiting = _WRITING_FACTOR * self._batch_tokens, list[_Read]()
        for hidden, cache, rows in self._read(sequences, _PADDING_WRITING, DynamicCache):
            most = max(1, held // max(len(path) for _, _, path in rows))
            for start in range(0, len(rows), most):
                members, at, paths = zip(*rows[start : start + most], strict=True)
                logits = self._logits(hidden[list(at), [path[-1] for path in paths]])
                part = _Read(members, cache, at, paths, logits, len(rows) == 1)
                lengths = [len(path) for one in (*waiting, part) for path in one.paths]
                if waiting and len(lengths) * max(lengths) > min(held, _WRITTEN_TOGETHER):
                    yield self._together(waiting)
                waiting.append(part)
        if waiting:
            yield self._together(waiting)

    def read(
        self, sequences: Sequence[_Ids], first: Sequence[int]
    ) -> Iterator[tuple[list[_Place], Float[Tensor, "places vocabulary"]]]:
        """Scores that predict the tokens of each sequence from its place ``first`` (>= 1) on. The
        places of a sequence come in order."""
        # the last token is predicted, and predicts nothing that is asked for
        shorter = [sequence[:-1] for sequence in sequences]
        for hidden, _, rows in self._read(shorter, _PADDING_READING, lambda: None):
            wanted = [
                (row, path[place - 1], (member, place))
                for member, row, path in rows
                for place in range(first[member], len(sequences[member]))
            ]
            size = max(1, _LOGITS_AT_ONCE // self._vocabulary)
            for start in range(0, len(wanted), size):
                at, nodes, places = zip(*wanted[start : start + size], strict=True)
                yield list(places), self._logits(hidden[list(at), list(nodes)])

    def _read(
        self, sequences: Sequence[_Ids], padding: float, new_cache: Callable[[], Any]
    ) -> Iterator[
        tuple[Float[Tensor, "trees nodes hidden"], Any, list[tuple[int, int, list[int]]]]
    ]:
        """Of each batch the last hidden states, the cache, and (sequence, row, path) of each."""
        for batch in _plan(sequences, self._batch_tokens, self._attention_scale, padding):
            ids, cache = _padded([tree.ids for tree in batch]).to(self._device), new_cache()
            positions = torch.arange(ids.shape[1], device=self._device).expand(ids.shape)
            masks = None
            # where none branches the causal mask is enough: padding comes after all that is read
            if any(max(map(len, tree.paths.values())) < len(tree) for tree in batch):
                positions = _padded([tree.positions for tree in batch]).to(self._device)
                visible = torch.zeros((*ids.shape, ids.shape[1]), dtype=torch.bool)
                for row, tree in enumerate(batch):
                    visible[row, : len(tree), : len(tree)] = torch.from_numpy(tree.visible())
                masks = self._masks(visible.to(self._device), positions, positions)
            placed = ((row, one) for row, tree in enumerate(batch) for one in tree.paths.items())
            rows = [(member, row, path) for row, (member, path) in placed]
            yield self._forward(ids, positions, masks, cache), cache, rows

    def _together(self, parts: list[_Read]) -> tuple[list[int], _Steps]:
        """The members of all parts, and their writing; takes the parts out of the list."""
        lengths = [len(path) for part in parts for path in part.paths]
        first, *others = parts
        cache = first.cache if first.alone and not others else _gathered(parts)
        logits = torch.cat([part.logits for part in parts])
        members = [member for part in parts for member in part.members]
        parts.clear()  # their caches can go
        return members, self._steps(cache, lengths, logits)

    def _steps(
        self, cache: DynamicCache, read: Sequence[int], logits: Float[Tensor, "rows vocabulary"]
    ) -> _Steps:
        """Write on rows of `read` tokens, padded on the right in the cache."""
        lengths = torch.tensor(read, device=self._device)[:, None]
        places = torch.arange(max(read), device=self._device)[None]
        keys = torch.where(places < lengths, places, -1)
        while True:
            rows, chosen = yield logits
            if len(rows) < len(lengths):
                index = torch.tensor(rows, device=self._device)
                cache.batch_select_indices(index)
                lengths, keys = lengths[index], keys[index]
            keys = torch.cat([keys, lengths], dim=1)
            masks = self._masks((keys >= 0)[:, None], lengths, keys)
            logits = self._logits(self._forward(chosen[:, None], lengths, masks, cache)[:, 0])
            lengths = lengths + 1

    def _forward(
        self, ids: Tensor, positions: Tensor, masks: Any, cache: Any
    ) -> Float[Tensor, "rows queries hidden"]:
        """The last hidden states; `cache` grows by the queries."""
        read = {"input_ids": ids, "position_ids": positions, "attention_mask": masks}
        kept = {"past_key_values": cache, "use_cache": cache is not None}
        return self._base(**read, **kept).last_hidden_state

    def _logits(self, hidden: Float[Tensor, "places hidden"]) -> Float[Tensor, "places vocabulary"]:
        """As the model's own forward does it, at the places that are read alone."""
        logits = self._head(hidden) * self._times
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits

    def _masks(
        self,
        visible: Bool[Tensor, "rows queries keys"],
        queries: Int[Tensor, "rows queries"],
        keys: Int[Tensor, "rows keys"],
    ) -> Tensor | dict[str, Tensor]:
        """For each kind of layer: 0 where a query sees a key, the least number elsewhere."""
        distance = queries[:, :, None] - keys[:, None, :]
        masks, least = {}, torch.finfo(self._dtype).min  # softmax of a row of -inf is NaN
        for kind, window in self._windows.items():
            seen = visible if window is None else visible & (distance < window)
            mask = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
            masks[kind] = mask.masked_fill_(~seen, least)[:, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _gathered(parts: Sequence[_Read]) -> DynamicCache:
    """Keys and values along each path, a row each, padded on the right to the longest."""
    own, nodes = DynamicCache(), _padded([path for part in parts for path in part.paths])
    places = nodes.split([len(part.paths) for part in parts])
    rows = [torch.tensor(part.at)[:, None] for part in parts]
    each: list[list[Any]] = [part.cache.layers for part in parts]
    for i, layers in enumerate(zip(*each, strict=True)):
        found = [*zip(layers, rows, places, strict=True)]
        keys = [layer.keys.transpose(1, 2)[at, path].transpose(1, 2) for layer, at, path in found]
        values = [
            layer.values.transpose(1, 2)[at, path].transpose(1, 2) for layer, at, path in found
        ]
        own.update(torch.cat(keys), torch.cat(values), i)
    return own


class PlainEngine:
    """The model's own forward pass and cache, with the methods of `TreeEngine`."""

    def __init__(self, model: PreTrainedModel, *, batch_tokens: int) -> None:
        self._model, self._batch_tokens = model, batch_tokens

    def write(self, sequences: Sequence[_Ids]) -> Iterator[tuple[list[int], _Steps]]:
        """See `TreeEngine`."""
        return ((members, self._steps(ids)) for members, ids in self._equal(sequences))

    def read(
        self, sequences: Sequence[_Ids], first: Sequence[int]
    ) -> Iterator[tuple[list[_Place], Float[Tensor, "places vocabulary"]]]:
        """See `TreeEngine`."""
        for members, ids in self._equal(sequences):
            length = ids.shape[1]
            last = max(length - first[i] for i in members) + 1
            out = self._model(input_ids=ids, use_cache=False, logits_to_keep=last)
            for logits, i in zip(out.logits, members, strict=True):
                places = [(i, place) for place in range(first[i], length)]
                yield places, logits[first[i] - 1 - length : -1]

    def _equal(
        self, sequences: Sequence[_Ids]
    ) -> Iterator[tuple[list[int], Int[Tensor, "rows tokens"]]]:
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        for length, group in groupby(order, key=lambda i: len(sequences[i])):
            members, size = list(group), max(1, self._batch_tokens // length)
            for start in range(0, len(members), size):
                some = members[start : start + size]
                ids = [list(sequences[i]) for i in some]
                yield some, torch.tensor(ids, device=self._model.device)

    def _steps(self, ids: Int[Tensor, "rows tokens"]) -> _Steps:
        cache, live = None, torch.arange(len(ids), device=ids.device)
        while True:
            read = ids if cache is None else ids[:, -1:]
            out = self._model(read, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.get("past_key_values")
            rows, chosen = yield out.logits[live, -1]
            # rows that are no longer wanted stay in the cache, which not every model lets us cut
            live, more = live[torch.tensor(rows, device=ids.device)], ids[:, -1:].clone()
            more[live, 0] = chosen
            ids = torch.cat([ids, more], dim=1)


def best_engine(model: PreTrainedModel, *, batch_tokens: int) -> TreeEngine | PlainEngine:
    """A `TreeEngine` if it gives this model's own log-probabilities, else a `PlainEngine`."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    known = kinds <= {"full_attention", "sliding_attention"}
    # kernels other than these two do not read a mask of our making
    masks = model.config._attn_implementation in ("sdpa", "eager")
    if known and masks and model.config.model_type in _EXACT:
        return TreeEngine(model, batch_tokens=batch_tokens)
    why = "its attention is not known to take masks of ours"
    _log.warning("%s is run without shared prefixes: %s", type(model).__name__, why)
    return PlainEngine(model, batch_tokens=batch_tokens)
