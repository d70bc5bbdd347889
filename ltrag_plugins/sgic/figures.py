"""All figures of a run: what its uncertainty tells, and what the rounds did.

References:
    Chen et al. (SGIC), figures 1, 4 and 5, sections 5.3, 5.6 and 5.8, table 10, appendix A.5.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Literal

import numpy as np

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.metrics.calibration import Reliability, auroc, reliability
from ltrag_plugins.sgic.answer import Round
from ltrag_plugins.sgic.records import LabelledAnswer, checked_run

_Run = Sequence[LabelledAnswer]
Since = Literal["before", "first"]
"""Which answer a turn starts from: that of the round before, or that of round 0."""
_WAYS = ((True, True), (True, False), (False, True), (False, False))
_EARLY = 2
"""Rounds within which the paper finds three in four of what is mended."""
_ENOUGH = 30
"""Right and wrong answers each, below which an AUROC is called a guess."""


# --- rounds (A.5)


@dataclass(frozen=True, slots=True)
class _AnswerFigures:
    """The answers of one round, or those returned."""

    name: str
    """"round 0", "round 1", ... or "returned"."""
    answers: int
    """Where questions stop early, later rounds have fewer."""
    right: float
    """Share of right ones, 0 to 1."""
    uncertainty: float
    """Mean, 0 to 1."""
    score: float
    """Mean, 0 to 100."""
    auroc: float | None
    """Of the uncertainty for "wrong", 0 to 1; None where all are right, or all wrong."""
    score_auroc: float | None
    """Of the score; another than `auroc` only where answers of several rounds stand together, as
    each round has its own scale, or where the scores are an oracle's."""


def round_figures(run: _Run) -> tuple[_AnswerFigures, ...]:
    """Each round over the questions that got to it (A.5: of round 0 and 1)."""
    rounds = max(len(one.right) for one in checked_run(run))
    return tuple(
        _figures(f"round {n}", [(one.answer.trace[n], one.right[n]) for one in _reached(run, n)])
        for n in range(rounds)
    )


def returned_figures(run: _Run) -> _AnswerFigures:
    """The answers that were chosen."""
    return _figures("returned", [(one.returned, one.returned_right) for one in checked_run(run)])


def _figures(name: str, answers: Sequence[tuple[Round, bool]]) -> _AnswerFigures:
    wrong = [not right for _, right in answers]
    uncertainties = [one.uncertainty for one, _ in answers]
    scores = [one.score for one, _ in answers]
    count = len(answers)
    return _AnswerFigures(
        name,
        count,
        1 - sum(wrong) / count,
        sum(uncertainties) / count,
        sum(scores) / count,
        _auroc(uncertainties, wrong),
        _auroc(scores, wrong),
    )


def _reached(run: _Run, number: int) -> list[LabelledAnswer]:
    return [one for one in run if number < len(one.right)]


def _auroc(scores: Sequence[float], wrong: Sequence[bool]) -> float | None:
    return auroc(scores, wrong) if len(set(wrong)) == 2 else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# --- transitions between rounds (figures 4 and 5)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The questions whose answer went one way."""

    before: bool
    """Whether the earlier answer was right."""
    after: bool
    """Whether the answer of the round is."""
    count: int
    uncertainty: float | None
    """Mean of the answers of the round, 0 to 1; None where there are none."""
    score: float | None
    """The same as a score, 0 to 100; what figure 4 draws."""

    @property
    def name(self) -> str:
        """As the paper writes it."""
        right = {True: "right", False: "wrong"}
        return f"{right[self.before]} → {right[self.after]}"


@dataclass(frozen=True, slots=True)
class _Turns:
    """How answers changed in one round (figure 4)."""

    round: int
    """From 1 on."""
    since: Since
    turns: tuple[_Turn, ...]
    """Right to right, right to wrong, wrong to right, wrong to wrong."""


@dataclass(frozen=True, slots=True)
class _AnswerPath:
    """One question on its way through the rounds (figure 5)."""

    question: str
    right: tuple[bool, ...]
    scores: tuple[float, ...]
    """0 to 100, one a round."""
    returned: int
    """The round whose answer was chosen."""


def turns(run: _Run, since: Since = "before") -> tuple[_Turns, ...]:
    """Right and wrong answers, and what became of them, for each round after the first.

    The paper says "how answers change in each calibration round": we read "before", from the
    answer of round n - 1 to that of round n. "first" goes from round 0 to n.
    """
    if since not in ("before", "first"):
        raise InvalidInput(f"since must be 'before' or 'first', got {since!r}")
    found = []
    for n in range(1, max(len(one.right) for one in checked_run(run))):
        start, there, ways = 0 if since == "first" else n - 1, _reached(run, n), []
        for before, after in _WAYS:
            went = [
                one.answer.trace[n]
                for one in there
                if (one.right[start], one.right[n]) == (before, after)
            ]
            means = (_mean([r.uncertainty for r in went]), _mean([r.score for r in went]))
            ways.append(_Turn(before, after, len(went), *means))
        found.append(_Turns(n, since, tuple(ways)))
    return tuple(found)


