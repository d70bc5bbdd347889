"""Answers that know how sure they are, as a Runnable."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any, NamedTuple, Self, Unpack

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import AddableDict
from typing_extensions import TypedDict  # the one that pydantic reads on Python 3.11

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.flow import Fetch, Flow, World, arun, run
from ltrag_plugins.langchain.component import Asked, Asking, Component, entries_of, in_graph, plain
from ltrag_plugins.langchain.embeddings import encoder_of
from ltrag_plugins.langchain.model import model_of, run_merged, runs_of
from ltrag_plugins.langchain.retriever import asking_for, checked_k, documents_in, passage_of
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.prompts.templates import standalone
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, ScoredDocument
from ltrag_plugins.sgic.calibrator import Calibration, Calibrator, CalibratorOptions
from ltrag_plugins.sgic.loop import checked_question
from ltrag_plugins.tokenize import words
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
    """Answers from documents, says how sure it is, and with rounds looks again while it is unsure.

    Put in a question, where there is a retriever, or `{"question": ..., "documents": [...]}`; or
    messages, or a graph's state that holds some: for a state the output has `messages` too, the
    answer with its scores as `response_metadata["sgic"]`. Out comes a mapping:

    - `question`; `answer`: text, or the refusal; `refused`: whether it is that
    - `uncertainty`, 0-1; `score`, 0-100; `p_wrong`, 0-1 (None without a calibration): larger is
      less certain in all three
    - `documents`: copies in the order given, with their scores as metadata `sgic`
    - `trace`: one `Round` for each answer, the refused one among them
    - `calibrated`: the whole `CalibratedAnswer` (stop, notes, error, calls, tokens, ...)

    In a node of LangGraph the last two are plain dicts, as its checkpointers want them. A stream
    gives one `{"trace": [Round]}` a round and the rest at the end; its chunks add up to the whole.
    In `batch` the model calls of all questions are merged, round by round.

    Args:
        llm: a LangChain chat model or LLM (log-probabilities are asked for unless the estimator is
            "agreement"), or one of ours.
        retriever: any Runnable from a query to documents; gets a call's arguments but its config.
        k: most documents to read of those found; None leaves it to the retriever.
        question_key, documents_key: where the two are in a mapping or a state.
        condense: as for `GECERouter`; True asks the calibrator's own model.
        calibration, options: those of `sgic.Calibrator`; the encoder may be LangChain embeddings.

    Raises:
        InvalidInput, ArtifactMismatch: as `sgic.Calibrator`. A call raises what `sgic.calibrate`
            and the retriever do, and `InvalidInput` without a question or any documents.
    """

    _speaks = True
    llm: LLM
    retriever: Runnable[Any, Any] | None
    k: int | None
    documents_key: str

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
        wanted = "a Runnable (PassageRetriever wraps our retrievers, RunnableLambda a function)"
        self.retriever = checked(retriever, Runnable | None, "retriever", wanted)
        self.k, self.documents_key, self.name = checked_k(k), documents_key, name
        self._asking = Asking(question_key, condense)
        if (encoder := options.get("encoder")) is not None:
            options["encoder"] = encoder_of(encoder)
        named = options.get("settings") or getattr(calibration, "settings", None)
        self.llm = model_of(llm, logprobs=getattr(named, "estimator", "") != AGREEMENT)
        self._calibrator = Calibrator(self.llm, calibration=calibration, **options)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike[str],
        *,
        llm: LLM | Runnable[Any, Any],
        retriever: Runnable[Any, Any] | None = None,
        **options: Unpack[_Options],
    ) -> Self:
        """With the calibration that `Calibration.save` wrote; `llm` is the model it was fitted on,
        in the same wrapping. Raises as `Calibration.load`."""
        ours = model_of(llm, logprobs=Calibration.estimator_of(folder) != AGREEMENT)
        return cls(ours, retriever, calibration=Calibration.load(folder, llm=ours), **options)

    @property
    def InputType(self) -> Any:
        """A question, messages, or a mapping with the keys of this calibrator."""
        keys: Any = {self._asking.key: str, self.documents_key: list[Document]}
        mapping: Any = TypedDict("CalibratorInput", keys, total=False)  # pyright: ignore
        return str | list[AnyMessage] | mapping

    @property
    def OutputType(self) -> Any:
        """What comes out, as the class describes it."""
        return _Output

    def as_text(self) -> Runnable[Any, str]:
        """The same, putting out the answer's text (or the refusal) alone, for `| parser`."""
        return self.pick("answer")

    def _invoke(self, value: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        given = self._read(value, config, kwargs)
        return self._whole(given, self._calibrator.answer(*given.asked))

    async def _ainvoke(self, value: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        given = await self._aread(value, config, kwargs)
        return self._whole(given, await self._calibrator.aanswer(*given.asked))

    def _stream(
        self, values: Iterator[Any], config: RunnableConfig, **kwargs: Any
    ) -> Iterator[Any]:
        for value in values:
            given = self._read(value, config, kwargs)
            for step in self._calibrator.stream(*given.asked):
                yield self._chunk(given, step)

    async def _astream(
        self, values: AsyncIterator[Any], config: RunnableConfig, **kwargs: Any
    ) -> AsyncIterator[Any]:
        async for value in values:
            given = await self._aread(value, config, kwargs)
            async with aclosing(self._calibrator.astream(*given.asked)) as steps:
                async for step in steps:
                    yield self._chunk(given, step)

    def _batch(
        self, values: list[Any], config: list[RunnableConfig], *, keep_going: bool, **kwargs: Any
    ) -> list[Any]:
        # `_batch_with_config` raises the first error where it must not keep going
        world, asked = self._world(kwargs), self._asking.read_many(values, config)
        parts = zip(asked, values, config, strict=True)
        given = run_merged([self._reading(*part, kwargs) for part in parts], world, config)
        return run_merged([self._answering(one) for one in given], world, config)

    def _read(self, value: Any, config: RunnableConfig, extra: dict[str, Any]) -> "_Given":
        asked = self._asking.read(value, config)
        return run(self._reading(asked, value, config, extra), self._world(extra))

    async def _aread(self, value: Any, config: RunnableConfig, extra: dict[str, Any]) -> "_Given":
        asked = await self._asking.aread(value, config)
        return await arun(self._reading(asked, value, config, extra), self._world(extra))

    def _world(self, extra: dict[str, Any]) -> World:
        search = self.retriever and _Search(asking_for(self.retriever, self.k).bind(**extra))
        return replace(self._calibrator.world, retriever=search)

    def _reading(
        self, asked: Asked | Exception, value: Any, config: RunnableConfig, extra: dict[str, Any]
    ) -> Flow["_Given"]:
        """The question, standing alone, and the documents that were put in or found."""
        if isinstance(asked, Exception):
            raise asked
        question = asked.words
        if asked.history and words(question):  # an emoji is no question, and is made none
            question = (yield from standalone(question, asked.history)).strip()
        entries, in_node = entries_of(value), in_graph(config)
        documents = entries.get(self.documents_key)
        if in_node and self.retriever is not None and _put_out(documents):
            documents = None  # of the turn before, as a thread's state keeps them
        if documents is None and self.retriever is None:
            raise InvalidInput(
                f"there are no documents under {self.documents_key!r} in {value!r:.80}, and the "
                "calibrator has no retriever. Give one of them; an empty list asks the model alone."
            )
        if documents is None:
            [found] = yield Fetch((checked_question(question),), self.k or 0)
            if isinstance(found, Exception):
                raise found
            listed = documents_in(found)[: self.k]
        elif extra:
            why = "which is not asked where documents are given; leave one of them out"
            raise InvalidInput(f"{sorted(extra)} are for the retriever, {why}")
        else:
            listed = documents_in(documents, f"under {self.documents_key!r}")
        return _Given(question, listed, "messages" in entries, in_node)

    def _answering(self, given: "_Given | Exception") -> Flow[dict[str, Any]]:
        if isinstance(given, Exception):
            raise given
        return self._whole(given, (yield from self._calibrator.answering(*given.asked)))

    def _whole(self, given: "_Given", answer: CalibratedAnswer) -> dict[str, Any]:
        """All of it, as the class describes it."""
        trace = [*answer.trace]
        return {**self._chunk(given, answer), "trace": plain(trace) if given.plain else trace}

    def _chunk(self, given: "_Given", step: Round | CalibratedAnswer) -> AddableDict:
        """What a stream gives: a round as it comes, in the end the answer without its trace."""
        shown = plain(step) if given.plain else step
        if isinstance(step, Round):
            return AddableDict(trace=[shown])
        scored = zip(given.documents, step.documents, strict=True)
        said = self._calibrator.refusal.said(step)
        scores: dict[str, Any] = {"refused": self._calibrator.refusal.refuses(step)}
        scores |= {name: getattr(step, name) for name in ("uncertainty", "score", "p_wrong")}
        out = AddableDict(question=given.question, answer=said, **scores, calibrated=shown)
        out["documents"] = [_with_metadata(*pair) for pair in scored]
        if given.state:
            out["messages"] = [AIMessage(said, response_metadata={"sgic": scores})]
        return out


class _Output(TypedDict):
    question: str
    answer: str
    refused: bool
    uncertainty: float
    score: float
    p_wrong: float | None
    documents: list[Document]
    calibrated: Any | None
    trace: list[Any]


@dataclass(frozen=True)
class _Search:
    """The retriever in a flow: an error is a reply."""

    retriever: Runnable[Any, Any]

    def search(self, queries: Sequence[Any], k: int) -> list[Any]:
        inputs, configs = [*map(str, queries)], runs_of(queries)
        return self.retriever.batch(inputs, configs, return_exceptions=True)

    async def asearch(self, queries: Sequence[Any], k: int) -> list[Any]:
        inputs, configs = [*map(str, queries)], runs_of(queries)
        return await self.retriever.abatch(inputs, configs, return_exceptions=True)


class _Given(NamedTuple):
    question: str
    documents: list[Document]
    state: bool  # whether it came in a graph's state of messages
    plain: bool  # whether what comes out goes into a graph's state

    @property
    def asked(self) -> tuple[str, list[Passage]]:
        """What the core's calibrator takes."""
        return self.question, [passage_of(document) for document in self.documents]


def _put_out(documents: Any) -> bool:
    """Whether these are the documents of a calibrator's answer; a thread may hold none of them."""
    listed = isinstance(documents, list)
    return listed and all("sgic" in getattr(one, "metadata", ()) for one in documents)


def _with_metadata(document: Document, scores: ScoredDocument) -> Document:
    """A copy with its scores as metadata `sgic`; its id is kept."""
    plain = {f.name: getattr(scores, f.name) for f in fields(scores) if f.name != "passage"}
    return document.model_copy(update={"metadata": {**document.metadata, "sgic": plain}})
