"""Teach a model to mend its answers: training data from calibrated questions, and fine-tuning.

References:
    Chen et al. (SGIC), section 3.3 and appendix A.1.
"""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.training.dataset import build as build
    from ltrag_plugins.training.examples import Dataset as Dataset
    from ltrag_plugins.training.examples import Example as Example
    from ltrag_plugins.training.examples import load as load
    from ltrag_plugins.training.settings import CorpusSettings as CorpusSettings
    from ltrag_plugins.training.settings import FinetuneSettings as FinetuneSettings
    from ltrag_plugins.training.sft import FinetuneStep as FinetuneStep
    from ltrag_plugins.training.sft import TooLong as TooLong
    from ltrag_plugins.training.tuning import FinetuneResult as FinetuneResult
    from ltrag_plugins.training.tuning import finetune as finetune

_HOMES = {
    "CorpusSettings": "settings",
    "Dataset": "examples",
    "Example": "examples",
    "FinetuneResult": "tuning",
    "FinetuneSettings": "settings",
    "FinetuneStep": "sft",
    "TooLong": "sft",
    "build": "dataset",
    "finetune": "tuning",
    "load": "examples",
}

__all__ = [
    "CorpusSettings",
    "Dataset",
    "Example",
    "FinetuneResult",
    "FinetuneSettings",
    "FinetuneStep",
    "TooLong",
    "build",
    "finetune",
    "load",
]


# settings and examples need neither torch nor TRL
__getattr__, __dir__ = lazily(__name__, _HOMES)
