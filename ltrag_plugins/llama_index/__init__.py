"""The components as LlamaIndex's, and LlamaIndex's models and retrievers as ours.

Everything here translates: prompts, formulas and thresholds live in the rooms below. What
the caller hands in (models, engines, nodes, responses) is never changed, and no synchronous
call of a model or retriever runs on an event loop.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.lazy import lazily

try:
    import_module("llama_index.core")
except ImportError as error:
    raise missing_extra("llama-index-core", "llama-index") from error

from ltrag_plugins.llama_index.calibrate import SGICCalibrator, SGICEvaluator
from ltrag_plugins.llama_index.embeddings import LlamaIndexEncoder, LtragEmbedding
from ltrag_plugins.llama_index.gate import (
    GECEDecisionEvent,
    GECERetriever,
    GECERouter,
    GECESelector,
)
from ltrag_plugins.llama_index.method import MethodQueryEngine, as_query_engine
from ltrag_plugins.llama_index.model import LlamaIndexLLM, LtragLLM
from ltrag_plugins.llama_index.rerank import DURReranker
from ltrag_plugins.llama_index.retriever import (
    LlamaIndexRetriever,
    PassageRetriever,
    node_of,
    passage_of,
)

if TYPE_CHECKING:
    from ltrag_plugins.llama_index.pipeline import LongTailRAG

__all__ = [
    "DURReranker",
    "GECEDecisionEvent",
    "GECERetriever",
    "GECERouter",
    "GECESelector",
    "LlamaIndexEncoder",
    "LlamaIndexLLM",
    "LlamaIndexRetriever",
    "LongTailRAG",
    "LtragEmbedding",
    "LtragLLM",
    "MethodQueryEngine",
    "PassageRetriever",
    "SGICCalibrator",
    "SGICEvaluator",
    "as_query_engine",
    "node_of",
    "passage_of",
]

# the pipeline brings all of `evaluate`
__getattr__, __dir__ = lazily(__name__, {"pipeline": "LongTailRAG"})
