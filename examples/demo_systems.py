"""The systems that the demo compares, built in both frameworks from the same parts.

Copy from here: `langchain_systems` and `llama_index_systems` put a gate in front of a chain (or a
query engine), a reranker behind its retriever, and a calibrator where the answer is written.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from llama_index.core import PromptTemplate as LlamaIndexPrompt
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from prompts import DIRECT, READING

from ltrag_plugins import langchain as lc
from ltrag_plugins import llama_index as li
from ltrag_plugins.dur import DURRanker
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.metrics.cost import Cost
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.sgic import Calibration
from ltrag_plugins.types import Generation, GenerationSettings, Passage

NEVER, ALWAYS, GATED = "never", "always", "+ gate"
RERANKED, CALIBRATED = "+ gate + rerank", "+ gate + rerank + calibrate"
FOUND = 10
"""Passages that BM25 finds for the reranker."""
MAX_TOKENS = 12


@dataclass(frozen=True)
class Reply:
    """What a system answered, and how likely it thinks that it is wrong."""

    text: str
    p_wrong: float | None = None
    """From the gate for a direct answer, from the calibrator for the others; in [0, 1]."""
    score: float | None = None
    """The calibrator's, 0-100; larger is less certain. None: a direct answer."""


System = Callable[[str], Reply]


@dataclass
class Meter:
    """A model and a retriever that count what passes through them.

    An answer that the cache already holds counts as what it cost when it was computed.
    """

    llm: LLM
    retriever: Retriever
    cost: Cost = field(default_factory=Cost)
    waited: float = 0.0
    """Seconds within the model's calls, on the clock."""

    @property
    def name(self) -> str:
        return self.llm.name

    def generate(
        self,
        prompts: Sequence[str],
        settings: GenerationSettings = GenerationSettings(),
    ) -> list[Generation]:
        start = time.perf_counter()
        one_line = settings if settings.stop else replace(settings, stop=("\n",))
        replies = self.llm.generate(prompts, one_line)
        self.waited += time.perf_counter() - start
        self.cost = sum(map(cost_of, replies), self.cost)
        return replies

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.cost += Cost(retrievals=len(queries))
        return self.retriever.search(queries, k)

    def spent(self) -> tuple[Cost, float]:
        """The cost, and the seconds waited for the model, since the last call of this method."""
        spent, self.cost, self.waited = (self.cost, self.waited), Cost(), 0.0
        return spent


def cost_of(reply: Generation) -> Cost:
    return Cost(
        calls=1,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        model_seconds=reply.seconds or 0.0,
    )


@dataclass(frozen=True)
class Parts:
    """What was fitted, and what it works on."""

    gate: GECEGate
    ranker: DURRanker
    calibration: Calibration
    meter: Meter
    documents: int
    """That the calibrator reads."""


def langchain_systems(parts: Parts) -> dict[str, System]:
    meter, gate = parts.meter, parts.gate
    bm25 = lc.PassageRetriever(retriever=meter, k=FOUND)
    best = reranking(bm25, lc.DURReranker(parts.ranker, top_n=1))
    best_few = reranking(bm25, lc.DURReranker(parts.ranker, top_n=parts.documents))
    calibrator = lc.SGICCalibrator(meter, best_few, calibration=parts.calibration)
    always = langchain_rag(meter)
    return {
        NEVER: texts((PromptTemplate.from_template(DIRECT) | langchain_llm(meter)).invoke),
        ALWAYS: texts(always.invoke),
        GATED: texts(lc.GECERouter(gate, always).invoke),
        RERANKED: texts(lc.GECERouter(gate, reading(best, meter)).invoke),
        # for the text alone: GECERouter(gate, calibrator.as_text())
        CALIBRATED: judged(lc.GECERouter(gate, calibrator, return_decision=True)),
    }


def langchain_rag(meter: Meter) -> Runnable[str, str]:
    """Plain retrieval: the first passage that BM25 finds, read by the model."""
    return reading(lc.PassageRetriever(retriever=meter, k=1), meter)


def langchain_llm(meter: Meter) -> Runnable[Any, str]:
    return lc.LtragLLM(llm=meter, max_tokens=MAX_TOKENS).bind(stop=["\n"])


def reading(found: Runnable[str, list[Document]], meter: Meter) -> Runnable[str, str]:
    return (
        {"context": found | RunnableLambda(joined), "question": RunnablePassthrough()}
        | PromptTemplate.from_template(READING)
        | langchain_llm(meter)
    )


def reranking(
    retriever: Runnable[str, list[Document]], reranker: lc.DURReranker
) -> Runnable[str, list[Document]]:
    """Search, then rank; what a ContextualCompressionRetriever does."""

    def rank(given: dict) -> list[Document]:
        return [*reranker.compress_documents(given["documents"], given["query"])]

    async def arank(given: dict) -> list[Document]:
        return [*await reranker.acompress_documents(given["documents"], given["query"])]

    found = {"documents": retriever, "query": RunnablePassthrough()}
    return found | RunnableLambda(rank, afunc=arank)


def joined(documents: Sequence[Document]) -> str:
    """As LlamaIndex shows its nodes, so that both frameworks send the same prompts."""
    return "\n\n".join(f"title: {d.metadata['title']}\n\n{d.page_content}" for d in documents)


def texts(answer: Callable[[Any], str]) -> System:
    return lambda question: Reply(answer(question).strip())


def judged(router: lc.GECERouter) -> System:
    """With the probability that the answer is wrong, whichever branch it came from."""

    def answer(question: str) -> Reply:
        given = router.invoke(question)
        output, decision = given["output"], given["decision"]
        if not decision.retrieve:
            return Reply(output["answer"], decision.probability)
        return Reply(output["answer"], output["p_wrong"], output["score"])

    return answer


def llama_index_systems(parts: Parts) -> dict[str, System]:
    meter, gate = parts.meter, parts.gate
    llm = li.LtragLLM(meter, num_output=MAX_TOKENS)
    bm25 = li.PassageRetriever(meter, k=FOUND)
    always = RetrieverQueryEngine(li.PassageRetriever(meter, k=1), synthesizer(llm))
    best = li.DURReranker(parts.ranker, top_n=1)
    best_few = li.DURReranker(parts.ranker, top_n=parts.documents)
    reranked = RetrieverQueryEngine(bm25, synthesizer(llm), node_postprocessors=[best])
    calibrator = li.SGICCalibrator(meter, calibration=parts.calibration)
    calibrated = RetrieverQueryEngine(bm25, calibrator, node_postprocessors=[best_few])
    return {
        NEVER: texts(lambda question: llm.complete(DIRECT.replace("{question}", question)).text),
        ALWAYS: queried(always),
        GATED: queried(li.GECERouter(gate, always)),
        RERANKED: queried(li.GECERouter(gate, reranked)),
        CALIBRATED: queried(li.GECERouter(gate, calibrated)),
    }


def synthesizer(llm: li.LtragLLM) -> Any:
    template = READING.replace("{context}", "{context_str}").replace("{question}", "{query_str}")
    return get_response_synthesizer(llm=llm, text_qa_template=LlamaIndexPrompt(template))


def queried(engine: BaseQueryEngine) -> System:
    def answer(question: str) -> Reply:
        response = engine.query(question)
        told: Mapping[str, Any] = response.metadata or {}
        text = str(response).strip()
        if "sgic" in told:
            return Reply(text, told["sgic"]["p_wrong"], told["sgic"]["score"])
        return Reply(text, told["gece"]["probability"] if "gece" in told else None)

    return answer
