"""Every system that the papers compare with, and ours: a file has flow, settings, prompts, row."""

from collections.abc import Mapping

from ltrag_plugins.errors import unknown_name
from ltrag_plugins.methods.adaptive import METHOD as ADAPTIVE
from ltrag_plugins.methods.direct import DIRECT, SINGLE
from ltrag_plugins.methods.dur import METHOD as DUR
from ltrag_plugins.methods.filco import METHOD as FILCO
from ltrag_plugins.methods.gates import GATES
from ltrag_plugins.methods.ircot import METHOD as IRCOT
from ltrag_plugins.methods.iter_retgen import METHOD as ITER_RETGEN
from ltrag_plugins.methods.k_samples import METHOD as K_SAMPLES
from ltrag_plugins.methods.listwise import METHOD as LISTWISE
from ltrag_plugins.methods.method import Method
from ltrag_plugins.methods.self_rag import METHOD as SELF_RAG
from ltrag_plugins.methods.sgic import METHOD as SGIC
from ltrag_plugins.methods.shots import SHOTS
from ltrag_plugins.methods.skr import METHOD as SKR
from ltrag_plugins.methods.sure import METHOD as SURE

__all__ = ["METHODS", "Method", "method_named"]

_PLAIN = (DIRECT, SINGLE, IRCOT, ITER_RETGEN, SELF_RAG, SURE, LISTWISE, FILCO, K_SAMPLES)
*_shots, _promptpg, _dur = SHOTS
_LEARNING, _OURS = (*_shots, SKR, ADAPTIVE, *GATES, _promptpg), (DUR, _dur, SGIC)
METHODS: Mapping[str, Method] = {row.name: row for row in (*_PLAIN, *_LEARNING, *_OURS)}
"""To add a method: one file, one row here, one worked example as a test, one row of the docs."""


def method_named(name: str, methods: Mapping[str, Method] = METHODS) -> Method:
    """The method of that name; where there is none, InvalidInput names the nearest."""
    if name in methods:
        return methods[name]
    raise unknown_name("method", name, methods)
