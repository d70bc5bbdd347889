"""LangChain and LlamaIndex as two dialects: how each is given passages, called, and read."""

import asyncio
import inspect
import time
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from pydantic import BaseModel, Field

from ltrag_plugins import langchain, llama_index
from ltrag_plugins.dur import DURRanker, DURSettings
from ltrag_plugins.dur.head import Head
from ltrag_plugins.llama_index.model import _response_of
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import CalibratedAnswer
from ltrag_plugins.types import Generation
from tests.langchain_parts import FunctionChat, with_logprobs
from tests.llama_index_parts import AsyncFunctionLLM, FunctionLLM, on_an_event_loop
from tests.sgic_parts import QUESTION, THREE, model, said


class Letters:
    """How often each letter comes; notes what it is given, and whether a loop stood still."""

    name = "letters"

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.encoded, self.blocked = seconds, [], 0

    def encode(self, texts):
        self.blocked += on_an_event_loop()
        time.sleep(self.seconds)
        self.encoded.append(list(texts))
        return letters(texts)


def letters(texts) -> np.ndarray:
    rows = [[t.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for t in texts]
    return np.array(rows, dtype=np.float32).reshape(len(texts), 26)


WEIGHT = np.random.default_rng(0).normal(size=(5, 26)) / 8
BIAS = np.random.default_rng(1).normal(size=5) / 8


def trained(encoder=None, **settings) -> DURRanker:
    return DURRanker(Head(WEIGHT, BIAS), encoder or Letters(), DURSettings(**settings))


class LangChainLetters(BaseModel, Embeddings):
    """Letters as LangChain embeddings; `asked` has what its async call was given."""

    model: str = "letters"
    asked: list[str] = Field(default_factory=list, exclude=True)

    def embed_documents(self, texts):
        return letters(texts).tolist()

    async def aembed_documents(self, texts):
        self.asked += texts
        return letters(texts).tolist()

    def embed_query(self, text):
        raise AssertionError("a question is embedded as the documents are")


class LlamaIndexLetters(MockEmbedding):
    """The same as a LlamaIndex embedding model."""

    asked: list[str] = Field(default_factory=list, exclude=True)

    def __init__(self) -> None:
        super().__init__(embed_dim=26, model_name="letters")

    def _get_text_embedding(self, text):
        return letters([text])[0].tolist()

    async def _aget_text_embedding(self, text):
        self.asked.append(text)
        return letters([text])[0].tolist()

    def _get_query_embedding(self, query):
        raise AssertionError("a question is embedded as the nodes are")


class Given(BaseRetriever):
    """Finds the nodes it was given."""

    def __init__(self, nodes) -> None:
        super().__init__()
        self.nodes = nodes

    def _retrieve(self, query_bundle):
        return self.nodes


LADDER = [said("Fife", 0.2), said("Lothian", 0.6), said("East Lothian", 0.95)]
"""Three rounds, the last certain: uncertainties 0.8, 0.4, 0.05."""


def ladder() -> ScriptedLLM:
    """Climbs it; from one document it is certain where that is the castle's."""

    def alone(prompt: str) -> Generation:
        chance = 0.9 if "fortress" in prompt else 0.5 if "coastal" in prompt else 0.1
        return said("East Lothian", chance)

    return model(LADDER, alone)


TOP = ("text", "round", "stop", "estimator", "error", "calls", "tokens")
SCORES = ("uncertainty", "score", "p_wrong")


def rounded(value: Any) -> Any:
    """Its floats to nine digits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(rounded, value))
    return round(value, 9) if isinstance(value, float) else value


def of_rounds(trace) -> list[tuple]:
    return [(r.number, r.text, r.uncertainty, r.score) for r in trace]


def told_of(answer: CalibratedAnswer) -> dict[str, Any]:
    """What the core says of an answer, as `told` of a dialect."""
    told = {name: getattr(answer, name) for name in (*TOP, *SCORES)}
    told |= {"said": answer.text, "refused": False, "trace": of_rounds(answer.trace)}
    documents = [(d.passage.id, d.score, d.uncertainty) for d in answer.documents]
    return rounded(told | {"documents": documents})


class LangChain:
    room, embeddings = langchain, LangChainLetters
    reranker_base, rerank, query = BaseDocumentCompressor, "compress_documents", "query"
    ways = ("invoke", "ainvoke", "batch", "abatch", "stream", "astream")

    @staticmethod
    def found(passages) -> list:
        """As a retriever finds them, with metadata that rerankers do not read."""
        documents = [langchain.document_of(passage) for passage in passages]
        return [d.model_copy(update={"metadata": {**d.metadata, "page": 7}}) for d in documents]

    @staticmethod
    def ranked(found) -> list[tuple[str, float]]:
        return [(d.id, d.metadata["relevance_score"]) for d in found]

    @staticmethod
    def reply(written: Generation):
        """As ChatOpenAI gives it."""
        message = with_logprobs(written.text, *((t.text, t.logprob) for t in written.tokens or ()))
        used = {"input_tokens": written.prompt_tokens, "output_tokens": written.completion_tokens}
        message.usage_metadata = {**used, "total_tokens": 0}
        return message

    @classmethod
    def models(cls, write) -> dict[str, Any]:
        """A function that writes (sync or async) as each kind of model."""
        return {"chat": FunctionChat(in_words_of(cls, write))}

    @staticmethod
    async def called(
        calibrator, way: str, question: str = QUESTION, passages=THREE, config: Any = None
    ) -> Any:
        documents = [langchain.document_of(passage) for passage in passages or ()]
        given: Any = {"question": question, "documents": documents}
        given = question if passages is None else given
        told = [given] if "batch" in way else given, config
        call = getattr(calibrator, way)
        if way == "stream":
            out = await asyncio.to_thread(lambda: list(call(*told)))
        elif way == "astream":
            out = [chunk async for chunk in call(*told)]
        else:
            out = await (call(*told) if way[0] == "a" else asyncio.to_thread(call, *told))
        if "stream" in way:
            return reduce(add, out)
        return out[0] if "batch" in way else out

    @staticmethod
    def told(out) -> dict[str, Any]:
        told = told_of(out["calibrated"]) | {name: out[name] for name in ("refused", *SCORES)}
        scores = [(d.id, d.metadata["sgic"]) for d in out["documents"]]
        documents = [(id_, s["score"], s["uncertainty"]) for id_, s in scores]
        trace = of_rounds(out["trace"])
        return rounded(told | {"said": out["answer"], "trace": trace, "documents": documents})


class LlamaIndex:
    room, embeddings = llama_index, LlamaIndexLetters
    reranker_base, rerank, query = BaseNodePostprocessor, "postprocess_nodes", "query_str"
    ways = ("synthesize", "asynthesize", "query", "aquery")
    reply = staticmethod(_response_of)

    @staticmethod
    def found(passages) -> list:
        """As a retriever finds them, with scores of its own."""
        return [llama_index.node_of(replace(passage, score=0.5)) for passage in passages]

    @staticmethod
    def ranked(found) -> list[tuple[str, float]]:
        return [(n.node_id, n.score) for n in found]

    @classmethod
    def models(cls, write) -> dict[str, Any]:
        function = in_words_of(cls, write)
        return {
            "completion": FunctionLLM(function),
            "chat": FunctionLLM(function, is_chat_model=True),
            "wrapped": llama_index.LlamaIndexLLM(FunctionLLM(function), logprobs=True),
            "async": AsyncFunctionLLM(function),
        }

    @staticmethod
    async def called(calibrator, way: str, question: str = QUESTION, passages=THREE) -> Any:
        nodes = [llama_index.node_of(passage) for passage in passages]
        given = (question, nodes)
        if "query" in way:
            calibrator, given = calibrator.query_engine(Given(nodes)), (question,)
        call = getattr(calibrator, way)
        return await (call(*given) if way[0] == "a" else asyncio.to_thread(call, *given))

    @staticmethod
    def told(response) -> dict[str, Any]:
        known = response.metadata["sgic"]
        told = {name: known[name] for name in ("refused", *TOP, *SCORES)}
        rounds = ("round", "text", "uncertainty", "score")
        scores = ("node_id", "score", "uncertainty")
        trace = [tuple(one[name] for name in rounds) for one in known["trace"]]
        documents = [tuple(one[name] for name in scores) for one in known["documents"]]
        return rounded(told | {"said": response.response, "trace": trace, "documents": documents})


def in_words_of(framework, write):
    """What the function writes, sync or async, as the framework's replies."""

    async def later(said):
        return framework.reply(await said)

    def reply(prompt: str):
        said = write(prompt)
        return later(said) if inspect.isawaitable(said) else framework.reply(said)

    return reply


FRAMEWORKS = [LangChain, LlamaIndex]
EACH = pytest.mark.parametrize("framework", FRAMEWORKS)
"""A test of both frameworks."""


def dumped(found) -> list[dict]:
    return [one.model_dump() for one in found]
