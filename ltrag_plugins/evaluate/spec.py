"""What a run is asked for: cells, and the measures of answers by name. A cell is a method, its
settings and a gate or none; a label tells two of one method apart: ``single:k=1``, ``single:k=5``.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Self

from ltrag_plugins.errors import InvalidInput, require, unknown_name
from ltrag_plugins.gece.decision import Gate
from ltrag_plugins.methods import Method, method_named
from ltrag_plugins.metrics.answer import accuracy, contains, f1, normalized_exact_match
from ltrag_plugins.metrics.text import bleu, chrf, meteor, rouge_1, rouge_l, ter
from ltrag_plugins.settings import with_values

EQ2 = "eq2"
"""How cells name the gate that is eq. 2 with the accepted answers."""
_LONGEST_LABEL = 60  # names become file names
_NAME = re.compile(r"(?P<method>[^:+@]*)(:(?P<label>[^+@]*))?(\+(?P<gate>[^@]*))?(@(?P<seed>.*))?")
_RESERVED = re.compile(r"[+@~/\\\s\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class CellName:
    """The parts of a cell's name; "" for what it does not have."""

    method: str
    label: str = ""
    gate: str = ""
    seed: str = ""

    def __post_init__(self) -> None:
        for part, text in asdict(self).items():
            if _RESERVED.search(text):
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

    @property
    def is_gate(self) -> bool:
        """Whether the method is a gate itself: it decides on retrieval before all else."""
        return self.method in ("skr", "adaptive") or self.method.startswith("gate-")

    @property
    def has_probability(self) -> bool:
        """Whether its gate says how likely direct answers fail; eq. 2 only ranks them."""
        return self.gate.partition(":")[0] != EQ2

    @staticmethod
    def safe(text: str, mark: str) -> str:
        """The text as a part of a name: the mark in the place of what no part may hold."""
        return _RESERVED.sub(mark, text)


def direct_of(names: Iterable[str]) -> str | None:
    """The first of these cells that answers without retrieval, whatever its settings are."""
    parsed = ((name, CellName.parse(name)) for name in names)
    return next((name for name, cell in parsed if cell.method == "direct" and not cell.gate), None)


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to answer all questions: a method, its settings, a gate before it or none; its name,
    ``method:label+gate@seed``, cannot hold every label or gate's name (`InvalidInput`)."""

    method: Method
    settings: Any = None
    """None: the method's defaults."""
    gate: Gate | None = None
    gate_name: str = ""
    """What tells this gate from others; part of the cell's name."""
    seed: int | None = None
    """Put into the settings, where they have a seed."""
    label: str = ""
    """What tells these settings from others; part of the cell's name."""

    def __post_init__(self) -> None:
        _ = self.name  # cannot be made of every label

    @property
    def name(self) -> str:
        """As far as the cell has its parts (`CellName`)."""
        gate = "" if self.gate is None else self.gate_name or "gate"
        seed = "" if self.seed is None else str(self.seed)
        return str(CellName(self.method.name, self.label, gate, seed))

    @property
    def set(self) -> Any:
        """The settings, with the seed in them."""
        settings = self.method.settings() if self.settings is None else self.settings
        seeded = self.seed is not None and hasattr(settings, "seed")
        return replace(settings, seed=self.seed) if seeded else settings


def cell_of(word: str) -> Cell:
    """The cell that a word asks for, which becomes its name: ``sgic:k=8:loop.rounds=3``. Dots lead
    into nested settings; values are JSON, or text as it stands.

    Raises:
        InvalidInput: an unknown method or setting (names the nearest), or a value out of its range.
    """
    name, *given = word.split(":")
    row = method_named(name)
    if not given:
        return Cell(row)
    try:
        settings = with_values(row.settings(), given)
    except InvalidInput as error:
        raise InvalidInput(f"{word!r}: {error}") from error
    label = CellName.safe(":".join(given), "_")
    if len(label) > _LONGEST_LABEL:  # what is cut off would tell two of them apart
        mark = sha256(label.encode()).hexdigest()[:8]
        label = f"{label[: _LONGEST_LABEL - len(mark) - 1]}-{mark}"
    return Cell(row, settings, label=label)


_Metric = Callable[[str, Sequence[str]], float]
"""From a prediction and the accepted answers to a number, larger is better but for TER."""

METRICS: Mapping[str, _Metric] = {
    "em": normalized_exact_match,
    "f1": f1,
    "contains": contains,
    "accuracy": accuracy,
    "rouge1": rouge_1,
    "rougeL": rouge_l,
    "bleu4": bleu,
    "meteor": meteor,
    "chrf": chrf,
    "ter": ter,
}
LOWER_IS_BETTER = frozenset({"ter"})


def metrics_named(names: Iterable[str]) -> dict[str, _Metric]:
    """The measures of these names."""
    named = [*names]
    if unknown := [name for name in named if name not in METRICS]:
        raise unknown_name("metric", unknown[0], METRICS)
    if not named:
        raise InvalidInput(f"name at least one metric of {', '.join(METRICS)}")
    if any(METRICS[name].__module__ == "ltrag_plugins.metrics.text" for name in named):
        require("evaluate")
    return {name: METRICS[name] for name in named}
