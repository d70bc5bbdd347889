"""Do the rounds pay with this model, on these questions? Fit scale and P(wrong), and say so.

Everything is asked once; what is compared is replayed from the recorded answers. Kept is the
cheapest variant whose gain over the direct answer is above 0 by a paired bootstrap over the
questions. Where there is none, or where choosing so does harm on questions that the choice was not
made on (cross-validated), it is the direct answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from ltrag_plugins.calibration import CalibrationMethod
from ltrag_plugins.errors import CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.flow import Ask, Observer, Step, World, run_many
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.metrics.calibration import Interval, auroc, paired_bootstrap
from ltrag_plugins.settings import Range, Settings, Whole
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.calibrator import Calibration
from ltrag_plugins.sgic.documents import Relevance
from ltrag_plugins.sgic.loop import best_round, check_samples, sampled
from ltrag_plugins.sgic.replay import (
    ANSWER_METRICS,
    FEWEST_QUESTIONS,
    Metric,
    Recorded,
    Variant,
    by_other_estimators,
    cheapest_that_pays,
    cut_settings,
    folds,
    record,
    replay,
    samples_of,
    unseen_gain,
    variants_of,
)
from ltrag_plugins.sgic.scale import FEWEST, ScoreScale, WrongnessCalibration
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Question
from ltrag_plugins.uncertainty import AGREEMENT, TOKEN_SIGNALS

_ENOUGH = 30
"""Right and wrong answers each, below which P(wrong) is called a guess."""


@dataclass(frozen=True, slots=True)
class _VariantFigures:
    """One way to answer, over all questions of the fit."""

    name: str
    kind: str
    """"direct", "rounds", "cut" (to the surest documents) or "samples"."""
    em: float
    """Share of answers that match exactly after SQuAD's normalization, 0 to 1."""
    f1: float
    """Mean word F1, 0 to 1."""
    calls: float
    """Mean prompts a question, with the stop rules of the settings."""
    tokens: float | None
    """Mean tokens a question, read and written; None where a reply did not say."""
    milliseconds: float | None = field(compare=False)
    """Mean time of the model a question, as an answer cache measured it when each reply was
    computed (of a batch, its share); None without one."""
    gain: Interval
    """Over direct, in the metric of the fit, -1 to 1; paired bootstrap over the questions."""
    pays: bool
    """Whether the whole interval is above 0."""
    keepable: bool
    """Whether a `Calibration` can express it. Not: samples; nor another estimator where it would
    change what the prompts show, as these are held fixed."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Figures of `fit`. Gains and P(wrong) under `unseen_gain`, `auroc` and `ece` are
    cross-validated; the rows of `variants` are not, as nothing in them was fitted to the labels."""

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
    """Of each estimator's uncertainty of the direct answer for "wrong"; empty where the direct
    answers are all right or all wrong."""
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
        figures, names = self._figures(), [f"* {row.name}" for row in self.variants]
        wide = 2 + max(map(len, (*names, *(name for name, _ in figures))))
        costs = "".join(f"{name:>9}" for name in self._known_costs())
        head = f"{'':<{wide}}{'EM':>6}{'F1':>7}{'calls':>8}{costs}  gain in {self.metric.upper()}"
        lines = [head, *(self._row(row, wide) for row in self.variants)]
        lines += [f"{name:<{wide}} {text}" for name, text in figures]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    def _row(self, row: _VariantFigures, wide: int) -> str:
        name = f"{'*' if row.name == self.kept else ' '} {row.name}"
        figures = f"{name:<{wide}}{row.em:6.3f}{row.f1:7.3f}{row.calls:8.1f}"
        for cost in self._known_costs():
            value = _COSTS[cost](row)
            figures += f"{'-' if value is None else f'{value:.0f}':>9}"
        if row.name == "direct":
            return figures
        remarks = f"{' pays' if row.pays else ''}{'' if row.keepable else ' (compared only)'}"
        return f"{figures}  {_signed(row.gain)}{remarks}"

    def _known_costs(self) -> list[str]:
        return [
            name for name, of in _COSTS.items() if any(of(row) is not None for row in self.variants)
        ]

    def _figures(self) -> list[tuple[str, str]]:
        rows = [
            ("questions, calls of this fit", f"{self.questions}, {self.calls}"),
            ("kept", f"{self.kept} ({self.level:.0%} intervals)"),
            ("mean uncertainty of rounds 0, 1, ...", ", ".join(f"{m:.3f}" for m in self.means)),
            ("wrong answers, kept variant", f"{self.wrong:.3f}"),
        ]
        if self.unseen_gain is not None:
            rows.append(("gain of the choice, cross-validated", _signed(self.unseen_gain)))
        if self.auroc is not None and self.ece is not None:
            rows.append(("P(wrong): AUROC, calibration error", f"{self.auroc:.3f}, {self.ece:.3f}"))
        best = sorted(self.estimator_aurocs.items(), key=lambda item: -item[1])
        rows += [(f"AUROC of {name}, direct answer wrong", f"{value:.3f}") for name, value in best]
        return rows


