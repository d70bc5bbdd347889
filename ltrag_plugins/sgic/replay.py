"""Every way to answer that a fit compares, replayed from answers that the model gave once.

`record` asks every round of every question, to the end; `variants_of` replays what `calibrate`
would have asked and returned with other settings; `cheapest_that_pays` chooses.

References:
    Chen et al. (SGIC), eq. 2 (the means), 4.3 and 5.2 (the variants), figure 3 (samples).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import LtragError, NoTokenProbabilities
from ltrag_plugins.flow import Flow, Observer, World, run_many
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.metrics.calibration import Interval, paired_bootstrap
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round
from ltrag_plugins.sgic.budget import token_count
from ltrag_plugins.sgic.documents import Relevance
from ltrag_plugins.sgic.loop import (
    Session,
    as_rounds,
    best_round,
    reason_to_stop,
    scores_documents,
    without_form,
)
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import Choose, SGICSettings
from ltrag_plugins.types import Generation, Question
from ltrag_plugins.uncertainty import AGREEMENT, TOKEN_SIGNALS, Measured, reestimate

_Column = Float[np.ndarray, " questions"]
_Rows = Int[np.ndarray, " rows"]
_Trace = tuple[Round, ...]
Metric = Literal["em", "f1"]
_Kind = Literal["direct", "rounds", "cut", "samples"]
ANSWER_METRICS: Mapping[Metric, Callable[[str, Sequence[str]], float]] = {
    "em": normalized_exact_match,
    "f1": f1,
}
FEWEST_QUESTIONS = 10
"""Below which a bootstrap over the questions says nothing, and direct is kept."""
_FOLDS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What one way of looking again made of every question."""

    settings: SGICSettings
    traces: Sequence[_Trace]
    """All rounds of each question, but for those that a limit (or an error) cut off."""
    documents: Sequence[Sequence[Measured]]
    """The answers by which the documents of each question are scored; empty where no round needs
    the scores."""
    scale: ScoreScale


def record(
    questions: Sequence[Question],
    world: World,
    settings: SGICSettings,
    cuts: Sequence[SGICSettings] = (),
    *,
    scale: ScoreScale | None = None,
    relevance: Relevance | None = None,
    observers: Iterable[Observer] = (),
    batch: int | None = None,
) -> list[Recorded]:
    """The rounds of the settings, then those of each of `cuts`; see `cut_settings`.

    All questions go through a round before any goes into the next. So the mean of a round (eq. 2)
    is known before a prompt shows its scores, and the prompts are those that `calibrate` sends
    with the fitted scale.

    Args:
        scale: for the scores that the prompts show; None: the means of these answers.
    """
    observers = tuple(observers)

    def run(flows: Iterable[Flow[Any]]) -> None:
        run_many(flows, world, observers=observers, batch=batch)

    def rescale(line: Sequence[Session]) -> None:
        traces = [session.trace for session in line]
        fitted = scale or ScoreScale.of_rounds(settings.estimator, traces)
        for session in line:
            session.rescale(fitted)

    sessions = [
        Session(q.text, q.passages, settings, scale, relevance=relevance) for q in questions
    ]
    run(session.answer() for session in sessions)
    rescale(sessions)
    always = settings.score_documents == "always"
    rounds_score = always or (settings.rounds > 0 and scores_documents(settings))
    lines = [sessions if rounds_score else [session.branch(settings) for session in sessions]]
    if cuts or rounds_score:
        run(session.score_documents() for session in sessions)
    lines += [[session.branch(way) for session in sessions] for way in cuts]
    for number in range(1, max(way.rounds for way in (settings, *cuts)) + 1):
        # the cuts come first, as they end here: a local model that remembers the beginnings of so
        # many prompts and no more then still has those that the next round begins with
        line_by_line = (session for line in reversed(lines) for session in line)
        run([_attempted(session) for session in line_by_line if _goes_on(session, number)])
        for line in lines:
            rescale(line)
    return [
        Recorded(
            line[0].settings,
            [session.trace for session in line],
            [
                session.document_answers if always or not session.keeps_all_documents else ()
                for session in line
            ],
            line[0].scale,
        )
        for line in lines
    ]


def cut_settings(settings: SGICSettings, documents: int) -> SGICSettings:
    """One more look, at the surest documents alone, with nothing beside them."""
    return replace(
        settings, rounds=1, cut_to=documents, earlier="none", documents="none", choose="last"
    )


