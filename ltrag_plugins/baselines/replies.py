"""What a reply answers: without the words around it, and as an option where some are offered.

All methods read their replies to questions with options so.
"""

import re
from collections.abc import Sequence

from ltrag_plugins.metrics.answer import accuracy

LEAD = "The answer is"
"""What models put before an answer."""

# a letter that names an option, and no article or pronoun: it stands alone or before a mark
_LETTER = re.compile(r"\W*(?:(?:the\s+)?answer(?:\s+is)?\W+)?([a-z])(?:[).:]|\s*$)", re.IGNORECASE)


def answered(reply: str, options: Sequence[str] = (), *, lead: str = LEAD) -> str:
    """The answer alone; where there are options, the one it picks.

    Args:
        lead: goes where the reply begins with it.
    """
    said = shortened(reply, lead)
    return chosen(said, options) if options else said


def shortened(reply: str, lead: str = LEAD) -> str:
    """The reply without the lead-in and the full stop at its end."""
    said, lead = reply.strip(), lead.strip()
    if lead and said.lower().startswith(lead.lower()):
        said = said[len(lead) :].strip()
    return said.removesuffix(".").strip()


def chosen(text: str, options: Sequence[str]) -> str:
    """The option that the text begins with, by its words or its letter; else the text."""
    for option in sorted(options, key=len, reverse=True):
        if accuracy(text, [option]):
            return option
    for i, option in enumerate(options):
        if accuracy(text, [f"{chr(ord('A') + i)} {option}"]):
            return option
    letter = _LETTER.match(text)
    place = ord(letter[1].upper()) - ord("A") if letter else len(options)
    return options[place] if place < len(options) else text
