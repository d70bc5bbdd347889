"""The fitted gate beside each single signal, fitted on few questions of three data sets.

Draws of `train` are fitted on, the other questions judged: AUROC of "the direct answer fails", mean
over the draws. "Chosen" is the signal that does best on the questions of the fit, "best" on all of
the set. Intervals are over the judged questions. Drafts are kept in a file. With --search, BM25's
best score and its distance to the second are signals too. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/single_signals.py FILE.gguf --answers FILE.sqlite
"""

import argparse
import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

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
    """What the gate, each signal, the chosen one and METEOR's estimate say; NaN of the fitted."""
    bare, alone = replace(columns, vectors=columns.vectors[:, :0]), columns.signals
    chosen = int(np.argmax([auroc(column[fitted], fails[fitted]) for column in alone.T]))
    gate, _ = fit_failure(columns[fitted], fails[fitted], seed=0)
    meteor, _ = fit_gain(bare[fitted], quality[fitted], seed=0)
    found = np.column_stack([gate(columns), alone, alone[:, chosen], -meteor(bare)])
    found[fitted] = np.nan
    return found


def mean_auroc(scores: np.ndarray, fails: np.ndarray, place: int) -> float:
    """Over the draws; `scores` has a row for each question, then one for each draw."""
    each = [(draw, ~np.isnan(draw)) for draw in scores[:, :, place].T]
    return float(np.mean([auroc(draw[new], fails[new]) for draw, new in each]))


def above(scores: np.ndarray, fails: np.ndarray, place: int) -> Interval:
    """By how much the gate is above what stands in that place."""

    def difference(rows: np.ndarray) -> float:
        some = scores[rows.astype(int)], fails[rows.astype(int)]
        return mean_auroc(*some, 0) - mean_auroc(*some, place)

    return bootstrap_interval(np.arange(len(fails)), statistic=difference, resamples=300)


def report(name: str, options: argparse.Namespace, world: World) -> None:
    questions = asked(name, options.questions)
    columns, fails, quality, names = table(questions, world, options.search)
    orders = [np.random.default_rng(i).permutation(len(fails)) for i in range(options.draws)]
    draws = [order[: options.fit] for order in orders]
    right = ", ".join(str((1 - fails[some]).sum()) for some in draws)
    scores = np.stack([judged(columns, fails, quality, some) for some in draws], axis=1)
    best = 1 + int(np.argmax([auroc(column, fails) for column in columns.signals.T]))
    print(
        f"\n## {name}: {options.fit} questions to fit, {len(fails) - options.fit} to judge, "
        f"{options.draws} draws; right in the fit: {right}"
    )
    rows = {"gate": 0, "chosen on the fit": len(names) + 1, f"best, {names[best - 1]}": best}
    rows |= {"1 - METEOR, estimated": len(names) + 2}
    rows |= {f"  {signal}": place for place, signal in enumerate(names, 1)}
    for row, place in rows.items():
        line = f"{row:<32}{mean_auroc(scores, fails, place):.3f}"
        if place > 0 and not row.startswith(" "):
            more = above(scores, fails, place)
            line += f"   gate {more.value:+.3f} ({more.low:+.3f} to {more.high:+.3f})"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file, or a folder in transformers' format")
    parser.add_argument("--answers", type=Path, default=Path("runs/single_signals.sqlite"))
    parser.add_argument("--questions", type=int, default=500, help="of each data set")
    parser.add_argument("--fit", type=int, default=200, help="of these, in each draw")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--data", default="popqa,triviaqa,nq_distractor")
    parser.add_argument("--search", action="store_true", help="for questions with passages")
    parser.add_argument("--dtype", default="auto", help='"fast": bfloat16 where the CPU has it')
    options = parser.parse_args()
    model = TransformersLLM.load(options.model, dtype=options.dtype)
    llm = CachedLLM(model, options.answers)
    for name in options.data.split(","):
        report(name, options, World(llm=llm, encoder=embedded_encoder()))


if __name__ == "__main__":
    main()
