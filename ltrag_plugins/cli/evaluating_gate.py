"""The gate of a run of `ltrag evaluate`: fitted in its folder, or one that is there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ltrag_plugins.artifacts import DAMAGE, writing
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.run import digest_of
from ltrag_plugins.evaluate.spec import RESERVED, is_gate
from ltrag_plugins.flow import Flow, World
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.gate import GECEGate
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.methods.method import Method
from ltrag_plugins.methods.single import single_retrieval
from ltrag_plugins.types import Question

FITTED_ON = "fitted_on.json"
"""Beside a gate that a run fitted: what it learned from."""


@dataclass(frozen=True, slots=True)
class Gating:
    """What `--gate` and `--rate` ask for."""

    spec: str
    """"none", "gece", or a folder."""
    rate: float
    """For "gece": share of the questions that may retrieve, 0 to 1."""

    @property
    def name(self) -> str:
        """The gate's part of a cell's name."""
        return "gece" if self.spec == "gece" else RESERVED.sub("-", Path(self.spec).name)

    def before(self, method: Method) -> bool:
        """Whether a gate is put before this method: it retrieves, and is no gate itself."""
        retrieves = "retriever" in method.needs and not is_gate(method.name)
        return self.spec != "none" and retrieves

    def check(self) -> None:
        """Whether there is a gate in the folder, where one is named.

        Raises:
            InvalidInput: there is none.
        """
        folder = Path(self.spec).expanduser()
        if self.spec not in ("none", "gece") and not (folder / "gate.json").is_file():
            raise InvalidInput(
                f"there is no gate in {folder} (no gate.json); --gate takes none, gece or a folder "
                "that 'ltrag gate fit' wrote"
            )

    def folder(self, run: RunFolder) -> Path:
        """Where it is kept."""
        return run.path / "gate" if self.spec == "gece" else Path(self.spec).expanduser()

    def made(self, world: World, labelled: Sequence[Question], run: RunFolder) -> GECEGate:
        """The gate of the folder, or one fitted here; it drafts through the run's cache.

        Raises:
            ArtifactMismatch: it was fitted for another rate, model or encoder, or on other
                questions.
            UnreadableArtifact: it is damaged.
            CalibrationError: there is nothing to fit one on.
        """
        asking = replace(world, llm=CachedLLM(_model(world), run.answers))
        folder = self.folder(run)
        if self.spec != "gece":
            return loaded_gate(folder, asking)
        told = {"labelled": digest_of(labelled), "retriever": getattr(world.retriever, "name", "")}
        if _usable(folder, told, run):
            return self._checked(loaded_gate(folder, asking), folder)
        gate = self._fitted(asking, labelled)
        with writing(folder):  # first: a gate without it is fitted again
            (folder / FITTED_ON).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        gate.save(folder)
        return gate

    def _checked(self, gate: GECEGate, folder: Path) -> GECEGate:
        if gate.report.target != f"target rate {self.rate:g}":
            raise ArtifactMismatch(
                f"{folder} was fitted for {gate.report.target}, not {self.rate:g}: name another "
                "--out, or the same --rate"
            )
        return gate

    def _fitted(self, world: World, labelled: Sequence[Question]) -> GECEGate:
        return GECEGate.fit(
            labelled,
            llm=_model(world),
            encoder=world.encoder,
            target_rate=self.rate,
            retriever=world.retriever,
            retrieving=partial(single_retrieval) if world.retriever is not None else None,
            batch=16,
        )


class NoGate:
    """Stands for a gate that is not there yet."""

    def deciding(self, question: str) -> Flow[Decision]:
        """Never called.

        Raises:
            AssertionError: it was.
        """
        raise AssertionError("this gate only has a name")


def loaded_gate(folder: Path, world: World) -> GECEGate:
    """The gate in a folder, with the run's encoder only if it was fitted with one.

    Raises:
        InvalidInput: there is no model to draft with.
        UnreadableArtifact, ArtifactMismatch: as `GECEGate.load`.
    """
    plain = _read(folder / "gate.json").get("encoder", "") is None
    return GECEGate.load(folder, llm=_model(world), encoder=None if plain else world.encoder)


def _usable(folder: Path, told: dict[str, Any], run: RunFolder) -> bool:
    """Whether there is a gate that was fitted on this.

    Raises:
        ArtifactMismatch: it was fitted on something else.
    """
    if not (folder / "gate.json").is_file():
        return False
    known = _read(folder / FITTED_ON)
    if not known:  # by an older version: what it was fitted on, run.json says
        return run.read() is not None
    if known != told:
        raise ArtifactMismatch(
            f"{folder} was fitted on {known.get('labelled')}, now there are {told['labelled']}, or "
            "on other passages: name another --out, or the same --labelled and --passages"
        )
    return True


def _model(world: World) -> Any:
    if world.llm is None:
        raise InvalidInput("a gate drafts with a model, and there is none")
    return world.llm


def _read(path: Path) -> dict[str, Any]:
    """What stands in a file of JSON; {} where that cannot be read."""
    try:
        value = json.loads(path.read_bytes())
    except DAMAGE:
        return {}
    return value if isinstance(value, dict) else {}
