"""The loop: answer, measure, look again with scores in view, keep the least uncertain answer.

Round 0 answers from all documents. If that answer is not certain enough, each document is asked
about alone (all in one request), and up to K rounds follow, each with the documents' scores and
all earlier answers with theirs.

References:
    Chen et al. (SGIC), sections 3.1 and 3.2, eq. 1-3 and table 1.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ltrag_plugins.errors import LtragError
from ltrag_plugins.flow import Flow
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, Stop
from ltrag_plugins.sgic.case import Case
from ltrag_plugins.sgic.choosing import chosen, reason_to_stop
from ltrag_plugins.sgic.documents import Documents
from ltrag_plugins.sgic.judging import Relevance, Truth
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Passage
from ltrag_plugins.uncertainty import AGREEMENT

if TYPE_CHECKING:  # it brings scikit-learn
    from ltrag_plugins.sgic.wrongness import WrongnessCalibration


def calibrate(
    question: str,
    passages: Sequence[Passage],
    settings: SGICSettings | None = None,
    scale: ScoreScale | None = None,
    *,
    wrongness: "WrongnessCalibration | None" = None,
    relevance: Relevance | None = None,
    truth: Truth | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Flow[CalibratedAnswer]:
    """Answer a question from passages, and look again while the answer is uncertain.

    Without passages (a gate found none needed, a search found none) the model answers from what
    it knows, once. Passages that say the same are asked about once, and all scored.

    Args:
        passages: what was retrieved; with `SGICSettings.steps()`, reasoning steps.
        settings: None: the defaults.
        scale: None: `ScoreScale.default`.
        wrongness: gives the answer its probability of being wrong.
        relevance: scores the passages, for `source="relevance"`.
        truth: scores passages and answers, for `source="oracle"`.
        on_round: is told each answer as it comes, the first one too.

    Raises:
        EmptyQuestion: the question has no words.
        InvalidInput: passages are not of the type `Passage`; the source of document scores was
            not handed in; the first prompt alone could pass `max_tokens`.
        ArtifactMismatch: scale or calibration belong to another estimator, or not together.
        NoTokenProbabilities: the model gives none; set `estimator="agreement"`.
        ModelError, PromptTooLong: the model failed; see `SGICSettings.on_error`.
    """
    case = Case.of(question, passages, settings, scale, wrongness, relevance, truth)
    settings, documents, notes = case.settings, case.documents, [*case.notes]
    tell = on_round or _nobody
    trace = [(yield from case.answered((), documents))]
    tell(trace[0])
    stop, error = reason_to_stop(trace, settings), None
    if not documents.texts:
        stop = stop or "no documents"
        notes += ["answered without documents, for which no P(wrong) was fitted"] * bool(wrongness)
    elif case.all_are_kept:
        stop = stop or "rounds"  # another would ask the same
    if _says_one_thing(trace[0], settings):
        notes.append(
            "all samples are the answer word for word; with a model that does not heed the "
            "temperature that says nothing about how sure it is"
        )
    try:
        if documents.texts and case.wants_scores(stop):
            documents, left_out = yield from case.scored(trace[0])
            if left_out and stop is None and settings.earlier == "none":
                stop = left_out  # a round would ask what round 0 asked
            notes += _left_out(left_out, settings)
        while not stop and not (stop := case.limit(trace, documents)):
            trace.append((yield from case.answered(trace, documents)))
            tell(trace[-1])
            stop = reason_to_stop(trace, settings)
    except LtragError as failure:
        if settings.on_error == "raise":
            raise
        stop, error = "error", f"{type(failure).__name__}: {failure}"
    notes += [*_saturated(trace, documents, settings), *case.budget.remarks()]
    best = chosen(trace, settings.choose)
    return CalibratedAnswer(
        best.text,
        best.uncertainty,
        best.score,
        best.number,
        stop or "rounds",
        settings.estimator,
        p_wrong=wrongness.probability(best.score) if wrongness and documents.texts else None,
        documents=documents.scored,
        trace=tuple(trace),
        notes=tuple(notes),
        error=error,
        calls=case.budget.calls,
        tokens=case.budget.tokens,
    )


def _says_one_thing(first: Round, settings: SGICSettings) -> bool:
    said = {sample.text for sample in first.samples}
    return settings.estimator == AGREEMENT and said == {first.generation.text}


def _saturated(trace: Sequence[Round], documents: Documents, settings: SGICSettings) -> list[str]:
    """A remark on answers whose product of probabilities is below what one minus it can show."""
    answers = [(one.text, one.uncertainty) for one in trace]
    answers += [(one.answer, one.uncertainty) for one in documents.scored if one.answer is not None]
    lost = sum(bool(text) and uncertainty == 1 for text, uncertainty in answers)
    if settings.estimator != "product" or not lost:
        return []
    return [
        f"{lost} of {len(answers)} answers are as uncertain as can be, as the product of the "
        "probabilities of a long answer is; estimator='length_normalized' tells such apart"
    ]


def _nobody(_: Round) -> None:
    """Hear nothing."""


def _left_out(limit: Stop | None, settings: SGICSettings) -> list[str]:
    if limit is None:
        return []
    return [
        f"the documents were not scored: one prompt for each would pass "
        f"{limit}={getattr(settings, limit)}"
    ]
