"""The fitted gate beside each single signal, fitted on few questions of three data sets.

Draws of `train` are fitted on, the other questions judged: AUROC of "the direct answer fails", mean
over the draws. "Chosen" is the signal that does best on the questions of the fit, "best" on all of
the set. Intervals are over the judged questions. Drafts are kept in a file. With --search, BM25's
best score and its distance to the second are signals too. The scores are kept in the file of
records, from which `--table` prints. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/single_signals.py FILE.gguf --answers FILE.sqlite
    python benchmarks/single_signals.py --table
"""

import argparse
import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from records import Row, merged, parsed, read, short

from ltrag_plugins.data import read_questions
from ltrag_plugins.flow import World, run_many
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.gece.fit import fit_failure, fit_gain
from ltrag_plugins.gece.score import quality_of
from ltrag_plugins.gece.signals import Features, OwnSignals, available_signals, drafting, features
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.embedded import embedded_encoder
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.metrics.answer import is_right
from ltrag_plugins.metrics.calibration import Interval, auroc, bootstrap_interval
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Question


def asked(name: str, limit: int) -> list[Question]:
    if not (root := os.environ.get("LTRAG_DATA")):
        sys.exit("set LTRAG_DATA to the folder that holds popqa/, triviaqa/ and nq_distractor/")
    found = read_questions(Path(root) / name / "train.jsonl.gz", require_answers=True)
    found.sort(key=lambda question: hashlib.sha256(question.id.encode()).hexdigest())
    return found[:limit]


def searching(questions: list[Question]) -> OwnSignals:
    pool = {passage.text: passage for question in questions for passage in question.passages}
    found = BM25Retriever(pool.values()).search([question.text for question in questions], 2)
    scores = {q.text: [p.score or 0.0 for p in f] for q, f in zip(questions, found, strict=True)}
    return {
        "search_score": lambda text: -scores[text][0],
        "search_margin": lambda text: scores[text][1] - scores[text][0],
    }


def table(questions: list[Question], world: World, search: bool) -> tuple[Any, ...]:
    """Columns, 1 where the draft fails, its METEOR, and the names of the signals."""
    settings = GECESettings()
    own = searching(questions) if search else {}
    flows = [drafting(question.text, settings, vectors=True, own=own) for question in questions]
    evidence = run_many(flows, world, batch=64)
    pairs = [(e.draft.text, q.answers) for e, q in zip(evidence, questions, strict=True)]
    fails = np.array([not is_right(*pair, settings.correct) for pair in pairs], dtype=int)
    quality = np.array([quality_of(*pair) for pair in pairs])
    names = available_signals(evidence, None)
    return features(evidence, names, None), fails, quality, names


def judged(columns: Features, fails: Any, quality: Any, fitted: np.ndarray) -> np.ndarray:
    """What the gate and METEOR's estimate say, a column each; NaN of the fitted."""
    bare = replace(columns, vectors=columns.vectors[:, :0])
    gate, _ = fit_failure(columns[fitted], fails[fitted], seed=0)
    meteor, _ = fit_gain(bare[fitted], quality[fitted], seed=0)
    found = np.column_stack([gate(columns), -meteor(bare)])
    found[fitted] = np.nan
    return found


def beside(row: Row) -> tuple[np.ndarray, np.ndarray]:
    """By question, draw and place: the gate, each signal, the one that is best on the fit, METEOR's
    estimate; and what failed."""
    signals = np.array(row["signals"])[:, None, :]
    drawn, fails = np.array(row["judged"], dtype=float), np.array(row["fails"])
    alone = np.where(np.isnan(drawn[:, :, :1]), np.nan, signals)
    chosen = np.full(drawn.shape[:2], np.nan)
    for draw in range(drawn.shape[1]):
        fitted = np.isnan(drawn[:, draw, 0])
        each = [auroc(column[fitted], fails[fitted]) for column in signals[:, 0].T]
        chosen[:, draw] = alone[:, draw, int(np.argmax(each))]
    return np.concatenate([drawn[..., :1], alone, chosen[..., None], drawn[..., 1:]], axis=2), fails


def mean_auroc(scores: np.ndarray, fails: np.ndarray, place: int) -> float:
    """Over the draws; `scores` has a row for each question, then one for each draw."""
    each = [(draw, ~np.isnan(draw)) for draw in scores[:, :, place].T]
    return float(np.mean([auroc(draw[new], fails[new]) for draw, new in each]))