def paths(run: _Run, count: int | None = None, *, seed: int = 0) -> tuple[_AnswerPath, ...]:
    """The way of single questions, in their order.

    Args:
        count: that many, drawn at random (paper: 10); None, or more than there are: all.
    """
    drawn = range(len(run))
    if count is not None and count < len(run):
        drawn = sorted(Random(seed).sample(drawn, count))
    return tuple(
        _AnswerPath(
            one.question, one.right, tuple(r.score for r in one.answer.trace), one.answer.round
        )
        for one in (run[i] for i in drawn)
    )


# --- what became of wrong first answers, and of right ones (section 5.6)


@dataclass(frozen=True, slots=True)
class _Transitions:
    """Counts of questions: `kept + spoiled + mended + failed` is all of them."""

    questions: int
    kept: int
    """Right at first, and right in the end (the answer returned)."""
    spoiled: int
    """Right at first, wrong in the end. The paper does not count them."""
    mended: int
    """Wrong at first, right in the end."""
    mended_early: int
    """Of those, first right in round 1 or 2."""
    failed: int
    """Wrong at first and in the end; the three below add up to it."""
    fell: int
    """Failed, the last answer less uncertain than the first (paper: "declining uncertainty")."""
    rose: int
    """Failed, after all rounds, the last answer no less uncertain than the first (paper: "reached
    the 5-round limit with rising uncertainty")."""
    stopped: int
    """Failed, no less uncertain, and ended before the round limit; see `CalibratedAnswer.stop`."""
    missed: int
    """Failed though some round had it right: another answer was chosen."""
    mended_uncertainty: float | None
    """Mean of the first answers that were mended, 0 to 1; None of nothing."""
    failed_uncertainty: float | None
    """Mean of the first answers that were not, 0 to 1; None of nothing."""

    def share(self, count: int) -> float:
        """Of all questions, 0 to 1."""
        return count / self.questions


def transitions(run: _Run) -> _Transitions:
    """Count them."""
    ways: dict[tuple[bool, bool], list[LabelledAnswer]] = {}
    for one in checked_run(run):
        ways.setdefault((one.first_right, one.returned_right), []).append(one)
    mended, failed = ways.get((False, True), []), ways.get((False, False), [])
    # of the last round, not of the one returned: that is the least uncertain by choice
    grown = [one for one in failed if one.answer.trace[-1].uncertainty >= one.first.uncertainty]
    rose = sum(one.answer.stop == "rounds" for one in grown)
    return _Transitions(
        questions=len(run),
        kept=len(ways.get((True, True), [])),
        spoiled=len(ways.get((True, False), [])),
        mended=len(mended),
        mended_early=sum(one.right.index(True) <= _EARLY for one in mended),
        failed=len(failed),
        fell=len(failed) - len(grown),
        rose=rose,
        stopped=len(grown) - rose,
        missed=sum(any(one.right) for one in failed),
        mended_uncertainty=_mean([one.first.uncertainty for one in mended]),
        failed_uncertainty=_mean([one.first.uncertainty for one in failed]),
    )


# --- do the documents that help stand first? (section 5.8, table 10: of ten documents)


def recall_at(values: Sequence[float], relevant: Sequence[bool], k: int) -> float:
    r"""Share of the relevant documents among the k with the largest values, in [0, 1].

    Of t documents that tie, with b above them, each is among the first k with the probability
    :math:`\min(1, \max(0, (k - b) / t))`, so ties count as what a random order gives on average,
    and not as the place in which a retriever happened to put them.

    Args:
        values: of each document, without NaN; larger is ranked higher.
        relevant: whether each helps; at least one does.
        k: at least 1.
    """
    if len(values) != len(relevant):
        raise InvalidInput(
            f"{len(values)} values came for {len(relevant)} labels; give one of each a document"
        )
    if not any(relevant):
        raise InvalidInput("no document is relevant; leave such questions out of R@k")
    if any(value != value for value in values):
        raise InvalidInput("a value is NaN; leave that question out, or find its source")
    if k < 1:
        raise InvalidInput(f"k must be at least 1, got {k}")
    wanted = [value for value, helps in zip(values, relevant, strict=True) if helps]
    shares = (
        (k - sum(other > value for other in values)) / sum(other == value for other in values)
        for value in wanted
    )
    return sum(min(1.0, max(0.0, share)) for share in shares) / len(wanted)


