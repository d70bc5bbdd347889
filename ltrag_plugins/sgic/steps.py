"""A chain of reasoning as passages, for `SGICSettings.steps()`.

References:
    Chen et al. (SGIC), section 5.4 and table 12: each step takes the place of a document.
"""

import re
from itertools import pairwise

from ltrag_plugins.sgic.cutting import SENTENCE_END
from ltrag_plugins.types import Passage

_NUMBER = re.compile(r"^\s*(?:step\s*\d{1,3}\s*[:.)]|\d{1,3}[.)](?=\s|$)|[-*•](?=\s))\s*", re.I)
_CONCLUSION = re.compile(r"^\s*(?:####|(?:the )?(?:final )?answer(?: is\b|\s*:))", re.I)


def steps_of(reasoning: str) -> list[Passage]:
    """Its lines, each a step; its sentences where it is one line.

    Numbers and bullets in front go, and so do blank lines and those that only state the answer
    ("#### 72", "The answer is 72"), which would give it away.
    """
    lines = [line.strip() for line in reasoning.splitlines() if line.strip()]
    if len(lines) == 1:
        lines = _sentences(lines[0])
    steps = [_NUMBER.sub("", line).strip() for line in lines if not _CONCLUSION.match(line)]
    return [Passage(step, id=str(i)) for i, step in enumerate(filter(None, steps), 1)]


def _sentences(line: str) -> list[str]:
    ends = [0, *(found.end() for found in SENTENCE_END.finditer(line)), len(line)]
    return [line[a:b].strip() for a, b in pairwise(ends) if line[a:b].strip()]
