"""Rankers for few-shot prompts, side by side: what the model answers with each one's shots.

    LTRAG_DATA=/path/to/data python benchmarks/dur_grid.py --data ethos,climate --seeds 3
    LTRAG_DATA=/path/to/data python benchmarks/dur_grid.py --table

Each cell (model, data set, ranker, seed) is a line of `--out`; cells that are there are not run
again, so a run that was stopped goes on, and parts may be run anywhere and joined. Answers,
vectors and checkpoints are kept beside it. `--table` prints what is there.
"""

import argparse
import gzip
import hashlib
import json
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from ltrag_plugins.data import read_questions
from ltrag_plugins.dur import FORMATS, DURSettings, DURTrainer
from ltrag_plugins.dur.feedback import Feedback, contextual_calibration, reading
from ltrag_plugins.dur.shots import ShotRanker
from ltrag_plugins.flow import World, run_many
from ltrag_plugins.llm.base import ScoringLLM
from ltrag_plugins.llm.cached import CachedEncoder, CachedLLM
from ltrag_plugins.llm.embedded import embedded, embedded_encoder
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.metrics.answer import macro_f1
from ltrag_plugins.types import Question

PUBMED = replace(FORMATS["SQO-A"], context_words=60)
DATA = {
    "pubmedqa": ("pubmedqa", PUBMED),
    "ethos": ("ethos_national_origin", FORMATS["QO-A"]),
    "climate": ("tweet_eval_stance_climate", FORMATS["QO-A"]),
    "trex": ("trex", FORMATS["Q-A"]),
    "nq": ("nq_open", FORMATS["Q-A"]),
}
TRAINED: dict[str, Callable[[int], DURSettings]] = {
    "PromptPG": lambda seed: DURSettings.promptpg(seed=seed),
    "PromptPG+PS": lambda seed: DURSettings.promptpg(preselect="bm25", seed=seed),
    "DUR paper": lambda seed: DURSettings.paper(seed=seed),
    "DUR script": lambda seed: DURSettings.script(seed=seed),
    "DUR; untrained": lambda seed: DURSettings(epochs=0, seed=seed),
    "DUR; above sigma": lambda seed: DURSettings(exploration="above", seed=seed),
    "DUR; input": lambda seed: DURSettings(encoded="input", seed=seed),
    "DUR; example": lambda seed: DURSettings(encoded="example", seed=seed),
    "DUR": lambda seed: DURSettings(seed=seed),
}
PLAIN = ("zero-shot", "random", "BM25", "nearest")
SHOTS = 5


def split(name: str, part: str) -> list[Question]:
    root = os.environ.get("LTRAG_DATA")
    if not root:
        sys.exit("set LTRAG_DATA to the folder that holds the data sets")
    folder = Path(root) / DATA[name][0]
    named = folder / "dur_split.json"
    if part == "dev_test" or not named.exists():
        return read_questions(_existing(folder / f"{part}.jsonl"), require_answers=True)
    ids = set(map(str, json.loads(named.read_text())[part]))
    questions = read_questions(_existing(folder / "train.jsonl"), require_answers=True)
    return [q for q in questions if q.id in ids]


def _shuffled(question: Question) -> str:
    return hashlib.sha256(question.id.encode()).hexdigest()


def _existing(path: Path) -> Path:
    return path if path.exists() else path.with_suffix(".jsonl.gz")


def ranker(
    name: str, data: str, seed: int, llm: CachedLLM, encoder: CachedEncoder, folder: Path
) -> tuple[ShotRanker, DURSettings, dict]:
    candidates = split(data, "candidates")
    settings = DURSettings(format=DATA[data][1])
    match name:
        case "zero-shot":
            return ShotRanker.random(candidates, shots=0, seed=0), settings, {}
        case "random":
            return ShotRanker.random(candidates, shots=SHOTS, seed=seed), settings, {}
        case "BM25":
            return ShotRanker.bm25(candidates, shots=SHOTS), settings, {}
        case "nearest":
            nearest = ShotRanker.nearest(candidates, shots=SHOTS, encoder=encoder)
            return nearest, settings, {}
    settings = replace(TRAINED[name](seed), format=DATA[data][1])
    validation = split(data, "validation")
    trainer = DURTrainer(encoder, llm, settings=settings)
    result = trainer.fit(
        candidates,
        validation,
        checkpoint=folder / f"{llm.name}-{data}-{name}-{seed}".replace("/", "_"),
        on_batch=lambda b: print(
            f"   {name} {b.epoch}.{b.number} {b.reward:+.3f} {b.sigma:.4f} {b.shots}", flush=True
        ),
    )
    batches = settings.batches(len(validation))
    fixed = SHOTS * sum(b.questions for b in result.history[:batches])
    told = {
        "shots_by_epoch": [
            sum(b.shots for b in result.history[i : i + batches]) / fixed
            for i in range(0, len(result.history), batches)
        ],
        "last_batch_shots": [b.deepest / b.questions for b in result.history[-1:]],
        "calls": result.calls,
        "answer_shots": result.ranker.shots,
        "choice": result.choice and {**asdict(result.choice), "head": result.choice.head},
        "reward": [round(b.reward, 4) for b in result.history],
        "sigma": [round(b.sigma, 4) for b in result.history],
    }
    return ShotRanker.learned(result.ranker, candidates), settings, told


