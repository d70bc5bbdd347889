"""Teach a model to mend its answers: training data from calibrated questions, and fine-tuning.

Source: Chen et al. (SGIC), section 3.3 and appendix A.1.
"""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.training.dataset import Dataset, Example, build, keep, load
    from ltrag_plugins.training.settings import CorpusSettings, FinetuneSettings
    from ltrag_plugins.training.tuning import FinetuneResult, FinetuneStep, finetune

__all__ = [
    "CorpusSettings", "Dataset", "Example", "FinetuneResult", "FinetuneSettings", "FinetuneStep",
    "build", "finetune", "keep", "load",
]  # fmt: skip
_MODULES = {
    "dataset": "Dataset Example build keep load",
    "settings": "CorpusSettings FinetuneSettings",
    "tuning": "FinetuneResult FinetuneStep finetune",
}
# settings and data need neither torch nor TRL
__getattr__, __dir__ = lazily(__name__, _MODULES)
