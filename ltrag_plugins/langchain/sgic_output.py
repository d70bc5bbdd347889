"""What a calibrator puts out: a mapping, whole or in chunks that add up to it."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables.utils import AddableDict

from ltrag_plugins.flow import Returned
from ltrag_plugins.langchain.sgic_reading import Given
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, ScoredDocument
from ltrag_plugins.sgic.calibrator import Refusal

SCORES_KEY = "sgic"
"""Where in a document's metadata its scores are."""


def whole(given: Given, answer: CalibratedAnswer, refusal: Refusal) -> dict[str, Any]:
    """All of it, as `SGICCalibrator` describes it."""
    return {**_shown(given, answer, refusal), "trace": list(answer.trace)}


def chunks(
    given: Given,
    rounds: list[Round],
    step: Returned[CalibratedAnswer] | None,
    refusal: Refusal,
) -> Iterator[AddableDict]:
    """What one step of the flow brought; the rounds are taken out of their list."""
    while rounds:
        yield AddableDict(trace=[rounds.pop(0)])
    if step is not None:
        yield AddableDict(_shown(given, step.value, refusal))


def scored(documents: Sequence[Document], scores: Sequence[ScoredDocument]) -> list[Document]:
    """Copies in the same order, ids kept, each with its scores as metadata `sgic`."""
    return [
        document.model_copy(update={"metadata": {**document.metadata, SCORES_KEY: _plain(one)}})
        for document, one in zip(documents, scores, strict=True)
    ]


def _shown(given: Given, answer: CalibratedAnswer, refusal: Refusal) -> dict[str, Any]:
    """All but the trace, which a stream tells as it comes."""
    return {
        "question": given.question,
        "answer": refusal.said(answer),
        "refused": refusal.refuses(answer),
        "uncertainty": answer.uncertainty,
        "score": answer.score,
        "p_wrong": answer.p_wrong,
        "documents": scored(given.documents, answer.documents),
        "calibrated": answer,
    }


def _plain(one: ScoredDocument) -> dict[str, Any]:
    return {f.name: getattr(one, f.name) for f in fields(one) if f.name != "passage"}
