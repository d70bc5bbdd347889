"""What a local model must do for `TransformersLLM`: read sequences, and write on from them.

Two ways stand behind it: `trees.TreeEngine` computes shared prefixes once, and
`plain.PlainEngine` takes any architecture, prompts of equal length at a time.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int

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
