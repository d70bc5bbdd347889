"""A fitted gate on disk: `gate.json` (readable) and `gate.safetensors` (numbers); no pickle.

`gate.json` holds the hash of the other file, so a half-written or changed folder is noticed.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact
from ltrag_plugins.flow import World
from ltrag_plugins.gece.calibrators import Isotonic, Platt
from ltrag_plugins.gece.fitted import FittedGate
from ltrag_plugins.gece.frequency import WordFrequencies
from ltrag_plugins.gece.learners import FailureModel, GainModel, Linear, Trees
from ltrag_plugins.gece.report import FitReport
from ltrag_plugins.gece.scorers import Formula, OneSignal
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.llm.base import LLM, Direction, Encoder, GradientLLM
from ltrag_plugins.metrics.interval import Interval

FORMAT = 1
_KINDS = {
    kind.__name__: kind
    for kind in (
        FailureModel, FittedGate, FitReport, Formula, GainModel, GECESettings, Interval, Isotonic,
        Linear, OneSignal, Platt, Trees, WordFrequencies,
    )
}  # fmt: skip


def save(
    folder: str | PathLike[str],
    fitted: FittedGate,
    report: FitReport,
    along: Direction | None,
    world: World,
) -> None:
    """Write a gate; an older one in the same folder is replaced file by file, JSON last."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    arrays = {f"along.{name}": np.ascontiguousarray(a) for name, a in (along or {}).items()}
    body = {
        "format": FORMAT,
        "llm": None if world.llm is None else world.llm.name,
        "encoder": None if world.encoder is None else world.encoder.name,
        "gate": _plain(fitted, "gate", arrays),
        "report": _plain(report, "report", arrays),
    }
    numbers = save_arrays(arrays)
    body["sha256"] = hashlib.sha256(numbers).hexdigest()
    _replace(path / "gate.safetensors", numbers)
    text = json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False)
    _replace(path / "gate.json", text.encode())


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
        body = json.loads((path / "gate.json").read_bytes())
        numbers = (path / "gate.safetensors").read_bytes()
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']}, this version reads {FORMAT}")
        if hashlib.sha256(numbers).hexdigest() != body["sha256"]:
            raise ValueError("gate.safetensors is not the file that gate.json belongs to")
        _match(path, body, llm, encoder)
        arrays = load_arrays(numbers)
        gate, report = _built(body["gate"], arrays), _built(body["report"], arrays)
        if not isinstance(gate, FittedGate) or not isinstance(report, FitReport):
            raise ValueError("gate.json holds something else than a gate and its report")
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise UnreadableArtifact(
            f"{path} holds no readable gate ({type(error).__name__}: {error}). Fit it again: "
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


def _plain(value: Any, where: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; its arrays go into `arrays` under the name of their place."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        named = {k: _plain(v, f"{where}.{k}", arrays) for k, v in parts.items()}
        return {"is": type(value).__name__, **named}
    if isinstance(value, np.ndarray):
        arrays[where] = np.ascontiguousarray(value)
        return {"is": "array", "at": where}
    if isinstance(value, Mapping):
        return {"is": "mapping", "items": [[k, v] for k, v in value.items()]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"is": "number", "written": repr(float(value))}  # JSON has no infinity
    if isinstance(value, tuple | list):
        return [_plain(item, f"{where}.{i}", arrays) for i, item in enumerate(value)]
    return value


def _built(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of `_plain`; only the kinds above are ever built."""
    if isinstance(value, list):
        return tuple(_built(item, arrays) for item in value)
    if not isinstance(value, dict):
        return value
    kind = value["is"]
    if kind == "array":
        return arrays[value["at"]]
    if kind == "number":
        return float(value["written"])
    if kind == "mapping":
        return dict(value["items"])
    return _KINDS[kind](**{k: _built(v, arrays) for k, v in value.items() if k != "is"})


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)
