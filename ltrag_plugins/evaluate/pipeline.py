"""All three at once: gate, reranker and calibrator, each where it paid (`fitting`, `choice`).

A saved pipeline is a folder of `longtail.json` and, of what was kept, `gate/`, `head/` and
`calibration/`; no pickle.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from ltrag_plugins import artifacts
from ltrag_plugins.dur.prompts import FORMATS, PromptFormat
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.errors import InvalidInput, checked, listed, path_of
from ltrag_plugins.evaluate.choice import Goal, PipelineReport, Retrieves, Verdict, WayFigures
from ltrag_plugins.evaluate.gating import RunGate
from ltrag_plugins.flow import Flow, Observer, World, arun, ask, fetch, run, run_many
from ltrag_plugins.gece.decision import Decision, guarded, shows
from ltrag_plugins.gece.gate import GECEGate
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import drafting
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.methods.dur import reranked
from ltrag_plugins.metrics import calibration
from ltrag_plugins.metrics.calibration import Interval, Reliability
from ltrag_plugins.prompts.templates import NOT_TEXT, standalone
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.settings import Count, Range, Settings, Whole
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.calibrator import Calibration, Refusal
from ltrag_plugins.sgic.documents import check_source
from ltrag_plugins.sgic.loop import Session, calibrate
from ltrag_plugins.sgic.prompts import PromptTemplates
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Answer, Question

_FORMAT = 1


def _ranking() -> DURSettings:
    """Fewer epochs than DUR's own: an app developer waits for the fit."""
    form = replace(FORMATS["passages"], context_words=150)
    return DURSettings(format=form, shots=3, batch_size=10, epochs=2, learning_rate=1e-3)


@dataclass(frozen=True)
class LongTailSettings(Settings):
    """How a pipeline answers, and how its parts are fitted."""

    k: Count = 3
    """Passages to read; of reranked ones the ranker says how many."""
    found: Count = 10
    """Passages that the reranker orders."""
    held_out: Annotated[float, Range(above=0, below=1)] = 0.4
    """Share of the questions that all ways are judged on; the parts are fitted on the others."""
    gate: GECESettings = field(default_factory=GECESettings)
    """Of the gate, and of the direct answer; `gate.correct` says when an answer is right."""
    ranking: DURSettings = field(default_factory=_ranking)
    """Of the reranker's training; its `shots` are the most passages to read."""
    reading: SGICSettings = field(default_factory=lambda: SGICSettings(rounds=2))
    """How passages are read, and how the calibrator may look again."""
    seed: Whole = 0
    """Of the split and the intervals."""


@dataclass(frozen=True, slots=True)
class LongTailAnswer(Answer):
    """An answer that knows how sure it is; `text` is the refusal where it is kept back."""

    p_wrong: float | None = None
    """Probability that it is wrong, in [0, 1]; of a direct answer the gate's."""
    refused: bool = False
    decision: Decision | None = field(default=None, repr=False)
    """The gate's, where there is one."""
    calibrated: CalibratedAnswer | None = field(default=None, repr=False)
    """What the calibrator knows of an answer from passages."""
    question: str = field(default="", repr=False)
    """As it was answered: standing alone."""