def r_at_k(
    values: Sequence[Sequence[float]],
    relevant: Sequence[Sequence[bool]],
    ks: Iterable[int] = (2, 5),
) -> dict[int, float]:
    """Mean `recall_at` over questions, for each k (table 10: attention, k = 2 and 5).

    Args:
        values: for each question one number a document, larger is ranked higher; of attention
            `AttentionShares.documents`.
        relevant: the same shape.

    Raises:
        InvalidInput: there are no questions, or more of one than of the other; a question has no
            relevant document, or a NaN.
    """
    if not values or len(values) != len(relevant):
        raise InvalidInput(
            f"values of {len(values)} questions came with labels of {len(relevant)}; give one list "
            "of each for a question, and at least one question"
        )
    pairs = list(zip(values, relevant, strict=True))
    return {k: sum(recall_at(v, r, k) for v, r in pairs) / len(pairs) for k in ks}


def document_recall(run: _Run, ks: Iterable[int] = (1, 2)) -> Mapping[int, float]:
    """R@k of the documents that help, the least uncertain document first.

    Documents scored by other means rank by their score. Questions whose documents have neither,
    or of which none is known to help, do not count; empty where no question counts.
    """
    pairs = [(found, one.relevant) for one in run if any(one.relevant) and (found := _ranks(one))]
    if not pairs:
        return {}
    return r_at_k([values for values, _ in pairs], [relevant for _, relevant in pairs], ks)


def _ranks(one: LabelledAnswer) -> list[float]:
    """Minus the uncertainty (or the score) of each document; nothing where one has none."""
    documents = one.answer.documents
    for found in ([d.uncertainty for d in documents], [d.score for d in documents]):
        known = [-value for value in found if value is not None]
        if len(known) == len(documents):
            return known
    return []


# --- how uncertainty lies over right and wrong answers, over helpful documents and others


@dataclass(frozen=True, slots=True)
class _Histogram:
    """Numbers in [0, 1], counted in bins of equal width; the last holds 1 as well."""

    counts: tuple[int, ...]
    mean: float | None
    """0 to 1; None of nothing."""

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Spread:
    """The uncertainty of two kinds (figure 1)."""

    good: _Histogram
    """Right answers, or documents that help."""
    bad: _Histogram
    """Wrong answers, or documents that do not."""
    auroc: float | None
    """Of the uncertainty for the bad kind, 0 to 1; None where one kind is missing."""


def answer_spread(run: _Run, *, returned: bool = False, bins: int = 10) -> Spread:
    """Of the first answers (figure 1), or of those returned."""
    if returned:
        return _spread([(one.returned.uncertainty, one.returned_right) for one in run], bins)
    return _spread([(one.first.uncertainty, one.first_right) for one in run], bins)


def document_spread(run: _Run, *, bins: int = 10) -> Spread | None:
    """Of all documents that were asked about alone and are known to help or not (figure 1).

    None where there are none: documents were not scored, or by other means than uncertainty.
    """
    found = [
        (document.uncertainty, helps)
        for one in run
        if one.relevant
        for document, helps in zip(one.answer.documents, one.relevant, strict=True)
        if document.uncertainty is not None
    ]
    return _spread(found, bins) if found else None


def _spread(pairs: Sequence[tuple[float, bool]], bins: int) -> Spread:
    if bins < 1:
        raise InvalidInput(f"bins must be at least 1, got {bins}")

    def histogram(kind: bool) -> _Histogram:
        values = [value for value, good in pairs if good is kind]
        places = [min(int(value * bins), bins - 1) for value in values]
        return _Histogram(tuple(np.bincount(places, minlength=bins).tolist()), _mean(values))

    area = _auroc([value for value, _ in pairs], [not good for _, good in pairs])
    return Spread(histogram(True), histogram(False), area)


def wrongness_reliability(run: _Run, *, bins: int = 10) -> Reliability | None:
    """P(wrong) of the answers returned, beside how many were wrong; None where none has one."""
    found = [
        (one.answer.p_wrong, not one.returned_right)
        for one in run
        if one.answer.p_wrong is not None
    ]
    if not found:
        return None
    return reliability([p for p, _ in found], [wrong for _, wrong in found], bins)


# --- all of it


