"""A router fitted on questions alone, with a model behind llama.cpp's server, then with labels.

    LTRAG_DATA=/path/to/data python benchmarks/router_fit.py FILE.gguf --questions 80

Questions are the first of nq_distractor's `train`; the chain reads three passages that BM25 finds
among all of theirs, cut to 80 words. Both fits have the same answers.
"""

import argparse
import gzip
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from ltrag_plugins.gece import GECEGate
from ltrag_plugins.langchain import GECERouter, PassageRetriever
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage, Question

READING = (
    "{found}\n\nAnswer the question in a few words from the text above, without explanation.\n"
    "Question: {question}\nAnswer:"
)


def served(path: str, threads: int) -> Any:
    xllamacpp: Any = importlib.import_module("xllamacpp")  # its compiled names have no types
    settings = xllamacpp.CommonParams()
    settings.model.path = path
    settings.hostnames, settings.port = ["127.0.0.1"], 0
    settings.n_ctx, settings.n_parallel = 4096, 2
    settings.warmup, settings.verbosity = False, 0
    for cores in (settings.cpuparams, settings.cpuparams_batch):
        cores.n_threads, cores.poll = threads, 0
    return xllamacpp.Server(settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--questions", type=int, default=80)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if not (root := os.environ.get("LTRAG_DATA")):
        sys.exit("set LTRAG_DATA to the folder that holds nq_distractor/")
    with gzip.open(Path(root) / "nq_distractor" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][: options.questions]
    pool = {p["text"]: p["title"] for row in rows for p in row["passages"]}
    passages = [Passage(" ".join(text.split()[:80]), title=pool[text]) for text in pool]
    server = served(options.model, options.threads)
    llm = ChatOpenAI(
        model="model",
        base_url=f"{server.listening_address}/v1",
        api_key=SecretStr("none"),
        temperature=0,
    ).bind(max_tokens=24)
    docs = PassageRetriever(retriever=BM25Retriever(passages), k=3)
    found = docs | (lambda documents: "\n".join(d.page_content for d in documents))
    chain = {"found": found, "question": RunnablePassthrough()} | ChatPromptTemplate(
        [("human", READING)]
    )
    answering, kept = chain | llm | StrOutputParser(), dict[str, str]()

    def answer(question: str) -> str:
        kept[question] = answering.invoke(question)
        return kept[question]

    texts, started = [row["question"] for row in rows], time.perf_counter()
    router = GECERouter.fit(RunnableLambda(answer), llm=llm.bound, questions=texts)
    gate = router.gate
    assert isinstance(gate, GECEGate)
    assert gate.world.llm
    print(f"## without labels, {time.perf_counter() - started:.0f} s\n{gate.report}\n", flush=True)
    labelled = [Question(row["question"], tuple(row["answers"])) for row in rows]
    known = GECEGate.fit(
        labelled, llm=gate.world.llm, retrieved_answers=[kept[text] for text in texts]
    )
    print(f"## with labels\n{known.report}")


if __name__ == "__main__":
    main()
