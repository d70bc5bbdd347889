"""What a gate says about one question."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ltrag_plugins.types import Generation

Tier = Literal["gradients", "probabilities", "text"]
"""What a gate reads: local weights, token probabilities, or nothing but text."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to retrieve for one question, and why."""

    question: str
    retrieve: bool
    score: float
    """What is held against the gate's threshold; larger means more long-tail."""
    probability: float
    """Calibrated probability, 0 to 1, that the direct answer fails."""
    tier: Tier
    reason: str
    """One sentence for a person."""
    draft: Generation = field(repr=False)
    """The zero-shot answer the decision was read from: on the branch without retrieval, it
    is the answer."""
    ingredients: Mapping[str, float] = field(default_factory=dict, repr=False)
    """The signals behind the score, by name."""

    @property
    def answer(self) -> str:
        """The draft's text without surrounding white space."""
        return self.draft.text.strip()

    def as_metadata(self) -> dict[str, Any]:
        """The decision as plain values for traces, run metadata and JSON (without the draft)."""
        return {
            "retrieve": self.retrieve,
            "score": self.score,
            "probability": self.probability,
            "tier": self.tier,
            "reason": self.reason,
            "ingredients": dict(self.ingredients),
        }
