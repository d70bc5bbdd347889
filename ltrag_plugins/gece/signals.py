"""What can be read from a question and its draft, before any retrieval.

`SIGNALS` are the plain signals under one interface: each takes the evidence and gives one
number, **larger = the direct answer is more likely to fail**. They are the ingredients of the
fitted gate, and each can be a gate by itself (`GECESettings(scorer="product")`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from ltrag_plugins import uncertainty
from ltrag_plugins.errors import CalibrationError, NeedsGradients
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.frequency import WordFrequencies
from ltrag_plugins.types import Generation, GradientAgreement


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What one question left behind before any retrieval."""

    question: str
    draft: Generation
    samples: tuple[Generation, ...] = ()
    """Further drafts, sampled; for their agreement with the first."""
    vectors: Float[np.ndarray, "2 dim"] | None = None
    """Embeddings of the question and of the draft."""
    agreement: GradientAgreement | None = None
    """Of the draft's gradient with the mean gradient of the calibration questions."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Signals of the caller's own, by name; a gate fitted with them asks for them again."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A number read from the evidence; larger means more likely to fail."""

    read: Callable[[Evidence, WordFrequencies], float]
    tier: Tier
    """The least that has to be at hand."""
    about: str
    """What a person reads beside the number."""


def disagreement(draft: Generation, samples: tuple[Generation, ...]) -> float:
    """One minus the mean token F1 of the samples with the draft, in [0, 1]."""
    if not samples:
        raise CalibrationError(
            "disagreement needs sampled drafts; set GECESettings(samples=3) or more"
        )
    shared = (uncertainty.word_overlap(draft.text, s.text) for s in samples)
    return 1.0 - math.fsum(shared) / len(samples)


def _dot(evidence: Evidence, _: WordFrequencies) -> float:
    return -_agreement(evidence).dot


def _cosine(evidence: Evidence, _: WordFrequencies) -> float:
    cosine = _agreement(evidence).cosine
    if cosine is None:
        raise NeedsGradients("the cosine was not computed; set GECESettings(agreement='cosine')")
    return -cosine


def _agreement(evidence: Evidence) -> GradientAgreement:
    if evidence.agreement is None:
        raise NeedsGradients(
            "no gradient term was computed; use a local model and GECESettings(gradients='always')"
        )
    return evidence.agreement


def _of_draft(
    function: Callable[[Generation], float], sign: float
) -> Callable[[Evidence, WordFrequencies], float]:
    return lambda evidence, _: sign * function(evidence.draft)


SIGNALS: dict[str, Signal] = {
    "mean_logprob": Signal(
        _of_draft(uncertainty.mean_logprob, -1.0),
        "probabilities",
        "mean negative log-probability of the draft's tokens",
    ),
    "mean_probability": Signal(
        _of_draft(uncertainty.mean_probability, -1.0),
        "probabilities",
        "mean probability of the draft's tokens, negated",
    ),
    "product": Signal(
        _of_draft(uncertainty.product_uncertainty, 1.0),
        "probabilities",
        "one minus the product of the draft's token probabilities",
    ),
    "least_probability": Signal(
        _of_draft(uncertainty.least_probability, -1.0),
        "probabilities",
        "probability of the draft's least likely token, negated",
    ),
    "entropy": Signal(
        _of_draft(uncertainty.mean_entropy, 1.0),
        "probabilities",
        "mean entropy of the next-token distributions",
    ),
    "margin": Signal(
        _of_draft(uncertainty.mean_margin, -1.0),
        "probabilities",
        "mean lead of the likeliest token over the next, negated",
    ),
    "word_frequency": Signal(
        lambda evidence, frequencies: -math.log10(frequencies.mean(evidence.question)),
        "text",
        "rarity of the question's words (minus log10 of their mean frequency)",
    ),
    "rarest_word": Signal(
        lambda evidence, frequencies: max(frequencies.rarities(evidence.question), default=9.0),
        "text",
        "rarity of the question's rarest word (minus log10 of its frequency)",
    ),
    "disagreement": Signal(
        lambda evidence, _: disagreement(evidence.draft, evidence.samples),
        "text",
        "disagreement among sampled drafts",
    ),
    "gradient_dot": Signal(_dot, "gradients", "gradient agreement (dot product), negated"),
    "gradient_cosine": Signal(_cosine, "gradients", "gradient agreement (cosine), negated"),
}
"""The plain signals by name."""
