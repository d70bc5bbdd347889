"""The gates of a run, fitted in its folder or read from another, and the rows they stand before."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from ltrag_plugins import artifacts
from ltrag_plugins.artifacts import check_same, json_object, write_json
from ltrag_plugins.data import digest_of
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.spec import EQ2, Cell, CellName
from ltrag_plugins.flow import Flow, Observer, World
from ltrag_plugins.gece.decision import Decision, Gate
from ltrag_plugins.gece.gate import GECEGate, names_of
from ltrag_plugins.gece.models import rate_threshold
from ltrag_plugins.gece.score import score_questions
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import drafting
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.prompts.templates import render_question
from ltrag_plugins.settings import Settings, Share, with_values
from ltrag_plugins.types import Question

_LATER: Any = object()  # stands in a cell for a gate that is not there yet
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class ReferenceGate:
    """Eq. 2 with the accepted answers of the very questions that it decides on: the `rate` of them
    with the largest values retrieve. For analysis: no gate at work knows the answers. An empty
    draft is ranked by its value, as any other.

    Source: Li et al., ACL 2024, eq. 2 and appendix A (the top 20 %); tables 1 to 4.
    """

    settings: GECESettings
    rate: float
    values: Mapping[str, float | Sequence[float]]
    """GECE of each question; of several that read alike, which share the mean, of each."""

    @classmethod
    def kept(
        cls, folder: Path, questions: Sequence[Question], settings: GECESettings, rate: float,
        *, llm: LLM, **how: Any,
    ) -> Self:  # fmt: skip
        """That of the folder, or one computed and kept there.

        Raises:
            ArtifactMismatch: the folder has another model's values, or of other questions.
            NeedsGradients, NoTokenProbabilities: as `score_questions`, to which goes `how`.
        """
        about: dict[str, Any] = {"llm": llm.name, "questions": digest_of(questions)}
        if before := json_object(folder / f"{EQ2}.json"):
            gate = cls.load(folder)
            known = {name: before.get(name) for name in about}
            known |= {"rate": gate.rate, "settings": asdict(gate.settings)}
            now = about | {"rate": rate, "settings": asdict(settings)}
            check_same(f"{folder} has other values", known, now, "Name another folder.")
            return gate
        scores = score_questions(questions, llm=llm, settings=settings, **how)
        found = defaultdict[str, list[float]](list)
        for question, score in zip(questions, scores, strict=True):
            found[render_question(question).strip()].append(score.value)
        values = {text: some if some[1:] else some[0] for text, some in found.items()}
        gate = cls(settings, rate, values)
        artifacts.write(folder, EQ2, {**about, "gate": gate}, format=_FORMAT)
        return gate

    @classmethod
    def load(cls, folder: Path, world: World | None = None) -> Self:
        """The gate in a folder; it drafts with any world's model."""
        with artifacts.reading(f"{folder} holds no values of eq. 2", "Name another folder."):
            known: Any = {"kinds": (cls, GECESettings), "format": _FORMAT}
            parts, _ = artifacts.read(folder, EQ2, parts=("llm", "questions", "gate"), **known)
            return parts["gate"]

    @property
    def name(self) -> str:
        """Tells it from a gate that decides otherwise."""
        return f"{EQ2}@{artifacts.digest(self)}"

    def deciding(self, question: str) -> Flow[Decision]:
        """The flow: draft an answer, and look up the question's value; `Decision.probability` is
        the share of the questions with a smaller one."""
        draft = (yield from drafting(question, self.settings)).draft
        value, (known, threshold) = float(np.mean(self.values[question.strip()])), self._ranked
        share, retrieve = float(np.mean(known < value)), value >= threshold
        shown = f"GECE {value:.3g} of this question"
        reason = f"{shown} is {'' if retrieve else 'not '}among the largest {self.rate:.0%}"
        tier = "gradients" if self.settings.semantics else "probabilities"
        return Decision(question, retrieve, value, share, tier, reason, draft)

    @cached_property
    def _ranked(self) -> tuple[np.ndarray, float]:
        """The values of all questions, and from which one on they retrieve."""
        found = self.values.values()
        known = np.repeat([*map(np.mean, found)], [*map(np.size, found)])
        return known, rate_threshold(known, self.rate)


