"""A training run on disk, written after every batch: `checkpoint.safetensors`.

One file, replaced in one step, so that a killed run leaves its last whole batch. Numbers are
stored to the last bit; the draws of a batch depend on seed, epoch and batch alone, so a run
that goes on ends where it would have ended.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from ltrag_plugins.artifacts import DAMAGE, replace_file, writing
from ltrag_plugins.dur.batch import Batch, Choice, State, TrainingCase
from ltrag_plugins.dur.head import Adam, Gradient, Head
from ltrag_plugins.dur.prompts import Shot
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.types import Question

_FORMAT = 3


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run is kept, and which run it is."""

    path: Path
    identity: str
    """A hash of all that a run's numbers depend on, save the answers themselves."""

    @classmethod
    def of(
        cls,
        folder: Path,
        cases: Sequence[TrainingCase],
        settings: DURSettings,
        encoder: Encoder,
        llm: LLM,
    ) -> Self:
        """The folder's, for a run over these cases."""
        values = {k: v for k, v in asdict(settings).items() if k not in ("epochs", "reward")}
        reward = settings.reward
        values["reward"] = reward if isinstance(reward, str) else _code(reward)
        lines = [_FORMAT, values, encoder.name, llm.name]
        lines += [[_plain(case.question), [_plain(c) for c in case.candidates]] for case in cases]
        content = json.dumps(lines, sort_keys=True, default=str)
        identity = hashlib.sha256(content.encode()).hexdigest()
        return cls(folder / "checkpoint.safetensors", identity)

    def write(self, state: State) -> None:
        """Replace the file."""
        parts = {"head": state.head, "mean": state.adam.mean, "square": state.adam.square}
        arrays = {
            f"{part}.{name}": np.ascontiguousarray(getattr(value, name))
            for part, value in parts.items()
            for name in ("weight", "bias")
        }
        body = {
            "format": _FORMAT,
            "run": self.identity,
            "steps": state.adam.steps,
            "sigma": state.sigma,
            "epoch": state.epoch,
            "batch": state.batch,
            "choice": None if state.choice is None else asdict(state.choice),
            "history": [asdict(batch) for batch in state.history],
        }
        with writing(self.path.parent):
            replace_file(self.path, save(arrays, metadata={"state": json.dumps(body)}))

    def read(self) -> State | None:
        """The state that was written; None where there is none yet."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="numpy") as file:
                body = json.loads((file.metadata() or {})["state"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            mean, square = (
                Gradient(arrays[f"{part}.weight"], arrays[f"{part}.bias"])
                for part in ("mean", "square")
            )
            run = body["run"]
            state = State(
                Head(arrays["head.weight"], arrays["head.bias"]),
                Adam(mean, square, body["steps"]),
                body["sigma"],
                body["epoch"],
                body["batch"],
                tuple(Batch(**batch) for batch in body["history"]),
                None if body["choice"] is None else Choice(**_tuples(body["choice"])),
            )
        except DAMAGE as error:
            raise UnreadableArtifact(
                f"{self.path} is no readable checkpoint ({type(error).__name__}: {error}). Move "
                "it away to begin again."
            ) from error
        if run != self.identity:
            raise ArtifactMismatch(
                f"{self.path} belongs to a run with other candidates, questions, settings, "
                "encoder or model. Train in another folder, or move it away to begin again."
            )
        return state


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def _plain(item: Shot) -> list[object]:
    if isinstance(item, Question):
        return [item.text, item.answers, item.options, item.context]
    return [item.title, item.text]


def _code(function: Any) -> str:
    """What tells a function from others: its name, so that it may be mended.

    A lambda has no name of its own: its code tells it from others.
    """
    if isinstance(function, partial):
        return f"{_code(function.func)}{function.args}{sorted(function.keywords.items())}"
    kind = function if hasattr(function, "__qualname__") else type(function)
    name, code = f"{kind.__module__}.{kind.__qualname__}", getattr(function, "__code__", None)
    if "<lambda>" not in name or code is None:
        return name
    content = code.co_code + repr((code.co_consts, code.co_names)).encode()
    return f"{name} {hashlib.sha256(content).hexdigest()[:12]}"
