"""What a training history adds up to, held against a fixed number of shots.

PromptPG asks once for each question, with K shots; DUR asks with 0, 1, ..., k_i of them. The
paper compares the two by the shots in all prompts together.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", section 6.5 and figure 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ltrag_plugins.dur.training import Batch


@dataclass(frozen=True, slots=True)
class Total:
    """Some batches together."""

    batches: int
    questions: int
    """Asked about; a question counts once for each of its batches."""
    reward: float
    """Mean reward of the last rungs, over questions."""
    shots: int
    """In all prompts together."""
    fixed_shots: int
    """In the prompts of a method that asks about the same questions once each, with K shots."""
    deepest: float
    """Mean shots in the longest prompt of a question."""
    calls: int
    tokens: int | None
    """None: the model does not tell."""
    turned_easy: int | None
    """Questions that were right without shots, and did not stay so; None: not asked."""
    turned_hard: int | None
    """Questions that were wrong without shots, and did not stay so."""

    @property
    def share(self) -> float:
        """Shots for each shot of the fixed method."""
        return self.shots / self.fixed_shots


def total(batches: Sequence[Batch], *, shots: int) -> Total:
    """At least one batch, added up.

    Args:
        shots: K.
    """
    questions = sum(batch.questions for batch in batches)
    return Total(
        batches=len(batches),
        questions=questions,
        reward=sum(batch.reward * batch.questions for batch in batches) / questions,
        shots=sum(batch.shots for batch in batches),
        fixed_shots=shots * questions,
        deepest=sum(batch.deepest for batch in batches) / questions,
        calls=sum(batch.calls for batch in batches),
        tokens=_sum([batch.tokens for batch in batches]),
        turned_easy=_sum([batch.turned_easy for batch in batches]),
        turned_hard=_sum([batch.turned_hard for batch in batches]),
    )


def by_epoch(history: Sequence[Batch], *, shots: int) -> list[Total]:
    """The total of each epoch, in order; the last may be cut short."""
    epochs = groupby(history, key=lambda batch: batch.epoch)
    return [total(list(batches), shots=shots) for _, batches in epochs]


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
