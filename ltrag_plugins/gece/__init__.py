"""GECE: does this query need retrieval at all?

References:
    Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
    Language Models".
"""

from ltrag_plugins.gece.decision import Decision, Tier
from ltrag_plugins.gece.fitting import FittedGate, Outcome, fit_outcomes
from ltrag_plugins.gece.frequency import WordFrequencies
from ltrag_plugins.gece.gate import GECEGate
from ltrag_plugins.gece.reference import score_questions
from ltrag_plugins.gece.report import FitReport
from ltrag_plugins.gece.route import DecidingGate, Gate, routed
from ltrag_plugins.gece.score import GECEScore, gece_score
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import SIGNALS, Evidence, Signal

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
