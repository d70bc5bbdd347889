"""A run on disk: what was asked for, and one file of records for each cell.

::

    RUN/run.json                     what a second call must equal (settings, hashes), and versions
    RUN/records/CELL.jsonl           a record a line; the last one of a question counts
    RUN/learned/CELL.json            how a method that trains in the run was trained
    RUN/answers.sqlite               the model's answers, so that nothing is asked twice
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from ltrag_plugins.artifacts import check_same, reading, tidying, write_json, writing
from ltrag_plugins.errors import BadRecord, InvalidInput, UnreadableArtifact, path_of
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.spec import CellName
from ltrag_plugins.evaluate.summary import aligned

try:
    import fcntl
except ImportError:  # Windows: two runs into one folder are then the caller's to avoid
    fcntl = None

_FORMAT = 1


@dataclass
class RunFolder:
    """Where a run keeps what it has; made when something is kept."""

    path: Path
    _is_held: bool = False

    @property
    def answers(self) -> Path:
        """The answer cache."""
        return self.path / "answers.sqlite"

    @contextmanager
    def held(self) -> Iterator[None]:
        """For one process alone; inside of it, once more is the same. Where no run began, no
        lock is left."""
        if self._is_held:
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(tidying(self.path))
            with writing(self.path):
                lock = stack.enter_context((self.path / "lock").open("w"))
            try:
                if fcntl is not None:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # of a run that never began the file may just have gone
                    if not os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name)):
                        raise BlockingIOError
            except (BlockingIOError, FileNotFoundError):
                trouble = f"another run is writing to {self.path}"
                raise InvalidInput(f"{trouble}; wait for it, or name another folder") from None
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False
                if not (self.path / "run.json").exists():
                    with suppress(OSError):  # Windows takes no file away that is open
                        (self.path / "lock").unlink()

    def check(self, identity: Mapping[str, Any]) -> bool:
        """Whether a run is here; one that is not of this, as far as that is known, is refused,
        but where it has no answer, as one with a wrong address."""
        if (body := self.read()) is None:
            return False
        known = {name: body["identity"].get(name) for name in identity}
        remedy = "Name another folder, or repeat what began the run."
        now = json.loads(json.dumps(identity))
        if known != now and not self._answered(body["identity"]["cells"]):
            return False
        check_same(f"{self.path} holds another run", known, now, remedy)
        return True

    def begin(self, identity: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Write what was asked for, or check that it is what was asked for before."""
        if not self.check(identity):
            if self.read() is not None:  # its failures go with it
                for file in (self.path / "records").glob("*.jsonl"):
                    file.unlink()
            body = {"format": _FORMAT, "identity": identity, **told}
            write_json(self.path / "run.json", body)

    def _answered(self, cells: Iterable[str]) -> bool:
        """Whether there is an answer, or what cannot be read, which may be one."""
        try:
            return any(not record.error for cell in cells for record in self.records(cell))
        except BadRecord:
            return True

    def read(self) -> dict[str, Any] | None:
        """What run.json says; None where there is none yet."""
        path = self.path / "run.json"
        if not path.exists():
            return None
        with reading(f"{path} cannot be read", "Name another folder, or take it away."):
            body = json.loads(path.read_bytes())
            if body["format"] != _FORMAT:
                raise ValueError(f"format {body['format']}, this version reads {_FORMAT}")
            for name in body["identity"]["cells"]:  # they become the names of files
                CellName.parse(name)
            return body

    def records(self, cell: str) -> list[Record]:
        """What is known of a cell: one record a question, in order; the last one that was written.
        `BadRecord`: a line is no record, or has other metrics than those before it."""
        path, known = self.file(cell), dict[str, Record]()
        # a last line that a kill cut short is left out
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                record = Record.from_line(line, f"{path}, line {number}")
                metrics = next(iter(known.values()), record).scores.keys()
                if metrics != record.scores.keys():
                    what = f"scores of {', '.join(record.scores)}, before of {', '.join(metrics)}"
                    raise BadRecord(f"{path}, line {number}: {what}")
            except BadRecord as error:
                remedy = "take the line away, and a run into this folder asks its question again"
                raise BadRecord(f"{error}; {remedy}") from error
            known[record.id] = record  # stays at the place of the first try
        return list(known.values())

    def add(self, cell: str, records: Iterable[Record]) -> None:
        """Append records, over the rest of a line that a kill cut short."""
        path = self.file(cell)
        content = "".join(f"{record.as_line()}\n" for record in records).encode()
        with writing(path.parent), path.open("ab+") as file:
            whole = 0
            if file.seek(0, os.SEEK_END):
                with mmap(file.fileno(), 0, access=ACCESS_READ) as known:
                    whole = known.rfind(b"\n") + 1
            file.truncate(whole)
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                file.truncate(whole)
                raise

    def file(self, cell: str) -> Path:
        """Where a cell's records stand."""
        return self.path / "records" / f"{CellName.parse(cell).file}.jsonl"

    def learned(self, cell: str) -> Path:
        """Where it stands how a cell's method learned."""
        return self.path / "learned" / f"{CellName.parse(cell).file}.json"


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
    def metrics(self) -> tuple[str, ...]:
        """All measures, the first one first."""
        return tuple(next(iter(self.complete.values()))[0].scores)

    @property
    def metric(self) -> str:
        """The first measure, which tells right from wrong."""
        return self.metrics[0]

    @property
    def missing(self) -> dict[str, int | None]:
        """Questions left to answer, by cell; None: nobody knows how many."""
        counts = {name: len(self.records.get(name, ())) for name in self.identity["cells"]}
        if self.asked is None:
            return {name: None for name in counts if name not in self.complete}
        return {name: self.asked - n for name, n in counts.items() if n < self.asked}


def read_run_folder(folder: str | Path) -> Run:
    """A run as a report shows it, with what is not there yet; nothing is written to the folder."""
    run = RunFolder(path_of(folder))
    body = run.read()
    if body is None:
        remedy = "Name the folder that 'ltrag evaluate --out' wrote."
        raise UnreadableArtifact(f"{folder} holds no run: there is no run.json. {remedy}")
    identity, versions = body["identity"], body.get("versions")
    records = {cell: found for cell in identity["cells"] if (found := run.records(cell))}
    if not records:
        raise InvalidInput(f"{folder} has no records yet; answer a few questions first")
    most = max(map(len, records.values()))
    complete = aligned({name: found for name, found in records.items() if len(found) == most})
    asked = re.match(r"(\d+) questions", str(identity.get("questions")))
    versions = versions if isinstance(versions, dict) else {}
    return Run(run.path, identity, versions, records, complete, int(asked[1]) if asked else None)
