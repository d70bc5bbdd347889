"""A fitted gate on disk: `gate.json` (readable) and `gate.safetensors` (numbers); no pickle."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ltrag_plugins import artifacts
from ltrag_plugins.calibration import Isotonic, Platt
from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact
from ltrag_plugins.flow import World
from ltrag_plugins.gece.models import (
    FailureModel,
    FittedGate,
    Formula,
    GainModel,
    Linear,
    OneSignal,
    Trees,
)
from ltrag_plugins.gece.report import FitReport
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import WordFrequencies
from ltrag_plugins.llm.base import LLM, Direction, Encoder, GradientLLM
from ltrag_plugins.metrics.calibration import Interval

FORMAT = 1
_KINDS = (
    FailureModel, FittedGate, FitReport, Formula, GainModel, GECESettings, Interval, Isotonic,
    Linear, OneSignal, Platt, Trees, WordFrequencies,
)  # fmt: skip


def save(
    folder: str | PathLike[str],
    fitted: FittedGate,
    report: FitReport,
    along: Direction | None,
    world: World,
) -> None:
    """Write a gate; an older one in the same folder is replaced file by file, JSON last."""
    parts = {
        "llm": None if world.llm is None else world.llm.name,
        "encoder": None if world.encoder is None else world.encoder.name,
        "gate": fitted,
        "report": report,
    }
    arrays = {f"along.{name}": array for name, array in (along or {}).items()}
    artifacts.write(Path(folder), "gate", parts, arrays=arrays, format=FORMAT)


def load(
    folder: str | PathLike[str], *, llm: LLM, encoder: Encoder | None
) -> tuple[FittedGate, FitReport, Direction | None]:
    """Read a gate and hold it against the model it is to serve.

    Raises:
        UnreadableArtifact: missing, incomplete or tampered with.
        ArtifactMismatch: fitted with another model or encoder.
    """
    path = Path(folder)
    try:
        parts, arrays = artifacts.read(path, "gate", kinds=_KINDS, format=FORMAT)
        _match(path, parts, llm, encoder)
        gate, report = parts["gate"], parts["report"]
        if not isinstance(gate, FittedGate) or not isinstance(report, FitReport):
            raise ValueError("gate.json holds something else than a gate and its report")
    except (UnreadableArtifact, *artifacts.DAMAGE) as error:
        raise UnreadableArtifact(
            f"{path} holds no readable gate ({error}). Fit it again: "
            "GECEGate.fit(...).save(folder), or 'ltrag gate fit'."
        ) from error
    along = {n.removeprefix("along."): a for n, a in arrays.items() if n.startswith("along.")}
    if along and not isinstance(llm, GradientLLM):
        raise ArtifactMismatch(
            f"the gate in {path} reads gradients, and {llm.name} has none. Load local weights with "
            "TransformersLLM, or fit a gate with gradients='never'."
        )
    return gate, report, along or None


def _match(path: Path, body: Mapping[str, Any], llm: LLM, encoder: Encoder | None) -> None:
    given = {"llm": llm.name, "encoder": None if encoder is None else encoder.name}
    for part, name in given.items():
        if body[part] != name:
            raise ArtifactMismatch(
                f"the gate in {path} was fitted with {part} {body[part]!r}, and is now given "
                f"{name!r}. A gate knows one model: pass that one, or fit a gate for this one."
            )
