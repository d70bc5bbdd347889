"""Answers and vectors that are kept: once paid for, there for every thread, process and day after,
and never read from a file that is not sound."""

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from cache_parts import KINDS

from ltrag_plugins.errors import CacheUnreadable, ModelError
from ltrag_plugins.gece.store import DecisionStore

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept.sqlite"


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return connection.execute("SELECT count(*) FROM answers").fetchone()[0]


def test_nothing_is_asked_for_twice_and_the_order_is_kept(kind, tmp_path):
    path = tmp_path / "new" / "folder" / "kept.sqlite"
    model, texts = kind.model(), ["a", "b", " a", "A", "日本 🙂", "d", "a"]
    wanted = kind.told(kind.model(), texts)
    with kind.cached(model, path) as cached:
        kind.told(cached, ["b", "d", "b"])
        assert kind.told(cached, texts) == wanted
    assert model.asked == ["b", "d", "a", " a", "A", "日本 🙂"]
    assert os.listdir(path.parent) == [path.name]
    later = kind.model()
    assert kind.told(kind.cached(later, path), texts[::-1]) == wanted[::-1]
    assert later.asked == []
    assert kind.told(cached, ["a"]) == wanted[:1]  # closed, and opened again


def test_models_with_different_names_share_nothing(kind, path):
    for _ in range(2):
        for name in ("one", "another"):
            cached = kind.cached(kind.model(name), path)
            assert cached.name == name
            assert repr(str(path)) in repr(cached)
            assert kind.told(cached, ["a"]) == kind.told(kind.model(name), ["a"])
    assert rows(path) == 2


def test_a_call_that_goes_wrong_is_an_error_and_keeps_nothing(kind, path):
    def hangs_up(_):
        raise ConnectionResetError("hung up")

    for change, error, why in (
        (lambda told: told[1:], ModelError, "model gave .*2.* for 3"),
        (hangs_up, ConnectionResetError, "hung up"),
    ):
        model = kind.model()
        told = getattr(model, kind.method)
        setattr(model, kind.method, lambda texts, told=told, f=change, **_: f(told(texts)))
        with pytest.raises(error, match=why):
            kind.told(kind.cached(model, path), ["a", "b", "c"])
        assert rows(path) == 0


def test_many_threads_share_one_cache(kind, path):
    cached, texts = kind.cached(kind.model(), path), [f"{i % 40}" for i in range(400)]
    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(lambda text: kind.told(cached, [text, "shared"]), texts))
    assert told == [kind.told(kind.model(), [text, "shared"]) for text in texts]
    assert rows(path) == 41


def test_it_travels_to_another_process_with_its_model(kind, path):
    cached = kind.cached(kind.model(), path)
    twin = pickle.loads(pickle.dumps(cached))
    assert kind.told(cached, ["a"]) == kind.told(twin, ["a"])
    assert (cached._model.asked, twin._model.asked) == (["a"], [])


WRITER = """
import sys
from tests.cache_parts import KINDS

kind, path, who, rounds = sys.argv[1:]
kind = KINDS[kind]
cached = kind.cached(kind.model(), path)
for i in range(int(rounds)):
    kind.told(cached, [f"{who} {i} {j}" for j in range(5)] + [f"shared {i}"])
    print(i, flush=True)
"""


def writer(kind, path: Path, who: str, rounds: int) -> subprocess.Popen:
    [name] = [name for name, one in KINDS.items() if one == kind]
    command = [sys.executable, "-c", WRITER, name, str(path), who, str(rounds)]
    root = Path(__file__).parent.parent
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)


def test_many_processes_make_and_fill_one_cache(kind, path):
    writers = [writer(kind, path, f"writer {i}", 25) for i in range(3)]
    for process in writers:
        process.communicate()
        assert process.returncode == 0
    assert rows(path) == 3 * 25 * 5 + 25


def test_a_file_that_is_opened_twice_stays_locked_against_other_processes(kind, path):
    # SQLite deletes the log of a file that it takes to be open nowhere else
    model = kind.model()
    with kind.cached(model, path) as cached, kind.cached(model, path):
        kind.told(cached, ["a"])
        log = path.with_name(f"{path.name}-wal")
        assert log.exists()
        other = writer(kind, path, "other", 1)
        other.communicate()
        assert other.returncode == 0
        assert log.exists()


def test_a_file_that_another_process_makes_longer_just_now_is_opened(kind, path, tmp_path):
    # its first page, which says how long it is, is written before the pages that it counts
    texts, put = [f"text {i}" for i in range(200)], "import os, sys; i = os.open(sys.argv[1], 1)"
    with kind.cached(kind.model(), path) as cached:
        kind.told(cached, texts)
        with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(tmp_path / "b")) as b:
            now.backup(b)
        first, short = (tmp_path / "b").read_bytes()[:4096], path.stat().st_size
        put += "; os.pwrite(i, bytes.fromhex(sys.argv[2]), 0)"
        subprocess.run([sys.executable, "-c", put, path, first.hex()], check=True)
        assert int.from_bytes(first[28:32]) * 4096 > short == path.stat().st_size
        model = kind.model()
        with kind.cached(model, path) as again:
            assert kind.told(again, texts) == kind.told(kind.model(), texts)
        assert model.asked == []


