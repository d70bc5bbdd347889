"""Every method by its name: the rows an evaluation can be asked for."""

from collections.abc import Mapping

from ltrag_plugins.baselines.adaptive import METHOD as ADAPTIVE
from ltrag_plugins.baselines.bm25_shots import METHOD as BM25_SHOTS
from ltrag_plugins.baselines.direct import METHOD as DIRECT
from ltrag_plugins.baselines.filco import METHOD as FILCO
from ltrag_plugins.baselines.ircot import METHOD as IRCOT
from ltrag_plugins.baselines.iter_retgen import METHOD as ITER_RETGEN
from ltrag_plugins.baselines.k_samples import METHOD as K_SAMPLES
from ltrag_plugins.baselines.listwise import METHOD as LISTWISE
from ltrag_plugins.baselines.method import Method
from ltrag_plugins.baselines.probability_gates import METHODS as GATES
from ltrag_plugins.baselines.random_shots import METHOD as RANDOM_SHOTS
from ltrag_plugins.baselines.self_rag import METHOD as SELF_RAG
from ltrag_plugins.baselines.single import METHOD as SINGLE
from ltrag_plugins.baselines.skr import METHOD as SKR
from ltrag_plugins.baselines.sure import METHOD as SURE
from ltrag_plugins.errors import unknown_name

BASELINES: Mapping[str, Method] = {
    method.name: method
    for method in (
        DIRECT,
        SINGLE,
        IRCOT,
        ITER_RETGEN,
        SELF_RAG,
        SURE,
        LISTWISE,
        FILCO,
        K_SAMPLES,
        RANDOM_SHOTS,
        BM25_SHOTS,
        SKR,
        ADAPTIVE,
        *GATES,
    )
}
"""To add a method: one file, one row here, one worked example as a test, one row of the docs."""


def method(name: str, methods: Mapping[str, Method] = BASELINES) -> Method:
    """The method of that name.

    Raises:
        InvalidInput: there is none; names the nearest.
    """
    if name in methods:
        return methods[name]
    raise unknown_name("method", name, methods)