def _goes_on(session: Session, number: int) -> bool:
    asked_for = number <= session.settings.rounds and len(session.trace) == number
    return asked_for and session.limit() is None


def _attempted(session: Session) -> Flow[None]:
    """The next round, or none where the model fails and the settings take the best so far."""
    try:
        yield from session.answer()
    except LtragError:
        if session.settings.on_error == "raise":
            raise


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One way to answer, and what came of it on each question."""

    name: str
    kind: _Kind
    settings: SGICSettings
    recorded: Recorded
    keepable: bool
    """Whether `calibrate` with these settings and the recorded scale sends just these prompts."""
    answers: Sequence[Round]
    em: _Column
    f1: _Column
    calls: _Column
    """Prompts that each question takes with the stop rules of the settings."""
    tokens: _Column | None = None
    """Read and written for each question; None where a reply did not say."""
    seconds: _Column | None = None
    """Of the model for each question; None where no answer cache measured a reply."""

    def quality(self, metric: Metric) -> _Column:
        """EM or F1 of each question, in [0, 1]."""
        return self.em if metric == "em" else self.f1


def variants_of(recorded: Sequence[Recorded], questions: Sequence[Question]) -> Iterator[Variant]:
    """The direct answer, and everything that has to beat it, but for samples.

    Args:
        recorded: the rounds, then the cuts.
    """
    first, *cuts = recorded
    settings = first.settings

    def replayed(
        name: str, kind: _Kind, seen: Recorded, *, keepable: bool = True, **changes: Any
    ) -> Variant:
        other = replace(seen.settings, **changes)
        traces = [replay(trace, other) for trace in seen.traces]
        answers = [best_round(trace, other.choose) for trace in traces]
        replies = [
            _replies(trace, documents, other)
            for trace, documents in zip(traces, seen.documents, strict=True)
        ]
        return _variant(name, kind, other, seen, questions, answers, replies, keepable=keepable)

    yield replayed("direct", "direct", first, rounds=0)
    for k in range(1, settings.rounds + 1):
        for choose in get_args(Choose):
            yield replayed(
                f"{_plural(k, 'round')}, {choose}", "rounds", first, rounds=k, choose=choose
            )
    for cut in cuts:
        for choose in ("least uncertain", "last"):
            yield replayed(f"cut to {cut.settings.cut_to}, {choose}", "cut", cut, choose=choose)
    if not settings.rounds:
        return
    # whether another estimator would make other prompts of the same answers
    by_documents = scores_documents(settings) and settings.source == "uncertainty"
    fixed = settings.earlier != "scores" and not by_documents
    for name, seen in by_other_estimators(first).items():
        label = f"{_plural(settings.rounds, 'round')}, least uncertain by {name}"
        yield replayed(label, "rounds", seen, keepable=fixed, choose="least uncertain")


def samples_of(
    drawn: Sequence[CalibratedAnswer], like: Recorded, questions: Sequence[Question]
) -> Iterator[Variant]:
    """The least uncertain of the first 1, 2, ... samples."""
    for k in range(1, max((len(answer.trace) for answer in drawn), default=0) + 1):
        replies = [[one.generation for one in answer.trace[:k]] for answer in drawn]
        rated = (as_rounds(said, like.settings, like.scale) for said in replies)
        answers = [best_round(trace, "least uncertain") for trace in rated]
        name = f"{_plural(k, 'sample')}, least uncertain"
        yield _variant(
            name, "samples", like.settings, like, questions, answers, replies, keepable=False
        )


def by_other_estimators(recorded: Recorded) -> dict[str, Recorded]:
    """The recorded answers as each other estimator sees them that can read them.

    The prompts stay what they were.
    """
    found = {}
    for name in TOKEN_SIGNALS:
        if name != recorded.settings.estimator:
            settings = replace(recorded.settings, estimator=name)
            try:
                traces = [
                    tuple(replace(r, uncertainty=_uncertainty(r, settings)) for r in trace)
                    for trace in recorded.traces
                ]
            except NoTokenProbabilities:
                continue
            scale = ScoreScale.of_rounds(name, traces)
            traces = [scale.rescored(trace) for trace in traces]
            found[name] = Recorded(settings, traces, recorded.documents, scale)
    return found


def replay(trace: _Trace, settings: SGICSettings) -> _Trace:
    """The rounds that `calibrate` makes with these settings, of those that were recorded."""
    for n in range(1, len(trace)):
        if reason_to_stop(trace[:n], settings):
            return trace[:n]
    return trace


def cheapest_that_pays(
    variants: Sequence[Variant],
    direct: Variant,
    *,
    metric: Metric,
    level: float,
    seed: int,
    rows: _Rows | None = None,
) -> Variant:
    """The variant of fewest calls whose gain over direct has an interval above 0; else direct.

    Of equally many calls the better answers count, then the order given.

    Args:
        level: of the two-sided interval of the paired bootstrap, inside (0, 1).
        rows: the questions to judge by; None: all.
    """
    rows = np.arange(len(direct.calls)) if rows is None else rows
    kept = [variant for variant in variants if variant.keepable]
    kept.sort(key=lambda v: (v.calls[rows].mean(), -v.quality(metric)[rows].mean()))
    before = direct.quality(metric)[rows]
    for variant in kept:
        after = variant.quality(metric)[rows]
        if after.mean() > before.mean():
            gain = paired_bootstrap(after, before, level=level, seed=seed)
            if gain.interval.low > 0:
                return variant
    return direct


def unseen_gain(
    variants: Sequence[Variant], direct: Variant, *, metric: Metric, level: float, seed: int
) -> Interval | None:
    """What the choice gains over direct on questions that it was not made on.

    With many variants one is above direct by luck; here each question is answered by the variant
    that the other folds chose. The recorded answers and the scale are the same in all folds.

    Returns:
        None for fewer questions than two.
    """
    before = direct.quality(metric)
    if len(before) < 2:
        return None
    found = np.zeros(len(before))
    for train, test in folds(len(before), seed):
        best = cheapest_that_pays(
            variants, direct, metric=metric, level=level, seed=seed, rows=train
        )
        found[test] = best.quality(metric)[test]
    return paired_bootstrap(found, before, level=level, seed=seed).interval


def folds(questions: int, seed: int) -> Iterator[tuple[_Rows, _Rows]]:
    """_Rows to fit on and rows to judge; a single question is both."""
    order = np.random.default_rng(seed).permutation(questions)
    for test in np.array_split(order, min(_FOLDS, questions)):
        train = np.setdiff1d(order, test)
        yield (train if train.size else test), test


def _uncertainty(one: Round, settings: SGICSettings) -> float:
    if not one.text:
        return 1.0
    answer, replies = one.generation, one.samples
    if one.number:
        answer, replies = without_form(answer, replies, settings)
    return reestimate(answer, replies, settings.estimator)


def _replies(
    trace: _Trace, documents: Sequence[Measured], settings: SGICSettings
) -> list[Generation]:
    """All that the rounds of the trace cost, and the documents where one needs their scores."""
    goes_on = reason_to_stop(trace[:1], settings) is None
    scored = settings.score_documents == "always" or (goes_on and scores_documents(settings))
    again = settings.estimator == AGREEMENT
    asked: list[Round | Measured] = [*trace, *(documents if scored else ())]
    return [reply for one in asked for reply in (one.generation, *(one.samples if again else ()))]


def _variant(
    name: str,
    kind: _Kind,
    settings: SGICSettings,
    recorded: Recorded,
    questions: Sequence[Question],
    answers: Sequence[Round],
    replies: Sequence[Sequence[Generation]],
    *,
    keepable: bool,
) -> Variant:
    em, overlap = (
        np.array([metric(a.text, q.answers) for a, q in zip(answers, questions, strict=True)])
        for metric in ANSWER_METRICS.values()
    )
    return Variant(
        name,
        kind,
        settings,
        recorded,
        keepable,
        answers,
        em,
        overlap,
        np.array([float(len(one)) for one in replies]),
        _sums([[token_count(reply) for reply in one] for one in replies]),
        _sums([[reply.seconds for reply in one] for one in replies]),
    )


def _sums(costs: Sequence[Sequence[float | None]]) -> _Column | None:
    """The sum of each question; None where a reply did not say."""
    known = [[cost for cost in one if cost is not None] for one in costs]
    if any(len(some) < len(every) for some, every in zip(known, costs, strict=True)):
        return None
    return np.array([float(sum(one)) for one in known])


def _plural(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count > 1)}"
