"""The documents of one question: cut, sanitized, scored, and shown with what is known of them.

Source: Chen et al. (SGIC), section 5.1 and table 6 (scores), section 5.4 and table 12 (steps).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.flow import Flow, embed
from ltrag_plugins.retrieval.dense import unit_rows
from ltrag_plugins.sgic.answer import ScoredDocument
from ltrag_plugins.sgic.prompts import SENTENCE_END, cut_to_words, one_line
from ltrag_plugins.sgic.scale import NOISE, document_scores
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Passage

Relevance = Callable[[str, Sequence[Passage]], Sequence[float]]
"""From the question and the passages to one finite number each; larger is more relevant."""

_NUMBER = re.compile(r"^\s*(?:step\s*\d{1,3}\s*[:.)]|\d{1,3}[.)](?=\s|$)|[-*•](?=\s))\s*", re.I)
_CONCLUSION = re.compile(r"^\s*(?:####|(?:the )?(?:final )?answer(?: is\b|\s*:))", re.I)


def prepared(
    passages: Sequence[Passage], settings: SGICSettings
) -> tuple[tuple[str, ...], tuple[ScoredDocument, ...]]:
    """Passages on one line each, cut at sentence ends, unable to fake a prompt's structure."""
    checked(passages, Iterable, "passages", "a list of Passage(text)s, if need be an empty one")
    texts, scored = [], []
    for i, passage in enumerate(passages, 1):
        if not isinstance(passage, Passage):
            kind = type(passage).__name__
            raise InvalidInput(f"passage {i} is a {kind}; give a text as Passage(text)")
        whole = one_line(f"{passage.title}: {passage.text}" if passage.title else passage.text)
        text = cut_to_words(whole, settings.document_words)
        texts.append(settings.templates.sanitize(text))
        scored.append(ScoredDocument(passage, dropped=len(whole) - len(text)))
    return tuple(texts), tuple(scored)


@dataclass(frozen=True, slots=True)
class Truth:
    """What an oracle knows about one question; for analysis alone."""

    relevant: tuple[bool, ...]
    """Whether each passage, in order, helps to answer."""
    answers: tuple[str, ...]
    """The accepted answers."""


def drawn(good: bool, name: str) -> float:
    """From 0-20 for what is good, from 80-100 for the rest (section 5.1), by the name alone."""
    return Random(name).uniform(0, 20) if good else Random(name).uniform(80, 100)


def encoder_scores(question: str, passages: Sequence[Passage]) -> Flow[tuple[float, ...]]:
    """0-100, min-max as eq. 3: 0 for the vector nearest to the question's (cosine)."""
    rows = yield from embed(question, *(f"{p.title} {p.text}".strip() for p in passages))
    vectors = unit_rows(np.asarray(rows, dtype=float))
    return document_scores((-(vectors[1:] @ vectors[0])).tolist())


def relevance_scores(
    function: Relevance, question: str, passages: Sequence[Passage]
) -> tuple[float, ...]:
    """0-100, min-max as eq. 3: 0 for the most relevant passage."""
    try:
        values = [float(value) for value in function(question, tuple(passages))]
    except Exception as error:
        name = type(error).__name__
        raise InvalidInput(f"the relevance function raised {name}: {error}") from error
    if len(values) != len(passages):
        given = f"{len(values)} numbers for {len(passages)} passages"
        raise InvalidInput(f"the relevance function gave {given}, not one for each in their order")
    # their unit is the function's own
    noise = NOISE * max(map(abs, values), default=0.0)
    return document_scores([-value for value in values], noise=noise)


def check_source(source: str, **given: object) -> None:
    """Refuse a source of document scores that is not `given`, before the first question."""
    needs = {
        "relevance": "relevance=..., a function of question and passages",
        "encoder": "encoder=..., an Encoder or embeddings of your framework (--encoder)",
        "oracle": "truth=Truth(relevant, answers), in the flow ltrag_plugins.sgic.calibrate(...)",
    }
    if source in needs and given.get(source) is None:
        raise InvalidInput(f"source={source!r} needs {needs[source]}.")


def steps_of(reasoning: str) -> list[Passage]:
    """The lines (of one line the sentences) of a chain of reasoning, each a step. Numbers and
    bullets in front go, and so do lines that only state the answer ("#### 72")."""
    lines = reasoning.strip().splitlines()
    if len(lines) == 1:
        [line] = lines
        ends = [0, *(found.end() for found in SENTENCE_END.finditer(line)), len(line)]
        lines = [line[a:b].strip() for a, b in pairwise(ends)]
    steps = [_NUMBER.sub("", line).strip() for line in lines if not _CONCLUSION.match(line)]
    return [Passage(step, id=str(i)) for i, step in enumerate(filter(None, steps), 1)]
