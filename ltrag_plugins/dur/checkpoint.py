"""A training run on disk, written after every batch: `checkpoint.safetensors`.

One file, replaced in one step, so that a killed run leaves its last whole batch. Numbers are
stored to the last bit; the draws of a batch depend on seed, epoch and batch alone, so a run
that goes on ends where it would have ended.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ltrag_plugins.artifacts import writing
from ltrag_plugins.dur.batch import Adam, Batch, Case, Choice, State
from ltrag_plugins.dur.head import Gradient, Head
from ltrag_plugins.dur.prompts import Shot
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.types import Question

FORMAT = 3
_FILE = "checkpoint.safetensors"


def run_identity(cases: Sequence[Case], settings: DURSettings, encoder: Encoder, llm: LLM) -> str:
    """A hash of all that a run's numbers depend on, save the answers themselves."""
    told = {k: v for k, v in asdict(settings).items() if k not in ("epochs", "reward")}
    reward = settings.reward
    told["reward"] = reward if isinstance(reward, str) else _code(reward)
    lines = [FORMAT, told, encoder.name, llm.name]
    lines += [[_told(case.question), [_told(c) for c in case.candidates]] for case in cases]
    content = json.dumps(lines, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _code(function: Any) -> str:
    """What a function is told from others by: its name, so that it may be mended; where it has
    none, what it does as far as that is seen."""
    if isinstance(function, partial):
        return f"{_code(function.func)}{function.args}{sorted(function.keywords.items())}"
    kind = function if hasattr(function, "__qualname__") else type(function)
    name, code = f"{kind.__module__}.{kind.__qualname__}", getattr(function, "__code__", None)
    if "<lambda>" not in name or code is None:
        return name
    content = code.co_code + repr((code.co_consts, code.co_names)).encode()
    return f"{name} {hashlib.sha256(content).hexdigest()[:12]}"


def write_checkpoint(folder: Path, state: State, identity: str) -> None:
    """Replace the folder's checkpoint.

    Raises:
        UnwritableArtifact: the folder cannot be made or written to.
    """
    arrays = {
        f"{part}.{name}": np.ascontiguousarray(getattr(value, name))
        for part, value in _parts(state).items()
        for name in ("weight", "bias")
    }
    told = {
        "format": FORMAT,
        "run": identity,
        "steps": state.adam.steps,
        "sigma": state.sigma,
        "epoch": state.epoch,
        "batch": state.batch,
        "choice": None if state.choice is None else asdict(state.choice),
        "history": [asdict(batch) for batch in state.history],
    }
    new = folder / f"{_FILE}.new"
    with writing(folder):
        new.write_bytes(save(arrays, metadata={"state": json.dumps(told)}))
        new.replace(folder / _FILE)


def read_checkpoint(folder: Path, identity: str) -> State | None:
    """The state in the folder; None where there is none yet.

    Raises:
        UnreadableArtifact: the file is no checkpoint, or damaged.
        ArtifactMismatch: it belongs to a run with other arguments.
    """
    path = folder / _FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            told = json.loads((file.metadata() or {})["state"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        head = Head(arrays["head.weight"], arrays["head.bias"])
        moments = [Gradient(arrays[f"{p}.weight"], arrays[f"{p}.bias"]) for p in ("mean", "square")]
        history = tuple(Batch(**batch) for batch in told["history"])
        run = told["run"]
        state = State(
            head,
            Adam(moments[0], moments[1], told["steps"]),
            told["sigma"],
            told["epoch"],
            told["batch"],
            history,
            _choice(told["choice"]),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UnreadableArtifact(
            f"{path} is no readable checkpoint ({type(error).__name__}: {error}). Move it away "
            "to begin again."
        ) from error
    if run != identity:
        raise ArtifactMismatch(
            f"{path} belongs to a run with other candidates, questions, settings, encoder or "
            "model. Train in another folder, or move it away to begin again."
        )
    return state


def _choice(told: dict[str, Any] | None) -> Choice | None:
    if told is None:
        return None
    values = {name: tuple(told[name]) for name in ("trained", "start", "everywhere")}
    return Choice(
        questions=told["questions"],
        error=told["error"],
        calls=told["calls"],
        tokens=told["tokens"],
        **values,
    )


def _parts(state: State) -> dict[str, Head | Gradient]:
    return {"head": state.head, "mean": state.adam.mean, "square": state.adam.square}


def _told(item: Shot) -> list[object]:
    if isinstance(item, Question):
        return [item.text, item.answers, item.options, item.context]
    return [item.title, item.text]
