"""Keys and values of prompts that were read, for the next prompt that begins like one of them.

What the prompts of one call share is planned in `prefix`; this is for calls that follow each
other: the rounds of a calibration about the same documents, the turns of a chat. What was
written after them is kept too, as a guess of what comes after the next: many a round repeats
the answer of the round before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.llm.local.caches import new_cache

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
