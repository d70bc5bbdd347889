"""Run a causal model over token sequences; what they share at their beginnings is computed once.

Sequences that start alike form a `_TokenTree`: each node is one token. A 4-D attention mask lets a
token see its ancestors alone, and position ids count along each path, so that one pass over the
tree gives every sequence exactly what a pass of its own would. To write on, every sequence takes
its path's keys and values out of the tree's cache into a row of its own. A pass costs about
``n + n**2 / attention_scale`` for a tree of ``n`` tokens (linear layers, and attention over the
whole row, seen or not); a sequence joins a tree only while that is cheaper than a pass of its own.

Recurrent layers, ALiBi, chunked attention and attention kernels without custom masks go the plain
way: sequences of equal length together, so that nothing is padded or masked.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.errors import missing_extra

try:
    import torch
    from torch import Tensor
    from transformers import Cache, DynamicCache, PretrainedConfig, PreTrainedModel
except ImportError as error:
    raise missing_extra("torch and transformers", "local") from error

_Ids = Sequence[int]
"""Token ids of one sequence."""
Place = tuple[int, int]
"""A token to predict: which sequence of the call, and where in it."""

EXACT = frozenset((
    "cohere", "gemma", "gemma2", "gemma3_text", "gpt2", "granite", "llama", "mistral", "olmo2",
    "phi3", "qwen2", "qwen3", "smollm3",
))  # fmt: skip
"""Families (`config.model_type`) whose shared prefixes the tests hold against their own passes."""

_TOLERANCE = 1e-4  # mean difference of float32 log-probabilities that rounding explains
_LOGITS_AT_ONCE = 2**24  # most numbers held for logits at a time while reading
_ATTENTION_SCALE = 3.0  # tokens, in hidden sizes, at which attention costs as much as the rest
_PADDING_READING, _PADDING_WRITING = 0.25, 0.5  # most of a row; rows side by side pay in writing
_WRITING_FACTOR = 4  # rows being written hold this many times the tokens of a batch being read

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _TokenTree:
    """Sequences laid over each other along their shared beginnings."""

    ids: Int[np.ndarray, " nodes"]
    """Token of each node; a parent comes before its children."""
    positions: Int[np.ndarray, " nodes"]
    """Place of each node in its sequences, from 0."""
    members: tuple[int, ...]
    """Which sequences of the call lie in this tree."""
    paths: tuple[Int[np.ndarray, " _"], ...]
    """For each member the nodes of its tokens, first to last."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_chain(self) -> bool:
        """Whether it never branches, so that each node sees all before it."""
        return max(map(len, self.paths)) == len(self)

    def visible(self) -> Bool[np.ndarray, "nodes nodes"]:
        """``[i, j]``: node j is node i or stands before it."""
        seen, done = np.zeros((len(self), len(self)), dtype=bool), 0
        for path in self.paths:  # each adds the next nodes in a row, below those it shares
            before, end = path[path < done], max(done, int(path[-1]) + 1)
            seen[done:end, before] = True
            seen[done:end, done:end] = np.tri(end - done, dtype=bool)
            done = end
        return seen


def plan(
    sequences: Sequence[_Ids], *, batch_tokens: int, attention_scale: float, padding: float = 0.5
) -> list[list[_TokenTree]]:
    """Lay the sequences into trees, and the trees into batches.

    Args:
        sequences: token ids, each sequence at least one token long.
        batch_tokens: most tokens in one batch, padding included; a longer sequence gets a
            batch of its own.
        attention_scale: tokens in a row at which attention costs as much as the linear layers.
        padding: most of a row that may be padding, 0 to 1.

    Returns:
        Batches of trees of similar size, longest first; each sequence is a member of one tree.
    """
    groups = _together(sequences, batch_tokens, attention_scale)
    batches: list[list[_TokenTree]] = []
    for tree in sorted((_tree(sequences, group) for group in groups), key=len, reverse=True):
        longest = len(batches[-1][0]) if batches else 0
        fits = batches and longest * (len(batches[-1]) + 1) <= batch_tokens
        if fits and len(tree) >= (1 - padding) * longest:
            batches[-1].append(tree)
        else:
            batches.append([tree])
    return batches


def _together(sequences: Sequence[_Ids], most: int, scale: float) -> Iterator[list[int]]:
    def cost(tokens: int) -> float:
        return tokens + tokens**2 / scale

    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    group, size = order[:1], len(sequences[order[0]]) if order else 0
    for i in order[1:]:
        # in sorted order the longest match with a tree is with the sequence added last
        own, shared = len(sequences[i]), _shared(sequences[group[-1]], sequences[i])
        longer = size + own - shared
        if longer <= most and cost(longer) - cost(size) < cost(own):
            group, size = [*group, i], longer
        else:
            yield group
            group, size = [i], own
    yield from [group] * bool(group)


