"""Answers that know how sure they are, as a Runnable."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import fields
from os import PathLike
from typing import Any, NamedTuple, Self, Unpack, cast

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import AddableDict, ConfigurableFieldSpec
from pydantic import ConfigDict, Field, PrivateAttr
from typing_extensions import TypedDict  # the one that pydantic reads on Python 3.11

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.flow import arun, run
from ltrag_plugins.langchain.component import (
    Asked,
    Asking,
    Component,
    caught,
    in_graph,
    is_state,
    plain,
)
from ltrag_plugins.langchain.embeddings import encoder_of
from ltrag_plugins.langchain.model import model_of, run_merged
from ltrag_plugins.langchain.retriever import asking_for, checked_k, passage_of
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.prompts.templates import standalone
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, ScoredDocument
from ltrag_plugins.sgic.calibrator import REFUSAL, Calibration, Calibrator, CalibratorOptions
from ltrag_plugins.sgic.loop import checked_question
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Passage
from ltrag_plugins.uncertainty import AGREEMENT


class _Options(CalibratorOptions, total=False):
    """What `SGICCalibrator` takes beside its model and retriever."""

    k: int | None
    question_key: str
    documents_key: str
    condense: bool | Runnable[Any, Any] | None
    name: str | None


class SGICCalibrator(Component):
    """Answers from documents, says how sure it is, and looks again while it is unsure.

    Put in a question, where there is a retriever, or `{"question": ..., "documents": [...]}`;
    documents that are given are not searched for. Messages, or a graph's state that holds some,
    will do as well; of such a state the output has `messages` too: the answer, with its scores as
    `response_metadata["sgic"]`. Out comes a mapping:

    - `question`; `answer`: text, or the refusal; `refused`: whether it is that
    - `uncertainty`, 0-1; `score`, 0-100; `p_wrong`, 0-1 (None without a calibration): larger is
      less certain in all three
    - `documents`: copies in the order given, with their scores as metadata `sgic`
    - `trace`: one `Round` for each answer, the refused one among them
    - `calibrated`: the whole `CalibratedAnswer` (stop, notes, error, calls, tokens, ...)

    In a node of LangGraph the last two are plain dicts, as its checkpointers want them.

    A stream gives one `{"trace": [Round]}` a round and the rest at the end; its chunks add up to
    the whole. In `batch` the model calls of all questions are merged, round by round.

    Args:
        llm: answers; a LangChain chat model or LLM (log-probabilities are asked for unless the
            estimator is "agreement"), or one of ours.
        retriever: finds the documents; a `BaseRetriever` or any Runnable from a query to
            documents. It gets the arguments of a call beyond the config.
        k: most documents to read of those found; None leaves it to the retriever.
        question_key, documents_key: where the two are in an input that is a mapping or a state.
        condense: how a follow-up in a conversation becomes a question that stands alone, as for
            `GECERouter`; True asks the calibrator's own model.
        calibration, options: those of `sgic.Calibrator`; the encoder may be LangChain embeddings.

    Raises:
        InvalidInput, ArtifactMismatch: as `sgic.Calibrator`. A call raises what `sgic.calibrate`
            does, `InvalidInput` where there is no question or neither documents nor a
            retriever, and the retriever's own errors as they are.
    """

    llm: LLM = Field(exclude=True)
    retriever: Runnable[Any, Any] | None = None
    k: int | None = None
    question_key: str = "question"
    documents_key: str = "documents"
    condense: Any = True
    settings: SGICSettings
    calibration: Any = Field(default=None, exclude=True)
    scale: Any = Field(default=None, exclude=True)
    relevance: Any = Field(default=None, exclude=True)
    encoder: Any = Field(default=None, exclude=True)
    refuse_above: float | None = None
    refuse_p_wrong_above: float | None = None
    refusal: str = REFUSAL

    model_config = ConfigDict(arbitrary_types_allowed=True)
    _calibrator: Calibrator = PrivateAttr()
    _asking: Asking = PrivateAttr()

    def __init__(
        self,
        llm: LLM | Runnable[Any, Any],
        retriever: Runnable[Any, Any] | None = None,
        *,
        calibration: Calibration | None = None,
        k: int | None = None,
        question_key: str = "question",
        documents_key: str = "documents",
        condense: bool | Runnable[Any, Any] | None = True,
        name: str | None = None,
        **options: Unpack[CalibratorOptions],
    ) -> None:
        checked_k(k)
        wanted = "a Runnable (PassageRetriever wraps our retrievers, RunnableLambda a function)"
        checked(retriever, Runnable | None, "retriever", wanted)
        if (encoder := options.get("encoder")) is not None:
            options["encoder"] = encoder_of(encoder)
        named = options.get("settings") or getattr(calibration, "settings", None)
        ours = model_of(llm, logprobs=getattr(named, "estimator", "") != AGREEMENT)
        calibrator = Calibrator(ours, calibration=calibration, **options)
        options["settings"] = calibrator.settings
        fields = {
            "llm": ours,
            "retriever": retriever,
            "calibration": calibrator.calibration,
            "k": k,
            "question_key": question_key,
            "documents_key": documents_key,
            "condense": condense,
            "name": name,
        }
        super().__init__(**fields, **cast(dict[str, Any], options))
        self._calibrator = calibrator
        self._asking = Asking(question_key, condense)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike[str],
        *,
        llm: LLM | Runnable[Any, Any],
        retriever: Runnable[Any, Any] | None = None,
        **options: Unpack[_Options],
    ) -> Self:
        """With the calibration that `Calibration.save` wrote.

        Args:
            llm: the model it was fitted on; a LangChain model stands for `LangChainLLM(model)`.
                Hand in the same wrapping where the fit used another.

        Raises:
            UnreadableArtifact: missing, incomplete or tampered with.
            ArtifactMismatch: fitted on another model.
        """
        ours = model_of(llm, logprobs=Calibration.estimator_of(folder) != AGREEMENT)
        return cls(ours, retriever, calibration=Calibration.load(folder, llm=ours), **options)

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What can be configured in the retriever."""
        return [] if self.retriever is None else self.retriever.config_specs

    @property
    def InputType(self) -> Any:
        """A question, messages, or a mapping with the keys of this calibrator."""
        keys: Any = {self.question_key: str, self.documents_key: list[Document]}
        mapping: Any = TypedDict("CalibratorInput", keys, total=False)  # pyright: ignore
        return str | list[AnyMessage] | mapping

    @property
    def OutputType(self) -> Any:
        """What comes out, as the class describes it."""
        return _Output

    def as_text(self) -> Runnable[Any, str]:
        """The same, putting out the answer's text (or the refusal) alone, for `| parser`."""
        return self.pick("answer")

    def _invoke(self, value: Any, run_manager: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        given = self._read(value, config, kwargs)
        return self._whole(given, self._calibrator.answer(*given.asked))

    async def _ainvoke(
        self, value: Any, run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> Any:
        given = await self._aread(value, config, kwargs)
        return self._whole(given, await self._calibrator.aanswer(*given.asked))

    def _stream(
        self, values: Iterator[Any], run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> Iterator[Any]:
        for value in values:
            given = self._read(value, config, kwargs)
            for step in self._calibrator.stream(*given.asked):
                yield self._chunk(given, step)

    async def _astream(
        self, values: AsyncIterator[Any], run_manager: Any, config: RunnableConfig, **kwargs: Any
    ) -> AsyncIterator[Any]:
        async for value in values:
            given = await self._aread(value, config, kwargs)
            async with aclosing(self._calibrator.astream(*given.asked)) as steps:
                async for step in steps:
                    yield self._chunk(given, step)

    def _batch(
        self,
        values: list[Any],
        run_manager: Any,
        config: list[RunnableConfig],
        *,
        keep_going: bool,  # `_batch_with_config` raises the first error where it must not
        **kwargs: Any,
    ) -> list[Any]:
        world, outcomes = self._calibrator.world, self._asking.read_many(values, config)
        told = [i for i, asked in enumerate(outcomes) if getattr(asked, "history", ())]
        flows = [standalone(*outcomes[i]) for i in told]
        said = run_merged(flows, world, [config[i] for i in told])
        for i, question in zip(told, said, strict=True):
            outcomes[i] = question if isinstance(question, Exception) else Asked(question)
        for i, asked in enumerate(outcomes):
            if isinstance(asked, Asked):
                outcomes[i] = caught(self._given, values[i], asked.question, config[i], kwargs)
        wanted = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, str)]
        if wanted:
            questions, their = [outcomes[i] for i in wanted], [config[i] for i in wanted]
            results = self._search.batch(questions, their, return_exceptions=True, **kwargs)
            for i, found in zip(wanted, results, strict=True):
                failed = isinstance(found, Exception)
                here = (outcomes[i], values[i], config[i], found)
                outcomes[i] = found if failed else caught(self._found, *here)
        ready = {i: given for i, given in enumerate(outcomes) if isinstance(given, _Given)}
        flows = [self._calibrator.answering(*given.asked) for given in ready.values()]
        answers = run_merged(flows, world, [config[i] for i in ready])
        for (i, given), answer in zip(ready.items(), answers, strict=True):
            outcomes[i] = answer if isinstance(answer, Exception) else self._whole(given, answer)
        return outcomes

    def _read(self, value: Any, config: RunnableConfig, arguments: Mapping[str, Any]) -> "_Given":
        asked = self._asking.read(value, config)
        question = asked.question
        if asked.history:
            question = run(standalone(*asked), self._calibrator.world)
        given = self._given(value, question, config, arguments)
        if isinstance(given, _Given):
            return given
        return self._found(given, value, config, self._search.invoke(given, config, **arguments))

    async def _aread(
        self, value: Any, config: RunnableConfig, arguments: Mapping[str, Any]
    ) -> "_Given":
        asked = await self._asking.aread(value, config)
        question = asked.question
        if asked.history:
            question = await arun(standalone(*asked), self._calibrator.world)
        given = self._given(value, question, config, arguments)
        if isinstance(given, _Given):
            return given
        found = await self._search.ainvoke(given, config, **arguments)
        return self._found(given, value, config, found)

    def _given(
        self, value: Any, question: str, config: RunnableConfig, arguments: Mapping[str, Any]
    ) -> "_Given | str":
        """What was put in; the question alone where the retriever is to be asked."""
        question = question.strip()
        entries = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        documents = entries.get(self.documents_key)
        if documents is not None and arguments:
            raise InvalidInput(
                f"{sorted(arguments)} are for the retriever, which is not asked where documents "
                "are given; leave one of them out"
            )
        if documents is not None:
            listed = _listed(documents, f"under {self.documents_key!r}")
            return _Given(question, listed, is_state(value), in_graph(config))
        if self.retriever is not None:
            return checked_question(question)
        raise InvalidInput(
            f"there are no documents under {self.documents_key!r} in {value!r:.80}, and the "
            "calibrator has no retriever. Give one of them; an empty list asks the model alone."
        )

    @property
    def _search(self) -> Runnable[Any, Any]:
        assert self.retriever is not None  # `_given` refuses to go on without
        return asking_for(self.retriever, self.k)

    def _found(self, question: str, value: Any, config: RunnableConfig, documents: Any) -> "_Given":
        listed = _listed(documents, "from the retriever")[: self.k]
        return _Given(question, listed, is_state(value), in_graph(config))

    def _whole(self, given: "_Given", answer: CalibratedAnswer) -> dict[str, Any]:
        """All of it, as the class describes it."""
        trace = list(answer.trace)
        return {**self._chunk(given, answer), "trace": plain(trace) if given.plain else trace}

    def _chunk(self, given: "_Given", step: Round | CalibratedAnswer) -> AddableDict:
        """What a stream gives: a round as it comes, in the end the answer without its trace."""
        shown = plain(step) if given.plain else step
        if isinstance(step, Round):
            return AddableDict(trace=[shown])
        scored = zip(given.documents, step.documents, strict=True)
        said = self._calibrator.refusal.said(step)
        scores = {
            "refused": self._calibrator.refusal.refuses(step),
            "uncertainty": step.uncertainty,
            "score": step.score,
            "p_wrong": step.p_wrong,
        }
        message = AIMessage(said, response_metadata={"sgic": scores}) if given.state else None
        return AddableDict(
            question=given.question,
            answer=said,
            **scores,
            documents=[_with_metadata(document, scores) for document, scores in scored],
            calibrated=shown,
            **({"messages": [message]} if message else {}),
        )


class _Output(TypedDict):
    question: str
    answer: str
    refused: bool
    uncertainty: float
    score: float
    p_wrong: float | None
    documents: list[Document]
    calibrated: Any
    trace: list[Any]


class _Given(NamedTuple):
    question: str
    documents: list[Document]
    state: bool
    """Whether it came in a graph's state of messages."""
    plain: bool
    """Whether what comes out goes into a graph's state."""

    @property
    def asked(self) -> tuple[str, list[Passage]]:
        """What the core's calibrator takes."""
        return self.question, [passage_of(document) for document in self.documents]


def _listed(found: Any, where: str) -> list[Document]:
    listable = isinstance(found, Iterable) and not isinstance(found, str | Mapping | Document)
    listed: list[Any] = list(found) if listable else [None]
    if all(isinstance(item, Document) for item in listed):
        return listed
    raise InvalidInput(
        f"{where} there must be a list of langchain_core Documents, got {found!r:.80}. "
        "Passages become Documents with ltrag_plugins.langchain.document_of."
    )


def _with_metadata(document: Document, scores: ScoredDocument) -> Document:
    """A copy with its scores as metadata `sgic`; its id is kept."""
    plain = {f.name: getattr(scores, f.name) for f in fields(scores) if f.name != "passage"}
    return document.model_copy(update={"metadata": {**document.metadata, "sgic": plain}})
