"""Do the rounds pay with this model, on these questions? Fit scale and P(wrong), and say so.

Everything is asked once; what is compared is played from the recorded answers. Kept is the
cheapest variant whose gain over the direct answer is above 0 by a paired bootstrap over the
questions. Where there is none, or where choosing so does harm on questions that the choice was not
made on (cross-validated), it is the direct answer.

References:
    Chen et al. (SGIC), eq. 2 (the means), 4.3 and 5.2 (the variants), figure 3 (samples).
"""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Literal

import numpy as np

from ltrag_plugins.calibration import CalibrationMethod
from ltrag_plugins.errors import CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.flow import Ask, Observer, Step, World, run_many
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.calibrator import Calibration
from ltrag_plugins.sgic.documents import Relevance
from ltrag_plugins.sgic.fitting import variants as play
from ltrag_plugins.sgic.fitting.recording import Source, record, rescored, scale_of
from ltrag_plugins.sgic.fitting.report import FitReport
from ltrag_plugins.sgic.fitting.reporting import Compared, report
from ltrag_plugins.sgic.fitting.selecting import (
    FEWEST_QUESTIONS,
    cheapest_that_pays,
    folds,
    unseen_gain,
)
from ltrag_plugins.sgic.fitting.variants import METRICS, Metric, Variant
from ltrag_plugins.sgic.loop import check_samples, chosen, sampled
from ltrag_plugins.sgic.scale import FEWEST, ScoreScale, WrongnessCalibration
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Question


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
        metric: "em" or "f1": what has to rise. An answer under 0.5 in it is wrong for P(wrong).
        level: of the intervals, inside (0, 1); the lower end of a gain must be above 0.
        cut_to: the m of "one more look at the m surest documents alone"; empty: none.
        samples: K sampled answers beside it, at 1..K; "equal": as many as the dearest variant
            takes calls (at most `max_calls`). They are compared, never kept.
        method: of P(wrong); "isotonic" wants several hundred answers.
        relevance, encoder: for the settings' `source`.
        batch: most prompts of one model call; None: all of a round together.

    Returns:
        What `calibrate` takes, and the figures. `wrongness` is None where there are fewer than 5
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
    _check(settings, metric, level, cut_to, samples)
    counter = _Counter()
    source = Source(World(llm=llm, encoder=encoder), (counter, *observers), batch, relevance)
    recorded = record(questions, source, settings, _useful(cut_to, questions))
    direct, *others = play.asked(recorded, questions)
    drawn = _samples(questions, source, settings, samples, others)
    seed = settings.seed
    best = cheapest_that_pays(others, direct, metric=metric, level=level, seed=seed)
    unseen = unseen_gain(others, direct, metric=metric, level=level, seed=seed)
    harms = unseen is not None and unseen.value < 0
    picked = direct if harms or len(questions) < FEWEST_QUESTIONS else best
    wrongness = _wrongness(picked, questions, metric, method)
    compared = Compared(
        direct,
        [*others, *play.samples(drawn, _most(drawn), recorded[0], questions)],
        picked,
        best,
        unseen,
        wrongness,
        recorded[0],
    )
    calibration = Calibration(picked.settings, _scale(picked), wrongness)
    return calibration, report(compared, metric=metric, level=level, calls=counter.calls)


def _useful(cut_to: Sequence[int], questions: Sequence[Question]) -> list[int]:
    """Without those that cut nothing off any question."""
    most = max(len(question.passages) for question in questions)
    return sorted({int(m) for m in cut_to if m < most})


def _samples(
    questions: Sequence[Question],
    source: Source,
    settings: SGICSettings,
    samples: int | Literal["equal"],
    others: Sequence[Variant],
) -> list[CalibratedAnswer]:
    if samples == "equal":
        dearest = max((variant.calls.mean() for variant in others), default=1.0)
        samples = min(max(2, int(dearest)), settings.max_calls)
    if not samples:
        return []
    flows = [sampled(q.text, q.passages, samples, settings) for q in questions]
    return run_many(flows, source.world, observers=source.observers, batch=source.batch)


def _most(drawn: Sequence[CalibratedAnswer]) -> int:
    return max((len(answer.trace) for answer in drawn), default=0)


def _scale(kept: Variant) -> ScoreScale:
    means = kept.recorded.scale.means[: kept.settings.rounds + 1]
    return ScoreScale(kept.settings.estimator, means)


def _wrongness(
    kept: Variant, questions: Sequence[Question], metric: Metric, method: CalibrationMethod
) -> WrongnessCalibration | None:
    """P(wrong) of the kept variant; each score by a scale that was fitted without its question."""
    right, settings = METRICS[metric], kept.settings
    traces = [trace[: settings.rounds + 1] for trace in kept.recorded.traces]
    answers: dict[int, CalibratedAnswer] = {}
    for train, test in folds(len(traces), settings.seed):
        scale = scale_of([traces[i] for i in train], settings.estimator)
        for i in test:
            trace = play.played(rescored(traces[i], scale), settings)
            best = chosen(trace, settings.choose)
            answers[int(i)] = CalibratedAnswer(
                best.text, best.uncertainty, best.score, best.number, "rounds", settings.estimator
            )
    ordered = [answers[i] for i in range(len(traces))]
    wrong = [right(a.text, q.answers) < 0.5 for a, q in zip(ordered, questions, strict=True)]
    if not FEWEST <= np.sum(wrong) <= len(wrong) - FEWEST:
        return None
    return WrongnessCalibration.fit(
        ordered, wrong, scale=_scale(kept), method=method, seed=settings.seed
    )


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


def _check(
    settings: SGICSettings,
    metric: str,
    level: float,
    cut_to: Sequence[int],
    samples: int | str,
) -> None:
    if metric not in METRICS:
        raise InvalidInput(f"metric must be one of {list(METRICS)}, got {metric!r}")
    if not 0 < level < 1:
        raise InvalidInput(f"level must lie inside (0, 1), got {level!r}")
    if not all(_whole(m, 1) for m in cut_to):
        raise InvalidInput(f"cut_to holds whole numbers from 1 on, got {list(cut_to)}")
    if samples != "equal" and not _whole(samples, 0):
        raise InvalidInput(f"samples must be a whole number from 0 on, or 'equal', got {samples!r}")
    if samples and samples != "equal":
        check_samples(samples, settings)
    if settings.source == "oracle":
        raise InvalidInput(
            "source='oracle' knows the answers: a fit on it says nothing about other questions. "
            "Use it in calibrate(..., truth=...) for analysis"
        )


def _whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
