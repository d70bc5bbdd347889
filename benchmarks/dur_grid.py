"""Rankers for few-shot prompts, side by side: what the model answers with each one's shots.

    LTRAG_DATA=/path/to/data python benchmarks/dur_grid.py --data ethos,climate --seeds 3
    LTRAG_DATA=/path/to/data python benchmarks/dur_grid.py --table
    LTRAG_DATA=/path/to/data python benchmarks/dur_grid.py --paper dur-1

Each cell (model, data set, ranker, seed) is a line of `--out`; cells that are there are not run
again, so a run that was stopped goes on, and parts may be run anywhere and joined. Answers,
vectors and checkpoints are kept beside it. `--table` prints what is there. `--paper` takes data
sets, rankers and seeds of a table or figure of Yu et al., NAACL 2025, and prints its figures beside
ours; the cells of different tables may share a file.

A ranker's name may end in "; 3 shots" (so many are shown), "; 10 preselected" (|C'|), or "; from
ethos" (the head learned on that data set).
"""

import argparse
import hashlib
import json
import math
import os
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from records import read, write
from scipy.stats import sem, t

from ltrag_plugins.data import read_questions
from ltrag_plugins.dur import FORMATS, DURSettings, DURTrainer
from ltrag_plugins.dur.feedback import Feedback, contextual_calibration, reading
from ltrag_plugins.dur.shots import ShotRanker
from ltrag_plugins.flow import World, run_many
from ltrag_plugins.llm.base import ScoringLLM
from ltrag_plugins.llm.cached import CachedEncoder, CachedLLM
from ltrag_plugins.llm.embedded import embedded, embedded_encoder
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.shots import SuReShotsSettings, listwise_ranker
from ltrag_plugins.metrics.answer import macro_f1
from ltrag_plugins.metrics.calibration import bootstrap_interval
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
    "UR": lambda seed: replace(DURSettings.paper(seed=seed), preselect="none"),
    "DUR paper": lambda seed: DURSettings.paper(seed=seed),
    "DUR script": lambda seed: DURSettings.script(seed=seed),
    "DUR; untrained": lambda seed: DURSettings(epochs=0, seed=seed),
    "DUR; above sigma": lambda seed: DURSettings(exploration="above", seed=seed),
    "DUR; input": lambda seed: DURSettings(encoded="input", seed=seed),
    "DUR; example": lambda seed: DURSettings(encoded="example", seed=seed),
    "DUR": lambda seed: DURSettings(seed=seed),
}
PLAIN = ("zero-shot", "random", "BM25", "nearest", "Rerank", "SuRe")
SEEDED = ("random", *(name for name in TRAINED if name != "DUR; untrained"))
RIVALS = ("BM25", "nearest", "DUR; untrained", "PromptPG")
"""What each ranker is held against over all sets."""
SHOTS, PRESELECTED = 5, 20
CHOICE = [name for name, (_, form) in DATA.items() if form is not FORMATS["Q-A"]]
"""The sets with options."""


@dataclass(frozen=True)
class Row:
    """A row of the paper: its name and figures there (by data set, then their mean), our ranker."""

    name: str
    figures: str
    ranker: str
    """Of several, with "," between them, the best by data set."""
    batches: tuple[int | None, int | None] = (None, None)
    """From where to where in the training, for a value that is of these."""


@dataclass(frozen=True)
class Table:
    """A table or figure, https://aclanthology.org/2025.naacl-long.453/; figures in per cent."""

    title: str
    data: Sequence[str]
    rows: Sequence[Row]
    value: Callable[[dict, Row], float | None] = lambda cell, _: cell["scores"]["accuracy"]
    held: Sequence[tuple[str, str]] = ()
    """Rankers that are held against others, over all data sets, by question."""
    hard: bool = False
    """Whether that is on the questions alone that are wrong without shots."""
    turned: Sequence[str] = ()
    """Where the rows are a ladder: the share of questions that turn on it, of these the hard, and
    of all the hard. One mean over all data sets, each."""


def loss_left(cell: dict, row: Row) -> float | None:
    """The mean size of the loss in some batches, as a share of that in the first five."""
    sizes = [abs(loss) for loss in cell.get("loss", ())]
    some, first = sizes[slice(*row.batches)], sizes[:5]
    return statistics.mean(some) / statistics.mean(first) if some and any(first) else None


