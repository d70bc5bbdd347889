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

from ltrag_plugins.artifacts import replace_file, writing
from ltrag_plugins.data import json_lines
from ltrag_plugins.errors import BadRecord, InvalidInput
from ltrag_plugins.metrics.answer import normalized_exact_match
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, ScoredDocument
from ltrag_plugins.sgic.documents import Truth
from ltrag_plugins.types import Generation, Passage

_MOST = {"uncertainty": 1, "score": 100, "p_wrong": 1}
"""What a number of a record is at most; all are at least 0."""


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """An answer, and what is true of it.

    Raises:
        InvalidInput: the answer has no trace, or the labels are not one for each.
    """

    answer: CalibratedAnswer
    right: tuple[bool, ...]
    """Whether the answer of each round is."""
    relevant: tuple[bool, ...] = ()
    """Whether each document helps to answer; empty where nobody knows."""
    question: str = ""

    def __post_init__(self) -> None:
        answer, labels = self.answer, "labels came for"
        if not 0 <= answer.round < len(answer.trace):
            raise InvalidInput(
                f"the answer {answer.text[:40]!r} is of round {answer.round}, and its trace has "
                f"{len(answer.trace)}; an analysis needs the trace as `calibrate` returns it"
            )
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

    def held(answer: CalibratedAnswer, truth: Truth, text: str) -> LabelledAnswer:
        right = (measure(one.text, truth.answers) >= 0.5 for one in answer.trace)
        return LabelledAnswer(answer, tuple(right), truth.relevant, text)

    return tuple(map(held, answers, truths, texts))


def write_run(run: Iterable[LabelledAnswer], path: str | PathLike[str]) -> Path:
    """Write a line for each; a file that is there is replaced once the new one is whole.

    Of a passage its text, id, title and score are kept, not its metadata.

    Raises:
        UnwritableArtifact: the file's folder cannot be made, or the file written.
    """
    path = Path(path)
    text = "".join(f"{json.dumps(as_record(one), allow_nan=False)}\n" for one in run)
    with writing(path.parent):
        replace_file(path, text.encode("ascii"))
    return path


def read_run(path: str | PathLike[str]) -> tuple[LabelledAnswer, ...]:
    """Read what `write_run` wrote, or the records of SGIC that `ltrag evaluate` did.

    A round's `generation` has its text alone. Records of questions that SGIC did not answer are
    left out; of a question with several records the last counts.

    Raises:
        BadRecord: a line is not what it should be; the message names file, line and field.
        InvalidInput: the file cannot be read.
    """
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
        "documents": [_plain(d) | {"passage": _plain(d.passage, "metadata")} for d in documents],
        "trace": [_plain(r, "generation", "samples") for r in one.answer.trace],
        "notes": list(one.answer.notes),
    }
    labels = {"right": list(one.right), "relevant": list(one.relevant)}
    return {"question": one.question, **labels, "answer": _plain(one.answer) | lists}


def from_record(record: Mapping[str, Any]) -> LabelledAnswer:
    """The judged answer of a record; fields that it does not know are left alone."""
    try:
        told = record["answer"]
        documents = (
            _made(ScoredDocument, one, passage=_made(Passage, one["passage"]))
            for one in told["documents"]
        )
        trace = (_made(Round, one, generation=Generation(one["text"])) for one in told["trace"])
        parts = {"documents": documents, "trace": trace, "notes": told.get("notes", ())}
        answer = _made(CalibratedAnswer, told, **{k: tuple(v) for k, v in parts.items()})
        labels = {name: tuple(record.get(name, ())) for name in ("right", "relevant")}
        for name, given in labels.items():
            if not all(isinstance(label, bool) for label in given):
                raise BadRecord(f"field {name!r}: expected a list of true and false, got {given!r}")
        return LabelledAnswer(answer, **labels, question=record.get("question", ""))
    except BadRecord:
        raise
    except (AttributeError, KeyError, TypeError, InvalidInput) as error:
        missing = isinstance(error, KeyError)
        why = f"the field {error} is missing" if missing else f"no judged answer ({error})"
        raise BadRecord(f"{why}; write runs with write_run") from error


def _plain(value: Any, *but: str) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value) if f.name not in but}


def _made(kind: type[Any], record: Mapping[str, Any], **parts: Any) -> Any:
    known = {f.name: record[f.name] for f in fields(kind) if f.name in record}
    for name, most in _MOST.items():
        value = None if kind is Passage else known.get(name)  # a retriever's score may be any
        if value is not None and not 0 <= value <= most:
            raise BadRecord(f"field {name!r}: expected a number in [0, {most}], got {value!r}")
    return kind(**known | parts)
