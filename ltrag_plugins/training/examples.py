"""Training data on disk: `train.jsonl`, chat JSON lines, and `manifest.json`, what they are.

::

    {"messages": [{"role": "user", "content": "Use the documents to ..."},
                  {"role": "assistant", "content": "East Lothian"}],
     "id": "q1", "kind": "mended", "round": 2}

The manifest holds the hash of the lines, so that a half-written or changed folder is noticed.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from ltrag_plugins.artifacts import replace_file, writing
from ltrag_plugins.errors import UnreadableArtifact

_FORMAT = 1
LINES = "train.jsonl"
MANIFEST = "manifest.json"
Kind = Literal["mended", "preserved", "direct", "wrong"]
"""What an example teaches: to give a better answer than those shown; to keep the one shown; to
answer from the plain documents; the answer that the model never gave."""


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt and what the model should have said."""

    prompt: str
    target: str
    id: str = ""
    """Of the question; empty where the file has none."""
    kind: Kind | None = None
    """None where the file has none."""
    round: int | None = None
    """Whose prompt it is, from 0; None where the file has none."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Examples to tune a model on."""

    examples: tuple[Example, ...]
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Where they come from; empty for a bare file."""


def load(path: str | PathLike[str]) -> Dataset:
    """The examples of a folder that `build` wrote, or of a bare file of chat JSON lines.

    A line is {"messages": [a user's, then an assistant's]}; `id`, `kind` and `round` may be there,
    other fields are left alone. A bare file needs no manifest and is not held against one.

    Raises:
        UnreadableArtifact: missing, empty, or changed since it was built; a line is not what it
            should be (the message says which one, and why).
    """
    path = Path(path)
    if not path.is_dir():
        return Dataset(tuple(_examples(path, _content(path))))
    content = _content(path / LINES)
    examples = tuple(_examples(path / LINES, content))  # a broken line says more than its hash
    manifest = read_manifest(path)
    if hashlib.sha256(content).hexdigest() != manifest.get("sha256"):
        raise UnreadableArtifact(
            f"{path / LINES} is not the file that {path / MANIFEST} belongs to. Build it again, or "
            f"name {LINES} itself to read it without the manifest."
        )
    return Dataset(examples, manifest)


def write_examples(
    folder: Path, examples: Sequence[Example], manifest: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Write the lines, then the manifest, each in one step; the manifest as written is returned."""
    content = "".join(f"{_line(example)}\n" for example in examples).encode()
    told = {"format": _FORMAT, **manifest, "sha256": hashlib.sha256(content).hexdigest()}
    text = json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False)
    with writing(folder):
        replace_file(folder / LINES, content)
        replace_file(folder / MANIFEST, f"{text}\n".encode())
    return told


def read_manifest(folder: Path) -> Mapping[str, Any]:
    """What a folder says of its examples."""
    path = folder / MANIFEST
    try:
        told = json.loads(_content(path))
    except (ValueError, RecursionError) as error:
        raise UnreadableArtifact(f"{path} is not JSON ({error}). Build the data again.") from error
    if not isinstance(told, dict) or told.get("format") != _FORMAT:
        found = told.get("format") if isinstance(told, dict) else type(told).__name__
        raise UnreadableArtifact(
            f"{path} is of format {found!r}, and this version reads {_FORMAT}. Build it again."
        )
    return told


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableArtifact(
            f"cannot read {path} ({error.strerror or error}); name a folder that build wrote, or "
            "a .jsonl file"
        ) from error


def _line(example: Example) -> str:
    said = {"user": example.prompt, "assistant": example.target}
    told: dict[str, Any] = {
        "messages": [{"role": role, "content": content} for role, content in said.items()],
        "id": example.id,
        "kind": example.kind,
        "round": example.round,
    }
    return json.dumps(told, ensure_ascii=False)


def _examples(path: Path, content: bytes) -> Iterator[Example]:
    number = 0
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            try:
                yield _example(json.loads(line.decode("utf-8-sig")))
            except (ValueError, RecursionError) as error:
                raise UnreadableArtifact(f"{path}, line {number}: {_why(error)}") from error
    if not content.strip():
        raise UnreadableArtifact(f"{path} has no examples; expected one JSON object a line")


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON, {error.msg} (column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 (byte {error.start + 1}); save the file as UTF-8"
    return str(error)


def _example(told: object) -> Example:
    if not isinstance(told, dict):
        raise ValueError(f"expected an object with 'messages', got {type(told).__name__}")
    asked, answered = _messages(told.get("messages"))
    name, kind, number = told.get("id"), told.get("kind"), told.get("round")
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(f"'kind' is {kind!r}; there are {', '.join(get_args(Kind))}")
    if number is not None and (type(number) is not int or number < 0):
        raise ValueError(f"'round' is {number!r}; expected a whole number from 0 on")
    return Example(asked, answered, "" if name is None else str(name), kind, number)


def _messages(told: object) -> tuple[str, str]:
    if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
        raise ValueError("'messages' is missing or no list of {'role', 'content'} objects")
    roles = [one.get("role") for one in told]
    if roles != ["user", "assistant"]:
        raise ValueError(
            f"'messages' have the roles {roles}; expected ['user', 'assistant'], so put a system "
            "text into the user's"
        )
    for one in told:
        content = one.get("content")
        if not isinstance(content, str) or not content.strip():
            raise ValueError(f"the {one['role']} message has no text")
    return told[0]["content"], told[1]["content"]
