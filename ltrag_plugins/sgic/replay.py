"""Every way to answer that a fit compares, replayed from answers that the model gave once.

`record` asks every round of every question, to the end; `variants_of` replays what `calibrate`
would have asked and returned with other settings.

References:
    Chen et al. (SGIC), eq. 2 (the means), 4.3 and 5.2 (the variants), figure 3 (samples).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from ltrag_plugins.errors import LtragError, NoTokenProbabilities
from ltrag_plugins.flow import Flow, Observer, World, run_many
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round
from ltrag_plugins.sgic.budget import token_count
from ltrag_plugins.sgic.documents import Relevance
from ltrag_plugins.sgic.loop import (
    Session,
    as_rounds,
    best_round,
    own_words,
    reason_to_stop,
    scores_documents,
)
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import Choose, SGICSettings
from ltrag_plugins.types import Generation, Question
from ltrag_plugins.uncertainty import AGREEMENT, TOKEN_SIGNALS, Measured

_Column = Float[np.ndarray, " questions"]
_Kind = Literal["direct", "rounds", "cut", "samples"]


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What one way of looking again made of every question."""

    settings: SGICSettings
    traces: Sequence[tuple[Round, ...]]
    """All rounds of each question, but for those that a limit (or an error) cut off."""
    documents: Sequence[Sequence[Measured]]
    """The answers by which the documents of each question are scored; empty where no round needs
    the scores."""
    scale: ScoreScale


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
    with the fitted scale. The prompts show scores on `scale`; None: the means of these answers.
    """
    observers = tuple(observers)

    def run(flows: Iterable[Flow[Any]]) -> None:
        run_many(flows, world, observers=observers, batch=batch)

    def rescale(line: Sequence[Session]) -> None:
        traces = [session.trace for session in line]
        fitted = scale or ScoreScale.of_rounds(settings.estimator, traces)
        for session in line:
            session.rescale(fitted)

    def attempt(session: Session) -> Flow[None]:
        try:
            yield from session.answer()
        except LtragError:
            if session.settings.on_error == "raise":
                raise

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
        line_by_line = [session for line in reversed(lines) for session in line]
        run(
            [
                attempt(session)
                for session in line_by_line
                if len(session.trace) == number <= session.settings.rounds and not session.limit()
            ]
        )
        for line in lines:
            rescale(line)
    return [
        Recorded(
            line[0].settings,
            [session.trace for session in line],
            [s.document_answers if always or not s.keeps_all_documents else () for s in line],
            line[0].scale,
        )
        for line in lines
    ]


def cut_settings(settings: SGICSettings, documents: int) -> SGICSettings:
    """One more look, at the surest documents alone, with nothing beside them."""
    return replace(
        settings, rounds=1, cut_to=documents, earlier="none", documents="none", choose="last"
    )


def variants_of(recorded: Sequence[Recorded], questions: Sequence[Question]) -> Iterator[Variant]:
    """The direct answer, and everything that has to beat it, but for samples.

    What was recorded is the rounds, then the cuts.
    """
    first, *cuts = recorded
    settings = first.settings

    def replayed(
        name: str, kind: _Kind, seen: Recorded, *, keepable: bool = True, **changes: Any
    ) -> Variant:
        other = replace(seen.settings, **changes)
        always, again = other.score_documents == "always", other.estimator == AGREEMENT
        answers, replies = [], []
        for recorded, documents in zip(seen.traces, seen.documents, strict=True):
            trace = replay(recorded, other)
            goes_on = reason_to_stop(trace[:1], other) is None
            scored = always or (goes_on and scores_documents(other))
            asked = [*trace, *(documents if scored else ())]
            answers.append(best_round(trace, other.choose))
            replies.append([r for one in asked for r in (one.generation, *one.samples * again)])
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
    for seen in by_other_estimators(first):
        name = f"{_plural(settings.rounds, 'round')}, least uncertain by {seen.settings.estimator}"
        yield replayed(name, "rounds", seen, keepable=fixed, choose="least uncertain")


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


def by_other_estimators(recorded: Recorded) -> Iterator[Recorded]:
    """The recorded answers as each other estimator sees them that can read them.

    The prompts stay what they were.
    """
    for name in TOKEN_SIGNALS:
        settings = replace(recorded.settings, estimator=name)

        def seen(one: Round, settings: SGICSettings = settings) -> Round:
            _, doubt = own_words(one.number, one.generation, one.samples, settings)
            return replace(one, uncertainty=doubt)

        if settings != recorded.settings:
            try:
                traces = [tuple(map(seen, trace)) for trace in recorded.traces]
            except NoTokenProbabilities:
                continue
            scale = ScoreScale.of_rounds(name, traces)
            traces = [scale.rescored(trace) for trace in traces]
            yield Recorded(settings, traces, recorded.documents, scale)


def replay(trace: tuple[Round, ...], settings: SGICSettings) -> tuple[Round, ...]:
    """The rounds that `calibrate` makes with these settings, of those that were recorded."""
    for n in range(1, len(trace)):
        if reason_to_stop(trace[:n], settings):
            return trace[:n]
    return trace


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
    """With its quality, and what all replies to a question cost."""
    said = [(answer.text, q.answers) for answer, q in zip(answers, questions, strict=True)]

    def sums(costs: Sequence[Sequence[float | None]]) -> _Column | None:
        known = [[cost for cost in one if cost is not None] for one in costs]
        complete = [len(one) for one in known] == [len(one) for one in costs]
        return np.array([float(sum(one)) for one in known]) if complete else None

    return Variant(
        name,
        kind,
        settings,
        recorded,
        keepable,
        answers,
        em=np.array([normalized_exact_match(*one) for one in said]),
        f1=np.array([f1(*one) for one in said]),
        calls=np.array([float(len(one)) for one in replies]),
        tokens=sums([[token_count(reply) for reply in one] for one in replies]),
        seconds=sums([[reply.seconds for reply in one] for one in replies]),
    )


def _plural(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count > 1)}"
