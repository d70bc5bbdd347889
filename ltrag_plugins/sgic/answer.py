"""What a calibration hands back: the answer, how sure it is, and how it came about."""

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Literal

from ltrag_plugins.metrics.answer import normalized
from ltrag_plugins.types import Generation, Passage

Stop = Literal["certain", "settled", "rounds", "no documents", "max_calls", "max_tokens", "error"]
"""Why there was no further round: the answer was certain enough; it came again without gain; K
rounds were made; there is nothing to look at again; a limit would be passed; the model failed."""


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """A document, and how much the model (or another judge) thought of it."""

    passage: Passage
    uncertainty: float | None = None
    """Of the answer from this document alone, in [0, 1]; None where it was not asked for."""
    score: float | None = None
    """0-100, larger is less certain (eq. 3); None where documents were not scored."""
    answer: str | None = None
    """What the model said with this document alone."""
    dropped: int = 0
    """Characters that the word limit cut off its end."""
    shown: bool = True
    """Whether the rounds after the first answer showed it (`cut_to`)."""


@dataclass(frozen=True, slots=True)
class Round:
    """One answer from all documents; round 0 is the first, without scores."""

    number: int
    text: str
    """Without the prompt's own label or score, where the model echoed them."""
    uncertainty: float
    """In [0, 1]; larger is less certain."""
    score: float
    """0-100 on the scale of this round, larger is less certain; what later rounds show."""
    generation: Generation = field(repr=False)
    samples: tuple[Generation, ...] = field(default=(), repr=False)
    """What the model said when asked again (estimator "agreement")."""
    prompt: str | None = field(default=None, repr=False)
    """None unless `SGICSettings.keep_prompts`."""


@dataclass(frozen=True, slots=True)
class CalibratedAnswer:
    """An answer that knows how sure it is."""

    text: str
    uncertainty: float
    """In [0, 1]; larger is less certain."""
    score: float
    """0-100; larger is less certain (eq. 2)."""
    round: int
    """Which it came from; 0 is the first answer."""
    stop: Stop
    estimator: str
    p_wrong: float | None = None
    """Probability that it is wrong, in [0, 1]; None without a calibration."""
    documents: tuple[ScoredDocument, ...] = field(default=(), repr=False)
    """In the order in which they were handed in."""
    trace: tuple[Round, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    """What was cut or left out, in words."""
    error: str | None = None
    """What ended the rounds, where `on_error="best"`."""
    calls: int = 0
    """Prompts sent to the model, answered or not."""
    tokens: int | None = None
    """Read and written, of the replies that came; None where one did not say."""


_SIGN = "([-+−–]?)"
_MONEY = "[$¢-¥\u20a0-\u20cf]"
_NUMBER = re.compile(
    rf"[\s\"'“”‘’`*_(\[{{]*+{_SIGN}(?:{_MONEY} ?)?{_SIGN}"
    r"(0|[1-9][0-9]{0,2}(?:,[0-9]{3})++|[1-9][0-9]*|(?=\.[0-9]))(?:\.([0-9]++))?"
    rf"(?: ?(?:%|{_MONEY}))?[\s.!?,;:\"'“”‘’`*_)\]}}]*+"
)


def answer_key(text: str) -> str:
    """The same for two answers that say the same: "1,000" and "$1000.00", not "-5" and "5". Signs
    of currencies and per cent do not count; what is no number is normalized as by SQuAD."""
    said = number(text)
    return normalized(text) if said is None else said


def number(text: str) -> str | None:
    """The one way of writing the number that an answer is; None for what is not one alone. A dash
    with a space behind it begins a list, and a number with zeros before it is a name."""
    found = _NUMBER.fullmatch(unicodedata.normalize("NFKC", text))
    if found is None or (found[1] and found[2]):
        return None
    whole, decimals = found[3].replace(",", ""), (found[4] or "").rstrip("0")
    size = (whole or "0") + (f".{decimals}" if decimals else "")
    negative = (found[1] or found[2]) not in ("", "+") and size != "0"
    return f"-{size}" if negative else size


def plural(count: int, name: str) -> str:
    """As "1 round", "2 rounds"."""
    return f"{count} {name}{'s' * (count > 1)}"
