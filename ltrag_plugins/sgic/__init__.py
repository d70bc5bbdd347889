"""SGIC: how sure is the answer, and can another look mend it?

Source: Chen et al., "SGIC: A Self-Guided Iterative Calibration Framework for RAG".
"""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.sgic.analysis import (
        Analysis,
        LabelledAnswer,
        analyse,
        labelled,
        r_at_k,
        read_run,
        write_run,
    )
    from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, ScoredDocument
    from ltrag_plugins.sgic.calibrator import Calibration, Calibrator
    from ltrag_plugins.sgic.documents import Truth, steps_of
    from ltrag_plugins.sgic.fitting import FitReport, fit
    from ltrag_plugins.sgic.loop import calibrate, sampled
    from ltrag_plugins.sgic.prompts import PromptTemplates
    from ltrag_plugins.sgic.scale import ScoreScale, WrongnessCalibration
    from ltrag_plugins.sgic.settings import SGICSettings

_MODULES = {
    "analysis": "Analysis LabelledAnswer analyse labelled r_at_k read_run write_run",
    "answer": "CalibratedAnswer Round ScoredDocument",
    "calibrator": "Calibration Calibrator",
    "documents": "Truth steps_of",
    "fitting": "FitReport fit",
    "loop": "calibrate sampled",
    "prompts": "PromptTemplates",
    "scale": "ScoreScale WrongnessCalibration",
    "settings": "SGICSettings",
}

__all__ = [
    "Analysis", "CalibratedAnswer", "Calibration", "Calibrator", "FitReport", "LabelledAnswer",
    "PromptTemplates", "Round", "SGICSettings", "ScoreScale", "ScoredDocument", "Truth",
    "WrongnessCalibration", "analyse", "calibrate", "fit", "labelled", "r_at_k", "read_run",
    "sampled", "steps_of", "write_run",
]  # fmt: skip


# the command line shows its help without numpy
__getattr__, __dir__ = lazily(__name__, _MODULES)
