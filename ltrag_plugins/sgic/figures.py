"""All figures of a run: what its uncertainty tells, and what the rounds did.

References:
    Chen et al. (SGIC), figures 1, 4 and 5, sections 5.3, 5.6 and 5.8, table 10, appendix A.5.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.metrics.calibration import Reliability, auroc
from ltrag_plugins.sgic.answer import Round
from ltrag_plugins.sgic.records import LabelledAnswer

_Run = Sequence[LabelledAnswer]
_WAYS = {
    (True, True): "right → right",
    (True, False): "right → wrong",
    (False, True): "wrong → right",
    (False, False): "wrong → wrong",
}
_EARLY = 2  # rounds within which the paper finds three in four of what is mended
_ENOUGH = 30  # right and wrong answers each, below which an AUROC is called a guess


@dataclass(frozen=True, slots=True)
class _AnswerFigures:
    """The answers of one round, those returned (A.5), or those that turned one way (figure 4).

    All are 0 to 1 but the mean score, 0 to 100; None of no answers. An AUROC, for "wrong", is None
    where all are right, or all wrong; the two differ where rounds with own scales stand together.
    """

    name: str
    """"round 0", "round 1", ..., "returned", or as "right → wrong"."""
    answers: int
    right: float | None
    uncertainty: float | None
    score: float | None
    auroc: float | None
    score_auroc: float | None


@dataclass(frozen=True, slots=True)
class _Transitions:
    """Counts of questions (section 5.6), by their first answer and the one returned."""

    questions: int
    """All are kept, spoiled (which the paper does not count), mended or failed."""
    kept: int
    spoiled: int
    mended: int
    mended_early: int
    """Of those, first right in round 1 or 2."""
    failed: int
    """The three below add up to it."""
    fell: int
    """The last answer less uncertain than the first (paper: "declining uncertainty")."""
    rose: int
    """No less uncertain after all rounds (paper: "the 5-round limit with rising uncertainty")."""
    stopped: int
    """No less uncertain, and ended before the round limit; see `CalibratedAnswer.stop`."""
    missed: int
    """Of the failed, right in some round."""


@dataclass(frozen=True, slots=True)
class _Histogram:
    """Numbers in [0, 1], counted in bins of equal width, and their mean; None of nothing."""

    counts: tuple[int, ...]
    mean: float | None


@dataclass(frozen=True, slots=True)
class _Spread:
    """The uncertainty of right and wrong answers, or of documents that help and others (figure 1).

    The AUROC is for the bad kind, 0 to 1; None where one kind is missing.
    """

    good: _Histogram
    bad: _Histogram
    auroc: float | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Figures of a run; `print` shows them as a table."""

    estimator: str
    rounds: tuple[_AnswerFigures, ...]
    """Each over the questions that got to it."""
    returned: _AnswerFigures
    turns: tuple[tuple[_AnswerFigures, ...], ...]
    """For each round from 1 on, the answers that stay right, turn wrong, turn right and stay wrong
    since the round before (figure 4)."""
    turns_from_first: tuple[tuple[_AnswerFigures, ...], ...]
    """As `turns`, since round 0."""
    first: _Spread
    """Of the first answers (figure 1)."""
    documents: _Spread | None
    """Of all that were asked about alone and are known to help or not (figure 1)."""
    recall: Mapping[int, float]
    """R@k of the documents that help, the least uncertain first, else by score; may be empty."""
    mending: _Transitions
    reliability: Reliability | None
    """P(wrong) of the answers returned; None where none has one."""
    notes: tuple[str, ...] = ()
    """What a reader should know before relying on it."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"recall": {f"R@{k}": value for k, value in self.recall.items()}}

    def __str__(self) -> str:
        lines = [f"{name:<36.36}{text}".rstrip() for name, text in self._rows()]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    def _rows(self) -> Iterator[tuple[str, str]]:
        """A name and its figures for each line."""
        found = self.mending
        columns = f"{'answers':>9}{'right':>8}{'uncertainty':>13}{'score':>8}  AUROC for wrong"
        yield f"{found.questions} questions, by {self.estimator}", columns
        for row in (*self.rounds, self.returned):
            figures = f"{row.answers:9d}{row.right:8.3f}{row.uncertainty:13.3f}{row.score:8.1f}"
            area = _number(row.auroc)
            if row.score_auroc != row.auroc:
                area += f" (of the score: {_number(row.score_auroc)})"
            yield row.name, f"{figures}  {area}"
        yield "", ""
        yield "answers that turn, mean score", "".join(f"{name:>16}" for name in _WAYS.values())
        steps = [(n, n + 1, ways) for n, ways in enumerate(self.turns)]
        steps += [(0, n, ways) for n, ways in enumerate(self.turns_from_first[1:], 2)]
        for start, end, ways in steps:
            means = ("" if way.score is None else f" ({way.score:.1f})" for way in ways)
            cells = (f"{way.answers}{mean}" for way, mean in zip(ways, means, strict=True))
            yield f"round {start} to {end}", "".join(f"{cell:>16}" for cell in cells)
        yield "", ""
        failures = (
            f": {found.fell} grew less uncertain, {found.rose} did not in all rounds, "
            f"{found.stopped} stopped early; {found.missed} were right in some round"
        )
        early = f": {found.mended_early} of them within {_EARLY} rounds"
        more = {"mended": early, "failed": failures, "spoiled": "", "kept": ""}
        for name, text in more.items():
            count = getattr(found, name)
            yield name, f"{count} ({count / found.questions:.1%}){text if count else ''}"
        if (seen := self.documents) is not None:
            for name, kind in (("that help", seen.good), ("that do not", seen.bad)):
                yield f"documents {name}", f"{sum(kind.counts)}, uncertainty {_number(kind.mean)}"
            yield "AUROC of documents", _number(seen.auroc)
        yield from ((f"R@{k}", f"{value:.3f}") for k, value in self.recall.items())
        if (told := self.reliability) is not None:
            yield "P(wrong): AUROC, calibration error", f"{_number(told.auroc)}, {told.ece:.3f}"


def analyse(run: _Run, *, bins: int = 10, ks: Iterable[int] = (1, 2)) -> Analysis:
    """Everything that can be said of these answers.

    Args:
        run: from `labelled`, or read with `read_run`.
        bins: of the histograms over [0, 1], and of the reliability; at least 1.
        ks: of R@k.

    Raises:
        InvalidInput: there are no answers, they are of several estimators, or `bins` is below 1.
    """
    if not run:
        raise InvalidInput("there are no answers to analyse; run `calibrate` on some questions")
    if len(estimators := {one.answer.estimator for one in run}) > 1:
        raise InvalidInput(
            f"these answers are of the estimators {', '.join(sorted(estimators))}, whose numbers "
            "cannot be compared; analyse one at a time"
        )
    if bins < 1:
        raise InvalidInput(f"bins must be at least 1, got {bins}")
    most = max(len(one.right) for one in run)
    reached = [[one for one in run if n < len(one.right)] for n in range(most)]
    first = [one.rounds[0] for one in run]
    pairs = (pair for one in run for pair in zip(one.answer.documents, one.relevant, strict=False))
    documents = [(d.uncertainty, helps) for d, helps in pairs if d.uncertainty is not None]
    ranked = [(row, one.relevant) for one in run if any(one.relevant) and (row := _ranks(one))]
    promised = [(p, not one.returned_right) for one in run if (p := one.answer.p_wrong) is not None]
    right = sum(right for _, right in first)
    rarer, kind = min((right, "right"), (len(run) - right, "wrong"))
    notes = []
    if rarer < _ENOUGH:
        notes.append(f"only {rarer} first answers are {kind}: the AUROCs are guesses")
    if short := len(run) - len(reached[-1]):
        notes.append(
            f"{short} of {len(run)} questions stopped before the last round: the figures of later "
            "rounds are of the others"
        )
    return Analysis(
        estimator=run[0].answer.estimator,
        rounds=tuple(
            _answers(f"round {n}", [one.rounds[n] for one in there])
            for n, there in enumerate(reached)
        ),
        returned=_answers("returned", [one.rounds[one.answer.round] for one in run]),
        # the paper's "how answers change in each calibration round", read as since the one before
        turns=tuple(_turns(reached[n], n - 1, n) for n in range(1, most)),
        turns_from_first=tuple(_turns(reached[n], 0, n) for n in range(1, most)),
        first=_spread([(one.uncertainty, right) for one, right in first], bins),
        documents=_spread(documents, bins) if documents else None,
        recall=r_at_k(*zip(*ranked, strict=True), ks=ks) if ranked else {},
        mending=_transitions(run),
        reliability=Reliability.of(*zip(*promised, strict=True), bins=bins) if promised else None,
        notes=tuple(notes),
    )


def r_at_k(
    values: Sequence[Sequence[float]],
    relevant: Sequence[Sequence[bool]],
    ks: Iterable[int] = (2, 5),
) -> dict[int, float]:
    r"""Mean share of the relevant documents among the k with the largest values, in [0, 1].

    Of t documents that tie, with b above them, each is among the first k with the probability
    :math:`\min(1, \max(0, (k - b) / t))`, as in a random order (table 10: attention, k = 2 and 5).

    Args:
        values: for each question one number a document, larger is ranked higher; of attention
            `AttentionShares.documents`.
        relevant: whether each helps, in the same shape; at least one of each question does.
        ks: each at least 1.

    Raises:
        InvalidInput: there are no questions, or more of one than of the other; a question has no
            relevant document, or a NaN; a k is below 1.
    """
    if not values or len(values) != len(relevant):
        raise InvalidInput(
            f"values of {len(values)} questions came with labels of {len(relevant)}; give one list "
            "of each for a question, and at least one question"
        )
    for row, labels in zip(values, relevant, strict=True):
        if len(row) != len(labels):
            raise InvalidInput(f"{len(row)} values came for {len(labels)} labels of documents")
        if not any(labels):
            raise InvalidInput("no document is relevant; leave such questions out of R@k")
        if any(value != value for value in row):
            raise InvalidInput("a value is NaN; leave that question out, or find its source")

    def recall(row: Sequence[float], labels: Sequence[bool], k: int) -> float:
        wanted = [value for value, helps in zip(row, labels, strict=True) if helps]
        places = (
            (k - sum(other > value for other in row)) / sum(other == value for other in row)
            for value in wanted
        )
        return sum(min(1.0, max(0.0, place)) for place in places) / len(wanted)

    ks = [*ks]
    if any(k < 1 for k in ks):
        raise InvalidInput(f"k must be at least 1, got {ks}")
    return {k: sum(map(recall, values, relevant, repeat(k))) / len(values) for k in ks}


def _answers(name: str, answers: Sequence[tuple[Round, bool]]) -> _AnswerFigures:
    wrong = [not right for _, right in answers]
    measures = [one.uncertainty for one, _ in answers], [one.score for one, _ in answers]
    right = 1 - sum(wrong) / len(wrong) if wrong else None
    areas = [_auroc(values, wrong) for values in measures]
    return _AnswerFigures(name, len(wrong), right, *map(_mean, measures), *areas)


def _turns(run: _Run, start: int, end: int) -> tuple[_AnswerFigures, ...]:
    """What became of right and wrong answers from one round to a later one."""
    return tuple(
        _answers(
            name, [one.rounds[end] for one in run if (one.right[start], one.right[end]) == way]
        )
        for way, name in _WAYS.items()
    )


def _transitions(run: _Run) -> _Transitions:
    kept, spoiled, mended, failed = (
        [one for one in run if (one.right[0], one.returned_right) == way] for way in _WAYS
    )
    # of the last round, not of the one returned: that is the least uncertain by choice
    traces = ((one.answer.stop, one.answer.trace) for one in failed)
    grown = [stop for stop, trace in traces if trace[-1].uncertainty >= trace[0].uncertainty]
    return _Transitions(
        questions=len(run),
        kept=len(kept),
        spoiled=len(spoiled),
        mended=len(mended),
        mended_early=sum(one.right.index(True) <= _EARLY for one in mended),
        failed=len(failed),
        fell=len(failed) - len(grown),
        rose=grown.count("rounds"),
        stopped=len(grown) - grown.count("rounds"),
        missed=sum(any(one.right) for one in failed),
    )


def _ranks(one: LabelledAnswer) -> list[float]:
    """Minus the uncertainty (or the score) of each document; nothing where one has none."""
    for name in ("uncertainty", "score"):
        found = [getattr(document, name) for document in one.answer.documents]
        if None not in found:
            return [-value for value in found]
    return []


def _spread(pairs: Sequence[tuple[float, bool]], bins: int) -> _Spread:
    """Of uncertainties, each with whether it is of the good kind."""

    def histogram(wanted: bool) -> _Histogram:
        values = [value for value, good in pairs if good == wanted]
        counts = Counter(min(int(value * bins), bins - 1) for value in values)
        return _Histogram(tuple(counts[i] for i in range(bins)), _mean(values))

    values, goods = zip(*pairs, strict=True)
    return _Spread(histogram(True), histogram(False), _auroc(values, [not one for one in goods]))


def _auroc(scores: Sequence[float], wrong: Sequence[bool]) -> float | None:
    return auroc(scores, wrong) if len(set(wrong)) == 2 else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
