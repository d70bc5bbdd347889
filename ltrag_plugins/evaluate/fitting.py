"""Fit a `LongTailRAG`: its parts on some of the questions, and the choice among them on the others.

Everything is asked through an answer cache, so that no prompt is paid for twice, and each answer
counts with the tokens and seconds that it took when it was written.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import numpy as np
from jaxtyping import Bool, Int

from ltrag_plugins.data import digest_of
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.train import DURTrainer
from ltrag_plugins.errors import CalibrationError, InvalidInput, LtragError, NoTokenProbabilities
from ltrag_plugins.evaluate.choice import Goal, Trials, Way
from ltrag_plugins.evaluate.pipeline import LongTailAnswer, LongTailRAG, LongTailSettings
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.run import ENDS, FlowWatch
from ltrag_plugins.flow import Flow, Observer, World, check_world, embed, fetch, run, run_many
from ltrag_plugins.gece import labels
from ltrag_plugins.gece.gate import GECEGate
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.metrics.cost import Cost
from ltrag_plugins.prompts.templates import render_question, searching_for
from ltrag_plugins.sgic.calibrator import Calibration
from ltrag_plugins.sgic.fitting import fit as fit_calibration
from ltrag_plugins.sgic.scale import ScoreScale, WrongnessCalibration
from ltrag_plugins.types import Answer, Question

_ENDS = (*ENDS, NoTokenProbabilities)
_FEWEST = 10  # questions with accepted answers for reranker and calibrator
_Pipeline = TypeVar("_Pipeline", bound=LongTailRAG)
_Rows = Int[np.ndarray, " rows"]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Asked:
    """Questions that were answered with and without retrieval."""

    questions: Sequence[Question]
    known: Sequence[Question]
    """The same, the answer with retrieval in the place of missing accepted ones."""
    stands_in: Bool[np.ndarray, " questions"]
    always: Sequence[LongTailAnswer]
    strata: Int[np.ndarray, " questions"]
    """By which of the two answers are right."""

    def split(self, held_out: float, seed: int) -> tuple[_Rows, _Rows]:
        """Rows to fit on, and rows to judge on: alike in which answers are right."""
        rng, judged = np.random.default_rng(seed), list[int]()
        for kind in np.unique(self.strata):
            rows = rng.permutation(np.flatnonzero(self.strata == kind))
            judged += rows[: round(held_out * len(rows))].tolist()
        return np.setdiff1d(np.arange(len(self.strata)), judged), np.array(sorted(judged))


@dataclass(frozen=True)
class Bench:
    """What asks questions, and judges the answers."""

    world: World
    settings: LongTailSettings
    judge: Any
    observers: tuple[Observer, ...]
    batch: int | None

    def run(
        self,
        questions: Sequence[Question],
        flow: Callable[[str], Flow[Any]],
        *,
        searches: bool = True,
    ) -> tuple[list[Any], list[Cost]]:
        """What came of each question (what failed is its error), and what it cost."""
        watch = FlowWatch(False)
        flows = [flow(render_question(question)) for question in questions]
        if searches:  # else the gate alone encodes: the whole question, as in its fit
            flows = [searching_for([q], one) for q, one in zip(questions, flows, strict=True)]
        watching = (watch, *self.observers)
        found = run_many(
            flows, self.world, observers=watching, batch=self.batch, return_exceptions=True
        )
        for one in found:
            expected = isinstance(one, LtragError) and not isinstance(one, _ENDS)
            if isinstance(one, Exception) and not expected:
                raise one
        return found, [watch.seen(i)[0] for i in range(len(found))]

    def right(
        self, known: Sequence[Question], answers: Sequence[Any], stands_in: Sequence[bool]
    ) -> Bool[np.ndarray, " questions"]:
        """Whether each answer is right; one that failed is not."""
        texts = ["" if isinstance(one, Exception) else one.text for one in answers]
        rows, rule = [*zip(known, texts, stands_in, strict=True)], self.settings.gate.correct
        return np.array(labels.labels_of(rows, rule, self.judge), dtype=bool)

    def records(
        self, asked: _Asked, rows: _Rows, pipeline: LongTailRAG
    ) -> tuple[list[Record], list[LongTailAnswer]]:
        """A record of each of these questions, answered by a pipeline."""
        known = [asked.known[i] for i in rows]
        given, searches = [asked.questions[i] for i in rows], pipeline.retrieves != "never"
        found, costs = self.run(given, pipeline.answering, searches=searches)
        right = self.right(known, found, asked.stands_in[rows].tolist())
        answers = [LongTailAnswer("") if isinstance(one, Exception) else one for one in found]
        records = []
        for i, answer in enumerate(answers):
            failed = found[i] if isinstance(found[i], Exception) else None
            told = {"scores": {"right": float(right[i])}, "error": failed and repr(failed)}
            question = replace(known[i], id=str(rows[i]))
            records.append(Record.of(question, answer, answer.decision, costs[i], **told))
        return records, answers


def fit(
    kind: type[_Pipeline],
    questions: Sequence[Question | str],
    bench: Bench,
    goal: Goal,
    on_stage: Callable[[str], None],
) -> _Pipeline:
    """See `LongTailRAG.fit`."""
    labels.check_scorer(bench.settings.gate)
    world = bench.world
    labels.check_count(questions)
    check_world(world)
    given = [Question(one) if isinstance(one, str) else one for one in questions]
    labels.check_labelled(given, answers=False)
    labels.check_askable(map(render_question, given), bench.settings.gate.max_words)
    _check_held_out(len(given), bench.settings.held_out)
    llm = cast("LLM", world.llm)
    with (
        TemporaryDirectory() as folder,
        _remembering(llm, folder) as cached,
        _remembering(bench.judge, folder) as judge,
    ):
        bench = replace(bench, world=replace(world, llm=cached), judge=judge)
        pipeline = _fitted(kind(bench.world, bench.settings), bench, given, goal, on_stage)
    gate, needs = pipeline.gate, pipeline.gate or pipeline._encoder
    if gate is not None:
        gate = replace(gate, world=replace(gate.world, llm=llm))
    world = world if needs else replace(world, encoder=None)
    return replace(pipeline, world=world, gate=gate, data=digest_of(given))


def _remembering(part: Any, folder: str) -> AbstractContextManager[Any]:
    """The model, or the function that judges, so that it is asked nothing twice."""
    if isinstance(part, LLM):
        kept = isinstance(part, CachedLLM)
        return nullcontext(part) if kept else CachedLLM(part, Path(folder) / "answers.sqlite")
    return nullcontext(cache(part) if callable(part) else part)


def _fitted(
    plain: _Pipeline,
    bench: Bench,
    given: Sequence[Question],
    goal: Goal,
    on_stage: Callable[[str], None],
) -> _Pipeline:
    settings, untried = bench.settings, dict[str, str]()
    on_stage("answering with and without retrieval")
    reading = replace(settings.reading, rounds=0)
    base = replace(plain, calibration=Calibration(reading, ScoreScale(reading.estimator)))
    try:
        asked = _answered(bench, given, plain, base)
    except NoTokenProbabilities as error:
        base = plain
        asked = _answered(bench, given, plain, base)
        untried["calibrator"] = f"the model gives no token probabilities ({error})"
    _check_held_out(len(asked.questions), settings.held_out)
    train, judged = asked.split(settings.held_out, settings.seed)
    labelled = [i for i in train if not asked.stands_in[i]]
    on_stage("fitting the gate")
    gate = _gate(bench, asked, train, goal, untried)
    on_stage("training the reranker")
    ranker = _ranker(bench, [asked.questions[i] for i in labelled], untried)
    on_stage("fitting the calibrator")
    looking = None
    if base.calibration is not None:
        known = [(asked.questions[i], asked.always[i]) for i in labelled]
        scale, looking = _calibration(bench, known, untried)
        if scale is not None:
            own = replace(base.calibration.settings, estimator=scale.estimator)
            base = replace(base, calibration=Calibration(own, scale))
    on_stage("judging all ways")
    records, pipelines, p_wrong = dict[Way, Any](), dict[Way, _Pipeline](), dict[Way, Any]()
    never = Way("never")
    pipelines[never] = replace(base, retrieves="never", gate=gate, calibration=None)
    records[never], drafts = bench.records(asked, judged, pipelines[never])
    p_wrong[never] = [one.p_wrong for one in drafts]
    for head, look in product([None, ranker] if ranker else [None], {False, looking is not None}):
        way = Way(ranks=head is not None, looks=look)
        one = replace(base, ranker=head, calibration=looking if look else base.calibration)
        one = _with_p_wrong(bench, asked, np.array(labelled, dtype=int), one)
        pipelines[way] = one
        records[way], answers = bench.records(asked, judged, one)
        p_wrong[way] = [answer.p_wrong for answer in answers]
        if gate is not None:
            gated = replace(way, retrieves="gated")
            pipelines[gated] = replace(one, retrieves="gated", gate=gate)
            records[gated] = [*map(_behind_gate, records[never], records[way])]
            pairs = zip(drafts, answers, strict=True)
            told = [b if a.decision is None or a.decision.retrieve else a for a, b in pairs]
            p_wrong[gated] = [one.p_wrong for one in told]
    trials = Trials(records, asked.stands_in[judged], goal, settings.seed)
    way, report = trials.report(fitted=len(train), untried=untried, p_wrong=p_wrong)
    if not report.met:
        _logger.warning("%s", report.notes[0])
    return replace(pipelines[way], report=report)


def _answered(
    bench: Bench, given: Sequence[Question], plain: LongTailRAG, base: LongTailRAG
) -> _Asked:
    """The questions with both answers; those on which either fails are left out."""
    direct = replace(plain, retrieves="never")
    always, _ = bench.run(given, base.answering)
    drafts, _ = bench.run(given, direct.answering)
    kept, failed = list[int](), list[Any]()
    for i, (question, *both) in enumerate(zip(given, always, drafts, strict=True)):
        errors = [one for one in both if isinstance(one, Exception)]
        accepted = any(answer.strip() for answer in question.answers)
        if errors:
            failed.append(errors[0])
        elif accepted or both[0].text.strip():
            kept.append(i)
    if len(left_out := set(range(len(given))) - {*kept}):
        why = f" fail ({failed[0]!r:.200})" if failed else " get no answer from retrieval"
        said = f"{len(left_out)} of {len(given)} questions{why}"
        if 2 * len(left_out) > len(given):
            raise CalibrationError(f"{said}: see that model and retriever answer them")
        _logger.warning("%s, and are left out", said)
    questions = [given[i] for i in kept]
    stands_in = [not any(map(str.strip, question.answers)) for question in questions]
    answers, direct_ones = ([some[i] for i in kept] for some in (always, drafts))
    rows = zip(questions, answers, stands_in, strict=True)
    known = [replace(q, answers=(a.text.strip(),)) if s else q for q, a, s in rows]
    right, own = (bench.right(known, some, stands_in) for some in (answers, direct_ones))
    return _Asked(questions, known, np.array(stands_in), answers, 2 * right + own)


def _check_held_out(questions: int, held_out: float) -> None:
    """Refuse a split that may leave no question to judge on: each of four strata is rounded."""
    if held_out * questions <= 2:
        told = f"held_out={held_out:g} of {questions} questions leaves too few to judge on"
        raise InvalidInput(
            f"{told}; set held_out above {2 / questions:.2g}, or give more questions"
        )
    if (fitting := questions - round(held_out * questions)) < labels.FEWEST_QUESTIONS:
        few = "%d of %d questions are left to fit a gate on, which needs %d: none will be fitted"
        _logger.warning(few, fitting, questions, labels.FEWEST_QUESTIONS)


def _gate(
    bench: Bench, asked: _Asked, rows: _Rows, goal: Goal, untried: dict[str, str]
) -> GECEGate | None:
    told = {render_question(asked.questions[i]): asked.always[i] for i in rows}

    def recorded(question: str) -> Flow[Answer]:
        yield from ()
        return told[question]

    world = bench.world
    try:
        return GECEGate.fit(
            [asked.questions[i] for i in rows],
            llm=cast("LLM", world.llm),
            encoder=world.encoder,
            retrieving=recorded,
            correct=bench.judge,
            settings=bench.settings.gate,
            observers=bench.observers,
            batch=bench.batch,
            **goal.of_gate,
        )
    except CalibrationError as error:
        untried["gate"] = str(error)
        return None


def _ranker(
    bench: Bench, questions: Sequence[Question], untried: dict[str, str]
) -> DURRanker | None:
    """Trained on what the retriever finds; None where that is not to be."""
    world, settings = bench.world, bench.settings
    if world.encoder is None:
        untried["reranker"] = "there is no encoder (encoder=)"
    elif len(questions) < _FEWEST:
        untried["reranker"] = _few(len(questions))
    else:
        found, _ = bench.run(questions, lambda text: fetch(text, k=settings.found))
        pairs = zip(questions, found, strict=True)
        cases = [
            replace(question, id=str(i), passages=tuple(some[0]))
            for i, (question, some) in enumerate(pairs)
            if not isinstance(some, Exception) and some[0]
        ]
        if len(cases) >= _FEWEST:
            encoder, llm = _TextsAlone(world.encoder, cases), cast("LLM", world.llm)
            asked = [replace(q, text=render_question(q).strip(), context="") for q in cases]
            trainer = DURTrainer(encoder, llm, settings=settings.ranking)
            ranker = trainer.fit(None, asked, observers=bench.observers).ranker
            ranker.encoder = world.encoder
            return ranker
        untried["reranker"] = _unfound(len(cases))
    return None


def _calibration(
    bench: Bench, answered: Sequence[tuple[Question, LongTailAnswer]], untried: dict[str, str]
) -> tuple[ScoreScale | None, Calibration | None]:
    """The scale of uncertainties, and how to look again where that paid on these questions."""
    cases = [replace(q, passages=answer.passages) for q, answer in answered if answer.passages]
    if len(cases) < _FEWEST:
        few = len(answered) < _FEWEST
        untried["calibrator"] = _few(len(answered)) if few else _unfound(len(cases))
        return None, None
    settings = bench.settings
    calibration, report = fit_calibration(
        cases,
        cast("LLM", bench.world.llm),
        settings=settings.reading,
        metric=metric if (metric := settings.gate.correct) in ("f1", "contains") else "em",
        cut_to=tuple(range(1, settings.k)),
        encoder=bench.world.encoder,
        observers=bench.observers,
        batch=bench.batch,
    )
    if report.pays:
        return calibration.scale, calibration
    count = len(report.variants) - 1
    untried["calibrator"] = f"none of {count} ways to look again pays on the {len(cases)} questions"
    return calibration.scale, None


@dataclass(frozen=True)
class _TextsAlone:
    """The encoder, of questions that are spelled out by their texts alone, as in `Bench.run`."""

    encoder: Encoder
    questions: Sequence[Question]

    @property
    def name(self) -> str:
        return self.encoder.name

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return run(searching_for(self.questions, embed(*texts)), World(encoder=self.encoder))


def _with_p_wrong(bench: Bench, asked: _Asked, rows: _Rows, pipeline: _Pipeline) -> _Pipeline:
    """With P(wrong) by the pipeline's own answers to questions with accepted ones, if it may be."""
    if (fitted := pipeline.calibration) is None or len(rows) < _FEWEST:
        return pipeline
    records, answers = bench.records(asked, rows, pipeline)
    known = [
        (
            fitted.scale.score(one.calibrated.uncertainty, one.calibrated.round),
            not record.right("right"),
        )
        for record, one in zip(records, answers, strict=True)
        if one.calibrated is not None and one.passages
    ]
    scores, wrong = ([*column] for column in zip(*known, strict=True)) if known else ([], [])
    with suppress(CalibrationError):  # too few right or wrong ones
        how = {"scale": fitted.scale, "seed": bench.settings.seed}
        wrongness = WrongnessCalibration.fit(scores, wrong, **how)
        return replace(pipeline, calibration=replace(fitted, wrongness=wrongness))
    return pipeline


def _behind_gate(direct: Record, reading: Record) -> Record:
    """What comes of a question behind a gate, by what came of it both ways."""
    if direct.decision is not None and not direct.decision["retrieve"]:
        return direct
    costs = dict[str, Any]()
    for name in ("calls", "prompt_tokens", "completion_tokens", "ms"):
        counts = getattr(direct, name), getattr(reading, name)
        costs[name] = None if None in counts else sum(counts)
    return replace(reading, decision=direct.decision, **costs)


def _unfound(count: int) -> str:
    return f"the retriever finds something for {count} questions only"


def _few(count: int) -> str:
    found = f"{count} of the questions that it would be fitted on have accepted answers"
    return f"{found}; it needs {_FEWEST}"
