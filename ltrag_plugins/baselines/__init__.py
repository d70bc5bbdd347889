"""The systems the papers compare with, one file each, as flows.

Each file holds its flow, its settings, its prompts (our wording) and a `METHOD`; `BASELINES` is the
table of them.
"""

from ltrag_plugins.baselines.direct import direct
from ltrag_plugins.baselines.method import Method
from ltrag_plugins.baselines.single import single_retrieval
from ltrag_plugins.baselines.table import BASELINES, method

__all__ = ["BASELINES", "Method", "direct", "method", "single_retrieval"]
