"""Cut a text to a budget of words, where a sentence ends if one ends late enough."""

import re
from dataclasses import dataclass
from itertools import islice

CHARACTERS_A_WORD = 10
"""A budget of n words is also one of ten times n characters, so that text without spaces is
bounded too."""
SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？][\"'”’)\]」』]*")


@dataclass(frozen=True, slots=True)
class Cut:
    """A text within its budget."""

    text: str
    dropped: int = 0
    """Characters that were cut off; 0: it is whole."""


def cut_to_words(text: str, words: int | None) -> Cut:
    """The sentences that fit into the budget, or as many words where those are less than half.

    A full stop early in the text may be that of "Dr." or of a short first sentence: to end there
    would lose nearly all that fits.

    Args:
        text: without white space at its ends.
        words: at least 1; None: no limit.
    """
    if words is None or _fits(text, words):
        return Cut(text)
    end = _last_word(text, words)
    sentences = [found.end() for found in SENTENCE_END.finditer(text[: end + 1])]
    late = sentences and 2 * sentences[-1] >= end
    kept = text[: min(sentences[-1], end) if late else end]
    return Cut(kept, len(text) - len(kept))


def _fits(text: str, words: int) -> bool:
    return len(text) <= words * CHARACTERS_A_WORD and len(text.split(None, words)) <= words


def _last_word(text: str, words: int) -> int:
    """Where the last word that fits ends; a first word that does not fit is cut."""
    limit = words * CHARACTERS_A_WORD
    ends = [found.end() for found in islice(re.finditer(r"\S+", text[:limit]), words)]
    split = ends[-1] == limit < len(text) and not text[limit].isspace()
    return ends[-2] if split and len(ends) > 1 else ends[-1]
