"""Retrieval where it helps, passages that help, answers that know how sure they are.

Three components for LangChain and LlamaIndex. The top level names the one most
often reached for; both forms of each live in `ltrag_plugins.langchain` and
`ltrag_plugins.llama_index`. Importing this package imports no framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ltrag_plugins.langchain import GECERouter as GECERouter
    from ltrag_plugins.langchain import SGICCalibrator as SGICCalibrator
    from ltrag_plugins.llama_index import DURReranker as DURReranker

__all__ = ["DURReranker", "GECERouter", "SGICCalibrator"]

_HOMES = {
    "DURReranker": "ltrag_plugins.llama_index",
    "GECERouter": "ltrag_plugins.langchain",
    "SGICCalibrator": "ltrag_plugins.langchain",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
