"""GECE: does this query need retrieval at all?

References:
    Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
    Language Models".
"""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.gece.decision import DecidingGate as DecidingGate
    from ltrag_plugins.gece.decision import Decision as Decision
    from ltrag_plugins.gece.decision import Gate as Gate
    from ltrag_plugins.gece.decision import Tier as Tier
    from ltrag_plugins.gece.decision import routed as routed
    from ltrag_plugins.gece.fit import fit_outcomes as fit_outcomes
    from ltrag_plugins.gece.gate import GECEGate as GECEGate
    from ltrag_plugins.gece.models import Outcome as Outcome
    from ltrag_plugins.gece.report import FitReport as FitReport
    from ltrag_plugins.gece.score import GECEScore as GECEScore
    from ltrag_plugins.gece.score import gece_score as gece_score
    from ltrag_plugins.gece.score import score_questions as score_questions
    from ltrag_plugins.gece.settings import GECESettings as GECESettings
    from ltrag_plugins.gece.signals import SIGNALS as SIGNALS
    from ltrag_plugins.gece.signals import Evidence as Evidence
    from ltrag_plugins.gece.signals import WordFrequencies as WordFrequencies

_HOMES = {
    "SIGNALS": "signals",
    "DecidingGate": "decision",
    "Decision": "decision",
    "Evidence": "signals",
    "FitReport": "report",
    "GECEGate": "gate",
    "GECEScore": "score",
    "GECESettings": "settings",
    "Gate": "decision",
    "Outcome": "models",
    "Tier": "decision",
    "WordFrequencies": "signals",
    "fit_outcomes": "fit",
    "gece_score": "score",
    "routed": "decision",
    "score_questions": "score",
}

__all__ = [
    "SIGNALS",
    "DecidingGate",
    "Decision",
    "Evidence",
    "FitReport",
    "GECEGate",
    "GECEScore",
    "GECESettings",
    "Gate",
    "Outcome",
    "Tier",
    "WordFrequencies",
    "fit_outcomes",
    "gece_score",
    "routed",
    "score_questions",
]


# the adapters need no more than the decision and the route; scikit-learn only the fit
__getattr__, __dir__ = lazily(__name__, _HOMES)
