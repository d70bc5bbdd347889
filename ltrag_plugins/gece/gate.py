"""The gate: fit it on your questions, then ask it whether a question needs retrieval."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Literal, overload

import numpy as np

from ltrag_plugins.artifacts import digest
from ltrag_plugins.flow import Flow, Observer, World, arun, run, run_many
from ltrag_plugins.gece import artifact
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.draft import drafting
from ltrag_plugins.gece.models import FittedGate, Outcome
from ltrag_plugins.gece.report import FitReport
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import SIGNALS, Evidence, WordFrequencies, features
from ltrag_plugins.llm.base import LLM, Direction, Encoder
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Answer, Question

SILENT = "the model's own answer is empty, so there is none to give without retrieval"
"""The reason where a draft says nothing."""


def reason(fitted: FittedGate, score: float, probability: float) -> str:
    """One sentence: what was found, what it was held against."""
    objective = "expected gain of retrieval" if fitted.gain is not None else "long-tail score"
    fails = f"the direct answer fails with probability {probability:.2f}"
    if math.isinf(fitted.threshold):
        habit = "always" if fitted.threshold < 0 else "never"
        return f"{fails}; this gate was fitted to {habit} retrieve"
    side = "at or above" if score >= fitted.threshold else "below"
    digits = _telling_digits(score, fitted.threshold)
    return (
        f"{fails}; {objective} {score:.{digits}g} is {side} the threshold "
        f"{fitted.threshold:.{digits}g}"
    )


def _telling_digits(a: float, b: float) -> int:
    """Fewest significant digits, 3 at least, that tell the numbers apart."""
    return next((n for n in range(3, 17) if f"{a:.{n}g}" != f"{b:.{n}g}"), 17)


def explanation(fitted: FittedGate, decision: Decision) -> str:
    """The decision, its reason, and where each signal stands among the calibration questions."""
    lines = [
        f"{'retrieve' if decision.retrieve else 'answer directly'}: {decision.reason}",
        f"draft: {decision.answer!r}",
    ]
    for i, (name, value) in enumerate(decision.ingredients.items()):
        share = float(np.mean(fitted.quantiles[i] < value))
        about = SIGNALS[name].about if name in SIGNALS else "your own signal"
        lines.append(f"  {name:<18} {value:9.3g}  above {share:4.0%} of the calibration: {about}")
    return "\n".join(lines)


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
        # these two bring scikit-learn and the metrics, which a gate at work does without
        from ltrag_plugins.gece.fit import check_targets, collect, fit_outcomes

        check_targets(target_rate, target_accuracy)
        (frequencies or WordFrequencies()).of_word("a")  # an unknown language is named before
        settings = settings or GECESettings()
        world = World(llm=llm, retriever=retriever, encoder=encoder)
        collected = collect(
            questions,
            world,
            settings,
            retrieving=retrieving,
            retrieved_answers=retrieved_answers,
            observers=tuple(observers),
            batch=batch,
        )

        def fitted(outcomes: Sequence[Outcome]) -> tuple[FittedGate, FitReport]:
            return fit_outcomes(
                outcomes,
                target_rate=target_rate,
                target_accuracy=target_accuracy,
                settings=settings,
                frequencies=frequencies,
            )

        chosen, report = fitted(collected.outcomes)
        along = collected.along
        if along is not None and settings.gradients == "auto":
            plain, plain_report = fitted(_without_gradients(collected.outcomes))
            # the gradient must lift the AUROC above the whole interval of the gate without it
            if report.auroc.value <= plain_report.auroc.high:
                chosen, report, along = plain, plain_report, None
        return cls(chosen, replace(world, retriever=None), report, along)

    @property
    def name(self) -> str:
        """Tells it from a gate that decides otherwise."""
        along = sorted((self.along or {}).items())
        return f"gece@{digest((self.fitted, [array for _, array in along]))}"

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
        fitted, report, along = artifact.load(folder, llm=llm, encoder=encoder)
        return cls(fitted, World(llm=llm, encoder=encoder), report, along)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the gate as safetensors and JSON (never pickle)."""
        artifact.save(folder, self.fitted, self.report, self.along, self.world)

    def deciding(self, question: str) -> Flow[Decision]:
        """The flow: draft an answer, read it, decide."""
        evidence = yield from drafting(
            question,
            self.fitted.settings,
            vectors=self.world.encoder is not None,
            along=self.along,
        )
        return self.judge(evidence)

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
        """Decide from evidence already at hand; asks nobody.

        Where the draft says nothing there is no direct answer to give, so it retrieves, unless
        the gate was fitted to never do.

        Raises:
            CalibrationError: a signal of your own that the fit had is missing.
            NoTokenProbabilities, InvalidLogProbability: the draft cannot be read.
            InvalidInput: a signal is not finite, or embeddings are missing.
        """
        fitted = self.fitted
        columns = features([evidence], fitted.names, fitted.frequencies)
        failure = fitted.failure(columns)
        score = float((failure if fitted.gain is None else fitted.gain(columns))[0])
        ingredients = dict(zip(fitted.names, columns.signals[0].tolist(), strict=True))
        probability = float(np.clip(fitted.calibrator(failure), 0.0, 1.0)[0])
        silent = not evidence.draft.text.strip() and not math.isinf(fitted.threshold)
        return Decision(
            question=evidence.question,
            retrieve=silent or score >= fitted.threshold,
            score=score,
            probability=probability,
            tier=fitted.tier,
            reason=SILENT if silent else reason(fitted, score, probability),
            draft=evidence.draft,
            ingredients=ingredients,
        )

    def explain(self, question: str) -> str:
        """Decide, and say in a few lines what spoke for it."""
        return explanation(self.fitted, self.decide(question))


def _without_gradients(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [replace(o, evidence=replace(o.evidence, agreement=None)) for o in outcomes]
