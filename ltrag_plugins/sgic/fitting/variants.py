"""The ways to answer that a fit compares, each played from what was recorded, without a call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from ltrag_plugins.errors import NoTokenProbabilities
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round
from ltrag_plugins.sgic.fitting.costs import Spent
from ltrag_plugins.sgic.fitting.recording import Recorded, Trace, reestimated
from ltrag_plugins.sgic.loop import as_rounds, chosen, reason_to_stop
from ltrag_plugins.sgic.settings import Choose, SGICSettings
from ltrag_plugins.types import Question
from ltrag_plugins.uncertainty import TOKEN_SIGNALS, calls_for

Column = Float[np.ndarray, " questions"]
Metric = Literal["em", "f1"]
Kind = Literal["direct", "rounds", "cut", "samples"]
METRICS: Mapping[Metric, Callable[[str, Sequence[str]], float]] = {
    "em": normalized_exact_match,
    "f1": f1,
}


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One way to answer, and what came of it on each question."""

    name: str
    kind: Kind
    settings: SGICSettings
    recorded: Recorded
    keepable: bool
    """Whether `calibrate` with these settings and the recorded scale sends just these prompts."""
    answers: tuple[Round, ...]
    em: Column
    f1: Column
    calls: Column
    """Prompts that each question takes with the stop rules of the settings."""
    tokens: Column | None = None
    """Read and written for each question; None where a reply did not say."""
    seconds: Column | None = None
    """Of the model for each question; None where no answer cache measured a reply."""

    def quality(self, metric: Metric) -> Column:
        """EM or F1 of each question, in [0, 1]."""
        return self.em if metric == "em" else self.f1


def asked(recorded: Sequence[Recorded], questions: Sequence[Question]) -> Iterator[Variant]:
    """The direct answer, and everything that has to beat it, but for samples.

    Args:
        recorded: the rounds, then the cuts.
    """
    first, *cut = recorded
    yield direct(first, questions)
    yield from rounds(first, questions)
    for one in cut:
        yield from cuts(one, questions)
    if first.settings.rounds:
        for seen in estimators(first).values():
            yield by_estimator(seen, questions, first)


def direct(recorded: Recorded, questions: Sequence[Question]) -> Variant:
    """The first answer, always."""
    return _variant("direct", "direct", replace(recorded.settings, rounds=0), recorded, questions)


def rounds(recorded: Recorded, questions: Sequence[Question]) -> Iterator[Variant]:
    """1..K rounds, with each way to choose among them."""
    settings = recorded.settings
    ways: tuple[Choose, ...] = ("least uncertain", "last", "repeated")
    for k in range(1, settings.rounds + 1):
        for choose in ways:
            one = replace(settings, rounds=k, choose=choose)
            yield _variant(f"{_counted(k)}, {choose}", "rounds", one, recorded, questions)


def cuts(recorded: Recorded, questions: Sequence[Question]) -> Iterator[Variant]:
    """One more look at the surest documents alone, with the ways to choose that differ."""
    ways: tuple[Choose, ...] = ("least uncertain", "last")
    for choose in ways:
        settings = replace(recorded.settings, choose=choose)
        yield _variant(f"cut to {settings.cut_to}, {choose}", "cut", settings, recorded, questions)


def estimators(recorded: Recorded) -> dict[str, Recorded]:
    """The recorded answers as each other estimator sees them that can read them."""
    found = {}
    for name in TOKEN_SIGNALS:
        if name != recorded.settings.estimator:
            try:
                found[name] = reestimated(recorded, name)
            except NoTokenProbabilities:
                continue
    return found


def by_estimator(recorded: Recorded, questions: Sequence[Question], like: Recorded) -> Variant:
    """All rounds, chosen and stopped by another estimator; `like` is what wrote the prompts."""
    settings = replace(recorded.settings, choose="least uncertain")
    name = f"{_counted(settings.rounds)}, least uncertain by {settings.estimator}"
    fixed = not prompts_depend(like.settings)
    return _variant(name, "rounds", settings, recorded, questions, keepable=fixed)


def prompts_depend(settings: SGICSettings) -> bool:
    """Whether another estimator would make other prompts of the same answers."""
    documents = settings.scores_documents and settings.source == "uncertainty"
    return settings.rounds > 0 and (settings.earlier == "scores" or documents)


def samples(
    drawn: Sequence[CalibratedAnswer], most: int, like: Recorded, questions: Sequence[Question]
) -> Iterator[Variant]:
    """The least uncertain of the first 1, 2, ... samples."""
    for k in range(1, most + 1):
        rated = [
            as_rounds([r.generation for r in answer.trace[:k]], like.settings, like.scale)
            for answer in drawn
        ]
        answers = [chosen(trace, "least uncertain") for trace in rated]
        spent = [Spent.sum(Spent.on(r.generation) for r in answer.trace[:k]) for answer in drawn]
        name = f"{k} sample{'s' * (k > 1)}, least uncertain"
        yield _scored(
            name, "samples", like.settings, like, questions, answers, spent, keepable=False
        )


def played(trace: Trace, settings: SGICSettings) -> Trace:
    """The rounds that `calibrate` makes with these settings, of those that were recorded."""
    for n in range(1, len(trace)):
        if reason_to_stop(trace[:n], settings):
            return trace[:n]
    return trace


def _variant(
    name: str,
    kind: Kind,
    settings: SGICSettings,
    recorded: Recorded,
    questions: Sequence[Question],
    *,
    keepable: bool = True,
) -> Variant:
    traces = [played(trace, settings) for trace in recorded.traces]
    answers = [chosen(trace, settings.choose) for trace in traces]
    spent = [
        _spent(trace, costs, settings)
        for trace, costs in zip(traces, recorded.document_costs, strict=True)
    ]
    return _scored(name, kind, settings, recorded, questions, answers, spent, keepable=keepable)


def _scored(
    name: str,
    kind: Kind,
    settings: SGICSettings,
    recorded: Recorded,
    questions: Sequence[Question],
    answers: Sequence[Round],
    spent: Sequence[Spent],
    *,
    keepable: bool,
) -> Variant:
    em, overlap = (
        np.array([metric(a.text, q.answers) for a, q in zip(answers, questions, strict=True)])
        for metric in (METRICS["em"], METRICS["f1"])
    )
    return Variant(
        name,
        kind,
        settings,
        recorded,
        keepable,
        tuple(answers),
        em,
        overlap,
        np.array([float(one.calls) for one in spent]),
        _column([one.tokens for one in spent]),
        _column([one.seconds for one in spent]),
    )


def _spent(trace: Trace, documents: Sequence[Spent], settings: SGICSettings) -> Spent:
    """On the rounds of the trace, and on the documents where one of them needs their scores."""
    goes_on = reason_to_stop(trace[:1], settings) is None
    scores = settings.score_documents == "always" or (goes_on and settings.scores_documents)
    each = calls_for(1, settings.estimator, settings.samples)
    asked = [reply for one in trace for reply in (one.generation, *one.samples)[:each]]
    return Spent.sum([*map(Spent.on, asked), *(documents if scores else ())])


def _column(values: Sequence[float | None]) -> Column | None:
    known = [float(value) for value in values if value is not None]
    return np.array(known) if len(known) == len(values) else None


def _counted(k: int) -> str:
    return f"{k} round{'s' * (k > 1)}"
