"""Vectors that are kept: a text is encoded once, for every thread, process and day after."""

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ltrag_plugins.errors import CacheUnreadable, ModelError
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.cached import CachedEncoder, CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.dur_parts import Nonsense

TEXTS = ["Emma", "Dune", "", "日本 🙂", "Emma\n", "a" * 10_000, "half \ud800 pair"]
PLAIN = TEXTS[:-1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vectors.sqlite"


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM answers").fetchone()[0]


def test_it_is_an_encoder_under_the_name_of_the_one_it_holds(path):
    cached = CachedEncoder(Nonsense(name="letters"), path)
    assert isinstance(cached, Encoder)
    assert cached.name == "letters"
    assert repr(str(path)) in repr(cached)


def test_fresh_and_kept_vectors_are_the_encoders_own_to_the_last_bit(path):
    plain = Nonsense().encode(PLAIN)
    fresh = CachedEncoder(Nonsense(), path).encode(PLAIN)
    kept = CachedEncoder(Nonsense(), path).encode(PLAIN)
    assert fresh.tobytes() == kept.tobytes() == plain.tobytes()
    assert {fresh.dtype, kept.dtype} == {np.dtype(np.float32)}
    assert kept.shape == (6, 12)


def test_no_text_is_encoded_twice_and_the_order_is_kept(path):
    encoder = Nonsense()
    cached = CachedEncoder(encoder, path)
    cached.encode(["b", "d", "b"])
    assert encoder.texts == ["b", "d"]
    told = cached.encode(["a", "b", "c", "d", "a"])
    assert encoder.texts == ["b", "d", "a", "c"]
    assert told.tobytes() == Nonsense().encode(["a", "b", "c", "d", "a"]).tobytes()
    later = Nonsense()
    CachedEncoder(later, path).encode(["d", "c", "b", "a"])
    assert later.texts == []


def test_texts_that_differ_in_a_space_are_different_texts(path):
    encoder = Nonsense()
    CachedEncoder(encoder, path).encode(["a", " a", "a ", "A"])
    assert len(encoder.texts) == 4


def test_encoders_with_different_names_do_not_share_vectors(path):
    one = CachedEncoder(Nonsense(dim=3, name="one"), path)
    two = CachedEncoder(Nonsense(dim=5, name="two"), path)
    for _ in range(2):
        assert one.encode(["a"]).shape == (1, 3)
        assert two.encode(["a"]).shape == (1, 5)


def test_no_texts_have_no_rows_of_the_encoders_length(path):
    assert CachedEncoder(Nonsense(dim=7), path).encode([]).shape == (0, 7)


def test_the_vectors_handed_out_are_the_callers_to_change(path):
    cached = CachedEncoder(Nonsense(), path)
    for _ in range(2):
        cached.encode(["a"])[0, 0] = 99.0
    assert cached.encode(["a"]).tobytes() == Nonsense().encode(["a"]).tobytes()


def test_vectors_of_another_precision_are_kept_as_they_were_first_given(path):
    class Double(Nonsense):
        def encode(self, texts):
            return super().encode(texts).astype(np.float64) / 3

    fresh = CachedEncoder(Double(), path).encode(["a", "b"])
    kept = CachedEncoder(Double(), path).encode(["a", "b"])
    assert fresh.dtype == np.float32
    assert fresh.tobytes() == kept.tobytes()


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(arrays(np.float32, st.integers(1, 20), elements=finite))
def test_a_vector_comes_back_exactly(tmp_path_factory, vector):
    class Saying(Nonsense):
        def encode(self, texts):
            return vector[None]

    path = tmp_path_factory.mktemp("vectors") / "vectors.sqlite"
    fresh = CachedEncoder(Saying(), path).encode(["a"])
    kept = CachedEncoder(Nonsense(), path).encode(["a"])
    assert kept.tobytes() == fresh.tobytes() == vector.tobytes()
    assert kept.flags.writeable


def test_an_encoder_that_gives_too_few_rows_is_named_and_nothing_is_kept(path):
    class Forgetful(Nonsense):
        def encode(self, texts):
            return super().encode(texts)[1:]

    cached = CachedEncoder(Forgetful(), path)
    with pytest.raises(ModelError, match="nonsense gave 2 vectors for 3 texts"):
        cached.encode(["a", "b", "c"])
    assert rows(path) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_no_numbers_are_refused_and_not_kept(path, bad):
    class Broken(Nonsense):
        def encode(self, texts):
            rows = super().encode(texts)
            rows[-1, 2] = bad
            return rows

    cached = CachedEncoder(Broken(), path)
    with pytest.raises(ModelError, match=r"nonsense gave NaN or infinity.*'b'"):
        cached.encode(["a", "b"])
    assert rows(path) == 0


def test_what_the_encoder_raises_passes_and_nothing_is_kept(path):
    class Moody(Nonsense):
        def encode(self, texts):
            raise ConnectionResetError("hung up")

    cached = CachedEncoder(Moody(), path)
    with pytest.raises(ConnectionResetError):
        cached.encode(["a"])
    assert rows(path) == 0


def test_many_threads_share_one_cache(path):
    cached = CachedEncoder(Nonsense(), path)
    texts = [f"{i % 40}" for i in range(400)]
    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(lambda text: cached.encode([text, "shared"]).tobytes(), texts))
    assert told == [Nonsense().encode([t, "shared"]).tobytes() for t in texts]
    assert rows(path) == 41


