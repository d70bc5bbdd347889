"""What a chain of thought is cut into: sentences, and the answer behind the marker."""

import re

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