@dataclass(frozen=True, eq=False)
class LongTailRAG:
    """Answers with the parts that paid; `fit` or `load` makes one. Safe to share between threads.

    Raises:
        InvalidInput: `refusal` has a limit on P(wrong), which this pipeline does not know.
    """

    world: World
    settings: LongTailSettings
    retrieves: Retrieves = "always"
    gate: GECEGate | None = None
    """Decides, if it retrieves "gated"; where it never does, it knows P(wrong)."""
    ranker: DURRanker | None = None
    calibration: Calibration | None = None
    """Of answers from passages; None: plain ones, of a model without token probabilities."""
    refusal: Refusal = field(default_factory=Refusal)
    """When to keep an answer back, by P(wrong) alone."""
    report: PipelineReport | None = None
    """What the fit found."""
    data: str = ""
    """How many questions it was fitted on, and their hash; "" where that is not known."""

    def __post_init__(self) -> None:
        if self.refusal.refuse_above is not None:
            raise InvalidInput("a pipeline refuses by P(wrong): refuse_p_wrong_above=")
        if self.refusal.refuse_p_wrong_above is not None and not self.knows_p_wrong:
            raise InvalidInput(
                "this pipeline does not know P(wrong), so it cannot refuse by it: the fit had too "
                "few right or wrong answers, no accepted ones, or a model without token "
                "probabilities (settings: reading.estimator='agreement')"
            )

    @classmethod
    def fit(
        cls,
        questions: Sequence[Question | str],
        *,
        llm: LLM,
        retriever: Retriever,
        encoder: Encoder | None = None,
        target_accuracy: float | Literal["always"] | None = None,
        budget: float | None = None,
        correct: Callable[[str, str, str], Any] | LLM | None = None,
        settings: LongTailSettings | None = None,
        observers: Iterable[Observer] = (),
        on_stage: Callable[[str], None] | None = None,
        batch: int | None = None,
    ) -> Self:
        """Fit the parts on some of the questions, and keep those that pay on the others.

        Args:
            questions: like those to come, better 200; at least 20. Without accepted answers an
                answer is right that agrees with the one with retrieval: that fits a gate, while
                reranker and calibrator need accepted ones, as they change that very answer.
            encoder: for the reranker; also sharpens the gate.
            target_accuracy, budget: see `Goal`; "always" by default.
            correct: judges long answers; see `GECEGate.fit`.
            on_stage: is told what is being done.
            batch: most prompts of one model call.

        Raises:
            CalibrationError: too few questions; the model or the retriever fails on most of them.
            InvalidInput: model, retriever or encoder are none of ours; two targets.
        """
        from ltrag_plugins.evaluate.fitting import Bench, fit  # imports this file

        world = World(llm=llm, retriever=retriever, encoder=encoder)
        settings = settings or LongTailSettings()
        checked(settings, LongTailSettings, "settings", "LongTailSettings(...)")
        bench = Bench(world, settings, correct, tuple(observers), batch)
        goal = Goal(target_accuracy, budget)
        return fit(cls, questions, bench, goal, on_stage or (lambda _: None))

    @property
    def knows_p_wrong(self) -> bool:
        """Whether all answers come with P(wrong)."""
        if self.retrieves == "never":
            return self.gate is not None
        return self.calibration is not None and self.calibration.wrongness is not None

    def refusing(self, p_wrong_above: float | None, refusal: str = "") -> Self:
        """The same, keeping back answers that are wrong with a larger probability, 0 to 1, and
        saying the refusal in their place; "": the one that it has."""
        said = refusal or self.refusal.refusal
        return replace(self, refusal=Refusal(None, p_wrong_above, said))

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        llm: LLM,
        retriever: Retriever | None = None,
        encoder: Encoder | None = None,
    ) -> Self:
        """Read a saved pipeline; the parts are checked as by their own `load`.

        Args:
            retriever: needed unless the pipeline never retrieves.
            encoder: the fit's, where gate, reranker or calibrator read vectors; else left alone.

        Raises:
            UnreadableArtifact: the folder is missing, incomplete or tampered with.
            ArtifactMismatch: it was fitted with another model or encoder.
            InvalidInput: there is no retriever, or no encoder, and it needs one.
        """
        path = path_of(folder)
        world = World(llm=llm, retriever=retriever, encoder=encoder)
        remedy = "Fit it again: LongTailRAG.fit(...).save(folder), or 'ltrag fit'."
        with artifacts.reading(f"{path} holds no readable pipeline", remedy):
            known: Any = {"kinds": _KINDS, "format": _FORMAT, "optional": ("data", "hashes")}
            parts = (*_SAVED, "llm", "kept", "encoder")
            saved, _ = artifacts.read(path, "longtail", parts=parts, **known)
            name, kept, reads = (saved.pop(one) for one in ("llm", "kept", "encoder"))
            for part, written in saved.pop("hashes", {}).items():
                if artifacts.content_hash(path / _FILES[part].parent, _FILES[part].name) != written:
                    raise ValueError(f"{_FILES[part].parent}/ is not the one of this fit")
        artifacts.check_part(f"the pipeline in {path}", "model", name, llm.name)
        if retriever is None and saved["retrieves"] != "never":
            raise InvalidInput(f"the pipeline in {path} retrieves: give it a retriever")
        if encoder is None and "ranker" in kept:
            raise InvalidInput(f"the pipeline in {path} reranks: give it the fit's encoder")
        if "gate" in kept:
            saved["gate"] = RunGate.load(path / "gate", world)
        if "ranker" in kept and encoder is not None:
            saved["ranker"] = DURRanker.load(path / "head", encoder=encoder)
        if "calibration" in kept:
            saved["calibration"] = calibration = Calibration.load(path / "calibration", llm=llm)
            check_source(source := calibration.settings.source, encoder=encoder)
            if source == "encoder" and encoder is not None:
                artifacts.check_part(f"the pipeline in {path}", "encoder", reads, encoder.name)
        return cls(world=world, **saved)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write what was kept; an older pipeline in the same folder is replaced, its JSON last."""
        path, llm = path_of(folder), self.world.llm
        if llm is None:
            raise InvalidInput("a pipeline needs a model: World(llm=...)")
        ranking = self.settings.ranking
        if not isinstance(ranking.reward, str):  # a function cannot be written
            ranking = replace(ranking, reward="match")
        if self.gate is not None:
            self.gate.save(path / "gate")
        if self.ranker is not None:
            self.ranker.save(path / "head")
        if self.calibration is not None:
            self.calibration.save(path / "calibration", llm=llm)
        parts: dict[str, Any] = {name: getattr(self, name) for name in _SAVED}
        parts["settings"] = replace(self.settings, ranking=ranking)
        kept = [name for name in _FILES if getattr(self, name) is not None]
        parts |= {"llm": llm.name, "kept": kept, "data": self.data}
        files = ((part, _FILES[part]) for part in kept)
        parts["hashes"] = {p: artifacts.content_hash(path / f.parent, f.name) for p, f in files}
        parts["encoder"] = getattr(self._encoder, "name", None)
        artifacts.write(path, "longtail", parts, format=_FORMAT)

    def answering(
        self, question: str, *, history: Sequence[tuple[str, str]] = ()
    ) -> Flow[LongTailAnswer]:
        """The flow: decide, and answer directly or from passages. A question with a `history` is
        made to stand alone first. Where the gate's model fails, the question retrieves."""
        checked(question, str, "a question", "a string")
        if picture := NOT_TEXT * (NOT_TEXT in question or shows(history)):  # its words are read
            question = question.replace(NOT_TEXT, "").strip()
        if words(question):  # an emoji is no question, and is made none
            question = yield from standalone(question, history)
        answer = replace((yield from self._deciding(question, picture)), question=question)
        most, p_wrong = self.refusal.refuse_p_wrong_above, answer.p_wrong
        if most is None or (p_wrong is not None and p_wrong <= most):
            return answer
        return replace(answer, text=self.refusal.refusal, refused=True)

    def answer(self, question: str, *, observers: Iterable[Observer] = ()) -> LongTailAnswer:
        """Answer one question; raises what its parts raise."""
        return run(self.answering(question), self.world, observers=observers)

    async def aanswer(self, question: str, *, observers: Iterable[Observer] = ()) -> LongTailAnswer:
        """As `answer`, on an event loop."""
        return await arun(self.answering(question), self.world, observers=observers)

    def answer_many(
        self,
        questions: Iterable[str],
        *,
        observers: Iterable[Observer] = (),
        batch: int | None = None,
    ) -> list[LongTailAnswer]:
        """As `answer` for each question, with merged calls; see `run_many`."""
        flows = [self.answering(question) for question in listed(questions, "questions")]
        return run_many(flows, self.world, observers=observers, batch=batch)

    def _deciding(self, question: str, picture: str) -> Flow[LongTailAnswer]:
        if self.retrieves == "always":
            return (yield from self._reading(question))
        if self.gate is None:
            draft = (yield from drafting(question, self.settings.gate)).draft
            return LongTailAnswer(draft.text.strip(), trace=(draft,))
        never = self.retrieves == "never"
        asked = question if never else question + picture
        decision = yield from guarded(asked, self.gate, "raise" if never else "retrieve")
        if decision.retrieve and not never:
            return replace((yield from self._reading(question)), decision=decision)
        sure, trace = decision.probability, (decision.draft,)
        return LongTailAnswer(decision.answer, sure, (), trace, sure, decision=decision)

    def _reading(self, question: str) -> Flow[LongTailAnswer]:
        """Search, rerank, read, and look again, as far as the parts are there."""
        settings, ranker, fitted = self.settings, self.ranker, self.calibration
        [found] = yield from fetch(question, k=settings.found if ranker else settings.k)
        if ranker is not None and found:
            found = yield from reranked(question, found, ranker, ranker.shots)
        if fitted is None:  # of a model that does not say how sure it is: the first prompt alone
            reading = settings.reading
            prompt = Session(question, found, reading).prompt()
            [reply] = yield from ask(prompt, max_tokens=reading.answer_tokens, stop=reading.stop)
            return LongTailAnswer(reply.text.strip(), passages=tuple(found), trace=(reply,))
        how: Any = {"wrongness": fitted.wrongness}
        answer = yield from calibrate(question, found, fitted.settings, fitted.scale, **how)
        trace = tuple(said for one in answer.trace for said in (one.generation, *one.samples))
        about = answer.uncertainty, tuple(found), trace, answer.p_wrong
        return LongTailAnswer(answer.text, *about, calibrated=answer)

    @property
    def _encoder(self) -> Encoder | None:
        """The one that the kept parts read vectors of."""
        if self.ranker is not None:
            return self.ranker.encoder
        if self.calibration is not None and self.calibration.settings.source == "encoder":
            return self.world.encoder
        return None if self.gate is None else self.gate.world.encoder


_SAVED = ("settings", "retrieves", "refusal", "report")
_FILES = {
    "gate": Path("gate/gate"),
    "ranker": Path("head/dur"),
    "calibration": Path("calibration/sgic"),
}
_KINDS = (
    LongTailSettings,
    GECESettings,
    DURSettings,
    PromptFormat,
    SGICSettings,
    PromptTemplates,
    Refusal,
    PipelineReport,
    Verdict,
    WayFigures,
    Interval,
    Reliability,
    calibration._Bin,
)
