"""Gate, reranker and calibrator on a vector store on disk, in LangChain and in LlamaIndex.

The store is Qdrant, which runs inside the program here and keeps its vectors in a folder; with a
server, only the client is another one (`QdrantClient(url=...)`). Passages are put in once: a second
run opens the folder, finds them, and reads answers and vectors again. The first run takes a minute
on one core::

    pip install langchain-qdrant llama-index-vector-stores-qdrant
    python examples/vector_store.py
"""

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_qdrant import QdrantVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode
from llama_index.vector_stores.qdrant import QdrantVectorStore as LlamaIndexStore
from prompts import CALIBRATING, DIRECT
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, VectorParams
from rich.console import Console
from rich.table import Table

from ltrag_plugins import langchain as lc
from ltrag_plugins import llama_index as li
from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.dur import DURRanker, DURSettings, DURTrainer
from ltrag_plugins.gece import GECEGate, GECESettings
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.llm.cached import CachedEncoder, CachedLLM
from ltrag_plugins.llm.embedded import embedded, embedded_encoder
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.types import Passage, Question

DATA = Path(__file__).parent / "data"
LANGCHAIN, LLAMA_INDEX = "langchain", "llama_index"
"""A collection for each framework: they lay out beside a vector what they need of the text."""
FOUND, READ = 8, 2
"""Passages that the store finds, and those of them that the calibrator reads."""
MAX_TOKENS = 12
LOOKING = SGICSettings(
    rounds=1, document_words=60, answer_tokens=MAX_TOKENS, templates=CALIBRATING, certain_below=40
)
# a calibrator says where no fit has tried its rounds; here they are only to be seen
logging.getLogger("ltrag_plugins.sgic.calibrator").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Data:
    """Questions, each for one purpose, and the passages to put into the store."""

    fit: list[Question]
    train: list[Question]
    asked: list[Question]

    @property
    def passages(self) -> list[Passage]:
        """Those of the questions to train on and to ask: ten each, one of which answers it."""
        found = (p for question in (*self.train, *self.asked) for p in question.passages)
        return list({passage.id: passage for passage in found}.values())


def read(fit: int = 60, train: int = 12, asked: int = 6) -> Data:
    pool = read_passages(DATA / "nq_passages.jsonl.gz")
    labelled = read_questions(DATA / "nq_calibration.jsonl", pool=pool)
    others = read_questions(DATA / "nq_questions.jsonl", pool=pool)
    return Data(labelled[:fit], labelled[fit : fit + train], others[:asked])


def models(folder: Path) -> tuple[CachedLLM, CachedEncoder]:
    """The embedded models, which keep in `folder` what they computed."""
    llm = embedded(dtype="float32", chat=False)
    encoder = CachedEncoder(embedded_encoder(), folder / "vectors.sqlite")
    return CachedLLM(llm, folder / "answers.sqlite"), encoder


def text_of(passage: Passage) -> str:
    """What is embedded, reranked and read, in both frameworks: its vector is computed once."""
    return f"{passage.title}\n{passage.text}"


def id_of(passage: Passage) -> str:
    """Qdrant takes UUIDs and whole numbers only; the same passage gets the same one."""
    return str(uuid5(NAMESPACE_OID, passage.id))


def langchain_store(client: QdrantClient, encoder: Encoder) -> QdrantVectorStore:
    """The collection as it is on disk; made, and empty, where there is none."""
    embeddings = lc.LtragEmbeddings(encoder)
    if not client.collection_exists(LANGCHAIN):
        size = len(embeddings.embed_query("how long is a vector?"))
        client.create_collection(
            LANGCHAIN, vectors_config=VectorParams(size=size, distance=Distance.COSINE)
        )
    return QdrantVectorStore(client, LANGCHAIN, embedding=embeddings)


def add_documents(store: QdrantVectorStore, passages: Sequence[Passage]) -> int:
    """Put in what is not there yet; returns how many that was."""
    new = unknown(store.client, LANGCHAIN, passages)
    documents = [Document(text_of(p), metadata={"article": p.title}) for p in new]
    if documents:
        store.add_documents(documents, ids=[id_of(p) for p in new])
    return len(new)


def llama_index_store(client: QdrantClient, encoder: Encoder) -> VectorStoreIndex:
    """The collection as it is on disk; LlamaIndex makes it with the first nodes."""
    store = LlamaIndexStore(LLAMA_INDEX, client=client, index_doc_id=False)
    return VectorStoreIndex.from_vector_store(store, embed_model=li.LtragEmbedding(encoder))


def add_nodes(index: VectorStoreIndex, client: QdrantClient, passages: Sequence[Passage]) -> int:
    """Put in what is not there yet; returns how many that was."""
    new = unknown(client, LLAMA_INDEX, passages)
    hidden = ["article"]  # from the models: the text begins with it
    nodes = [
        TextNode(
            id_=id_of(p),
            text=text_of(p),
            metadata={"article": p.title},
            excluded_embed_metadata_keys=hidden,
            excluded_llm_metadata_keys=hidden,
        )
        for p in new
    ]
    if nodes:
        index.insert_nodes(nodes)
    return len(new)


