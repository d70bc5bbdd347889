"""Do the rounds pay with this model, on these questions? Fit scale and P(wrong), and say so.

Everything is asked once; what is compared is replayed from the recorded answers. Kept is the
cheapest variant whose gain over the direct answer is above 0 by a paired bootstrap over the
questions. Where there is none, or where choosing so does harm on questions that the choice was not
made on (cross-validated), it is the direct answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.calibration import CalibrationMethod
from ltrag_plugins.data import check_labelled
from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.flow import Observer, World, run_many
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.metrics.answer import is_right
from ltrag_plugins.metrics.calibration import Interval, auroc, paired_bootstrap
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.settings import Range, Settings
from ltrag_plugins.sgic.answer import CalibratedAnswer, plural
from ltrag_plugins.sgic.calibrator import Calibration
from ltrag_plugins.sgic.documents import Relevance
from ltrag_plugins.sgic.loop import best_round
from ltrag_plugins.sgic.replay import Variant, by_other_estimators, every_way, replay
from ltrag_plugins.sgic.scale import FEWEST, ScoreScale, WrongnessCalibration
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Question

_Metric = Literal["em", "f1"]
_Rows = Int[np.ndarray, " rows"]
_FEWEST_QUESTIONS = 10  # below which a bootstrap says nothing, and direct is kept
_ENOUGH = 30  # right and wrong answers each, below which P(wrong) is called a guess
_FOLDS = 5


@dataclass(frozen=True, slots=True)
class _VariantFigures:
    """One way to answer, with means over all questions of the fit."""

    name: str
    kind: str
    """"direct", "rounds", "cut" (to the surest documents) or "samples"."""
    keepable: bool
    """Whether a `Calibration` can express it; not samples, nor what needs other prompts."""
    gain: Interval
    """Over direct, in the metric of the fit, -1 to 1; paired bootstrap over the questions."""
    pays: bool
    """Whether the whole interval is above 0."""
    em: float
    """After SQuAD's normalization, 0 to 1."""
    f1: float
    """Of the words, 0 to 1."""
    calls: float
    """Prompts, with the stop rules of the settings."""
    tokens: float | None = None
    """Read and written; None where a reply did not say."""
    milliseconds: float | None = field(default=None, compare=False)
    """Of the model, as an answer cache measured them; None without one."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Figures of `fit`; `unseen_gain`, `auroc` and `ece` are cross-validated."""

    questions: int
    metric: str
    """"em" or "f1": what had to rise."""
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
    """Mean uncertainty of the answers of each round, 0 to 1, over all recorded rounds."""
    wrong: float
    """Share of wrong answers of the kept variant, 0 to 1."""
    auroc: float | None
    """Of the kept variant's score for "wrong", 0 to 1; None without a calibration of P(wrong)."""
    ece: float | None
    """Expected calibration error of P(wrong), 0 to 1; None as for `auroc`."""
    estimator_aurocs: Mapping[str, float]
    """Of each estimator, for "wrong" direct answers; empty where all are right, or all wrong."""
    calls: int
    """Prompts that the fit sent, those that a cache answered included."""
    notes: tuple[str, ...] = ()
    """What a user should know before relying on it."""

    def __getitem__(self, name: str) -> _VariantFigures:
        """The figures of a variant by its name."""
        return {row.name: row for row in self.variants}[name]

    @property
    def pays(self) -> bool:
        """Whether anything was better than direct."""
        return self.kept != "direct"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        def signed(gain: Interval) -> str:
            return f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"

        told = {
            "questions, calls of this fit": f"{self.questions}, {self.calls}",
            "kept": f"{self.kept} ({self.level:.0%} intervals)",
            "mean uncertainty of rounds 0, 1, ...": ", ".join(f"{m:.3f}" for m in self.means),
            "wrong answers, kept variant": f"{self.wrong:.3f}",
        }
        if self.unseen_gain is not None:
            told["gain of the choice, cross-validated"] = signed(self.unseen_gain)
        if self.auroc is not None:
            told["P(wrong): AUROC, calibration error"] = f"{self.auroc:.3f}, {self.ece:.3f}"
        for name, value in sorted(self.estimator_aurocs.items(), key=lambda item: -item[1]):
            told[f"AUROC of {name}, direct answer wrong"] = f"{value:.3f}"
        costs = {"tokens": [row.tokens for row in self.variants]}
        costs["ms"] = [row.milliseconds for row in self.variants]
        known = {name: values for name, values in costs.items() if {*values} != {None}}
        wide = 2 + max(map(len, (*told, *(f"* {row.name}" for row in self.variants))))
        head = "".join(f"{name:>9}" for name in known)
        lines = [f"{'':<{wide}}{'EM':>6}{'F1':>7}{'calls':>8}{head}  gain in {self.metric.upper()}"]
        for row, *spent in zip(self.variants, *known.values(), strict=True):
            name = f"{'*' if row.name == self.kept else ' '} {row.name}"
            line = f"{name:<{wide}}{row.em:6.3f}{row.f1:7.3f}{row.calls:8.1f}"
            line += "".join(f"{'-' if x is None else f'{x:.0f}':>9}" for x in spent)
            more = f"{' pays' * row.pays}{'' if row.keepable else ' (compared only)'}"
            lines.append(line if row.name == "direct" else f"{line}  {signed(row.gain)}{more}")
        lines += [f"{name:<{wide}} {text}" for name, text in told.items()]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


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
    """Compare direct answers with the ways to mend them, and keep the cheapest that pays.

    Wrap the model in a `CachedLLM`, and a fit that was broken off, or is made again with other
    stop rules or another way to choose, pays for nothing twice.

    Args:
        questions: with accepted answers, and the passages to answer from; 100 or more are better,
            under 10 nothing but the direct answer is kept.
        settings: how rounds ask, score and stop; its `rounds` is the most that is tried. None: the
            defaults.
        metric, level, method: see `FitOptions`.
        cut_to: the m of "one more look at the m surest documents alone"; empty: none.
        samples: K sampled answers beside it, at 1..K; "equal": as many as the dearest variant
            takes calls (at most `max_calls`). They are compared, never kept.
        relevance, encoder: for the settings' `source`.
        batch: most prompts of one model call; None: all of a round together.

    Returns:
        What `Calibrator` takes, and the figures. `wrongness` is None where there are fewer than 5
        right or 5 wrong answers.

    Raises:
        CalibrationError: there are no questions, or one has no passages.
        MissingReferences: one has no accepted answers.
        InvalidInput: something else than questions; an argument out of range; source="oracle".
        NoTokenProbabilities, ModelError, PromptTooLong: as `calibrate`; with `on_error="best"`
            only where the model failed before the rounds.
    """
    questions, settings = list(questions), settings or SGICSettings()
    if not questions:
        raise CalibrationError("no questions to fit on; give some with answers, better 100 or more")
    check_labelled(questions, passages=True)
    options = FitOptions(metric, level, method)
    if samples not in (0, "equal"):
        settings.check_samples(samples)
    if settings.source == "oracle":
        raise InvalidInput(
            "source='oracle' knows the answers, so a fit on it says nothing about other questions; "
            "use it in calibrate(..., truth=...) for analysis"
        )
    watching = (counter := CostCounter(), *observers)
    world = World(llm=llm, encoder=encoder)
    drive = partial(run_many, world=world, observers=watching, batch=batch)
    ways = every_way(
        questions, drive, settings, cut_to=cut_to, samples=samples, relevance=relevance
    )
    found = _Comparison(options, settings.seed, ways)
    direct, best, unseen = ways[0], found.cheapest_that_pays(), found.unseen_gain()
    harms = unseen is not None and unseen.value < 0
    kept = direct if harms or len(questions) < _FEWEST_QUESTIONS else best
    means = kept.recorded[0].scale.means[: kept.settings.rounds + 1]
    scale = ScoreScale(kept.settings.estimator, means)
    wrongness = _wrongness(kept, scale, questions, options)
    wrong = ~found.right(direct)
    report = FitReport(
        questions=len(questions),
        metric=metric,
        level=level,
        estimator=settings.estimator,
        kept=kept.name,
        variants=tuple(map(found.figures, ways)),
        unseen_gain=unseen,
        means=direct.recorded[0].scale.means,
        wrong=float((~found.right(kept)).mean()),
        auroc=None if wrongness is None else wrongness.auroc,
        ece=None if wrongness is None else wrongness.ece,
        estimator_aurocs={
            line[0].settings.estimator: auroc([one.trace[0].uncertainty for one in line], wrong)
            for line in (direct.recorded, *by_other_estimators(direct.recorded))
            if 0 < wrong.sum() < len(wrong)
        },
        calls=counter.cost.calls,
        notes=tuple(found.notes(kept, best, unseen, wrongness)),
    )
    return Calibration(kept.settings, scale, wrongness), report


