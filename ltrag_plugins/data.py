"""Question files: JSON lines, plain or gzipped (`.gz`), one question a line.

::

    {"question": "who wrote Emma?", "answers": ["Jane Austen"], "id": "q1"}

`question` is required. `answers` is a list of accepted strings (or `answer` one string).
`passages` is a list of `{"title", "text"}` that belong to the question; `passage_ids` names
passages of a pool file instead. `options` is the list that a multiple-choice question offers; an
accepted answer is one of them, by its text or else by its letter (A is the first). `context` is a
text that it comes with. Other fields are left alone, with a warning where one looks like these.
"""

import gzip
import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from itertools import chain, islice
from os import PathLike
from string import ascii_uppercase
from typing import Any

from ltrag_plugins.errors import (
    BadRecord,
    CalibrationError,
    InvalidInput,
    MissingReferences,
    path_of,
)
from ltrag_plugins.types import Passage, Question

_LINES = "each line is a JSON object of its own"
_FIELDS = ("question", "answers", "answer", "passages", "passage_ids", "options", "context", "id")
_ALIKE = {"choices": "options", "documents": "passages"}
_logger = logging.getLogger(__name__)


def read_questions(
    path: str | PathLike[str],
    *,
    require_answers: bool = False,
    require_passages: bool = False,
    require_pool: bool = False,
    pool: Iterable[Passage] = (),
    limit: int | None = None,
    check: Callable[[Question], object] | None = None,
) -> list[Question]:
    """The questions of a file, in its order; blank lines are skipped. A question without `id` gets
    one made of its text, with its context and options where it has any.

    Args:
        require_answers: a question without accepted answers is an error.
        require_passages: one without passages is an error too.
        require_pool: one whose `passage_ids` alone name passages, where there is no `pool`, is an
            error; with `require_passages` it always is.
        pool: where `passage_ids` are looked up; without a pool they are left alone.
        limit: read the first so many alone; None: all.
        check: raises `InvalidInput` where a question cannot serve; the error names its line.
    """
    records = islice(json_lines(path), limit)
    return _questions(path, records, require_answers, require_passages, require_pool, pool, check)


def _questions(
    path: str | PathLike[str],
    records: Iterable["_Record"],
    require_answers: bool = False,
    require_passages: bool = False,
    require_pool: bool = False,
    pool: Iterable[Passage] = (),
    check: Callable[[Question], object] | None = None,
) -> list[Question]:
    known, questions = {passage.id: passage for passage in pool}, []
    fields: dict[str, None] = {}
    for record in records:
        fields |= dict.fromkeys(record.fields)
        question = _question(record, require_answers, known)
        named = record.fields.get("passage_ids") and not known and not question.passages
        if named and (require_passages or require_pool):
            why = "it names passages of a pool that was not given; add --pool PASSAGES.jsonl"
            more = "(with --own-passages: CANDIDATES.jsonl), or in Python pool="
            raise record.wrong("passage_ids", f"{why} {more}")
        if require_passages and not question.passages:
            raise record.wrong("passages", "missing; add them, or 'passage_ids' and their pool")
        try:
            if check is not None:
                check(question)
        except InvalidInput as error:
            where = f"{path}, line {record.line} (id {question.id!r})"
            raise type(error)(f"{where}: {error}") from error
        questions.append(question)
    if not questions:
        raise BadRecord(f"{path}: no questions in it; expected one JSON object a line")
    for name in fields.keys() - _FIELDS:
        for meant in get_close_matches(name.lower(), [*_FIELDS, *_ALIKE], n=1, cutoff=0.8):
            if (meant := _ALIKE.get(meant, meant)) not in fields:
                read = ", ".join(_FIELDS)
                _logger.warning(
                    "%s: the field %r is not read; did you mean %r? Read are %s",
                    path, name, meant, read,
                )  # fmt: skip
    return questions


def read_passages(path: str | PathLike[str]) -> list[Passage]:
    """The passages of a file: `text`, and `title` and `id` where there are any. One without `id`
    gets one made of its title and text; if it comes twice, it is taken once."""
    return _passages(path, json_lines(path))


