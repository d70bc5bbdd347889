"""The gate of a run, fitted in its folder or read from another, and the rows it stands before."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ltrag_plugins.artifacts import check_same, json_object, writing
from ltrag_plugins.data import digest_of
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.spec import Cell, CellName
from ltrag_plugins.flow import World
from ltrag_plugins.gece.gate import GECEGate
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.settings import Settings, Share
from ltrag_plugins.types import Question

_LATER: Any = object()  # stands in a cell for a gate that is not there yet


@dataclass(frozen=True, slots=True)
class RunGate(Settings):
    """Which gate a run has."""

    spec: str
    """"none"; "gece" for one that is fitted in the run's folder; or the folder of a saved one."""
    rate: Share = 0.2
    """For "gece": share of the questions that may retrieve."""

    @property
    def name(self) -> str:
        """The gate's part of a cell's name."""
        return "gece" if self.spec == "gece" else CellName.safe(Path(self.spec).name, "-")

    def folder(self, run: RunFolder) -> Path:
        """Where it is kept."""
        return run.path / "gate" if self.spec == "gece" else Path(self.spec).expanduser()

    def cells(self, alone: Sequence[Cell], seeds: int = 1) -> list[Cell]:
        """Each cell with every seed, alone, and behind a gate to come if it retrieves unasked."""
        found: list[Cell] = []
        for cell in alone:
            drawn = seeds > 1 and hasattr(cell.set, "seed")
            seeded = [replace(cell, seed=seed) for seed in (range(seeds) if drawn else [None])]
            found += seeded
            gated = "retriever" in cell.method.needs and not CellName(cell.method.name).is_gate
            if gated and self.spec != "none":
                found += [replace(one, gate=_LATER, gate_name=self.name) for one in seeded]
        return found

    def made(self, world: World, labelled: Sequence[Question], run: RunFolder) -> GECEGate:
        """The gate of the folder, or one fitted there; it drafts through the run's cache."""
        llm = CachedLLM(cast("LLM", world.llm), run.answers)
        folder, retriever, world = self.folder(run), world.retriever, replace(world, llm=llm)
        if self.spec != "gece":
            return self.load(folder, world)
        fitted_on = {"labelled": digest_of(labelled), "retriever": getattr(retriever, "name", "")}
        known = json_object(folder / "fitted_on.json")
        # of an older version, run.json alone says that the gate is whole
        if (folder / "gate.json").is_file() and (known or run.read() is not None):
            gate = self.load(folder, world)
            known = {**(known or fitted_on), "target": gate.report.target}
            wanted = {**fitted_on, "target": f"target rate {self.rate:g}"}
            trouble = f"{folder} was fitted on {known.get('labelled')}, {gate.report.target}"
            check_same(trouble, known, wanted, "Name another folder, or the same questions.")
            return gate
        parts: dict[str, Any] = {"llm": llm, "encoder": world.encoder, "retriever": retriever}
        gate = GECEGate.fit(labelled, target_rate=self.rate, batch=16, **parts)
        with writing(folder):  # first: a gate without it is fitted again
            text = json.dumps(fitted_on, indent=1)
            (folder / "fitted_on.json").write_text(f"{text}\n", encoding="utf-8")
        gate.save(folder)
        return gate

    @staticmethod
    def load(folder: Path, world: World) -> GECEGate:
        """The gate in a folder, with the run's encoder only if it was fitted with one."""
        plain = json_object(folder / "gate.json").get("encoder", "") is None
        llm, encoder = cast("LLM", world.llm), None if plain else world.encoder
        return GECEGate.load(folder, llm=llm, encoder=encoder)
