"""A run folder, as a report shows it: what is there, what is not there yet, what is damaged."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrag_plugins.errors import BadRecord, InvalidInput, UnreadableArtifact
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.spec import LOWER_IS_BETTER, CellName
from ltrag_plugins.sgic.records import from_record


@dataclass(frozen=True, slots=True)
class Run:
    """A run, finished or not."""

    path: Path
    identity: Mapping[str, Any]
    """What was asked for; see `run.json`."""
    versions: Mapping[str, str]
    records: Mapping[str, Sequence[Record]]
    """Of each cell that has any, in the order of run.json."""
    complete: Mapping[str, Sequence[Record]]
    """Those that can be compared: the cells with the most questions, in one order of these."""
    asked: int | None
    """Questions of the run; None where run.json does not tell."""

    @property
    def metric(self) -> str:
        """The first measure, which tells right from wrong."""
        return next(iter(next(iter(self.complete.values()))[0].scores))

    @property
    def metrics(self) -> tuple[str, ...]:
        """All measures, the first one first."""
        return tuple(next(iter(self.complete.values()))[0].scores)

    @property
    def missing(self) -> dict[str, int | None]:
        """Questions left to answer, by cell; None: nobody knows how many."""
        counts = {name: len(self.records.get(name, ())) for name in self.identity["cells"]}
        if self.asked is None:
            return {name: None for name in counts if name not in self.complete}
        return {name: self.asked - n for name, n in counts.items() if n < self.asked}


def read_run_folder(folder: str | Path) -> Run:
    """Read a run folder; nothing is written to it."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise UnreadableArtifact(
            f"{folder} holds no run: there is no run.json. Name the folder that "
            "'ltrag evaluate --out' wrote."
        )
    body = RunFolder(folder).read() or {}
    identity = _checked_identity(folder, body["identity"])
    records = {cell: found for cell in identity["cells"] if (found := _records(folder, cell))}
    if not records:
        raise InvalidInput(f"{folder} has no records yet; answer a few questions first")
    complete = _complete(records)
    versions = body.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    return Run(folder, identity, versions, records, complete, _asked(identity))


def right(record: Record, metric: str) -> bool:
    """Whether an answer counts as right: a score of at least 0.5 (TER: at most)."""
    score = record.scores[metric]
    return score <= 0.5 if metric in LOWER_IS_BETTER else score >= 0.5


def _checked_identity(folder: Path, identity: Mapping[str, Any]) -> Mapping[str, Any]:
    cells = identity.get("cells")
    if not isinstance(cells, list) or not all(isinstance(name, str) for name in cells):
        raise UnreadableArtifact(
            f"{folder / 'run.json'}: 'cells' should be a list of names, got {cells!r:.80}"
        )
    for name in cells:
        try:
            CellName.parse(name)
        except InvalidInput as error:
            raise UnreadableArtifact(f"{folder / 'run.json'}: {error}") from error
    return identity


def _asked(identity: Mapping[str, Any]) -> int | None:
    found = re.match(r"(\d+) questions", str(identity.get("questions")))
    return None if found is None else int(found[1])


def _records(folder: Path, cell: str) -> tuple[Record, ...]:
    """One for each question; the last one where a question comes twice."""
    run = RunFolder(folder)
    known: dict[str, Record] = {}
    metrics: set[str] | None = None
    for number, record in run.lines(cell):
        wrong = _wrong(record) or _other_metrics(record, metrics)
        if wrong:
            raise BadRecord(f"{run.file(cell)}, line {number}: {wrong}")
        metrics = set(record.scores)
        known[record.id] = record
    return tuple(known.values())


def _wrong(record: Record) -> str:
    """What is wrong with the values of a record; "" where nothing is."""
    for name in ("id", "question", "prediction"):
        if not isinstance(getattr(record, name), str):
            return f"field {name!r}: expected text, got {getattr(record, name)!r:.40}"
    if not isinstance(record.scores, dict) or not record.scores:
        return f"field 'scores': expected numbers by metric, got {record.scores!r:.40}"
    numbers = {f"scores.{name}": value for name, value in record.scores.items()}
    numbers |= {name: getattr(record, name) for name in ("calls", "retrievals", "ms")}
    unsure = {name: getattr(record, name) for name in _MAYBE if getattr(record, name) is not None}
    for name, value in (numbers | unsure).items():
        if not _is_number(value):
            return f"field {name!r}: expected a number, got {value!r:.40}"
    if record.uncertainty is not None and not 0 <= record.uncertainty <= 1:
        return f"field 'uncertainty': expected a number from 0 to 1, got {record.uncertainty:g}"
    if record.error is not None and not isinstance(record.error, str):
        return f"field 'error': expected text, got {record.error!r:.40}"
    if record.mode is not None and not isinstance(record.mode, str):
        return f"field 'mode': expected text, got {record.mode!r:.40}"
    return _wrong_parts(record)


_MAYBE = ("uncertainty", "prompt_tokens", "completion_tokens")


def _wrong_parts(record: Record) -> str:
    if not all(isinstance(text, str) for text in record.answers):
        return "field 'answers': expected a list of texts"
    if not all(isinstance(passage, dict) for passage in record.passages):
        return "field 'passages': expected a list of objects"
    if not all(isinstance(step, dict) for step in record.trace or ()):
        return "field 'trace': expected a list of objects"
    if record.rounds is not None:
        try:
            from_record(record.rounds)
        except BadRecord as error:
            return f"field 'rounds': {error}"
    decision = record.decision
    if decision is None:
        return ""
    if not isinstance(decision, dict) or not isinstance(decision.get("retrieve"), bool):
        return "field 'decision': expected an object with 'retrieve'"
    for name in ("score", "probability"):
        if not _is_number(decision.get(name)):
            return f"field 'decision.{name}': expected a number, got {decision.get(name)!r:.40}"
    if not 0 <= decision["probability"] <= 1:
        return "field 'decision.probability': expected a number from 0 to 1"
    if not isinstance(decision.get("ingredients") or {}, dict):
        return "field 'decision.ingredients': expected an object"
    return ""


def _other_metrics(record: Record, metrics: set[str] | None) -> str:
    if metrics is None or metrics == set(record.scores):
        return ""
    return f"field 'scores': {sorted(record.scores)}, the lines before have {sorted(metrics)}"


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _complete(records: Mapping[str, Sequence[Record]]) -> dict[str, Sequence[Record]]:
    """The cells that have answered what the furthest cell has, each in the order of the first."""
    most = max(len(found) for found in records.values())
    far = {name: found for name, found in records.items() if len(found) == most}
    ids = [record.id for record in next(iter(far.values()))]
    aligned: dict[str, Sequence[Record]] = {}
    for name, found in far.items():
        by_id = {record.id: record for record in found}
        if by_id.keys() != set(ids):
            raise InvalidInput(
                f"{name} and {next(iter(far))} are about different questions; these records are "
                "not of one run"
            )
        aligned[name] = [by_id[i] for i in ids]
    return aligned
