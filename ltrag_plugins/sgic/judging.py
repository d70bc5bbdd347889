"""Scores of documents that do not come from answers: an encoder, a function, the truth.

References:
    Chen et al. (SGIC), section 5.1 and table 6.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, embed
from ltrag_plugins.metrics.answer import normalized_exact_match
from ltrag_plugins.sgic.scale import NOISE, document_scores
from ltrag_plugins.types import Passage

Relevance = Callable[[str, Sequence[Passage]], Sequence[float]]
"""From the question and the passages to one finite number each; larger is more relevant."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What an oracle knows about one question; for analysis alone."""

    relevant: tuple[bool, ...]
    """Whether each passage, in order, helps to answer."""
    answers: tuple[str, ...]
    """The accepted answers."""


def encoder_scores(question: str, passages: Sequence[Passage]) -> Flow[tuple[float, ...]]:
    """0-100, min-max as eq. 3: 0 for the vector nearest to the question's (cosine)."""
    rows = yield from embed(question, *(f"{p.title} {p.text}".strip() for p in passages))
    vectors = np.asarray(rows, dtype=float)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors / np.where(lengths > 0, lengths, 1.0)
    return document_scores((-(vectors[1:] @ vectors[0])).tolist())


def relevance_scores(
    function: Relevance, question: str, passages: Sequence[Passage]
) -> tuple[float, ...]:
    """0-100, min-max as eq. 3: 0 for the most relevant passage.

    Raises:
        InvalidInput: the function raised, or gave something else than a finite number each.
    """
    try:
        values = [float(value) for value in function(question, tuple(passages))]
    except Exception as error:
        raise InvalidInput(
            f"the relevance function raised {type(error).__name__}: {error}"
        ) from error
    if len(values) != len(passages):
        raise InvalidInput(
            f"the relevance function gave {len(values)} numbers for {len(passages)} passages; it "
            "gives one for each, in their order"
        )
    # their unit is the function's own
    return document_scores(
        [-value for value in values], noise=NOISE * max(map(abs, values), default=0.0)
    )


def true_document_scores(truth: Truth, question: str, seed: int) -> tuple[float, ...]:
    """A draw from 0-20 for each relevant passage, from 80-100 for the others (section 5.1)."""
    return tuple(
        _drawn(helps, f"{seed}|{question}|document {i}") for i, helps in enumerate(truth.relevant)
    )


def true_answer_score(truth: Truth, question: str, text: str, round: int, seed: int) -> float:
    """A draw from 0-20 for a right answer (normalized exact match), from 80-100 for a wrong one."""
    right = normalized_exact_match(text, truth.answers) > 0
    return _drawn(right, f"{seed}|{question}|round {round}")


def _drawn(good: bool, name: str) -> float:
    # seeded by what it is for, so that a draw does not depend on which were made before it
    return Random(name).uniform(0, 20) if good else Random(name).uniform(80, 100)


def check_source(source: str, *, relevance: bool, encoder: bool) -> None:
    """Refuse a source of document scores that is not there, before the first question.

    Raises:
        InvalidInput: it is not; says what to hand in.
    """
    missing = {
        "relevance": "" if relevance else "relevance=..., a function of question and passages",
        "encoder": "" if encoder else "encoder=..., an Encoder or embeddings of your framework",
        "oracle": "the truth of each question: run ltrag_plugins.sgic.calibrate(truth=...) instead",
    }
    if wanted := missing.get(source):
        raise InvalidInput(f"source={source!r} needs {wanted}.")
