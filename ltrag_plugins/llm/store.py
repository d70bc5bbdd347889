"""Answers or vectors in a SQLite file that many threads and processes share and no crash corrupts.

The file is made whole, in a folder beside its place, and then linked into it: whoever finds
a file finds a complete one, so anything that does not carry our mark is somebody else's and
is refused without being opened by SQLite, which might write to it. SQLite's write-ahead log
does the rest: readers never wait, and a process that is killed loses the call it was in.
"""

import json
import os
import sqlite3
import struct
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ltrag_plugins.errors import CacheUnreadable
from ltrag_plugins.types import Generation, Token

_VERSION = 1  # of the tables' layout and of what is in them
_PATIENCE = 60.0  # seconds to wait for another process's write
_T = TypeVar("_T")


class _Store(ABC, Generic[_T]):
    """Values by key; what kind, a subclass says.

    Args:
        path: the SQLite file; made, with its folder, where there is none.
    """

    kind: ClassVar[str]
    """What messages call the file."""
    mark: ClassVar[int]
    """SQLite's application id, which tells this kind from others."""

    @staticmethod
    @abstractmethod
    def encoded(value: _T) -> str | bytes:
        """The value as SQLite keeps it."""

    @staticmethod
    @abstractmethod
    def decoded(kept: Any) -> _T:
        """The inverse of `encoded`; raises ValueError for what it cannot have written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        self._idle: deque[sqlite3.Connection] = deque()
        self._process = os.getpid()
        self._inherited: list[deque[sqlite3.Connection]] = []
        with self._explained():
            if not self.path.exists():
                _create(self.path, self.mark)
            _check_header(self.path, self.kind, self.mark)
        with self._connection() as connection:
            [(verdict,)] = connection.execute("PRAGMA quick_check(1)")
            if verdict != "ok":
                raise CacheUnreadable(self._corrupt(verdict))

    def get(self, keys: Iterable[bytes]) -> dict[bytes, _T]:
        """The values that are there."""
        query = "SELECT answer FROM answers WHERE key = ?"
        with self._connection() as connection:
            rows = ((key, connection.execute(query, (key,)).fetchone()) for key in keys)
            return {key: self.decoded(row[0]) for key, row in rows if row is not None}

    def put(self, values: Mapping[bytes, _T]) -> None:
        """Keep these values, all or none; the first one kept under a key stays."""
        rows = [(key, self.encoded(value)) for key, value in values.items()]
        with self._connection() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)

    def __len__(self) -> int:
        with self._connection() as connection:
            return connection.execute("SELECT count(*) FROM answers").fetchone()[0]

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile."""
        if self._process != os.getpid():
            # SQLite forbids a forked child even to close what its parent opened
            self._inherited.append(self._idle)
            self._idle, self._process = deque(), os.getpid()
        with self._explained():
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = _open(self.path)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise CacheUnreadable(
                f"the {self.kind} {self.path} cannot be used: {error}. Check that the file and "
                "its folder can be written, that the disk has room, and that no other program "
                "holds it locked; or choose another path."
            ) from error
        except OSError as error:
            raise CacheUnreadable(
                f"the {self.kind} {self.path} cannot be opened or made: {error}. Choose a path "
                "on a local disk that can be written."
            ) from error
        except (sqlite3.DatabaseError, ValueError) as error:
            raise CacheUnreadable(self._corrupt(error)) from error

    def _corrupt(self, what: object) -> str:
        return (
            f"the {self.kind} {self.path} is corrupt ({what}). It was left as it is; choose "
            "another path, or rescue what is in it with: sqlite3 FILE .recover"
        )


class AnswerStore(_Store[Generation]):
    """Generations by key."""

    kind = "answer cache"
    mark = 0x4C545241  # "LTRA"

    @staticmethod
    def encoded(value: Generation) -> str:
        """JSON, every float exactly itself."""
        tokens = value.tokens and [
            [token.text, token.logprob, token.entropy, token.alternatives] for token in value.tokens
        ]
        parts = [value.text, tokens, value.prompt_tokens, value.completion_tokens]
        parts += [] if value.seconds is None else [value.seconds]
        return json.dumps(parts, default=float)  # NumPy scalars are no floats to json

    @staticmethod
    def decoded(kept: Any) -> Generation:
        """The answer that `encoded` wrote."""
        try:
            text, tokens, prompt_tokens, completion_tokens, *seconds = json.loads(kept)
            if tokens is not None:
                tokens = tuple(
                    Token(piece, logprob, entropy, tuple((t, p) for t, p in alternatives))
                    for piece, logprob, entropy, alternatives in tokens
                )
        except (TypeError, ValueError) as error:
            raise ValueError(f"not an answer: {kept!r:.80}") from error
        return Generation(text, tokens, prompt_tokens, completion_tokens, *seconds[:1])


class VectorStore(_Store[np.ndarray]):
    """One vector of float32 by key."""

    kind = "vector cache"
    mark = 0x4C545256  # "LTRV"

    @staticmethod
    def encoded(value: np.ndarray) -> bytes:
        """Its bytes, the least significant first."""
        return value.astype("<f4").tobytes()

    @staticmethod
    def decoded(kept: Any) -> np.ndarray:
        """From bytes."""
        if not isinstance(kept, bytes):
            raise ValueError(f"not a vector: {kept!r:.80}")
        return np.frombuffer(kept, dtype="<f4").astype(np.float32)


def _open(path: Path) -> sqlite3.Connection:
    # mode=rw: a file that was deleted meanwhile is an error, not an empty database
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
        timeout=_PATIENCE,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _create(path: Path, mark: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        made = Path(folder, "new")
        with closing(sqlite3.connect(made)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA application_id = {mark}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("CREATE TABLE answers (key BLOB PRIMARY KEY, answer TEXT NOT NULL)")
        try:
            os.link(made, path)
        except FileExistsError:
            return  # another process was faster


def _check_header(path: Path, kind: str, expected: int) -> None:
    """Look at the file without SQLite (offsets: sqlite.org/fileformat, section 1.3)."""
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
        raise CacheUnreadable(
            f"{path} is not {_a(kind)}: it is not a SQLite file. It was left as it is; "
            "choose another path, or move it away."
        )
    version, mark = struct.unpack_from(">I4xI", head, 60)
    if mark != expected:
        raise CacheUnreadable(
            f"{path} is a SQLite file, but not {_a(kind)}. It was left as it is; choose "
            "another path."
        )
    if version != _VERSION:
        raise CacheUnreadable(
            f"{path} is {_a(kind)} of layout {version}; this version of ltrag_plugins "
            f"reads layout {_VERSION}. It was left as it is; choose another path."
        )


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
