"""Never, always, gated: Natural Questions on a 135M model, in LangChain and in LlamaIndex.

Fits a gate on 120 real questions, then answers 100 others in both frameworks three times: from the
model alone, with retrieval for every question, and behind the gate. Run it with `make demo`; the
pictures and figures land in `runs/demo/`.
"""

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from llama_index.core import PromptTemplate as LlamaIndexPrompt
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from plots import curve_picture, score_picture
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from ltrag_plugins import langchain as lc
from ltrag_plugins import llama_index as li
from ltrag_plugins.baselines import single_retrieval
from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.gece import GECEGate, GECESettings
from ltrag_plugins.llm.embedded import embedded, embedded_encoder
from ltrag_plugins.metrics.answer import contains, f1, normalized_exact_match
from ltrag_plugins.metrics.cost import Cost
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Generation, Passage, Question

DATA = Path(__file__).parent / "data"
MAX_TOKENS = 12
DIRECT = "Answer the question in a few words, without explanation.\nQuestion: {question}\nAnswer:"
READING = (
    "{context}\n\nAnswer the question in a few words from the text above, without explanation.\n"
    "Question: {question}\nAnswer:"
)


@dataclass
class Meter:
    """A model and a retriever that count what passes through them."""

    llm: object
    retriever: BM25Retriever
    cost: Cost = field(default_factory=Cost)

    @property
    def name(self) -> str:
        return self.llm.name

    def generate(self, prompts: list[str], **settings: object) -> list[Generation]:
        start = time.perf_counter()
        replies = self.llm.generate(prompts, **settings)
        seconds = time.perf_counter() - start
        for reply in replies:
            self.cost += Cost(
                calls=1,
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=reply.completion_tokens,
            )
        self.cost += Cost(model_seconds=seconds)
        return replies

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        self.cost += Cost(retrievals=len(queries))
        return self.retriever.search(queries, k)

    def spent(self) -> Cost:
        """The cost since the last call of this method."""
        spent, self.cost = self.cost, Cost()
        return spent


def langchain_systems(gate: GECEGate, meter: Meter) -> dict[str, Callable[[str], str]]:
    llm = lc.LtragLLM(llm=meter, max_tokens=MAX_TOKENS).bind(stop=["\n"])
    retriever = lc.PassageRetriever(retriever=meter, k=1)
    joined = RunnableLambda(
        lambda found: "\n".join(f"{d.metadata['title']}: {d.page_content}" for d in found)
    )
    direct = PromptTemplate.from_template(DIRECT) | llm
    rag = (
        {"context": retriever | joined, "question": RunnablePassthrough()}
        | PromptTemplate.from_template(READING)
        | llm
    )
    gated = lc.GECERouter(gate, rag)
    return {
        "never": lambda q: direct.invoke({"question": q}),
        "always": rag.invoke,
        "gated": gated.invoke,
    }


def llama_index_systems(gate: GECEGate, meter: Meter) -> dict[str, Callable[[str], str]]:
    llm = li.LtragLLM(meter, num_output=MAX_TOKENS)
    template = LlamaIndexPrompt(
        READING.replace("{context}", "{context_str}").replace("{question}", "{query_str}")
    )
    engine = RetrieverQueryEngine(
        li.PassageRetriever(meter, k=1),
        get_response_synthesizer(
            llm=llm, text_qa_template=template, response_mode="simple_summarize"
        ),
    )
    gated = li.GECERouter(gate, engine)
    return {
        "never": lambda q: llm.complete(DIRECT.replace("{question}", q), stop=["\n"]).text,
        "always": lambda q: str(engine.query(q)),
        "gated": lambda q: str(gated.query(q)),
    }


