"""All three at once: Natural Questions on a 135M model, in both frameworks.

`LongTailRAG.fit` fits a gate, a reranker and a calibrator on real questions, keeps each only where
it pays on questions that no fit saw, and prints what each of them adds. What was kept then answers
other questions as a LangChain Runnable and as a LlamaIndex query engine. Run it with `make demo`;
table and fitted parts land in `runs/demo/`, and so do the model's answers: a second run asks only
what is new.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from prompts import CALIBRATING, DIRECT
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ltrag_plugins import langchain as lc
from ltrag_plugins import llama_index as li
from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.evaluate import LongTailSettings
from ltrag_plugins.flow import Observer, Step
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.llm.cached import CachedEncoder, CachedLLM
from ltrag_plugins.llm.embedded import embedded, embedded_encoder
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import SGICSettings

DATA = Path(__file__).parent / "data"
DEFAULTS = LongTailSettings()
SMALL = LongTailSettings(
    k=1,
    gate=GECESettings(prompt=DIRECT, max_tokens=12),
    ranking=replace(DEFAULTS.ranking, shots=1, epochs=1),
    reading=SGICSettings(rounds=1, document_words=100, answer_tokens=12, templates=CALIBRATING),
)
"""One passage and worked examples, as a 135M model is lost in more; larger models need none."""


def main() -> None:
    options, console = parsed(), Console()
    console.print("Loading SmolLM2-135M-Instruct and MiniLM (converted once, half a minute) ...")
    pool = read_passages(DATA / "nq_passages.jsonl.gz")
    questions = read_questions(DATA / "nq_calibration.jsonl", pool=pool)[: options.questions]
    model = embedded(dtype=options.dtype, chat=False)
    llm = CachedLLM(model, options.out / "answers.sqlite")
    encoder = CachedEncoder(embedded_encoder(), options.out / "vectors.sqlite")
    search = BM25Retriever(pool)

    with shown(console) as (stage, observer):
        rag = lc.LongTailRAG.fit(
            questions,
            llm=llm,
            retriever=search,
            encoder=encoder,
            target_accuracy=options.target_accuracy,
            settings=SMALL,
            observers=[observer],
            on_stage=stage,
            batch=16,
        )
    console.print(str(rag.report), highlight=False, soft_wrap=True)
    rag.save(options.out / "rag")
    (options.out / "table.txt").write_text(f"{rag.report}\n")

    engine = li.LongTailRAG.load(options.out / "rag", llm=llm, retriever=search, encoder=encoder)
    for other in read_questions(DATA / "nq_questions.jsonl")[: options.ask]:
        out, response = rag.invoke(other.text), engine.query(other.text)
        p_wrong = "unknown" if out["p_wrong"] is None else f"{out['p_wrong']:.2f}"
        console.print(f"\n{other.text}?", style="bold", highlight=False)
        console.print(f"  LangChain   {out['answer']}  (P(wrong) {p_wrong})", highlight=False)
        console.print(f"  LlamaIndex  {response}", highlight=False)
        console.print(f"  accepted    {'; '.join(other.answers)}", highlight=False)
    console.print(
        f"\n{options.out}/ holds the table, what was kept (rag/) and all answers. A model of this "
        "size knows next to nothing; what the parts add to larger ones: docs/benchmarks.md"
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=60, help="to fit and judge, at most 200")
    parser.add_argument("--ask", type=int, default=3, help="others to answer, at most 120")
    parser.add_argument(
        "--target-accuracy", type=float, help="share of right answers; else as good as always"
    )
    parser.add_argument(
        "--dtype", default="float32", help="of the weights; fast: bfloat16 where it is faster"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    options = parser.parse_args()
    try:  # what cannot be kept is refused before the work
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write to {options.out}: {error}")
    return options


@contextmanager
def shown(console: Console) -> Iterator[tuple[Callable[[str], None], Observer]]:
    """What tells of a stage, and an observer that counts the replies within it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}, {task.completed} replies"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bars:
        tasks = [bars.add_task("begun", visible=False)]

        def stage(name: str) -> None:
            if not console.is_terminal:  # in a log the bars come when all is over
                console.print(f"  {name} ...")
            bars.update(tasks[-1], total=bars.tasks[-1].completed)
            tasks.append(bars.add_task(name, total=None))

        def observe(step: Step) -> None:
            if step.reply is not None:
                bars.advance(tasks[-1], len(step.reply))

        yield stage, observe
        bars.update(tasks[-1], total=bars.tasks[-1].completed)


if __name__ == "__main__":
    main()
