"""GECE and every plain signal against "the direct answer fails", with the model's weights at hand.

For each data set: draft answers, token probabilities, word frequencies, gradient terms (with the
reference, and with the draft in its place), the fitted gates; fits on `train`, reports AUROC on
`dev_test`, and the rank correlation with PopQA's page views. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/white_box.py --model embedded --limit 300
    LTRAG_DATA=/path/to/data python benchmarks/white_box.py --model FOLDER --few-shot --limit 300

Answers are kept in the cache file, gradients are not; a run of 300 + 300 questions of three data
sets takes about an hour on two cores.
"""

import argparse
import gzip
import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from ltrag_plugins.flow import World, run_many
from ltrag_plugins.gece import (
    SIGNALS,
    Decision,
    Evidence,
    GECEGate,
    GECESettings,
    Outcome,
    WordFrequencies,
    fit_outcomes,
    gece_score,
)
from ltrag_plugins.gece.collecting import is_right
from ltrag_plugins.gece.drafting import drafting, holding
from ltrag_plugins.gece.qualities import QUALITIES
from ltrag_plugins.gece.reference import references_like
from ltrag_plugins.llm.base import GradientLLM
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.embedded import embedded, embedded_encoder
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.metrics.calibration import auroc, bootstrap_interval
from ltrag_plugins.types import Question
from ltrag_plugins.uncertainty import mean_probability

FEW_SHOT = (
    "Question: what is the capital of France?\nAnswer: Paris\n\n"
    "Question: who wrote Romeo and Juliet?\nAnswer: William Shakespeare\n\n"
    "Question: how many legs has a spider?\nAnswer: eight\n\n"
    "Question: {question}\nAnswer:"
)
ABLATIONS = {
    "GECE, to the letter (dot)": {},
    "GECE, cosine": {"agreement": "cosine"},
    "GECE, chrF for METEOR": {"quality": "chrf"},
    "GECE, 1-TER for METEOR": {"quality": "ter"},
    "GECE, without statistics": {"statistics": False},
    "GECE, without semantics": {"semantics": False},
    "GECE, numerator alone": {"statistics": False, "semantics": False},
}


def rows(name: str, split: str, limit: int) -> list[dict]:
    root = os.environ.get("LTRAG_DATA")
    if not root:
        sys.exit("set LTRAG_DATA to the folder that holds popqa/, triviaqa/ and nq_open/")
    plain = Path(root) / name / f"{split}.jsonl"
    packed = plain.with_suffix(".jsonl.gz")
    content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    found = [json.loads(line) for line in content.splitlines()]
    found.sort(key=lambda row: hashlib.sha256(str(row["id"]).encode()).hexdigest())
    return found[:limit]


def questions_of(found: list[dict]) -> list[Question]:
    return [Question(r["question"], tuple(r["answers"]), str(r["id"])) for r in found]


class Part:
    """Questions of one split with all that was measured on them."""

    def __init__(self, found: list[dict], world: World, settings: GECESettings) -> None:
        self.rows, self.questions = found, questions_of(found)
        self.evidence = run_many(
            [drafting(q.text, settings, vectors=True) for q in self.questions], world
        )
        self.right = np.array(
            [
                is_right(e.draft.text, q.answers, settings.correct)
                for e, q in zip(self.evidence, self.questions, strict=True)
            ]
        )
        drafts = [e.draft for e in self.evidence]
        self.prompts, self.references = references_like(self.questions, drafts, settings)

    def outcomes(self, evidence: list[Evidence]) -> list[Outcome]:
        return [
            Outcome(e, right=bool(r), quality=QUALITIES["meteor"](e.draft.text, q.answers))
            for e, r, q in zip(evidence, self.right, self.questions, strict=True)
        ]


def reference_scores(
    part: Part, agreements: list, frequencies: WordFrequencies
) -> dict[str, np.ndarray]:
    scores = {}
    for name, changes in ABLATIONS.items():
        settings = replace(GECESettings(), **changes)
        scores[name] = np.array(
            [
                gece_score(
                    meteor=QUALITIES[settings.quality](e.draft.text, q.answers),
                    mean_probability=mean_probability(e.draft),
                    word_frequency=frequencies.mean(q.text),
                    gradient_agreement=getattr(a, settings.agreement),
                    settings=settings,
                ).value
                for e, q, a in zip(part.evidence, part.questions, agreements, strict=True)
            ]
        )
    scores["reference gradient, dot, negated"] = np.array([-a.dot for a in agreements])
    scores["reference gradient, cosine, negated"] = np.array([-a.cosine for a in agreements])
    return scores


