"""Do the rounds pay with this model, on these questions? Fit scale and P(wrong), and say so.

Everything is asked once; what is compared is replayed from the recorded answers. Kept is the
cheapest variant whose gain over the direct answer is above 0 by a paired bootstrap over the
questions, and by an exact sign test of the answers that changed; the direct answer where there is
none, or where choosing so does harm, cross-validated.

Source: Chen et al. (SGIC), eq. 2 (the means), 4.3 and 5.2 (the variants), figure 3 (samples).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import comb
from typing import Annotated, Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.calibration import CalibrationMethod
from ltrag_plugins.data import check_labelled, digest_of
from ltrag_plugins.errors import (
    CalibrationError,
    LtragError,
    NoTokenProbabilities,
    checked,
    listed,
    require,
)
from ltrag_plugins.flow import Observer, World, check_world, run_many
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.metrics.answer import Correct, contains, f1, is_right, normalized_exact_match
from ltrag_plugins.metrics.calibration import Interval, auroc, paired_bootstrap
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.metrics.table import table
from ltrag_plugins.prompts.replies import option_named
from ltrag_plugins.prompts.templates import render_question
from ltrag_plugins.settings import Range, Settings
from ltrag_plugins.sgic import loop
from ltrag_plugins.sgic.answer import Round, plural
from ltrag_plugins.sgic.calibrator import Calibration
from ltrag_plugins.sgic.documents import Relevance, check_source
from ltrag_plugins.sgic.loop import Session, best_round
from ltrag_plugins.sgic.scale import FEWEST, ScoreScale, WrongnessCalibration
from ltrag_plugins.sgic.settings import Budget, Choose, SGICSettings, Source
from ltrag_plugins.types import Generation, Question
from ltrag_plugins.uncertainty import AGREEMENT, TOKEN_SIGNALS

_log = logging.getLogger(__name__)
_Metric = Literal["em", "f1", "contains"]
_Kind = Literal["direct", "rounds", "cut", "samples"]
_Column = Float[np.ndarray, " questions"]
_Rows = Int[np.ndarray, " rows"]
_FEWEST_QUESTIONS = 10  # below which a bootstrap says nothing, and direct is kept
_ENOUGH = 30  # right and wrong answers each, below which P(wrong) is called a guess
_FOLDS = 5
_SHOWN = 5  # ways in the text of a report, the best ones


@dataclass(frozen=True, slots=True)
class _VariantFigures:
    """A `_Variant` with means over all questions; it pays if all of `gain` over direct is > 0, and
    enough answers changed to say so."""

    name: str
    kind: _Kind
    keepable: bool
    gain: Interval
    pays: bool
    em: float
    f1: float
    contains: float
    calls: float
    tokens: float | None = None
    milliseconds: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class FitReport:
    """Figures of `fit`; `unseen_gain`, `auroc` and `ece` are cross-validated."""

    questions: int
    metric: _Metric
    """What had to rise."""
    level: float
    """Of all intervals, 0 to 1."""
    estimator: str
    kept: str
    """Name of the variant that was kept; "direct" where none paid."""
    variants: tuple[_VariantFigures, ...]
    """Direct first."""
    unseen_gain: Interval | None
    """Of the choice itself over direct, on questions that it was not made on."""
    means: tuple[float, ...]
    """Mean uncertainty of the answers of each recorded round that has its own in the scale."""
    wrong: float
    """Share of wrong answers of the kept variant, 0 to 1."""
    auroc: float | None
    """Of the kept variant's score for "wrong", 0 to 1; None without P(wrong)."""
    ece: float | None
    """Expected calibration error of P(wrong), 0 to 1; None without it."""
    estimator_aurocs: Mapping[str, float]
    """Of each estimator, for "wrong" direct answers; empty where all are right, or all wrong."""
    calls: int
    """Prompts that the fit sent, those that a cache answered included."""
    notes: tuple[str, ...] = ()

    @property
    def pays(self) -> bool:
        """Whether anything was better than direct."""
        return self.kept != "direct"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        told = {
            "questions, calls of this fit": f"{self.questions}, {self.calls}",
            "mean uncertainty of rounds 0, 1, ...": ", ".join(f"{m:.3f}" for m in self.means),
            "wrong answers, kept variant": f"{self.wrong:.3f}",
        }
        if self.unseen_gain is not None:
            told["gain of the choice, cross-validated"] = self.unseen_gain.signed
        if self.auroc is not None:
            told["P(wrong): AUROC, calibration error"] = f"{self.auroc:.3f}, {self.ece:.3f}"
        for name, value in sorted(self.estimator_aurocs.items(), key=lambda item: -item[1]):
            told[f"AUROC of {name}, direct answer wrong"] = f"{value:.3f}"
        best = sorted(self.variants[1:], key=lambda row: (-row.gain.value, row.calls))
        best = [row for row in best if row.gain.value > 0 or row.name == self.kept]
        shown = [row for row in best if row.name == self.kept or row in best[:_SHOWN]]
        any_pays = any(row.pays for row in shown)
        left_out, rows = len(self.variants) - 1 - len(shown), dict[str, list[str]]()
        costs = {"calls": 1, "tokens": 0, "milliseconds": 0}
        known = [n for n in costs if any(getattr(row, n) is not None for row in self.variants)]
        second = "contains" if self.metric == "contains" else "f1"
        for row in (self.variants[0], *shown):
            gain = f"{row.gain.signed}{(' pays' if row.pays else '     ') * any_pays}"
            spent = [(getattr(row, name), costs[name]) for name in known]
            name = f"{row.name}{'' if row.keepable else ' (compared only)'}"
            rows[f"{' *'[row.name == self.kept]} {name}"] = [
                *(f"{row.em:.3f}", f"{getattr(row, second):.3f}"),
                "-" if row.kind == "direct" else gain,
                *("-" if x is None else f"{x:.{digits}f}" for x, digits in spent),
            ]
        lines = [f"kept: {self.kept}", *(f"note: {note}" for note in self.notes), ""]
        names = ["ms" if name == "milliseconds" else name for name in known]
        said = {"em": "EM", "f1": "F1", "contains": "contains"}
        gained = f"gain in {said[self.metric]} ({self.level:.0%})"
        heads = ["EM", said[second], gained], names
        lines += table(rows.items(), *heads)
        if left_out:
            how = "gain less" if best else "gain nothing"
            lines.append(f"  {plural(left_out, 'other way')} {how}: report.variants, --json")
        wide = 2 + max(map(len, told))
        return "\n".join([*lines, "", *(f"{name:<{wide}}{text}" for name, text in told.items())])