_COSTS: Mapping[str, Callable[[_VariantFigures], float | None]] = {
    "tokens": lambda row: row.tokens,
    "ms": lambda row: row.milliseconds,
}


def _signed(interval: Interval) -> str:
    return f"{interval.value:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"


def fit(
    questions: Iterable[Question],
    llm: LLM,
    *,
    settings: SGICSettings | None = None,
    metric: Metric = "em",
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
        metric: what has to rise. An answer under 0.5 in it is wrong for P(wrong).
        level: of the intervals, inside (0, 1); the lower end of a gain must be above 0.
        cut_to: the m of "one more look at the m surest documents alone"; empty: none.
        samples: K sampled answers beside it, at 1..K; "equal": as many as the dearest variant
            takes calls (at most `max_calls`). They are compared, never kept.
        method: of P(wrong); "isotonic" wants several hundred answers.
        relevance, encoder: for the settings' `source`.
        batch: most prompts of one model call; None: all of a round together.

    Returns:
        What `Calibrator` takes, and the figures. `wrongness` is None where there are fewer than 5
        right or 5 wrong answers.

    Raises:
        CalibrationError: there are no questions, or one has no passages.
        MissingReferences: one has no accepted answers.
        InvalidInput: something else than questions; an argument out of range; source="oracle".
        NoTokenProbabilities: the estimator reads what the model does not give.
        ModelError, PromptTooLong: the model failed; with `on_error="best"` only where it failed
            before the rounds.
    """
    questions, settings = list(questions), settings or SGICSettings()
    _check_questions(questions)
    options = _Options(metric, level, samples)
    if samples and samples != "equal":
        check_samples(samples, settings)
    if settings.source == "oracle":
        raise InvalidInput(
            "source='oracle' knows the answers: a fit on it says nothing about other questions. "
            "Use it in calibrate(..., truth=...) for analysis"
        )
    most = max(len(question.passages) for question in questions)
    # those that cut nothing off any question are left out
    cuts = [way for m in sorted({*cut_to}) if (way := cut_settings(settings, m)) and m < most]
    counter, world = _Counter(), World(llm=llm, encoder=encoder)
    watching = (counter, *observers)
    recorded = record(
        questions, world, settings, cuts, relevance=relevance, observers=watching, batch=batch
    )
    direct, *others = variants_of(recorded, questions)
    if samples == "equal":
        dearest = max((variant.calls.mean() for variant in others), default=1.0)
        samples = min(max(2, int(dearest)), settings.max_calls)
    if samples:
        flows = [sampled(q.text, q.passages, samples, settings) for q in questions]
        drawn = run_many(flows, world, observers=watching, batch=batch)
        others += samples_of(drawn, recorded[0], questions)
    held_to = {"metric": metric, "level": level, "seed": settings.seed}
    best = cheapest_that_pays(others, direct, **held_to)
    unseen = unseen_gain(others, direct, **held_to)
    harms = unseen is not None and unseen.value < 0
    kept = direct if harms or len(questions) < FEWEST_QUESTIONS else best
    wrongness = _wrongness(kept, questions, metric, method)
    compared = _Compared(options, direct, others, kept, best, unseen, wrongness, recorded[0])
    return Calibration(kept.settings, _scale(kept), wrongness), compared.report(counter.calls)


@dataclass(frozen=True, slots=True)
class _Options(Settings):
    metric: Metric
    level: Annotated[float, Range(above=0, below=1)]
    samples: Whole | Literal["equal"]


class _Counter:
    """An observer that counts prompts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: Step) -> None:
        if step.kind == "request" and isinstance(step.request, Ask):
            self.calls += len(step.request.prompts)


