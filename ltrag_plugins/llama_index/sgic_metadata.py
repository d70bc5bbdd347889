"""A calibrated answer as plain values, and where a response keeps them."""

from typing import Any

from llama_index.core.base.response.schema import RESPONSE_TYPE

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, ScoredDocument

KEY = "sgic"
"""Of the calibration in `Response.metadata`."""


def metadata_of(answer: CalibratedAnswer, *, refused: bool) -> dict[str, Any]:
    """The answer and how it came about, in values that JSON holds.

    The names are those of `CalibratedAnswer`; `text` is the answer also where it was refused.
    """
    return {
        "text": answer.text,
        "refused": refused,
        "uncertainty": float(answer.uncertainty),
        "score": float(answer.score),
        "p_wrong": _number(answer.p_wrong),
        "round": answer.round,
        "stop": answer.stop,
        "estimator": answer.estimator,
        "documents": [_document(document) for document in answer.documents],
        "trace": [_round(one) for one in answer.trace],
        "notes": list(answer.notes),
        "error": answer.error,
        "calls": answer.calls,
        "tokens": answer.tokens,
    }


def calibration_in(response: RESPONSE_TYPE) -> dict[str, Any]:
    """What `metadata_of` put into the response.

    Raises:
        InvalidInput: nothing did.
    """
    found = (response.metadata or {}).get(KEY)
    if not isinstance(found, dict) or "score" not in found:
        raise InvalidInput(
            f"this response carries no uncertainty: metadata[{KEY!r}] is {found!r:.60}. Let "
            "SGICCalibrator synthesize it: RetrieverQueryEngine(retriever, SGICCalibrator(llm))."
        )
    return found


def _document(document: ScoredDocument) -> dict[str, Any]:
    return {
        "node_id": document.passage.id,
        "score": _number(document.score),
        "uncertainty": _number(document.uncertainty),
        "answer": document.answer,
        "dropped": document.dropped,
        "shown": document.shown,
    }


def _round(one: Round) -> dict[str, Any]:
    return {
        "round": one.number,
        "text": one.text,
        "uncertainty": float(one.uncertainty),
        "score": float(one.score),
        "samples": [sample.text for sample in one.samples],
        "prompt": one.prompt,
    }


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
