"""What can be set about a gate."""

from dataclasses import dataclass
from typing import Literal, get_args

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.metrics.answer import Correct
from ltrag_plugins.prompts.templates import DIRECT_PROMPT

Quality = Literal["meteor", "chrf", "ter"]
_TierChoice = Literal["auto", "probabilities", "text"]
_Gradients = Literal["auto", "always", "never"]
_Agreement = Literal["dot", "cosine"]
_Calibration = Literal["platt", "isotonic"]


@dataclass(frozen=True)
class GECESettings:
    """Settings of `GECEGate`; the defaults are what measured best on our data."""

    scorer: str = "fitted"
    """What the gate thresholds. "fitted": a model of all signals, learned on the calibration
    questions. "gece": the paper's formula, its METEOR estimated from the draft. Or the name of one
    plain signal (`ltrag_plugins.gece.SIGNALS`)."""
    tier: _TierChoice = "auto"
    """What the gate may read of a draft. "auto": token probabilities if every draft has them.
    "text": neither those nor gradients."""
    gradients: _Gradients = "never"
    """Whether the gate computes the gradient term at run time (local weights only; it costs two
    to five times a draft). "auto": only if it lifts the fit's AUROC above the whole bootstrap
    interval of the gate without it; a model without gradients does without."""
    layers: int = 4
    """Last layers whose feed-forward weights the gradients are of (paper: the last 4)."""
    agreement: _Agreement = "dot"
    """How gradients are compared (paper: dot product)."""
    quality: Quality = "meteor"
    """The quality metric in eq. 2 (paper: METEOR; table 3 replaces it by chrF and TER)."""
    statistics: bool = True
    """Whether eq. 2 divides by the word frequency (table 3: "w/o Statistics")."""
    semantics: bool = True
    """Whether eq. 2 divides by the gradient agreement (table 3: "w/o Semantics")."""
    floor: float = 1e-9
    """Smallest denominator of eq. 2; a product at or below 0 becomes this."""
    correct: Correct = "contains"
    """When a direct answer counts as right: it contains an accepted answer, equals one, or has
    token F1 of at least 0.5 with one."""
    prompt: str = DIRECT_PROMPT
    """Zero-shot prompt of the draft; must hold `{question}`."""
    max_tokens: int = 24
    """Longest draft, in tokens."""
    stop: tuple[str, ...] = ("\n",)
    """The draft ends before the first of these."""
    samples: int = 0
    """Further drafts, sampled, whose agreement with the first is a signal; each costs a call.
    For models without token probabilities."""
    temperature: float = 0.7
    """Temperature of those samples, above 0."""
    calibration: _Calibration = "platt"
    """How scores become probabilities; isotonic wants several hundred questions."""
    folds: int = 5
    """Cross-validation folds behind the report, the threshold and the calibration."""
    max_words: int = 2000
    """Longest question, in words; a longer one raises `PromptTooLong`."""
    seed: int = 0
    """Seed of the folds, the bootstrap, the trees and the samples."""

    def __post_init__(self) -> None:
        if "{question}" not in self.prompt:
            raise InvalidInput(f"prompt must hold '{{question}}', got {self.prompt!r}")
        _one_of("tier", self.tier, _TierChoice)
        _one_of("gradients", self.gradients, _Gradients)
        _one_of("agreement", self.agreement, _Agreement)
        _one_of("quality", self.quality, Quality)
        _one_of("correct", self.correct, Correct)
        _one_of("calibration", self.calibration, _Calibration)
        _at_least("layers", self.layers, 1)
        _at_least("max_tokens", self.max_tokens, 1)
        _at_least("samples", self.samples, 0)
        _at_least("folds", self.folds, 2)
        _at_least("max_words", self.max_words, 1)
        if self.tier == "text" and self.gradients == "always":
            raise InvalidInput("tier='text' reads no gradients; leave one of the two as it is")
        if not (self.floor > 0 and self.temperature > 0):
            raise InvalidInput(
                f"floor and temperature must be above 0, got {self.floor} and {self.temperature}"
            )

    @classmethod
    def paper(cls) -> "GECESettings":
        """The formula of the paper with its gradients, instead of a fitted model."""
        return cls(scorer="gece", gradients="always", calibration="isotonic")


def _one_of(name: str, value: str, choice: object) -> None:
    if value not in get_args(choice):
        raise InvalidInput(f"{name} must be one of {', '.join(get_args(choice))}; got {value!r}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidInput(f"{name} must be at least {least}, got {value}")