def test_it_travels_to_another_process_with_its_encoder(path):
    cached = CachedEncoder(Nonsense(), path)
    cached.encode(["a"])
    twin = pickle.loads(pickle.dumps(cached))
    before = len(twin.encoder.texts)
    assert twin.encode(["a"]).tobytes() == cached.encode(["a"]).tobytes()
    assert len(twin.encoder.texts) == before


def test_a_closed_cache_opens_again_and_a_with_block_closes_it(path):
    with CachedEncoder(Nonsense(), path) as cached:
        cached.encode(["a"])
    assert os.listdir(path.parent) == ["vectors.sqlite"]
    assert cached.encode(["a"]).shape == (1, 12)


WRITER = """
import sys
from ltrag_plugins.llm.cached import CachedEncoder
from tests.dur_parts import Nonsense

path, who = sys.argv[1], sys.argv[2]
cached = CachedEncoder(Nonsense(200), path)
for i in range(int(sys.argv[3])):
    cached.encode([f"{who} {i} {j}" for j in range(5)] + [f"shared {i}"])
    print(i, flush=True)
"""


def start_writer(path: Path, who: str, rounds: int) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, str(path), who, str(rounds)]
    root = Path(__file__).parent.parent
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)


def check_integrity(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_many_processes_make_and_fill_one_cache(path):
    writers = [start_writer(path, f"writer {i}", 20) for i in range(2)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert rows(path) == 2 * 20 * 5 + 20
    check_integrity(path)


def test_a_killed_process_loses_at_most_the_call_it_was_in(path):
    for life in range(2):
        writer = start_writer(path, f"life {life}", 10**6)
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        rest, _ = writer.communicate()
        finished = 20 + rest.count("\n")
        assert writer.returncode == -signal.SIGKILL
        encoder = Nonsense(200)
        with CachedEncoder(encoder, path) as cached:
            for i in range(finished):
                texts = [f"life {life} {i} {j}" for j in range(5)] + [f"shared {i}"]
                assert cached.encode(texts).tobytes() == Nonsense(200).encode(texts).tobytes()
        assert encoder.texts == []
    check_integrity(path)


def an_answer_cache(path: Path) -> None:
    CachedLLM(ScriptedLLM(str), path).close()


def foreign_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE precious (x)")
    connection.close()


def of_another_version(path: Path) -> None:
    CachedEncoder(Nonsense(), path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def filled(path: Path) -> bytearray:
    with CachedEncoder(Nonsense(300), path) as cached:
        cached.encode([f"text {i}" for i in range(100)])
    return bytearray(path.read_bytes())


def with_a_torn_page(path: Path) -> None:
    data = filled(path)
    data[3 * 4096 : 4 * 4096] = os.urandom(4096)
    path.write_bytes(data)


def with_its_second_half_lost(path: Path) -> None:
    data = filled(path)
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            lambda path: path.write_bytes(b""),
            "is no vector cache of layout 1: it is not a SQLite file",
        ),
        (lambda path: path.write_text("my thesis\n" * 100), "not a SQLite file"),
        (foreign_sqlite, "no vector cache"),
        (an_answer_cache, "no vector cache"),
        (of_another_version, "it is of layout 99"),
        (with_a_torn_page, "the vector cache .* is corrupt"),
        (with_its_second_half_lost, "corrupt"),
        (lambda path: path.mkdir(), "directory"),
    ],
)
def test_what_is_no_sound_cache_is_refused_and_left_as_it_was(path, made, why):
    made(path)
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(CacheUnreadable, match=why) as caught:
        CachedEncoder(Nonsense(), path)
    assert str(path) in str(caught.value)
    assert os.listdir(path.parent) == [path.name]
    assert path.is_dir() or path.read_bytes() == before


def test_a_vector_cache_is_no_answer_cache(path):
    CachedEncoder(Nonsense(), path).close()
    with pytest.raises(CacheUnreadable, match="no answer cache"):
        CachedLLM(ScriptedLLM(str), path)


@pytest.mark.parametrize(
    "harm",
    ["substr(answer, 1, 7)", "substr(answer, 1, 8)", "''", "x''", "'text'", "7"],
)
def test_a_vector_that_was_damaged_in_place_is_an_error_and_not_encoded_again(path, harm):
    with CachedEncoder(Nonsense(), path) as cached:
        cached.encode(["a"])
        hurt = cached.path
    with sqlite3.connect(hurt) as connection:
        connection.execute(f"UPDATE answers SET answer = {harm}")
    connection.close()
    with CachedEncoder(Nonsense(), path) as cached:
        cached.encode(["b"])
    before = path.read_bytes()
    encoder = Nonsense()
    with (
        CachedEncoder(encoder, path) as again,
        pytest.raises(CacheUnreadable, match=r"corrupt.*left as it"),
    ):
        again.encode(["a", "b"])
    assert encoder.texts == []
    assert path.read_bytes() == before
