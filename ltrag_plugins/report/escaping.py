"""Text from strangers, shown as text."""

import json
import re
from typing import Any

_HIDDEN = re.compile(  # the same as UNSEEN in assets/elements.js
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufffe\uffff]"
)
_IN_SCRIPT = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def visible(text: str) -> str:
    """The text with what cannot be seen or drawn, or turns the reading order, by its number:
    ``[U+202E]``."""
    return _HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def slug(name: str) -> str:
    """The name as letters, digits and hyphens; others as their number, so that none coincide."""
    return re.sub(r"[^A-Za-z0-9-]", lambda found: f"-{ord(found[0]):x}-", name).strip("-")


def script_json(value: Any) -> str:
    """A value as JSON that can stand inside a script element: nothing in it ends the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_IN_SCRIPT)


def size_of(content: int) -> str:
    """A number of bytes for a person."""
    return f"{content / 1e6:.1f} MB" if content >= 1e5 else f"{max(1, round(content / 1e3))} kB"
