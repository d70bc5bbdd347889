"""Settings that declare themselves: type, range, choices and help stand once, with the field.

A settings class is a frozen dataclass that derives from `Settings`. Its annotations say what a
field takes, and its docstring lines say what it means::

    @dataclass(frozen=True, slots=True)
    class LoopSettings(Settings):
        rounds: Annotated[int, Range(0)] = 5
        "Most rounds after the first answer."

The constructor checks every value; a method word (``sgic:rounds=3``) and the command line read
text with `with_values`; help pages list what `described` gives. Rules between fields go into
`_check_together`.
"""

import ast
import inspect
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from itertools import pairwise
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ltrag_plugins.errors import InvalidInput, unknown_name

_Plain = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a field takes, for `Annotated`; bounds belong to it unless they are open."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    """An open lower bound."""
    below: float = math.inf
    """An open upper bound."""

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        least, most = self.least, self.most
        bounds = {"above": self.above, "at least": least, "below": self.below, "at most": most}
        known = [f"{word} {b:g}" for word, b in bounds.items() if math.isfinite(b)]
        return f"from {least:g} to {most:g}" if math.isfinite(least + most) else " and ".join(known)


class Holds:
    """The places that a template must have, for `Annotated[str, Holds("question")]`."""

    def __init__(self, *names: str) -> None:
        self.names = names


Whole = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Percent = Annotated[float, Range(0, 100)]
Positive = Annotated[float, Range(above=0)]

_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True, slots=True)
class _Declaration:
    """What a settings class says of one field."""

    name: str
    kinds: tuple[Any, ...]
    """Types and literal texts that a word can give; () for a field that Python alone can set."""
    bounds: Range | None
    places: tuple[str, ...]
    optional: bool
    open: bool
    """Whether values of other types (functions, objects) may be handed in too."""

    def wanted(self) -> str:
        choices = [kind for kind in self.kinds if isinstance(kind, str)]
        parts = [f"one of {', '.join(choices)}"] if len(choices) > 1 else choices
        parts += [_IN_WORDS[kind] for kind in self.kinds if kind in _IN_WORDS]
        if bounds := str(self.bounds or ""):
            parts[-1] += f", {bounds}"
        return " or ".join([*parts, *["None"] * self.optional])

    def fits(self, value: object) -> bool:
        """Whether the value is of a type, or one of the texts, that the field takes."""
        if value is None:
            return self.optional
        if isinstance(value, bool):  # which Python counts among the whole numbers
            return bool in self.kinds
        number = {int: Integral, float: Real}
        return any(
            value == kind if isinstance(kind, str) else isinstance(value, number.get(kind, kind))
            for kind in self.kinds
        )

    def check(self, value: object) -> None:
        if not self.kinds or (self.open and not isinstance(value, _Plain)):
            return
        wrong = not self.fits(value)
        if self.bounds and isinstance(value, Real) and not isinstance(value, bool):
            wrong = wrong or float(value) not in self.bounds
        if wrong:
            raise InvalidInput(f"{self.name} must be {self.wanted()}, got {value!r}")
        lacks = [f"'{{{name}}}'" for name in self.places if f"{{{name}}}" not in str(value)]
        if lacks:
            raise InvalidInput(f"{self.name} must hold {' and '.join(lacks)}, got {value!r}")


class Settings:
    """The base of settings classes: checks every value when it is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_together()

    def _check_together(self) -> None:
        """Refuse values that exclude each other; each alone is in its range already."""


def check_fields(values: Any) -> None:
    """Refuse a dataclass with a value that the annotation of its field does not take; numbers of
    other libraries become Python's."""
    for name, declaration in _declarations(type(values)).items():
        value = getattr(values, name)
        declaration.check(value)
        if isinstance(value, Real) and not isinstance(value, bool | int | float):
            plain = int(value) if isinstance(value, Integral) else float(value)
            object.__setattr__(values, name, plain)


@lru_cache
def _declarations(kind: type) -> Mapping[str, _Declaration]:
    """What a settings class says of each of its fields, in order."""
    hints, found = get_type_hints(kind, include_extras=True), {}
    for name in (field.name for field in fields(kind)):
        parts = [*_parts(hints[name])]
        kinds = tuple(part for part in parts if isinstance(part, str) or part in _IN_WORDS)
        bounds = next((part for part in parts if isinstance(part, Range)), None)
        holds = next((part for part in parts if isinstance(part, Holds)), Holds())
        known = {*kinds, bounds, holds, NoneType}
        found[name] = _Declaration(
            name, kinds, bounds, holds.names, optional=NoneType in parts, open=not {*parts} <= known
        )
    return found


def _parts(hint: Any) -> Iterator[Any]:
    """The types and literal texts of a hint, and what `Annotated` adds."""
    origin = get_origin(hint)
    if origin in (Annotated, Union, UnionType):
        for part in get_args(hint):
            yield from _parts(part)
    elif origin is Literal:
        yield from (one for one in get_args(hint) if isinstance(one, str))
    else:
        yield hint


def _help_of(kind: type) -> Mapping[str, str]:
    """The docstring below each field, as one line; a class's own before those of its bases."""
    found: dict[str, str] = {}
    for one in [each for each in reversed(kind.__mro__) if "__dataclass_fields__" in vars(each)]:
        try:
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        except OSError:  # no source at hand, as in an interactive session
            continue
        for field, below in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(ast.literal_eval(below.value).split())
    return found


def described(settings: Any, above: str = "") -> Iterator[dict[str, Any]]:
    """Every setting that a word can give, nested ones by dots: rows with `setting`, `default` (the
    value here), `takes` and `meaning`."""
    meanings = _help_of(type(settings))
    for name, declaration in _declarations(type(settings)).items():
        value, path = getattr(settings, name), above + name
        if is_dataclass(value):
            yield from described(value, f"{path}.")
        elif declaration.kinds:
            row = {"setting": path, "default": value, "takes": declaration.wanted()}
            yield row | {"meaning": meanings.get(name, "")}


def with_values(settings: Any, words: Iterable[str]) -> Any:
    """The settings with some values read from text, ``["k=8", "loop.rounds=3"]``, all at once; they
    are JSON, or text as it stands."""
    given: dict[str, dict[str, str]] = {}
    for word in words:
        path, _, text = word.partition("=")
        name, _, below = path.partition(".")
        if not (name and text):
            raise InvalidInput(f"settings are NAME=VALUE, got {word!r}")
        given.setdefault(name, {})[below] = text
    known, changes = _declarations(type(settings)), {}
    for name, values in given.items():
        if name not in known:
            raise unknown_name("setting", name, known)
        inner = getattr(settings, name)
        if is_dataclass(inner) and "" in values:
            names = ", ".join(row["setting"] for row in described(inner))
            raise InvalidInput(f"{name} has settings of its own: {names}")
        if is_dataclass(inner):
            changes[name] = with_values(inner, [f"{n}={text}" for n, text in values.items()])
        elif {*values} == {""}:
            changes[name] = _read(known[name], values[""])
        else:
            raise InvalidInput(f"{name} has no settings of its own")
    return replace(settings, **changes)


def _read(declaration: _Declaration, text: str) -> _Plain:
    if not declaration.kinds:
        raise InvalidInput(f"{declaration.name} is no number or text; it can be set in Python only")
    try:
        value = json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        value = float(text) if re.fullmatch(r"[+-]?\.\d+", text) else text
    if not declaration.fits(value):
        return text  # refused with the others, if it is no text of the field's either
    whole = type(value) is int and int not in declaration.kinds
    return float(str(value)) if whole else value
