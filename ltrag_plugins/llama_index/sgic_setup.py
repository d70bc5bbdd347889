"""What `SGICCalibrator` is built of, checked where it is handed in."""

from llama_index.core.base.llms.base import BaseLLM

from ltrag_plugins import sgic
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import World
from ltrag_plugins.llama_index.checks import demand
from ltrag_plugins.llama_index.llm import LlamaIndexLLM
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.sgic.judging import Relevance
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
    return settings, scale


def check_source(settings: SGICSettings, relevance: Relevance | None, world: World) -> None:
    """Raise InvalidInput where the source of document scores is not there."""
    missing = {
        "relevance": relevance is None and "relevance=..., a function of question and passages",
        "encoder": world.encoder is None and "encoder=..., an Encoder or a LlamaIndex embedding",
        "oracle": "the truth of each question: run ltrag_plugins.sgic.calibrate(truth=...) instead",
    }
    if wanted := missing.get(settings.source):
        raise InvalidInput(f"source={settings.source!r} needs {wanted}.")
