"""Calibrated answers and training data as text and as plain values."""

from collections.abc import Iterator, Mapping
from typing import Any

from ltrag_plugins.cli.calibrating_answers import Answered
from ltrag_plugins.sgic.answer import CalibratedAnswer, ScoredDocument
from ltrag_plugins.training.examples import Dataset

STOPS = {
    "certain": "it is certain enough",
    "settled": "it came again without gain",
    "rounds": "all rounds were made",
    "no documents": "there are no documents to look at again",
    "max_calls": "a further prompt could pass --max-calls",
    "max_tokens": "a further prompt could pass --max-tokens",
    "error": "the model failed",
}


def answer_record(one: Answered) -> dict[str, Any]:
    """An answer as plain values for JSON."""
    found = one.answer
    return {
        "id": one.question.id,
        "question": one.question.text,
        "answer": one.said,
        "refused": one.refused,
        "text": found.text,
        "uncertainty": found.uncertainty,
        "score": found.score,
        "p_wrong": found.p_wrong,
        "estimator": found.estimator,
        "round": found.round,
        "stop": found.stop,
        "calls": found.calls,
        "tokens": found.tokens,
        "rounds": [
            {"text": r.text, "uncertainty": r.uncertainty, "score": r.score} for r in found.trace
        ],
        "documents": [_document(document) for document in found.documents],
        "notes": list(found.notes),
    }


def _document(one: ScoredDocument) -> dict[str, Any]:
    return {
        "id": one.passage.id,
        "title": one.passage.title,
        "score": one.score,
        "uncertainty": one.uncertainty,
        "answer": one.answer,
        "shown": one.shown,
    }


def answer_text(one: Answered) -> str:
    """An answer in a few lines, its documents with the surest first."""
    found = one.answer
    rows = {
        "question": one.question.text,
        "answer": f"{one.said} (kept back: {found.text!r})" if one.refused else one.said,
        "uncertainty": f"{found.uncertainty:.3f}, score {found.score:.0f} of 100",
        "P(wrong)": "unknown" if found.p_wrong is None else f"{found.p_wrong:.2f}",
        "rounds": _rounds(found),
        "calls, tokens": f"{found.calls}, {'unknown' if found.tokens is None else found.tokens}",
    }
    lines = [f"{name:<15}{value}" for name, value in rows.items()]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join([*lines, *_documents(one)])


def _rounds(found: CalibratedAnswer) -> str:
    if not (more := len(found.trace) - 1):
        why = "by the settings" if found.stop == "rounds" else STOPS[found.stop]
        return f"none after the first answer: {why}"
    given = f"after the first answer; the answer of round {found.round} is given"
    return f"{more} {given}; stopped: {STOPS[found.stop]}"


def _documents(one: Answered) -> Iterator[str]:
    scored = [
        (document.score, number, document)
        for number, document in enumerate(one.answer.documents, 1)
        if document.score is not None
    ]
    if scored:
        yield "documents, the surest first:"
    for score, number, document in sorted(scored, key=lambda found: found[:2]):
        left_out = "" if document.shown else " (not shown again)"
        yield f"{score:5.0f}  [{number}] {_short(document)}{left_out}"


def _short(one: ScoredDocument, most: int = 60) -> str:
    text = " ".join(f"{one.passage.title or one.passage.text}".split())
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return text if one.answer is None else f"{text} -> {one.answer[:most]!r}"


def dataset_report(dataset: Dataset) -> str:
    """What training data was made of, in a few lines."""
    told = dataset.manifest
    rows = {"questions": f"{told['questions']}", "examples": f"{told['examples']}"}
    if told["corpus"]["form"] == "sgic":
        rows |= {
            "right in round 0, 1, ...": ", ".join(map(str, told["first_right_in_round"])),
            "mended, preserved": f"{told['mended']}, {told['preserved']}",
            "pruned": f"{told['pruned']}, of which {told['wrong']} stay with their answers",
            "plain prompts": f"{told['direct']}",
            "mean uncertainty of rounds": ", ".join(f"{m:.3f}" for m in told["scale"]["means"]),
        }
    return "\n".join([f"{name:<28}{value}" for name, value in rows.items()] + list(_notes(told)))


def _notes(told: Mapping[str, Any]) -> Iterator[str]:
    looks = told["kept"] + told["wrong"]
    if told["corpus"]["form"] == "direct" or looks >= FEW:
        return
    wrong = told["wrong"] < told["pruned"]
    more = ", or keep those that were never right (--keep-wrong 1)" if wrong else ""
    yield f"note: only {looks} examples of looking again; add questions{more}"


FEW = 100
"""Examples below which a tuning hardly learns the form of the prompts."""
