"""A router fitted on questions alone, with a model behind llama.cpp's server, then with labels.

    LTRAG_DATA=/path/to/data python benchmarks/router_fit.py FILE.gguf
    python benchmarks/router_fit.py --table

Questions are the first 80 of nq_distractor's `train`; the chain reads three passages that BM25
finds among all of theirs, cut to 80 words. Both fits have the same answers. Their reports are kept
in the file of records, from which `--table` prints, and each draft with whether it is right, agrees
with the chain's answer, and whether that is right.
"""

import argparse
import gzip
import importlib
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from records import Row, parsed, read, short, write

from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate, GECESettings
from ltrag_plugins.gece.fit import fit_outcomes
from ltrag_plugins.gece.labels import agreeing, collect
from ltrag_plugins.langchain import GECERouter, PassageRetriever
from ltrag_plugins.langchain.model import model_of
from ltrag_plugins.llm.cached import CachedLLM
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


def run(path: str, questions: int, threads: int) -> list[Row]:
    """The reports of both fits, and what came of each question."""
    if not (root := os.environ.get("LTRAG_DATA")):
        sys.exit("set LTRAG_DATA to the folder that holds nq_distractor/")
    with gzip.open(Path(root) / "nq_distractor" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][:questions]
    pool = {p["text"]: p["title"] for row in rows for p in row["passages"]}
    passages = [Passage(" ".join(text.split()[:80]), title=pool[text]) for text in pool]
    server = served(path, threads)
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

    texts = [row["question"] for row in rows]
    with TemporaryDirectory() as folder:
        drafting = CachedLLM(model_of(llm.bound), Path(folder) / "drafts.sqlite")
        gate = GECERouter.fit(RunnableLambda(answer), llm=drafting, questions=texts).gate
        assert isinstance(gate, GECEGate)
        known = [Question(row["question"], tuple(row["answers"])) for row in rows]
        answers, world = [kept[text] for text in texts], World(llm=drafting)
        outcomes, *_ = collect(known, world, GECESettings(), retrieved_answers=answers)
    fits = {"without labels": gate.report, "with labels": fit_outcomes(outcomes)[1]}
    return [{"fit": name, "report": str(report).splitlines()} for name, report in fits.items()] + [
        {
            "question": text,
            "draft": (draft := outcome.evidence.draft).text,
            "logprobs": [short(token.logprob) for token in draft.tokens or ()],
            "right": outcome.right,
            "right_with_retrieval": outcome.right_with_retrieval,
            "agrees": agreeing(text, draft.text, found),
        }
        for text, outcome, found in zip(texts, outcomes, answers, strict=True)
    ]


def report(rows: list[Row]) -> None:
    """Both fits."""
    for fit in rows[:2]:
        print(f"## {fit['fit']}", *fit["report"], "", sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a GGUF file")
    parser.add_argument("--questions", type=int, default=80)
    parser.add_argument("--threads", type=int, default=2)
    options = parsed(parser, "router_fit")
    if not options.table:
        if options.model is None:
            parser.error("name a GGUF file")
        write(options.records, run(options.model, options.questions, options.threads))
    report(read(options.records))


if __name__ == "__main__":
    main()