@dataclass(frozen=True, slots=True)
class Analysis:
    """Figures of a run; `print` shows them as a table."""

    estimator: str
    rounds: tuple[_AnswerFigures, ...]
    """Round 0 first."""
    returned: _AnswerFigures
    turns: tuple[_Turns, ...]
    """From the round before, from round 1 on (figure 4)."""
    turns_from_first: tuple[_Turns, ...]
    """From round 0."""
    first: Spread
    """Of the first answers (figure 1)."""
    chosen: Spread
    """Of the answers returned."""
    documents: Spread | None
    """None where nobody knows which help, or none was asked about alone."""
    recall: Mapping[int, float]
    """R@k of the documents that help, least uncertain first, by k; empty as for `documents`."""
    mending: _Transitions
    reliability: Reliability | None
    """Of P(wrong); None where the answers have none."""
    notes: tuple[str, ...] = ()
    """What a reader should know before relying on it."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"recall": {f"R@{k}": value for k, value in self.recall.items()}}

    def __str__(self) -> str:
        ways = "".join(f"{_Turn(*way, 0, None, None).name:>16}" for way in _WAYS)
        rows = [
            _name(f"{self.mending.questions} questions, by {self.estimator}")[:36]
            + f"{'answers':>9}{'right':>8}{'uncertainty':>13}{'score':>8}  AUROC for wrong",
            *map(_row, (*self.rounds, self.returned)),
            "",
            _name("answers that turn, mean score") + ways,
            *(_turns_row(f"round {t.round - 1} to {t.round}", t) for t in self.turns),
            *(_turns_row(f"round 0 to {t.round}", t) for t in self.turns_from_first[1:]),
            "",
            *_transition_rows(self.mending),
        ]
        if (found := self.documents) is not None:
            for name, kind in (("that help", found.good), ("that do not", found.bad)):
                rows.append(
                    f"{_name(f'documents {name}')}{kind.total}, uncertainty {_number(kind.mean)}"
                )
            rows.append(_name("AUROC of documents") + _number(found.auroc))
        rows += [_name(f"R@{k}") + f"{value:.3f}" for k, value in self.recall.items()]
        if (told := self.reliability) is not None:
            name = _name("P(wrong): AUROC, calibration error")
            rows.append(f"{name}{_number(told.auroc)}, {told.ece:.3f}")
        return "\n".join(rows + [f"note: {note}" for note in self.notes])


def analyse(run: _Run, *, bins: int = 10, ks: Iterable[int] = (1, 2)) -> Analysis:
    """Everything that can be said of these answers.

    Args:
        run: from `labelled`, or read with `read_run`.
        bins: of the histograms over [0, 1], and of the reliability; at least 1.
        ks: of R@k.

    Raises:
        InvalidInput: there are no answers, or they are of several estimators.
    """
    checked_run(run)
    return Analysis(
        estimator=run[0].answer.estimator,
        rounds=round_figures(run),
        returned=returned_figures(run),
        turns=turns(run),
        turns_from_first=turns(run, "first"),
        first=answer_spread(run, bins=bins),
        chosen=answer_spread(run, returned=True, bins=bins),
        documents=document_spread(run, bins=bins),
        recall=document_recall(run, ks),
        mending=transitions(run),
        reliability=wrongness_reliability(run, bins=bins),
        notes=tuple(_notes(run)),
    )


def _notes(run: _Run) -> list[str]:
    notes, right = [], sum(one.first_right for one in run)
    rarer, kind = min((right, "right"), (len(run) - right, "wrong"))
    if rarer < _ENOUGH:
        notes.append(f"only {rarer} first answers are {kind}: the AUROCs are guesses")
    lengths = [len(one.right) for one in run]
    if short := sum(length < max(lengths) for length in lengths):
        notes.append(
            f"{short} of {len(run)} questions stopped before the last round: the figures of later "
            "rounds are of the others"
        )
    known = [one.answer.documents for one in run if one.relevant]
    if unscored := sum(any(d.uncertainty is None for d in documents) for documents in known):
        notes.append(f"{unscored} of {len(run)} questions have documents without an uncertainty")
    return notes


def _row(row: _AnswerFigures) -> str:
    area = _number(row.auroc)
    if row.score_auroc != row.auroc:
        area += f" (of the score: {_number(row.score_auroc)})"
    figures = f"{row.answers:9d}{row.right:8.3f}{row.uncertainty:13.3f}{row.score:8.1f}  {area}"
    return _name(row.name) + figures


def _turns_row(name: str, found: _Turns) -> str:
    cells = (
        f"{turn.count}" if turn.score is None else f"{turn.count} ({turn.score:.1f})"
        for turn in found.turns
    )
    return _name(name) + "".join(f"{cell:>16}" for cell in cells)


def _transition_rows(found: _Transitions) -> list[str]:
    counts = {
        "mended": (found.mended, f": {found.mended_early} of them within {_EARLY} rounds"),
        "failed": (
            found.failed,
            f": {found.fell} grew less uncertain, {found.rose} did not in all rounds, "
            f"{found.stopped} stopped early; {found.missed} were right in some round",
        ),
        "spoiled": (found.spoiled, ""),
        "kept": (found.kept, ""),
    }
    return [
        f"{_name(name)}{count} ({found.share(count):.1%}){more if count else ''}"
        for name, (count, more) in counts.items()
    ]


def _name(text: str) -> str:
    return f"{text:<36}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
