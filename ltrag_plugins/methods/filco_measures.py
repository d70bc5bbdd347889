"""Sentences, and how much each helps with a known answer: FILCO's three measures.

References:
    Wang et al., 2023, "Learning to Filter Context for Retrieval-Augmented Generation", section 2:
    string inclusion, lexical overlap, conditional cross-mutual information.
"""

import math
import re
from collections.abc import Sequence

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, score
from ltrag_plugins.metrics.answer import contains, f1
from ltrag_plugins.prompts.templates import direct_prompt, reading_prompt
from ltrag_plugins.types import Generation, Passage
from ltrag_plugins.uncertainty import checked_tokens

_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[」』”）]*|\n")
_UNFINISHED = re.compile(
    r"(?:[^\W\d_]\.)*[^\W\d_]"  # an initial: J, U.S, e.g
    r"|mr|mrs|ms|dr|prof|st|jr|sr|gen|col|lt|capt|rev|hon|no|vol|fig|vs|etc|inc|ltd|co|corp"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|ca|approx|dept|est|cf",
    re.IGNORECASE,
)


def sentences(text: str) -> list[str]:
    """The sentences of a text, in order, without the white space around them.

    One ends at a line's end, and at ".", "!", "?" and their like, but not after an initial ("J.",
    "U.S.") or a common abbreviation, nor before a small letter.
    """
    found, start = [], 0
    for end in _END.finditer(text):
        if end[0].startswith(".") and _goes_on(text, start, end):
            continue
        found.append(text[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in [*found, text[start:].strip()] if sentence]


def string_inclusion(sentence: str, answers: Sequence[str]) -> float:
    """1 if the sentence contains an accepted answer (normalized, as whole words), else 0.

    Raises:
        MissingReferences: there are no answers.
    """
    return contains(sentence, answers)


def lexical_overlap(sentence: str, answers: Sequence[str]) -> float:
    """Unigram F1 of the sentence with the accepted answer nearest to it, in [0, 1].

    Raises:
        MissingReferences: there are no answers.
    """
    return f1(sentence, answers)


def cross_mutual_information(
    question: str, answer: str, sentences: Sequence[str]
) -> Flow[list[float]]:
    r"""How much likelier each sentence makes the answer, in nats; one request for all.

    .. math:: \log p(a \mid s, q) - \log p(a \mid q)

    Above 0 the sentence helps. The authors' code squeezes the difference through a logistic
    function, which changes no order.

    Raises:
        InvalidInput: the answer is blank.
        NoTokenProbabilities: the model cannot tell how likely a given text is.
        InvalidLogProbability: a log-probability is NaN or above 0.
    """
    if not answer.strip():
        raise InvalidInput("a blank answer has no probability to compare; give its text")
    prompts = [
        direct_prompt(question),
        *(reading_prompt(question, [Passage(s)]) for s in sentences),
    ]
    scored = yield from score(prompts, [f" {answer.strip()}"] * len(prompts))
    without, *with_it = map(_logprob, scored)
    return [one - without for one in with_it]


def _logprob(generation: Generation) -> float:
    return math.fsum(token.logprob for token in checked_tokens(generation))


def _goes_on(text: str, start: int, end: re.Match[str]) -> bool:
    """Whether the sentence goes on behind this full stop."""
    before = text[start : end.start()].split()
    last = before[-1].lstrip("(\"'“‘[") if before else ""
    after = text[end.end() :].lstrip()[:1]
    return after.islower() or (end[0] == "." and bool(_UNFINISHED.fullmatch(last)))