@dataclass(frozen=True, slots=True, eq=False)
class _Variant:
    """One way to answer, and what came of it on each question."""

    name: str
    kind: _Kind
    settings: SGICSettings
    recorded: Sequence[Session]
    """One for each question, with all rounds but those that a limit (or an error) cut off."""
    keepable: bool
    """Whether `calibrate` with these settings and the recorded scale sends just these prompts."""
    answers: Sequence[Round]
    columns: Mapping[str, _Column]
    """"em", "f1", "contains"; "calls" (prompts, with the stop rules of the settings); "tokens"
    (read and written) and "milliseconds" (of the model, as an answer cache measured them), if all
    replies say them."""


def fit(
    questions: Iterable[Question],
    llm: LLM,
    *,
    settings: SGICSettings | None = None,
    metric: _Metric = "em",
    level: float = 0.9,
    cut_to: Sequence[int] = (1, 2, 3),
    samples: int | Literal["equal"] = 0,
    method: CalibrationMethod = "platt",
    relevance: Relevance | None = None,
    encoder: Encoder | None = None,
    observers: Iterable[Observer] = (),
    batch: int | None = None,
) -> tuple[Calibration, FitReport]:
    """Compare direct answers with the ways to mend them, and keep the cheapest that pays: what
    `Calibrator` takes comes back (without P(wrong) under 5 right or 5 wrong answers), and the
    figures. With a `CachedLLM` a fit that is made again pays for nothing twice.

    Args:
        questions: with accepted answers and passages; 100 or more are better, under 10 nothing but
            the direct answer is kept.
        settings: how rounds ask, score and stop; its `rounds` is the most that is tried. None: 5
            rounds, and the defaults.
        metric, level, method: see `FitOptions`.
        cut_to: the m of "one more look at the m surest documents alone"; empty: none. With an
            encoder, or a relevance function, also at the m that these find nearest.
        samples: K sampled answers beside it, at 1..K; "equal": as many as the dearest variant
            takes calls (at most `max_calls`). They are compared, never kept.
        relevance, encoder: for the settings' `source`, and to cut by.
        batch: most prompts of one model call; None: all of a round together.

    Raises:
        CalibrationError, MissingReferences: no questions; one without passages; without answers.
        InvalidInput: something else than questions; an argument out of range; the source of
            document scores is not there, or is "oracle".
        NoTokenProbabilities, ModelError, PromptTooLong: as `calibrate`; with `on_error="best"`
            only where the model failed before the rounds.
    """
    require("fit")
    questions, settings = listed(questions, "questions"), settings or SGICSettings(rounds=5)
    checked(settings, SGICSettings, "settings", "SGICSettings(...)")
    if not questions:
        raise CalibrationError("no questions to fit on; give some with answers, better 100 or more")
    check_labelled(questions, passages=True)
    options = FitOptions(metric, level, method)
    checked(cut_to, Iterable, "cut_to", "a list of whole numbers")
    if samples not in (0, "equal"):
        replace(settings, estimator="product", samples=samples)  # refuses what is no count
    check_source(settings.source, relevance=relevance, encoder=encoder)
    check_world(world := World(llm=llm, encoder=encoder))
    watching = (counter := CostCounter(), *observers)
    drive = partial(run_many, world=world, observers=watching, batch=batch)
    judges: dict[Source, Any] = {"encoder": encoder, "relevance": relevance}
    sources = [name for name, judge in judges.items() if judge is not None]
    more: dict[str, Any] = {"cut_to": cut_to, "sources": sources, "samples": samples}
    more["relevance"] = relevance
    ways = every_way(questions, drive, settings, **more)
    found = _Comparison(options, settings.seed, ways)
    direct, best, unseen = ways[0], found.cheapest_that_pays(), found.unseen_gain()
    gain = None if unseen is None else unseen.value
    harms = gain is not None and gain < 0
    kept = direct if harms or len(questions) < _FEWEST_QUESTIONS else best
    means = kept.recorded[0].scale.means[: kept.settings.rounds + 1]
    scale = ScoreScale(kept.settings.estimator, means)
    wrongness = _wrongness(kept, scale, questions, options)
    area = None if wrongness is None else wrongness.auroc
    wrong = ~found.right(direct)
    about: dict[str, Any] = {"metric": metric, "level": level, "estimator": settings.estimator}
    about |= {"questions": len(questions), "kept": kept.name, "calls": counter.cost.calls}
    report = FitReport(
        **about,
        variants=tuple(map(found.figures, ways)),
        unseen_gain=unseen,
        means=direct.recorded[0].scale.means,
        wrong=float((~found.right(kept)).mean()),
        auroc=area,
        ece=None if wrongness is None else wrongness.ece,
        estimator_aurocs={
            line[0].settings.estimator: auroc([one.trace[0].uncertainty for one in line], wrong)
            for line in (direct.recorded, *_by_other_estimators(direct.recorded))
            if 0 < wrong.sum() < len(wrong)
        },
        notes=tuple(found.notes(kept, best, gain, area)),
    )
    reads = getattr(encoder, "name", "") if kept.settings.source == "encoder" else ""
    return Calibration(kept.settings, scale, wrongness, digest_of(questions), reads), report


