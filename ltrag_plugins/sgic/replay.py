"""Every way to answer that a fit compares, replayed from answers that the model gave once.

`record` asks every round of every question, to the end; `variants_of` replays what `calibrate`
would have asked and returned with other settings.

References:
    Chen et al. (SGIC), eq. 2 (the means), 4.3 and 5.2 (the variants), figure 3 (samples).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from ltrag_plugins.errors import LtragError, NoTokenProbabilities
from ltrag_plugins.flow import Flow, Observer, World, run_many
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.sgic import loop
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round
from ltrag_plugins.sgic.budget import token_count
from ltrag_plugins.sgic.documents import Relevance
from ltrag_plugins.sgic.loop import Session, best_round, scores_documents
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import Choose, SGICSettings
from ltrag_plugins.types import Generation, Question
from ltrag_plugins.uncertainty import AGREEMENT, TOKEN_SIGNALS, Measured

_Kind = Literal["direct", "rounds", "cut", "samples"]
_Columns = Mapping[str, Float[np.ndarray, " questions"]]


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What one way of looking again made of every question."""

    settings: SGICSettings
    traces: Sequence[tuple[Round, ...]]
    """All rounds of each question, but for those that a limit (or an error) cut off."""
    documents: Sequence[Sequence[Measured]]
    """The answers that score its documents; empty where no round needs the scores."""
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
    columns: _Columns
    """"em" and "f1"; "calls" (prompts, with the stop rules of the settings); "tokens" (read and
    written) and "milliseconds" (of the model, as an answer cache measured them), if all replies
    say them."""


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

    The prompts show scores on `scale`; None: the means of these answers (eq. 2). All questions go
    through a round before any goes into the next, so its mean is known before a prompt shows it.
    """
    run = partial(run_many, world=world, observers=tuple(observers), batch=batch)

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
        run(
            [
                attempt(session)
                for line in reversed(lines)
                for session in line
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
            goes_on = loop.reason_to_stop(trace[:1], other) is None
            scored = always or (goes_on and scores_documents(other))
            asked = [*trace, *(documents if scored else ())]
            answers.append(best_round(trace, other.choose))
            replies.append([r for one in asked for r in (one.generation, *one.samples * again)])
        columns = _columns(questions, answers, replies)
        return Variant(name, kind, other, seen, keepable, answers, columns)

    yield replayed("direct", "direct", first, rounds=0)
    for k in range(1, settings.rounds + 1):
        for choose in get_args(Choose):
            name = f"{_plural(k, 'round')}, {choose}"
            yield replayed(name, "rounds", first, rounds=k, choose=choose)
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
    settings = like.settings
    for k in range(1, max((len(answer.trace) for answer in drawn), default=0) + 1):
        replies = [[one.generation for one in answer.trace[:k]] for answer in drawn]
        rated = (loop.as_rounds(said, settings, like.scale) for said in replies)
        answers = [best_round(trace, "least uncertain") for trace in rated]
        columns = _columns(questions, answers, replies)
        name = f"{_plural(k, 'sample')}, least uncertain"
        yield Variant(name, "samples", settings, like, False, answers, columns)


def by_other_estimators(recorded: Recorded) -> Iterator[Recorded]:
    """The recorded answers as each other estimator sees them that can read them."""
    for name in (n for n in TOKEN_SIGNALS if n != recorded.settings.estimator):
        settings = replace(recorded.settings, estimator=name)

        def seen(one: Round, settings: SGICSettings = settings) -> Round:
            _, doubt = loop.own_words(one.number, one.generation, one.samples, settings)
            return replace(one, uncertainty=doubt)

        try:
            traces = [tuple(map(seen, trace)) for trace in recorded.traces]
        except NoTokenProbabilities:
            continue
        scale = ScoreScale.of_rounds(name, traces)
        traces = [scale.rescored(trace) for trace in traces]
        yield Recorded(settings, traces, recorded.documents, scale)


def replay(trace: tuple[Round, ...], settings: SGICSettings) -> tuple[Round, ...]:
    """The rounds that `calibrate` makes with these settings, of those that were recorded."""
    ends = (n for n in range(1, len(trace)) if loop.reason_to_stop(trace[:n], settings))
    return trace[: next(ends, len(trace))]


def _columns(
    questions: Sequence[Question],
    answers: Sequence[Round],
    replies: Sequence[Sequence[Generation]],
) -> _Columns:
    """The quality of the answers, and what all replies to a question cost."""
    said = [(answer.text, q.answers) for answer, q in zip(answers, questions, strict=True)]
    found = {
        "em": np.array([normalized_exact_match(*one) for one in said]),
        "f1": np.array([f1(*one) for one in said]),
        "calls": np.array([float(len(one)) for one in replies]),
    }
    costs: dict[str, list[list[Any]]] = {
        "tokens": [[token_count(reply) for reply in one] for one in replies],
        "milliseconds": [[reply.seconds for reply in one] for one in replies],
    }
    for (name, rows), unit in zip(costs.items(), (1, 1000), strict=True):
        if not any(None in row for row in rows):
            found[name] = unit * np.array([float(sum(row)) for row in rows])
    return found


def _plural(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count > 1)}"
