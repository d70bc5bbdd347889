"""Settings that declare themselves: type, range, choices and help stand once, with the field.

A settings class is a frozen dataclass that derives from `Settings`. Its annotations say what a
field takes, and its docstring lines say what it means::

    @dataclass(frozen=True, slots=True)
    class LoopSettings(Settings):
        rounds: Annotated[int, Range(0)] = 5
        "Most rounds after the first answer."
        earlier: Literal["none", "text"] = "text"
        "How a round shows the earlier answers."

The constructor checks every value; a method word (``sgic:rounds=3``) and the command line read
text with `with_values`; help pages list `declarations` with `help_of`. Rules between fields go into
`_check_together`.
"""

import ast
import inspect
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ltrag_plugins.errors import InvalidInput, unknown_name

_Plain = bool | int | float | str | None
_S = TypeVar("_S")


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a field takes, for `Annotated`; bounds belong to it unless they are open."""

    least: float = -math.inf
    most: float = math.inf
    above: float | None = None
    """An open lower bound, in the place of `least`."""
    below: float | None = None
    """An open upper bound, in the place of `most`."""

    def __contains__(self, value: float) -> bool:
        over = self.least <= value if self.above is None else self.above < value
        under = value <= self.most if self.below is None else value < self.below
        return over and under and not math.isinf(value)

    def __str__(self) -> str:
        low, high = (self.least, self.most)
        lower = f"above {self.above:g}" if self.above is not None else f"at least {low:g}"
        upper = f"below {self.below:g}" if self.below is not None else f"at most {high:g}"
        if self.above is None and self.below is None and math.inf not in (-low, high):
            return f"from {low:g} to {high:g}"
        bounded = [lower] * (self.above is not None or low > -math.inf)
        bounded += [upper] * (self.below is not None or high < math.inf)
        return " and ".join(bounded)


@dataclass(frozen=True, slots=True)
class Holds:
    """The places that a template must have, for `Annotated[str, Holds("question")]`."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def missing_from(self, template: str) -> list[str]:
        """The places, in braces, that the template lacks."""
        return [f"'{{{name}}}'" for name in self.names if f"{{{name}}}" not in template]


Whole = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Percent = Annotated[float, Range(0, 100)]
Positive = Annotated[float, Range(above=0)]


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a settings class says of one field."""

    name: str
    kinds: tuple[Any, ...]
    """Types and literal texts that a word can give; () for a field that Python alone can set."""
    bounds: Range | None = None
    holds: Holds | None = None
    optional: bool = False
    open: bool = False
    """Whether values of other types (functions, objects) may be handed in too."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The literal texts, () where any value of the type will do."""
        return tuple(kind for kind in self.kinds if isinstance(kind, str))

    def wanted(self) -> str:
        """What the field takes, in words."""
        if self.choices:
            wanted = f"one of {', '.join(self.choices)}"
            kinds = [_IN_WORDS[kind] for kind in self.kinds if kind in _IN_WORDS]
        else:
            wanted, kinds = "", [_IN_WORDS[kind] for kind in self.kinds if kind in _IN_WORDS]
        parts = [wanted] * bool(wanted) + kinds
        if self.bounds is not None:
            parts[-1] += f", {self.bounds}" if str(self.bounds) else ""
        return " or ".join([*parts, *["None"] * self.optional])

    def check(self, value: object) -> None:
        """Refuse what the field does not take."""
        if value is None and self.optional:
            return
        if self.open and not isinstance(value, _Plain):  # a function, or another object
            return
        if not any(_fits(value, kind) for kind in self.kinds):
            raise InvalidInput(f"{self.name} must be {self.wanted()}, got {value!r}")
        if (
            self.bounds is not None
            and isinstance(value, Real)
            and not isinstance(value, bool)
            and float(value) not in self.bounds
        ):
            raise InvalidInput(f"{self.name} must be {self.wanted()}, got {value!r}")
        if self.holds and isinstance(value, str) and (lacks := self.holds.missing_from(value)):
            raise InvalidInput(f"{self.name} must hold {' and '.join(lacks)}, got {value!r}")


class Settings:
    """The base of settings classes: checks every value when it is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for declaration in declarations(type(self)):
            if declaration.kinds:
                declaration.check(getattr(self, declaration.name))
        self._check_together()

    def _check_together(self) -> None:
        """Refuse values that exclude each other; each alone is in its range already."""


@lru_cache
def declarations(kind: type) -> tuple[Declaration, ...]:
    """What a settings class says of each of its fields, in order."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_declared(field.name, hints[field.name]) for field in fields(kind))


