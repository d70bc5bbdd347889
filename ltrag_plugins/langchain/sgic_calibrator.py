"""Answers that know how sure they are, as a Runnable."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSerializable
from langchain_core.runnables.utils import ConfigurableFieldSpec
from pydantic import ConfigDict, Field

from ltrag_plugins import sgic
from ltrag_plugins.flow import (
    Flow,
    World,
    arun,
    arun_steps,
    run,
    run_steps,
)
from ltrag_plugins.langchain.embeddings import encoder_of
from ltrag_plugins.langchain.llm import run_merged
from ltrag_plugins.langchain.retriever import checked_k, passage_of
from ltrag_plugins.langchain.sgic_checks import (
    agreed,
    answering,
    check_limits,
    searching,
)
from ltrag_plugins.langchain.sgic_output import chunks, whole
from ltrag_plugins.langchain.sgic_reading import Given, Reading
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round
from ltrag_plugins.sgic.calibrator import REFUSAL, Refusal, remark_untried
from ltrag_plugins.sgic.documents import Relevance, check_source
from ltrag_plugins.sgic.loop import calibrate
from ltrag_plugins.sgic.settings import SGICSettings

if TYPE_CHECKING:  # it brings scikit-learn
    from ltrag_plugins.sgic.calibrator import Calibration


class SGICCalibrator(RunnableSerializable[Any, Any]):
    """Answers from documents, says how sure it is, and looks again while it is unsure.

    Put in a question, where there is a retriever, or `{"question": ..., "documents": [...]}`;
    documents that are given are not searched for. Out comes a mapping:

    - `question`; `answer`: text, or the refusal; `refused`: whether it is that
    - `uncertainty`: of the answer, 0-1; `score`: 0-100; larger is less certain
    - `p_wrong`: the probability that the answer is wrong, 0-1; None without a calibration
    - `documents`: copies in the order given, with their scores as metadata `sgic`
    - `trace`: one `Round` for each answer, the refused one among them
    - `calibrated`: the whole `CalibratedAnswer` (stop, notes, error, calls, tokens, ...)

    `as_text` gives the answer as a string. A stream gives one `{"trace": [Round]}` a round and
    the rest at the end; its chunks add up to the whole. In `batch` the model calls of all
    questions are merged, round by round; `abatch` runs side by side.

    Args:
        llm: answers; a LangChain chat model or LLM (log-probabilities are asked for unless the
            estimator is "agreement"), or one of ours.
        retriever: finds the documents; a `BaseRetriever` or any Runnable from a query to
            documents. It gets the arguments of a call beyond the config.
        settings: None: those of the calibration, or the defaults.
        calibration: what a fit on your questions found; its scale is used, and its P(wrong).
            Rounds without one are warned of in the log: nobody tried them on this model.
        k: most documents to read of those found; None leaves it to the retriever.
        encoder: scores documents, for `source="encoder"`; ours, or LangChain embeddings.
        relevance: scores documents, for `source="relevance"`.
        refuse_above: a score, 0-100: answers above it are kept back; None: none is.
        refuse_p_wrong_above: a probability, 0-1: answers that are wrong with a larger one are
            kept back; needs a calibration that gives P(wrong).
        refusal: the answer's text where it is kept back.
        question_key: where the question is in an input that is a mapping or a state.
        documents_key: where the documents are in it.

    Raises:
        InvalidInput: `llm` or `retriever` is none, or a limit is out of its range or cannot be
            held against anything.
        ArtifactMismatch: the calibration is of another estimator than the settings.

    A call raises what `ltrag_plugins.sgic.calibrate` does, `InvalidInput` where there is no
    question or neither documents nor a retriever, and the retriever's own errors as they are.
    """

    llm: LLM = Field(exclude=True)
    retriever: Runnable[Any, Any] | None = None
    settings: SGICSettings
    calibration: Any = Field(default=None, exclude=True)
    k: int | None = None
    encoder: Encoder | None = Field(default=None, exclude=True)
    relevance: Relevance | None = Field(default=None, exclude=True)
    refuse_above: float | None = None
    refuse_p_wrong_above: float | None = None
    refusal: str = REFUSAL
    question_key: str = "question"
    documents_key: str = "documents"

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __init__(
        self,
        llm: LLM | Runnable[Any, Any],
        retriever: Runnable[Any, Any] | None = None,
        *,
        settings: SGICSettings | None = None,
        calibration: "Calibration | None" = None,
        k: int | None = None,
        encoder: Encoder | Embeddings | None = None,
        relevance: Relevance | None = None,
        refuse_above: float | None = None,
        refuse_p_wrong_above: float | None = None,
        refusal: str = REFUSAL,
        question_key: str = "question",
        documents_key: str = "documents",
        name: str | None = None,
    ) -> None:
        settings, calibration = agreed(settings, calibration)
        check_source(settings.source, relevance=relevance is not None, encoder=encoder is not None)
        checked_k(k)
        check_limits(Refusal(refuse_above, refuse_p_wrong_above, refusal), calibration)
        fields: dict[str, Any] = {
            "llm": answering(llm, settings.estimator),
            "retriever": searching(retriever),
            "settings": settings,
            "calibration": calibration,
            "k": k,
            "encoder": None if encoder is None else encoder_of(encoder),
            "relevance": relevance,
            "refuse_above": refuse_above,
            "refuse_p_wrong_above": refuse_p_wrong_above,
            "refusal": refusal,
            "question_key": question_key,
            "documents_key": documents_key,
            "name": name,
        }
        super().__init__(**fields)
        remark_untried(settings, fitted=calibration is not None)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike[str],
        *,
        llm: LLM | Runnable[Any, Any],
        retriever: Runnable[Any, Any] | None = None,
        **options: Any,
    ) -> Self:
        """With a calibration that was saved.

        Args:
            llm: the model it was fitted on; a LangChain model stands for `LangChainLLM(model)`.
                Hand in the same wrapping where the fit used another.
            options: as of the class.

        Raises:
            UnreadableArtifact: missing, incomplete or tampered with.
            ArtifactMismatch: fitted on another model.
        """
        ours = answering(llm, sgic.Calibration.estimator_of(folder))
        return cls(ours, retriever, calibration=sgic.Calibration.load(folder, llm=ours), **options)

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What can be configured in the retriever."""
        return [] if self.retriever is None else self.retriever.config_specs

    def as_text(self) -> Runnable[Any, str]:
        """The same, putting out the answer's text (or the refusal) alone, for `| parser`."""
        return self.pick("answer")

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """The answer with all that is known about it."""
        return self._call_with_config(self._invoke, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """As `invoke`; a cancellation stops before the next model call."""
        return await self._acall_with_config(self._ainvoke, input, config, **kwargs)

    def batch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """As `invoke` for each input, with one model call for the same round of all of them."""
        return self._batch_with_config(
            self._batch, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """One chunk a round, as it comes, and the answer as the last one."""
        yield from self._transform_stream_with_config(iter([input]), self._stream, config, **kwargs)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """As `stream`."""

        async def inputs() -> AsyncIterator[Any]:
            yield input

        chunks = self._atransform_stream_with_config(inputs(), self._astream, config, **kwargs)
        async for chunk in chunks:
            yield chunk

    def _invoke(self, value: Any, run_manager: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        given = self._reading.read(value, config, kwargs)
        return whole(given, run(self._flow(given), self._world), self._refusal)

    async def _ainvoke(
        self, value: Any, run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> Any:
        given = await self._reading.aread(value, config, kwargs)
        return whole(given, await arun(self._flow(given), self._world), self._refusal)

    def _stream(
        self, values: Iterator[Any], run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> Iterator[Any]:
        for value in values:
            given = self._reading.read(value, config, kwargs)
            rounds: list[Round] = []
            for step in run_steps(self._flow(given, rounds.append), self._world):
                yield from chunks(given, rounds, step, self._refusal)

    async def _astream(
        self, values: AsyncIterator[Any], run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> AsyncIterator[Any]:
        async for value in values:
            given = await self._reading.aread(value, config, kwargs)
            rounds: list[Round] = []
            async with aclosing(arun_steps(self._flow(given, rounds.append), self._world)) as steps:
                async for step in steps:
                    for chunk in chunks(given, rounds, step, self._refusal):
                        yield chunk

    def _batch(
        self, values: list[Any], run_manager: Any, config: list[RunnableConfig], **kwargs: Any
    ) -> list[Any]:
        outcomes: list[Any] = [*self._reading.read_many(values, config, kwargs)]
        ready = {i: given for i, given in enumerate(outcomes) if isinstance(given, Given)}
        flows = [self._flow(given) for given in ready.values()]
        answers = run_merged(flows, self._world, [config[i] for i in ready])
        for (i, given), answer in zip(ready.items(), answers, strict=True):
            failed = isinstance(answer, Exception)
            outcomes[i] = answer if failed else whole(given, answer, self._refusal)
        return outcomes

    @property
    def _reading(self) -> Reading:
        return Reading(self.retriever, self.k, self.question_key, self.documents_key)

    @property
    def _refusal(self) -> Refusal:
        return Refusal(self.refuse_above, self.refuse_p_wrong_above, self.refusal)

    @property
    def _world(self) -> World:
        return World(llm=self.llm, encoder=self.encoder)

    def _flow(
        self, given: Given, on_round: Callable[[Round], None] | None = None
    ) -> Flow[CalibratedAnswer]:
        fitted = self.calibration
        return calibrate(
            given.question,
            [passage_of(document) for document in given.documents],
            self.settings,
            None if fitted is None else fitted.scale,
            wrongness=None if fitted is None else fitted.wrongness,
            relevance=self.relevance,
            on_round=on_round,
        )
