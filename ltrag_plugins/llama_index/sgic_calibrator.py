"""A synthesizer whose answers know how sure they are."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryType

from ltrag_plugins import sgic
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, World, arun, run
from ltrag_plugins.llama_index.embeddings import encoder_of
from ltrag_plugins.llama_index.model import LtragLLM
from ltrag_plugins.llama_index.sgic_metadata import KEY, metadata_of
from ltrag_plugins.llama_index.sgic_nodes import read_passage
from ltrag_plugins.llama_index.sgic_setup import model_of, parts_of
from ltrag_plugins.llama_index.sgic_synthesis import (
    apiece,
    piece,
    refuse_keywords,
    synthesis,
    text_of,
)
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.calibrator import REFUSAL, Refusal, remark_untried
from ltrag_plugins.sgic.documents import Relevance, check_source
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Passage


class SGICCalibrator(BaseSynthesizer):
    """Answers from nodes, measures how sure the answer is, and looks again where it is not.

    For `RetrieverQueryEngine(retriever, SGICCalibrator(llm))`. What is known of the answer is
    in the response's `metadata["sgic"]`, as plain values: `uncertainty` in [0, 1], `score` 0-100
    and `p_wrong` in [0, 1] (larger is less certain in all three), `documents` with their node
    ids, `stop`, `calls`, `tokens`, the `trace` and so on. The source nodes stay as they came.

    Without nodes the model answers from what it knows, once; it never says "Empty Response".
    A node is read as it shows itself to language models.
    """

    def __init__(
        self,
        llm: LLM | BaseLLM,
        *,
        calibration: "sgic.Calibration | None" = None,
        settings: SGICSettings | None = None,
        scale: ScoreScale | None = None,
        relevance: Relevance | None = None,
        encoder: Encoder | BaseEmbedding | None = None,
        refuse_above: float | None = None,
        refuse_p_wrong_above: float | None = None,
        refusal: str = REFUSAL,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        """Answer with `llm`; see also `from_pretrained`.

        Args:
            llm: a model of ours, or a LlamaIndex LLM, which is then reached through
                `LlamaIndexLLM(llm)`; wrap it yourself to set keywords or ask for token
                probabilities. Without those, set `estimator="agreement"`.
            calibration: what a fit on your questions found: settings, scale and P(wrong).
                Rounds without one are warned of in the log: nobody tried them on this model.
            settings: None: those of the calibration, or the defaults.
            scale: without a calibration, that of the settings' estimator; None:
                `ScoreScale.default`.
            relevance: scores passages, for `source="relevance"`; larger is more relevant.
            encoder: for `source="encoder"`.
            refuse_above: an answer with a score above this, 0-100, is not given; `refusal` is,
                and the answer stays in `metadata["sgic"]["text"]`. None: never.
            refuse_p_wrong_above: the same for P(wrong), in [0, 1]; needs a calibration with one.
            refusal: what to say then.
            streaming: hand out the finished answer as a stream of one piece, for callers that
                read `response_gen`; which round wins is known only after the last one.
            callback_manager: None: LlamaIndex's `Settings.callback_manager`.

        Raises:
            InvalidInput: one of these is of another type or out of its range, or something
                that it needs is missing.
            ArtifactMismatch: scale or calibration are of another estimator than the settings.
        """
        ours = model_of(llm)
        self._settings, self._scale = parts_of(calibration, settings, scale)
        self._wrongness = None if calibration is None else calibration.wrongness
        self._relevance = relevance
        self._refusal = Refusal(refuse_above, refuse_p_wrong_above, refusal)
        if refuse_p_wrong_above is not None and self._wrongness is None:
            raise InvalidInput(
                "refuse_p_wrong_above needs a calibration that holds P(wrong); fit one, or refuse "
                "by the score with refuse_above."
            )
        self._world = World(llm=ours, encoder=None if encoder is None else encoder_of(encoder))
        check_source(
            self._settings.source,
            relevance=relevance is not None,
            encoder=self._world.encoder is not None,
        )
        # the base class writes its callback manager into the LLM it is given: not the caller's
        super().__init__(LtragLLM(ours), callback_manager, streaming=streaming)
        remark_untried(self._settings, fitted=calibration is not None)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike[str],
        *,
        llm: LLM | BaseLLM,
        settings: SGICSettings | None = None,
        relevance: Relevance | None = None,
        encoder: Encoder | BaseEmbedding | None = None,
        refuse_above: float | None = None,
        refuse_p_wrong_above: float | None = None,
        refusal: str = REFUSAL,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> Self:
        """With the calibration that `Calibration.save` wrote; the rest as in the constructor.

        Raises:
            UnreadableArtifact: missing, incomplete or tampered with.
            ArtifactMismatch: fitted on another model, or for another estimator.
            InvalidInput: as in the constructor.
        """
        ours = model_of(llm)
        return cls(
            ours,
            calibration=sgic.Calibration.load(folder, llm=ours),
            settings=settings,
            relevance=relevance,
            encoder=encoder,
            refuse_above=refuse_above,
            refuse_p_wrong_above=refuse_p_wrong_above,
            refusal=refusal,
            streaming=streaming,
            callback_manager=callback_manager,
        )

    def query_engine(
        self,
        retriever: BaseRetriever,
        *,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
    ) -> RetrieverQueryEngine:
        """A query engine that retrieves, postprocesses, and answers with this."""
        return RetrieverQueryEngine(retriever, self, list(node_postprocessors))

    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Answer from the nodes.

        Args:
            additional_source_nodes: go to the response's source nodes, unread.

        Raises:
            EmptyQuestion: the query has no words.
            InvalidInput: keywords came along; settings belong into the constructor.
            NoTokenProbabilities: the model gives none; set `estimator="agreement"`.
            ModelError, PromptTooLong: the model failed; see `SGICSettings.on_error`.
        """
        refuse_keywords(response_kwargs)
        sources = [*nodes, *(additional_source_nodes or ())]
        with synthesis(query, self._callback_manager) as ended:
            flow = self._flow(text_of(query), [read_passage(node) for node in nodes])
            text, metadata = self._told(run(flow, self._world), sources)
            if self._streaming:
                return ended(StreamingResponse(piece(text), sources, metadata))
            return ended(Response(text, sources, metadata))

    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """As `synthesize`; cancelling it stops within the model call that is under way."""
        refuse_keywords(response_kwargs)
        sources = [*nodes, *(additional_source_nodes or ())]
        with synthesis(query, self._callback_manager) as ended:
            flow = self._flow(text_of(query), [read_passage(node) for node in nodes])
            text, metadata = self._told(await arun(flow, self._world), sources)
            if self._streaming:
                return ended(AsyncStreamingResponse(apiece(text), sources, metadata))
            return ended(Response(text, sources, metadata))

    def get_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> str:
        """The answer's text alone, or the refusal; raises as `synthesize`."""
        refuse_keywords(response_kwargs)
        answer = run(self._flow(query_str, [Passage(text) for text in text_chunks]), self._world)
        return self._refusal.said(answer)

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> str:
        """As `get_response`."""
        refuse_keywords(response_kwargs)
        flow = self._flow(query_str, [Passage(text) for text in text_chunks])
        return self._refusal.said(await arun(flow, self._world))

    def _flow(self, question: str, passages: Sequence[Passage]) -> Flow[CalibratedAnswer]:
        return sgic.calibrate(
            question,
            passages,
            self._settings,
            self._scale,
            wrongness=self._wrongness,
            relevance=self._relevance,
        )

    def _told(
        self, answer: CalibratedAnswer, sources: Sequence[NodeWithScore]
    ) -> tuple[str, dict[str, Any]]:
        """What to say, and the metadata: the nodes' as the base class has it, and ours."""
        theirs = self._get_metadata_for_response([found.node for found in sources]) or {}
        ours = metadata_of(answer, refused=self._refusal.refuses(answer))
        return self._refusal.said(answer), {**theirs, KEY: ours}

    def _get_prompts(self) -> PromptDictType:
        return {}

    def _update_prompts(self, prompts_dict: PromptDictType) -> None:
        if prompts_dict:
            raise InvalidInput(
                f"SGICCalibrator has no LlamaIndex prompts to update, got {sorted(prompts_dict)}. "
                "Its wording is SGICSettings(templates=PromptTemplates(...))."
            )