def _tree(sequences: Sequence[_Ids], members: Sequence[int]) -> _TokenTree:
    ids, positions, paths = list[int](), list[int](), list[list[int]]()
    before: _Ids = ()
    for i in members:
        sequence = sequences[i]
        same = _shared(before, sequence)
        new = range(len(ids), len(ids) + len(sequence) - same)
        paths.append([*(paths[-1][:same] if paths else ()), *new])
        ids += sequence[same:]
        positions += range(same, len(sequence))
        before = sequence
    return _TokenTree(
        np.array(ids, dtype=np.int64),
        np.array(positions, dtype=np.int64),
        tuple(members),
        tuple(np.array(path, dtype=np.int64) for path in paths),
    )


def _shared(one: _Ids, other: _Ids) -> int:
    """Tokens that both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _padded(rows: Sequence[Int[np.ndarray, " _"]]) -> Int[Tensor, "rows longest"]:
    """The rows side by side, with zeros behind the shorter ones."""
    side_by_side = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for i, row in enumerate(rows):
        side_by_side[i, : len(row)] = row
    return torch.from_numpy(side_by_side)


class TreeEngine:
    """The exact way for models of full and sliding attention with position ids.

    Args:
        windows: how far back each kind of attention layer sees; see `_windows`.
    """

    def __init__(
        self, model: PreTrainedModel, windows: Mapping[str, int | None], *, batch_tokens: int
    ) -> None:
        config = model.config.get_text_config()
        self.device: torch.device = model.device
        self._base, self._dtype, self._windows = model.base_model, model.dtype, windows
        self._batch_tokens = batch_tokens
        # a layer's matrices cost about 24 h**2 a token, attention about 4 h for each pair
        self._attention_scale = _ATTENTION_SCALE * config.hidden_size
        self._head: Any = model.get_output_embeddings()
        self._times = getattr(config, "logit_scale", None) or 1.0
        self._times /= getattr(config, "logits_scaling", None) or 1.0
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)
        self._vocabulary: int = config.vocab_size

    def write(self, sequences: Sequence[_Ids]) -> Iterator["_TreeWriting"]:
        """The sequences, read and ready to be written on; each in one row of one writing."""
        for batch in self._plan(sequences, _PADDING_WRITING):
            hidden, cache = self._run(batch, DynamicCache())
            rows = _rows(batch)
            most = max(1, _WRITING_FACTOR * self._batch_tokens // max(len(p) for _, _, p in rows))
            for start in range(0, len(rows), most):
                members, at, paths = zip(*rows[start : start + most], strict=True)
                own = cache if len(rows) == 1 else _gathered(cache, at, paths)
                lengths = [len(path) for path in paths]
                logits = self._logits(hidden[list(at), [int(path[-1]) for path in paths]])
                yield _TreeWriting(self, list(members), own, lengths, logits)

    def read(
        self, sequences: Sequence[_Ids], first: Sequence[int]
    ) -> Iterator[tuple[list[Place], Float[Tensor, "places vocabulary"]]]:
        """Scores that predict the tokens of each sequence from its place ``first`` (>= 1) on."""
        # the last token is predicted, and predicts nothing that is asked for
        for batch in self._plan([sequence[:-1] for sequence in sequences], _PADDING_READING):
            hidden, _ = self._run(batch, None)
            wanted = [
                (row, int(path[place - 1]), (member, place))
                for member, row, path in _rows(batch)
                for place in range(first[member], len(sequences[member]))
            ]
            size = max(1, _LOGITS_AT_ONCE // self._vocabulary)
            for start in range(0, len(wanted), size):
                rows, nodes, places = zip(*wanted[start : start + size], strict=True)
                yield list(places), self._logits(hidden[list(rows), list(nodes)])

    def step(
        self,
        ids: Int[Tensor, "rows 1"],
        positions: Int[Tensor, "rows 1"],
        key_positions: Int[Tensor, "rows keys"],
        cache: Cache,
    ) -> Float[Tensor, "rows vocabulary"]:
        """Logits after one more token of each row; a key position below 0 is padding."""
        visible = (key_positions >= 0)[:, None]
        masks = self._masks(visible, positions, key_positions)
        return self._logits(self._forward(ids, positions, masks, cache)[:, 0])

    def _plan(self, sequences: Sequence[_Ids], padding: float) -> list[list[_TokenTree]]:
        return plan(
            sequences,
            batch_tokens=self._batch_tokens,
            attention_scale=self._attention_scale,
            padding=padding,
        )

    def _run(
        self, batch: Sequence[_TokenTree], cache: Any
    ) -> tuple[Float[Tensor, "trees nodes hidden"], Any]:
        ids = _padded([tree.ids for tree in batch]).to(self.device)
        if all(tree.is_chain for tree in batch):
            # right padding comes after everything that is read: the causal mask is enough
            positions = torch.arange(ids.shape[1], device=self.device).expand(ids.shape)
            return self._forward(ids, positions, None, cache), cache
        positions = _padded([tree.positions for tree in batch]).to(self.device)
        visible = torch.zeros((*ids.shape, ids.shape[1]), dtype=torch.bool)
        for row, tree in enumerate(batch):
            visible[row, : len(tree), : len(tree)] = torch.from_numpy(tree.visible())
        masks = self._masks(visible.to(self.device), positions, positions)
        return self._forward(ids, positions, masks, cache), cache

    def _forward(
        self, ids: Tensor, positions: Tensor, masks: Any, cache: Any
    ) -> Float[Tensor, "rows queries hidden"]:
        """The last hidden states; `cache` grows by the queries."""
        return self._base(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state

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
        masks = {}
        for kind, window in self._windows.items():
            seen = visible if window is None else visible & (distance < window)
            # not -inf: a padding row sees nothing, and softmax of -inf is NaN
            mask = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
            masks[kind] = mask.masked_fill_(~seen, torch.finfo(self._dtype).min)[:, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))


class _TreeWriting:
    """Rows that are written on, a token each at a time, each with a cache of its own.

    Args:
        members: which sequence of the call each row is.
        cache: of each row its sequence, padded on the right to the longest.
        lengths: tokens of each sequence.
        logits: scores of the next token of each row.
    """

    def __init__(
        self,
        engine: TreeEngine,
        members: list[int],
        cache: Cache,
        lengths: Sequence[int],
        logits: Float[Tensor, "rows vocabulary"],
    ) -> None:
        self.members, self.logits = members, logits
        self._engine, self._cache = engine, cache
        self._lengths = torch.tensor(lengths, device=engine.device)[:, None]
        places = torch.arange(max(lengths), device=engine.device)[None]
        self._key_positions = torch.where(places < self._lengths, places, -1)

    def step(self, chosen: Int[Tensor, " rows"]) -> None:
        """Append one token to each row and score the next."""
        positions, self._lengths = self._lengths, self._lengths + 1
        self._key_positions = torch.cat([self._key_positions, positions], dim=1)
        self.logits = self._engine.step(
            chosen[:, None], positions, self._key_positions, self._cache
        )

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone."""
        self.members = [self.members[row] for row in rows]
        index = torch.tensor(rows, device=self._engine.device)
        self._cache.batch_select_indices(index)
        self._lengths, self.logits = self._lengths[index], self.logits[index]
        self._key_positions = self._key_positions[index]


