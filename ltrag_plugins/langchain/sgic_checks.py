"""What a caller builds a calibrator from, checked before the first question."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import Runnable

from ltrag_plugins import sgic
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.langchain.llm import LangChainLLM
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.sgic.calibrator import Refusal
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.uncertainty import AGREEMENT

if TYPE_CHECKING:  # it brings scikit-learn
    from ltrag_plugins.sgic.calibrator import Calibration


def answering(llm: LLM | Runnable[Any, Any], estimator: str = "product") -> LLM:
    """The model as ours; one of LangChain's is asked for log-probabilities where they are read.

    Raises:
        InvalidInput: it is neither.
    """
    if isinstance(llm, Runnable):
        ours = LangChainLLM(llm, logprobs=None) if estimator == AGREEMENT else LangChainLLM(llm)
        return cast(LLM, ours)  # its name is computed late, which the protocol does not foresee
    if not isinstance(llm, LLM):
        raise InvalidInput(
            "llm must be a LangChain chat model or LLM, or an ltrag_plugins LLM "
            f"(TransformersLLM, ...), got {type(llm).__name__} {llm!r:.60}."
        )
    return llm


def searching(retriever: Any) -> Runnable[Any, Any] | None:
    """The retriever itself, if it is one of LangChain's.

    Raises:
        InvalidInput: it is not.
    """
    if retriever is not None and not isinstance(retriever, Runnable):
        raise InvalidInput(
            f"retriever must be a LangChain retriever or another Runnable, got {retriever!r:.60}. "
            "Wrap a retriever of ours in PassageRetriever, a function in RunnableLambda."
        )
    return retriever


def agreed(
    settings: SGICSettings | None, calibration: "Calibration | None"
) -> "tuple[SGICSettings, Calibration | None]":
    """The settings to run with, and the calibration with them in it.

    A warning is logged where P(wrong) was fitted with others.

    Raises:
        InvalidInput: the calibration is none.
        ArtifactMismatch: it is of another estimator than the settings.
    """
    if calibration is None:
        return settings or SGICSettings(), None
    if not isinstance(calibration, sgic.Calibration):
        raise InvalidInput(
            f"calibration must be a Calibration, got {calibration!r:.60}. A folder is read by "
            "SGICCalibrator.from_pretrained."
        )
    calibration.remark_on(settings or calibration.settings)
    together = replace(calibration, settings=settings or calibration.settings)
    return together.settings, together


def check_limits(refusal: Refusal, calibration: "Calibration | None") -> None:
    """Refuse a limit on P(wrong) where no answer will have one.

    Raises:
        InvalidInput: there is such a limit, and nothing that gives P(wrong).
    """
    gives = calibration is not None and calibration.wrongness is not None
    if refusal.p_wrong_above is not None and not gives:
        raise InvalidInput(
            "refuse_p_wrong_above needs a calibration that gives P(wrong); hand one in with "
            "calibration=..., or refuse by the score: refuse_above=, 0-100."
        )
