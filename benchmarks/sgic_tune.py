"""Tune a model with SGIC, and the same model without it, on the same real questions of `train`.

Writes two adapters for `sgic_loop.py --adapter`: "direct" learns the plain prompt with the accepted
answer; "sgic" learns that and the prompts of the rounds (section 3.3). Usage:

    LTRAG_DATA=/path/to/data python benchmarks/sgic_tune.py --form direct --out runs/tuned/direct
    LTRAG_DATA=/path/to/data python benchmarks/sgic_tune.py --form sgic --out runs/tuned/sgic

What was asked and trained is kept, so a run that was stopped goes on. On two cores the last layers
of SmolLM2 learn from 200 questions in about an hour; on a GPU give `--questions 0 --layers 0`.

"sgic" makes about twice the examples of "direct", and so twice the steps an epoch: `--steps N` ends
both after N steps, however many epochs that takes. Prompts are those of `sgic_loop.py`; with
`--paper` those of `SGICSettings.paper()`, as `papers.py sgic-8` asks them. The first `--leave`
questions of each set are never learned from, as `sgic_loop.py` fits on them.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from distractors import SETS, items, model
from sgic_loop import Progress, way

from ltrag_plugins.errors import LtragError
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.embedded import cache_folder
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.training import CorpusSettings, FinetuneSettings, FinetuneStep, build, finetune
from ltrag_plugins.types import Question


def questions_of(sets: str, count: int, leave: int) -> list[Question]:
    """The last so many of each set (0: all), but none of its first `leave`."""
    found = []
    for name in sets.split(","):
        rows = items(name, "train", 0)[leave:][-count:]  # [-0:] is all of them
        found += [replace(item.question, id=f"{name}/{item.question.id}") for item in rows]
    return found


def asking(options: argparse.Namespace) -> SGICSettings:
    """How the training data asks, and so the tuned model should be asked."""
    if options.paper:
        return replace(SGICSettings.paper(), rounds=options.rounds)
    return way("documents", options.rounds)


def settings_of(options: argparse.Namespace) -> FinetuneSettings:
    """Of the training; N steps are reached by as many epochs as it takes."""
    return FinetuneSettings(
        epochs=options.steps or options.epochs,
        steps=options.steps,
        learning_rate=options.rate,
        layers=options.layers or None,
        batch=options.batch,
    )


def told(step: FinetuneStep) -> None:
    print(
        f"step {step.step} of {step.steps}: loss {step.loss:.3f}, "
        f"{step.tokens / (step.seconds or 1):.0f} tokens/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--form", choices=("direct", "sgic"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--questions", type=int, default=100, help="of each set; 0: all")
    parser.add_argument("--leave", type=int, default=200, help="the first of each set, left out")
    parser.add_argument(
        "--keep-wrong", type=float, default=1.0,
        help="share of the never right that stay; so small a model learns too little without them",
    )  # fmt: skip
    parser.add_argument("--paper", action="store_true", help="prompts of SGICSettings.paper()")
    parser.add_argument("--rounds", type=int, default=2, help="k of the training data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="end after so many, in the place of --epochs")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--layers", type=int, default=8, help="the last ones; 0: all")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--cache", type=Path, default=cache_folder() / "sgic.sqlite")
    options = parser.parse_args()
    local = model(options.model)
    dataset = build(
        questions_of(options.sets, options.questions, options.leave),
        CachedLLM(local, options.cache),
        out=options.out / "data",
        settings=asking(options),
        corpus=CorpusSettings(form=options.form, keep_wrong=options.keep_wrong),
        observers=[Progress("training data")],
        batch=8,
    )
    told_of = ("kept", "pruned", "mended", "preserved", "wrong", "direct")
    counts = {name: dataset.manifest[name] for name in told_of if name in dataset.manifest}
    print(f"\n{len(dataset.examples)} examples: {counts}")
    result = finetune(
        dataset,
        local,
        out=options.out / "adapter",
        settings=settings_of(options),
        on_step=told,
    )
    print(
        f"{result.examples} examples learned in {len(result.history)} steps of {options.batch}, "
        f"{len(result.dropped)} too long"
    )
    print(f"validation (step, nats): {result.validation}")


if __name__ == "__main__":
    try:
        main()
    except LtragError as error:
        sys.exit(f"\n{error}")  # below the progress
