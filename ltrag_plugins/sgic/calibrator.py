"""The calibrator: a model, what was fitted on it, and when to refuse, for one question or many.

A calibration on disk is `sgic.json` (readable) and `sgic.safetensors` (numbers); no pickle.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, final

from ltrag_plugins import artifacts
from ltrag_plugins.calibration import CalibrationMethod, Isotonic, Platt
from ltrag_plugins.data import check_labelled
from ltrag_plugins.errors import InvalidInput, NoTokenProbabilities, checked, listed, path_of
from ltrag_plugins.flow import (
    Flow,
    Observer,
    World,
    arun,
    arun_steps,
    check_world,
    run,
    run_many,
    run_steps,
)
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.prompts.templates import render_question, searching_for
from ltrag_plugins.settings import Percent, Settings, Share
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, plural
from ltrag_plugins.sgic.documents import Relevance, check_source
from ltrag_plugins.sgic.loop import calibrate
from ltrag_plugins.sgic.prompts import PromptTemplates
from ltrag_plugins.sgic.scale import FEWEST, ScoreScale, WrongnessCalibration
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Passage, Question
from ltrag_plugins.uncertainty import AGREEMENT

if TYPE_CHECKING:  # it imports this file
    from ltrag_plugins.sgic.fitting import FitReport

_REFUSAL = "I am not sure enough to answer."
_FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a fit hands to `Calibrator`; parts of several raise `ArtifactMismatch`."""

    settings: SGICSettings
    scale: ScoreScale
    """Of the settings' estimator."""
    wrongness: WrongnessCalibration | None = None
    data: str = field(default="", compare=False)
    """How many questions it was fitted on, and their hash; "" where that is not known."""
    encoder: str = field(default="", compare=False)
    """The name of the one that scores documents; "" where none does, or that is not known."""

    def __post_init__(self) -> None:
        self.scale.check(self.settings.estimator)
        if self.wrongness is not None:
            self.wrongness.check(self.scale)

    def save(self, folder: str | PathLike[str], *, llm: LLM) -> None:
        """Write it, with the name of the model it was fitted on; an older one is replaced."""
        names = ["settings", "scale", "wrongness", "data"] + (["encoder"] if self.encoder else [])
        parts = {name: getattr(self, name) for name in names} | {"llm": llm.name}
        artifacts.write(folder, "sgic", parts, format=_FORMAT)

    @classmethod
    def estimator_of(cls, folder: str | PathLike[str]) -> str:
        """What the calibration in a folder reads, before there is a model; raises as `load`."""
        return _read(folder)[1].settings.estimator

    @classmethod
    def load(cls, folder: str | PathLike[str], *, llm: LLM) -> "Calibration":
        """Read one of this model (or `ArtifactMismatch`), whole (or `UnreadableArtifact`)."""
        check_world(World(llm=llm))
        name, found = _read(folder)
        artifacts.check_part(f"the calibration in {folder}", "model", name, llm.name)
        return found


@dataclass(frozen=True, slots=True)
class Refusal(Settings):
    """When to keep an answer back; without a limit none is."""

    refuse_above: Percent | None = None
    """Keep back answers with a score above this, 0-100."""
    refuse_p_wrong_above: Share | None = None
    """Keep back answers wrong with a probability above this, 0-1, or without one (as an answer
    without documents is)."""
    refusal: str = _REFUSAL
    """What is said instead."""

    def refuses(self, answer: CalibratedAnswer) -> bool:
        """Whether this answer is kept back; the answer itself is not changed."""
        score, p_wrong = self.refuse_above, self.refuse_p_wrong_above
        likely = p_wrong is not None and (answer.p_wrong is None or answer.p_wrong > p_wrong)
        return likely or (score is not None and answer.score > score)

    def said(self, answer: CalibratedAnswer) -> str:
        """The answer's text, or the refusal."""
        return self.refusal if self.refuses(answer) else answer.text


class CalibratorOptions(TypedDict, total=False):
    """What every integration takes beside a model and a calibration; see `Calibrator`."""

    settings: SGICSettings | None
    relevance: Relevance | None
    encoder: Any
    refuse_above: float | None
    refuse_p_wrong_above: float | None
    refusal: str


