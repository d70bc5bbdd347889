"""The loop on real questions: direct, K samples, the ablations of table 5, and SGIC, for K = 1..5.

On `dev_test` of nq_distractor and hotpotqa, ten passages each, cut to 60 words: EM, F1 and calls of
every way to answer, with its gain over the direct answer (paired bootstrap). Then `sgic.fit` on
`train`, and what it kept, on `dev_test`. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/sgic_loop.py --model embedded
    LTRAG_DATA=/path/to/data python benchmarks/sgic_loop.py --model embedded --adapter FOLDER

Answers are kept in the cache folder, so a run that was stopped goes on, and any part of it can be
run anywhere. Seconds and tokens are `sgic_speed.py`'s.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from distractors import SETS, Item, items, model, settings

from ltrag_plugins.flow import Step, World, run_many
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.embedded import cache_folder
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.metrics.calibration import paired_bootstrap
from ltrag_plugins.sgic import Calibration, SGICSettings, calibrate, fit
from ltrag_plugins.sgic.settings import Variant

AT_ONCE = 8
"""Prompts of one model call, and so the most that a stop loses."""


class Progress:
    """Says how many prompts were answered."""

    def __init__(self, label: str) -> None:
        self.label, self.prompts = label, 0

    def __call__(self, step: Step) -> None:
        self.prompts += len(step.reply or ())
        print(f"\r{self.label}: {self.prompts} prompts", end="", flush=True)


def way(variant: Variant, rounds: int, few_shot: bool) -> SGICSettings:
    """A row of table 5, with the prompts of these benchmarks."""
    paper, ours = SGICSettings.paper(variant), settings(few_shot, rounds=rounds)
    return replace(
        ours,
        earlier=paper.earlier,
        documents=paper.documents,
        choose=paper.choose,
        certain_below=0.0,
        least_gain=None,
    )


def table_5(name: str, found: list[Item], llm: LLM, options: argparse.Namespace) -> None:
    for variant in options.variants.split(","):
        last = variant == "documents"
        _, report = fit(
            [item.question for item in found],
            llm,
            settings=way(variant, options.rounds, options.few_shot),
            cut_to=(1, 2, 3) if last else (),
            samples=options.rounds if last else 0,
            observers=[Progress(f"{name}, {variant}")],
            batch=AT_ONCE,
        )
        print(f"\n{name}, dev_test, {len(found)} questions, {variant}:\n{report}\n")


def fitted(name: str, found: list[Item], llm: LLM, options: argparse.Namespace) -> None:
    """What a fit on other questions kept, on these."""
    known = [item.question for item in items(name, "train", options.fit)]
    calibration, report = fit(
        known,
        llm,
        settings=replace(way("documents", options.rounds, options.few_shot), certain_below=20.0),
        observers=[Progress(f"{name}, fit on train")],
        batch=AT_ONCE,
    )
    print(f"\n{name}, train, {len(known)} questions:\n{report}\n")
    direct = replace(calibration, settings=replace(calibration.settings, rounds=0, cut_to=None))
    kept, plain = (answered(found, one, llm) for one in (calibration, direct))
    gain = paired_bootstrap(kept[:, 0], plain[:, 0]).interval
    print(
        f"\n{name}, dev_test: kept {report.kept}: EM {kept[:, 0].mean():.3f} F1 "
        f"{kept[:, 1].mean():.3f}; direct: EM {plain[:, 0].mean():.3f} "
        f"F1 {plain[:, 1].mean():.3f}; "
        f"gain {gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})\n"
    )


def answered(found: list[Item], calibration: Calibration, llm: LLM) -> np.ndarray:
    """EM and F1 of each question."""
    flows = [
        calibrate(i.question.text, i.question.passages, calibration.settings, calibration.scale)
        for i in found
    ]
    answers = run_many(flows, World(llm=llm), observers=[Progress("kept")], batch=AT_ONCE)
    return np.array(
        [
            [measure(a.text, i.question.answers) for measure in (normalized_exact_match, f1)]
            for a, i in zip(answers, found, strict=True)
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--adapter")
    parser.add_argument("--few-shot", action="store_true")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--variants", default=",".join(get_args(Variant)))
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fit", type=int, default=100, help="questions of train; 0: leave it out")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "sgic.sqlite")
    options = parser.parse_args()
    local = model(options.model, adapter=options.adapter, remember_tokens=130_000)
    llm = CachedLLM(local, options.cache)
    for name in options.sets.split(","):
        found = items(name, "dev_test", options.limit)
        if options.variants:
            table_5(name, found, llm, options)
        if options.fit:
            fitted(name, found, llm, options)


if __name__ == "__main__":
    main()
