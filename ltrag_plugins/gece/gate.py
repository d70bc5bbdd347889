"""The gate: fit it on your questions, then ask it whether a question needs retrieval. A saved gate
is a folder of `gate.json` (readable) and `gate.safetensors` (numbers); no pickle."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from os import PathLike
from statistics import median
from typing import Any, Literal

import numpy as np

from ltrag_plugins import artifacts
from ltrag_plugins.calibration import Isotonic, Platt
from ltrag_plugins.data import digest_of
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput, checked, listed, path_of
from ltrag_plugins.flow import Flow, Observer, World, arun, check_world, run, run_many
from ltrag_plugins.gece import models
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.labels import NO_COST, NO_RETRIEVAL, check_count, check_scorer, collect
from ltrag_plugins.gece.models import FitReport, FittedGate
from ltrag_plugins.gece.savings import Usage, timed
from ltrag_plugins.gece.settings import GECESettings, Targets
from ltrag_plugins.gece.signals import (
    SIGNALS,
    Evidence,
    OwnSignals,
    WordFrequencies,
    drafting,
    frequencies_for,
    own_signals,
)
from ltrag_plugins.llm.base import LLM, Direction, Encoder, GradientLLM
from ltrag_plugins.metrics.calibration import Interval
from ltrag_plugins.prompts.templates import render_question
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Answer, Question
from ltrag_plugins.uncertainty import percent

_FORMAT = 1
_SCORERS = (models.FailureModel, models._MemoryModel, models.Formula, models.OneSignal)
_LEARNED = (models.GainModel, models.Linear, models.Trees, models._Memory, Platt, Isotonic)
_GIVEN = (WordFrequencies, GECESettings, Interval, Usage)


@dataclass(frozen=True, eq=False)
class GECEGate:
    """Decides per question whether the model needs retrieval; `fit` or `load` makes one. Safe to
    share between threads."""

    fitted: FittedGate = field(repr=False)
    world: World
    """The model that drafts, and the encoder, if the gate reads embeddings."""
    report: FitReport
    """What the fit found, cross-validated."""
    along: Direction | None = field(default=None, repr=False)
    """The mean gradient, on tier "gradients"."""
    signals: OwnSignals = field(default_factory=dict)
    """Those of your own that it was fitted with."""
    data: str = ""
    """How many questions it was fitted on, and their hash; "" where that is not known."""

    @classmethod
    def fit(
        cls,
        questions: Sequence[Question | str],
        *,
        llm: LLM,
        encoder: Encoder | None = None,
        target_rate: float | None = None,
        target_accuracy: float | Literal["always"] | None = None,
        budget: float | None = None,
        retriever: Retriever | None = None,
        retrieving: Callable[[str], Flow[Answer]] | None = None,
        retrieved_answers: Sequence[str] | None = None,
        retrieval_cost: Usage | None = None,
        correct: Callable[[str, str, str], Any] | LLM | None = None,
        settings: GECESettings | None = None,
        frequencies: WordFrequencies | None = None,
        signals: OwnSignals | None = None,
        observers: Iterable[Observer] = (),
        batch: int | None = None,
    ) -> "GECEGate":
        """Ask the model each question without retrieval and learn when its answers fail.

        Args:
            questions: like those the gate will see; at least 20, better 200. For missing accepted
                answers those with retrieval stand in: a direct answer that agrees is right.
            encoder: embeddings of question and draft sharpen the gate.
            target_rate: share of questions that may retrieve, 0 to 1.
            target_accuracy: in its place, the lowest rate at which this share of answers is right:
                of all answers where answers with retrieval are known, else of those given directly.
                "always" (the default where they are known; else target_rate=0.2, the paper's): as
                many as always retrieving gives; without accepted answers, 95 % agree with it.
            budget: in their place, what a question may cost, draft included, as a share of what it
                costs always retrieving: in tokens where they are counted, else seconds or calls.
            retriever: also answer each calibration question with retrieval, so that the gate
                learns where retrieval *helps* and reports the accuracy to expect.
            retrieving: the flow that answers with retrieval; by default it reads three passages.
                One that fetches nothing itself needs no `retriever`.
            retrieved_answers: in place of `retriever`, your own chain's answers, in order.
            retrieval_cost: what one of those cost, for `budget` and the report.
            correct: judges answers whose references are longer than ten words: a function of
                question, answer and reference (True or False, or 0 to 1), or a model to ask.
                None: two that share enough words agree.
            frequencies: signals and traits from how rare words are, in your corpus or in a language
                (`WordFrequencies()`: English); by default only for a scorer that reads them.
            signals: functions of your own, such as a decision model (`langchain.DecisionSignal`),
                by name: question -> number, larger where the direct answer is likelier to fail.
            batch: most prompts of one model call; see `run_many`.

        Raises:
            CalibrationError: too few questions, all right or all wrong, or a target out of reach.
            MissingReferences: a question has no accepted answers, and no answer with retrieval.
            ModelFailed: the model failed on more than half of the questions; fewer are left out.
            NeedsGradients, NoTokenProbabilities: the settings ask for what the model lacks.
            MissingExtra: word frequencies of a language need the extra `frequency`.
        """
        # brings scikit-learn and the metrics, which a gate at work does without
        from ltrag_plugins.gece.fit import fit_outcomes

        own = own_signals(signals)
        check_scorer(settings := settings or GECESettings(), own)
        frequencies = frequencies_for(settings, frequencies)
        target = asdict(Targets(target_rate, target_accuracy, budget))
        fitting = partial(fit_outcomes, **target, settings=settings, frequencies=frequencies)
        world = World(llm=llm, retriever=retriever, encoder=encoder)
        wanted = "a gece.savings.Usage(calls, tokens, seconds)"
        checked(retrieval_cost, Usage | None, "retrieval_cost", wanted)
        given = retrieved_answers is not None
        asks = retriever is not None or retrieving is not None
        if target_accuracy == "always" and not (given or asks):
            raise InvalidInput(NO_RETRIEVAL)
        if budget is not None and retrieval_cost is None and (given or not asks):
            raise InvalidInput(NO_COST)
        check_count(questions)
        asked = [Question(q) if isinstance(q, str) else q for q in questions]
        seconds, observers = None, tuple(observers)
        if retrieval_cost is not None:
            flows = [drafting(render_question(question), settings) for question in asked[:3]]
            tried = partial(_tried, world=world, observers=observers)
            drafted, seconds = timed(tried, flows)
            good = [one for [one] in drafted if not isinstance(one, Exception)]
            kept = [[said.seconds for said in (one.draft, *one.samples)] for one in good]
            took = [sum(s for s in some if s is not None) for some in kept if None not in some]
            if took and len(took) == len(kept):  # from an answer cache: what they took when written
                seconds = median(took)
        outcomes, along, cost = collect(
            asked,
            world,
            settings,
            retrieving=retrieving,
            retrieved_answers=retrieved_answers,
            judge=correct,
            own=own,
            observers=observers,
            batch=batch,
        )
        drafts = [(o.evidence.draft, *o.evidence.samples) for o in outcomes]
        if (cost := retrieval_cost or cost) is not None:
            fitting = partial(fitting, costs=(Usage.of(drafts, seconds), cost))
        fitted, report = fitting(outcomes)
        along = along if fitted.tier == "gradients" else None
        return cls(fitted, replace(world, retriever=None), report, along, own, digest_of(asked))

    @property
    def name(self) -> str:
        """Tells it from a gate that decides otherwise."""
        along = sorted((self.along or {}).items())
        return f"gece@{artifacts.digest((self.fitted, [array for _, array in along]))}"

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        llm: LLM,
        encoder: Encoder | None = None,
        signals: OwnSignals | None = None,
    ) -> "GECEGate":
        """Read a saved gate; `signals` of your own are handed in again.

        Raises:
            UnreadableArtifact: the folder is missing, incomplete or tampered with.
            InvalidInput: a framework's model or encoder came as it is; wrap it. Or a signal of
                yours that it reads is missing.
            ArtifactMismatch: it was fitted with another model or encoder, or reads gradients
                that this model does not have.
            MissingExtra: it reads word frequencies of a language: the extra `frequency`.
        """
        world = World(llm=llm, encoder=encoder)
        check_world(world)
        parts, arrays = read_gate(folder)
        for part, name in names_of(world).items():
            called = {"llm": "model"}.get(part, part)
            artifacts.check_part(f"the gate in {folder}", called, parts[part], name)
        fitted, report = parts["gate"], parts["report"]
        if fitted.frequencies is not None:
            fitted.frequencies.of_word("a")
        along = {n.removeprefix("along."): a for n, a in arrays.items() if n.startswith("along.")}
        if along and not isinstance(llm, GradientLLM):
            raise ArtifactMismatch(
                f"the gate in {folder} reads gradients, and {llm.name} has none. Load local "
                "weights with TransformersLLM, or fit a gate with gradients='never'."
            )
        own, data = own_signals(signals), parts.get("data", "")
        if lacks := [name for name in fitted.names if name not in SIGNALS and name not in own]:
            raise InvalidInput(
                f"the gate in {folder} reads {lacks}, which are signals of yours; hand them in "
                f"again, as to the fit: signals={{{lacks[0]!r}: ...}}"
            )
        return cls(fitted, world, report, along or None, own, data)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the gate; an older one in the same folder is replaced file by file, JSON last."""
        learned = {"gate": self.fitted, "report": self.report, "data": self.data}
        arrays = {f"along.{name}": array for name, array in (self.along or {}).items()}
        parts = names_of(self.world) | learned
        artifacts.write(folder, "gate", parts, arrays=arrays, format=_FORMAT)

    def deciding(self, question: str) -> Flow[Decision]:
        """The flow: draft an answer, read it, decide."""
        return self.fitted.judge((yield from self.gathering(question)))

    def gathering(self, question: str) -> Flow[Evidence]:
        """The flow that drafts an answer and gathers what the gate reads."""
        parts = {"vectors": self.world.encoder is not None, "along": self.along}
        return drafting(question, self.fitted.settings, own=self.signals, **parts)

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

    def decide_many(
        self,
        questions: Sequence[str],
        *,
        observers: Iterable[Observer] = (),
        return_exceptions: bool = False,
    ) -> list[Any]:
        """A `Decision` for each question, by one merged model call; or, if `return_exceptions`,
        what a question raised."""
        flows = [self.deciding(question) for question in listed(questions, "questions")]
        return run_many(flows, self.world, observers=observers, return_exceptions=return_exceptions)

    def judge(self, evidence: Evidence) -> Decision:
        """Decide from evidence already at hand; see `FittedGate.judge`."""
        return self.fitted.judge(evidence)

    def explanation(self, decision: Decision) -> str:
        """A decision, and where it and each signal stand among the questions of the fit."""
        fitted, wrong, why = self.fitted, "", decision.reason
        if np.isfinite(fitted.threshold) and decision.answer:
            others = f"of the {self.report.questions} questions of the fit"
            rate = f"{100 * np.mean(fitted.scores >= fitted.threshold):.3g}%"
            if fitted.gain is None:
                surer = 100 * np.mean(fitted.scores > decision.score)
                why = f"surer than {surer:.3g}% {others}; the least sure {rate} retrieve"
            else:
                more = 100 * np.mean(fitted.scores < decision.score)
                why = f"more to gain than for {more:.3g}% {others}; the top {rate} retrieve"
        if fitted.calibrator is not None:
            wrong = f", wrong with probability {percent(decision.probability)}"
        verdict, rows = "retrieve" if decision.retrieve else "answer directly", []
        for (name, value), points in zip(
            decision.ingredients.items(), fitted.quantiles, strict=bool(decision.ingredients)
        ):
            surer = np.mean([points > value, points >= value])  # equal ones count half
            row = name, f"{value:.3g}", "surer than"
            if known := SIGNALS.get(name):
                row = known.about, known.shown(value), known.than
            rows.append((*row[:2], f"{row[2]} {surer:.0%}"))
        wide, high = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
        lines = [f"{verdict}: {why}", f"draft{wrong}: {decision.answer!r}"]
        return "\n".join([*lines, *(f"  {a:<{wide}}  {b:>{high}}  {c}" for a, b, c in rows)])


def _tried(flows: list[Any], **how: Any) -> list[list[Any]]:
    """As `run_many`, each in a list: an error is a result too, which costs its question alone."""
    return [[one] for one in run_many(flows, return_exceptions=True, **how)]


def read_gate(folder: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a saved gate consists of, its `gate` and `report` among it, and its arrays."""
    folder = path_of(folder)
    remedy = "Fit it again: GECEGate.fit(...).save(folder), or 'ltrag gate fit'."
    with artifacts.reading(f"{folder} holds no readable gate", remedy):
        kinds = (FittedGate, FitReport, *_SCORERS, *_LEARNED, *_GIVEN)
        known: Any = {"parts": ("llm", "encoder", "gate", "report"), "optional": ("data",)}
        parts, arrays = artifacts.read(folder, "gate", kinds=kinds, format=_FORMAT, **known)
        fitted, report = parts["gate"], parts["report"]
        if not isinstance(fitted, FittedGate) or not isinstance(report, FitReport):
            raise ValueError("gate.json holds something else than a gate and its report")
    return parts, arrays


def names_of(world: World) -> dict[str, object]:
    """The names of its model and encoder; None where there is none."""
    return {role: getattr(getattr(world, role), "name", None) for role in ("llm", "encoder")}
