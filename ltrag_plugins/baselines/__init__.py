"""The systems the papers compare with, one file each, as flows.

Each file holds its flow, its settings, its prompts (our wording) and a `METHOD`; `BASELINES` is the
table of them.
"""

from ltrag_plugins.baselines.direct import direct
from ltrag_plugins.baselines.ircot import IRCoTSettings, ircot
from ltrag_plugins.baselines.iter_retgen import IterRetGenSettings, iter_retgen
from ltrag_plugins.baselines.listwise import ListwiseSettings, listwise, listwise_rerank
from ltrag_plugins.baselines.method import Method
from ltrag_plugins.baselines.self_rag import SelfRAGAnswer, SelfRAGSettings, self_rag
from ltrag_plugins.baselines.single import single_retrieval
from ltrag_plugins.baselines.sure import SuReSettings, sure
from ltrag_plugins.baselines.table import BASELINES, method

__all__ = [
    "BASELINES",
    "IRCoTSettings",
    "IterRetGenSettings",
    "ListwiseSettings",
    "Method",
    "SelfRAGAnswer",
    "SelfRAGSettings",
    "SuReSettings",
    "direct",
    "ircot",
    "iter_retgen",
    "listwise",
    "listwise_rerank",
    "method",
    "self_rag",
    "single_retrieval",
    "sure",
]
