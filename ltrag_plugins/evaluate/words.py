"""A method and its settings in one word, as a command line has them: ``single:k=5``."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ltrag_plugins.errors import InvalidInput, unknown_name
from ltrag_plugins.evaluate.answering import Cell
from ltrag_plugins.evaluate.naming import RESERVED
from ltrag_plugins.methods.method import Method
from ltrag_plugins.methods.table import METHODS, method_named

Plain = bool | int | float | str | None
LONGEST = 60
"""Characters of a label; names become file names."""


def cell_of(word: str, methods: Mapping[str, Method] = METHODS) -> Cell:
    """The cell that a word asks for, which becomes its name.

    ``METHOD:NAME=VALUE:...``, where a name leads into nested settings by dots, as in
    ``sgic:k=8:loop.rounds=3``. Values are JSON, or text as it stands.

    Raises:
        InvalidInput: an unknown method or setting (names the nearest), a setting that no word can
            give, or a value out of its range.
    """
    name, *given = word.split(":")
    if "=" in name:
        raise InvalidInput(
            f"{name!r} is a setting, not a method; a method's settings are joined by colons, as in "
            "single:k=5:max_tokens=8"
        )
    row = method_named(name, methods)
    if not given:
        return Cell(row)
    wanted: dict[str, Any] = {}
    for one in given:
        path, equals, value = one.partition("=")
        if not (path and equals):
            raise InvalidInput(f"{word!r}: settings are NAME=VALUE, got {one!r}")
        *above, last = path.split(".")
        place = wanted
        for step in above:
            place = place.setdefault(step, {})
        place[last] = value
    try:
        settings = _with(row.settings(), wanted)
    except InvalidInput as error:
        raise InvalidInput(f"{word!r}: {error}") from error
    return Cell(row, settings, label=RESERVED.sub("_", ":".join(given))[:LONGEST])


def words_of(settings: Any, above: str = "") -> dict[str, Plain]:
    """Every setting that a word can give, with its value."""
    found: dict[str, Plain] = {}
    for field in fields(settings):
        value, name = getattr(settings, field.name), above + field.name
        if is_dataclass(value):
            found |= words_of(value, f"{name}.")
        elif _kinds(type(settings), field.name):
            found[name] = value
    return found


def _with(settings: Any, wanted: Mapping[str, Any]) -> Any:
    """All at once, since one value may be in range only with another."""
    return replace(settings, **{name: _part(settings, name, wanted[name]) for name in wanted})


def _part(settings: Any, name: str, wanted: str | Mapping[str, Any]) -> Any:
    known = [field.name for field in fields(settings)]
    if name not in known:
        raise unknown_name("setting", name, known)
    inner = getattr(settings, name)
    if is_dataclass(inner):
        if isinstance(wanted, str):
            raise InvalidInput(f"{name} has settings of its own: {', '.join(words_of(inner))}")
        return _with(inner, wanted)
    if not isinstance(wanted, str):
        raise InvalidInput(f"{name} has no settings of its own")
    return _value(type(settings), name, wanted)


def _value(kind: type, name: str, text: str) -> Plain:
    allowed = _kinds(kind, name)
    if not allowed:
        raise InvalidInput(f"{name} is no number or text; it can be set in Python only")
    for value in (*_read(text), text):
        if any(_fits(value, one) for one in allowed):
            return float(value) if type(value) is int and int not in allowed else value
    wanted = " or ".join(_TOLD.get(one, str(one)) for one in allowed)
    raise InvalidInput(f"{name} must be {wanted}, got {text!r}")


def _read(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError:
        return []


def _fits(value: object, allowed: Any) -> bool:
    if isinstance(allowed, str):
        return value == allowed
    return type(value) is allowed or (allowed is float and type(value) is int)


_TOLD: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    NoneType: "null",
}


def _kinds(kind: type, name: str) -> list[Any]:
    """The plain types and literal texts that a field takes; [] where it takes none."""
    found = _flat(get_type_hints(kind)[name])
    return [] if found == [NoneType] else found


def _flat(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return [one for one in get_args(hint) if isinstance(one, str)]
    if get_origin(hint) in (Union, UnionType):
        return [one for part in get_args(hint) for one in _flat(part)]
    return [hint] if hint in _TOLD else []