def unknown(client: QdrantClient, collection: str, passages: Sequence[Passage]) -> list[Passage]:
    if not client.collection_exists(collection):
        return list(passages)
    ids = [id_of(passage) for passage in passages]
    known = {record.id for record in client.retrieve(collection, ids, with_payload=False)}
    return [passage for passage in passages if id_of(passage) not in known]


def fitted_gate(questions: Sequence[Question], llm: LLM, target_rate: float = 0.6) -> GECEGate:
    """Learns from the model's own answers where it does not know; asks no store."""
    settings = GECESettings(prompt=DIRECT, max_tokens=MAX_TOKENS)
    return GECEGate.fit(questions, llm=llm, target_rate=target_rate, settings=settings)


def trained_ranker(questions: Sequence[Question], llm: LLM, encoder: Encoder) -> DURRanker:
    """Learns what a passage does to the model's answers; a dozen questions show how, no more."""
    settings = DURSettings(format="passages", shots=1, batch_size=4, epochs=1, learning_rate=1e-3)
    return DURTrainer(encoder, llm, settings=settings).fit(None, questions).ranker


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


def langchain_router(
    gate: GECEGate, retriever: BaseRetriever, ranker: DURRanker, llm: LLM
) -> lc.GECERouter:
    """The store's retriever, the reranker behind it, the calibrator to answer, the gate before."""
    best = reranking(retriever, lc.DURReranker(ranker, top_n=READ))
    calibrator = lc.SGICCalibrator(llm, best, settings=LOOKING)
    return lc.GECERouter(gate, calibrator, answer="answer", return_decision=True)


def llama_index_router(
    gate: GECEGate, retriever: LlamaIndexRetriever, ranker: DURRanker, llm: LLM
) -> li.GECERouter:
    """The same as a query engine."""
    best = li.DURReranker(ranker, top_n=READ)
    calibrator = li.SGICCalibrator(llm, settings=LOOKING)
    engine = RetrieverQueryEngine(retriever, calibrator, node_postprocessors=[best])
    return li.GECERouter(gate, engine)


@dataclass(frozen=True)
class Shown:
    """An answer, as a row of a table."""

    question: str
    retrieved: bool
    answer: str
    score: float | None
    """The calibrator's, 0-100; larger is less certain. None: the gate's draft was the answer."""
    article: str
    """Title of the best passage."""

    @property
    def row(self) -> list[str]:
        score = "" if self.score is None else f"{self.score:.0f}"
        way = "retrieves" if self.retrieved else "direct"
        return [self.question, way, self.answer, score, self.article]


COLUMNS = ["question", "gate", "answer", "score", "best passage"]


def from_langchain(router: lc.GECERouter, question: str) -> Shown:
    given = router.invoke(question)
    output = given["output"]
    if not given["decision"].retrieve:
        return Shown(question, False, output["answer"], None, "")
    article = output["documents"][0].metadata["article"]
    return Shown(question, True, output["answer"], output["score"], article)


def from_llama_index(router: li.GECERouter, question: str) -> Shown:
    response = router.query(question)
    told = response.metadata or {}
    if not told["gece"]["retrieve"]:
        return Shown(question, False, str(response), None, "")
    article = response.source_nodes[0].node.metadata["article"]
    return Shown(question, True, str(response), told["sgic"]["score"], article)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/vector_store"))
    folder, console = parser.parse_args().folder, Console()
    try:  # what cannot be kept is refused before the work
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write to {folder}: {error}")
    console.print("Loading SmolLM2-135M-Instruct and MiniLM (converted once, half a minute) ...")
    data, (llm, encoder) = read(), models(folder)

    # a folder serves one client at a time; both frameworks share it
    client = QdrantClient(path=str(folder / "qdrant"))
    store, index = langchain_store(client, encoder), llama_index_store(client, encoder)
    console.print(f"Putting {len(data.passages)} passages into {folder} ...")
    for name, added in (
        ("LangChain", add_documents(store, data.passages)),
        ("LlamaIndex", add_nodes(index, client, data.passages)),
    ):
        console.print(f"  {name}: {added} were new")

    console.print(f"Fitting a gate on {len(data.fit)} questions ...")
    gate = fitted_gate(data.fit, llm)
    console.print(f"Training a reranker on {len(data.train)} questions ...")
    ranker = trained_ranker(data.train, llm, encoder)

    chain = langchain_router(gate, store.as_retriever(search_kwargs={"k": FOUND}), ranker, llm)
    engine = llama_index_router(gate, index.as_retriever(similarity_top_k=FOUND), ranker, llm)
    for name, answered in (
        ("LangChain", [from_langchain(chain, q.text) for q in data.asked]),
        ("LlamaIndex", [from_llama_index(engine, q.text) for q in data.asked]),
    ):
        table = Table(*COLUMNS, title=name)
        for shown in answered:
            table.add_row(*shown.row)
        console.print(table)
    client.close()


if __name__ == "__main__":
    main()
