"""A trained head on disk: `dur.json` (readable) and `dur.safetensors` (numbers); no pickle."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ltrag_plugins import artifacts
from ltrag_plugins.dur.head import Head
from ltrag_plugins.dur.prompts import PromptFormat
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact
from ltrag_plugins.llm.base import Encoder

FORMAT = 1


def save_head(
    folder: Path, head: Head, settings: DURSettings, sigma: float, encoder: Encoder, *, shots: int
) -> None:
    """Write a head; a user's reward function is left out, as a head needs none to rank."""
    kept = settings if isinstance(settings.reward, str) else replace(settings, reward="match")
    parts = {
        "encoder": encoder.name,
        "sigma": sigma,
        "shots": shots,
        "settings": kept,
        "head": head,
    }
    artifacts.write(folder, "dur", parts, format=FORMAT)


def load_head(folder: Path, encoder: Encoder) -> tuple[Head, DURSettings, float, int]:
    """Read a head and hold it against the encoder it is to serve.

    Raises:
        UnreadableArtifact: missing, incomplete or tampered with.
        ArtifactMismatch: trained with another encoder.
    """
    try:
        parts, _ = artifacts.read(
            folder, "dur", kinds=(Head, DURSettings, PromptFormat), format=FORMAT
        )
        head, settings, sigma, shots = _checked(**parts)
    except (UnreadableArtifact, *artifacts.DAMAGE) as error:
        raise UnreadableArtifact(
            f"{folder} holds no readable head ({error}). Train one: DURTrainer(...).fit(...)"
            ".ranker.save(folder), or 'ltrag dur train'."
        ) from error
    if parts["encoder"] != encoder.name:
        raise ArtifactMismatch(
            f"the head in {folder} was trained with encoder {parts['encoder']!r}, and is now given "
            f"{encoder.name!r}. A head knows one encoder: pass that one, or train a head for "
            "this one."
        )
    return head, settings, sigma, shots


def _checked(
    encoder: object, sigma: object, shots: object, settings: object, head: object
) -> tuple[Head, DURSettings, float, int]:
    if not isinstance(head, Head) or not isinstance(settings, DURSettings):
        raise ValueError("it holds something else than a head and its settings")
    if not isinstance(sigma, float) or not isinstance(encoder, str):
        raise ValueError("sigma must be a number and encoder a name")
    if not isinstance(shots, int) or shots < 1:
        raise ValueError(f"shots must be a number from 1 on, not {shots!r}")
    if not 0 <= sigma <= 1:
        raise ValueError(f"sigma must lie in [0, 1], not at {sigma}")
    rows = head.weight.shape[:1]
    if head.weight.ndim != 2 or head.bias.shape != rows:
        raise ValueError(f"W of shape {head.weight.shape} and b of {head.bias.shape} do not fit")
    if not (np.isfinite(head.weight).all() and np.isfinite(head.bias).all()):
        raise ValueError("a number of the head is not finite")
    return head, settings, sigma, shots
