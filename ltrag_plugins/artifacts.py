"""Fitted things on disk: a JSON file to read and a safetensors file of numbers; no pickle.

The JSON file holds the hash of itself and the other, so that a half-written or changed folder is
noticed. Values are dataclasses, tuples, mappings, strings, numbers and arrays; only the kinds
that the reader names are ever built.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from dis import get_instructions
from functools import partial
from numbers import Real
from os import PathLike
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact, UnwritableArtifact, path_of
from ltrag_plugins.version import __version__

DAMAGE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError
)  # fmt: skip
"""What reading a damaged folder may raise."""


def write(
    folder: str | PathLike[str],
    name: str,
    parts: Mapping[str, Any],
    *,
    arrays: Mapping[str, np.ndarray] | None = None,
    format: int,
    clock: Callable[[], float] = time.time,
) -> None:
    """Write `name`.safetensors, then `name`.json; older ones are replaced file by file. The JSON
    file holds the `parts`, and which version wrote them when; arrays inside, and `arrays`, go to
    the other file."""
    folder = path_of(folder)
    numbers = {key: np.ascontiguousarray(value) for key, value in (arrays or {}).items()}
    body = {"format": format, **{key: _plain(v, key, numbers) for key, v in parts.items()}}
    content = save_arrays(numbers)
    body["sha256"] = _seal(body, content)
    date = datetime.fromtimestamp(clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body["saved"] = {"version": __version__, "date": date}
    text = json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False)
    with writing(folder):
        _replace({folder / f"{name}.safetensors": content, folder / f"{name}.json": text.encode()})


def json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} where there is none that can be read."""
    try:
        return dict(json.loads(path.read_bytes()))
    except DAMAGE:
        return {}


