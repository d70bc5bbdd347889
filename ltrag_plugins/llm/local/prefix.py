"""Plan which token sequences are computed together so that what they share is computed once.

Sequences that start alike form a `TokenTree`: each node is one token, and a token attends to
its ancestors alone, so a pass over the tree gives every sequence exactly what a pass of its
own would. One pass costs about ``n + n**2 / attention_scale`` for a tree of ``n`` tokens
(linear layers, and attention over the whole row, seen or not); a sequence joins a tree only
while that is cheaper than a pass of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Int


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
