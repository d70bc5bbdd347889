"""What a reply answers: without the words around it, and as an option where some are offered."""

import re
from collections.abc import Sequence
from unicodedata import normalize

from ltrag_plugins.metrics.answer import accuracy
from ltrag_plugins.tokenize import words

# what may stand before an option: marks that open something, and a lead-in
_BEFORE = r"""(?:[\s"'“”‘*_`(\[{$]|(?i:(?:the\s+)?answer(?:\s+is)?\b:?))*"""
# a letter that names an option, and no article or pronoun: it stands alone or before a mark
_LETTER = re.compile(
    r"""[\W_]*(?:(?:the\s+)?answer(?:\s+is)?[\W_]+)?([a-z])(?:[).:\]}"”’*_`。、】」]|'(?!\w)|\s*$)""",
    re.IGNORECASE,
)


def read_reply(
    reply: str, options: Sequence[str] = (), *, lead: str | None = "The answer is"
) -> str:
    """The answer alone; where there are options, the one it begins with, by words or by letter. The
    lead-in before it and a full stop at its end go, unless `lead` is None."""
    said = reply
    if lead is not None:
        said, lead = reply.strip(), lead.strip()
        # "The answer isn't ..." begins with another word; Chinese has no blank between words
        ends = r"(?!(?<=[a-z])[a-z])\s*[:：]?"
        if lead and (begun := re.match(re.escape(lead) + ends, said, re.IGNORECASE)):
            said = said[begun.end() :].strip()
    lettered = [f"{chr(ord('A') + i)} {option}" for i, option in enumerate(options)]
    forms = zip((*options, *lettered), (*options, *options), strict=True)
    taken = words(lead or "")

    def texts(form: str) -> set[str]:  # an option may itself begin with the lead-in
        return {said, reply} if words(form)[: len(taken)] == taken else {said}

    if begun := [pair for pair in forms if any(_begins(text, pair[0]) for text in texts(pair[0]))]:
        return max(begun, key=lambda one: max(_likeness(text, one[0]) for text in texts(one[0])))[1]
    letter = _LETTER.match(normalize("NFKC", said))
    place = ord(letter[1].upper()) - ord("A") if letter else len(options)
    if place < len(options):
        return options[place]
    return said if lead is None else said.removesuffix(".").strip()


def option_named(reply: str, options: Sequence[str]) -> str:
    """The option that a reply names; without options, the reply to the character."""
    return read_reply(reply, options) if options else reply


def _begins(said: str, option: str) -> bool:
    return bool(accuracy(said, [option]) or (not words(option) and _as_is(said, option)))


def _likeness(said: str, option: str) -> tuple[int, int, int]:
    """Orders options that a reply begins with: most words first, then those that words alone do not
    tell apart ("2" and "-2", "C" and "C++") by the characters as they stand."""
    as_is = _as_is(said, option)
    return len(words(option)), as_is, len(option) if as_is else -len(option)


def _as_is(said: str, option: str) -> int:
    """2 if a reply begins with the very characters of an option, 1 but for upper case, else 0."""
    said, option = (text.replace("\N{MINUS SIGN}", "-") for text in (said, option.strip()))
    end = r"\w" if words(option) else r"\S"  # of "**B**" no option is "*"
    pattern = rf"{_BEFORE}{re.escape(option)}(?!{end})"
    return sum(bool(re.match(pattern, said, how)) for how in (0, re.IGNORECASE))


MARKER = "So the answer is"
"""What a chain of thought is asked to end with."""
_MARKED = re.compile(
    r"\bthe (?:final |correct )?answer (?:to (?:the|this) question )?is\b:?\s*(.*)", re.IGNORECASE
)
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+")
_END = re.compile(r"""[.!?…]+["'”’)\]]*(?=\s)|[。！？।॥؟۔]""")
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
