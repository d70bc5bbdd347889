"""Gate, reranker and calibrator, each where it paid, as one query engine."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import QueryBundle

from ltrag_plugins import evaluate
from ltrag_plugins.errors import checked, listed
from ltrag_plugins.evaluate import LongTailAnswer, PipelineReport
from ltrag_plugins.flow import arun, run
from ltrag_plugins.llama_index.calibrate import calibrated_metadata
from ltrag_plugins.llama_index.embeddings import encoder_of
from ltrag_plugins.llama_index.fitting import judge_of, question_of
from ltrag_plugins.llama_index.gate import question_in, written
from ltrag_plugins.llama_index.model import model_of
from ltrag_plugins.llama_index.retriever import node_of, retriever_of
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.retrieval.base import Retriever


class LongTailRAG(BaseQueryEngine):
    """Answers with the parts that paid on your questions; `fit` or `load` makes one.

    The response is the answer, or the refusal, with the passages that it rests on as source nodes.
    Its `metadata["longtail"]` has `p_wrong` and `uncertainty` (0-1, None where unknown; larger is
    less certain) and `refused`; `metadata["gece"]` the gate's decision and `metadata["sgic"]` what
    the calibrator knows, where these spoke.

    Args:
        rag: the core's `evaluate.LongTailRAG`; `rag.refusing(0.8)` keeps unsure answers back.
        streaming: hand out the finished answer as a stream of one piece, for callers that read
            `response_gen`.
    """

    def __init__(self, rag: evaluate.LongTailRAG, *, streaming: bool = False) -> None:
        wanted = "an evaluate.LongTailRAG (fit or load makes one)"
        self.rag: evaluate.LongTailRAG = checked(rag, evaluate.LongTailRAG, "rag", wanted)
        self._streaming = streaming
        super().__init__(None)

    @classmethod
    def fit(
        cls,
        questions: Sequence[Any],
        *,
        llm: LLM | BaseLLM | None = None,
        retriever: Retriever | BaseRetriever,
        encoder: Encoder | BaseEmbedding | None = None,
        correct: Any = None,
        streaming: bool = False,
        **how: Any,
    ) -> Self:
        """Fit the parts and keep those that pay; see `evaluate.LongTailRAG.fit`.

        Args:
            questions: texts, `QueryBundle`s, mappings (`answers` has the accepted ones) or
                `Question`s.
            llm, retriever, encoder: LlamaIndex's or ours; the model is by default that of its
                `Settings`; without an encoder nothing is reranked.
            correct: as for `GECERouter.fit`: also a LlamaIndex model or evaluator.
            streaming: as above.
            how: target_accuracy, budget, settings, observers, on_stage, batch.
        """
        parts = _parts(llm, retriever, encoder)
        asked = [*map(question_of, listed(questions, "questions"))]
        rag = evaluate.LongTailRAG.fit(asked, **parts, correct=judge_of(correct), **how)
        return cls(rag, streaming=streaming)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        llm: LLM | BaseLLM | None = None,
        retriever: Retriever | BaseRetriever | None = None,
        encoder: Encoder | BaseEmbedding | None = None,
        refuse_p_wrong_above: float | None = None,
        streaming: bool = False,
    ) -> Self:
        """What `save` (or `ltrag fit`) wrote; raises as `evaluate.LongTailRAG.load`. With a limit,
        less sure answers are kept back."""
        rag = evaluate.LongTailRAG.load(folder, **_parts(llm, retriever, encoder))
        if refuse_p_wrong_above is not None:
            rag = rag.refusing(refuse_p_wrong_above)
        return cls(rag, streaming=streaming)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write what was kept."""
        self.rag.save(folder)

    @property
    def report(self) -> PipelineReport | None:
        """What the fit found, as a table."""
        return self.rag.report

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        answer = run(self.rag.answering(question_in(query_bundle)), self.rag.world)
        return _told(answer, streaming=self._streaming)

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        answer = await arun(self.rag.answering(question_in(query_bundle)), self.rag.world)
        return _told(answer, streaming=self._streaming, awaited=True)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}


def _told(answer: LongTailAnswer, **way: bool) -> RESPONSE_TYPE:
    names = ("question", "p_wrong", "uncertainty", "refused")
    metadata: dict[str, Any] = {"longtail": {name: getattr(answer, name) for name in names}}
    if answer.decision is not None:
        metadata["gece"] = answer.decision.as_metadata()
    if answer.calibrated is not None:
        metadata["sgic"] = calibrated_metadata(answer.calibrated, refused=answer.refused)
    return written(answer.text, [*map(node_of, answer.passages)], metadata, **way)


def _parts(llm: Any, retriever: Any, encoder: Any) -> dict[str, Any]:
    """LlamaIndex's as ours."""
    vectors = None if encoder is None else encoder_of(encoder)
    return {"llm": model_of(llm), "retriever": retriever_of(retriever), "encoder": vectors}