def test_a_killed_process_loses_at_most_the_call_it_was_in(kind, path):
    for life in range(2):
        process = writer(kind, path, f"life {life}", 10**6)
        for _ in range(20):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        rest, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL
        model = kind.model()
        with kind.cached(model, path) as cached:
            for i in range(20 + rest.count("\n")):
                texts = [f"life {life} {i} {j}" for j in range(5)] + [f"shared {i}"]
                assert kind.told(cached, texts) == kind.told(kind.model(), texts)
        assert model.asked == []
    assert rows(path)


@needs_fork
def test_a_forked_child_opens_the_file_anew(kind, path):
    cached, both = kind.cached(kind.model(), path), ["parent", "child"]
    kind.told(cached, both[:1])
    parents = list(cached._idle[os.getpid()])
    assert parents
    child = os.fork()
    if child == 0:
        right = kind.told(cached, both) == kind.told(kind.model(), both)
        shared = [c for c in cached._idle[os.getpid()] if any(c is parent for parent in parents)]
        os._exit(0 if right and not shared else 1)
    assert os.waitpid(child, 0)[1] == 0
    kind.told(cached, both)
    assert cached._model.asked == ["parent"]
    assert rows(path) == 2


def other_kind(kind, path: Path) -> None:
    [other] = [one for one in KINDS.values() if one != kind]
    other.cached(other.model(), path).close()


def of_another_version(kind, path: Path) -> None:
    kind.cached(kind.model(), path).close()
    changed(path, "PRAGMA user_version = 99")


def damaged(change):
    def made(kind, path: Path) -> None:
        with kind.cached(kind.model(), path) as cached:
            kind.told(cached, [f"text {i}" for i in range(200)])
        path.write_bytes(change(path.read_bytes()))

    return made


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda _, path: path.write_bytes(b""), "not a SQLite file"),
        (lambda _, path: path.write_bytes(b"SQLite format 3\0"), "not a SQLite file"),
        (lambda _, path: path.write_text("my thesis\n" * 100), "not a SQLite file"),
        (lambda _, path: changed(path, "CREATE TABLE precious (x)"), "another SQLite file"),
        (other_kind, "is no {noun} of layout 1: it is another SQLite file"),
        (of_another_version, "it is of layout 99"),
        (damaged(lambda data: data[:12288] + os.urandom(4096) + data[16384:]), "is corrupt"),
        (damaged(lambda data: data[: len(data) // 2]), "the {noun} .* is corrupt"),
        (lambda _, path: path.mkdir(), "directory"),
    ],
)
def test_what_is_no_sound_cache_is_refused_and_left_as_it_was(kind, path, made, why):
    made(kind, path)
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(CacheUnreadable, match=why.format(noun=kind.noun)) as caught:
        kind.cached(kind.model(), path)
    assert str(path) in str(caught.value)
    assert os.listdir(path.parent) == [path.name]
    assert path.is_dir() or path.read_bytes() == before


@pytest.mark.parametrize(
    "harm", ["substr(answer, 1, 7)", "substr(answer, 1, 8)", "''", "x''", "'text'", "7"]
)
def test_what_was_damaged_in_place_is_an_error_and_not_asked_for_again(kind, path, harm):
    with kind.cached(kind.model(), path) as cached:
        kind.told(cached, ["a"])
    changed(path, f"UPDATE answers SET answer = {harm}")
    with kind.cached(kind.model(), path) as cached:
        kind.told(cached, ["b"])
    before, model = path.read_bytes(), kind.model()
    with kind.cached(model, path) as again, pytest.raises(CacheUnreadable, match=r"corrupt.*left"):
        kind.told(again, ["a", "b"])
    assert model.asked == []
    assert path.read_bytes() == before


def test_what_a_deleted_file_left_beside_it_fills_no_new_one(kind, path):
    log = path.with_name(f"{path.name}-wal")
    with kind.cached(kind.model(), path) as cached:
        kind.told(cached, ["a secret"])
        left = log.read_bytes()  # as after a crash
    path.unlink()
    log.write_bytes(left)
    with pytest.raises(CacheUnreadable, match=r"-wal was left by a file that was deleted.* Delete"):
        kind.cached(kind.model(), path)
    log.unlink()
    model = kind.model()
    with kind.cached(model, path) as cached:
        kind.told(cached, ["a secret"])
    assert model.asked == ["a secret"]


def test_a_process_that_ends_leaves_the_file_alone(tmp_path):
    code = """
import threading
from ltrag_plugins.gece.store import DecisionStore
store = DecisionStore("s")
store.note("a", "b")
threading.Thread(target=lambda held: threading.Event().wait(), args=[store], daemon=True).start()
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert os.listdir(tmp_path) == ["s"]
    with DecisionStore(tmp_path / "s") as store:
        assert store.fact("a") == "b"


def test_a_folder_that_cannot_be_made_is_an_error_with_the_path(kind, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheUnreadable, match=r"file/kept\.sqlite"):
        kind.cached(kind.model(), tmp_path / "file" / "kept.sqlite")


@needs_fork  # to give up root's rights
def test_a_file_that_may_only_be_read_says_so(kind):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kept.sqlite")
        kind.cached(kind.model(), path).close()
        path.chmod(0o444)
        os.chmod(folder, 0o555)
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                kind.told(kind.cached(kind.model(), path), ["?"])
            except CacheUnreadable as error:
                os._exit(0 if "readonly" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        os.chmod(folder, 0o755)
