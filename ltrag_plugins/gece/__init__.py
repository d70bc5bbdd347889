"""GECE: does this query need retrieval at all?

References:
    Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
    Language Models".
"""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.gece.decision import Decision as Decision
    from ltrag_plugins.gece.decision import Tier as Tier
    from ltrag_plugins.gece.fitted import FittedGate as FittedGate
    from ltrag_plugins.gece.fitted import Outcome as Outcome
    from ltrag_plugins.gece.fitting import fit_outcomes as fit_outcomes
    from ltrag_plugins.gece.frequency import WordFrequencies as WordFrequencies
    from ltrag_plugins.gece.gate import GECEGate as GECEGate
    from ltrag_plugins.gece.reference import score_questions as score_questions
    from ltrag_plugins.gece.report import FitReport as FitReport
    from ltrag_plugins.gece.route import DecidingGate as DecidingGate
    from ltrag_plugins.gece.route import Gate as Gate
    from ltrag_plugins.gece.route import routed as routed
    from ltrag_plugins.gece.score import GECEScore as GECEScore
    from ltrag_plugins.gece.score import gece_score as gece_score
    from ltrag_plugins.gece.settings import GECESettings as GECESettings
    from ltrag_plugins.gece.signals import SIGNALS as SIGNALS
    from ltrag_plugins.gece.signals import Evidence as Evidence
    from ltrag_plugins.gece.signals import Signal as Signal

_HOMES = {
    "SIGNALS": "signals",
    "DecidingGate": "route",
    "Decision": "decision",
    "Evidence": "signals",
    "FitReport": "report",
    "FittedGate": "fitted",
    "GECEGate": "gate",
    "GECEScore": "score",
    "GECESettings": "settings",
    "Gate": "route",
    "Outcome": "fitted",
    "Signal": "signals",
    "Tier": "decision",
    "WordFrequencies": "frequency",
    "fit_outcomes": "fitting",
    "gece_score": "score",
    "routed": "route",
    "score_questions": "reference",
}

__all__ = [
    "SIGNALS",
    "DecidingGate",
    "Decision",
    "Evidence",
    "FitReport",
    "FittedGate",
    "GECEGate",
    "GECEScore",
    "GECESettings",
    "Gate",
    "Outcome",
    "Signal",
    "Tier",
    "WordFrequencies",
    "fit_outcomes",
    "gece_score",
    "routed",
    "score_questions",
]


# the adapters need no more than the decision and the route; scikit-learn only the fit
__getattr__, __dir__ = lazily(__name__, _HOMES)
