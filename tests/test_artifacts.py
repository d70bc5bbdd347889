"""Fitted things on disk: what is written comes back, and nothing else is ever built."""

import json
import pickle
from dataclasses import dataclass

import numpy as np
import pytest

from ltrag_plugins import artifacts
from ltrag_plugins.errors import UnreadableArtifact, UnwritableArtifact


@dataclass(frozen=True, eq=False)
class Layer:
    weight: np.ndarray
    name: str = ""


@dataclass(frozen=True)
class Stack:
    layers: tuple[Layer, ...]
    limits: dict
    least: float


def stack() -> Stack:
    random = np.random.default_rng(0)
    layers = (Layer(random.normal(size=(2, 3)).T, "ä"), Layer(np.arange(3, dtype=np.int32)))
    return Stack(layers, {"a": 1, "b": None}, float("-inf"))


@pytest.fixture
def folder(tmp_path):
    artifacts.write(
        tmp_path / "new" / "folder",
        "thing",
        {"stack": stack(), "text": "x", "nothing": None, "pair": (1, 2.5)},
        arrays={"extra": np.ones(2)},
        format=3,
    )
    return tmp_path / "new" / "folder"


def read(folder, kinds=(Layer, Stack), format=3):
    with artifacts.reading("no thing", "Make one."):
        return artifacts.read(folder, "thing", kinds=kinds, format=format)


def test_what_is_written_comes_back_to_the_last_bit(folder):
    parts, arrays = read(folder)
    assert list(parts) == ["stack", "text", "nothing", "pair"]
    assert (parts["text"], parts["nothing"], parts["pair"]) == ("x", None, (1, 2.5))
    told, wanted = parts["stack"], stack()
    assert isinstance(told, Stack)
    assert (told.limits, told.least) == (wanted.limits, wanted.least)
    for mine, theirs in zip(told.layers, wanted.layers, strict=True):
        assert mine.name == theirs.name
        assert mine.weight.dtype == theirs.weight.dtype
        assert mine.weight.tobytes() == np.ascontiguousarray(theirs.weight).tobytes()
        assert mine.weight.shape == theirs.weight.shape
    assert arrays["extra"].tolist() == [1, 1]


def test_the_folder_holds_strict_json_and_no_pickle(folder):
    assert sorted(p.name for p in folder.iterdir()) == ["thing.json", "thing.safetensors"]

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    body = json.loads((folder / "thing.json").read_text("utf-8"), parse_constant=refuse)
    assert body["format"] == 3
    assert b"pickle" not in (folder / "thing.safetensors").read_bytes()


def test_writing_again_replaces_the_older_one(folder):
    artifacts.write(folder, "thing", {"text": "y"}, format=3)
    assert read(folder)[0] == {"text": "y"}
    assert len(list(folder.iterdir())) == 2


def test_equal_things_give_equal_bytes(folder, tmp_path):
    artifacts.write(
        tmp_path,
        "thing",
        {"stack": stack(), "text": "x", "nothing": None, "pair": (1, 2.5)},
        arrays={"extra": np.ones(2)},
        format=3,
    )
    for name in ("thing.json", "thing.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_kinds_that_the_reader_does_not_name_are_not_built(folder):
    with pytest.raises(UnreadableArtifact, match="Layer"):
        read(folder, kinds=(Stack,))


def rewritten(change):
    def harm(folder):
        path = folder / "thing.json"
        body = json.loads(path.read_text())
        path.write_text(json.dumps(change(body) or body))

    return harm


def flip_a_bit(folder):
    content = bytearray((folder / "thing.safetensors").read_bytes())
    content[-3] ^= 1
    (folder / "thing.safetensors").write_bytes(bytes(content))


def put_a_pickle(folder):
    (folder / "thing.safetensors").write_bytes(pickle.dumps(stack()))


def with_its_hash(content):
    """Somebody who changes the numbers and the hash too."""
    import hashlib

    def harm(folder):
        (folder / "thing.safetensors").write_bytes(content)
        rewritten(lambda b: b.update(sha256=hashlib.sha256(content).hexdigest()))(folder)

    return harm


HARMS = {
    "numbers with a bit flipped": flip_a_bit,
    "a pickle in the numbers' place": put_a_pickle,
    "a pickle and its hash": with_its_hash(pickle.dumps([1])),
    "no numbers, and their hash": with_its_hash(b""),
    "numbers missing": lambda folder: (folder / "thing.safetensors").unlink(),
    "JSON missing": lambda folder: (folder / "thing.json").unlink(),
    "JSON is a folder": lambda folder: (
        (folder / "thing.json").rename(folder / "x") or (folder / "thing.json").mkdir()
    ),
    "not text": lambda folder: (folder / "thing.json").write_bytes(b"\xff\x00"),
    "another hash": rewritten(lambda body: body.update(sha256="0" * 64)),
    "no hash": rewritten(lambda body: body.pop("sha256") and None),
    "a number": lambda folder: (folder / "thing.json").write_text("3"),
    "null": lambda folder: (folder / "thing.json").write_text("null"),
    "a list": lambda folder: (folder / "thing.json").write_text("[1]"),
    "a string": lambda folder: (folder / "thing.json").write_text('"format"'),
    "an array that is not there": rewritten(
        lambda body: body["stack"]["layers"][0]["weight"].update(at="elsewhere")
    ),
    "an array at no name": rewritten(
        lambda body: body["stack"]["layers"][0]["weight"].update(at=["x"])
    ),
    "a field too many": rewritten(lambda body: body["stack"].update(more=1)),
    "a field too few": rewritten(lambda body: body["stack"].pop("least") and None),
    "no kind": rewritten(lambda body: body["stack"].pop("is") and None),
    "nested without end": lambda folder: (folder / "thing.json").write_text("[" * 100_000),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_folder_that_was_damaged_is_one_named_error(folder, harm):
    harm(folder)
    with pytest.raises(UnreadableArtifact):
        read(folder)


def test_another_format_is_refused(folder):
    with pytest.raises(UnreadableArtifact, match="not format 4, which this version reads"):
        read(folder, format=4)


def test_numbers_that_json_cannot_say_are_refused_outside_of_dataclasses_too(tmp_path):
    artifacts.write(tmp_path, "thing", {"pair": (float("inf"), float("nan"))}, format=3)
    [infinite, nan] = read(tmp_path)[0]["pair"]
    assert infinite == float("inf")
    assert nan != nan


@pytest.mark.parametrize("place", ["taken", "taken/below"])
def test_a_folder_that_cannot_be_made_is_a_named_error(tmp_path, place):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(
        UnwritableArtifact, match=r"cannot write to .*taken.*another folder"
    ) as told:
        artifacts.write(tmp_path / place, "gate", {"stack": stack()}, format=1)
    assert isinstance(told.value.__cause__, OSError)
    assert (tmp_path / "taken").read_text() == "a file"


def test_a_folder_that_cannot_be_written_to_is_a_named_error(tmp_path):
    (tmp_path / "gate.json").mkdir()  # where a file is to be
    with pytest.raises(UnwritableArtifact, match="cannot write to"):
        artifacts.write(tmp_path, "gate", {"stack": stack()}, format=1)


def test_a_number_that_was_changed_by_hand_is_noticed(folder):
    path = folder / "thing.json"
    path.write_text(path.read_text().replace('"x"', '"y"'))
    with pytest.raises(UnreadableArtifact, match="was changed"):
        read(folder)


def test_another_layout_of_the_same_json_is_read(folder):
    path = folder / "thing.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert read(folder)[0]["text"] == "x"
