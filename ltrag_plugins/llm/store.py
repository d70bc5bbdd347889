"""A SQLite file that many threads and processes share, and that is told from everybody else's.

It is made whole beside its place and then linked into it, so a file without our mark is somebody
else's. Such a file is refused, having been opened as one that nobody may change.
"""

import os
import sqlite3
import tempfile
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from ltrag_plugins.errors import CacheUnreadable, checked
from ltrag_plugins.llm.base import Shared

_LAYOUT = 1  # of the tables and of what is in them
_PATIENCE = 60.0  # seconds to wait for another process's write


class SQLiteFile(Shared):
    """A SQLite file of ours, made where there is none; a subclass says what is in it.

    Raises:
        CacheUnreadable: the file is corrupt, of another kind or version, or cannot be made. It is
            never overwritten or deleted.
    """

    _kind: ClassVar[str]  # what messages call the file
    _mark: ClassVar[int]  # SQLite's application id, which tells this kind from others
    _schema: ClassVar[str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        checked(path, str | os.PathLike, "the file", f"the path of a {self._kind}")
        self.path: Path = Path(path).expanduser().absolute()
        """The SQLite file."""
        # by process: SQLite forbids a forked child even to close what its parent opened
        self._idle = defaultdict[int, deque[sqlite3.Connection]](deque)
        # the last to close a file puts its log into it
        weakref.finalize(self, _close, self._idle)
        with self._explained():
            if not self.path.exists():
                self._create()
            self._check_header()
        with self._connection() as connection:
            [(verdict,)] = connection.execute("PRAGMA quick_check(1)")
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        _close(self._idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile."""
        idle = self._idle[os.getpid()]
        with self._explained():
            try:
                connection = idle.pop()
            except IndexError:
                # mode=rw: a file that was deleted meanwhile is an error, not an empty database
                options: Any = {"isolation_level": None, "check_same_thread": False, "uri": True}
                where = f"{self.path.as_uri()}?mode=rw"
                connection = sqlite3.connect(where, timeout=_PATIENCE, **options)
            try:
                connection.execute("PRAGMA synchronous = NORMAL")
                yield connection
            except BaseException:
                connection.close()
                raise
            idle.append(connection)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            raise CacheUnreadable(
                f"the {self._kind} {self.path} cannot be used: {error}. Choose a path on a local "
                "disk that can be written, has room, and is not locked by another program."
            ) from error
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            why = f"the {self._kind} {self.path} is corrupt ({error}). It was left as it is"
            remedy = "choose another path, or rescue what is in it with: sqlite3 FILE .recover"
            raise CacheUnreadable(f"{why}; {remedy}") from error

    def _create(self) -> None:
        place, name = self.path.parent, self.path.name
        log = place / f"{name}-wal"
        # in this order, as a living file is there before its log
        if log.exists() and log.stat().st_size and not self.path.exists():
            why = f"{log} was left by a file that was deleted, and would fill the new {self._kind}"
            raise CacheUnreadable(f"{why}. Delete it too, or choose another path.")
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=f".{name}-") as folder:
            made = Path(folder, "new")
            with closing(sqlite3.connect(made)) as connection:
                connection.executescript(
                    f"PRAGMA journal_mode = WAL; PRAGMA application_id = {self._mark};"
                    f"PRAGMA user_version = {_LAYOUT};"
                    f"{self._schema}"
                )
            with suppress(FileExistsError):  # another process was faster
                os.link(made, self.path)

    def _check_header(self) -> None:
        """Look at the file, which SQLite reads and may not change: `open` would not do, as closing
        a file drops all locks of this process on it (sqlite.org/howtocorrupt.html, section 2.2)."""
        if self.path.is_dir():
            raise IsADirectoryError("it is a directory")
        where = f"{self.path.as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(where, uri=True)) as connection:
            try:
                # else a file that another process is making longer just now passes for damaged
                connection.execute("PRAGMA writable_schema = ON")
                [(mark,)] = connection.execute("PRAGMA application_id")
                [(layout,)] = connection.execute("PRAGMA user_version")
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                    raise
                mark = layout = None
        if mark == self._mark and layout == _LAYOUT:
            return
        if mark is None or not self.path.stat().st_size:
            why = "it is not a SQLite file"
        else:
            why = f"it is of layout {layout}" if mark == self._mark else "it is another SQLite file"
        wrong = f"{self.path} is no {self._kind} of layout {_LAYOUT}: {why}"
        raise CacheUnreadable(f"{wrong}. It was left as it is; choose another path.")


def _close(idle: dict[int, deque[sqlite3.Connection]]) -> None:
    """Close this process's connections that nobody uses."""
    mine = idle[os.getpid()]
    while mine:
        mine.pop().close()
