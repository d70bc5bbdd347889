"""A run of answers of which it is known what is right: its figures, and its records on disk.

A run on disk: JSON lines, one judged answer a line, without the model's tokens::

    {"question": "...", "right": [false, true], "relevant": [true, false],
     "answer": {"text": "...", "uncertainty": 0.2, "round": 1, "trace": [{"number": 0, ...}], ...}}

Source: Chen et al. (SGIC), figures 1, 4 and 5, sections 5.3, 5.6 and 5.8, table 10, appendix A.5.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any

from ltrag_plugins.artifacts import replace_file, writing
from ltrag_plugins.data import json_lines
from ltrag_plugins.errors import BadRecord, InvalidInput, path_of
from ltrag_plugins.metrics.answer import normalized_exact_match
from ltrag_plugins.metrics.calibration import Reliability, auroc
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, ScoredDocument
from ltrag_plugins.sgic.documents import Truth
from ltrag_plugins.types import Generation, Passage

_TURNS = ("right → right", "right → wrong", "wrong → right", "wrong → wrong")
_WAYS = dict(zip(product((True, False), repeat=2), _TURNS, strict=True))
_EARLY = 2  # rounds within which the paper finds three in four of what is mended
_BINS = 10  # over [0, 1], of histograms and reliability
_ENOUGH = 30  # right and wrong answers each, below which an AUROC is called a guess
_MOST = {"uncertainty": 1, "score": 100, "p_wrong": 1}
"""What a number of a record is at most; all are at least 0."""


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """An answer with its trace and labels for each part of it, or `InvalidInput` is raised."""

    answer: CalibratedAnswer
    right: tuple[bool, ...]
    """Whether the answer of each round is."""
    relevant: tuple[bool, ...] = ()
    """Whether each document helps to answer; empty where nobody knows."""
    question: str = ""

    def __post_init__(self) -> None:
        answer, labels = self.answer, "labels came for"
        if not 0 <= answer.round < len(answer.trace):
            given = f"an answer of round {answer.round} came, and its trace has {len(answer.trace)}"
            raise InvalidInput(f"{given}; give it as `calibrate` returns it")
        if len(self.right) != len(answer.trace):
            raise InvalidInput(f"{len(self.right)} {labels} {len(answer.trace)} rounds")
        if self.relevant and len(self.relevant) != len(answer.documents):
            raise InvalidInput(f"{len(self.relevant)} {labels} {len(answer.documents)} documents")

    @property
    def rounds(self) -> tuple[tuple[Round, bool], ...]:
        """Each round's answer, and whether it is right."""
        return tuple(zip(self.answer.trace, self.right, strict=True))

    @property
    def returned_right(self) -> bool:
        """Whether the chosen answer is."""
        return self.right[self.answer.round]


def labelled(
    answers: Sequence[CalibratedAnswer],
    truths: Sequence[Truth],
    *,
    questions: Sequence[str] = (),
    measure: Callable[[str, Sequence[str]], float] = normalized_exact_match,
) -> tuple[LabelledAnswer, ...]:
    """Hold each answer of `calibrate` (or `sampled`), and each of its rounds, against the truth.

    Args:
        truths: one for each answer (or `InvalidInput` is raised), with accepted answers (or
            `MissingReferences`); an empty `relevant` where nobody knows which documents help.
        questions: their texts, for the pictures; or none.
        measure: an answer is right where it gives 0.5 or more; the default is SQuAD's EM.
    """
    texts, found = questions or ("",) * len(answers), list[LabelledAnswer]()
    if not len(answers) == len(truths) == len(texts):
        given = f"{len(answers)} answers came with {len(truths)} truths, {len(questions)} questions"
        raise InvalidInput(f"{given}; give one of each for each answer, or no questions")
    for answer, truth, text in zip(answers, truths, texts, strict=True):
        right = tuple(measure(one.text, truth.answers) >= 0.5 for one in answer.trace)
        found.append(LabelledAnswer(answer, right, truth.relevant, text))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _AnswerFigures:
    """The answers of one round, those returned (A.5), or those that turned one way (figure 4).
    All are 0 to 1 but the mean score, 0 to 100; None of no answers. An AUROC, for "wrong", is None
    where all are alike; the two differ where rounds with own scales stand together."""

    name: str
    answers: int
    right: float | None
    uncertainty: float | None
    score: float | None
    auroc: float | None
    score_auroc: float | None


@dataclass(frozen=True, slots=True)
class _Transitions:
    """Counts of questions by their first answer and the one returned (section 5.6): kept, spoiled
    (not in the paper), mended (early: in round 1 or 2) or failed. Failed ones are by the last
    answer less uncertain than the first (`fell`), or not, after all rounds (`rose`) or fewer
    (`stopped`); `missed` were right in some round."""

    questions: int
    kept: int
    spoiled: int
    mended: int
    mended_early: int
    failed: int
    fell: int
    rose: int
    stopped: int
    missed: int