def table(title: str, scores: dict[str, np.ndarray], part: Part) -> dict[str, float]:
    fails = 1 - part.right.astype(int)
    popularity = np.array([float(r.get("s_pop") or 0) for r in part.rows])
    print(f"\n{title}")
    found = {}
    for name, values in scores.items():
        interval = bootstrap_interval(values, fails, statistic=auroc, resamples=500)
        found[name] = interval.value
        line = f"  {name:<42} {interval.value:.3f}  ({interval.low:.3f} to {interval.high:.3f})"
        if popularity.any():
            line += f"   rank correlation with page views {spearmanr(values, popularity)[0]:+.2f}"
        print(line, flush=True)
    return found


def judged(
    train: Part, evidence: tuple[list, list], settings: GECESettings, llm: GradientLLM
) -> list[Decision]:
    fitted, report = fit_outcomes(train.outcomes(evidence[0]), settings=settings)
    gate = GECEGate(fitted, World(llm=llm), report)
    return [gate.judge(e) for e in evidence[1]]


def data_set(name: str, llm: GradientLLM, world: World, settings: GECESettings, limit: int) -> dict:
    start = time.perf_counter()
    train = Part(rows(name, "train", limit), world, settings)
    test = Part(rows(name, "dev_test", limit), world, settings)
    print(
        f"\n# {name}: {len(train.questions)} train, {len(test.questions)} dev_test; closed book "
        f"right {train.right.mean():.3f}, {test.right.mean():.3f}"
        f"  [{time.perf_counter() - start:.0f} s]",
        flush=True,
    )
    along = llm.mean_gradient(train.prompts, train.references)
    reference = llm.gradient_agreement(test.prompts, test.references, along=along, cosine=True)
    with_gradient = replace(settings, agreement="cosine")
    held = [
        run_many([holding(e, with_gradient, along) for e in part.evidence], World(llm=llm))
        for part in (train, test)
    ]
    print(f"  gradients done [{time.perf_counter() - start:.0f} s]", flush=True)
    frequencies = WordFrequencies()
    found = table("reference form:", reference_scores(test, reference, frequencies), test)
    plain = {
        n: np.array([s.read(e, frequencies) for e in held[1]])
        for n, s in SIGNALS.items()
        if n != "disagreement"
    }
    found |= table("plain signals of the draft (online):", plain, test)
    positive = np.mean([a.dot > 0 for a in reference])
    print(f"  reference gradient products above 0: {positive:.0%}")
    gates = {}
    pairs = (train.evidence, test.evidence), (held[0], held[1])
    for label, pair in zip(("without gradients", "with gradients"), pairs, strict=True):
        decisions = judged(train, pair, settings, llm)
        gates[f"fitted gate, {label}"] = np.array([d.probability for d in decisions])
    formula = replace(settings, scorer="gece", calibration="isotonic")
    decisions = judged(train, pairs[1], formula, llm)
    gates["GECE, online form (METEOR estimated)"] = np.array([d.score for d in decisions])
    found |= table("gates (online):", gates, test)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded", help="'embedded', or a folder or hub name")
    parser.add_argument("--few-shot", action="store_true", help="for base models")
    parser.add_argument("--limit", type=int, default=300, help="questions per split")
    parser.add_argument("--data", default="triviaqa,popqa,nq_open")
    parser.add_argument("--cache", default="runs/white_box.sqlite")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    llm = embedded() if arguments.model == "embedded" else TransformersLLM.load(arguments.model)
    settings = GECESettings(prompt=FEW_SHOT) if arguments.few_shot else GECESettings()
    world = World(llm=CachedLLM(llm, arguments.cache), encoder=embedded_encoder())
    print(f"model {llm.name}")
    found = {
        name: data_set(name, llm, world, settings, arguments.limit)
        for name in arguments.data.split(",")
    }
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