def _passages(path: str | PathLike[str], records: Iterable["_Record"]) -> list[Passage]:
    passages: dict[str, Passage] = {}
    for record in records:
        passage = _passage(record)
        if passage.id in passages and record.id(record.fields.get("id")):
            raise record.wrong("id", f"{passage.id!r} was on an earlier line; give each its own")
        passages.setdefault(passage.id, passage)
    if not passages:
        raise BadRecord(f"{path}: no passages in it; expected one JSON object a line")
    return [*passages.values()]


def read_candidates(path: str | PathLike[str], *, solved: bool) -> list[Passage] | list[Question]:
    """Passages, where the first line has a `text` and no `question`; else solved examples.

    Args:
        solved: an example without an answer, or with another's id, is an error.
    """
    records = json_lines(path)
    begun = [*islice(records, 1)]
    first = begun[0].fields if begun else {}
    records = chain(begun, records)  # a pipe is read once
    if "text" in first and "question" not in first:
        return _passages(path, records)
    seen: set[str] = set()

    def check(question: Question) -> None:
        if solved and question.id in seen:
            wrong = f"another candidate has the same id {question.id!r}"
            raise InvalidInput(f"{wrong}; give each its own, or leave one of them out")
        seen.add(question.id)

    return _questions(path, records, require_answers=solved, check=check)


def check_labelled(
    questions: Iterable[object], *, answers: bool = True, passages: bool = False
) -> None:
    """Refuse what is no `Question`, or lacks accepted answers or passages that are wanted."""
    for question in questions:
        if not isinstance(question, Question):
            raise InvalidInput(f"questions are Question(text, answers), got {question!r:.60}")
        name = f"question {question.id or question.text[:60]!r}"
        if isinstance(question.answers, str):
            raise InvalidInput(f"the answers of {name} are one string; put it in a tuple")
        if answers and not any(answer.strip() for answer in question.answers):
            raise MissingReferences(f"{name} has no accepted answers; add some, or leave it out")
        if passages and not question.passages:
            remedy = "add what your retriever finds for it, or leave it out"
            raise CalibrationError(f"{name} has no passages; {remedy}")


def read_texts(path: str | PathLike[str], *fields: str) -> list[tuple[str, ...]]:
    """The named fields of each line, as texts; null is an empty text."""
    found = []
    for record in json_lines(path):
        values = {field: record.value(field) for field in fields}
        for field, value in values.items():
            if not isinstance(value, str | None):
                raise record.wrong(field, f"expected a string or null, got {_kind(value)}")
        found.append(tuple(value or "" for value in values.values()))
    return found


@dataclass(frozen=True, slots=True)
class _Record:
    """A line, or an object in it whose name in the line is `within`."""

    path: str
    line: int
    fields: Mapping[str, Any]
    within: str = ""

    def wrong(self, field: str, why: str, kind: type[InvalidInput] = BadRecord) -> InvalidInput:
        return kind(f"{self.path}, line {self.line}, field {self.within + field!r}: {why}")

    def value(self, field: str) -> Any:
        """What must be there, whatever it is."""
        if field not in self.fields:
            raise self.wrong(field, "missing" + self.only())
        return self.fields[field]

    def only(self) -> str:
        """The first fields that there are, where one is missing."""
        names = ", ".join(repr(name) for name in list(self.fields)[:8])
        return f"; there is only {names}" if names else ""

    def listed(self, field: str, of: str = "strings") -> Iterator[tuple[str, Any]]:
        """The entries of a list, each with the name of its place; none where there is no list."""
        values = self.fields.get(field)
        if values is None or (not values and field != "answers"):
            return
        if not isinstance(values, list):
            raise self.wrong(field, f"expected a list of {of}, got {_kind(values)}")
        for i, value in enumerate(values):
            yield f"{field}[{i}]", value

    def strings(self, field: str) -> tuple[str, ...]:
        return tuple(self.string(value, place) for place, value in self.listed(field))

    def string(self, value: Any, field: str) -> str:
        """The value, if it is a string with something in it."""
        if not isinstance(value, str):
            raise self.wrong(field, f"expected a string, got {_kind(value)}")
        if not value.strip():
            raise self.wrong(field, "expected a string with words, got an empty one")
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise self.wrong(field, "half of a surrogate pair in it, which is no character")
        return value

    def id(self, value: Any, field: str = "id") -> str:
        """A string, or a whole number as one; "" for none."""
        if value is None or value == "":
            return ""
        return str(value) if type(value) is int else self.string(value, field)