PRESETS = ("DUR paper", "DUR script", "DUR")


def ours(figures: str = "", name: str = "Ours", change: str = "") -> list[Row]:
    """The paper's method, as three presets read it."""
    return [Row(name, figures, f"{one}{change}") for one in PRESETS]


BASELINES = [
    Row("0-shot", "72.87±0.31 75.61±0.51 46.30±0.32 42.60±2.36 44.20±1.91 56.32±1.08", "zero-shot"),
    Row("Random", "78.20±0.53 75.17±1.01 66.30±3.53 57.13±1.97 46.80±1.44 64.72±1.70", "random"),
    Row("BM25", "78.93±0.31 87.47±0.39 82.57±0.30 62.13±1.33 55.00±1.14 73.22±0.69", "BM25"),
    Row("SuRe", "78.93±0.42 85.23±0.33 78.89±0.30 39.80±0.57 32.00±3.40 62.97±1.00", "SuRe"),
    Row("Rerank", "78.93±0.42 89.15±0.39 83.22±0.32 62.07±2.01 53.80±1.91 73.43±1.01", "Rerank"),
    Row(
        "PromptPG", "78.47±0.90 77.74±2.16 72.78±2.00 60.73±3.21 50.80±2.00 68.10±2.05", "PromptPG"
    ),
]
_BEST = ",".join(row.ranker for row in BASELINES)
_OURS = "80.60±0.35 92.40±0.20 85.37±0.32 65.00±2.69 57.60±1.91 76.19±1.09"
_LADDER = ("random", "BM25", "PromptPG", "DUR paper")
_HARD = {"Random": "29.17", "BM25": "46.12", "Rerank": "48.03", "Ours": "53.99"}
PAPER = {
    "dur-1": Table("table 1: accuracy", [*DATA], [*BASELINES, *ours(_OURS)]),
    "dur-2": Table(
        "table 2: accuracy without and with uncertainty rank (UR) and pre-selection (PS)",
        ["ethos", "pubmedqa"],
        [
            Row("PromptPG", "77.74 78.47", "PromptPG"),
            Row("UR", "81.21 80.10", "UR"),
            Row("PromptPG+PS", "86.91 79.10", "PromptPG+PS"),
            *ours("92.40 80.60", "UR+PS (Ours)"),
        ],
    ),
    "dur-3": Table(
        "table 3: accuracy with a head that learned on ethos, and on the data set itself",
        ["pubmedqa", "climate", "nq", "trex"],
        [
            Row("Best baseline", "78.93 83.22 55.00 62.13 69.82", _BEST),
            *ours("79.60 83.33 57.20 64.50 71.16", "cross-domain", "; from ethos"),
            *ours("80.60 85.37 57.60 65.00 72.14", "in-domain"),
        ],
        held=[(f"{one}; from ethos", other) for one in PRESETS for other in (_BEST, one)],
    ),
    "dur-fig-3": Table(
        "figure 3: accuracy with BM25's shots, and what turns on the way",
        [*DATA],
        [Row(f"{count} shots", "", f"BM25; {count} shots") for count in range(SHOTS + 1)],
        turned=("21.84", "87.18", "43.68"),
    ),
    "dur-fig-4": Table(
        "figure 4: accuracy on hard questions, which are wrong without shots, and on easy ones",
        [*DATA],
        [
            replace(row, name=f"{row.name}, {half}", figures=f"- - - - - {hard.get(row.name, '-')}")
            for half, hard in (("hard", _HARD), ("easy", {}))
            for row in [*BASELINES[1:], Row("-", "", "nearest"), *ours()]
        ],
        value=lambda cell, row: cell["scores"][row.name[-4:]],
        held=[(one, other) for one in PRESETS for other in ("BM25", "nearest", "PromptPG")],
        hard=True,
    ),
    "dur-fig-5": Table(  # the text gives no figures, and of the data sets only NatQA
        "figure 5: accuracy by number of shots",
        ["ethos", "nq"],
        [Row(one, "", f"{one}; {count} shots") for one in _LADDER for count in range(1, SHOTS + 1)],
    ),
    "dur-fig-6": Table(  # the text gives no figures, sizes and data sets
        "figure 6: accuracy by number of preselected candidates",
        ["ethos", "pubmedqa"],
        [Row("Ours", "", f"DUR paper; {size} preselected") for size in (10, 20, 50, 100)],
    ),
    "dur-fig-8": Table(
        "figure 8: shots in the prompts of the first epoch, as a share of PromptPG's",
        ["pubmedqa", "ethos", "nq"],
        ours("33.8 65.2 35.3"),
        value=lambda cell, _: (cell.get("shots_by_epoch") or [None])[0],
    ),
    "dur-fig-9": Table(  # the text gives no figures and data sets: near 0 within 15 batches
        "figure 9: loss of a batch, mean size as a share of the first five batches'",
        ["ethos", "climate"],
        [
            replace(row, name=name, batches=some)
            for row in ours()
            for name, some in (
                ("6 to 10", (5, 10)),
                ("11 to 15", (10, 15)),
                ("the last five", (-5, None)),
            )
        ],
        value=loss_left,
    ),
}
_NAME = re.compile(r"(.+?)(?:; (\d+) shots)?(?:; (\d+) preselected)?(?:; from (\w+))?")


