"""SGIC: how sure is the answer, and can another look mend it?

References:
    Chen et al., "SGIC: A Self-Guided Iterative Calibration Framework for RAG".
"""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.sgic.answer import CalibratedAnswer as CalibratedAnswer
    from ltrag_plugins.sgic.answer import Round as Round
    from ltrag_plugins.sgic.answer import ScoredDocument as ScoredDocument
    from ltrag_plugins.sgic.calibrator import Calibration as Calibration
    from ltrag_plugins.sgic.documents import Truth as Truth
    from ltrag_plugins.sgic.documents import steps_of as steps_of
    from ltrag_plugins.sgic.figures import Analysis as Analysis
    from ltrag_plugins.sgic.figures import analyse as analyse
    from ltrag_plugins.sgic.figures import r_at_k as r_at_k
    from ltrag_plugins.sgic.fitting.fit import fit as fit
    from ltrag_plugins.sgic.fitting.report import FitReport as FitReport
    from ltrag_plugins.sgic.fitting.report import VariantFigures as VariantFigures
    from ltrag_plugins.sgic.loop import calibrate as calibrate
    from ltrag_plugins.sgic.loop import sampled as sampled
    from ltrag_plugins.sgic.prompts import STEPS as STEPS
    from ltrag_plugins.sgic.prompts import PromptTemplates as PromptTemplates
    from ltrag_plugins.sgic.records import LabelledAnswer as LabelledAnswer
    from ltrag_plugins.sgic.records import labelled as labelled
    from ltrag_plugins.sgic.records import read_run as read_run
    from ltrag_plugins.sgic.records import write_run as write_run
    from ltrag_plugins.sgic.scale import ScoreScale as ScoreScale
    from ltrag_plugins.sgic.scale import WrongnessCalibration as WrongnessCalibration
    from ltrag_plugins.sgic.scale import document_scores as document_scores
    from ltrag_plugins.sgic.settings import SGICSettings as SGICSettings

_HOMES = {
    "STEPS": "prompts",
    "Analysis": "figures",
    "CalibratedAnswer": "answer",
    "Calibration": "calibrator",
    "FitReport": "fitting.report",
    "LabelledAnswer": "records",
    "PromptTemplates": "prompts",
    "Round": "answer",
    "SGICSettings": "settings",
    "ScoreScale": "scale",
    "ScoredDocument": "answer",
    "Truth": "documents",
    "VariantFigures": "fitting.report",
    "WrongnessCalibration": "scale",
    "analyse": "figures",
    "calibrate": "loop",
    "document_scores": "scale",
    "fit": "fitting.fit",
    "labelled": "records",
    "r_at_k": "figures",
    "read_run": "records",
    "sampled": "loop",
    "steps_of": "documents",
    "write_run": "records",
}

__all__ = [
    "STEPS",
    "Analysis",
    "CalibratedAnswer",
    "Calibration",
    "FitReport",
    "LabelledAnswer",
    "PromptTemplates",
    "Round",
    "SGICSettings",
    "ScoreScale",
    "ScoredDocument",
    "Truth",
    "VariantFigures",
    "WrongnessCalibration",
    "analyse",
    "calibrate",
    "document_scores",
    "fit",
    "labelled",
    "r_at_k",
    "read_run",
    "sampled",
    "steps_of",
    "write_run",
]


# settings and answers need no scikit-learn, which the calibration brings
__getattr__, __dir__ = lazily(__name__, _HOMES)
