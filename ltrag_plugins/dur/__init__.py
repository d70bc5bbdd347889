"""DUR: which passages or examples help this model, and how many?

Source: Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking: Enhancing Retrieval-Augmented
In-Context Learning for Long-Tail Knowledge in LLMs".
"""

from typing import TYPE_CHECKING, Literal

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.dur.batch import Batch
    from ltrag_plugins.dur.prompts import FORMATS, PromptFormat, Shot
    from ltrag_plugins.dur.ranker import DURRanker, Ranked
    from ltrag_plugins.dur.settings import DURSettings
    from ltrag_plugins.dur.train import DURTrainer, TrainingResult

_MODULES = {
    "batch": "Batch",
    "prompts": "FORMATS PromptFormat Shot",
    "ranker": "DURRanker Ranked",
    "settings": "DURSettings",
    "train": "DURTrainer TrainingResult",
}

__all__ = [
    "FORMATS", "Batch", "DURRanker", "DURSettings", "DURTrainer", "PromptFormat", "Ranked", "Shot",
    "TrainingResult",
]  # fmt: skip

Preset = Literal["default", "paper", "script", "promptpg"]
"""Where the settings of a training can start; see `DURSettings.preset`."""

# a ranker at work needs no more than its head; the metrics' packages only the training
__getattr__, __dir__ = lazily(__name__, _MODULES)
