"""Vectors that are kept, beside the encoder's own; what holds of every cache is in test_caches."""

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ltrag_plugins.errors import CacheUnreadable, InvalidInput, ModelError
from ltrag_plugins.flow import World, arun, embed
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.cached import CachedEncoder
from tests.dur_parts import Nonsense

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vectors.sqlite"


class Giving(Nonsense):
    """Gives these rows, whatever it is asked for."""

    def __init__(self, rows) -> None:
        super().__init__()
        self.rows = rows

    def encode(self, texts):
        return self.rows


@given(arrays(np.float32, st.integers(1, 20), elements=finite))
def test_a_vector_comes_back_exactly_and_is_the_callers_to_change(tmp_path_factory, vector):
    path = tmp_path_factory.mktemp("vectors") / "vectors.sqlite"
    fresh = CachedEncoder(Giving(vector[None]), path)
    assert isinstance(fresh, Encoder)
    for cached in (fresh, CachedEncoder(Nonsense(), path), fresh):
        [found] = cached.encode(["a"])
        assert (found.dtype, found.tobytes()) == (np.float32, vector.tobytes())
        found[0] = 99


def test_vectors_of_another_precision_are_kept_as_they_were_first_given(path):
    rows = Nonsense().encode(["a", "b"]).astype(np.float64) / 3
    fresh, kept = (CachedEncoder(Giving(rows), path).encode(["a", "b"]) for _ in range(2))
    assert fresh.dtype == np.float32
    assert fresh.tobytes() == kept.tobytes() == rows.astype(np.float32).tobytes()


def test_no_texts_have_no_rows_of_the_encoders_length(path):
    assert CachedEncoder(Nonsense(dim=7), path).encode([]).shape == (0, 7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_no_numbers_are_refused_and_not_kept(path, bad):
    cached = CachedEncoder(Giving(np.array([[1, 2], [3, bad]])), path)
    with pytest.raises(ModelError, match=r"nonsense gave NaN or infinity.*'b'"):
        cached.encode(["a", "b"])
    encoder = Nonsense()
    CachedEncoder(encoder, path).encode(["a", "b"])
    assert encoder.texts == ["a", "b"]


@pytest.mark.parametrize("rows", [np.ones((1, 3)), np.ones(2)])
def test_vectors_that_are_not_a_row_for_each_text_are_refused(path, rows):
    with pytest.raises(ModelError, match=r"nonsense gave an array of shape .* for 2 texts"):
        CachedEncoder(Giving(rows), path).encode(["a", "b"])


@pytest.mark.parametrize("way", ["encode", "aencode"])
def test_what_was_encoded_before_a_failure_is_kept(path, way):
    class Failing(Nonsense):
        def encode(self, texts):
            if down and "600" in texts:
                raise ConnectionError("down")
            return super().encode(texts)

        async def aencode(self, texts):
            return self.encode(texts)

    def found():
        rows = getattr(cached, way)(texts)
        return asyncio.run(rows) if way == "aencode" else rows

    texts, down, encoder = [f"{i}" for i in range(1100)], True, Failing()
    cached = CachedEncoder(encoder, path)
    with pytest.raises(ConnectionError):
        found()
    assert encoder.texts == texts[:512]
    down = False
    assert np.array_equal(found(), Nonsense().encode(texts))
    assert encoder.texts == texts  # and nothing twice


async def test_an_encoder_with_an_async_call_is_awaited_and_another_claims_none(path):
    class Awaited(Nonsense):
        async def aencode(self, texts):
            awaited.append(threading.get_ident())
            return self.encode(texts)

    awaited, cached = [], CachedEncoder(Awaited(), path)
    for _ in range(2):
        found = await arun(embed("a", "b"), World(encoder=cached))
        assert np.array_equal(found, Nonsense().encode(["a", "b"]))
    assert awaited == [threading.get_ident()]
    assert (await cached.aencode([])).shape == (0, 12)
    with pytest.raises(InvalidInput, match="put it in a list"):
        await cached.aencode("ab")
    assert not hasattr(CachedEncoder(Nonsense(), path), "aencode")


def test_an_encoder_that_changed_under_its_name_is_noticed_before_its_vectors_are_kept(path):
    CachedEncoder(Nonsense(dim=5), path).encode(["a"])
    with pytest.raises(CacheUnreadable, match=r"different lengths \(\[5, 12\]\)"):
        CachedEncoder(Nonsense(), path).encode(["a", "b"])
    assert CachedEncoder(Nonsense(dim=5), path).encode(["a", "b"]).shape == (2, 5)
