"""Ask the model once for all that a fit compares: every round of every question, to the end.

All questions go through a round before any goes into the next. So the mean of a round (eq. 2) is
known before a prompt shows its scores, and the prompts are those that `calibrate` will send with
the fitted scale, not those of a scale that was not fitted yet.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar

from ltrag_plugins.errors import LtragError
from ltrag_plugins.flow import Flow, Observer, World, run_many
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round
from ltrag_plugins.sgic.documents import Documents, Relevance
from ltrag_plugins.sgic.fitting.costs import Spent, metered
from ltrag_plugins.sgic.loop import Case
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Question
from ltrag_plugins.uncertainty import calls_for, reestimate

T = TypeVar("T")
Trace = tuple[Round, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What one way of looking again made of every question."""

    settings: SGICSettings
    traces: tuple[Trace, ...]
    """All rounds of each question, but for those that a limit (or an error) cut off."""
    document_costs: tuple[tuple[Spent, ...], ...]
    """What the replies by which the documents of each question are scored cost, one by one; the
    greedy ones first. Empty where no round needs the scores."""
    scale: ScoreScale


@dataclass(frozen=True, slots=True)
class Source:
    """Where replies come from, and who looks on."""

    world: World
    observers: tuple[Observer, ...] = ()
    batch: int | None = None
    relevance: Relevance | None = None


def record(
    questions: Sequence[Question], source: Source, settings: SGICSettings, cuts: Sequence[int]
) -> list[Recorded]:
    """The rounds of the settings, then one look at the m surest documents for each m of `cuts`.

    Raises:
        EmptyQuestion, InvalidInput, NoTokenProbabilities, ModelError: as `calibrate`.
    """
    cases = [
        Case.of(q.text, q.passages, settings, None, None, source.relevance, None) for q in questions
    ]
    firsts = _run(source, [case.answered((), case.documents) for case in cases])
    traces = _rescored([(first,) for first in firsts], settings.estimator)[0]
    before = [copy(case.budget) for case in cases]
    documents = [case.documents for case in cases]
    costs: list[list[Spent]] = [[] for _ in cases]
    always = settings.score_documents == "always"
    rounds_score = always or (settings.rounds > 0 and settings.scores_documents)
    if cuts or rounds_score:
        flows = [
            metered(case.scored(first), replies)
            for case, first, replies in zip(cases, firsts, costs, strict=True)
        ]
        documents = [scored for scored, _ in _run(source, flows)]
    ways = [settings, *(cut_settings(settings, m) for m in cuts)]
    lines = [
        [
            _Line(
                replace(case, settings=way, budget=copy(case.budget if scores else plain)),
                _for_way(found, way) if scores else case.documents,
                trace,
            )
            for case, plain, found, trace in zip(cases, before, documents, traces, strict=True)
        ]
        for way, scores in zip(ways, [rounds_score, *[True] * len(cuts)], strict=True)
    ]
    for number in range(1, max(way.rounds for way in ways) + 1):
        _advance(lines, number, source)
    return [
        Recorded(way, *_recorded(line, way, costs)) for way, line in zip(ways, lines, strict=True)
    ]


def cut_settings(settings: SGICSettings, documents: int) -> SGICSettings:
    """One more look, at the surest documents alone, with nothing beside them."""
    return replace(
        settings, rounds=1, cut_to=documents, earlier="none", documents="none", choose="last"
    )


def reestimated(recorded: Recorded, estimator: str) -> Recorded:
    """The same answers as another estimator sees them; the prompts stay what they were.

    Raises:
        NoTokenProbabilities: the answers came without what it reads.
    """
    settings = replace(recorded.settings, estimator=estimator)
    traces = [
        tuple(replace(one, uncertainty=_uncertainty(one, settings)) for one in trace)
        for trace in recorded.traces
    ]
    found, scale = _rescored(traces, estimator)
    each = calls_for(1, recorded.settings.estimator, settings.samples)
    greedy = tuple(costs[: len(costs) // each] for costs in recorded.document_costs)
    return Recorded(settings, tuple(found), greedy, scale)


def rescored(trace: Trace, scale: ScoreScale) -> Trace:
    """The same answers on another scale."""
    return tuple(replace(r, score=scale.score(r.uncertainty, r.number)) for r in trace)


def scale_of(traces: Sequence[Trace], estimator: str) -> ScoreScale:
    """The mean uncertainty of each round (eq. 2)."""
    return ScoreScale.fit(
        CalibratedAnswer(t[0].text, t[0].uncertainty, t[0].score, 0, "rounds", estimator, trace=t)
        for t in traces
    )


@dataclass(slots=True)
class _Line:
    """One question on one way."""

    case: Case
    documents: Documents
    trace: Trace

    def goes_on(self, number: int) -> bool:
        if len(self.trace) < number or number > self.case.settings.rounds:
            return False
        return self.case.limit(self.trace, self.documents) is None


def _advance(lines: list[list[_Line]], number: int, source: Source) -> None:
    """One round more for all that have one, in one request, and the scores on its mean."""
    # the cuts come first, as they end here: a local model that remembers the beginnings of so many
    # prompts and no more then still has those that the next round begins with
    going = [line for way in reversed(lines) for line in way if line.goes_on(number)]
    flows = [
        _attempted(line.case.answered(line.trace, line.documents), line.case.settings)
        for line in going
    ]
    for line, found in zip(going, _run(source, flows), strict=True):
        if found is not None:
            line.trace = (*line.trace, found)
    for way in lines:
        estimator = way[0].case.settings.estimator
        for line, trace in zip(way, _rescored([x.trace for x in way], estimator)[0], strict=True):
            line.trace = trace


def _run(source: Source, flows: Sequence[Flow[T]]) -> list[T]:
    return run_many(flows, source.world, observers=source.observers, batch=source.batch)


def _attempted(flow: Flow[Round], settings: SGICSettings) -> Flow[Round | None]:
    """None where the model failed and the settings take the best so far."""
    try:
        return (yield from flow)
    except LtragError:
        if settings.on_error == "raise":
            raise
        return None


def _for_way(documents: Documents, way: SGICSettings) -> Documents:
    scores = [d.score for d in documents.scored if d.score is not None]
    return documents.with_scores(scores, way.cut_to) if scores else documents


def _recorded(
    lines: Sequence[_Line], way: SGICSettings, costs: Sequence[Sequence[Spent]]
) -> tuple[tuple[Trace, ...], tuple[tuple[Spent, ...], ...], ScoreScale]:
    traces = tuple(line.trace for line in lines)
    always = way.score_documents == "always"
    needed = tuple(
        tuple(spent) if always or not line.case.all_are_kept else ()
        for line, spent in zip(lines, costs, strict=True)
    )
    return traces, needed, scale_of(traces, way.estimator)


def _rescored(traces: Sequence[Trace], estimator: str) -> tuple[list[Trace], ScoreScale]:
    scale = scale_of(traces, estimator)
    return [rescored(trace, scale) for trace in traces], scale


def _uncertainty(one: Round, settings: SGICSettings) -> float:
    if not one.text:
        return 1.0
    said, samples = one.generation, one.samples
    if one.number and settings.shows_a_form:
        said, samples = settings.templates.said(said), tuple(map(settings.templates.said, samples))
    return reestimate(said, samples, settings.estimator)