@dataclass(frozen=True, slots=True)
class FitOptions(Settings):
    """How a fit compares."""

    metric: _Metric = "em"
    """What has to rise; an answer under 0.5 in it is wrong for P(wrong)."""
    level: Annotated[float, Range(above=0, below=1)] = 0.9
    """Of the intervals; the lower end of a gain must be above 0. Also of the sign test: at 0.9
    five answers must be mended where none is spoiled, seven where one is, of however many."""
    method: CalibrationMethod = "platt"
    """Of P(wrong); isotonic wants several hundred answers."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """All ways to answer, held against the direct answer, which is the first of them."""

    options: FitOptions
    seed: int
    ways: Sequence[_Variant]

    def quality(self, way: _Variant) -> _Column:
        return way.columns[self.options.metric]

    def right(self, way: _Variant) -> Bool[np.ndarray, " questions"]:
        return self.quality(way) >= 0.5

    def gain(self, after: _Column, rows: _Rows | slice = slice(None)) -> Interval:
        """Of the mean quality over direct on these questions, by a paired bootstrap."""
        before = self.quality(self.ways[0])[rows]
        return paired_bootstrap(after, before, level=self.options.level, seed=self.seed)

    def changed(self, after: _Column, rows: _Rows | slice = slice(None)) -> tuple[int, int]:
        """How many answers are better than the direct ones, and how many worse."""
        before = self.quality(self.ways[0])[rows]
        return int((after > before).sum()), int((after < before).sum())

    def pays(self, way: _Variant, rows: _Rows | slice = slice(None)) -> bool:
        """Whether the gain is above 0 by its interval, and by an exact sign test of one side.

        A bootstrap of three mended answers and none spoiled is above 0 among any number of
        questions, though a coin falls three times alike once in eight.
        """
        after = self.quality(way)[rows]
        better, worse = self.changed(after, rows)
        if self.options.metric == "f1":  # its changes differ in size, so only their number counts
            better, worse = better + worse, 0
        by_chance = sum(comb(better + worse, k) for k in range(worse + 1)) / 2 ** (better + worse)
        return by_chance <= (1 - self.options.level) / 2 and self.gain(after, rows).low > 0

    def figures(self, way: _Variant) -> _VariantFigures:
        gain = self.gain(self.quality(way))
        means = {name: float(column.mean()) for name, column in way.columns.items()}
        about = way.name, way.kind, way.keepable, gain, self.pays(way)
        return _VariantFigures(*about, **means)

    def cheapest_that_pays(self, rows: _Rows | slice = slice(None)) -> _Variant:
        """The way of fewest calls (then of the best answers) that pays on these rows; or direct."""
        direct, *others = self.ways
        kept = [way for way in others if way.keepable]
        kept.sort(key=lambda v: (v.columns["calls"][rows].mean(), -self.quality(v)[rows].mean()))
        return next((way for way in kept if self.pays(way, rows)), direct)

    def unseen_gain(self) -> Interval | None:
        """What choosing gains over direct where the other folds chose; None for one question."""
        found = np.zeros(len(self.quality(self.ways[0])))
        if len(found) < 2:
            return None
        for train, test in _folds(len(found), self.seed):
            found[test] = self.quality(self.cheapest_that_pays(train))[test]
        return self.gain(found)

    def notes(
        self, kept: _Variant, best: _Variant, gain: float | None, p_wrong: float | None
    ) -> Iterator[str]:
        """What a user should know, by the `gain` of the choice and the AUROC of `p_wrong`."""
        direct, questions = self.ways[0], len(kept.recorded)
        rounds = direct.recorded[0].settings.rounds
        short = sum(len(session.trace) <= rounds for session in direct.recorded)
        looks = plural(rounds, "round")
        last = next((way for way in self.ways if way.name == f"{looks}, last"), direct)
        before, after, right = map(self.right, (direct, last, kept))
        rarer, kind = min((right.sum(), "right"), ((~right).sum(), "wrong"))
        few = f"only {rarer} {kind} answers:"
        if kept is not best and questions < _FEWEST_QUESTIONS:
            yield "under 10 questions nothing but the direct answer is kept"
        elif kept is not best:
            harm = f"{best.name} is above direct here, but choosing so loses on other questions"
            yield f"{harm} (cross-validated): the direct answer is kept"
        if best is direct:
            yield "nothing pays with this model: the direct answer is kept"
            near = [way for way in self.ways if way.keepable and self.figures(way).gain.low > 0]
            if near:
                most = max(near, key=lambda way: self.quality(way).mean())
                better, worse = self.changed(self.quality(most))
                luck = "too few to tell from luck"
                yield f"{most.name} makes {better} answers better and {worse} worse, {luck}"
            if {way.settings.source for way in self.ways if way.kind == "cut"} == {"uncertainty"}:
                yield "without encoder= a look at the nearest documents, of one call, was not tried"
        elif kept is best and gain == 0:
            yield "what was kept gains nothing when cross-validated, it may be luck: add questions"
        if not rounds:
            yield "no rounds were tried, as the settings have none; SGICSettings(rounds=...) does"
        else:
            mended, spoiled = (after & ~before).sum(), (before & ~after).sum()
            yield f"the last of {looks} mends {mended} answers and spoils {spoiled}"
        made = [way for way in self.ways if way.kind == "rounds"]
        if rounds and not any(self.figures(way).pays for way in made):
            yield "the rounds do not pay with this model: fine-tune it, or leave them off"
        if short:
            ended = f"{short} of {questions} questions did not get all {rounds} rounds"
            yield f"{ended}: a limit or an error ended them"
        wordy = (direct.columns["contains"] > direct.columns["em"]).sum()
        if self.options.metric == "em" and 10 * wordy >= questions:
            held = f"{wordy} direct answers hold an accepted one among other words"
            yield f"{held}, which EM calls wrong: metric='contains', or a prompt for bare answers"
        if p_wrong is None:
            needs = f"it needs at least {FEWEST} right and wrong ones each"
            yield f"{few} P(wrong) is not calibrated, {needs}"
        elif rarer < _ENOUGH:
            yield f"{few} the P(wrong) calibration is a guess"
        if p_wrong is not None and p_wrong <= 0.5:
            yield "larger scores do not go with wrong answers here: do not rely on P(wrong)"
        if questions < 100:
            yield f"{questions} questions leave wide intervals; 100 or more are better"


def _folds(questions: int, seed: int) -> Iterator[tuple[_Rows, _Rows]]:
    """Rows to fit on and rows to judge; a single question is both."""
    order = np.random.default_rng(seed).permutation(questions)
    for test in np.array_split(order, min(_FOLDS, questions)):
        train = np.setdiff1d(order, test)
        yield (train if train.size else test), test


def _wrongness(
    kept: _Variant, scale: ScoreScale, questions: Sequence[Question], options: FitOptions
) -> WrongnessCalibration | None:
    """P(wrong) of the kept way; each score by a scale that was fitted without its question."""
    settings, traces = kept.settings, [s.trace[: kept.settings.rounds + 1] for s in kept.recorded]
    correct: Correct = "normalized_exact_match" if options.metric == "em" else options.metric
    scores, wrong = [0.0] * len(traces), [False] * len(traces)
    for train, test in _folds(len(traces), settings.seed):
        others = ScoreScale.of_rounds(
            settings.estimator, [traces[i] for i in train], settings.means
        )
        for i in test:
            best = best_round(_replay(others.rescored(traces[i]), settings), settings.choose)
            said = option_named(best.text, questions[i].options)
            wrong[i] = not is_right(said, questions[i].answers, correct)
            scores[i] = best.score
    with suppress(CalibrationError):  # too few of a kind
        how = {"scale": scale, "method": options.method, "seed": settings.seed}
        return WrongnessCalibration.fit(scores, wrong, **how)
    return None


def every_way(
    questions: Sequence[Question],
    drive: Callable[..., list[Any]],
    settings: SGICSettings,
    *,
    cut_to: Iterable[int] = (),
    sources: Iterable[Source] = (),
    samples: int | Literal["equal"] = 0,
    relevance: Relevance | None = None,
) -> list[_Variant]:
    """The direct answers, then all that has to beat them; for the arguments see `sgic.fit`.
    Documents are also cut by the scores of other `sources`."""
    most = max(len(question.passages) for question in questions)
    # one more look, at the surest documents alone, with nothing beside them
    bare = replace(settings, rounds=1, earlier="none", documents="none", choose="last", cut_to=1)
    few = [m for m in sorted({*cut_to}) if replace(bare, cut_to=m) and m < most]
    by = dict.fromkeys((settings.source, *sources))
    cuts = [replace(bare, cut_to=m, source=source) for source in by for m in few]
    recorded = loop.record(questions, drive, settings, cuts, relevance=relevance)
    found = [*_replayed(recorded, questions)]
    if samples == "equal":
        dearest = max((one.columns["calls"].mean() for one in found[1:]), default=1.0)
        samples = min(max(2, int(dearest)), settings.max_calls)
    if not samples:
        return found
    asked = [(render_question(question), question.passages) for question in questions]
    try:
        drawn = drive(loop.sampled(*one, samples, settings) for one in asked)
    except LtragError as error:  # they are compared alone, and all else is paid for
        if settings.on_error == "raise":
            raise
        _log.warning("the samples are left out of the comparison: %s", error)
        return found
    if failed := sum(answer.error is not None for answer in drawn):
        _log.warning("the model failed at a sample of %s", plural(failed, "question"))
    for k in range(1, max(len(answer.trace) for answer in drawn) + 1):
        replies = [[one.generation for one in answer.trace[:k]] for answer in drawn]
        rated = map(Session.as_rounds, recorded[0], replies)
        answers = [best_round(trace, "least uncertain") for trace in rated]
        about = f"{plural(k, 'sample')}, least uncertain", "samples", settings, recorded[0], False
        found.append(_Variant(*about, answers, _columns(questions, answers, replies)))
    return found


def _replayed(
    lines: Sequence[Sequence[Session]], questions: Sequence[Question]
) -> Iterator[_Variant]:
    """What `calibrate` would have asked and returned with other settings, of what was recorded."""
    first, *cuts = lines
    settings = first[0].settings

    def way(
        kind: _Kind, name: str, line: Sequence[Session], *, keepable: bool = True, **more: Any
    ) -> _Variant:
        other = replace(line[0].settings, **more)
        always, again = other.score_documents == "always", other.estimator == AGREEMENT
        answers, replies = [], []
        for session in line:
            trace = _replay(session.trace, other)
            goes_on = loop.reason_to_stop(trace[:1], other) is None
            scored = always or (goes_on and session.reads_scores)
            asked = [*trace, *(session.document_answers if scored else ())]
            answers.append(best_round(trace, other.choose))
            replies.append([r for one in asked for r in (one.generation, *one.samples * again)])
        columns = _columns(questions, answers, replies)
        return _Variant(name, kind, other, line, keepable, answers, columns)

    yield way("direct", "direct", first, rounds=0)
    for k in range(1, settings.rounds + 1):
        for choose in get_args(Choose):
            yield way("rounds", f"{plural(k, 'round')}, {choose}", first, rounds=k, choose=choose)
    for cut in cuts:
        own = cut[0].settings
        by = "" if own.source == settings.source else f" by {own.source}"
        for choose in ("least uncertain", "last"):
            yield way("cut", f"cut to {own.cut_to}{by}, {choose}", cut, choose=choose)
    if not settings.rounds:
        return
    # whether another estimator would make other prompts of the same answers
    by_documents = loop.scores_documents(settings) and settings.source == "uncertainty"
    fixed = settings.earlier != "scores" and not by_documents
    for line in _by_other_estimators(first):
        estimator, looks = line[0].settings.estimator, plural(settings.rounds, "round")
        about = f"{looks}, least uncertain by {estimator}", line
        yield way("rounds", *about, keepable=fixed, choose="least uncertain")


def _by_other_estimators(line: Sequence[Session]) -> Iterator[list[Session]]:
    """The recorded answers as each other estimator sees them that can read them."""
    for name in (n for n in TOKEN_SIGNALS if n != line[0].settings.estimator):
        others = [copy(session) for session in line]
        with suppress(NoTokenProbabilities):
            for one in others:
                one.settings = replace(one.settings, estimator=name)
                doubts = (one.own_words(r.number, r.generation, r.samples)[1] for r in one.trace)
                rounds = zip(one.trace, doubts, strict=True)
                one.trace = tuple(replace(answer, uncertainty=doubt) for answer, doubt in rounds)
            loop.rescale(others)
            yield others


def _replay(trace: tuple[Round, ...], settings: SGICSettings) -> tuple[Round, ...]:
    """The rounds that `calibrate` makes with these settings, of those that were recorded."""
    ends = (n for n in range(1, len(trace)) if loop.reason_to_stop(trace[:n], settings))
    return trace[: next(ends, len(trace))]


def _columns(
    questions: Sequence[Question], answers: Sequence[Round], replies: Sequence[Sequence[Generation]]
) -> dict[str, _Column]:
    """The quality of the answers, and what all replies to a question cost."""
    pairs = zip(answers, questions, strict=True)
    said = [(option_named(answer.text, q.options), q.answers) for answer, q in pairs]
    tokens = [[Budget.reported(reply) for reply in one] for one in replies]
    seconds = [[reply.seconds for reply in one] for one in replies]
    found: dict[str, list[float]] = {
        "em": [normalized_exact_match(*one) for one in said],
        "f1": [f1(*one) for one in said],
        "contains": [contains(*one) for one in said],
        "calls": [len(one) for one in replies],
    }
    for name, rows, unit in (("tokens", tokens, 1), ("milliseconds", seconds, 1000)):
        if not any(None in row for row in rows):
            found[name] = [unit * sum(filter(None, row)) for row in rows]
    return {name: np.array(column, dtype=float) for name, column in found.items()}