def answered(
    shots: list, questions: list[Question], llm: CachedLLM, settings: DURSettings
) -> list[Feedback]:
    scoring = isinstance(llm, ScoringLLM)
    flows = [
        reading(question, [some], settings, scores=scoring, both=True)
        for question, some in zip(questions, shots, strict=True)
    ]
    return [found for [found] in run_many(flows, World(llm=llm), batch=128)]


def scores(found: list[Feedback], shots: list, easy: list[bool]) -> dict[str, float | None]:
    """Means over questions; None where there is nothing to take a mean of."""
    choice = [f for f in found if f.question.options]
    columns = {
        "accuracy": [f.right for f in found],
        "p_gold": [math.exp(f.log_p_gold) for f in found if (f.options, f.gold) != (None, None)],
        "easy": [f.right for f, without in zip(found, easy, strict=True) if without],
        "hard": [f.right for f, without in zip(found, easy, strict=True) if not without],
        "shots": [len(some) for some in shots],
    }
    means = {name: statistics.fmean(column) if column else None for name, column in columns.items()}
    asked = [f.question for f in choice]
    means["macro_f1"] = macro_f1([f.answer or "" for f in choice], asked) if choice else None
    return {"questions": len(found), **means}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="embedded", help="'embedded', or a folder, hub name or GGUF file"
    )
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--rankers", default=",".join((*PLAIN, *TRAINED)))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=100, help="dev_test questions")
    parser.add_argument("--out", type=Path, default=Path("runs/dur_grid.jsonl"))
    parser.add_argument("--chat", action="store_true", help="wrap prompts in the chat template")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    arguments = parser.parse_args()
    if not arguments.table:
        run(arguments)
    table(arguments.out)


def run(arguments: argparse.Namespace) -> None:
    out: Path = arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {tuple(cell["key"]) for cell in read(out)}
    chat = None if arguments.chat else False
    if arguments.model == "embedded":
        inner = embedded(chat=chat)
    else:
        inner = TransformersLLM.load(arguments.model, chat=chat)
    llm = CachedLLM(inner, out.parent / "answers.sqlite")
    encoder = CachedEncoder(embedded_encoder(), out.parent / "vectors.sqlite")
    for data in arguments.data.split(","):
        questions = sorted(split(data, "dev_test"), key=_shuffled)[: arguments.limit]
        easy = None
        for name in dict.fromkeys(["zero-shot", *arguments.rankers.split(",")]):
            for seed in range(
                1 if name in ("zero-shot", "BM25", "nearest", "DUR; untrained") else arguments.seeds
            ):
                key = (llm.name, data, len(questions), name, seed)
                if key in done and easy is not None:
                    continue
                start = time.perf_counter()
                choose, settings, told = ranker(
                    name, data, seed, llm, encoder, out.parent / "checkpoints"
                )
                shots = choose(questions)
                results = answered(shots, questions, llm, settings)
                if easy is None:  # the first are those without shots
                    easy = [r.right for r in results]
                if key in done:
                    continue
                balanced = contextual_calibration(results)
                cell = {
                    "key": key,
                    "scores": scores(results, shots, easy),
                    "calibrated": scores(balanced, shots, easy),
                    "seconds": round(time.perf_counter() - start),
                    **told,
                }
                with out.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
                print(key, cell["scores"], cell["seconds"], "s", flush=True)


def read(out: Path) -> list[dict]:
    if not out.exists():
        return []
    opened = gzip.open if out.suffix == ".gz" else open
    with opened(out, "rt") as lines:
        return [json.loads(line) for line in lines]


def table(out: Path) -> None:
    cells: dict[tuple, list[dict]] = defaultdict(list)
    for cell in read(out):
        model, data, limit, name, _ = cell["key"]
        cells[model, data, limit, name].append(cell)
    for key, members in cells.items():
        parts = []
        for field in ("accuracy", "macro_f1", "p_gold", "easy", "hard"):
            values = [m["scores"][field] for m in members if m["scores"][field] is not None]
            if values:
                deviation = f"±{statistics.stdev(values):.3f}" if len(values) > 1 else ""
                parts.append(f"{field} {statistics.mean(values):.3f}{deviation}")
        values = [m["calibrated"]["accuracy"] for m in members]
        parts.append(f"calibrated {statistics.mean(values):.3f}")
        if "answer_shots" in members[0]:
            parts.append("shots " + "/".join(str(m["answer_shots"]) for m in members))
        if members[0].get("shots_by_epoch"):
            shares = [m["shots_by_epoch"][0] for m in members if m["shots_by_epoch"]]
            parts.append(f"first epoch's shots {statistics.mean(shares):.0%}")
        print(
            f"{key[0].split('@')[0]:<24.24} {key[1]:<9} {key[3]:<17} {len(members)}x  "
            + "  ".join(parts)
        )


if __name__ == "__main__":
    main()
