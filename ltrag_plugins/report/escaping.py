"""Text from strangers, shown as text."""

import json
import re
from hashlib import sha256
from typing import Any

_HIDDEN = re.compile(  # the same as UNSEEN in assets/elements.js
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff\U000e0000-\U000e007f]"
)
_LONGEST = 80  # a slug; file systems have 255 bytes for a whole name
_IN_SCRIPT = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def visible(text: str) -> str:
    """The text with what cannot be seen or drawn, or turns the reading order, by its number:
    ``[U+202E]``."""
    return _HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def slug(name: str) -> str:
    """The name as at most 80 letters, digits and hyphens, other characters as their number. Where
    that is too long, or reads as another name, it ends in a digest, so that no two coincide."""
    parts = re.split(r"([^A-Za-z0-9-])", name)
    parts[1::2] = [f"{ord(other):x}" for other in parts[1::2]]
    text = "-".join(parts)
    if len(text) <= _LONGEST and re.split(r"-([0-9a-f]+)-", text) == parts:
        return text
    mark = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{text[: _LONGEST - len(mark) - 1]}-{mark}"


def script_json(value: Any) -> str:
    """A value as JSON that can stand inside a script element: nothing in it ends the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_IN_SCRIPT)


def size_of(content: int) -> str:
    """A number of bytes for a person."""
    return f"{content / 1e6:.1f} MB" if content >= 1e5 else f"{max(1, round(content / 1e3))} kB"
