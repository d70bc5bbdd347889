"""Text to words, in one way for every room."""

import re
from unicodedata import category, normalize

# Thai, Lao, Burmese, Khmer, Japanese, Chinese; and Korean, which glues particles to its words
_UNSPACED = (
    "\u0e01-\u0e4e\u0e81-\u0ecd\u1000-\u103f\u1780-\u17d3\u3005-\u3007\u3041-\u309f\u30a1-\u30fa"
    "\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# where vowel signs and accents are that have no letter of their own with them; \w leaves them out
_BLOCKS = (
    *range(0x300, 0x2000), *range(0xA66F, 0xAC00), *range(0x10A01, 0x12000),
    *range(0x16AF0, 0x17000), *range(0x1E000, 0x1E950),
)  # fmt: skip
_RUNS = "".join(c if category(c) in ("Mn", "Mc") else " " for c in map(chr, _BLOCKS)).split()
_MARKS = "".join(f"{run[0]}-{run[-1]}" for run in _RUNS)  # as ranges, which compile faster
_POINTS = re.compile(  # of the Turkish i in lower case, and the vowels of Hebrew and Arabic
    "(?<=i)\u0307|[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c7]|[\u0610-\u061a\u0640\u064b-\u0652\u0670]"
)
_GROUPING = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3})")
_APART = re.compile(rf"[{_UNSPACED}][{_MARKS}]*")
_WORD = re.compile(rf"{_APART.pattern}|[^\W{_UNSPACED}](?:[^\W{_UNSPACED}]|[{_MARKS}])*")

PIECE = re.compile(rf"[{_UNSPACED}]{{1,10}}[^\s{_UNSPACED}]*|[^\s{_UNSPACED}]+")
"""A word between blanks; of text without blanks ten characters, and what stands at their end."""


def folded(text: str) -> str:
    """The text in NFKC, without upper case ("Straße" as "STRASSE", "İzmir" as "Izmir"), points for
    the vowels of Arabic and Hebrew, and no-break spaces in a number."""
    if text.isascii():
        return text.lower()
    return _POINTS.sub("", normalize("NFKC", _GROUPING.sub("", text)).casefold())


def spaced(text: str) -> str:
    """The text with blanks around each character of Korean and of scripts without blanks."""
    return text if text.isascii() else _APART.sub(r" \g<0> ", text)


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores of any script, `folded`, without stemming or stop
    words. Each character of Korean and of scripts without blanks is a word."""
    return _WORD.findall(folded(text))


def length(text: str) -> int:
    """How many words a person counts: two characters that `words` sets apart are about one."""
    found = words(text)
    return len(found) - sum(map(bool, map(_APART.fullmatch, found))) // 2
