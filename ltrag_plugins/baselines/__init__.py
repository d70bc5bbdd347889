"""The systems the papers compare with, one file each, as flows.

Each file holds its flow, its settings, its prompts (our wording) and a `METHOD`; `BASELINES` is the
table of them.
"""

from ltrag_plugins.baselines.adaptive import (
    AdaptiveSettings,
    Complexity,
    adaptive,
    learn_complexity,
)
from ltrag_plugins.baselines.bm25_shots import BM25ShotsSettings, bm25_shots
from ltrag_plugins.baselines.direct import direct
from ltrag_plugins.baselines.filco import FILCOSettings, filco
from ltrag_plugins.baselines.filco_training import (
    FilterDataSettings,
    FilterExample,
    filter_examples,
)
from ltrag_plugins.baselines.ircot import IRCoTSettings, ircot
from ltrag_plugins.baselines.iter_retgen import IterRetGenSettings, iter_retgen
from ltrag_plugins.baselines.k_samples import KSamplesSettings, k_samples
from ltrag_plugins.baselines.listwise import ListwiseSettings, listwise, listwise_rerank
from ltrag_plugins.baselines.method import Method
from ltrag_plugins.baselines.probability_gates import (
    GateSettings,
    GateThreshold,
    fit_threshold,
    gated,
)
from ltrag_plugins.baselines.random_shots import RandomShotsSettings, random_shots
from ltrag_plugins.baselines.self_rag import SelfRAGAnswer, SelfRAGSettings, self_rag
from ltrag_plugins.baselines.shots import ShotPool, shot_pool
from ltrag_plugins.baselines.single import single_retrieval
from ltrag_plugins.baselines.skr import SelfKnowledge, SKRSettings, collect_self_knowledge, skr
from ltrag_plugins.baselines.sure import SuReSettings, sure
from ltrag_plugins.baselines.table import BASELINES, method

__all__ = [
    "BASELINES",
    "AdaptiveSettings",
    "BM25ShotsSettings",
    "Complexity",
    "FILCOSettings",
    "FilterDataSettings",
    "FilterExample",
    "GateSettings",
    "GateThreshold",
    "IRCoTSettings",
    "IterRetGenSettings",
    "KSamplesSettings",
    "ListwiseSettings",
    "Method",
    "RandomShotsSettings",
    "SKRSettings",
    "SelfKnowledge",
    "SelfRAGAnswer",
    "SelfRAGSettings",
    "ShotPool",
    "SuReSettings",
    "adaptive",
    "bm25_shots",
    "collect_self_knowledge",
    "direct",
    "filco",
    "filter_examples",
    "fit_threshold",
    "gated",
    "ircot",
    "iter_retgen",
    "k_samples",
    "learn_complexity",
    "listwise",
    "listwise_rerank",
    "method",
    "random_shots",
    "self_rag",
    "shot_pool",
    "single_retrieval",
    "skr",
    "sure",
]
