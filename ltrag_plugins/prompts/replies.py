"""What a reply answers: without the words around it, and as an option where some are offered."""

import re
from collections.abc import Sequence

from ltrag_plugins.metrics.answer import accuracy

# a letter that names an option, and no article or pronoun: it stands alone or before a mark
_LETTER = re.compile(r"\W*(?:(?:the\s+)?answer(?:\s+is)?\W+)?([a-z])(?:[).:]|\s*$)", re.IGNORECASE)


def read_reply(
    reply: str, options: Sequence[str] = (), *, lead: str | None = "The answer is"
) -> str:
    """The answer alone; where there are options, the one it begins with, by words or by letter. The
    lead-in before it and a full stop at its end go, unless `lead` is None."""
    said = reply
    if lead is not None:
        said, lead = reply.strip(), lead.strip()
        if lead and said.lower().startswith(lead.lower()):
            said = said[len(lead) :].strip()
        said = said.removesuffix(".").strip()
    for option in sorted(options, key=len, reverse=True):
        if accuracy(said, [option]):
            return option
    for i, option in enumerate(options):
        if accuracy(said, [f"{chr(ord('A') + i)} {option}"]):
            return option
    letter = _LETTER.match(said)
    place = ord(letter[1].upper()) - ord("A") if letter else len(options)
    return options[place] if place < len(options) else said


MARKER = "So the answer is"
"""What a chain of thought is asked to end with."""
_MARKED = re.compile(
    r"\bthe (?:final |correct )?answer (?:to (?:the|this) question )?is\b:?\s*(.*)", re.IGNORECASE
)
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+")
_END = re.compile(r"""[.!?…]+["'”’)\]]*(?=\s)|[。！？]""")
_ABBREVIATED = re.compile(r"\b(?:[^\W\d_]|Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Vol|vs|ca|etc)\.$")
_AROUND = " \t\"'“”*"


def next_thought(text: str) -> str:
    """The first sentence of the first line that is not blank, without its bullet or number; ""
    where it says what the answer is ("the answer is", in any case), which is no thought."""
    thought = first_sentence(text)
    return "" if _MARKED.search(thought) else thought


def first_sentence(text: str) -> str:
    """The first sentence of the first line that is not blank, without its bullet or number."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return _to_its_end(_BULLET.sub("", line).strip())


def concluded(text: str) -> str:
    """The answer of a chain of thought: the rest of the sentence behind the first marker, else its
    last line that is not blank; without quotes around it and a final full stop."""
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
