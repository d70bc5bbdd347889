"""What can be set about a gate."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.metrics.answer import Correct
from ltrag_plugins.prompts.templates import DIRECT_PROMPT, DirectTemplate
from ltrag_plugins.settings import Count, Positive, Range, Settings, Share, Whole


@dataclass(frozen=True, slots=True)
class Targets(Settings):
    """What the threshold of a gate is set for, one of these. With none it is "always" where answers
    with retrieval are known, else a target_rate of 0.2 (the paper's)."""

    target_rate: Share | None = None
    """Share of questions that may retrieve."""
    target_accuracy: Share | Literal["always"] | None = None
    """The least share of right answers; "always": as many as always retrieving gives (of answers
    without accepted ones: 95 % agree with it), at the fewest retrievals."""
    budget: Share | None = None
    """What a question may cost with the gate, as a share of what it costs always retrieving."""

    def _check_together(self) -> None:
        if [self.target_rate, self.target_accuracy, self.budget].count(None) < 2:
            raise InvalidInput("give target_rate, target_accuracy or budget, not both")


@dataclass(frozen=True)
class GECESettings(Settings):
    """Settings of `GECEGate`; the defaults are what measured best on our data of what costs nothing
    beside the draft."""

    scorer: str = "fitted"
    """What the gate thresholds. "fitted": a model of all signals, learned on the calibration
    questions. "gece": the paper's formula, its METEOR estimated from the draft. Or the name of one
    plain signal (`ltrag_plugins.gece.SIGNALS`)."""
    tier: Literal["auto", "probabilities", "text"] = "auto"
    """What the gate may read of a draft. "auto": token probabilities if every draft has them.
    "text": neither those nor gradients."""
    gradients: Literal["auto", "always", "never"] = "never"
    """Whether the gate computes the gradient term at run time (local weights only; it takes half
    as long as a draft to one and a half times). "auto": only if it lifts the fit's AUROC for
    certain (a paired bootstrap); a model without gradients does without."""
    layers: Count = 4
    """Last layers whose feed-forward weights the gradients are of (paper: the last 4)."""
    agreement: Literal["dot", "cosine"] = "dot"
    """How gradients are compared (paper: dot product)."""
    quality: Literal["meteor", "chrf", "ter"] = "meteor"
    """The quality metric in eq. 2 (paper: METEOR; table 3 replaces it by chrF and TER)."""
    statistics: bool = True
    """Whether eq. 2 divides by the word frequency (table 3: "w/o Statistics")."""
    semantics: bool = True
    """Whether eq. 2 divides by the gradient agreement (table 3: "w/o Semantics")."""
    floor: Positive | None = 1e-9
    """Smallest denominator of eq. 2: a question whose gradient pulls against the mean, so that the
    product is below 0, has the largest values, as the paper's words have it (a smaller product is
    more long-tail). None: as printed, such a value is below 0, the smallest."""
    correct: Correct = "contains"
    """When a direct answer counts as right: it contains an accepted answer, equals one, or has
    token F1 of at least 0.5 with one."""
    prompt: DirectTemplate = DIRECT_PROMPT
    """Zero-shot prompt of the draft; must hold `{question}`."""
    max_tokens: Count = 24
    """Longest draft, in tokens."""
    stop: tuple[str, ...] = ("\n",)
    """The draft ends before the first of these."""
    samples: Whole = 0
    """Further drafts, sampled, whose agreement with the first is a signal; each costs a call.
    For models without token probabilities."""
    temperature: Positive = 0.7
    """Temperature of those samples, above 0."""
    calibration: Literal["platt", "isotonic"] = "platt"
    """How scores become probabilities; isotonic wants several hundred questions."""
    folds: Annotated[int, Range(2)] = 5
    """Cross-validation folds behind the report, the threshold and the calibration."""
    max_words: Count = 2000
    """Longest question, in words; a longer one raises `PromptTooLong`."""
    seed: Whole = 0
    """Seed of the folds, the bootstrap, the trees and the samples."""

    def _check_together(self) -> None:
        if self.tier == "text" and self.gradients == "always":
            raise InvalidInput("tier='text' reads no gradients; leave one of the two as it is")

    @classmethod
    def paper(cls) -> "GECESettings":
        """The formula of the paper as printed, with its gradients, instead of a fitted model."""
        return cls(scorer="gece", gradients="always", floor=None, calibration="isotonic")
