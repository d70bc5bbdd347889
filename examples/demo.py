"""Gate, reranker and calibrator together: Natural Questions on a 135M model, in both frameworks.

Fits each of the three on a few real questions, then answers others in LangChain and in LlamaIndex
five ways: from the model alone, with BM25's first passage for every question, and with one
component more each time. Run it with `make demo`; figures, pictures and what was fitted land in
`runs/demo/`, and so do the model's answers: a second run asks only what is new.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from demo_report import Measured, measured, pictures, summary, table
from demo_systems import (
    FOUND,
    MAX_TOKENS,
    Meter,
    Parts,
    langchain_rag,
    langchain_systems,
    llama_index_systems,
)
from prompts import CALIBRATING, DIRECT
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.dur import DURRanker, DURSettings, DURTrainer
from ltrag_plugins.flow import Step
from ltrag_plugins.gece import GECEGate, GECESettings
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.cached import CachedEncoder, CachedLLM
from ltrag_plugins.llm.embedded import embedded, embedded_encoder
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import Calibration, SGICSettings, fit
from ltrag_plugins.types import Passage, Question

DATA = Path(__file__).parent / "data"
BATCH = 16


@dataclass(frozen=True)
class Data:
    """Questions, each for one purpose, and the passages to search."""

    pool: list[Passage]
    gate: list[Question]
    head: list[Question]
    calibrator: list[Question]
    asked: list[Question]


@dataclass(frozen=True)
class Models:
    """What is asked; both keep what they computed."""

    llm: CachedLLM
    encoder: Encoder
    meter: Meter


def main() -> None:
    options, console = parsed(), Console()
    options.out.mkdir(parents=True, exist_ok=True)
    console.print("Loading SmolLM2-135M-Instruct and MiniLM (converted once, half a minute) ...")
    data = read(options)
    models = loaded(data, options)

    gate = fitted_gate(data, models, options.rate, options.out, console)
    ranker = trained_ranker(data, models, console)
    calibration = fitted_calibration(data, models, ranker, options, console)
    gate.save(options.out / "gate")
    ranker.save(options.out / "head")
    calibration.save(options.out / "calibration", llm=models.llm)

    parts = Parts(gate, ranker, calibration, models.meter, options.documents)
    encode_found(data, models, console)
    runs = answered(parts, data.asked, console)
    for framework, run in runs.items():
        console.print(table(framework, run))
    console.print(summary(runs["LangChain"], data.asked, options.refuse_above))
    figures = {name: {s: m.figures for s, m in run.items()} for name, run in runs.items()}
    (options.out / "figures.json").write_text(json.dumps(figures, indent=1))
    drawn = pictures(gate, runs["LangChain"], data.asked, options.out)
    console.print(f"\n{options.out}/ holds pictures ({', '.join(path.name for path in drawn)}),")
    console.print("figures.json, what the fits found (gate.txt, calibration.txt), what they made")
    console.print("(gate/, head/, calibration/), and the answers, which a second run reads again.")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", type=int, default=80, help="questions for the gate, 20 or more")
    parser.add_argument("--train", type=int, default=20, help="questions for the reranker")
    parser.add_argument("--calibrate", type=int, default=30, help="questions for the calibrator")
    parser.add_argument("--questions", type=int, default=100, help="others to answer, at most 120")
    parser.add_argument("--rate", type=float, default=0.7, help="share that may retrieve")
    parser.add_argument("--documents", type=int, default=1, help="passages the calibrator reads")
    parser.add_argument("--words", type=int, default=100, help="words of each of them")
    parser.add_argument("--rounds", type=int, default=2, help="rounds that its fit may try")
    parser.add_argument(
        "--refuse-above", type=float, default=0.8, help="P(wrong) above which to refuse"
    )
    parser.add_argument(
        "--dtype", default="float32", help="of the weights; fast: bfloat16 where it is faster"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    options = parser.parse_args()
    if options.fit + options.train + options.calibrate > 200:
        parser.error("--fit, --train and --calibrate share 200 questions; ask for fewer")
    return options


def read(options: argparse.Namespace) -> Data:
    """No question serves two purposes."""
    pool = read_passages(DATA / "nq_passages.jsonl.gz")
    labelled = iter(read_questions(DATA / "nq_calibration.jsonl", pool=pool))
    others = read_questions(DATA / "nq_questions.jsonl", pool=pool)
    counts = (options.fit, options.train, options.calibrate)
    gate, head, calibrator = ([next(labelled) for _ in range(count)] for count in counts)
    return Data(pool, gate, head, calibrator, others[: options.questions])


def loaded(data: Data, options: argparse.Namespace) -> Models:
    model = embedded(dtype=options.dtype, chat=False)
    llm = CachedLLM(model, options.out / "answers.sqlite")
    encoder = CachedEncoder(embedded_encoder(), options.out / "vectors.sqlite")
    return Models(llm, encoder, Meter(llm, BM25Retriever(data.pool)))


def fitted_gate(data: Data, models: Models, rate: float, out: Path, console: Console) -> GECEGate:
    """Learns from both answers to each question where retrieving helps."""
    console.print(f"\n[bold]1. A gate[/], fitted on {len(data.gate)} questions")
    rag, texts = langchain_rag(models.meter), [question.text for question in data.gate]
    with bar(console, "answering, with retrieval", len(texts)) as advance:
        found: list[str] = []
        for i in range(0, len(texts), BATCH):
            found += rag.batch(texts[i : i + BATCH])
            advance(len(texts[i : i + BATCH]))
    with bar(console, "answering, without", len(texts)) as advance:
        gate = GECEGate.fit(
            data.gate,
            llm=models.meter,
            encoder=models.encoder,
            retrieved_answers=found,
            target_rate=rate,
            settings=GECESettings(prompt=DIRECT, max_tokens=MAX_TOKENS),
            observers=[answers(advance)],
            batch=BATCH,
        )
    (out / "gate.txt").write_text(f"{gate.report}\n")
    console.print(
        f"retrieves for {gate.report.retrieval_rate.value:.0%} of them; AUROC for direct answers "
        f"that fail: {gate.report.auroc.value:.2f}"
    )
    return gate


def trained_ranker(data: Data, models: Models, console: Console) -> DURRanker:
    """Learns which passages help this model; keeps plain similarity where that is no worse."""
    console.print(f"\n[bold]2. A reranker[/], trained on {len(data.head)} questions")
    held_out = min(10, len(data.head) // 2) / max(1, len(data.head))
    settings = DURSettings(
        format="passages", shots=1, batch_size=10, epochs=2, held_out=held_out, learning_rate=1e-3
    )
    trainer = DURTrainer(models.encoder, models.llm, settings=settings)
    total = settings.epochs * settings.batches(len(data.head))
    with bar(console, "training, batches", total) as advance:
        result = trainer.fit(None, data.head, on_batch=lambda _: advance(1))
    kept = "the trained head"
    if result.choice and result.choice.head == "start":
        kept = "plain similarity, which was better on the questions held out"
    console.print(f"{result.calls} prompts; kept: {kept}")
    return result.ranker


def fitted_calibration(
    data: Data, models: Models, ranker: DURRanker, options: argparse.Namespace, console: Console
) -> Calibration:
    """Finds out whether looking again pays, and how scores become P(wrong)."""
    console.print(f"\n[bold]3. A calibrator[/], fitted on {len(data.calibrator)} questions")
    questions = [
        replace(question, passages=best(question, ranker, models.meter, options.documents))
        for question in data.calibrator
    ]
    settings = SGICSettings(
        rounds=options.rounds,
        document_words=options.words,
        answer_tokens=MAX_TOKENS,
        templates=CALIBRATING,
    )
    cuts = range(1, options.documents)
    each = 1 + options.documents + options.rounds + len(cuts)
    with bar(console, "asking, round by round", len(questions) * each) as advance:
        calibration, report = fit(
            questions,
            models.llm,
            settings=settings,
            metric="f1",
            cut_to=tuple(cuts),
            observers=[answers(advance)],
            batch=BATCH,
        )
    (options.out / "calibration.txt").write_text(f"{report}\n")
    pays = "pays" if report.pays else "none of the ways to look again pays"
    known = "unknown" if report.auroc is None else f"AUROC {report.auroc:.2f}"
    console.print(f"kept: {report.kept} ({pays}); P(wrong): {known}")
    return calibration


def best(question: Question, ranker: DURRanker, meter: Meter, count: int) -> tuple[Passage, ...]:
    """What the reranker makes of BM25's passages."""
    [found] = meter.search([question.text], FOUND)
    return tuple(found[place.index] for place in ranker.rank(question.text, found, top_n=count))