@dataclass(frozen=True, slots=True)
class _Histogram:
    """Numbers in [0, 1], counted in bins of equal width, and their mean; None of nothing."""

    counts: tuple[int, ...]
    mean: float | None


@dataclass(frozen=True, slots=True)
class _Spread:
    """The uncertainty of right and wrong answers, or of documents that help and others (figure 1);
    the AUROC is for the bad kind, 0 to 1, None where one kind is missing."""

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


def analyse(run: Sequence[LabelledAnswer]) -> Analysis:
    """Everything that can be said of answers from `labelled` or `read_run`, at least one, and of
    one estimator: others do not compare, and `InvalidInput` is raised."""
    if not run:
        raise InvalidInput("there are no answers to analyse; run `calibrate` on some questions")
    if len(estimators := {one.answer.estimator for one in run}) > 1:
        names = ", ".join(sorted(estimators))
        raise InvalidInput(f"answers of the estimators {names}, which do not compare: analyse one")
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
        stopped = f"{short} of {len(run)} questions stopped before the last round"
        notes.append(f"{stopped}: the figures of later rounds are of the others")
    return Analysis(
        estimator=run[0].answer.estimator,
        rounds=tuple(
            _answers(f"round {n}", [r.rounds[n] for r in there]) for n, there in enumerate(reached)
        ),
        returned=_answers("returned", [one.rounds[one.answer.round] for one in run]),
        # the paper's "how answers change in each calibration round", read as since the one before
        turns=tuple(_turns(reached[n], n - 1, n) for n in range(1, most)),
        turns_from_first=tuple(_turns(reached[n], 0, n) for n in range(1, most)),
        first=_spread([(one.uncertainty, right) for one, right in first]),
        documents=_spread(documents) if documents else None,
        recall=r_at_k(*zip(*ranked, strict=True), ks=(1, 2)) if ranked else {},
        mending=_transitions(run),
        reliability=Reliability.of(*zip(*promised, strict=True), bins=_BINS) if promised else None,
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
        values: for each question one number a document (of attention `AttentionShares.documents`).
        relevant: whether each helps, at least one of each question; or `InvalidInput` is raised.
    """
    rows, ks = [*zip(values, relevant, strict=False)], [*ks]
    counts = [[*map(len, values)], [*map(len, relevant)]]
    if not values or counts[0] != counts[1]:
        given = "values of {} documents came with labels of {}".format(*counts)
        raise InvalidInput(f"{given}; give one of each, and at least one question")
    if not all(map(any, relevant)) or any(value != value for row in values for value in row):
        raise InvalidInput("a question has no relevant document, or a NaN; leave it out of R@k")
    if any(k < 1 for k in ks):
        raise InvalidInput(f"k must be at least 1, got {ks}")

    def recall(row: Sequence[float], labels: Sequence[bool], k: int) -> float:
        wanted = [value for value, helps in zip(row, labels, strict=True) if helps]
        places = (
            (k - sum(other > value for other in row)) / sum(other == value for other in row)
            for value in wanted
        )
        return sum(min(1.0, max(0.0, place)) for place in places) / len(wanted)

    return {k: sum(recall(*row, k) for row in rows) / len(rows) for k in ks}


def _answers(name: str, answers: Sequence[tuple[Round, bool]]) -> _AnswerFigures:
    wrong = [not right for _, right in answers]
    measures = [one.uncertainty for one, _ in answers], [one.score for one, _ in answers]
    right = 1 - sum(wrong) / len(wrong) if wrong else None
    areas = [_auroc(values, wrong) for values in measures]
    return _AnswerFigures(name, len(wrong), right, *map(_mean, measures), *areas)


def _turns(run: Sequence[LabelledAnswer], start: int, end: int) -> tuple[_AnswerFigures, ...]:
    """What became of right and wrong answers from one round to a later one."""
    return tuple(
        _answers(name, [r.rounds[end] for r in run if (r.right[start], r.right[end]) == way])
        for way, name in _WAYS.items()
    )


def _transitions(run: Sequence[LabelledAnswer]) -> _Transitions:
    kept, spoiled, mended, failed = (
        [one for one in run if (one.right[0], one.returned_right) == way] for way in _WAYS
    )
    # of the last round, not of the one returned: that is the least uncertain by choice
    traces = ((one.answer.stop, one.answer.trace) for one in failed)
    grown = [stop for stop, trace in traces if trace[-1].uncertainty >= trace[0].uncertainty]
    rose, early = grown.count("rounds"), sum(one.right.index(True) <= _EARLY for one in mended)
    turned = {"spoiled": len(spoiled), "mended": len(mended), "mended_early": early}
    stayed = {"failed": len(failed), "fell": len(failed) - len(grown), "rose": rose}
    missed = sum(any(one.right) for one in failed)
    more = {"stopped": len(grown) - rose, "missed": missed}
    return _Transitions(len(run), len(kept), **turned, **stayed, **more)


def _ranks(one: LabelledAnswer) -> list[float]:
    """Minus the uncertainty (or the score) of each document; nothing where one has none."""
    for name in ("uncertainty", "score"):
        found = [getattr(document, name) for document in one.answer.documents]
        if None not in found:
            return [-value for value in found]
    return []


def _spread(pairs: Sequence[tuple[float, bool]]) -> _Spread:
    """Of uncertainties, each with whether it is of the good kind."""

    def histogram(wanted: bool) -> _Histogram:
        values = [value for value, good in pairs if good == wanted]
        counts = Counter(min(int(value * _BINS), _BINS - 1) for value in values)
        return _Histogram(tuple(counts[i] for i in range(_BINS)), _mean(values))

    values, goods = zip(*pairs, strict=True)
    return _Spread(histogram(True), histogram(False), _auroc(values, [not one for one in goods]))


def _auroc(scores: Sequence[float], wrong: Sequence[bool]) -> float | None:
    return auroc(scores, wrong) if len(set(wrong)) == 2 else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def write_run(run: Iterable[LabelledAnswer], path: str | PathLike[str]) -> Path:
    """Write a line for each, without the metadata of passages; an older file is replaced. Where the
    file cannot be written, `UnwritableArtifact` is raised."""
    text = "".join(f"{json.dumps(as_record(one), allow_nan=False)}\n" for one in run)
    with writing((path := path_of(path)).parent):
        replace_file(path, text.encode("ascii"))
    return path


def read_run(path: str | PathLike[str]) -> tuple[LabelledAnswer, ...]:
    """Read what `write_run` wrote, or the records of SGIC that `ltrag evaluate` did, of a question
    the last. A round's `generation` has its text alone. A line that is no record raises
    `BadRecord`, a file that cannot be read `InvalidInput`."""
    found: dict[str, LabelledAnswer | None] = {}
    for one in json_lines(path):
        key, record = f"line {one.line}", one.fields
        if "rounds" in record:  # of an evaluation
            key, record = f"id {record.get('id', key)}", record["rounds"]
        try:
            found[key] = None if record is None else from_record(record)
        except BadRecord as error:
            raise BadRecord(f"{path}, line {one.line}: {error}") from error
    return tuple(one for one in found.values() if one is not None)


def as_record(one: LabelledAnswer) -> dict[str, Any]:
    """Plain values for JSON; a round goes without its replies, many times the rest."""
    documents = one.answer.documents
    lists = {
        "documents": [_plain(d) | {"passage": _plain_passage(d.passage)} for d in documents],
        "trace": [_plain(r, "generation", "samples") for r in one.answer.trace],
        "notes": list(one.answer.notes),
    }
    labels = {"right": list(one.right), "relevant": list(one.relevant)}
    return {"question": one.question, **labels, "answer": _plain(one.answer) | lists}


def from_record(record: Mapping[str, Any]) -> LabelledAnswer:
    """The judged answer of a record; fields that it does not know are left alone."""
    try:
        told = record["answer"]
        passages = (_made(Passage, one["passage"]) for one in told["documents"])
        pairs = zip(told["documents"], passages, strict=True)
        documents = (_made(ScoredDocument, one, passage=passage) for one, passage in pairs)
        trace = (_made(Round, one, generation=Generation(one["text"])) for one in told["trace"])
        parts = {"documents": documents, "trace": trace, "notes": told.get("notes", ())}
        answer = _made(CalibratedAnswer, told, **{k: tuple(v) for k, v in parts.items()})
        labels = {name: tuple(record.get(name, ())) for name in ("right", "relevant")}
        for name, given in labels.items():
            if not all(isinstance(label, bool) for label in given):
                raise BadRecord(f"field {name!r}: expected a list of true and false, got {given!r}")
        return LabelledAnswer(answer, **labels, question=record.get("question", ""))
    except (AttributeError, KeyError, TypeError, InvalidInput) as error:
        raise BadRecord(f"no judged answer ({error!r}); write runs with write_run") from error


def _plain(value: Any, *but: str) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value) if f.name not in but}


def _plain_passage(passage: Passage) -> dict[str, Any]:
    """Without its metadata; a retriever may score NaN or infinity, which JSON has not."""
    known = passage.score is None or math.isfinite(passage.score)
    return _plain(passage if known else replace(passage, score=None), "metadata")


def _made(kind: type[Any], record: Mapping[str, Any], **parts: Any) -> Any:
    known = {f.name: record[f.name] for f in fields(kind) if f.name in record}
    for name, most in _MOST.items():
        value = None if kind is Passage else known.get(name)  # a retriever's score may be any
        if value is not None and not 0 <= value <= most:
            raise BadRecord(f"field {name!r}: expected a number in [0, {most}], got {value!r}")
    return kind(**known | parts)