def parts(name: str) -> tuple[str, int | None, int | None, str | None]:
    """A ranker's name: its own, how many shots, |C'|, the data set that its head learned on."""
    found = _NAME.fullmatch(name)
    assert found is not None
    own, *counts, source = found.groups()
    shots, preselected = (int(count) if count else None for count in counts)
    return own, shots, preselected, source


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
    own, shots, preselected, source = parts(name)
    candidates, form = split(data, "candidates"), DATA[data][1]
    settings, most = DURSettings(format=form), SHOTS if shots is None else shots
    match own:
        case "zero-shot":
            return ShotRanker.random(candidates, shots=0, seed=0), settings, {}
        case "random":
            return ShotRanker.random(candidates, shots=most, seed=seed), settings, {}
        case "BM25" | "SuRe":  # which reads BM25's
            found = ShotRanker.bm25(candidates, shots=most or 1)
            return replace(found, shots=most), settings, {}
        case "nearest":
            nearest = ShotRanker.nearest(candidates, shots=most, encoder=encoder)
            return nearest, settings, {}
        case "Rerank":
            words = {"max_words": form.context_words} if form.context_words else {}
            size = preselected or PRESELECTED
            found = listwise_ranker(llm, candidates, shots=most, preselected=size, **words)
            return found, settings, {}
    source, sized = source or data, ""
    settings = replace(TRAINED[own](seed), format=DATA[source][1])
    if preselected:
        settings, sized = replace(settings, preselected=preselected), f"; {preselected} preselected"
    validation = split(source, "validation")
    trainer = DURTrainer(encoder, llm, settings=settings)
    result = trainer.fit(
        split(source, "candidates"),
        validation,
        checkpoint=folder / f"{llm.name}-{source}-{own}{sized}-{seed}".replace("/", "_"),
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
        "loss": [round(b.loss, 4) for b in result.history],
        "reward": [round(b.reward, 4) for b in result.history],
        "sigma": [round(b.sigma, 4) for b in result.history],
    }
    learned = ShotRanker.learned(result.ranker, candidates, shots=shots)
    # all rankers are judged alike, whatever their training takes for right
    return learned, replace(settings, format=form, reward="match"), told


def answered(
    shots: list, questions: list[Question], llm: CachedLLM, settings: DURSettings
) -> list[Feedback]:
    scoring = isinstance(llm, ScoringLLM)
    flows = [
        reading(question, [some], settings, scores=scoring, both=True)
        for question, some in zip(questions, shots, strict=True)
    ]
    return [found for [found] in run_many(flows, World(llm=llm), batch=128)]