@dataclass(frozen=True, slots=True)
class FitOptions(Settings):
    """How a fit compares."""

    metric: _Metric = "em"
    """What has to rise; an answer under 0.5 in it is wrong for P(wrong)."""
    level: Annotated[float, Range(above=0, below=1)] = 0.9
    """Of the intervals; the lower end of a gain must be above 0."""
    method: CalibrationMethod = "platt"
    """Of P(wrong); isotonic wants several hundred answers."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """All ways to answer, held against the direct answer, which is the first of them."""

    options: FitOptions
    seed: int
    ways: Sequence[Variant]

    def quality(self, way: Variant) -> Float[np.ndarray, " questions"]:
        """EM or F1 of each question, in [0, 1]."""
        return way.columns[self.options.metric]

    def right(self, way: Variant) -> Bool[np.ndarray, " questions"]:
        """Whether each question is answered right."""
        return self.quality(way) >= 0.5

    def gain(
        self, after: Float[np.ndarray, " some"], rows: _Rows | slice = slice(None)
    ) -> Interval:
        """Of the mean quality over direct on these questions, by a paired bootstrap."""
        before = self.quality(self.ways[0])[rows]
        return paired_bootstrap(after, before, level=self.options.level, seed=self.seed)

    def figures(self, way: Variant) -> _VariantFigures:
        """The means over the questions, and the gain over direct."""
        gain = self.gain(self.quality(way))
        means = {name: float(column.mean()) for name, column in way.columns.items()}
        return _VariantFigures(way.name, way.kind, way.keepable, gain, gain.low > 0, **means)

    def cheapest_that_pays(self, rows: _Rows | slice = slice(None)) -> Variant:
        """The way of fewest calls whose gain over direct has an interval above 0; else direct.

        It is judged by the questions in `rows`. Of equally many calls the better answers count.
        """
        direct, *others = self.ways
        kept = [way for way in others if way.keepable]
        kept.sort(key=lambda v: (v.columns["calls"][rows].mean(), -self.quality(v)[rows].mean()))
        for way in kept:
            after = self.quality(way)[rows]
            better = after.mean() > self.quality(direct)[rows].mean()
            if better and self.gain(after, rows).low > 0:
                return way
        return direct

    def unseen_gain(self) -> Interval | None:
        """What the choice gains over direct on questions that it was not made on; None for one.

        Each question is answered by the way that the other folds chose.
        """
        found = np.zeros(len(self.quality(self.ways[0])))
        if len(found) < 2:
            return None
        for train, test in _folds(len(found), self.seed):
            found[test] = self.quality(self.cheapest_that_pays(train))[test]
        return self.gain(found)

    def notes(
        self,
        kept: Variant,
        best: Variant,
        unseen: Interval | None,
        wrongness: WrongnessCalibration | None,
    ) -> Iterator[str]:
        """What a user should know; `best` is not kept where choosing so does harm."""
        direct = self.ways[0]
        rounds = direct.recorded[0].settings.rounds
        questions, lost = len(direct.recorded), kept is not best
        short = sum(len(session.trace) <= rounds for session in direct.recorded)
        looks = plural(rounds, "round")
        last = next((way for way in self.ways if way.name == f"{looks}, last"), direct)
        before, after, right = map(self.right, (direct, last, kept))
        rarer, kind = min((right.sum(), "right"), ((~right).sum(), "wrong"))
        few = f"only {rarer} {kind} answers:"
        notes = {
            "under 10 questions nothing but the direct answer is kept": (
                lost and questions < _FEWEST_QUESTIONS
            ),
            f"{best.name} is above direct here, but choosing so loses on other questions "
            "(cross-validated): the direct answer is kept": lost and questions >= _FEWEST_QUESTIONS,
            "nothing pays with this model: the direct answer is kept": best is direct,
            "what was kept gains nothing when cross-validated, it may be luck: add questions": (
                direct is not best is kept and unseen is not None and unseen.value == 0
            ),
            f"the last of {looks} mends {(after & ~before).sum()} answers and spoils "
            f"{(before & ~after).sum()}": rounds,
            "the rounds do not pay with this model: fine-tune it, or leave them off": (
                rounds and kept.kind != "rounds"
            ),
            f"{short} of {questions} questions did not get all {rounds} rounds: a limit or an "
            "error ended them": short,
            f"{few} P(wrong) is not calibrated, it needs at least {FEWEST} right and wrong ones "
            "each": wrongness is None,
            f"{few} the P(wrong) calibration is a guess": wrongness and rarer < _ENOUGH,
            "larger scores do not go with wrong answers here: do not rely on P(wrong)": (
                wrongness and wrongness.auroc <= 0.5
            ),
            f"{questions} questions leave wide intervals; 100 or more are better": questions < 100,
        }
        return (note for note, holds in notes.items() if holds)


def _folds(questions: int, seed: int) -> Iterator[tuple[_Rows, _Rows]]:
    """Rows to fit on and rows to judge; a single question is both."""
    order = np.random.default_rng(seed).permutation(questions)
    for test in np.array_split(order, min(_FOLDS, questions)):
        train = np.setdiff1d(order, test)
        yield (train if train.size else test), test


def _wrongness(
    kept: Variant, scale: ScoreScale, questions: Sequence[Question], options: FitOptions
) -> WrongnessCalibration | None:
    """P(wrong) of the kept way; each score by a scale that was fitted without its question."""
    settings, estimator = kept.settings, kept.settings.estimator
    traces = [session.trace[: settings.rounds + 1] for session in kept.recorded]
    answers: list[Any] = [None] * len(traces)
    for train, test in _folds(len(traces), settings.seed):
        others = ScoreScale.of_rounds(estimator, [traces[i] for i in train])
        for i in test:
            best = best_round(replay(others.rescored(traces[i]), settings), settings.choose)
            figures = best.text, best.uncertainty, best.score, best.number
            answers[i] = CalibratedAnswer(*figures, "rounds", estimator)
    pairs = zip(answers, questions, strict=True)
    correct = "f1" if options.metric == "f1" else "normalized_exact_match"
    wrong = [not is_right(one.text, q.answers, correct) for one, q in pairs]
    if not FEWEST <= sum(wrong) <= len(wrong) - FEWEST:
        return None
    fit, seed = WrongnessCalibration.fit, settings.seed
    return fit(answers, wrong, scale=scale, method=options.method, seed=seed)
