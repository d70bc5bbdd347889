"""A synthesizer whose answers know how sure they are, and an evaluator that reads them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any, NoReturn, Self, Unpack

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.response.schema import RESPONSE_TYPE, Response
from llama_index.core.callbacks import CBEventType, EventPayload
from llama_index.core.evaluation import BaseEvaluator, EvaluationResult
from llama_index.core.instrumentation.events import synthesis
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeWithScore,
    QueryBundle,
    QueryType,
)
from llama_index_instrumentation import get_dispatcher

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.llama_index.embeddings import encoder_of
from ltrag_plugins.llama_index.gate import NoPrompts, written
from ltrag_plugins.llama_index.model import LtragLLM, model_of
from ltrag_plugins.llama_index.retriever import (
    EITHER_RETRIEVER,
    PassageRetriever,
    checked_retriever,
    shown_passage,
    with_scores,
)
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.settings import Percent, Settings
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.calibrator import Calibration, Calibrator, CalibratorOptions
from ltrag_plugins.types import Passage

_KEY = "sgic"  # of the calibration in `Response.metadata`
_dispatcher = get_dispatcher(__name__)


class SGICCalibrator(NoPrompts, BaseSynthesizer):
    """Answers from nodes, measures how sure the answer is, and with rounds looks again.

    For `RetrieverQueryEngine(retriever, SGICCalibrator(llm))`. What is known of the answer is
    in the response's `metadata["sgic"]`, as plain values: `uncertainty` in [0, 1], `score` 0-100
    and `p_wrong` in [0, 1] (larger is less certain in all three), `documents` with their node
    ids, `stop`, `calls`, `tokens`, the `trace` and so on; `text` is the answer also where it was
    refused. A node is read as it shows itself to language models, and stays as it came. Without
    nodes the model answers from what it knows, once; it never says "Empty Response".

    Args:
        llm: a model of ours, or a LlamaIndex LLM (None: LlamaIndex's `Settings.llm`), which is
            reached through `LlamaIndexLLM(llm)` and asked for token probabilities. For an LLM
            without those set `estimator="agreement"`.
        streaming: hand out the finished answer as a stream of one piece, for callers that
            read `response_gen`.
        calibration, options: those of `sgic.Calibrator`; the encoder may be a LlamaIndex
            embedding model, and is `Settings.embed_model` where one is needed and none given.

    Raises:
        InvalidInput, ArtifactMismatch: as `sgic.Calibrator`.
    """

    def __init__(
        self,
        llm: LLM | BaseLLM | None = None,
        *,
        calibration: Calibration | None = None,
        streaming: bool = False,
        **options: Unpack[CalibratorOptions],
    ) -> None:
        ours = model_of(llm)
        named = options.get("settings") or getattr(calibration, "settings", None)
        if options.get("encoder") or getattr(named, "source", "") == "encoder":
            options["encoder"] = encoder_of(options.get("encoder"))
        self._calibrator = Calibrator(ours, calibration=calibration, **options)
        # the base class writes its callback manager into the LLM it is given: not the caller's
        super().__init__(LtragLLM(ours), streaming=streaming)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike[str],
        *,
        llm: LLM | BaseLLM | None = None,
        streaming: bool = False,
        **options: Unpack[CalibratorOptions],
    ) -> Self:
        """With the calibration that `Calibration.save` wrote; raises as `Calibration.load`."""
        ours = model_of(llm)
        calibration = Calibration.load(folder, llm=ours)
        return cls(ours, calibration=calibration, streaming=streaming, **options)

    def query_engine(
        self,
        retriever: BaseRetriever | Retriever,
        *,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
    ) -> RetrieverQueryEngine:
        """A query engine that retrieves, postprocesses, and answers with this; of our retrievers as
        `PassageRetriever(retriever)`."""
        found = checked_retriever(retriever, BaseRetriever | Retriever, EITHER_RETRIEVER)
        found = found if isinstance(found, BaseRetriever) else PassageRetriever(found)
        return RetrieverQueryEngine(found, self, list(node_postprocessors))

    def synthesize(
        self,
        query: QueryType,
        nodes: Sequence[NodeWithScore | BaseNode],
        additional_source_nodes: Sequence[NodeWithScore | BaseNode] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Answer from the nodes; the additional ones go to the response's source nodes, unread.

        Raises:
            InvalidInput: keywords came along; settings belong into the constructor.
            EmptyQuestion, NoTokenProbabilities, ModelError, PromptTooLong: as `sgic.calibrate`.
        """
        shown = with_scores(nodes)
        sources = [*shown, *with_scores(additional_source_nodes or ())]
        with self._synthesis(query, sources, response_kwargs) as (question, ended):
            return ended(self._calibrator.answer(question, _shown(shown)))

    async def asynthesize(
        self,
        query: QueryType,
        nodes: Sequence[NodeWithScore | BaseNode],
        additional_source_nodes: Sequence[NodeWithScore | BaseNode] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """As `synthesize`; cancelling it stops within the model call that is under way."""
        shown = with_scores(nodes)
        sources = [*shown, *with_scores(additional_source_nodes or ())]
        with self._synthesis(query, sources, response_kwargs) as (question, ended):
            answer = await self._calibrator.aanswer(question, _shown(shown))
            return ended(answer, awaited=True)

    def get_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> str:
        """The answer's text alone, or the refusal; raises as `synthesize`. Without texts (`[]`) the
        model answers from what it knows."""
        _refuse_keywords(response_kwargs)
        answer = self._calibrator.answer(query_str, _passages(text_chunks))
        return self._calibrator.refusal.said(answer)

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> str:
        """As `get_response`."""
        _refuse_keywords(response_kwargs)
        answer = await self._calibrator.aanswer(query_str, _passages(text_chunks))
        return self._calibrator.refusal.said(answer)

    @contextmanager
    def _synthesis(
        self, query: QueryType, sources: list[NodeWithScore], keywords: dict[str, Any]
    ) -> Iterator[tuple[str, Callable[..., RESPONSE_TYPE]]]:
        """The events that the base class emits around a synthesis; yields the question, and what
        makes the response of an answer and ends the synthesis."""
        _refuse_keywords(keywords)
        query = query if isinstance(query, QueryBundle) else QueryBundle(query)
        _dispatcher.event(synthesis.SynthesizeStartEvent(query=query))
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query.query_str}
        with self._callback_manager.event(CBEventType.SYNTHESIZE, payload=payload) as event:

            def ended(answer: CalibratedAnswer, *, awaited: bool = False) -> RESPONSE_TYPE:
                refusal = self._calibrator.refusal
                theirs = self._get_metadata_for_response([found.node for found in sources]) or {}
                ours = calibrated_metadata(answer, refused=refusal.refuses(answer))
                text, metadata = refusal.said(answer), {**theirs, _KEY: ours}
                streaming = self._streaming
                response = written(text, sources, metadata, streaming=streaming, awaited=awaited)
                event.on_end(payload={EventPayload.RESPONSE: response})
                _dispatcher.event(synthesis.SynthesizeEndEvent(query=query, response=response))
                return response

            yield query.query_str, ended


@dataclass(frozen=True, slots=True)
class _Passing(Settings):
    pass_below: Percent = 50.0


class SGICEvaluator(NoPrompts, BaseEvaluator):
    """Passing are responses whose uncertainty score is below a threshold, and not refused.

    For `RetryQueryEngine` and the like; asks no model. The score of a gate's draft is the
    probability, in percent, that it is wrong. The result's score is the certainty,
    1 - score / 100, in [0, 1]: larger is better, as with LlamaIndex's own evaluators. `pass_below`
    is 0-100; on a fitted scale 50 is as uncertain as the mean answer.
    """

    def __init__(self, pass_below: float = 50.0) -> None:
        self._pass_below = _Passing(pass_below).pass_below

    def evaluate_response(
        self, query: str | None = None, response: Response | None = None, **kwargs: Any
    ) -> EvaluationResult:
        """Judge a response by its metadata; `InvalidInput` where that has neither a calibrator's
        score nor a gate's decision to answer directly."""
        if not isinstance(response, RESPONSE_TYPE):
            remedy = "pass response=..., as an SGICCalibrator's engine gave it"
            raise InvalidInput(f"there is no response to evaluate in {response!r:.40}; {remedy}")
        metadata = response.metadata or {}
        known, gated = metadata.get(_KEY), metadata.get("gece")
        whole = metadata.get("longtail") or {}  # a pipeline's, which may keep a draft back
        said = getattr(response, "response", None) or getattr(response, "response_txt", None)
        p_wrong = whole.get("p_wrong")
        if not whole and isinstance(gated, dict) and gated.get("retrieve") is False:
            p_wrong = gated["probability"]
        if known is None and p_wrong is not None:
            known = {"score": 100 * p_wrong, "refused": whole.get("refused", False)}
        if not isinstance(known, dict) or "score" not in known:
            raise InvalidInput(
                f"this response carries no uncertainty: metadata[{_KEY!r}] is {known!r:.60}. Let "
                "SGICCalibrator synthesize it: RetrieverQueryEngine(retriever, SGICCalibrator(llm))"
            )
        score, refused = known["score"], known["refused"]
        passing = score < self._pass_below and not refused
        return EvaluationResult(
            query=query,
            contexts=[node.get_content() for node in response.source_nodes],
            response=str(said or ""),
            passing=passing,
            feedback=f"The answer is {'certain enough' if passing else 'too uncertain'}: its "
            f"uncertainty score is {score:.0f} of 100{' and was refused' if refused else ''}; "
            f"below {self._pass_below:g} passes.",
            score=1 - score / 100,
        )

    async def aevaluate_response(
        self, query: str | None = None, response: Response | None = None, **kwargs: Any
    ) -> EvaluationResult:
        """As `evaluate_response`; there is nothing to wait for."""
        return self.evaluate_response(query, response, **kwargs)

    async def aevaluate(self, *_: Any, response: str | None = None, **__: Any) -> NoReturn:
        """Raises `InvalidInput`: a text alone carries no uncertainty, a response does."""
        raise InvalidInput(
            f"the text {response!r:.40} carries no uncertainty. Pass the whole response of an "
            "SGICCalibrator to evaluate_response."
        )


def _shown(nodes: Sequence[NodeWithScore]) -> list[Passage]:
    return [shown_passage(node, MetadataMode.LLM) for node in nodes]


def _passages(chunks: Any) -> list[Passage]:
    wanted = "texts, a list of them ([] for none); nodes go to synthesize"
    kind = list if isinstance(chunks, str) else Iterable  # whose letters would be read one by one
    listed = checked(chunks, kind, "text_chunks", wanted)
    return [Passage(checked(text, str, "text_chunks", wanted)) for text in listed]


def calibrated_metadata(answer: CalibratedAnswer, *, refused: bool) -> dict[str, Any]:
    """The answer and how it came about, in values that JSON holds."""
    top = ("text", "round", "stop", "estimator", "error", "calls", "tokens")
    return {
        **_fields(answer, *top, "uncertainty", "score", "p_wrong"),
        "refused": refused,
        "notes": list(answer.notes),
        "documents": [
            {"node_id": one.passage.id}
            | _fields(one, "score", "uncertainty", "answer", "dropped", "shown")
            for one in answer.documents
        ],
        "trace": [
            {"round": one.number, "samples": [sample.text for sample in one.samples]}
            | _fields(one, "text", "uncertainty", "score", "prompt")
            for one in answer.trace
        ],
    }


def _fields(one: object, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def _refuse_keywords(keywords: dict[str, Any]) -> None:
    if keywords:
        remedy = "Settings go into SGICCalibrator(llm, settings=SGICSettings(...))."
        took = f"was called with {sorted(keywords)}; it takes no keywords with a question"
        raise InvalidInput(f"SGICCalibrator {took}. {remedy}")
