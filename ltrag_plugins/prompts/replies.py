"""What a reply answers: without the words around it, and as an option where some are offered.

Every method reads its replies to questions with options in this way. A chain of thought is cut into
sentences, and its answer stands behind the marker.
"""

import re
from collections.abc import Sequence

from ltrag_plugins.metrics.answer import accuracy

_LEAD = "The answer is"
"""What models put before an answer."""

# a letter that names an option, and no article or pronoun: it stands alone or before a mark
_LETTER = re.compile(r"\W*(?:(?:the\s+)?answer(?:\s+is)?\W+)?([a-z])(?:[).:]|\s*$)", re.IGNORECASE)


def read_reply(reply: str, options: Sequence[str] = (), *, lead: str = _LEAD) -> str:
    """The answer alone; where there are options, the one it picks.

    Args:
        lead: goes where the reply begins with it.
    """
    said = bare_reply(reply, lead)
    return option_in(said, options) if options else said


def bare_reply(reply: str, lead: str = _LEAD) -> str:
    """The reply without the lead-in and the full stop at its end."""
    said, lead = reply.strip(), lead.strip()
    if lead and said.lower().startswith(lead.lower()):
        said = said[len(lead) :].strip()
    return said.removesuffix(".").strip()


def option_in(text: str, options: Sequence[str]) -> str:
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


MARKER = "So the answer is"
"""What a chain of thought is asked to end with."""

_MARKED = re.compile(
    r"\bthe (?:final |correct )?answer (?:to (?:the|this) question )?is\b:?\s*(.*)", re.IGNORECASE
)
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+")
_END = re.compile(r"""[.!?…]+["'”’)\]]*(?=\s)|[。！？]""")
_ABBREVIATED = re.compile(r"\b(?:[^\W\d_]|Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Vol|vs|ca|etc)\.$")
_AROUND = " \t\"'“”*"


def first_sentence(text: str) -> str:
    """The first sentence of the first line that is not blank, without its bullet or number.

    Initials ("J. K. Rowling"), common abbreviations and a full stop before a small letter do not
    end a sentence.
    """
    line = next((line for line in text.splitlines() if line.strip()), "")
    return _to_its_end(_BULLET.sub("", line).strip())


def concludes(text: str) -> bool:
    """Whether it says what the answer is ("the answer is", in any case)."""
    return _MARKED.search(text) is not None


def concluded(text: str) -> str:
    """The answer of a chain of thought: the rest of the sentence behind the first marker.

    Without a marker its last line that is not blank. Quotes around it and a final full stop go.
    """
    marked = _MARKED.search(text)
    lines = [line for line in text.splitlines() if line.strip()]
    said = _to_its_end(marked[1]) if marked else lines[-1] if lines else ""
    return said.strip(_AROUND).removesuffix(".").strip(_AROUND)


def _to_its_end(line: str) -> str:
    for end in _END.finditer(line):
        ends_here = not _ABBREVIATED.search(line[: end.end()])
        if ends_here and not line[end.end() :].lstrip()[:1].islower():
            return line[: end.end()]
    return line
