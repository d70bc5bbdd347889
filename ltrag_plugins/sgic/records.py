"""What an analysis reads: an answer with its rounds, and what is true of it.

A run on disk: JSON lines, one judged answer a line, without the model's tokens.

::

    {"question": "...", "right": [false, true], "relevant": [true, false],
     "answer": {"text": "...", "uncertainty": 0.2, "round": 1, "trace": [{"number": 0, ...}], ...}}
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from ltrag_plugins.artifacts import writing
from ltrag_plugins.errors import BadRecord, InvalidInput
from ltrag_plugins.metrics.answer import normalized_exact_match
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, ScoredDocument
from ltrag_plugins.sgic.documents import Truth
from ltrag_plugins.types import Generation, Passage

_Measure = Callable[[str, Sequence[str]], float]
"""From an answer and the accepted ones to a quality in [0, 1], as in `metrics.answer`."""


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """An answer, and what is true of it.

    Raises:
        InvalidInput: the answer has no trace, or the labels are not one for each.
    """

    answer: CalibratedAnswer
    right: tuple[bool, ...]
    """Whether the answer of each round is, in the order of the trace."""
    relevant: tuple[bool, ...] = ()
    """Whether each document helps to answer, in their order; empty where nobody knows."""
    question: str = ""

    def __post_init__(self) -> None:
        trace, documents = self.answer.trace, self.answer.documents
        if not 0 <= self.answer.round < len(trace):
            raise InvalidInput(
                f"the answer {self.answer.text[:40]!r} is of round {self.answer.round}, and its "
                f"trace has {len(trace)}; an analysis needs the trace as `calibrate` returns it"
            )
        if len(self.right) != len(trace):
            raise InvalidInput(
                f"{len(self.right)} labels came for {len(trace)} rounds; give one for each"
            )
        if self.relevant and len(self.relevant) != len(documents):
            raise InvalidInput(
                f"{len(self.relevant)} labels came for {len(documents)} documents; give one for "
                "each, or none"
            )

    @property
    def first(self) -> Round:
        """The answer of round 0."""
        return self.answer.trace[0]

    @property
    def returned(self) -> Round:
        """The answer that was chosen."""
        return self.answer.trace[self.answer.round]

    @property
    def first_right(self) -> bool:
        """Whether the answer of round 0 is."""
        return self.right[0]

    @property
    def returned_right(self) -> bool:
        """Whether the chosen answer is."""
        return self.right[self.answer.round]


def labelled(
    answers: Sequence[CalibratedAnswer],
    truths: Sequence[Truth],
    *,
    questions: Sequence[str] = (),
    measure: _Measure = normalized_exact_match,
) -> tuple[LabelledAnswer, ...]:
    """Hold each answer, and each of its rounds, against the truth.

    Args:
        answers: of `calibrate` (or `sampled`).
        truths: one for each answer; an empty `relevant` where nobody knows which documents help.
        questions: their texts, for the pictures; or none.
        measure: an answer is right where it gives 0.5 or more; the default is SQuAD's EM.

    Raises:
        InvalidInput: there are more answers than truths, or fewer; see `LabelledAnswer`.
        MissingReferences: a question has no accepted answers.
    """
    texts = questions or ("",) * len(answers)
    if not len(answers) == len(truths) == len(texts):
        raise InvalidInput(
            f"{len(answers)} answers came with {len(truths)} truths and {len(questions)} "
            "questions; give one truth for each answer, and one question each or none"
        )
    return tuple(
        LabelledAnswer(
            answer,
            tuple(measure(one.text, truth.answers) >= 0.5 for one in answer.trace),
            truth.relevant,
            text,
        )
        for answer, truth, text in zip(answers, truths, texts, strict=True)
    )


def checked_run(run: Sequence[LabelledAnswer]) -> Sequence[LabelledAnswer]:
    """The run, if there is something in it that can be held side by side."""
    if not run:
        raise InvalidInput("there are no answers to analyse; run `calibrate` on some questions")
    if len(estimators := {one.answer.estimator for one in run}) > 1:
        raise InvalidInput(
            f"these answers are of the estimators {', '.join(sorted(estimators))}, whose numbers "
            "cannot be compared; analyse one at a time"
        )
    return run


_UNSAID = ("generation", "samples")
"""Of a round: tokens and their probabilities, many times the rest."""


def write_run(run: Iterable[LabelledAnswer], path: str | PathLike[str]) -> Path:
    """Write a line for each; a file that is there is replaced once the new one is whole.

    Of a passage its text, id, title and score are kept, not its metadata.

    Raises:
        UnwritableArtifact: the file's folder cannot be made, or the file written.
    """
    path = Path(path)
    lines = [json.dumps(as_record(one), allow_nan=False) for one in run]
    new = path.with_name(f"{path.name}.new")
    with writing(path.parent):
        try:
            new.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
    return path


def read_run(path: str | PathLike[str]) -> tuple[LabelledAnswer, ...]:
    """Read what `write_run` wrote, or the records of SGIC that `ltrag evaluate` did.

    A round's `generation` has its text alone. Records of questions that SGIC did not answer,
    because a gate did or it failed, are left out; of one that has several records the last counts.

    Raises:
        BadRecord: a line is not what it should be; the message names file, line and field.
        InvalidInput: the file cannot be read.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from error
    found: dict[str | int, LabelledAnswer | None] = {}
    for n, line in enumerate(lines, 1):
        if line.strip():
            question, one = _read(line, f"{path}, line {n}")
            found[n if question is None else question] = one
    return tuple(one for one in found.values() if one is not None)


