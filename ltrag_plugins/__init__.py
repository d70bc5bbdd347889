"""Retrieval where it helps, passages that help, answers that know how sure they are.

Three components for LangChain and LlamaIndex. The top level names the one most
often reached for; both forms of each live in `ltrag_plugins.langchain` and
`ltrag_plugins.llama_index`. Importing this package imports no framework.
"""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.langchain import GECERouter as GECERouter
    from ltrag_plugins.langchain import SGICCalibrator as SGICCalibrator
    from ltrag_plugins.llama_index import DURReranker as DURReranker

__all__ = ["DURReranker", "GECERouter", "SGICCalibrator"]
__version__ = "0.1.0"

_MODULES = {"langchain": "GECERouter SGICCalibrator", "llama_index": "DURReranker"}

__getattr__, __dir__ = lazily(__name__, _MODULES)
