"""A fitted scale on disk: `sgic.json` (readable) and `sgic.safetensors` (numbers); no pickle.

Say so instead of answering, where an answer is too uncertain.

What is logged where a calibrator is made with rounds that no fit has tried.
"""

import logging
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from pathlib import Path

from ltrag_plugins import artifacts
from ltrag_plugins.calibration import Isotonic, Platt
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput, UnreadableArtifact
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.prompts import PromptTemplates
from ltrag_plugins.sgic.scale import ScoreScale, WrongnessCalibration
from ltrag_plugins.sgic.settings import SGICSettings

FORMAT = 1
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a fit hands to `calibrate`: settings, the scale of their estimator, and P(wrong).

    Raises:
        ArtifactMismatch: the parts do not belong together.
    """

    settings: SGICSettings
    scale: ScoreScale
    wrongness: WrongnessCalibration | None = None

    def __post_init__(self) -> None:
        self.scale.check(self.settings.estimator)
        if self.wrongness is not None:
            self.wrongness.check(self.scale)

    def remark_on(self, settings: SGICSettings) -> None:
        """Log a warning where P(wrong) was fitted with other settings than these."""
        if self.wrongness is not None and settings != self.settings:
            log.warning(
                "P(wrong) was fitted with the calibration's own settings; these are others, so "
                "take it as a guess, or fit with these"
            )

    def save(self, folder: str | PathLike[str], *, llm: LLM) -> None:
        """Write it; an older one in the same folder is replaced file by file, JSON last.

        Args:
            llm: the model it was fitted on; its name is kept.
        """
        parts = {
            "llm": llm.name,
            "settings": self.settings,
            "scale": self.scale,
            "wrongness": self.wrongness,
        }
        artifacts.write(Path(folder), "sgic", parts, format=FORMAT)

    @classmethod
    def estimator_of(cls, folder: str | PathLike[str]) -> str:
        """What the calibration in a folder reads, before there is a model to hold it against.

        Raises:
            UnreadableArtifact: as `load`.
        """
        return _read(folder)[1].settings.estimator

    @classmethod
    def load(cls, folder: str | PathLike[str], *, llm: LLM) -> "Calibration":
        """Read one and hold it against the model it is to serve.

        Raises:
            UnreadableArtifact: missing, incomplete or tampered with.
            ArtifactMismatch: fitted on another model.
        """
        name, found = _read(folder)
        if name != llm.name:
            raise ArtifactMismatch(
                f"the calibration in {folder} was fitted on the model {name!r}, and is now given "
                f"{llm.name!r}. Uncertainties of two models have different scales: pass that "
                "model, or fit one for this."
            )
        return found


_KINDS = (Isotonic, Platt, PromptTemplates, ScoreScale, SGICSettings, WrongnessCalibration)


def _read(folder: str | PathLike[str]) -> tuple[str, Calibration]:
    """The model's name, and what was fitted on it."""
    try:
        parts, _ = artifacts.read(Path(folder), "sgic", kinds=_KINDS, format=FORMAT)
        found = Calibration(parts["settings"], parts["scale"], parts["wrongness"])
        return parts["llm"], found
    except (UnreadableArtifact, ArtifactMismatch, *artifacts.DAMAGE) as error:
        raise UnreadableArtifact(
            f"{folder} holds no readable calibration ({error}). Fit one again and save it."
        ) from error


REFUSAL = "I am not sure enough to answer."
"""What is said unless the caller words it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """When to refuse an answer, and in which words; without a limit nothing is refused.

    Raises:
        InvalidInput: a limit is no number, or out of its range.
    """

    above: float | None = None
    """Refuse answers with a score above this, 0-100."""
    p_wrong_above: float | None = None
    """Refuse answers that are wrong with a probability above this, 0-1; needs a calibration."""
    text: str = REFUSAL
    """What is said instead."""

    def __post_init__(self) -> None:
        if not _within(self.above, 100):
            raise InvalidInput(f"refuse_above is a score in [0, 100], got {self.above!r}")
        if not _within(self.p_wrong_above, 1):
            raise InvalidInput(
                f"refuse_p_wrong_above is a probability in [0, 1], got {self.p_wrong_above!r}"
            )

    def refuses(self, answer: CalibratedAnswer) -> bool:
        """Whether this answer is to be kept back; the answer itself is not changed.

        With a limit on P(wrong), an answer without documents is: nobody knows how likely it is
        to be wrong.

        Raises:
            InvalidInput: there is a limit on P(wrong), and the answer has none.
        """
        if self.p_wrong_above is None:
            return self.above is not None and answer.score > self.above
        if answer.p_wrong is None and not answer.documents:
            return True
        if answer.p_wrong is None:
            raise InvalidInput(
                "refuse_p_wrong_above needs answers with P(wrong): calibrate with a fitted "
                "WrongnessCalibration, or refuse by the score (refuse_above, 0-100)"
            )
        too_likely_wrong = answer.p_wrong > self.p_wrong_above
        return too_likely_wrong or (self.above is not None and answer.score > self.above)

    def said(self, answer: CalibratedAnswer) -> str:
        """The answer's text, or the refusal."""
        return self.text if self.refuses(answer) else answer.text


def _within(limit: object, most: float) -> bool:
    return limit is None or (isinstance(limit, Real) and 0 <= float(limit) <= most)


def remark_untried(settings: SGICSettings, *, fitted: bool) -> None:
    """Log a warning where there are rounds and no calibration."""
    if settings.rounds and not fitted:
        log.warning(
            "without a calibration: up to %s after an answer that is not certain, not tried on "
            "this model; whether rounds pay, 'ltrag sgic fit' (sgic.fit) tells on your labelled "
            "questions, and SGICSettings(rounds=0) leaves them out",
            "1 round" if settings.rounds == 1 else f"{settings.rounds} rounds",
        )