def above(scores: np.ndarray, fails: np.ndarray, place: int) -> Interval:
    """By how much the gate is above what stands in that place: of the pairs of a failure and a
    right answer, how many more it puts in order, each as often as both were drawn."""
    pairs = []
    for draw in np.moveaxis(scores[:, :, [0, place]], 1, 0):
        new = ~np.isnan(draw[:, 0])
        wrong, right = np.flatnonzero(new & (fails == 1)), np.flatnonzero(new & (fails == 0))
        apart = draw[wrong][:, None] - draw[right]
        won = (np.sign(apart) + 1) / 2
        pairs.append((wrong, right, won[..., 0] - won[..., 1]))

    def difference(rows: np.ndarray) -> float:
        times = np.bincount(rows.astype(int), minlength=len(fails)).astype(float)
        each = [
            times[w] @ more @ times[r] / times[w].sum() / times[r].sum() for w, r, more in pairs
        ]
        return float(np.mean(each))

    return bootstrap_interval(np.arange(len(fails)), statistic=difference, resamples=2000)


def kept(name: str, options: argparse.Namespace, world: World) -> Row:
    """The signals of each question, whether its draft fails, and what was judged of it by draw."""
    questions = asked(name, options.questions)
    columns, fails, quality, names = table(questions, world, options.search)
    orders = [np.random.default_rng(i).permutation(len(fails)) for i in range(options.draws)]
    draws = [order[: options.fit] for order in orders]
    scores = np.stack([judged(columns, fails, quality, some) for some in draws], axis=1)
    return {
        "set": name,
        "search": options.search,
        "names": names,
        "fails": fails.tolist(),
        "signals": [[*map(short, row)] for row in columns.signals],
        "judged": [[[*map(short, pair)] for pair in row] for row in scores],
    }


def report(row: Row) -> None:
    """Print what was kept of a model and data set."""
    names = row["names"]
    scores, fails = beside(row)
    fitted = np.isnan(scores[:, :, 0])
    right = ", ".join(str((1 - fails[some]).sum()) for some in fitted.T)
    best = 1 + int(np.argmax([auroc(column, fails) for column in np.array(row["signals"]).T]))
    asked = f"{row['set']}{' with search' * row['search']}, {row['model'].partition('@')[0]}"
    print(
        f"\n## {asked}: {fitted[:, 0].sum()} questions to fit, "
        f"{(~fitted[:, 0]).sum()} to judge, {fitted.shape[1]} draws; right in the fit: {right}"
    )
    rows = {"gate": 0, "chosen on the fit": len(names) + 1, f"best, {names[best - 1]}": best}
    rows |= {"1 - METEOR, estimated": len(names) + 2}
    rows |= {f"  {signal}": place for place, signal in enumerate(names, 1)}
    for label, place in rows.items():
        line = f"{label:<32}{mean_auroc(scores, fails, place):.3f}"
        if place > 0 and not label.startswith(" "):
            more = above(scores, fails, place)
            line += f"   gate {more.value:+.3f} ({more.low:+.3f} to {more.high:+.3f})"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a GGUF file, or a folder of weights")
    parser.add_argument("--answers", type=Path, default=Path("runs/single_signals.sqlite"))
    parser.add_argument("--questions", type=int, default=500, help="of each data set")
    parser.add_argument("--fit", type=int, default=200, help="of these, in each draw")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--data", default="popqa,triviaqa,nq_distractor")
    parser.add_argument("--search", action="store_true", help="for questions with passages")
    parser.add_argument("--dtype", default="auto", help='"fast": bfloat16 where the CPU has it')
    options = parsed(parser, "single_signals")
    if not (options.table or options.model):
        parser.error("name a model, or --table")
    if not options.table:
        run(options)
    for row in read(options.records):
        report(row)


def run(options: argparse.Namespace) -> None:
    model = TransformersLLM.load(options.model, dtype=options.dtype)
    llm = CachedLLM(model, options.answers)
    for name in options.data.split(","):
        found = kept(name, options, World(llm=llm, encoder=embedded_encoder()))
        merged(options.records, [{"model": llm.name} | found], "model", "set", "search")


if __name__ == "__main__":
    main()