def digest(value: Any) -> str:
    """12 hex digits of what `write` would write of the value."""
    arrays: dict[str, np.ndarray] = {}
    found = hashlib.sha256(json.dumps(_plain(value, "value", arrays), sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        found.update(name.encode() + array.tobytes())
    return found.hexdigest()[:12]


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make the folder, and name what keeps it from being written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        why = f"{type(error).__name__}: {error}"
        remedy = "Name another folder, or mend this one."
        raise UnwritableArtifact(f"cannot write to {folder} ({why}). {remedy}") from error


@contextmanager
def tidying(folder: Path) -> Iterator[None]:
    """Take folders away afterwards that were made on the way to it, if there is nothing in them."""
    # not Path.exists, which raises where a name is too long or a folder is closed
    missing = [part for part in (folder, *folder.parents) if not os.path.exists(part)]
    try:
        yield
    finally:
        for part in missing:
            with suppress(OSError):  # not made, or already of use to somebody
                part.rmdir()


@contextmanager
def reading(trouble: str, remedy: str) -> Iterator[None]:
    """Raise `UnreadableArtifact` for what damage raises, with the cause and the next step."""
    try:
        yield
    except DAMAGE as error:
        why = f"{type(error).__name__}: {error}"
        raise UnreadableArtifact(f"{trouble} ({why}). {remedy}") from error


def read(
    folder: Path,
    name: str,
    *,
    kinds: Iterable[type],
    format: int,
    parts: Iterable[str],
    optional: Iterable[str] = (),
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The parts, and all arrays by name; to be called within `reading`.

    What an older version did not write takes the default of its field, or is absent if it is an
    `optional` part; a field or part that is not known here is refused, as it may change what is
    decided.
    """
    known = {kind.__name__: kind for kind in kinds}
    for _ in range(3):  # a save beside this may have replaced one of the two meanwhile
        body = json.loads((folder / f"{name}.json").read_bytes())
        content = (folder / f"{name}.safetensors").read_bytes()
        saved = dict(body.pop("saved", {})).get("version", "unknown")
        versions = f"it was saved by version {saved}, this is {__version__}"
        if body["format"] != format:
            raise ValueError(f"not format {format}, which this version reads: {versions}")
        if body.pop("sha256") == _seal(body, content):
            break
        time.sleep(0.02)
    else:
        raise ValueError(f"{name}.json was changed, or {name}.safetensors is not the file with it")
    arrays = load_arrays(content)
    del body["format"]
    _check_names(f"{name}.json", body.keys(), [*parts], [*optional], versions)
    return {key: _built(value, arrays, known, versions) for key, value in body.items()}, arrays


def content_hash(folder: Path, name: str) -> str:
    """What `write` wrote, as a hash: equal whenever and by whichever version it was written."""
    return str(json_object(folder / f"{name}.json").get("sha256"))


def _check_names(
    where: str, found: Iterable[str], needed: list[str], optional: list[str], versions: str
) -> None:
    """Refuse a name too many or too few."""
    for name in found:
        if name not in (*needed, *optional):
            raise ValueError(
                f"{where} has the field {name!r}, which this version does not know: {versions}; "
                "a newer ltrag-plugins may read it"
            )
    for name in needed:
        if name not in found:
            raise ValueError(
                f"{where} lacks the field {name!r}, which this version needs: {versions}"
            )


def _seal(body: Mapping[str, Any], content: bytes) -> str:
    """The hash of both files; of the first, whatever its layout."""
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode() + content).hexdigest()


def _plain(value: Any, where: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; its arrays go into `arrays` under the name of their place."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        named = {n: _plain(getattr(value, n), f"{where}.{n}", arrays) for n in names}
        return {"is": type(value).__name__, **named}
    if isinstance(value, np.ndarray):
        arrays[where] = np.ascontiguousarray(value)
        return {"is": "array", "at": where}
    if isinstance(value, Mapping):
        return {"is": "mapping", "items": [[k, v] for k, v in value.items()]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"is": "number", "written": repr(float(value))}  # JSON has no infinity
    if isinstance(value, tuple | list):
        return [_plain(item, f"{where}.{i}", arrays) for i, item in enumerate(value)]
    return value


def _built(
    value: Any, arrays: Mapping[str, np.ndarray], kinds: Mapping[str, Any], versions: str
) -> Any:
    """The inverse of `_plain`; only `kinds` are ever built."""
    if isinstance(value, list):
        return tuple(_built(item, arrays, kinds, versions) for item in value)
    if not isinstance(value, dict):
        return value
    kind = value["is"]
    if kind == "array":
        return arrays[value["at"]]
    if kind == "number":
        return float(value["written"])
    if kind == "mapping":
        return dict(value["items"])
    if kind not in kinds:
        raise ValueError(f"this version reads no {kind!r} there: {versions}")
    made, needed, optional = kinds[kind], list[str](), list[str]()
    for field in fields(made):
        bare = field.default is MISSING and field.default_factory is MISSING
        (needed if bare else optional).append(field.name)
    given = {k: _built(v, arrays, kinds, versions) for k, v in value.items() if k != "is"}
    _check_names(kind, given, needed, optional, versions)
    return made(**given)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that is then there whole, or as it was before. Of a link, which stays, that is
    the file it leads to; a pipe or a device is written to."""
    if os.path.exists(path) and not os.path.isfile(path):
        path.write_bytes(content)
    else:
        _replace({path: content})


def write_json(path: Path, value: Any) -> None:
    """As `replace_file`, a value as JSON; the folder is made."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    with writing(path.parent):  # half of a surrogate pair becomes JSON's own escape
        replace_file(path, f"{text}\n".encode(errors="backslashreplace"))


def _replace(contents: Mapping[Path, bytes]) -> None:
    """As `replace_file`; several are replaced right after each other, when all are written."""
    mine = f".{os.urandom(4).hex()}.new"  # another may write there too
    contents = {Path(os.path.realpath(path)): content for path, content in contents.items()}
    new = {path: path.with_name(path.name + mine) for path in contents}
    try:
        for path, content in contents.items():
            new[path].write_bytes(content)
        for path, written in new.items():
            written.replace(path)
    except BaseException:
        for written in new.values():
            with suppress(OSError):
                written.unlink()
        raise


def identity_of(said: Any) -> str:
    """A word as it is; of a function what tells it from others, in every process: its name, so that
    it may be mended, the numbers and texts that it was made with, and a lambda's code; of an object
    its class, of a dataclass (and of its methods) the numbers and texts too."""
    if isinstance(said, str):
        return said
    if isinstance(said, partial):
        return f"{identity_of(said.func)} {_values([said.args, sorted(said.keywords.items())])}"
    kind = said if hasattr(said, "__qualname__") else type(said)
    name = f"{getattr(kind, '__module__', None)}.{kind.__qualname__}"
    own = getattr(said, "__self__", said)
    made = fields(own) if is_dataclass(own) and not isinstance(own, type) else ()
    values = [(one.name, getattr(own, one.name)) for one in made if one.init]
    given = [pair for pair in values if isinstance(pair[1], str | Real | tuple)]
    if code := getattr(said, "__code__", None):
        given += [*(said.__defaults__ or ()), *(said.__kwdefaults__ or {}).values()]
        counters = {one.argval for one in get_instructions(code) if one.opname == "STORE_DEREF"}
        for cell_name, cell in zip(code.co_freevars, said.__closure__ or (), strict=True):
            with suppress(ValueError):  # it holds nothing yet
                given += [] if cell_name in counters else [cell.cell_contents]
    fixed = [value for value in given if isinstance(value, str | Real | tuple)]
    parts = [_values(fixed)] * bool(fixed)
    parts += [_written(code)] if code and "<lambda>" in name else []
    return f"{name} {hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}" if parts else name


def _values(given: Any) -> str:
    """Numbers and texts as they are, anything else by its name or that of its type."""

    def named(value: Any) -> Any:
        if isinstance(value, Real):
            return float(value)
        return getattr(value, "__qualname__", type(value).__qualname__)

    return json.dumps(given, default=named, skipkeys=True)


def _written(code: CodeType) -> str:
    constants = [
        _written(one)
        if isinstance(one, CodeType)
        else sorted(map(repr, one))  # a set's order is another in another process
        if isinstance(one, frozenset)
        else one
        for one in code.co_consts
    ]
    return repr((code.co_code, code.co_names, constants))


def check_part(what: str, part: str, fitted: object, given: object) -> None:
    """Raise `ArtifactMismatch` where a model or encoder has another name than that of the fit."""
    if fitted != given:
        both = f"{what} was fitted with the {part} {fitted!r}, not {given!r}"
        raise ArtifactMismatch(
            f"{both}; pass that one, or fit anew for this one. If it is the same {part} at another "
            f"address, give this one that name: name={fitted!r} (behind a MODEL: +name:...)"
        )


def check_same(
    trouble: str, before: Mapping[str, Any], now: Mapping[str, Any], remedy: str
) -> None:
    """Raise `ArtifactMismatch` with what differs between two runs' JSON."""
    if found := _differences(before, now):
        raise ArtifactMismatch(f"{trouble}: {'; '.join(found[:5])}. {remedy}")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> list[str]:
    """In words: ``settings.k was 3 and is now 5``."""
    found = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _differences(old, new, f"{above}{key}.")
        elif old != new and len(str(old)) == 64 and str(old).isalnum():  # a hash: nothing to read
            found.append(f"{above}{key} differs")
        elif old != new:
            found.append(f"{above}{key} was {old!r:.120} and is now {new!r:.120}")
    return found