@dataclass(frozen=True, slots=True)
class RunGate(Settings):
    """A gate of a run."""

    spec: str
    """"fit" for one that is fitted in the run's folder; "paper" for eq. 2 on the run's own
    questions, or with settings of GECE "paper:statistics=false"; or the folder of a saved one."""
    rate: Share = 0.2
    """For "fit" and "paper": share of the questions that may retrieve."""

    @property
    def paper(self) -> GECESettings | None:
        """The settings of eq. 2; None for another gate."""
        word, *given = self.spec.split(":")
        return with_values(GECESettings.paper(), given) if word == "paper" else None

    @property
    def is_saved(self) -> bool:
        """Whether it is the folder of a saved one."""
        return self.spec != "fit" and self.paper is None

    @property
    def name(self) -> str:
        """The gate's part of a cell's name."""
        if self.paper is not None:
            return CellName.safe(EQ2 + self.spec.removeprefix("paper"), "_")
        return "gate" if self.spec == "fit" else CellName.safe(Path(self.spec).name, "-")

    def folder(self, run: RunFolder) -> Path:
        """Where it is kept."""
        if self.is_saved:
            return Path(self.spec).expanduser()
        return run.path / self.name.replace(":", "~")

    def maker(self, run: RunFolder) -> Callable[[World], Gate]:
        """What reads it from its folder, in a process that has a world of its own."""
        return partial(ReferenceGate.load if self.paper else self.load, self.folder(run).resolve())

    def made(
        self,
        world: World,
        questions: Sequence[Question],
        labelled: Sequence[Question],
        run: RunFolder,
        observers: Iterable[Observer] = (),
    ) -> GECEGate | ReferenceGate:
        """The gate of the folder, or one made there: on the `labelled` questions, or for eq. 2 on
        those of the run. It drafts through the run's cache."""
        llm = CachedLLM(cast("LLM", world.llm), run.answers)
        folder, retriever, world = self.folder(run), world.retriever, replace(world, llm=llm)
        if self.is_saved:
            return self.load(folder, world)
        parts: dict[str, Any] = {"llm": llm, "observers": observers, "batch": 16}
        if self.paper is not None:
            return ReferenceGate.kept(folder, questions, self.paper, self.rate, **parts)
        fitted_on = {"labelled": digest_of(labelled), "retriever": getattr(retriever, "name", "")}
        known = json_object(folder / "fitted_on.json")
        # of an older version, run.json alone says that the gate is whole
        if (folder / "gate.json").is_file() and (known or run.read() is not None):
            gate = self.load(folder, world)
            before, now = (names_of(one)["encoder"] for one in (gate.world, world))
            known = {**(known or fitted_on), "target": gate.report.target, "encoder": before}
            wanted = {**fitted_on, "target": f"target rate {self.rate:g}", "encoder": now}
            trouble = f"{folder} was fitted on {known.get('labelled')}, {gate.report.target}"
            check_same(trouble, known, wanted, "Name another folder, or what it was fitted with.")
            return gate
        parts |= {"encoder": world.encoder, "retriever": retriever, "target_rate": self.rate}
        gate = GECEGate.fit(labelled, **parts)
        write_json(folder / "fitted_on.json", fitted_on)  # first: without it a gate is fitted again
        gate.save(folder)
        return gate

    @staticmethod
    def load(folder: Path, world: World) -> GECEGate:
        """The gate in a folder, with the run's encoder only if it was fitted with one."""
        plain = json_object(folder / "gate.json").get("encoder", "") is None
        llm, encoder = cast("LLM", world.llm), None if plain else world.encoder
        return GECEGate.load(folder, llm=llm, encoder=encoder)


def gated_cells(alone: Sequence[Cell], gates: Sequence[RunGate], seeds: int = 1) -> list[Cell]:
    """Each cell with every seed, alone, and behind each gate to come if it retrieves unasked."""
    found: list[Cell] = []
    for cell in alone:
        drawn = seeds > 1 and hasattr(cell.set, "seed")
        seeded = [replace(cell, seed=seed) for seed in (range(seeds) if drawn else [None])]
        found += seeded
        if "retriever" in cell.method.needs and not CellName(cell.method.name).is_gate:
            pairs = ((one, gate.name) for gate in gates for one in seeded)
            found += [replace(one, gate=_LATER, gate_name=name) for one, name in pairs]
    return found
