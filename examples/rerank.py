"""Train a reranker on the model's own feedback, then put it into LlamaIndex and LangChain.

BM25 finds ten passages of Wikipedia for a question of Natural Questions; a small head learns from a
135M model's answers which of them help it; both frameworks then answer from the best alone. Takes
about a minute on two cores::

    python examples/rerank.py

A handful of calibration questions shows how the parts fit, not how good a head can get: for that,
train on hundreds (`ltrag rerank train`).
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from llama_index.core import PromptTemplate as LlamaIndexPrompt
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from ltrag_plugins import langchain as lc
from ltrag_plugins import llama_index as li
from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.dur import DURSettings, DURTrainer, TrainingResult
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.llm.embedded import embedded, embedded_encoder
from ltrag_plugins.metrics.answer import contains
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Question

DATA = Path(__file__).parent / "data"
FOUND = 10
MAX_TOKENS = 16
READING = (
    "{context}\n\nAnswer the question in a few words from the text above, without explanation.\n"
    "Question: {question}\nAnswer:"
)


def train(
    questions: list[Question], encoder: Encoder, llm: LLM, *, max_calls: int, console: Console
) -> TrainingResult:
    """A head that ranks each question's own passages by what they do for the model."""
    settings = DURSettings(format="passages", shots=2, batch_size=8, epochs=2)
    trainer = DURTrainer(encoder, llm, settings=settings)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(
            "  training", total=settings.epochs * settings.batches(len(questions))
        )
        return trainer.fit(
            None, questions, max_calls=max_calls, on_batch=lambda batch: progress.advance(task)
        )


def llama_index_engine(bm25: BM25Retriever, llm: LLM, reranker: li.DURReranker) -> BaseQueryEngine:
    template = READING.replace("{context}", "{context_str}").replace("{question}", "{query_str}")
    synthesizer = get_response_synthesizer(
        llm=li.LtragLLM(llm, num_output=MAX_TOKENS), text_qa_template=LlamaIndexPrompt(template)
    )
    return RetrieverQueryEngine(
        li.PassageRetriever(bm25, k=FOUND), synthesizer, node_postprocessors=[reranker]
    )


def langchain_chain(
    bm25: BM25Retriever, llm: LLM, reranker: lc.DURReranker
) -> Runnable[str, dict[str, object]]:
    """Retrieve, rerank, read; like a ContextualCompressionRetriever with a prompt behind it."""

    def rank(given: dict) -> Sequence[Document]:
        return reranker.compress_documents(given["documents"], given["query"])

    async def arank(given: dict) -> Sequence[Document]:
        return await reranker.acompress_documents(given["documents"], given["query"])

    found = {
        "documents": lc.PassageRetriever(retriever=bm25, k=FOUND),
        "query": RunnablePassthrough(),
    }
    best = found | RunnableLambda(rank, afunc=arank)
    read = (
        {"context": RunnableLambda(joined), "question": lambda given: given["question"]}
        | PromptTemplate.from_template(READING)
        | lc.LtragLLM(llm=llm, max_tokens=MAX_TOKENS).bind(stop=["\n"])
    )
    return {"best": best, "question": RunnablePassthrough()} | RunnablePassthrough.assign(
        answer=read
    )


def joined(given: dict[str, list[Document]]) -> str:
    return "\n".join(f"{d.metadata['title']}: {d.page_content}" for d in given["best"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", type=int, default=16, help="calibration questions, at most 200")
    parser.add_argument("--questions", type=int, default=6, help="other questions, at most 120")
    parser.add_argument("--max-calls", type=int, default=100, help="prompts to train with, about")
    parser.add_argument("--out", type=Path, help="folder for the head; without it, none is kept")
    arguments = parser.parse_args()
    try:  # what cannot be kept is refused before the work
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write to {arguments.out}: {error}")
    console = Console()

    console.print("Loading SmolLM2-135M-Instruct and MiniLM (converted once, half a minute) ...")
    pool = read_passages(DATA / "nq_passages.jsonl.gz")
    calibration = read_questions(DATA / "nq_calibration.jsonl", pool=pool)[: arguments.fit]
    questions = read_questions(DATA / "nq_questions.jsonl", pool=pool)[: arguments.questions]
    llm, encoder, bm25 = embedded(), embedded_encoder(), BM25Retriever(pool)

    console.print(f"Training a head on {len(calibration)} questions, ten passages each ...")
    result = train(calibration, encoder, llm, max_calls=arguments.max_calls, console=console)
    console.print(
        f"  {result.calls} prompts in {len(result.history)} batches; "
        f"{result.stopped or 'all epochs done'}"
    )

    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.out or Path(scratch)
        result.ranker.save(folder)
        nodes = li.DURReranker.from_pretrained(folder, encoder=encoder, top_n=1)
        documents = lc.DURReranker.from_pretrained(folder, encoder=encoder, top_n=1)
    engine = llama_index_engine(bm25, llm, nodes)
    chain = langchain_chain(bm25, llm, documents)

    table = Table("question", "best passage (score)", "LlamaIndex", "LangChain")
    held = {"BM25": 0.0, "DUR": 0.0}
    for question in track(questions, "  answering, in both frameworks", console=console):
        response, output = engine.query(question.text), chain.invoke(question.text)
        [source] = response.source_nodes
        [[first]] = bm25.search([question.text], 1)
        held["BM25"] += contains(first.text, question.answers)
        held["DUR"] += contains(source.text, question.answers)
        best = f"{source.metadata['title']} ({source.score:.2f})"
        table.add_row(question.text, best, str(response).strip(), str(output["answer"]).strip())
    console.print(table)
    shares = ", ".join(f"{name} {count:.0f}/{len(questions)}" for name, count in held.items())
    console.print(f"The first passage holds an accepted answer: {shares}")


if __name__ == "__main__":
    main()
