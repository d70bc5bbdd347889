"""Every way to answer that a fit compares, replayed from answers that the model gave once.

References:
    Chen et al. (SGIC), eq. 2 (the means), 4.3 and 5.2 (the variants), figure 3 (samples).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from ltrag_plugins.errors import LtragError, NoTokenProbabilities
from ltrag_plugins.flow import Flow
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.sgic import loop
from ltrag_plugins.sgic.answer import Round, plural
from ltrag_plugins.sgic.budget import Budget
from ltrag_plugins.sgic.documents import Relevance
from ltrag_plugins.sgic.loop import Session, best_round
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import Choose, SGICSettings
from ltrag_plugins.types import Generation, Question
from ltrag_plugins.uncertainty import AGREEMENT, TOKEN_SIGNALS

_Drive = Callable[[Iterable[Flow[Any]]], list[Any]]
"""`run_many` with its world, observers and batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One way to answer, and what came of it on each question."""

    name: str
    kind: Literal["direct", "rounds", "cut", "samples"]
    settings: SGICSettings
    recorded: Sequence[Session]
    """One for each question, with all rounds but those that a limit (or an error) cut off."""
    keepable: bool
    """Whether `calibrate` with these settings and the recorded scale sends just these prompts."""
    answers: Sequence[Round]
    columns: Mapping[str, Float[np.ndarray, " questions"]]
    """"em" and "f1"; "calls" (prompts, with the stop rules of the settings); "tokens" (read and
    written) and "milliseconds" (of the model, as an answer cache measured them), if all replies
    say them."""


def every_way(
    questions: Sequence[Question],
    drive: _Drive,
    settings: SGICSettings,
    *,
    cut_to: Iterable[int] = (),
    samples: int | Literal["equal"] = 0,
    relevance: Relevance | None = None,
) -> list[Variant]:
    """The direct answers, then all that has to beat them; for the arguments see `sgic.fit`."""
    most = max(len(question.passages) for question in questions)
    # one more look, at the surest documents alone, with nothing beside them
    bare = {"rounds": 1, "earlier": "none", "documents": "none", "choose": "last"}
    cuts = [replace(settings, cut_to=m, **bare) for m in sorted({*cut_to})]
    cuts = [cut for cut in cuts if cut.cut_to is not None and cut.cut_to < most]
    recorded = record(questions, drive, settings, cuts, relevance=relevance)
    found = [*_replayed(recorded, questions)]
    if samples == "equal":
        dearest = max((one.columns["calls"].mean() for one in found[1:]), default=1.0)
        samples = min(max(2, int(dearest)), settings.max_calls)
    if not samples:
        return found
    flows = [loop.sampled(q.text, q.passages, samples, settings) for q in questions]
    drawn = drive(flows)
    for k in range(1, max(len(answer.trace) for answer in drawn) + 1):
        replies = [[one.generation for one in answer.trace[:k]] for answer in drawn]
        pairs = zip(recorded[0], replies, strict=True)
        rated = (session.as_rounds(said) for session, said in pairs)
        answers = [best_round(trace, "least uncertain") for trace in rated]
        columns = _columns(questions, answers, replies)
        name = f"{plural(k, 'sample')}, least uncertain"
        found.append(Variant(name, "samples", settings, recorded[0], False, answers, columns))
    return found


def record(
    questions: Sequence[Question],
    drive: _Drive,
    settings: SGICSettings,
    cuts: Sequence[SGICSettings] = (),
    *,
    scale: ScoreScale | None = None,
    relevance: Relevance | None = None,
) -> list[list[Session]]:
    """Ask every round of every question, to the end: those of the settings, then of each of `cuts`.

    The prompts show scores on `scale`; None: the means of these answers (eq. 2). All questions go
    through a round before any goes into the next, so its mean is known before a prompt shows it.
    """

    def attempt(session: Session) -> Flow[None]:
        try:
            yield from session.answer()
        except LtragError:
            if session.settings.on_error == "raise":
                raise

    first = [Session(q.text, q.passages, settings, scale, relevance=relevance) for q in questions]
    drive(session.answer() for session in first)
    _rescale(first, scale)
    always = settings.score_documents == "always"
    rounds_score = always or (settings.rounds > 0 and loop.scores_documents(settings))
    lines = [first if rounds_score else [session.branch(settings) for session in first]]
    if cuts or rounds_score:
        drive(session.score_documents() for session in first)
    lines += [[session.branch(way) for session in first] for way in cuts]
    for number in range(1, max(way.rounds for way in (settings, *cuts)) + 1):
        # the cuts come first, as they end here: a local model that remembers the beginnings of so
        # many prompts and no more then still has those that the next round begins with
        drive(
            [
                attempt(session)
                for line in reversed(lines)
                for session in line
                if len(session.trace) == number <= session.settings.rounds and not session.limit()
            ]
        )
        for line in lines:
            _rescale(line, scale)
    return lines


def _rescale(line: Sequence[Session], scale: ScoreScale | None = None) -> None:
    """Put the answers on this scale; None: that of their own means."""
    traces = [session.trace for session in line]
    fitted = scale or ScoreScale.of_rounds(line[0].settings.estimator, traces)
    for session in line:
        session.rescale(fitted)


def _replayed(
    lines: Sequence[Sequence[Session]], questions: Sequence[Question]
) -> Iterator[Variant]:
    """What `calibrate` would have asked and returned with other settings, of the recorded answers.

    What was recorded is the rounds, then the cuts.
    """
    first, *cuts = lines
    settings = first[0].settings

    def way(
        kind: Any, name: str, line: Sequence[Session], *, keepable: bool = True, **more: Any
    ) -> Variant:
        other = replace(line[0].settings, **more)
        always, again = other.score_documents == "always", other.estimator == AGREEMENT
        answers, replies = [], []
        for session in line:
            trace = replay(session.trace, other)
            goes_on = loop.reason_to_stop(trace[:1], other) is None
            scored = always or (goes_on and session.reads_scores)
            asked = [*trace, *(session.document_answers if scored else ())]
            answers.append(best_round(trace, other.choose))
            replies.append([r for one in asked for r in (one.generation, *one.samples * again)])
        columns = _columns(questions, answers, replies)
        return Variant(name, kind, other, line, keepable, answers, columns)

    yield way("direct", "direct", first, rounds=0)
    for k in range(1, settings.rounds + 1):
        for choose in get_args(Choose):
            yield way("rounds", f"{plural(k, 'round')}, {choose}", first, rounds=k, choose=choose)
    for cut in cuts:
        for choose in ("least uncertain", "last"):
            yield way("cut", f"cut to {cut[0].settings.cut_to}, {choose}", cut, choose=choose)
    if not settings.rounds:
        return
    # whether another estimator would make other prompts of the same answers
    by_documents = loop.scores_documents(settings) and settings.source == "uncertainty"
    fixed = settings.earlier != "scores" and not by_documents
    for line in by_other_estimators(first):
        name = (
            f"{plural(settings.rounds, 'round')}, least uncertain by {line[0].settings.estimator}"
        )
        yield way("rounds", name, line, keepable=fixed, choose="least uncertain")


def by_other_estimators(line: Sequence[Session]) -> Iterator[list[Session]]:
    """The recorded answers as each other estimator sees them that can read them."""

    def seen(session: Session, settings: SGICSettings) -> Session:
        other = copy(session)
        other.settings = settings
        doubts = (other.own_words(r.number, r.generation, r.samples)[1] for r in other.trace)
        rounds = zip(other.trace, doubts, strict=True)
        other.trace = tuple(replace(one, uncertainty=doubt) for one, doubt in rounds)
        return other

    for name in (n for n in TOKEN_SIGNALS if n != line[0].settings.estimator):
        settings = replace(line[0].settings, estimator=name)
        with suppress(NoTokenProbabilities):
            others = [seen(session, settings) for session in line]
            _rescale(others)
            yield others


def replay(trace: tuple[Round, ...], settings: SGICSettings) -> tuple[Round, ...]:
    """The rounds that `calibrate` makes with these settings, of those that were recorded."""
    ends = (n for n in range(1, len(trace)) if loop.reason_to_stop(trace[:n], settings))
    return trace[: next(ends, len(trace))]


def _columns(
    questions: Sequence[Question],
    answers: Sequence[Round],
    replies: Sequence[Sequence[Generation]],
) -> dict[str, Float[np.ndarray, " questions"]]:
    """The quality of the answers, and what all replies to a question cost."""
    said = [(answer.text, q.answers) for answer, q in zip(answers, questions, strict=True)]
    found = {
        "em": np.array([normalized_exact_match(*one) for one in said]),
        "f1": np.array([f1(*one) for one in said]),
        "calls": np.array([float(len(one)) for one in replies]),
    }
    costs: dict[str, list[list[Any]]] = {
        "tokens": [[Budget.reported(reply) for reply in one] for one in replies],
        "milliseconds": [[reply.seconds for reply in one] for one in replies],
    }
    for (name, rows), unit in zip(costs.items(), (1, 1000), strict=True):
        if not any(None in row for row in rows):
            found[name] = unit * np.array([float(sum(row)) for row in rows])
    return found
