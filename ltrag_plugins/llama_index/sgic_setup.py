"""What `SGICCalibrator` is built of, checked where it is handed in."""

from llama_index.core.base.llms.base import BaseLLM

from ltrag_plugins import sgic
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llama_index.concurrency import demand
from ltrag_plugins.llama_index.model import LlamaIndexLLM
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings


def model_of(llm: LLM | BaseLLM) -> LLM:
    """A LlamaIndex LLM wrapped, a model of ours as it is.

    Raises:
        InvalidInput: it is neither.
    """
    if isinstance(llm, BaseLLM):
        return LlamaIndexLLM(llm)
    demand(llm, LLM, "llm", "a LlamaIndex LLM or an ltrag_plugins LLM (TransformersLLM, ...)")
    return llm


def parts_of(
    calibration: "sgic.Calibration | None",
    settings: SGICSettings | None,
    scale: ScoreScale | None,
) -> tuple[SGICSettings, ScoreScale]:
    """The settings and the scale to use.

    A warning is logged where the calibration's P(wrong) was fitted with other settings.

    Raises:
        InvalidInput: one is of another type, or there are two scales.
        ArtifactMismatch: the scale is of another estimator than the settings.
    """
    if calibration is not None:
        demand(calibration, sgic.Calibration, "calibration", "an ltrag_plugins.sgic Calibration")
        if scale is not None:
            raise InvalidInput("a calibration has a scale of its own; hand in the one or the other")
        settings = calibration.settings if settings is None else settings
        scale = calibration.scale
    settings = SGICSettings() if settings is None else settings
    demand(settings, SGICSettings, "settings", "an SGICSettings")
    scale = ScoreScale.default(settings.estimator) if scale is None else scale
    demand(scale, ScoreScale, "scale", "a ScoreScale")
    scale.check(settings.estimator)
    if calibration is not None:
        calibration.remark_on(settings)
    return settings, scale
