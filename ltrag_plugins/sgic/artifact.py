"""A fitted scale on disk: `sgic.json` (readable) and `sgic.safetensors` (numbers); no pickle."""

import logging
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ltrag_plugins import artifacts
from ltrag_plugins.calibrators import Isotonic, Platt
from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.sgic.prompts import PromptTemplates
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.sgic.wrongness import WrongnessCalibration

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
