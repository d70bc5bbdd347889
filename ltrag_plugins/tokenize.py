"""Text to words, in one way for every room."""

import re
import unicodedata

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores of any script, lower-cased (after NFKC), without
    stemming or stop words. Scripts written without spaces come out as whole runs."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())