def _question(record: _Record, require_answers: bool, pool: Mapping[str, Passage]) -> Question:
    text = record.string(record.value("question"), "question").strip()
    one, context = record.fields.get("answer"), record.fields.get("context")
    answers = record.strings("answers")
    if one is not None and record.fields.get("answers") is None:
        answers = (record.string(one, "answer"),)
    if require_answers and not answers:
        why = "no accepted answers, which are needed here; add them or leave the question out"
        why += record.only() if "answers" not in record.fields else ""
        raise record.wrong("answers", why, MissingReferences)
    passages = []
    for place, value in record.listed("passages", "objects"):
        if not isinstance(value, dict):
            raise record.wrong(place, f"expected an object, got {_kind(value)}")
        passages.append(_passage(replace(record, fields=value, within=f"{place}.")))
    for place, value in record.listed("passage_ids") if pool else ():
        name = record.id(value, place)
        if name not in pool:
            raise record.wrong(place, f"{value!r} is not in the pool of passages")
        passages.append(pool[name])
    options = record.strings("options")
    answers = _among(options, answers, record)
    context = "" if context in (None, "") else record.string(context, "context")
    made = _digest("\n".join(filter(None, (text, context, *options))))
    name = record.id(record.fields.get("id")) or made
    return Question(text, answers, name, tuple(passages), options, context)


def _among(options: tuple[str, ...], answers: tuple[str, ...], record: _Record) -> tuple[str, ...]:
    """The accepted answers, with options for their letters where none is an option by its text."""
    by_letter = dict(zip(ascii_uppercase, options, strict=False))
    if not set(options) & set(answers) and set(by_letter) & set(answers):
        # a letter tells options apart that read the same, of which MMLU has a few
        return tuple(dict.fromkeys(by_letter.get(answer, answer) for answer in answers))
    for i, option in enumerate(options):
        if option in options[:i]:
            raise record.wrong(f"options[{i}]", f"{option!r} comes twice")
    if options and answers and not set(options) & set(answers):
        why = f"by its text or as a letter from A to {[*by_letter][-1]}"
        none = f"none of the accepted answers {[*answers]} is among them"
        raise record.wrong("options", f"{none}, {why}")
    return answers


def _passage(record: _Record) -> Passage:
    text, title = record.string(record.value("text"), "text"), record.fields.get("title")
    title = record.string(title, "title") if title else ""
    name = record.id(record.fields.get("id")) or _digest(f"{title}\n{text}")
    return Passage(text, id=name, title=title)


def digest_of(items: Sequence[Question | Passage], what: str = "questions") -> str:
    """How many they are, and a hash of all that stands in them but metadata, which may hold
    anything."""
    content = json.dumps([asdict(_bare(item)) for item in items], sort_keys=True)
    return f"{len(items)} {what}, sha256 {hashlib.sha256(content.encode()).hexdigest()[:16]}"


def _bare(item: Question | Passage) -> Question | Passage:
    if isinstance(item, Question):
        return replace(item, passages=tuple(replace(p, metadata={}) for p in item.passages))
    return replace(item, metadata={})


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]


def json_lines(path: str | PathLike[str]) -> Iterator[_Record]:
    """The objects of a file of JSON lines; a line that holds none is named."""
    path, number = path_of(path), 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _Record(str(path), number, _parsed(line, f"{path}, line {number}"))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        told = f"{path}: not a whole gzip file after line {number} ({error})"
        raise BadRecord(f"{told}; copy it again, or name a plain file without .gz") from error
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from error


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        # with its end, an error there would be in column 1 of the next line
        value = json.loads(line.decode("utf-8-sig").rstrip("\r\n"))
    except json.JSONDecodeError as error:
        told = f"{where}, column {error.colno}: not JSON, {error.msg}; {_LINES}"
        raise BadRecord(told) from error
    except (ValueError, RecursionError) as error:
        remedy = "; save it as UTF-8, or name a gzipped file .gz"
        remedy *= isinstance(error, UnicodeDecodeError)
        told = f"{where}: not JSON in UTF-8 that can be read, {error}{remedy}"
        raise BadRecord(told) from error
    if not isinstance(value, dict):
        raise BadRecord(f"{where}: expected an object, got {_kind(value)}; {_LINES}")
    return value


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
