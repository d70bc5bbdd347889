"""Any method of `methods.METHODS` as a query engine, in one line."""

from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.response.schema import RESPONSE_TYPE, Response
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import QueryBundle

from ltrag_plugins.flow import Flow, World, arun, run
from ltrag_plugins.llama_index.embeddings import encoder_of
from ltrag_plugins.llama_index.model import model_of
from ltrag_plugins.llama_index.retriever import node_of, retriever_of
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.methods import method_named
from ltrag_plugins.methods.method import Method
from ltrag_plugins.methods.self_rag import SelfRAGAnswer
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Answer, Question


class MethodQueryEngine(BaseQueryEngine):
    """Answers with a method; see `as_query_engine`. The answer's passages are the source nodes; the
    metadata has the method, the uncertainty where there is one, and Self-RAG's `mode`."""

    def __init__(self, method: str, flow: Callable[[str], Flow[Answer]], world: World) -> None:
        super().__init__(None)
        self._method, self._flow, self._world = method, flow, world

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return self._told(run(self._flow(query_bundle.query_str), self._world))

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return self._told(await arun(self._flow(query_bundle.query_str), self._world))

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _told(self, answer: Answer) -> Response:
        metadata: dict[str, Any] = {"method": self._method}
        if answer.uncertainty is not None:
            metadata["uncertainty"] = answer.uncertainty
        if isinstance(answer, SelfRAGAnswer):
            metadata["mode"] = answer.mode
        return Response(answer.text, [node_of(passage) for passage in answer.passages], metadata)


def as_query_engine(
    method: str | Method,
    llm: LLM | BaseLLM | None = None,
    retriever: Retriever | BaseRetriever | None = None,
    *,
    encoder: Encoder | BaseEmbedding | None = None,
    settings: Any = None,
    labelled: Sequence[Question] = (),
) -> MethodQueryEngine:
    """A method (of `methods.METHODS`, by its name, or one of yours) as a query engine.

    Args:
        llm, retriever, encoder: LlamaIndex's or ours; model and encoder are by default those of its
            `Settings`.
        settings: the method's; None: its defaults.
        labelled: questions with accepted answers, for the methods that learn: they do now.

    Raises:
        InvalidInput: there is no such method, or a part that it needs is missing.
        ArtifactMismatch: the settings hold a head that was trained with another encoder.
    """
    row = method_named(method) if isinstance(method, str) else method
    scoring = getattr(getattr(settings, "loop", None), "source", "")  # of SGIC's documents
    vectors = encoder_of(encoder) if encoder or "encoder" in {scoring, *row.needs} else None
    world = World(llm=model_of(llm), retriever=retriever_of(retriever), encoder=vectors)
    return MethodQueryEngine(
        row.name, row.ready(world, settings=settings, labelled=labelled), world
    )