def as_record(one: LabelledAnswer) -> dict[str, Any]:
    """Plain values for JSON."""
    answer = _plain(one.answer)
    answer["documents"] = [
        _plain(d) | {"passage": _plain(d.passage, but=("metadata",))} for d in one.answer.documents
    ]
    answer["trace"] = [_plain(r, but=_UNSAID) for r in one.answer.trace]
    answer["notes"] = list(one.answer.notes)
    return {
        "question": one.question,
        "right": list(one.right),
        "relevant": list(one.relevant),
        "answer": answer,
    }


def from_record(record: Mapping[str, Any]) -> LabelledAnswer:
    """The judged answer of a record; fields that it does not know are left alone."""
    try:
        said = record["answer"]
        answer = _of(
            CalibratedAnswer,
            said,
            documents=tuple(map(_document, said["documents"])),
            trace=tuple(map(_round, said["trace"])),
            notes=tuple(said.get("notes", ())),
        )
        _check_number(said, "p_wrong", 1)
        right, relevant = _labels(record, "right"), _labels(record, "relevant")
        return LabelledAnswer(answer, right, relevant, record.get("question", ""))
    except KeyError as error:
        raise BadRecord(f"the field {error} is missing; write runs with write_run") from error
    except BadRecord:
        raise
    except (AttributeError, TypeError, InvalidInput) as error:
        raise BadRecord(f"no judged answer ({error}); write runs with write_run") from error


def _read(line: str, where: str) -> tuple[str | None, LabelledAnswer | None]:
    """The question's id, which records of an evaluation alone have, and what SGIC answered."""
    try:
        record = json.loads(line)
        if not isinstance(record, dict) or "rounds" not in record:
            return None, from_record(record)
        name, rounds = record.get("id"), record["rounds"]
        one = None if rounds is None else from_record(rounds)
        return (name if isinstance(name, str) else None), one
    except json.JSONDecodeError as error:
        raise BadRecord(f"{where}, column {error.colno}: not JSON, {error.msg}") from error
    except BadRecord as error:
        raise BadRecord(f"{where}: {error}") from error


def _round(record: Mapping[str, Any]) -> Round:
    _check_number(record, "uncertainty", 1)
    _check_number(record, "score", 100)
    return _of(Round, record, generation=Generation(record["text"]))


def _document(record: Mapping[str, Any]) -> ScoredDocument:
    _check_number(record, "uncertainty", 1)
    _check_number(record, "score", 100)
    return _of(ScoredDocument, record, passage=_of(Passage, record["passage"]))


def _labels(record: Mapping[str, Any], field: str) -> tuple[bool, ...]:
    labels = tuple(record.get(field, ()))
    if not all(isinstance(label, bool) for label in labels):
        raise BadRecord(f"field {field!r}: expected a list of true and false, got {labels!r}")
    return labels


def _check_number(record: Mapping[str, Any], field: str, most: int) -> None:
    value = record.get(field)
    if value is not None and not 0 <= value <= most:
        raise BadRecord(f"field {field!r}: expected a number in [0, {most}], got {value!r}")


def _plain(value: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value) if f.name not in but}


def _of(kind: type[Any], record: Mapping[str, Any], **parts: Any) -> Any:
    known = {f.name: record[f.name] for f in fields(kind) if f.name in record}
    return kind(**known | parts)