def _rows(batch: Sequence[_TokenTree]) -> list[tuple[int, int, Int[np.ndarray, " _"]]]:
    """Of each sequence its number, its tree's place in the batch and its path."""
    return [
        (member, row, path)
        for row, tree in enumerate(batch)
        for member, path in zip(tree.members, tree.paths, strict=True)
    ]


def _gathered(
    cache: DynamicCache, at: Sequence[int], paths: Sequence[Int[np.ndarray, " _"]]
) -> DynamicCache:
    """Keys and values along each path, a row each, padded on the right to the longest."""
    rows, nodes = torch.tensor(at)[:, None], _padded(paths)
    own = DynamicCache()
    layers: list[Any] = cache.layers
    for i, layer in enumerate(layers):
        keys, values = layer.keys.transpose(1, 2), layer.values.transpose(1, 2)
        own.update(keys[rows, nodes].transpose(1, 2), values[rows, nodes].transpose(1, 2), i)
    return own


def _windows(config: PretrainedConfig) -> Mapping[str, int | None] | None:
    """Tokens that each kind of attention layer sees, itself included (None: all of them).

    None where layers are of another kind.
    """
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds:
        return {"all": window}
    if not kinds <= {"full_attention", "sliding_attention"}:
        return None
    return {kind: window if kind == "sliding_attention" else None for kind in kinds}


