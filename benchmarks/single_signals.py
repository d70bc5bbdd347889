"""The fitted gate beside each single signal, fitted on few questions of three data sets.

Draws of `train` are fitted on, the other questions judged: AUROC of "the direct answer fails", mean
over the draws. "Chosen" is the signal that does best on the questions of the fit, "best" the one
that does best on all questions of the set. Intervals are over the judged questions. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/single_signals.py FILE.gguf --answers FILE.sqlite

Drafts are kept in the SQLite file, so a run that was stopped goes on, and a second one is quick.
"""

import argparse
import hashlib
import os
import sys
from pathlib import Path

import numpy as np

from ltrag_plugins.data import read_questions
from ltrag_plugins.flow import World, run_many
from ltrag_plugins.gece import GECESettings, WordFrequencies
from ltrag_plugins.gece.fit import fit_failure, fit_gain
from ltrag_plugins.gece.score import quality_of
from ltrag_plugins.gece.signals import Features, available_signals, drafting, features
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.embedded import embedded_encoder
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.metrics.answer import is_right
from ltrag_plugins.metrics.calibration import Interval, auroc, bootstrap_interval
from ltrag_plugins.types import Question

METEOR = "1 - METEOR, estimated"


def asked(name: str, limit: int) -> list[Question]:
    root = os.environ.get("LTRAG_DATA")
    if not root:
        sys.exit("set LTRAG_DATA to the folder that holds popqa/, triviaqa/ and nq_distractor/")
    found = read_questions(Path(root) / name / "train.jsonl.gz", require_answers=True)
    found.sort(key=lambda question: hashlib.sha256(question.id.encode()).hexdigest())
    return found[:limit]


def table(
    questions: list[Question], world: World
) -> tuple[Features, np.ndarray, np.ndarray, list[str]]:
    """Columns, 1 where the draft fails, its METEOR, and the names of the signals."""
    settings, frequencies = GECESettings(), WordFrequencies()
    flows = [drafting(question.text, settings, vectors=True) for question in questions]
    evidence = run_many(flows, world, batch=64)
    pairs = [(e.draft.text, q.answers) for e, q in zip(evidence, questions, strict=True)]
    fails = np.array([not is_right(*pair, settings.correct) for pair in pairs], dtype=int)
    quality = np.array([quality_of(*pair) for pair in pairs])
    names = available_signals(evidence, frequencies)
    return features(evidence, names, frequencies), fails, quality, names


def judged(
    columns: Features, fails: np.ndarray, quality: np.ndarray, fitted: np.ndarray
) -> np.ndarray:
    """What the gate, each signal, the chosen one and METEOR's estimate say; NaN of the fitted."""
    bare = Features(columns.signals, columns.traits, columns.vectors[:, :0], columns.probability)
    alone = columns.signals
    chosen = int(np.argmax([auroc(column[fitted], fails[fitted]) for column in alone.T]))
    gate, _ = fit_failure(columns[fitted], fails[fitted], seed=0)
    meteor, _ = fit_gain(bare[fitted], quality[fitted], seed=0)
    found = np.column_stack([gate(columns), alone, alone[:, chosen], -meteor(bare)])
    found[fitted] = np.nan
    return found


def mean_auroc(scores: np.ndarray, fails: np.ndarray, place: int) -> float:
    """Over the draws; `scores` has one row for each question, columns by draw."""
    each = scores[:, :, place].T
    return float(np.mean([auroc(s[~np.isnan(s)], fails[~np.isnan(s)]) for s in each]))


def above(scores: np.ndarray, fails: np.ndarray, place: int) -> Interval:
    """By how much the gate is above what stands in that place."""

    def difference(rows: np.ndarray) -> float:
        some = rows.astype(int)
        first, second = (mean_auroc(scores[some], fails[some], i) for i in (0, place))
        return first - second

    return bootstrap_interval(np.arange(len(fails)), statistic=difference, resamples=300)


def report(name: str, options: argparse.Namespace, world: World) -> None:
    columns, fails, quality, names = table(asked(name, options.questions), world)
    draws = [
        np.random.default_rng(seed).permutation(len(fails))[: options.fit]
        for seed in range(options.draws)
    ]
    right = [int((1 - fails[some]).sum()) for some in draws]
    scores = np.stack([judged(columns, fails, quality, some) for some in draws], axis=1)
    best = 1 + int(np.argmax([auroc(column, fails) for column in columns.signals.T]))
    print(
        f"\n## {name}: {options.fit} questions to fit, {len(fails) - options.fit} to judge, "
        f"{options.draws} draws; right in the fit: {', '.join(map(str, right))}"
    )
    rows = {"gate": 0, "chosen on the fit": len(names) + 1}
    rows |= {f"best, {names[best - 1]}": best, METEOR: len(names) + 2}
    rows |= {f"  {signal}": place for place, signal in enumerate(names, 1)}
    for row, place in rows.items():
        line = f"{row:<32}{mean_auroc(scores, fails, place):.3f}"
        if place > 0 and not row.startswith(" "):
            found = above(scores, fails, place)
            line += f"   gate {found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file, or a folder in transformers' format")
    parser.add_argument("--answers", type=Path, default=Path("runs/single_signals.sqlite"))
    parser.add_argument("--questions", type=int, default=500, help="of each data set")
    parser.add_argument("--fit", type=int, default=200, help="of these, in each draw")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--data", default="popqa,triviaqa,nq_distractor")
    options = parser.parse_args()
    llm = CachedLLM(TransformersLLM.load(options.model), options.answers)
    for name in options.data.split(","):
        report(name, options, World(llm=llm, encoder=embedded_encoder()))


if __name__ == "__main__":
    main()