def encode_found(data: Data, models: Models, console: Console) -> None:
    """Vectors of passages belong to an index; here those that will be ranked are made first."""
    searched = models.meter.search([question.text for question in data.asked], FOUND)
    titled = (f"{p.title}\n{p.text}" if p.title else p.text for f in searched for p in f)
    texts = list(dict.fromkeys(titled))
    console.print()
    with bar(console, "passages into vectors", len(texts)) as advance:
        for i in range(0, len(texts), BATCH):
            models.encoder.encode(texts[i : i + BATCH])
            advance(len(texts[i : i + BATCH]))


def answered(
    parts: Parts, questions: list[Question], console: Console
) -> dict[str, dict[str, Measured]]:
    """Every question by every system, one after the other, as an app would."""
    console.print(f"[bold]4. All together[/], on {len(questions)} other questions")
    runs: dict[str, dict[str, Measured]] = {}
    makers = {"LangChain": langchain_systems, "LlamaIndex": llama_index_systems}
    for framework, make in makers.items():
        systems = make(parts)
        with bar(console, framework, len(systems) * len(questions)) as advance:
            runs[framework] = {
                name: measured(system, questions, parts.meter, lambda: advance(1))
                for name, system in systems.items()
            }
    return runs


@contextmanager
def bar(console: Console, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar that is gone when it is done; the block gets what moves it on."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(
        TextColumn("  {task.description}"), *columns, console=console, transient=True
    ) as p:
        task = p.add_task(label, total=total)
        yield lambda count: p.advance(task, count)


def answers(advance: Callable[[int], None]) -> Callable[[Step], None]:
    """An observer that moves a bar on with the model's answers."""

    def observe(step: Step) -> None:
        if step.kind == "reply":
            advance(len(getattr(step.request, "prompts", ())))

    return observe


if __name__ == "__main__":
    main()
