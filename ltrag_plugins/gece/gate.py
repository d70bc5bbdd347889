"""The gate: fit it on your questions, then ask it whether a question needs retrieval.

A saved gate is a folder of `gate.json` (readable) and `gate.safetensors` (numbers); no pickle.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Literal, overload

import numpy as np

from ltrag_plugins import artifacts
from ltrag_plugins.calibration import Isotonic, Platt
from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact
from ltrag_plugins.flow import Flow, Observer, World, arun, run, run_many
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.draft import drafting
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
from ltrag_plugins.gece.signals import SIGNALS, Evidence, WordFrequencies
from ltrag_plugins.llm.base import LLM, Direction, Encoder, GradientLLM
from ltrag_plugins.metrics.calibration import Interval
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Answer, Question

_FORMAT = 1
_KINDS = (
    FailureModel, FittedGate, FitReport, Formula, GainModel, GECESettings, Interval, Isotonic,
    Linear, OneSignal, Platt, Trees, WordFrequencies,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class GECEGate:
    """Decides per question whether the model needs retrieval.

    Made by `fit` or `load`. Safe to share between threads.
    """

    fitted: FittedGate
    world: World
    """The model that drafts, and the encoder, if the gate reads embeddings."""
    report: FitReport
    """What the fit found, cross-validated."""
    along: Direction | None = None
    """The mean gradient, on tier "gradients"."""

    @classmethod
    def fit(
        cls,
        questions: Sequence[Question],
        *,
        llm: LLM,
        encoder: Encoder | None = None,
        target_rate: float | None = None,
        target_accuracy: float | None = None,
        retriever: Retriever | None = None,
        retrieving: Callable[[str], Flow[Answer]] | None = None,
        retrieved_answers: Sequence[str] | None = None,
        settings: GECESettings | None = None,
        frequencies: WordFrequencies | None = None,
        observers: Iterable[Observer] = (),
        batch: int | None = None,
    ) -> "GECEGate":
        """Ask the model each question without retrieval and learn when its answers fail.

        Args:
            questions: with accepted answers; at least 20, better 200 or more, like those the
                gate will see.
            llm: the model that answers.
            encoder: embeddings of question and draft sharpen the gate; None does without.
            target_rate: share of questions that may retrieve (default 0.2, as in the paper).
            target_accuracy: in its place, the least share of right answers.
            retriever: also answer each calibration question with retrieval, so that the gate
                learns where retrieval *helps* and reports the accuracy to expect.
            retrieving: the flow that answers with retrieval; by default it reads three passages. It
                may do without `retriever` if it fetches nothing itself.
            retrieved_answers: what your own chain answered with retrieval, in order, in place
                of `retriever`.
            frequencies: word frequencies of your corpus; English by default.
            batch: most prompts of one model call; see `run_many`.

        Raises:
            CalibrationError: too few questions, all right or all wrong, target out of reach.
            MissingReferences: a question has no accepted answers.
            NeedsGradients, NoTokenProbabilities: the settings ask for what the model lacks.
        """
        # brings scikit-learn and the metrics, which a gate at work does without
        from ltrag_plugins.gece.fit import fit_questions

        world = World(llm=llm, retriever=retriever, encoder=encoder)
        fitted, report, along = fit_questions(
            questions,
            world,
            settings or GECESettings(),
            target_rate=target_rate,
            target_accuracy=target_accuracy,
            retrieving=retrieving,
            retrieved_answers=retrieved_answers,
            frequencies=frequencies,
            observers=observers,
            batch=batch,
        )
        return cls(fitted, replace(world, retriever=None), report, along)

    @property
    def name(self) -> str:
        """Tells it from a gate that decides otherwise."""
        along = sorted((self.along or {}).items())
        return f"gece@{artifacts.digest((self.fitted, [array for _, array in along]))}"

    @classmethod
    def load(
        cls, folder: str | PathLike[str], *, llm: LLM, encoder: Encoder | None = None
    ) -> "GECEGate":
        """Read a saved gate.

        Raises:
            UnreadableArtifact: the folder is missing, incomplete or tampered with.
            ArtifactMismatch: it was fitted with another model or encoder, or reads gradients
                that this model does not have.
        """
        path, world = Path(folder), World(llm=llm, encoder=encoder)
        try:
            parts, arrays = artifacts.read(path, "gate", kinds=_KINDS, format=_FORMAT)
            for part, name in _names(world).items():
                if parts[part] != name:
                    raise ArtifactMismatch(
                        f"the gate in {path} was fitted with {part} {parts[part]!r}, and is now "
                        f"given {name!r}. A gate knows one model: pass that one, or fit a gate for "
                        "this one."
                    )
            fitted, report = parts["gate"], parts["report"]
            if not isinstance(fitted, FittedGate) or not isinstance(report, FitReport):
                raise ValueError("gate.json holds something else than a gate and its report")
        except (UnreadableArtifact, *artifacts.DAMAGE) as error:
            raise UnreadableArtifact(
                f"{path} holds no readable gate ({error}). Fit it again: "
                "GECEGate.fit(...).save(folder), or 'ltrag gate fit'."
            ) from error
        along = {n.removeprefix("along."): a for n, a in arrays.items() if n.startswith("along.")}
        if along and not isinstance(llm, GradientLLM):
            raise ArtifactMismatch(
                f"the gate in {path} reads gradients, and {llm.name} has none. Load local weights "
                "with TransformersLLM, or fit a gate with gradients='never'."
            )
        return cls(fitted, world, report, along or None)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the gate; an older one in the same folder is replaced file by file, JSON last."""
        parts = _names(self.world) | {"gate": self.fitted, "report": self.report}
        arrays = {f"along.{name}": array for name, array in (self.along or {}).items()}
        artifacts.write(Path(folder), "gate", parts, arrays=arrays, format=_FORMAT)

    def deciding(self, question: str) -> Flow[Decision]:
        """The flow: draft an answer, read it, decide."""
        evidence = yield from drafting(
            question,
            self.fitted.settings,
            vectors=self.world.encoder is not None,
            along=self.along,
        )
        return self.fitted.judge(evidence)

    def decide(self, question: str, *, observers: Iterable[Observer] = ()) -> Decision:
        """Decide for one question: one model call.

        Raises:
            EmptyQuestion, PromptTooLong: the question cannot be asked.
            ModelFailed: the model's call raised.
            NoTokenProbabilities, InvalidLogProbability: the draft cannot be read.
        """
        return run(self.deciding(question), self.world, observers=observers)

    async def adecide(self, question: str, *, observers: Iterable[Observer] = ()) -> Decision:
        """As `decide`, on an event loop."""
        return await arun(self.deciding(question), self.world, observers=observers)

    @overload
    def decide_many(
        self,
        questions: Sequence[str],
        *,
        observers: Iterable[Observer] = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[Decision]: ...
    @overload
    def decide_many(
        self,
        questions: Sequence[str],
        *,
        observers: Iterable[Observer] = ...,
        return_exceptions: Literal[True],
    ) -> list[Decision | Exception]: ...
    def decide_many(
        self,
        questions: Sequence[str],
        *,
        observers: Iterable[Observer] = (),
        return_exceptions: bool = False,
    ) -> list[Decision] | list[Decision | Exception]:
        """Decide for many questions with one merged model call."""
        flows = [self.deciding(question) for question in questions]
        if return_exceptions:
            return run_many(flows, self.world, observers=observers, return_exceptions=True)
        return run_many(flows, self.world, observers=observers)

    def judge(self, evidence: Evidence) -> Decision:
        """Decide from evidence already at hand; see `FittedGate.judge`."""
        return self.fitted.judge(evidence)

    def explain(self, question: str) -> str:
        """Decide, and say in a few lines what spoke for it."""
        return self.explanation(self.decide(question))

    def explanation(self, decision: Decision) -> str:
        """A decision, its reason, and where each signal stands among the calibration questions."""
        lines = [
            f"{'retrieve' if decision.retrieve else 'answer directly'}: {decision.reason}",
            f"draft: {decision.answer!r}",
        ]
        quantiles = zip(decision.ingredients.items(), self.fitted.quantiles, strict=True)
        for (name, value), points in quantiles:
            share = float(np.mean(points < value))
            about = SIGNALS[name].about if name in SIGNALS else "your own signal"
            lines.append(
                f"  {name:<18} {value:9.3g}  above {share:4.0%} of the calibration: {about}"
            )
        return "\n".join(lines)


def _names(world: World) -> dict[str, object]:
    parts = {"llm": world.llm, "encoder": world.encoder}
    return {role: None if part is None else part.name for role, part in parts.items()}