def sure(
    shots: list, questions: list[Question], llm: CachedLLM, settings: DURSettings
) -> list[Feedback]:
    """SuRe's own answers: it ranks summaries of what BM25 found, no shots."""
    asking = SuReShotsSettings(context_words=settings.prompt_format.context_words or 200)
    flows = [
        METHODS["sure-shots"].flow(question, asking, lambda _, some=some: [some])
        for question, some in zip(questions, shots, strict=True)
    ]
    answers = run_many(flows, World(llm=llm), batch=128)
    return [Feedback(q, text=found.text) for q, found in zip(questions, answers, strict=True)]


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
    parser.add_argument("--paper", choices=PAPER, help="what of Yu et al., NAACL 2025, to repeat")
    parser.add_argument("--data", help="if not the paper's, or all")
    parser.add_argument("--rankers", help="if not the paper's, or all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=100, help="dev_test questions; 0: all")
    parser.add_argument("--out", type=Path, default=Path("runs/dur_grid.jsonl"))
    parser.add_argument("--dtype", default="auto", help='"fast": bfloat16 where the CPU has it')
    parser.add_argument("--chat", action="store_true", help="wrap prompts in the chat template")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    arguments = parser.parse_args()
    shown = PAPER.get(arguments.paper)
    arguments.data = arguments.data or ",".join(shown.data if shown else DATA)
    named = [row.ranker for row in shown.rows] if shown else [*PLAIN, *TRAINED]
    arguments.rankers = arguments.rankers or ",".join(named)
    if not arguments.table:
        run(arguments)
    if shown:
        paper_table(arguments.out, shown)
    else:
        table(arguments.out)


def run(arguments: argparse.Namespace) -> None:
    out: Path = arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {tuple(cell["key"]) for cell in (read(out) if out.exists() else [])}
    chat = None if arguments.chat else False
    if arguments.model == "embedded":
        inner = embedded(chat=chat, dtype=arguments.dtype)
    else:
        inner = TransformersLLM.load(arguments.model, chat=chat, dtype=arguments.dtype)
    llm = CachedLLM(inner, out.parent / "answers.sqlite")
    encoder = CachedEncoder(embedded_encoder(), out.parent / "vectors.sqlite")
    for data in arguments.data.split(","):
        questions = sorted(split(data, "dev_test"), key=_shuffled)[: arguments.limit or None]
        easy = None
        for name in dict.fromkeys(["zero-shot", *arguments.rankers.split(",")]):
            for seed in range(arguments.seeds if parts(name)[0] in SEEDED else 1):
                key = (llm.name, data, len(questions), name, seed)
                if key in done and easy is not None:
                    continue
                start = time.perf_counter()
                choose, settings, told = ranker(
                    name, data, seed, llm, encoder, out.parent / "checkpoints"
                )
                shots = choose(questions)
                results = (sure if parts(name)[0] == "SuRe" else answered)(
                    shots, questions, llm, settings
                )
                if easy is None:  # the first are those without shots
                    easy = [r.right for r in results]
                if key in done:
                    continue
                balanced = contextual_calibration(results)
                cell = {
                    "key": key,
                    "scores": scores(results, shots, easy),
                    "calibrated": scores(balanced, shots, easy),
                    "right": [int(found.right) for found in results],
                    "seconds": round(time.perf_counter() - start),
                    **told,
                }
                write(out, [*(read(out) if out.exists() else []), cell])
                print(key, cell["scores"], cell["seconds"], "s", flush=True)


Cells = Mapping[tuple, list[dict]]


def grouped(out: Path) -> Cells:
    """The cells of all seeds, by model, data set, number of questions and ranker."""
    cells: dict[tuple, list[dict]] = defaultdict(list)
    for (*key, _), cell in {tuple(cell["key"]): cell for cell in read(out)}.items():
        cells[tuple(key)].append(cell)  # of a cell that two parts of a run hold the last
    return dict(cells)


def paper_table(out: Path, shown: Table) -> None:
    """Print means and deviations over seeds in per cent, the paper's figures in brackets."""
    cells = grouped(out)
    asked = {name for row in shown.rows for name in row.ranker.split(",")}
    print(f"Yu et al., NAACL 2025, {shown.title}; in %, in brackets the paper's, of GPT-4")
    there = [key for key in cells if key[1] in shown.data and key[3] in asked]
    for model in dict.fromkeys(key[0] for key in there):
        found = {key[1:3] for key in there if key[0] == model}
        columns = sorted(found, key=lambda column: (shown.data.index(column[0]), column[1]))
        lines = [
            (row, [best(cells, (model, *column), row, shown.value) for column in columns])
            for row in shown.rows
        ]
        if shown.turned:
            ladders = [rungs(cells, (model, *column), shown.rows) for column in columns]
            shares = [turned(ladder) for ladder in ladders]
            for i, name in enumerate(("uncertain", "of these hard", "of all hard")):
                figures = " ".join(["-"] * len(shown.data) + [shown.turned[i]])
                lines.append((Row(name, figures, ""), [share[i] for share in shares]))
        heads = ["paper", "ranker", *(f"{data} ({count})" for data, count in columns), "mean"]
        print(f"\n{model}\n\n| {' | '.join(heads)} |")
        print("| --- | --- |" + " ---: |" * (len(columns) + 1))
        for row, values in lines:
            theirs = dict(zip([*shown.data, "mean"], row.figures.split(), strict=False))
            means = [statistics.mean(some) for some in values if some]
            whole = len(means) == len(columns) and [d for d, _ in columns] == [*shown.data]
            entries = [
                percent(some, theirs.get(data))
                for some, (data, _) in zip(values, columns, strict=True)
            ]
            entries.append(percent([statistics.mean(means)] if whole else [], theirs.get("mean")))
            print(f"| {' | '.join([row.name, row.ranker, *entries])} |")
        held = [
            line for pair in shown.held if (line := over(cells, model, columns, pair, shown.hard))
        ]
        if held:
            print("", *held, sep="\n")


def over(
    cells: Cells, model: str, columns: Sequence[tuple], pair: tuple[str, str], hard: bool = False
) -> str:
    """What a ranker is above another, or the best of several by set, where both answered."""
    sets, rights = [], []
    for column in columns:
        members = [chosen(cells, (model, *column), Row("", "", name)) for name in pair]
        without = by_question(cells.get((model, *column, "zero-shot"), []))
        if all(map(by_question, members)) and (without or not hard):
            every = range(len(by_question(members[0])))
            asked = [i for i in every if not (hard and without[i])]
            sets.append(column[0])
            rights.append([[by_question(some)[i] for i in asked] for some in members])
    if not sets:
        return ""
    own, other = ([column[side] for column in rights] for side in (0, 1))
    means = [statistics.mean(map(statistics.mean, side)) for side in (own, other)]
    name = "the best baseline of each" if "," in pair[1] else pair[1]
    gained = bootstrap_interval(gains(own, other)).signed
    told = f"{pair[0]} {means[0]:.3f}, {name} {means[1]:.3f}: {gained}"
    which = f"by {'hard ' if hard else ''}question"
    return f"{told} (95 %, {which}; {', '.join(sets)})"


def gains(columns: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> list[float]:
    """By question, of all data sets, each of which counts the same in their mean."""
    questions = sum(map(len, columns))
    return [
        (own - other) * questions / len(columns) / len(column)
        for column, rival in zip(columns, others, strict=True)
        for own, other in zip(column, rival, strict=True)
    ]


def percent(values: Sequence[float], theirs: str | None) -> str:
    """Mean and deviation of shares in per cent, and the paper's figure."""
    deviation = f"±{100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    said = f"{100 * statistics.mean(values):.1f}{deviation}" if values else "-"
    return said if theirs in (None, "-") else f"{said} ({theirs})"


def best(cells: Cells, column: tuple, row: Row, value: Callable) -> list[float]:
    """The values over seeds of the row's ranker, or of the best of several."""
    return known(chosen(cells, column, row, value), row, value)


def chosen(
    cells: Cells, column: tuple, row: Row, value: Callable = PAPER["dur-1"].value
) -> list[dict]:
    """The cells of these values."""
    ranked = [cells.get((*column, name), []) for name in row.ranker.split(",")]
    return max(ranked, key=lambda some: statistics.mean(known(some, row, value) or [-1.0]))


def known(some: Sequence[dict], row: Row, value: Callable) -> list[float]:
    """The values that the cells have."""
    return [found for cell in some if (found := value(cell, row)) is not None]


def rungs(cells: Cells, column: tuple, rows: Sequence[Row]) -> list[list[int]]:
    """Whether each question was right, row by row; none where a row is not there."""
    ladder = [cell["right"] for row in rows for cell in cells.get((*column, row.ranker), [])]
    return ladder if len(ladder) == len(rows) else []


def turned(ladder: Sequence[Sequence[int]]) -> tuple[list[float], list[float], list[float]]:
    """The share of questions that turn between right and wrong on a ladder, and of these and of
    all the share that is wrong at its foot; each alone in a list, empty where there is none."""
    every = [*zip(*ladder, strict=True)]
    turning = [rights for rights in every if len(set(rights)) > 1]
    hard, of_all = ([not rights[0] for rights in some] for some in (turning, every))
    shares = [len(turning) / len(every)] if every else []
    of_these, of_every = ([statistics.mean(some)] if some else [] for some in (hard, of_all))
    return shares, of_these, of_every


COLUMNS = {
    "accuracy": 9,
    "over BM25 (95 %)": 27,
    "macro-F1": 10,
    "p(gold)": 9,
    "hard": 7,
    "calibrated": 12,
    "epoch 1": 9,
}
"""Of the table, and how wide they are."""


def table(out: Path) -> None:
    """Print a table for each model and data set; figures are means over the seeds."""
    cells = grouped(out)
    for model, data, count in sorted({key[:3] for key in cells}):
        heads = "".join(f"{head:>{wide}}" for head, wide in COLUMNS.items())
        found = {key[3]: cell for key, cell in cells.items() if key[:3] == (model, data, count)}
        first = max(17, 2 + max(map(len, found)))
        print(f"\n{short(model)}, {data}, {count} questions\n{'':<{first}}{heads}  shots  by seed")
        for name, members in found.items():
            gained = "" if name == "BM25" else gain(members, found.get("BM25", []))
            told = "".join(figures(members, gained))
            print(f"{name:<{first}}{told}".rstrip())
        for line in with_as_many(found):
            print(line)
    for model in sorted({key[0] for key in cells}):
        for line in (*above(cells, model), *prompts(cells, model), *over_rivals(cells, model)):
            print(line)


def with_as_many(found: dict[str, list[dict]]) -> Iterator[str]:
    """Lines of what a trained head is above the nearest examples, where as many of these as it
    answers with were asked, and above the head before training."""
    for cell in found.get("DUR", []):
        alone = f"nearest; {cell.get('answer_shots')} shots"
        for other in (alone, "DUR; untrained") if alone in found else ():
            if gained := gain([cell], found.get(other, [])):
                yield f"DUR, seed {cell['key'][-1]}, over {other}: {gained}"


def gain(members: Sequence[dict], others: Sequence[dict]) -> str:
    """What a ranker is above another on a data set; empty where the cells do not tell."""
    columns = [[by_question(some)] for some in (members, others)]
    return bootstrap_interval(gains(*columns)).signed if all(map(all, columns)) else ""


def short(model: str) -> str:
    """The model's name, and what it computed in."""
    name, _, how = model.partition("@")
    return ", ".join([name, *how.split("/")[1:2]])


def above(cells: Cells, model: str) -> Iterator[str]:
    """Lines of what DUR is above the best of the baselines of each data set: the paper's, and with
    the nearest neighbours, which it does not have."""
    sets = [key[:3] for key in cells if key[0] == model and key[3] == "DUR"]
    if len(sets) < 2:
        return
    paper = [row.ranker for row in BASELINES]
    for others, which in ((paper, "the paper's"), ([*paper, "nearest"], "these and the nearest")):
        pairs = [
            [chosen(cells, one, Row("", "", name)) for name in ("DUR", ",".join(others))]
            for one in sets
        ]
        means = [
            [statistics.mean(cell["scores"]["accuracy"] for cell in some) for some in pair]
            for pair in pairs
        ]
        each = [own - other for own, other in means]
        told = ", ".join(f"{one[1]} {value:+.3f}" for one, value in zip(sets, each, strict=True))
        yield f"\n{short(model)}, DUR over the best baseline of each set, of {which}:"
        if all(by_question(some) for pair in pairs for some in pair):
            columns = ([by_question(some) for some in side] for side in zip(*pairs, strict=True))
            yield f"{told}; mean {bootstrap_interval(gains(*columns)).signed} by question"
        else:  # the sets are all there is to tell chance by
            mean = statistics.mean(each)
            low, high = t.interval(0.95, len(each) - 1, mean, sem(each))
            yield f"{told}; mean {mean:+.3f} ({low:+.3f} to {high:+.3f}) by the t of the sets"


def prompts(cells: Cells, model: str) -> Iterator[str]:
    """Lines of how many prompts a preset's training sent, the choice at its end among them."""
    for name in PRESETS:
        ratios = []
        for key, members in cells.items():
            fixed = cells.get((*key[:3], "PromptPG"))
            if key[0] == model and key[3] == name and fixed:
                own, other = (
                    statistics.mean(cell["calls"] for cell in some) for some in (members, fixed)
                )
                ratios.append(f"{key[1]} {own / other:.2f}")
        if ratios and name == PRESETS[0]:
            yield f"\n{short(model)}, prompts that training sent, times PromptPG's:"
        if ratios:
            yield f"{name:<11} {', '.join(ratios)}"


def over_rivals(cells: Cells, model: str) -> Iterator[str]:
    """Lines of the rankers that answered on all of the model's sets, and on those with options:
    the mean over these, and what it is above that of others, resampling their questions."""
    sets = [*dict.fromkeys(key[:3] for key in cells if key[0] == model)]
    choice = [one for one in sets if one[1] in CHOICE]
    yield from _over_rivals(cells, sets, f"mean of {len(sets)} sets")
    if len(choice) < len(sets):
        named = ", ".join(one[1] for one in choice)
        yield from _over_rivals(cells, choice, f"mean of the sets with options ({named})")


def _over_rivals(cells: Cells, sets: Sequence[tuple], which: str) -> Iterator[str]:
    names = dict.fromkeys(key[3] for key in cells if key[:3] in sets)
    rights = {name: [by_question(cells.get((*one, name), [])) for one in sets] for name in names}
    whole = {name: columns for name, columns in rights.items() if all(columns)}
    rivals = [name for name in RIVALS if name in whole]
    if len(sets) < 2 or not rivals:
        return
    yield f"\n{short(sets[0][0])}, {which}, and over others (95 %, by question)"
    yield f"{'':<17}{'accuracy':>9}{''.join(f'{rival:>27}' for rival in rivals)}"
    for name, columns in whole.items():
        line = f"{name:<17}{statistics.mean(map(statistics.mean, columns)):>9.3f}"
        for rival in rivals:
            gained = bootstrap_interval(gains(columns, whole[rival])).signed
            line += f"{'' if name == rival else gained:>27}"
        yield line.rstrip()


def by_question(members: Sequence[dict]) -> list[float]:
    """The share of the seeds that are right on each question; empty where a cell does not tell."""
    rights = [cell.get("right") for cell in members]
    return [statistics.mean(some) for some in zip(*rights, strict=True)] if all(rights) else []


def figures(members: Sequence[dict], gained: str) -> Iterator[str]:
    """The figures of a line: of a ranker over its seeds, and what it gained over BM25; empty where
    there are none."""
    each = [member["scores"] for member in members]
    calibrated = [member["calibrated"]["accuracy"] for member in members]
    first = [member["shots_by_epoch"][0] for member in members if member.get("shots_by_epoch")]
    columns = [[one[name] for one in each] for name in ("accuracy", "macro_f1", "p_gold", "hard")]
    told = [gained]
    for values in (*columns, calibrated, first):
        known = [value for value in values if value is not None]
        form = ".0%" if values is first else ".3f"
        told.append(f"{statistics.mean(known):{form}}" if known else "")
    told[:2] = told[1::-1]  # the accuracy is first
    yield from (f"{one:>{wide}}" for one, wide in zip(told, COLUMNS.values(), strict=True))
    yield f"{'/'.join(str(m['answer_shots']) for m in members if 'answer_shots' in m):>7}"
    by_seed = " / ".join(f"{value:.3f}" for value in columns[0])
    yield f"  {by_seed}" if len(each) > 1 else ""


if __name__ == "__main__":
    main()
