"""How the cells of a run are called: ``method:label+gate@seed``.

A label says what tells two cells of one method apart, such as ``single:k=1`` and ``single:k=5``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from ltrag_plugins.errors import InvalidInput

OWN_GATES = frozenset({"skr", "adaptive"})
"""Methods that decide on retrieval before all else, as `gate-*` do."""
_NAME = re.compile(r"(?P<method>[^:+@]*)(:(?P<label>[^+@]*))?(\+(?P<gate>[^@]*))?(@(?P<seed>.*))?")
RESERVED = re.compile(r"[+@~/\\\s\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class CellName:
    """The parts of a cell's name; "" for what it does not have.

    Raises:
        InvalidInput: a part holds a character that a name is put together with, or a space; the
            method's is no name of a file.
    """

    method: str
    label: str = ""
    gate: str = ""
    seed: str = ""

    def __post_init__(self) -> None:
        for part in ("method", "label", "gate", "seed"):
            if RESERVED.search(text := getattr(self, part)):
                raise InvalidInput(f"no space, slash, +, @ or ~ in the {part} of a cell: {text!r}")
        if not self.method.strip("."):
            raise InvalidInput(f"a cell is named after its method, got {self.method!r}")

    @classmethod
    def parse(cls, name: str) -> Self:
        """The parts of a name that `str` made."""
        found = _NAME.fullmatch(name)
        return cls(**found.groupdict("")) if found else cls(name)

    def __str__(self) -> str:
        parts = ((":", self.label), ("+", self.gate), ("@", self.seed))
        return self.method + "".join(f"{mark}{part}" for mark, part in parts if part)

    @property
    def alone(self) -> str:
        """The same without its gate."""
        return str(replace(self, gate=""))

    @property
    def file(self) -> str:
        """The name as a file's, which on some systems may hold no colon."""
        return str(self).replace(":", "~")


def is_gate(method: str) -> bool:
    """Whether the method of this name is a gate itself: it decides on retrieval first."""
    return method in OWN_GATES or method.startswith("gate-")


def direct_of(names: Iterable[str]) -> str | None:
    """The first of these cells that answers without retrieval, whatever its settings are."""
    for name in names:
        cell = CellName.parse(name)
        if cell.method == "direct" and not cell.gate:
            return name
    return None
