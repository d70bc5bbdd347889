"""What of an answer is held against another's, to see whether both say the same.

SQuAD's normalization, which EM is published with, strips signs and points: "-5" is "5" to it, and
"1.5" is "15". Here an answer that is a number is compared as that number; any other as there.
"""

import re
import unicodedata

from ltrag_plugins.metrics.answer import normalized

_SIGN = "([-+−–]?)"
_MONEY = "[$¢-¥\u20a0-\u20cf]"
_NUMBER = re.compile(
    rf"[\s\"'“”‘’`*_(\[{{]*+{_SIGN}(?:{_MONEY} ?)?{_SIGN}"
    r"(0|[1-9][0-9]{0,2}(?:,[0-9]{3})++|[1-9][0-9]*|(?=\.[0-9]))(?:\.([0-9]++))?"
    rf"(?: ?(?:%|{_MONEY}))?[\s.!?,;:\"'“”‘’`*_)\]}}]*+"
)


def essence(text: str) -> str:
    """The same for two answers that say the same.

    "1,000" and "$1000.00" are one number, "-5" and "5" two; the signs of currencies and per cent
    do not count. Of any other text, case, punctuation and articles do not.
    """
    said = number(text)
    return normalized(text) if said is None else said


def number(text: str) -> str | None:
    """The one way of writing the number that an answer is, exactly; None: it is not one alone.

    A dash with a space behind it begins a list, and a number with zeros before it is a name.
    """
    found = _NUMBER.fullmatch(unicodedata.normalize("NFKC", text))
    if found is None or (found[1] and found[2]):
        return None
    whole, decimals = found[3].replace(",", ""), (found[4] or "").rstrip("0")
    size = (whole or "0") + (f".{decimals}" if decimals else "")
    negative = (found[1] or found[2]) not in ("", "+") and size != "0"
    return f"-{size}" if negative else size
