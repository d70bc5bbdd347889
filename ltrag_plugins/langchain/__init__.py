"""The components as LangChain's, and LangChain's models and retrievers as ours.

Everything here translates: prompts, formulas and thresholds live in the rooms below. What
the caller hands in (models, retrievers, documents) is never changed. Only `langchain_core`
is imported.
"""

from typing import TYPE_CHECKING

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.lazy import lazily

try:
    import langchain_core as langchain_core
except ImportError as error:
    raise missing_extra("langchain-core", "langchain") from error

from ltrag_plugins.langchain.calibrate import SGICCalibrator
from ltrag_plugins.langchain.embeddings import LangChainEncoder, LtragEmbeddings
from ltrag_plugins.langchain.gate import GECERetriever, GECERouter, gece_edge
from ltrag_plugins.langchain.method import as_runnable
from ltrag_plugins.langchain.model import AskSettings, LangChainLLM, LtragLLM, set_fields
from ltrag_plugins.langchain.rerank import DURExampleSelector, DURReranker
from ltrag_plugins.langchain.retriever import (
    LangChainRetriever,
    PassageRetriever,
    document_of,
    passage_of,
)

if TYPE_CHECKING:
    from ltrag_plugins.langchain.decisions import DecisionSignal as DecisionSignal
    from ltrag_plugins.langchain.decisions import GECEDecisions as GECEDecisions
    from ltrag_plugins.langchain.middleware import GECEMiddleware, SGICMiddleware
    from ltrag_plugins.langchain.pipeline import LongTailRAG

__all__ = [
    "AskSettings",
    "DURExampleSelector",
    "DURReranker",
    "GECEMiddleware",
    "GECERetriever",
    "GECERouter",
    "LangChainEncoder",
    "LangChainLLM",
    "LangChainRetriever",
    "LongTailRAG",
    "LtragEmbeddings",
    "LtragLLM",
    "PassageRetriever",
    "SGICCalibrator",
    "SGICMiddleware",
    "as_runnable",
    "document_of",
    "gece_edge",
    "passage_of",
    "set_fields",
]

# the middleware needs langchain itself; the decisions, which are not in __all__ as a star import
# must do without them, langchain_core 1.8; the pipeline brings all of `evaluate`
__getattr__, __dir__ = lazily(
    __name__,
    {
        "decisions": "DecisionSignal GECEDecisions",
        "middleware": "GECEMiddleware SGICMiddleware",
        "pipeline": "LongTailRAG",
    },
)