def _check_questions(questions: Sequence[Question]) -> None:
    if not questions:
        raise CalibrationError("no questions to fit on; give some with answers, better 100 or more")
    for question in questions:
        if not isinstance(question, Question):
            raise InvalidInput(f"a fit takes Question(text, answers, ...), got {question!r:.60}")
        name = question.id or question.text[:60]
        if not question.answers:
            raise MissingReferences(
                f"question {name!r} has no accepted answers; add 'answers', or leave it out"
            )
        if not question.passages:
            raise CalibrationError(
                f"question {name!r} has no passages; add what your retriever finds for it, or "
                "leave it out"
            )


def _scale(kept: Variant) -> ScoreScale:
    means = kept.recorded.scale.means[: kept.settings.rounds + 1]
    return ScoreScale(kept.settings.estimator, means)


def _wrongness(
    kept: Variant, questions: Sequence[Question], metric: Metric, method: CalibrationMethod
) -> WrongnessCalibration | None:
    """P(wrong) of the kept variant; each score by a scale that was fitted without its question."""
    settings, estimator = kept.settings, kept.settings.estimator
    traces = [trace[: settings.rounds + 1] for trace in kept.recorded.traces]
    found: dict[int, CalibratedAnswer] = {}
    for train, test in folds(len(traces), settings.seed):
        scale = ScoreScale.of_rounds(estimator, [traces[i] for i in train])
        for i in test:
            best = best_round(replay(scale.rescored(traces[i]), settings), settings.choose)
            found[int(i)] = CalibratedAnswer(
                best.text, best.uncertainty, best.score, best.number, "rounds", estimator
            )
    answers = [found[i] for i in range(len(traces))]
    right = ANSWER_METRICS[metric]
    wrong = [right(a.text, q.answers) < 0.5 for a, q in zip(answers, questions, strict=True)]
    if not FEWEST <= sum(wrong) <= len(wrong) - FEWEST:
        return None
    return WrongnessCalibration.fit(
        answers, wrong, scale=_scale(kept), method=method, seed=settings.seed
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """All that was compared, and what came of it."""

    options: _Options
    direct: Variant
    others: Sequence[Variant]
    kept: Variant
    best: Variant
    """The cheapest that pays; not kept where choosing so does harm on unseen questions."""
    unseen: Interval | None
    wrongness: WrongnessCalibration | None
    recorded: Recorded
    """Of the rounds."""

    def report(self, calls: int) -> FitReport:
        """The figures, and what to make of them."""
        rows = tuple(self._figures(variant, self.direct) for variant in (self.direct, *self.others))
        fails, wrongness = self._quality(self.kept) < 0.5, self.wrongness
        aurocs = self._aurocs()
        return FitReport(
            questions=len(fails),
            metric=self.options.metric,
            level=self.options.level,
            estimator=self.recorded.settings.estimator,
            kept=self.kept.name,
            variants=rows,
            unseen_gain=self.unseen,
            means=self.recorded.scale.means,
            wrong=float(fails.mean()),
            auroc=None if wrongness is None else wrongness.auroc,
            ece=None if wrongness is None else wrongness.ece,
            estimator_aurocs=aurocs,
            calls=calls,
            notes=(
                *self._about_choice(),
                *self._about_rivals(rows),
                *self._about_rounds(),
                *self._about_estimators(rows, aurocs),
                *self._about_wrongness(int(fails.sum()), int((~fails).sum())),
                *self._about_questions(),
            ),
        )

    def _quality(self, variant: Variant) -> np.ndarray:
        return variant.quality(self.options.metric)

    def _figures(self, variant: Variant, direct: Variant) -> _VariantFigures:
        gain = paired_bootstrap(
            self._quality(variant),
            self._quality(direct),
            level=self.options.level,
            seed=direct.settings.seed,
        ).interval
        return _VariantFigures(
            variant.name,
            variant.kind,
            float(variant.em.mean()),
            float(variant.f1.mean()),
            float(variant.calls.mean()),
            None if variant.tokens is None else float(variant.tokens.mean()),
            None if variant.seconds is None else float(1000 * variant.seconds.mean()),
            gain,
            gain.low > 0,
            variant.keepable,
        )

    def _aurocs(self) -> dict[str, float]:
        fails = self._quality(self.direct) < 0.5
        if fails.all() or not fails.any():
            return {}
        seen = {self.recorded.settings.estimator: self.recorded}
        seen |= by_other_estimators(self.recorded)
        return {
            name: auroc([trace[0].uncertainty for trace in one.traces], fails)
            for name, one in seen.items()
        }

    def _about_choice(self) -> list[str]:
        if self.kept is not self.best and len(self.direct.calls) < FEWEST_QUESTIONS:
            return [f"under {FEWEST_QUESTIONS} questions nothing but the direct answer is kept"]
        if self.kept is not self.best:
            return [
                f"{self.best.name} is above direct on these questions, but choosing so loses on "
                "questions that the choice was not made on: the direct answer is kept"
            ]
        if self.kept is self.direct:
            return ["nothing pays with this model: the direct answer is kept"]
        if self.unseen is not None and self.unseen.value == 0:
            return [
                "on questions that the choice was not made on it gains nothing: what was kept may "
                "be luck; fit on more questions before relying on it"
            ]
        return []

    def _about_rivals(self, rows: Sequence[_VariantFigures]) -> list[str]:
        if self.kept is self.direct:
            return []
        notes = []
        better = [v for v in self.others if v.keepable and self._figures(v, self.kept).pays]
        if better:
            best = min(better, key=lambda v: (-self._quality(v).mean(), v.calls.mean()))
            notes.append(
                f"{best.name} is better still, {self._quality(best).mean():.3f} in "
                f"{self.options.metric.upper()}, at {best.calls.mean():.1f} calls a question"
            )
        own = next(row for row in rows if row.name == self.kept.name)
        drawn = [row for row in rows if row.kind == "samples" and row.calls <= own.calls]
        rival = max(drawn, key=lambda row: row.gain.value, default=None)
        if rival is not None and rival.gain.value >= own.gain.value:
            notes.append(f"{rival.name}, does as well as what was kept, at no more calls")
        return notes

    def _about_rounds(self) -> list[str]:
        settings, traces = self.recorded.settings, self.recorded.traces
        looks = [v for v in self.others if v.recorded is self.recorded]
        last = next((v for v in reversed(looks) if v.settings.choose == "last"), None)
        if last is None:
            return []
        before, after = (self._quality(v) >= 0.5 for v in (self.direct, last))
        mended, spoiled = int((after & ~before).sum()), int((before & ~after).sum())
        notes = [
            f"the last of {last.name.split(',')[0]} mends {mended} answers and spoils {spoiled}"
        ]
        if self.kept.kind != "rounds":
            notes.append("the rounds do not pay with this model: fine-tune it, or leave them off")
        if short := sum(len(trace) <= settings.rounds for trace in traces):
            notes.append(
                f"{short} of {len(traces)} questions did not get all {settings.rounds} rounds: a "
                "limit or an error ended them"
            )
        return notes

    def _about_estimators(
        self, rows: Sequence[_VariantFigures], aurocs: Mapping[str, float]
    ) -> list[str]:
        settings, notes, left_out = self.recorded.settings, [], []
        own = settings.estimator
        best = max(aurocs, key=lambda name: aurocs[name], default=own)
        if aurocs and aurocs[best] > aurocs[own] + 0.02:
            notes.append(
                f"the estimator {best!r} tells wrong direct answers better than {own!r} "
                f"(AUROC {aurocs[best]:.3f} against {aurocs[own]:.3f})"
            )
        if any(" by " in row.name and not row.keepable for row in rows):
            notes.append(
                f"rows 'by' another estimator hold the prompts fixed, with the scores of {own!r} "
                "in them; to have its own, fit again with SGICSettings(estimator=...)"
            )
        seen = {own, *by_other_estimators(self.recorded)}
        if missing := [name for name in TOKEN_SIGNALS if name not in seen]:
            left_out.append(f"{', '.join(missing)}, as the model gives too little for them")
        if AGREEMENT not in seen:
            left_out.append(f"{AGREEMENT}, as it asks each prompt {settings.samples} times more")
        if left_out:
            notes.append(f"estimators that were not compared: {'; '.join(left_out)}")
        return notes

    def _about_wrongness(self, wrong: int, right: int) -> list[str]:
        rarer, kind = min((right, "right"), (wrong, "wrong"))
        if self.wrongness is None:
            return [
                f"only {rarer} {kind} answers: P(wrong) is not calibrated, it needs at least "
                f"{FEWEST} right and wrong ones each"
            ]
        notes = []
        if rarer < _ENOUGH:
            notes.append(f"only {rarer} {kind} answers: the P(wrong) calibration is a guess")
        if self.wrongness.auroc <= 0.5:
            notes.append("larger scores do not go with wrong answers here: do not rely on P(wrong)")
        return notes

    def _about_questions(self) -> list[str]:
        questions = len(self.direct.calls)
        if questions >= 100:
            return []
        return [f"{questions} questions leave wide intervals; 100 or more are better"]
