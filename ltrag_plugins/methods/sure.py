"""SuRe: a summary for each candidate answer; the candidate with the most plausible summary wins.

1. The model names candidate answers from the passages.
2. For each it summarizes the passages as evidence for that candidate.
3. Each summary is judged: does it bear its candidate out, v in {0, 1}; and against each other one,
   which tells more, r in [0, 1] (both orders, averaged, as models prefer a place).
4. The candidate with the largest v + sum r is the answer; of equals the one named first.

After Kim et al., ICLR 2024, https://arxiv.org/abs/2404.13081, section 3; our wording.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Annotated

from ltrag_plugins.flow import Flow, ask, fetch
from ltrag_plugins.methods.method import Method
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.prompts.templates import answer_from, filled, passages_block
from ltrag_plugins.settings import Count, Range, Settings
from ltrag_plugins.types import Answer, Generation, Question
from ltrag_plugins.uncertainty import YES_NO_TOKENS, yes_probability

_CANDIDATES_PROMPT = (
    "{passages}\n\nWrite the {count} most plausible answers to the question from the text above, "
    "the best first: one on each line, a few words each, nothing else.\n"
    "Question: {question}\nAnswers:\n"
)
_SUMMARY_PROMPT = (
    "{passages}\n\nQuestion: {question}\nSuppose the answer is: {candidate}\n"
    "In two or three sentences, sum up what the text above says in support of this answer.\n"
    "Summary:"
)
_VALID_PROMPT = (
    "Summary: {summary}\n\nQuestion: {question}\nAnswer: {candidate}\n"
    "Does the summary bear out that this answer is right? Reply yes or no.\nReply:"
)
_BETTER_PROMPT = (
    "Summary 1: {first}\n\nSummary 2: {second}\n\nQuestion: {question}\n"
    "Which summary tells more that helps to answer the question? Reply 1 or 2.\nReply:"
)

# not "J. K. Rowling" and not "12.5 km": letters need a bracket, numbers a space behind; a sign
# is no bullet
_LISTED = re.compile(r"^\s*(?:(?!-\d)[-*•]+\s*|\(?\d{1,2}[.):]\s+|\(?[a-zA-Z]\)\s*)")
_LETTERED = re.compile(r"[,;]?\s+(?=\((?:\d{1,2}|[a-zA-Z])\)\s)|(?<=:)\s+(?=1[.)]\s)")
_BOLD = re.compile(r"(?<!\w)(\*+)(?=\S)(.+?)(?<=\S)\1(?!\w)")  # no part of "M*A*S*H" or "A*"
_NUMBERED = re.compile(r"\s*(\d{1,2})([.):])\s+")


@dataclass(frozen=True, slots=True)
class CandidatesSettings(Settings):
    """How many candidates, and how long."""

    candidates: Annotated[int, Range(2)] = 2
    """Most candidate answers (paper: 2)."""
    summary_tokens: Count = 96
    """Longest summary, in tokens."""
    max_tokens: Count = 24
    """Longest candidate, in tokens."""

    @property
    def most_calls(self) -> int:
        """The list, a summary and a verdict for each candidate, both orders of each pair."""
        return 1 + self.candidates + self.candidates**2


@dataclass(frozen=True, slots=True)
class SuReSettings(CandidatesSettings):
    """How many candidates, and from how much."""

    k: Count = 3
    """Passages to read (paper: 10)."""


def most_plausible(
    question: str, passages: str, settings: CandidatesSettings, options: Sequence[str] = ()
) -> Flow[tuple[str | None, list[Generation]]]:
    """The most plausible of the answers that the model names from a text, or of the `options`,
    those that it names first: for n > 1 candidates 1 + n + n^2 model calls in three requests.

    Returns:
        The answer, None where the model names none; and the replies.
    """
    count, most = str(settings.candidates), settings.candidates * settings.max_tokens
    prompt = filled(_CANDIDATES_PROMPT, passages=passages, question=question, count=count)
    listed = yield from ask(prompt, max_tokens=most)
    candidates = _listed_candidates(listed[0].text, settings.candidates)
    if options:
        named = [read_reply(candidate, options) for candidate in candidates]
        offered = dict.fromkeys([*(one for one in named if one in options), *options])
        candidates = [*offered][: settings.candidates]
    if len(candidates) < 2:
        return (candidates[0] if candidates else None), listed
    summing = {"passages": passages, "question": question}
    prompts = [filled(_SUMMARY_PROMPT, candidate=one, **summing) for one in candidates]
    said = yield from ask(*prompts, max_tokens=settings.summary_tokens, stop=("\n\n",))
    summaries = [one.text.strip() for one in said]
    judging = [
        filled(_VALID_PROMPT, summary=summary, question=question, candidate=candidate)
        for candidate, summary in zip(candidates, summaries, strict=True)
    ]
    for first, second in permutations(summaries, 2):
        judging.append(filled(_BETTER_PROMPT, first=first, second=second, question=question))
    judged = yield from ask(*judging, max_tokens=YES_NO_TOKENS)
    scores = _plausibilities(judged, len(candidates))
    return candidates[scores.index(max(scores))], [*listed, *said, *judged]


def _answer(question: Question, settings: SuReSettings, _: None) -> Flow[Answer]:
    """One search, then the calls of `most_plausible`; where it names none, one answer instead."""
    best, trace = None, list[Generation]()
    [found] = yield from fetch(question.text, k=settings.k)
    if found:
        best, trace = yield from most_plausible(question.text, passages_block(found), settings)
    if best is None:
        most = settings.max_tokens
        return (yield from answer_from(question.text, found, max_tokens=most, trace=trace))
    return Answer(best, passages=tuple(found), trace=tuple(trace))


def _listed_candidates(reply: str, most: int) -> list[str]:
    """The distinct answers of a list, by lines or within one, as in "(a) one, (b) two"."""
    lines = _BOLD.sub(r"\2", reply).splitlines()
    pieces = [part for line in lines for part in _LETTERED.split(line)]
    begun = {int(head[1]) for head in map(_NUMBERED.match, pieces) if head}
    distinct: dict[str, str] = {}
    for line in (part for piece in pieces for part in _numbered(piece, begun)):
        name = _LISTED.sub("", line).strip().removesuffix(".").strip()
        if name and not name.endswith(":"):
            distinct.setdefault(name.casefold(), name)
    return list(distinct.values())[:most]


def _numbered(line: str, begun: Collection[int]) -> list[str]:
    """The parts of "1. one 2. two", unless another line begins with the next number."""
    head = _NUMBERED.match(line)
    if head is None or int(head[1]) + 1 in begun:
        return [line]
    following = rf"{int(head[1]) + 1}{re.escape(head[2])}\s+"
    # of "World War 2. 2. Emma" the second "2."
    found = re.compile(rf"[,;]?\s+(?={following}(?!{following}\S)\S)").search(line, head.end())
    if found is None:
        return [line]
    return [line[: found.start()], *_numbered(line[found.end() :], begun)]


def _plausibilities(judged: Sequence[Generation], count: int) -> list[float]:
    """v + sum r of each candidate: first each summary is judged, then each ordered pair."""
    scores = [float(yes_probability(reply) > 0.5) for reply in judged[:count]]
    for (first, second), reply in zip(permutations(range(count), 2), judged[count:], strict=True):
        named = re.search(r"(?<!\d)[12](?!\d)", reply.text)
        share = 0.5 if named is None else float(named[0] == "1")
        # each pair is asked about twice, so each time counts half
        scores[first] += share / 2
        scores[second] += (1 - share) / 2
    return scores


METHOD = Method(
    name="sure",
    summary="a summary for each candidate answer; the most plausible one wins",
    source="Kim et al., ICLR 2024",
    settings=SuReSettings,
    answer=_answer,
    most_calls=lambda settings: settings.most_calls,
)
