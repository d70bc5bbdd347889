"""Answers that know how sure they are: fit on a few questions, keep, refuse, watch, evaluate.

`SGICCalibrator` in LangChain and in LlamaIndex on questions of Natural Questions and a 135M model.
The fit finds out whether looking again pays; what it found is saved and loaded, as an app would.
Takes a minute or two on two cores::

    python examples/calibrate.py

A handful of questions shows how the parts fit. For figures to rely on give a hundred or more, with
the passages that your retriever finds (`ltrag calibrate fit`).
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from llama_index.core.base.response.schema import Response
from llama_index.core.query_engine import RetrieverQueryEngine
from prompts import CALIBRATING
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from ltrag_plugins import langchain as lc
from ltrag_plugins import llama_index as li
from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.flow import Step
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.llm.embedded import embedded
from ltrag_plugins.metrics.answer import contains
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import Calibration, SGICSettings, fit
from ltrag_plugins.types import Question

DATA = Path(__file__).parent / "data"
K = 2
"""Documents to answer from."""
SETTINGS = SGICSettings(rounds=1, document_words=100, answer_tokens=12, templates=CALIBRATING)


def main() -> None:
    options, console = parsed(), Console()
    console.print("Loading SmolLM2-135M-Instruct (converted once, half a minute) ...")
    pool = read_passages(DATA / "nq_passages.jsonl.gz")
    labelled = read_questions(DATA / "nq_calibration.jsonl")[: options.fit]
    asked = read_questions(DATA / "nq_questions.jsonl")[: options.questions]
    llm, bm25 = embedded(chat=False), BM25Retriever(pool)

    with tempfile.TemporaryDirectory() as scratch:
        folder = options.out or Path(scratch)
        fitted(labelled, bm25, llm, console).save(folder, llm=llm)
        retriever = lc.PassageRetriever(retriever=bm25, k=K)
        runnable = lc.SGICCalibrator.from_pretrained(
            folder, llm=llm, retriever=retriever, refuse_above=options.refuse_above
        )
        synthesizer = li.SGICCalibrator.from_pretrained(
            folder, llm=llm, refuse_above=options.refuse_above
        )
        in_langchain(runnable, asked, console)
        in_llama_index(synthesizer, bm25, asked, options.refuse_above, console)
        # the fit may have kept no rounds; to watch some, ask for them
        looking = replace(SETTINGS, certain_below=0.0)
        watched(lc.SGICCalibrator(llm, retriever, settings=looking), asked[0], console)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", type=int, default=12, help="questions to fit on, at most 200")
    parser.add_argument("--questions", type=int, default=6, help="others to answer, at most 120")
    parser.add_argument(
        "--refuse-above", type=float, default=55, help="score, 0-100; 50 is the mean of the fit"
    )
    parser.add_argument("--out", type=Path, help="folder for the calibration; else none is kept")
    options = parser.parse_args()
    if options.questions < 1:
        parser.error("--questions takes 1 to 120")
    if not 0 <= options.refuse_above <= 100:
        parser.error("--refuse-above takes 0 to 100")
    try:  # what cannot be kept is refused before the work
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write to {options.out}: {error}")
    return options


def fitted(
    questions: list[Question], bm25: BM25Retriever, llm: LLM, console: Console
) -> Calibration:
    """What the answers' uncertainties mean, and whether looking again pays."""
    console.print(f"Fitting on {len(questions)} questions, {K} documents each ...")
    found = bm25.search([question.text for question in questions], K)
    with_passages = [
        replace(question, passages=tuple(passages))
        for question, passages in zip(questions, found, strict=True)
    ]
    # for each: an answer from all documents, one from each alone, a round, one from the surest
    calls = len(questions) * (1 + K + SETTINGS.rounds + 1)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("  asking", total=calls)

        def observe(step: Step) -> None:
            if step.kind == "reply":
                progress.advance(task, len(getattr(step.request, "prompts", ())))

        calibration, report = fit(
            with_passages,
            llm,
            settings=SETTINGS,
            metric="f1",
            cut_to=(1,),
            observers=[observe],
            batch=8,
        )
    console.print(str(report), soft_wrap=True, highlight=False)
    return calibration


def in_langchain(calibrator: lc.SGICCalibrator, asked: list[Question], console: Console) -> None:
    table = Table("question", "score", "answer", "what it would have said", title="LangChain")
    for question in track(asked, "  LangChain", console=console, transient=True):
        out = calibrator.invoke(question.text)
        thought = out["calibrated"].text
        right = "right" if contains(thought, question.answers) else "wrong"
        table.add_row(question.text, f"{out['score']:.0f}", out["answer"], f"{thought} ({right})")
    console.print(table)


def in_llama_index(
    calibrator: li.SGICCalibrator,
    bm25: BM25Retriever,
    asked: list[Question],
    limit: float,
    console: Console,
) -> None:
    """The same answers from a query engine, judged by LlamaIndex's kind of evaluator."""
    engine = RetrieverQueryEngine(li.PassageRetriever(bm25, k=K), calibrator)
    evaluator = li.SGICEvaluator(pass_below=limit)
    table = Table("question", "passing", "certainty", "feedback", title="LlamaIndex")
    for question in track(asked, "  LlamaIndex", console=console, transient=True):
        response = engine.query(question.text)
        assert isinstance(response, Response)
        result = evaluator.evaluate_response(question.text, response)
        passing = "yes" if result.passing else "no"
        table.add_row(question.text, passing, f"{result.score:.2f}", result.feedback)
    console.print(table)


def watched(calibrator: lc.SGICCalibrator, question: Question, console: Console) -> None:
    """One event a round, and the documents' own scores at the end."""
    console.print(f"Watching it look again: {question.text}")
    for chunk in calibrator.stream(question.text):
        for one in chunk.get("trace", ()):
            console.print(f"  round {one.number}: {one.text!r}, score {one.score:.0f}")
        for document in chunk.get("documents", ()):
            judged = document.metadata["sgic"]
            title = document.metadata["title"]
            console.print(f"  {title}: score {judged['score']:.0f}, alone {judged['answer']!r}")


if __name__ == "__main__":
    main()
