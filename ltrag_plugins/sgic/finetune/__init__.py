"""Fine-tune a model on calibrated examples (section 3.3, appendix A.1), with TRL and PEFT.

::

    settings         the paper's numbers, and those of the tool it used
    tokens           examples as token ids, prompts exactly as at inference
    loss  trainer    over the answers alone; TRL's trainer around it
    run  config      a run on disk that goes on after a kill; the adapter's files
    result           what a run leaves
    tuning           all of it
"""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.sgic.finetune.result import FinetuneResult as FinetuneResult
    from ltrag_plugins.sgic.finetune.settings import FinetuneSettings as FinetuneSettings
    from ltrag_plugins.sgic.finetune.tokens import TooLong as TooLong
    from ltrag_plugins.sgic.finetune.trainer import FinetuneStep as FinetuneStep
    from ltrag_plugins.sgic.finetune.tuning import finetune as finetune

_HOMES = {
    "FinetuneResult": "result",
    "FinetuneSettings": "settings",
    "FinetuneStep": "trainer",
    "TooLong": "tokens",
    "finetune": "tuning",
}

__all__ = ["FinetuneResult", "FinetuneSettings", "FinetuneStep", "TooLong", "finetune"]


# settings need neither torch nor TRL
__getattr__, __dir__ = lazily(__name__, _HOMES)