@lru_cache
def help_of(kind: type) -> Mapping[str, str]:
    """The docstring below each field, as one line; a class's own before those of its bases."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if is_dataclass(one):
            found |= _own_help(one)
    return found


def _own_help(kind: type) -> Mapping[str, str]:
    try:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except OSError:  # no source at hand, as in an interactive session
        return {}
    found, name = {}, None
    for node in tree.body if isinstance(tree, ast.ClassDef) else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[name], name = " ".join(str(node.value.value).split()), None
        else:
            name = None
    return found


def values_of(settings: Any, above: str = "") -> dict[str, _Plain]:
    """Every setting that a word can give, with its value; nested ones by dots."""
    found: dict[str, _Plain] = {}
    for declaration in declarations(type(settings)):
        value, name = getattr(settings, declaration.name), above + declaration.name
        if is_dataclass(value):
            found |= values_of(value, f"{name}.")
        elif declaration.kinds:
            found[name] = value
    return found


def with_values(settings: _S, given: Mapping[str, str]) -> _S:
    """The settings with some values read from text: ``{"k": "8", "loop.rounds": "3"}``.

    Values are JSON, or text as it stands. All change at once, since one value may be in range
    only with another.
    """
    wanted: dict[str, Any] = {}
    for path, text in given.items():
        *above, last = path.split(".")
        place = wanted
        for step in above:
            place = place.setdefault(step, {})
        place[last] = text
    return _with(settings, wanted)


def split_assignments(words: Sequence[str]) -> dict[str, str]:
    """``["k=8", "loop.rounds=3"]`` as a mapping."""
    pairs = [word.partition("=") for word in words]
    for word, (name, equals, value) in zip(words, pairs, strict=True):
        if not (name and equals and value):
            raise InvalidInput(f"settings are NAME=VALUE, got {word!r}")
    return {name: value for name, _, value in pairs}


def _with(settings: Any, wanted: Mapping[str, Any]) -> Any:
    known = {declaration.name: declaration for declaration in declarations(type(settings))}
    changes = {}
    for name, text in wanted.items():
        if name not in known:
            raise unknown_name("setting", name, known)
        inner = getattr(settings, name)
        if is_dataclass(inner):
            if isinstance(text, str):
                names = ", ".join(values_of(inner))
                raise InvalidInput(f"{name} has settings of its own: {names}")
            changes[name] = _with(inner, text)
        elif not isinstance(text, str):
            raise InvalidInput(f"{name} has no settings of its own")
        else:
            changes[name] = _read(known[name], text)
    return replace(settings, **changes)


def _read(declaration: Declaration, text: str) -> _Plain:
    if not declaration.kinds:
        raise InvalidInput(f"{declaration.name} is no number or text; it can be set in Python only")
    for value in (*_json(text), text):
        if value is None and declaration.optional:
            return None
        if any(_fits(value, kind) for kind in declaration.kinds):
            whole = type(value) is int and int not in declaration.kinds
            return float(str(value)) if whole else value
    raise InvalidInput(f"{declaration.name} must be {declaration.wanted()}, got {text!r}")


def _json(text: str) -> Iterator[Any]:
    try:
        yield json.loads(text)
    except ValueError:
        return


def _fits(value: object, kind: Any) -> bool:
    if isinstance(kind, str):
        return value == kind
    if kind is int or kind is float:
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind)


_IN_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


def _declared(name: str, hint: Any) -> Declaration:
    kinds: list[Any] = []
    notes: list[Any] = []
    optional = open_ = False
    for part in _parts(hint, notes):
        if part is NoneType:
            optional = True
        elif part in _IN_WORDS or isinstance(part, str):
            kinds.append(part)
        else:
            open_ = True
    return Declaration(
        name,
        tuple(kinds),
        next((note for note in notes if isinstance(note, Range)), None),
        next((note for note in notes if isinstance(note, Holds)), None),
        optional,
        open_,
    )


def _parts(hint: Any, notes: list[Any]) -> Iterator[Any]:
    """The types and literal texts of a hint; what `Annotated` adds goes into the notes."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *more = get_args(hint)
        notes += more
        yield from _parts(inner, notes)
    elif origin is Literal:
        yield from (one for one in get_args(hint) if isinstance(one, str))
    elif origin in (Union, UnionType):
        for part in get_args(hint):
            yield from _parts(part, notes)
    else:
        yield hint
