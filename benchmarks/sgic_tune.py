"""Tune a model with SGIC, and the same model without it, on the same real questions of `train`.

Writes two adapters for `sgic_loop.py --adapter`: "direct" learns the plain prompt with the accepted
answer; "sgic" learns that and the prompts of the rounds (section 3.3). Usage:

    LTRAG_DATA=/path/to/data python benchmarks/sgic_tune.py --form direct --out runs/tuned/direct
    LTRAG_DATA=/path/to/data python benchmarks/sgic_tune.py --form sgic --out runs/tuned/sgic

What was asked and trained is kept, so a run that was stopped goes on. On two cores the last layers
of SmolLM2 learn from 200 questions in about an hour; on a GPU give `--questions 0 --layers 0`.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from distractors import SETS, items, model
from sgic_loop import Progress, way

from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.embedded import cache_folder
from ltrag_plugins.sgic.dataset import CorpusSettings, build
from ltrag_plugins.sgic.finetune import FinetuneSettings, FinetuneStep, finetune
from ltrag_plugins.types import Question

ALL = 10**9


def questions_of(sets: str, count: int) -> list[Question]:
    """The last so many of each set: the first are for fits and for looking at documents."""
    found = []
    for name in sets.split(","):
        rows = items(name, "train", ALL)
        found += [replace(item.question, id=f"{name}/{item.question.id}") for item in rows]
        found = found if not count else found[: len(found) - len(rows)] + found[-count:]
    return found


def told(step: FinetuneStep) -> None:
    print(
        f"step {step.step} of {step.steps}: loss {step.loss:.3f}, "
        f"{step.tokens_per_second:.0f} tokens/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--form", choices=("direct", "sgic"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--questions", type=int, default=100, help="of each set; 0: all")
    parser.add_argument("--rounds", type=int, default=2, help="k of the training data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--layers", type=int, default=8, help="the last ones; 0: all")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--cache", type=Path, default=cache_folder() / "sgic.sqlite")
    options = parser.parse_args()
    local = model(options.model, remember_tokens=130_000)
    dataset = build(
        questions_of(options.sets, options.questions),
        CachedLLM(local, options.cache),
        out=options.out / "data",
        settings=way("documents", options.rounds, few_shot=False),
        # a model this small is right too rarely to learn from its right answers alone
        corpus=CorpusSettings(form=options.form, keep_wrong=1.0),
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
        settings=FinetuneSettings(
            epochs=options.epochs,
            learning_rate=options.rate,
            layers=options.layers or None,
            batch=options.batch,
        ),
        on_step=told,
    )
    print(f"{result.examples} examples learned, {len(result.dropped)} too long")
    print(f"validation (step, nats): {result.validation}")


if __name__ == "__main__":
    main()
