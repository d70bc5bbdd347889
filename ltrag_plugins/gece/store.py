"""What a gate at work decided, and what came of it: a SQLite file that threads, processes and
restarts share. Gates that were fitted on it are in it too."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from sqlite3 import Connection
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ltrag_plugins.artifacts import content_hash
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece.labels import Outcome
from ltrag_plugins.gece.monitor import Watched
from ltrag_plugins.gece.savings import Usage
from ltrag_plugins.gece.signals import Evidence
from ltrag_plugins.llm.cached import generation_from_json, generation_to_json
from ltrag_plugins.llm.store import SQLiteFile

_FILES = ("gate.json", "gate.safetensors")  # what a saved gate consists of
_MOST = 100_000  # decisions kept; the oldest go first
_COLUMNS = "id, question, at, gate, retrieve, score, chance, sampled, agrees"
_FAIR = "gate >= ? AND sampled = 1 AND agrees IS NOT NULL AND evidence IS NOT NULL"


class DecisionStore(SQLiteFile):
    """A file of decisions, of the questions whose two answers are known, and of gates.

    A question, its draft and embeddings are stored once both of its answers are known, as a gate is
    fitted on them; of any other only a digest is. At most 100,000 decisions are kept.

    Raises:
        CacheUnreadable: the file is corrupt, not a decision store, or cannot be made.
    """

    _kind, _mark = "decision store", 0x4C545244  # "LTRD"
    _schema = f"""
        CREATE TABLE decisions (
            {_COLUMNS.replace("id,", "id TEXT UNIQUE NOT NULL,")},
            signals TEXT NOT NULL, evidence TEXT, vectors BLOB, cost TEXT
        );
        CREATE INDEX by_gate ON decisions (gate, sampled, agrees);
        CREATE TABLE gates (number INTEGER PRIMARY KEY, at REAL NOT NULL, json BLOB, arrays BLOB);
        CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    """

    def add(self, records: Sequence[Watched]) -> None:
        """Keep decisions, in one transaction; those that are there stay, but for the oldest where
        there are too many."""
        names = _COLUMNS.split(", ")
        rows = [
            (*(getattr(r, name) for name in names), json.dumps(dict(r.signals), default=float))
            for r in records
        ]
        query = f"INSERT OR IGNORE INTO decisions ({_COLUMNS}, signals) VALUES (?{', ?' * 9})"
        with self._writing() as connection:
            connection.executemany(query, rows)
            last = "(SELECT MAX(rowid) FROM decisions)"
            connection.execute(f"DELETE FROM decisions WHERE rowid <= {last} - ?", (_MOST,))

    def compared(
        self, record: Watched, evidence: Evidence | None = None, cost: Usage | None = None
    ) -> None:
        """Keep what came of a decision: `record.agrees`, and what a gate can be fitted on."""
        self.add([record])
        with self._writing() as connection:
            vectors, text = None, None
            if evidence is not None:
                if evidence.vectors is not None:
                    vectors = np.asarray(evidence.vectors, dtype="<f4").tobytes()
                samples = [generation_to_json(sample) for sample in evidence.samples]
                draft = generation_to_json(evidence.draft)
                text = json.dumps([evidence.question, draft, samples, dict(evidence.extra)])
            used = cost and json.dumps(astuple(cost))
            connection.execute(
                "UPDATE decisions SET question = ?, agrees = ?, evidence = ?, vectors = ?, "
                "cost = ? WHERE id = ?",
                (record.question, record.agrees, text, vectors, used, record.id),
            )

    def records(self, gate: int, most: int) -> list[Watched]:
        """The latest decisions of a gate, oldest first."""
        names = f"{_COLUMNS}, signals"
        query = f"SELECT {names} FROM decisions WHERE gate = ? ORDER BY rowid DESC LIMIT ?"
        with self._connection() as connection:
            rows = connection.execute(query, (gate, most)).fetchall()
        return [_record(*row) for row in reversed(rows)]

    @property
    def last(self) -> int:
        """Number of the latest decision."""
        with self._connection() as connection:
            return connection.execute("SELECT COALESCE(MAX(rowid), 0) FROM decisions").fetchone()[0]

    def sample_size(self, since: int, through: int = 2**62) -> int:
        """How many questions `sample` knows, by decisions up to this one."""
        query = f"SELECT COUNT(DISTINCT question) FROM decisions WHERE {_FAIR} AND rowid <= ?"
        with self._connection() as connection:
            return connection.execute(query, (since, through)).fetchone()[0]

    def sample(self, since: int, most: int) -> tuple[list[Outcome], Usage | None]:
        """A fair sample of the questions since a gate, the latest, with what a chain's answer cost
        on average."""
        query = (
            "SELECT agrees, evidence, vectors, cost FROM decisions WHERE rowid IN "
            f"(SELECT MAX(rowid) FROM decisions WHERE {_FAIR} GROUP BY question) "
            "ORDER BY rowid DESC LIMIT ?"
        )
        with self._connection() as connection:
            rows = connection.execute(query, (since, most)).fetchall()
        outcomes = list[Outcome]()
        for agrees, text, vectors, _ in rows:
            question, draft, samples, extra = json.loads(text)
            found = None if vectors is None else np.frombuffer(vectors, "<f4").reshape(2, -1)
            evidence = Evidence(
                question,
                generation_from_json(draft),
                tuple(map(generation_from_json, samples)),
                None if found is None else found.astype(float),
                extra=extra,
            )
            outcomes.append(Outcome(evidence, bool(agrees), True, agreement=True))
        costs = [Usage(*json.loads(cost)) for *_, cost in rows if cost]
        return outcomes, _mean_of(costs)

    @property
    def newest(self) -> int:
        """Number of the latest gate; 0 where there was none."""
        with self._connection() as connection:
            return connection.execute("SELECT COALESCE(MAX(number), 0) FROM gates").fetchone()[0]

    def add_gate(self, folder: Path | None, at: float) -> int:
        """Keep a saved gate; None: from here on there is none, until the next. Its number."""
        with self._writing() as connection:
            return _added(connection, folder, at)

    def enrolled(self, gate: Any, at: float) -> int:
        """Number of this gate here, to which it is added if it is not the newest; 0 for one that
        cannot be saved.

        Raises:
            InvalidInput: the gates in this store are fitted by a learning router.
        """
        if not hasattr(gate, "save"):
            return 0
        if self.fact("warm up"):
            theirs = f"{self.path} is the store of a learning router"
            raise InvalidInput(f"{theirs}; give this one, which does not learn, another file")
        with TemporaryDirectory() as folder:
            gate.save(folder)
            ours = content_hash(Path(folder), "gate")
            with self._writing() as connection:  # so that of many processes one adds it
                query = "SELECT number, json FROM gates ORDER BY number DESC LIMIT 1"
                number, held = connection.execute(query).fetchone() or (0, None)
                same = held is not None and json.loads(held).get("sha256") == ours
                return number if same else _added(connection, Path(folder), at)

    @contextmanager
    def gate(self, number: int) -> Iterator[Path | None]:
        """The folder of a gate, for as long as it is read; None where there is none."""
        with self._connection() as connection:
            query = "SELECT json, arrays FROM gates WHERE number = ?"
            files = connection.execute(query, (number,)).fetchone() or (None, None)
        with TemporaryDirectory() as folder:
            for name, content in zip(_FILES, files, strict=True):
                if content is not None:
                    Path(folder, name).write_bytes(content)
            yield None if None in files else Path(folder)

    def since(self, number: int) -> int:
        """Number of the latest gate up to this one that is none: where its sample begins."""
        query = "SELECT COALESCE(MAX(number), 0) FROM gates WHERE number <= ? AND json IS NULL"
        with self._connection() as connection:
            return connection.execute(query, (number,)).fetchone()[0]

    def fact(self, name: str) -> str | None:
        """What `note` kept."""
        with self._connection() as connection:
            row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row and row[0]

    def note(self, name: str, value: str, unless: str | None = None) -> bool:
        """Keep a fact, in an older one's place; False where the older one is larger than `unless`,
        as a text, or is there at all where that is "" (so one of many processes wins)."""
        with self._writing() as connection:
            row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            if unless is not None and row is not None and row[0] > unless:
                return False
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))
            return True

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._connection() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection


def _added(connection: Connection, folder: Path | None, at: float) -> int:
    files = [folder and (folder / name).read_bytes() for name in _FILES]
    query = "INSERT INTO gates (at, json, arrays) VALUES (?, ?, ?)"
    return int(connection.execute(query, (at, *files)).lastrowid or 0)


def _record(*row: Any) -> Watched:
    one, question, at, gate, retrieve, score, chance, sampled, agrees, signals = row
    return Watched(
        *(one, question, at, gate, bool(retrieve), score, chance, bool(sampled)),  # ints in SQLite
        agrees=None if agrees is None else bool(agrees),
        signals=json.loads(signals),
    )


def _mean_of(costs: Sequence[Usage]) -> Usage | None:
    """The mean of each part, over those that know it."""
    means = list[float | None]()
    for part in zip(*map(astuple, costs), strict=True):
        known = [value for value in part if value is not None]
        means.append(fmean(known) if known else None)
    return Usage(*means) if costs else None