class PlainEngine:
    """The model's own forward pass and cache, with the methods of `TreeEngine`."""

    def __init__(self, model: PreTrainedModel, *, batch_tokens: int) -> None:
        self._model, self._batch_tokens = model, batch_tokens

    def write(self, sequences: Sequence[_Ids]) -> Iterator["_PlainWriting"]:
        """See `TreeEngine`."""
        for members, ids in self._equal(sequences):
            yield _PlainWriting(self._model, members, ids)

    def read(
        self, sequences: Sequence[_Ids], first: Sequence[int]
    ) -> Iterator[tuple[list[Place], Float[Tensor, "places vocabulary"]]]:
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


class _PlainWriting:
    """Rows of equal length with the model's own cache; see `_TreeWriting`."""

    def __init__(
        self, model: PreTrainedModel, members: list[int], ids: Int[Tensor, "rows tokens"]
    ) -> None:
        self.members = members
        self._model, self._ids, self._cache = model, ids, None
        self._rows = torch.arange(len(members), device=ids.device)
        self._forward(ids)

    def step(self, chosen: Int[Tensor, " rows"]) -> None:
        """See `_TreeWriting`."""
        # rows that are no longer wanted stay in the cache, which not every model lets us cut
        ids = self._ids[:, -1:].clone()
        ids[self._rows, 0] = chosen
        self._ids = torch.cat([self._ids, ids], dim=1)
        self._forward(self._ids if self._cache is None else ids)

    def keep(self, rows: Sequence[int]) -> None:
        """See `_TreeWriting`."""
        self.members = [self.members[row] for row in rows]
        index = torch.tensor(rows, device=self._rows.device)
        self._rows, self.logits = self._rows[index], self.logits[index]

    def _forward(self, ids: Int[Tensor, "rows tokens"]) -> None:
        out = self._model(
            input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1
        )
        self._cache = out.get("past_key_values")
        self.logits = out.logits[self._rows, -1]


LocalEngine = TreeEngine | PlainEngine
Writing = _TreeWriting | _PlainWriting


def best_engine(model: PreTrainedModel, *, batch_tokens: int) -> LocalEngine:
    """A `TreeEngine` if it gives this model's own log-probabilities, else a `PlainEngine`.

    Architectures differ in what they do with masks and positions handed in. Those in `EXACT`
    are known to be right; any other is tried on three short sequences, at the price of a few
    short passes and in float32 only, as half precision would drown the difference.
    """
    plain = PlainEngine(model, batch_tokens=batch_tokens)
    windows = _windows(model.config.get_text_config())
    why = None
    # kernels other than these two do not read a mask of our making
    if windows is None or model.config._attn_implementation not in ("sdpa", "eager"):
        why = "its kind of attention takes no masks of ours"
    else:
        trees = TreeEngine(model, windows, batch_tokens=batch_tokens)
        if model.config.model_type in EXACT or not (why := _misfit(model, trees, plain)):
            return trees
    _log.warning("%s is run without shared prefixes: %s", type(model).__name__, why)
    return plain


def _misfit(model: PreTrainedModel, trees: TreeEngine, plain: PlainEngine) -> str | None:
    if model.dtype != torch.float32:
        return "its family is not known; float32 could be tried"
    vocabulary = model.config.get_text_config().vocab_size
    tokens = np.random.default_rng(0).integers(0, vocabulary, 24).tolist()
    sequences = [tokens[:11], tokens[:6] + tokens[11:20], tokens[:3] + tokens[20:]]
    try:
        with torch.inference_mode():
            apart = _logprobs(trees, sequences) - _logprobs(plain, sequences)
    except Exception as error:  # an architecture may refuse masks and positions in any way
        return str(error)
    difference = float(apart.abs().mean(-1).max())
    return (
        f"they change its log-probabilities by {difference:.2g}"
        if difference > _TOLERANCE
        else None
    )


def _logprobs(engine: LocalEngine, sequences: Sequence[_Ids]) -> Float[Tensor, "places vocabulary"]:
    """Of all tokens but the first, and of what follows one more token."""
    found: dict[Place, Tensor] = {}
    for places, logits in engine.read(sequences, [1] * len(sequences)):
        found |= dict(zip(places, logits, strict=True))
    for writing in engine.write(sequences):
        writing.step(torch.tensor(writing.members, device=writing.logits.device))
        found |= {(i, -1): row for i, row in zip(writing.members, writing.logits, strict=True)}
    return torch.stack([found[place] for place in sorted(found)]).float().log_softmax(-1)
