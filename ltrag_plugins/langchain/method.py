"""Any method of `methods.METHODS` as a Runnable, in one line."""

from collections.abc import Sequence
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable

from ltrag_plugins.flow import Flow, World
from ltrag_plugins.langchain.component import Asked, Asking, FlowRunnable
from ltrag_plugins.langchain.embeddings import encoder_of
from ltrag_plugins.langchain.model import model_of
from ltrag_plugins.langchain.retriever import LangChainRetriever
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.methods import method_named
from ltrag_plugins.methods.method import Method
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Answer, Question


def as_runnable(
    method: str | Method,
    llm: LLM | Runnable[Any, Any],
    retriever: Retriever | Runnable[Any, Any] | None = None,
    *,
    encoder: Encoder | Embeddings | None = None,
    settings: Any = None,
    labelled: Sequence[Question] = (),
    question_key: str = "question",
    return_answer: bool = False,
) -> Runnable[Any, Any]:
    """A method (of `methods.METHODS`, by its name, or one of yours) as a component of a chain:
    question in, answer out. In `batch` the model calls are merged.

    Args:
        llm, retriever, encoder: LangChain's or ours; a retriever may be any Runnable from a query
            to documents.
        settings: the method's; None: its defaults.
        labelled: questions with accepted answers, for the methods that learn: they do now.
        question_key: where the question is in an input that is a mapping.
        return_answer: put out the whole `Answer`, with passages and trace, not its text.

    Raises:
        InvalidInput: there is no such method, or a part that it needs is missing.
        ArtifactMismatch: the settings hold a head that was trained with another encoder.
    """
    row = method_named(method) if isinstance(method, str) else method
    world = World(**parts_of(llm, retriever, encoder))
    ready = row.ready(world, settings=settings, labelled=labelled)

    def flow(asked: Asked) -> Flow[Answer]:
        return ready(asked.words)

    def shown(answer: Answer, *_: Any) -> Any:
        return answer if return_answer else answer.text

    return FlowRunnable(flow, world, Asking(question_key), shown, row.name)


def parts_of(llm: Any, retriever: Any, encoder: Any) -> dict[str, Any]:
    """LangChain's as ours, by their names in a `World`."""
    searching = LangChainRetriever(retriever) if isinstance(retriever, Runnable) else retriever
    vectors = None if encoder is None else encoder_of(encoder)
    return {"llm": model_of(llm), "retriever": searching, "encoder": vectors}
