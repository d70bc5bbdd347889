"""GECE: does this query need retrieval at all? After Li et al., ACL 2024, "On the Role of Long-tail
Knowledge in Retrieval Augmented Large Language Models"."""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.gece.decision import DecidingGate, Decision, Gate, Tier, routed
    from ltrag_plugins.gece.fit import fit_outcomes
    from ltrag_plugins.gece.gate import GECEGate
    from ltrag_plugins.gece.labels import Outcome
    from ltrag_plugins.gece.models import FitReport
    from ltrag_plugins.gece.score import GECEScore, gece_score, score_questions
    from ltrag_plugins.gece.settings import GECESettings
    from ltrag_plugins.gece.signals import SIGNALS, Evidence, WordFrequencies

_MODULES = {
    "decision": "DecidingGate Decision Gate Tier routed",
    "fit": "fit_outcomes",
    "gate": "GECEGate",
    "models": "FitReport",
    "labels": "Outcome",
    "score": "GECEScore gece_score score_questions",
    "settings": "GECESettings",
    "signals": "SIGNALS Evidence WordFrequencies",
}

__all__ = [
    "SIGNALS", "DecidingGate", "Decision", "Evidence", "FitReport", "GECEGate", "GECEScore",
    "GECESettings", "Gate", "Outcome", "Tier", "WordFrequencies", "fit_outcomes", "gece_score",
    "routed", "score_questions",
]  # fmt: skip

# the adapters need no more than the decision and the route; scikit-learn only the fit
__getattr__, __dir__ = lazily(__name__, _MODULES)