class _FitArguments(TypedDict, total=False):
    """What `sgic.fit` takes beside questions and a model."""

    settings: SGICSettings | None
    metric: Literal["em", "f1", "contains"]
    level: float
    cut_to: Sequence[int]
    samples: int | Literal["equal"]
    method: CalibrationMethod
    relevance: Relevance | None
    encoder: Encoder | None
    observers: Iterable[Observer]
    batch: int | None


@final
class Calibrator:
    """Answers from passages, says how sure it is, and with rounds looks again while it is unsure;
    safe to share between threads. What is of another type or out of its range raises
    `InvalidInput`; a calibration of another estimator `ArtifactMismatch`.

    Args:
        calibration: what a fit on your questions found; the log warns of rounds without one.
        settings: None: those of the calibration, or the defaults, which have no rounds.
        relevance, encoder: score passages, for the settings' `source` of that name.
        refuse_above, refuse_p_wrong_above, refusal: see `Refusal`; a limit on P(wrong) needs a
            calibration that gives it.
    """

    llm: LLM
    settings: SGICSettings
    scale: ScoreScale
    relevance: Relevance | None
    world: World
    refusal: Refusal
    calibration: Calibration | None
    """With the settings in use; None where none was handed in."""
    report: "FitReport | None"
    """What `fit` found."""

    def __init__(
        self,
        llm: LLM,
        *,
        calibration: Calibration | None = None,
        settings: SGICSettings | None = None,
        relevance: Relevance | None = None,
        encoder: Encoder | None = None,
        refuse_above: float | None = None,
        refuse_p_wrong_above: float | None = None,
        refusal: str = _REFUSAL,
    ) -> None:
        checked(llm, LLM, "llm", "an ltrag_plugins LLM (TransformersLLM, ...)")
        check_world(world := World(llm=llm, encoder=encoder))
        wanted = "a Calibration (a folder: from_pretrained)"
        checked(calibration, Calibration | None, "calibration", wanted)
        checked(settings, SGICSettings | None, "settings", "an SGICSettings")
        settings = settings or (calibration.settings if calibration else SGICSettings())
        given = calibration or Calibration(settings, ScoreScale(settings.estimator))
        check_source(settings.source, relevance=relevance, encoder=encoder)
        reads = getattr(encoder, "name", "") if settings.source == "encoder" else ""
        if given.encoder and reads:
            artifacts.check_part("the calibration", "encoder", given.encoder, reads)
        self._used = used = replace(given, settings=settings, encoder=reads)
        self.settings, self.scale, self.relevance = settings, used.scale, relevance
        self.calibration = used if calibration else None
        self.llm, self.world = llm, world
        self.refusal = Refusal(refuse_above, refuse_p_wrong_above, refusal)
        self._text_tier = False
        self.report = None
        if refuse_p_wrong_above is not None and used.wrongness is None:
            needs = "refuse_p_wrong_above needs a calibration= that gives P(wrong)"
            if calibration:
                fewest = f"{FEWEST} right and {FEWEST} wrong answers"
                needs = f"{needs}, and this one gives none: a fit needs {fewest} for it, or more. "
                needs += "Fit on more questions"
            raise InvalidInput(f"{needs}, or refuse by the score, 0-100: refuse_above=")
        if refuse_above is not None and 0 < refuse_above < 1:
            told = "refuse_above is a score from 0 to 100, so %g refuses nearly all answers; a "
            _log.warning(f"{told}probability goes into refuse_p_wrong_above", refuse_above)
        if calibration is None and settings.rounds:
            _log.warning(
                "without a calibration: up to %s after an answer that is not certain, not tried on "
                "this model; whether rounds pay, 'ltrag calibrate fit' (sgic.fit) tells on your "
                "labelled questions, and SGICSettings(rounds=0) leaves them out",
                plural(settings.rounds, "round"),
            )
        elif settings.cut_to and not settings.rounds:
            _log.warning("cut_to is of rounds, and there are none; set rounds=1 to look again")
        elif used.wrongness is not None and calibration != used:
            others = "these are others, so take it as a guess, or fit with these"
            _log.warning("P(wrong) was fitted with the calibration's own settings; %s", others)

    @classmethod
    def fit(
        cls, questions: Iterable[Question], *, llm: LLM, **arguments: Unpack[_FitArguments]
    ) -> Self:
        """Keep what pays on your labelled questions; arguments and errors are those of `sgic.fit`,
        figures are in `report`. To refuse answers, hand `calibration` to a new one."""
        from ltrag_plugins.sgic.fitting import fit

        calibration, report = fit(questions, llm, **arguments)
        judges: Any = {name: arguments.get(name) for name in ("relevance", "encoder")}
        made = cls(llm, calibration=calibration, **judges)
        made.report = report
        return made

    @classmethod
    def load(
        cls, folder: str | PathLike[str], *, llm: LLM, **options: Unpack[CalibratorOptions]
    ) -> Self:
        """With the calibration that `save` wrote; raises as `Calibration.load`."""
        return cls(llm, calibration=Calibration.load(folder, llm=llm), **options)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write settings, scale and P(wrong); see `Calibration.save`."""
        self._used.save(folder, llm=self.llm)

    def answering(
        self,
        question: str,
        passages: Sequence[Passage] = (),
        on_round: Callable[[Round], None] | None = None,
    ) -> Flow[CalibratedAnswer]:
        """The flow; see `sgic.calibrate` for what it raises. Where the model's server refuses
        log-probabilities and nothing was fitted on them, the estimator is "agreement"."""
        how: Any = {"relevance": self.relevance, "on_round": on_round}
        calibrating = partial(calibrate, question, passages, **how)
        wrongness = self._used.wrongness
        try:
            if not self._text_tier:
                return (yield from calibrating(self.settings, self.scale, wrongness=wrongness))
        except NoTokenProbabilities:
            if self.calibration or "logprobs" not in getattr(self.llm, "refused", ()):
                raise
            if not self._text_tier:
                self._text_tier, told = True, (self.llm.name, self.settings.samples, AGREEMENT)
                _log.warning("%s refuses log-probabilities: %d samples an answer (%s)", *told)
        return (yield from calibrating(replace(self.settings, estimator=AGREEMENT)))

    def answer(self, question: str, passages: Sequence[Passage] = ()) -> CalibratedAnswer:
        """Answer one question, see `sgic.calibrate`; `refusal.said(answer)` keeps it back."""
        return run(self.answering(question, passages), self.world)

    async def aanswer(self, question: str, passages: Sequence[Passage] = ()) -> CalibratedAnswer:
        """As `answer`; a cancellation stops before the next model call."""
        return await arun(self.answering(question, passages), self.world)

    def answer_many(
        self,
        questions: Iterable[Question],
        *,
        observers: Iterable[Observer] = (),
        batch: int | None = None,
    ) -> list[CalibratedAnswer]:
        """As `answer` for each question; a round of all is one call, of at most `batch` prompts."""
        asked = listed(questions, "questions")
        check_labelled(asked, answers=False)
        flows = [
            searching_for([question], self.answering(render_question(question), question.passages))
            for question in asked
        ]
        return run_many(flows, self.world, observers=observers, batch=batch)

    def stream(
        self, question: str, passages: Sequence[Passage] = ()
    ) -> Iterator[Round | CalibratedAnswer]:
        """The answer of each round as it comes, and what `answer` gives as the last."""
        rounds: list[Round] = []
        for step in run_steps(self.answering(question, passages, rounds.append), self.world):
            while rounds:
                yield rounds.pop(0)
            if step is not None:
                yield step.value

    async def astream(
        self, question: str, passages: Sequence[Passage] = ()
    ) -> AsyncGenerator[Round | CalibratedAnswer, None]:
        """As `stream`; close it (`aclosing`) when leaving early."""
        rounds: list[Round] = []
        flow = self.answering(question, passages, rounds.append)
        async with aclosing(arun_steps(flow, self.world)) as steps:
            async for step in steps:
                while rounds:
                    yield rounds.pop(0)
                if step is not None:
                    yield step.value


def _read(folder: str | PathLike[str]) -> tuple[str, Calibration]:
    """The model's name, and what was fitted on it."""
    kinds = (Isotonic, Platt, PromptTemplates, ScoreScale, SGICSettings, WrongnessCalibration)
    folder, remedy = path_of(folder), "Fit one again and save it."
    with artifacts.reading(f"{folder} holds no readable calibration", remedy):
        known: Any = {"parts": ("llm", "settings", "scale", "wrongness")}
        known["optional"] = ("data", "encoder")
        parts, _ = artifacts.read(folder, "sgic", kinds=kinds, format=_FORMAT, **known)
        return parts.pop("llm"), Calibration(**parts)