def measure(
    answer: Callable[[str], str], questions: list[Question], meter: Meter, label: str
) -> dict[str, float]:
    """Answer one question after the other, as an app would."""
    meter.spent()
    start = time.perf_counter()
    answers = [answer(q.text) for q in track(questions, f"  {label}", transient=True)]
    seconds, spent = time.perf_counter() - start, meter.spent()
    asked = len(questions)
    return {
        "contains": sum(contains(a, q.answers) for a, q in zip(answers, questions, strict=True))
        / asked,
        "EM": sum(
            normalized_exact_match(a, q.answers) for a, q in zip(answers, questions, strict=True)
        )
        / asked,
        "F1": sum(f1(a, q.answers) for a, q in zip(answers, questions, strict=True)) / asked,
        "retrieval rate": spent.retrievals / asked,
        "model calls": spent.calls / asked,
        "prompt tokens": (spent.prompt_tokens or 0) / asked,
        "new tokens": (spent.completion_tokens or 0) / asked,
        "ms": 1000 * seconds / asked,
    }


def shown(figures: dict[str, dict[str, dict[str, float]]], console: Console) -> None:
    rows = next(iter(next(iter(figures.values())).values()))
    short = {"LangChain": "LC", "LlamaIndex": "LI"}
    names = [f"{short[f]} {system}" for f, systems in figures.items() for system in systems]
    table = Table("a question", *names, title="LC = LangChain, LI = LlamaIndex")
    for row in rows:
        values = [figures[f][system][row] for f in figures for system in figures[f]]
        table.add_row(row, *(f"{v:.2f}" if v < 10 else f"{v:.0f}" for v in values))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", type=int, default=120, help="calibration questions")
    parser.add_argument("--questions", type=int, default=100, help="other questions, at most 120")
    parser.add_argument("--rate", type=float, default=0.5, help="share that may retrieve")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    arguments = parser.parse_args()
    logging.getLogger("ltrag_plugins").setLevel(logging.INFO)
    console = Console()

    console.print("Loading SmolLM2-135M-Instruct and MiniLM (converted once, half a minute) ...")
    pool = read_passages(DATA / "nq_passages.jsonl.gz")
    calibration = read_questions(DATA / "nq_calibration.jsonl", pool=pool)[: arguments.fit]
    questions = read_questions(DATA / "nq_questions.jsonl", pool=pool)[: arguments.questions]
    meter = Meter(embedded(dtype="fast"), BM25Retriever(pool))

    console.print(
        f"Fitting a gate on {len(calibration)} questions, {len(pool)} passages to search ..."
    )
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("  asking, with and without retrieval", total=2 * len(calibration))
        gate = GECEGate.fit(
            calibration,
            llm=meter,
            encoder=embedded_encoder(),
            retriever=meter,
            retrieving=lambda q: single_retrieval(
                q, k=1, template=READING.replace("{context}", "{passages}"), max_tokens=MAX_TOKENS
            ),
            target_rate=arguments.rate,
            settings=GECESettings(prompt=DIRECT, max_tokens=MAX_TOKENS),
            observers=[
                lambda step: progress.advance(
                    task, len(getattr(step.request, "prompts", ())) if step.kind == "reply" else 0
                )
            ],
            batch=16,
        )
    console.print(str(gate.report))

    figures: dict[str, dict[str, dict[str, float]]] = {}
    for framework, systems in (
        ("LangChain", langchain_systems),
        ("LlamaIndex", llama_index_systems),
    ):
        console.print(f"{framework}: {len(questions)} questions, three ways ...")
        figures[framework] = {
            name: measure(answer, questions, meter, name)
            for name, answer in systems(gate, meter).items()
        }
    shown(figures, console)

    arguments.out.mkdir(parents=True, exist_ok=True)
    gate.save(arguments.out / "gate")
    (arguments.out / "figures.json").write_text(json.dumps(figures, indent=1))
    score_picture(gate, arguments.out / "gece_scores.png")
    curve_picture(gate, figures["LangChain"], arguments.out / "accuracy_by_rate.png")
    console.print(f"Pictures, figures and the gate: {arguments.out}/")


if __name__ == "__main__":
    main()
