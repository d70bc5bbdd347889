"""Fitted things on disk: what is written comes back, and nothing else is ever built."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ltrag_plugins
from ltrag_plugins import artifacts, training
from ltrag_plugins.artifacts import identity_of
from ltrag_plugins.dur import DURRanker
from ltrag_plugins.errors import UnreadableArtifact, UnwritableArtifact
from ltrag_plugins.evaluate import LongTailRAG, LongTailSettings
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.sgic import Calibration, ScoreScale, SGICSettings, read_run, write_run
from tests.dur_parts import Nonsense
from tests.gece_parts import honest_llm, questions


def longer_than(least, how=len, *, most=9):
    def rule(text, most=most):
        return least < how(text) < most

    return rule


class Judge:
    def __init__(self):
        self.lock = threading.Lock()

    def score(self, text):
        return len(text)


@dataclass(frozen=True)
class Marker:
    least: float
    name: str = "a"
    limits: tuple[int, ...] = ()
    rest: object = None

    def score(self, text):
        return len(text) > self.least

    @classmethod
    def named(cls, text):
        return text == cls.__name__


FUNCTIONS = """
import functools, operator
from ltrag_plugins.artifacts import identity_of
class Client: pass
print([identity_of(one) for one in (
    "em", len, str.lower, operator.itemgetter(1), functools.partial(pow, Client(), exp=2),
    lambda text: text in {"yes", "no", "both", "none", "all"} and [c for c in text],
    lambda text, inner=lambda: 0: any(map(lambda c: c > "a", text)),
)])
"""


def test_a_function_is_the_same_in_every_process_and_another_where_it_decides_otherwise():
    said = [
        subprocess.run([sys.executable, "-c", FUNCTIONS], env=os.environ | {"PYTHONHASHSEED": seed},
                       capture_output=True, text=True, check=True).stdout
        for seed in "12"
    ]  # fmt: skip
    assert said[0] == said[1]
    assert "0x" not in said[0]
    rules = [longer_than(1), longer_than(2), longer_than(1, most=8), longer_than(np.float32(1.5))]
    rules += [(lambda text, least=least: len(text) > least) for least in (1, 2)]
    rules += [lambda text: text in {"yes"}, lambda text: text in {"no"}, lambda text: text.upper()]
    rules += [partial(pow, 2), partial(pow, 3), partial(pow, exp=2), pow, Judge().score, Judge()]
    assert len({identity_of(rule) for rule in rules}) == len(rules)
    # what it calls and looks things up in may be mended, as it itself may
    assert identity_of(longer_than(1, how=lambda text: 3)) == identity_of(longer_than(1))
    assert identity_of(Judge().score) == identity_of(Judge().score)
    # of a dataclass what it was made with counts, and that of its methods
    judges = [Marker(0.3), Marker(0.7), Marker(0.3, "b"), Marker(0.3, limits=(1, 2)), Marker(True)]
    assert len({identity_of(one) for judge in judges for one in (judge, judge.score)}) == 10
    assert identity_of(Marker(0.3)) == identity_of(Marker(np.float64(0.3), rest=Judge()))
    assert identity_of(Marker(0.3).score) == identity_of(Marker(0.3).score)
    assert identity_of(Marker) == identity_of(Judge()).replace("Judge", "Marker")
    assert identity_of(Marker.named) not in map(identity_of, (judges[0].score, Marker))
    # what it counts itself is no setting, and what it will look at later is not there yet
    counting = counted(5)
    before = identity_of(counting)
    assert counting("text") == 1
    assert identity_of(counting) == before != identity_of(counted(6))


def counted(least):
    calls = 0

    def rule(text):
        nonlocal calls
        calls += len(text) < least
        return calls if calls else later

    before = identity_of(rule)
    later = least
    assert identity_of(rule) != before
    return rule


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


PARTS = {"stack": stack(), "text": "x", "nothing": None, "pair": (1, 2.5)}


def write(folder, at=0.0, **changed):
    how = {"arrays": {"extra": np.ones(2)}, "format": 3, "clock": lambda: at}
    artifacts.write(folder, "thing", PARTS | changed, **how)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "new" / "folder")


def read(folder, kinds=(Layer, Stack), format=3, parts=tuple(PARTS), optional=()):
    with artifacts.reading("no thing", "Make one."):
        known = {"kinds": kinds, "parts": parts, "optional": optional}
        return artifacts.read(folder, "thing", format=format, **known)


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


def test_writing_again_replaces_the_older_one_and_equal_things_give_equal_bytes(folder, tmp_path):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    artifacts.write(folder, "thing", {"text": "y"}, format=3)
    assert read(folder, parts=["text"])[0] == {"text": "y"}
    write(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_folder_says_which_version_wrote_it_and_when(folder, tmp_path):
    later = write(tmp_path / "later", at=1_700_000_000.4)
    saved = json.loads((later / "thing.json").read_text())["saved"]
    assert saved == {"version": ltrag_plugins.__version__, "date": "2023-11-14T22:13:20Z"}
    assert artifacts.content_hash(later, "thing") == artifacts.content_hash(folder, "thing")
    other = write(tmp_path / "other", text="y")
    assert artifacts.content_hash(other, "thing") != artifacts.content_hash(folder, "thing")


@dataclass(frozen=True)
class NewerStack(Stack):
    """As a later version may have it."""

    speed: int = 9


NewerStack.__name__ = "Stack"


@dataclass(frozen=True)
class StricterStack(Stack):
    """As a later version may have it, which cannot do without."""

    speed: int = field(kw_only=True)


StricterStack.__name__ = "Stack"


def by_version(folder, version):
    """The folder, as another version would have written it."""
    path = folder / "thing.json"
    body = json.loads(path.read_text())
    del body["saved"]
    if version:
        body["saved"] = {"version": version, "date": "2031-01-01T00:00:00Z"}
    path.write_text(json.dumps(body))
    return folder


def test_a_field_that_an_older_version_did_not_write_takes_its_default(folder):
    found = read(by_version(folder, ""), kinds=(Layer, NewerStack))[0]["stack"]
    assert (found.speed, found.least) == (9, float("-inf"))


@pytest.mark.parametrize(
    ("written", "kinds", "names"),
    [
        (NewerStack(*vars(stack()).values()), (Layer, Stack), ["Stack", "'speed'"]),
        (stack(), (Layer, StricterStack), ["Stack", "'speed'"]),
    ],
    ids=["too many", "too few"],
)
def test_a_field_that_cannot_be_understood_is_named_with_both_versions(
    tmp_path, written, kinds, names
):
    folder = by_version(write(tmp_path, stack=written), "7.1.0")
    with pytest.raises(UnreadableArtifact) as told:
        read(folder, kinds=kinds)
    assert "\n" not in str(told.value)
    for name in (*names, "7.1.0", ltrag_plugins.__version__):
        assert name in str(told.value)


def test_a_part_too_many_or_too_few_is_refused_and_an_optional_one_may_be_absent(folder):
    parts = [*PARTS]
    assert read(folder, parts=parts[1:], optional=parts[:1])[0].keys() == PARTS.keys()
    assert read(folder, optional=["data"])[0].keys() == PARTS.keys()
    for name, wrong in {"stack": parts[1:], "data": [*parts, "data"]}.items():
        with pytest.raises(UnreadableArtifact, match=f"'{name}'"):
            read(folder, parts=wrong)


def test_kinds_that_the_reader_does_not_name_are_not_built(folder):
    with pytest.raises(UnreadableArtifact, match="Layer"):
        read(folder, kinds=(Stack,))


def rewritten(change):
    def harm(folder):
        path = folder / "thing.json"
        body = json.loads(path.read_text())
        change(body)
        path.write_text(json.dumps(body))

    return harm


def saying(content):
    return lambda folder: (folder / "thing.json").write_bytes(content)


def flip_a_bit(folder):
    content = bytearray((folder / "thing.safetensors").read_bytes())
    content[-3] ^= 1
    (folder / "thing.safetensors").write_bytes(bytes(content))


def with_its_hash(content):
    """Somebody who changes the numbers and the hash too."""

    def harm(folder):
        (folder / "thing.safetensors").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        rewritten(lambda body: body.update(sha256=digest))(folder)

    return harm


def a_folder(folder):
    (folder / "thing.json").unlink()
    (folder / "thing.json").mkdir()


def weight(body):
    return body["stack"]["layers"][0]["weight"]


PICKLE = pickle.dumps(stack())
HARMS = {
    "numbers with a bit flipped": flip_a_bit,
    "a pickle in the numbers' place": lambda f: (f / "thing.safetensors").write_bytes(PICKLE),
    "a pickle and its hash": with_its_hash(PICKLE),
    "no numbers, and their hash": with_its_hash(b""),
    "numbers missing": lambda folder: (folder / "thing.safetensors").unlink(),
    "JSON missing": lambda folder: (folder / "thing.json").unlink(),
    "JSON is a folder": a_folder,
    "not text": saying(b"\xff\x00"),
    "another hash": rewritten(lambda body: body.update(sha256="0" * 64)),
    "another text": rewritten(lambda body: body.update(text="y")),
    "no hash": rewritten(lambda body: body.pop("sha256")),
    "a number": saying(b"3"),
    "null": saying(b"null"),
    "a list": saying(b"[1]"),
    "a string": saying(b'"format"'),
    "an array that is not there": rewritten(lambda body: weight(body).update(at="elsewhere")),
    "an array at no name": rewritten(lambda body: weight(body).update(at=["x"])),
    "a field too many": rewritten(lambda body: body["stack"].update(more=1)),
    "a field too few": rewritten(lambda body: body["stack"].pop("least")),
    "no kind": rewritten(lambda body: body["stack"].pop("is")),
    "nested without end": saying(b"[" * 100_000),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_folder_that_was_damaged_is_one_named_error(folder, harm):
    harm(folder)
    with pytest.raises(UnreadableArtifact):
        read(folder)


def test_what_was_changed_is_told_from_another_layout_or_format(folder):
    rewritten(lambda body: None)(folder)
    assert read(folder)[0]["text"] == "x"
    with pytest.raises(UnreadableArtifact, match="not format 4, which this version reads"):
        read(folder, format=4)
    HARMS["another text"](folder)
    with pytest.raises(UnreadableArtifact, match="was changed"):
        read(folder)


def test_numbers_that_json_cannot_say_are_kept_outside_of_dataclasses_too(tmp_path):
    [infinite, nan] = read(write(tmp_path, pair=(float("inf"), float("nan"))))[0]["pair"]
    assert infinite == float("inf")
    assert nan != nan


@pytest.mark.parametrize("place", ["taken", "taken/below", "."])
def test_a_folder_that_cannot_be_made_or_written_to_is_a_named_error(tmp_path, place):
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "thing.json").mkdir()  # where a file is to be
    with pytest.raises(UnwritableArtifact, match=r"cannot write to .*another folder") as told:
        write(tmp_path / place)
    assert isinstance(told.value.__cause__, OSError)
    assert str(tmp_path / place) in str(told.value)
    assert (tmp_path / "taken").read_text() == "a file"


def test_who_writes_beside_another_has_files_of_its_own(tmp_path, monkeypatch):
    path, both, replace = tmp_path / "file", threading.Barrier(2, timeout=20), Path.replace

    def replaced(new, target):  # when both have written
        both.wait()
        return replace(new, target)

    monkeypatch.setattr(Path, "replace", replaced)
    contents = [bytes([i]) * 100_000 for i in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(artifacts.replace_file, path), contents))
    assert path.read_bytes() in contents
    assert [*tmp_path.iterdir()] == [path]


def test_what_is_saved_while_it_is_loaded_is_read_again(folder, monkeypatch):
    read_bytes = Path.read_bytes

    def read_beside_a_save(path):
        content = read_bytes(path)
        if path.suffix == ".json":
            monkeypatch.setattr(Path, "read_bytes", read_bytes)
            write(folder, stack=Stack((), {}, 0.0))
        return content

    monkeypatch.setattr(Path, "read_bytes", read_beside_a_save)
    assert read(folder)[0]["stack"] == Stack((), {}, 0.0)


@pytest.mark.parametrize("at", ["write_bytes", "replace"])
def test_who_is_interrupted_leaves_the_older_files_and_nothing_beside_them(folder, at, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = getattr(Path, at)

    def interrupted(path, *what):
        if ".json" in path.name or at == "replace":
            raise KeyboardInterrupt
        return done(path, *what)

    monkeypatch.setattr(Path, at, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(folder, stack=Stack((), {}, 0.0))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


EXAMPLE = {"messages": [{"role": r, "content": r} for r in ("user", "assistant")]}
LLM, WORLD = honest_llm(), World(llm=honest_llm())
ROUNDS = Calibration(SGICSettings(), ScoreScale("product"))
PLACES = {
    "gate": (
        lambda place: GECEGate.fit(questions(40), llm=LLM, target_rate=0.4).save(place),
        lambda place: GECEGate.load(place, llm=LLM),
    ),
    "head": (
        lambda place: DURRanker.untrained(Nonsense()).save(place),
        lambda place: DURRanker.load(place, encoder=Nonsense()),
    ),
    "calibration": (
        lambda place: ROUNDS.save(place, llm=LLM),
        lambda place: Calibration.load(place, llm=LLM),
    ),
    "pipeline": (
        lambda place: LongTailRAG(WORLD, LongTailSettings(), "never").save(place),
        lambda place: LongTailRAG.load(place, llm=LLM),
    ),
    "data": (lambda place: training.keep([EXAMPLE], out=place), training.load),
    "rounds": (lambda place: write_run([], place), read_run),
}


@pytest.mark.parametrize(("save", "load"), PLACES.values(), ids=PLACES)
def test_a_tilde_is_the_users_home(save, load, tmp_path, monkeypatch):
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    save("~/kept")
    load("~/kept")
    load(tmp_path / "home" / "kept")
    assert os.listdir(tmp_path / "home") == ["kept"]
    assert os.listdir(tmp_path / "here") == []
