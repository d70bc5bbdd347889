"""The folder of a fine-tuning run: which run it is, its checkpoints, its result.

`run.json` names the run from its first moment, `checkpoints/` holds the last two, and
`finetune.json` is written last, when there is a result. A checkpoint counts once
`complete.json` in it has the hashes of its files, so that a killed run goes on from the last
whole one. Checkpoints hold the optimizer's state as torch saves it; it is read back with
``weights_only=True``, which builds numbers and nothing else, and only from here.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ltrag_plugins.artifacts import writing
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput, UnreadableArtifact

FORMAT = 1
_RUN, _CHECKPOINTS, _COMPLETE = "run.json", "checkpoints", "complete.json"
_WORDS = {"dataset": "the examples", "base": "the model", "prompting": "the chat template"}


@final
@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run is kept."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Where the trainer writes."""
        return self.path / _CHECKPOINTS

    def begin(self, identity: Mapping[str, Any], *, resume: bool) -> None:
        """Make the folder this run's, if it is empty or this run's already.

        Args:
            identity: all that the run's numbers depend on.
            resume: go on with what is there; else anything there is refused.

        Raises:
            ArtifactMismatch: it holds another run, or one that is not to be gone on with.
            InvalidInput: it holds other files.
            UnreadableArtifact: what names the run is damaged.
            UnwritableArtifact: it cannot be made or written to.
        """
        with writing(self.path):
            there = {entry.name for entry in self.path.iterdir()} - {f"{_RUN}.new"}
            if not there:
                self.write(_RUN, {"format": FORMAT, **identity})
                return
        if _RUN not in there:
            raise InvalidInput(
                f"{self.path} holds other files ({', '.join(sorted(there)[:3])}); name a new or "
                "empty folder."
            )
        if not resume:
            raise ArtifactMismatch(
                f"{self.path} holds a run already; name another folder, or resume it."
            )
        self._check(identity)

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        self.write_bytes(name, json.dumps(content, indent=1, allow_nan=False).encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all.

        Raises:
            UnwritableArtifact: it cannot be written.
        """
        with writing(self.path):
            new = self.path / f"{name}.new"
            new.write_bytes(content)
            new.replace(self.path / name)

    def last_checkpoint(self) -> Path | None:
        """The last whole one; None where there is none."""
        found = sorted(self.checkpoints.glob("checkpoint-*"), key=_step, reverse=True)
        return next((folder for folder in found if is_whole(folder)), None)

    def drop_checkpoints(self) -> None:
        """They are for going on with, and there is nothing left to do."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def _check(self, identity: Mapping[str, Any]) -> None:
        try:
            there = json.loads((self.path / _RUN).read_bytes())
            old, new = _flat(there), _flat({"format": FORMAT, **identity})
        except (OSError, ValueError, AttributeError) as error:
            raise UnreadableArtifact(
                f"{self.path / _RUN} cannot be read ({type(error).__name__}: {error}); name "
                "another folder."
            ) from error
        differ = [key for key in new.keys() | old.keys() if old.get(key) != new.get(key)]
        if differ:
            told = "; ".join(_difference(key, old, new) for key in sorted(differ))
            raise ArtifactMismatch(
                f"{self.path} holds another run: {told}. Name another folder, or go on with the "
                "same arguments."
            )


def mark_whole(checkpoint: Path) -> None:
    """Say that all files of a checkpoint are written."""
    new = checkpoint / f"{_COMPLETE}.new"
    new.write_text(json.dumps(_hashes(checkpoint), indent=1))
    new.replace(checkpoint / _COMPLETE)


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint's files are all there, as they were written."""
    try:
        return json.loads((checkpoint / _COMPLETE).read_bytes()) == _hashes(checkpoint)
    except (OSError, ValueError):
        return False


def _hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.iterdir() if not path.name.startswith(_COMPLETE))
    return {path.name: _sha256(path) for path in sorted(files)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _step(checkpoint: Path) -> int:
    found = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(found[1]) if found else -1


def _flat(told: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in told.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{key}.")
        else:
            flat[above + key] = value
    return flat


def _difference(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    words = _WORDS.get(key.partition(".")[0])
    if words:
        return f"{words} differ ({old.get(key)} there, {new.get(key)} now)"
    return f"{key.removeprefix('settings.')} was {old.get(key)!r} and is {new.get(key)!r} now"
