"""What neighbouring packages make of the same questions, answers and passages, beside ours.

How uncertain is an answer, is it worth retrieving, and which passages are worth reading? `ask`
records what a model answers (`recorded` takes the recorded answers of an 8B model), each peer
scores that in an environment of its own (`benchmarks/peers/score.py`), `ours` adds our scores,
`join` keeps the figures of all runs in one file, and `table` prints them:

    LTRAG_DATA=/path/to/data python benchmarks/peers.py ask runs/a --model FILE.gguf --samples 5
    PEER_ENVIRONMENT/bin/python benchmarks/peers/score.py uqlm runs/a --encoder MINILM_FOLDER
    python benchmarks/peers.py ours runs/a
    python benchmarks/peers.py join runs/a
    python benchmarks/peers.py table

Questions are the first (by a hash of their ids) of nq_distractor's `train`; a head is trained on
the feedback of SmolLM2 to the questions that follow. What learns from questions is judged on
others, in five folds that all share.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from distractors import WORDS, Item, items
from records import FOLDER, read, write
from sklearn.metrics import ndcg_score
from sklearn.model_selection import StratifiedKFold

from ltrag_plugins.calibration import fit_calibrator
from ltrag_plugins.dur import DURRanker, DURSettings, DURTrainer
from ltrag_plugins.evaluate.recorded import Recording
from ltrag_plugins.flow import World, ask, run_many
from ltrag_plugins.gece import Evidence
from ltrag_plugins.gece.fit import _area, fit_failure
from ltrag_plugins.gece.labels import answers_agree
from ltrag_plugins.gece.signals import available_signals, features
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.cached import CachedLLM, generation_from_json, generation_to_json
from ltrag_plugins.llm.embedded import embedded, embedded_encoder
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.methods.method import ReadingSettings
from ltrag_plugins.methods.skr import METHOD as SKR
from ltrag_plugins.metrics.answer import is_right
from ltrag_plugins.metrics.calibration import (
    auroc,
    bootstrap_interval,
    paired_bootstrap,
)
from ltrag_plugins.prompts.templates import beginning, direct_prompt
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Generation, Question
from ltrag_plugins.uncertainty import estimate, mean_logprob

RECORDS = FOLDER / "peers.jsonl.gz"
READ = 3  # passages
RESAMPLES = 500
FOLDS = 5
PLAIN, GATE = "mean log-probability", "fitted gate, by labels"
SAMPLED = ("eigen_score", "ln_entropy")  # of the 20 samples that SeaKR drew
Row = dict[str, Any]


def asked(first: int, count: int) -> list[Item]:
    """So many questions from the first on, their passages cut, in the order of BM25."""
    found = []
    for item in items("nq_distractor", "train", first + count)[first:]:
        cut = [
            replace(p, text=beginning(p.text, WORDS), id=str(i))
            for i, p in enumerate(item.question.passages)
        ]
        [best] = BM25Retriever(cut).search([item.question.text], len(cut))
        ranked = [*best, *(p for p in cut if p.id not in {one.id for one in best})]
        gold = tuple(item.gold[int(p.id)] for p in ranked)
        found.append(Item(replace(item.question, passages=tuple(ranked)), gold))
    return found


def head(folder: Path, first: int, count: int, encoder: Encoder) -> DURRanker:
    """The ranker in a folder, or one that is trained on `count` questions and kept there."""
    if not folder.exists():
        llm = CachedLLM(embedded(), folder.parent / "feedback.sqlite")
        settings = DURSettings(format="passages", shots=READ, epochs=3)
        questions = [item.question for item in asked(first, count)]
        result = DURTrainer(encoder, llm, settings=settings).fit(None, questions)
        print(f"{result.calls} prompts to train the head; {result.choice}", flush=True)
        result.ranker.save(folder)
    return DURRanker.load(folder, encoder=encoder)


def orders(found: list[Item], options: argparse.Namespace) -> Row:
    """By each ranker the places of the passages, best first, and its milliseconds a question; no
    vector of a passage is at hand."""
    encoder, rankers = embedded_encoder(), dict[str, Callable[[Item], list[int]]]()

    def by(one: DURRanker, item: Item) -> list[int]:
        fresh = DURRanker(one.head, one.encoder, one.settings, cached_texts=0)
        return [r.index for r in fresh.rank(item.question.text, item.question.passages)]

    def bm25(item: Item) -> list[int]:
        passages = item.question.passages
        [best] = BM25Retriever(passages).search([item.question.text], len(passages))
        places = {p.id: i for i, p in enumerate(passages)}
        return list(dict.fromkeys([*(places[p.id] for p in best), *range(len(passages))]))

    for name in filter(None, options.rankers.split(",")):
        if name == "BM25":
            rankers[name] = bm25
        elif name == "MiniLM":
            rankers[name] = partial(by, DURRanker.untrained(encoder))
        else:
            # the counts say what it learned from: more questions to judge want another head
            folder = options.folder / f"head-{options.questions}-{options.train}"
            trained = head(folder, options.questions, options.train, encoder)
            rankers["DUR, trained head"] = partial(by, trained)
    return {name: timed(rank, found) for name, rank in rankers.items()}


def timed(call: Callable[[Any], Any], rows: Sequence[Any]) -> tuple[list[Any], float]:
    """What it gives for each, and the processor's milliseconds; a first call warms it up."""
    call(rows[0])
    start = time.process_time()
    found = [call(row) for row in rows]
    return found, 1000 * (time.process_time() - start) / len(rows)


def record(options: argparse.Namespace) -> None:
    """Ask the model, and write FOLDER/asked.jsonl: a line on the run, one for each question."""
    found, settings = asked(0, options.questions), ReadingSettings()
    load = embedded if options.model == "embedded" else partial(TransformersLLM.load, options.model)
    llm = load(dtype=options.dtype)
    world = World(llm=CachedLLM(llm, options.folder / "answers.sqlite"))

    def answers(flows: Any, what: str) -> list[Generation]:
        replies = [reply for [reply] in run_many(flows, world, batch=64)]
        print(f"{what}: done", flush=True)
        return replies

    prompts = [direct_prompt(item.question.text) for item in found]
    how: dict[str, Any] = {"max_tokens": settings.max_tokens, "stop": ("\n",)}
    direct = answers([ask(prompt, **how) for prompt in prompts], "closed book")
    drawn = [
        answers([ask(prompt, **how, temperature=0.7, seed=seed) for prompt in prompts], f"{seed}")
        for seed in range(options.samples)
    ]
    rows = [question_row(i.question, reply) for i, reply in zip(found, direct, strict=True)]
    for i, row in enumerate(rows):
        row["samples"] = [plain(each[i]) for each in drawn]
        row["gold"], row["orders"], row["right"] = found[i].gold.index(True), {}, {}
    ranked = orders(found, options)
    for name, (places, _) in ranked.items():
        flows = [
            settings.read(item.question, [item.question.passages[i] for i in order[:READ]])
            for item, order in zip(found, places, strict=True)
        ]
        read = run_many(flows, world, batch=16)
        print(f"{READ} passages of {name}: done", flush=True)
        for row, order, answer in zip(rows, places, read, strict=True):
            row["orders"][name] = order
            row["right"][name] = is_right(answer.text, row["answers"], "contains")
            if name == "BM25":
                row.update(reading_row(row, answer.trace[0]))
    about = {"model": llm.name, "rankers": {name: ms for name, (_, ms) in ranked.items()}}
    write(options.folder / "asked.jsonl", [about, *folded(rows)])


def recorded(options: argparse.Namespace) -> None:
    """The same file from the recorded answers of an 8B model that have its perplexity."""
    if not (root := os.environ.get("LTRAG_DATA")):
        sys.exit("set LTRAG_DATA to the folder that holds adarague_llm_records/")
    rows = []
    for part in ("train", "dev_test"):
        for line in read(Path(root) / "adarague_llm_records" / f"{part}.jsonl.gz"):
            if signals := line.get("seakr_direct"):
                question = Question(line["question"], tuple(line["answers"]), line["id"])
                row = question_row(question, Generation(line["no_retrieval"] or ""))
                row |= reading_row(row, Generation(line["one_retrieval_bm25_15"] or ""))
                row |= {"log_perplexity": math.log(signals["perplexity"]), "samples": []}
                rows.append(row | {name: signals[name] for name in SAMPLED})
    about = {"model": "Llama-3.1-8B-Instruct, recorded", "rankers": {}}
    write(options.folder / "asked.jsonl", [about, *folded(rows)])


def question_row(question: Question, reply: Generation) -> Row:
    row = {"id": question.id, "question": question.text, "answers": question.answers}
    wrong = not is_right(reply.text, question.answers, "contains")
    return row | {"direct": plain(reply), "wrong": wrong}


def reading_row(row: Row, reply: Generation) -> Row:
    wrong = not is_right(reply.text, row["answers"], "contains")
    differs = not answers_agree(row["direct"][0], reply.text)
    return {"reading": plain(reply), "reading_wrong": wrong, "differs": differs}


def folded(rows: list[Row]) -> list[Row]:
    """With the fold of each question; wrong answers are spread evenly."""
    splits = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(rows, bits(rows, "wrong"))
    fold = {i: number for number, (_, inside) in enumerate(splits) for i in inside.tolist()}
    return [row | {"fold": fold[i]} for i, row in enumerate(rows)]


def plain(reply: Generation) -> list[Any]:
    """A reply as JSON: text, tokens, counts, seconds."""
    return json.loads(generation_to_json(reply))


def reply_of(row: list[Any]) -> Generation:
    return generation_from_json(json.dumps(row))


def ours(options: argparse.Namespace) -> None:
    """Our measures, written as the peers' are."""
    about = {"by": "ltrag-plugins", "version": version("ltrag-plugins"), "licence": "Apache-2.0"}
    about["asked"] = digest(options.folder / "asked.jsonl")
    _, *rows = read(options.folder / "asked.jsonl")
    encoder, fold = embedded_encoder(), bits(rows, "fold")
    lines = [*of_tokens(rows, fold), *of_gate(rows, fold, encoder)]
    if "reading" in rows[0]:
        alone = (PLAIN, *map(seakr, SAMPLED))
        known = [line for line in lines if line["part"] == "direct" and line["name"] in alone]
        lines += [line | {"part": "gate"} for line in known]
        lines.append(measure(rows, "SKR", *skr(rows, encoder), part="gate", decides=True))
    write(options.folder / "ltrag-plugins.jsonl", [about | line for line in lines])


def digest(path: Path) -> str:
    """Of the questions and answers of a file, without the line on the run; `score.py` has the
    same."""
    return hashlib.sha256(path.read_bytes().partition(b"\n")[2]).hexdigest()[:16]


def seakr(name: str) -> str:
    return f"{name} of SeaKR's samples"


def of_tokens(rows: list[Row], fold: np.ndarray) -> list[Row]:
    """Signals of token probabilities and samples, and SGIC's P(wrong)."""
    lines = list[Row]()
    if "log_perplexity" in rows[0]:
        recorded = {"log_perplexity": PLAIN} | {name: seakr(name) for name in SAMPLED}
        lines += [
            measure(rows, name, [row[key] for row in rows], 0.0, part="direct")
            for key, name in recorded.items()
        ]
    signals: dict[str, Callable[[Generation], float]] = {
        PLAIN: lambda reply: -mean_logprob(reply),
        "product": partial(estimate, estimator="product"),
        "least probability": partial(estimate, estimator="least_probability"),
        "entropy": partial(estimate, estimator="entropy"),
    }
    for part, label in (("direct", "wrong"), ("reading", "reading_wrong")):
        if part not in rows[0] or rows[0][part][1] is None:
            continue
        replies, wrong = [reply_of(row[part]) for row in rows], bits(rows, label)
        found = {name: timed(signal, replies) for name, signal in signals.items()}
        lines += [measure(rows, name, *values, part=part) for name, values in found.items()]
        product = np.array(found["product"][0])

        def platt(known: np.ndarray, scores: np.ndarray = product, y: np.ndarray = wrong) -> Any:
            fitted = fit_calibrator(scores[known], y[known], "platt")
            return lambda inside: fitted(scores[inside])

        lines.append(measure(rows, "P(wrong) of SGIC", *unseen(wrong, fold, platt), part=part))
    if rows[0]["samples"]:
        pairs = [(reply_of(r["direct"]), [*map(reply_of, r["samples"])]) for r in rows]
        agreement = timed(lambda pair: estimate(pair[0], "agreement", pair[1]), pairs)
        lines.append(measure(rows, "agreement", *agreement, part="direct", samples=True))
    return lines


def of_gate(rows: list[Row], fold: np.ndarray, encoder: Encoder) -> list[Row]:
    """The fitted gate, by accepted answers and by agreement with the answer from passages."""

    def evidence(row: Row) -> Evidence:
        draft = reply_of(row["direct"])
        vectors = encoder.encode([row["question"], draft.text.strip()])
        extra = {name: row[name] for name in ("log_perplexity",) if name in row}
        return Evidence(row["question"], draft, vectors=vectors, extra=extra)

    seen, encoding = timed(evidence, rows)
    names = available_signals(seen, None)
    columns, lines = features(seen, names, None), list[Row]()
    for label, name in (("wrong", "by labels"), ("differs", "by agreement")):
        if label not in rows[0]:
            continue
        truth = bits(rows, label)

        def gate(known: np.ndarray, y: np.ndarray = truth) -> Any:
            fitted, _ = fit_failure(columns[known], y[known], seed=0)
            return lambda inside: [fitted(features([seen[i]], names, None))[0] for i in inside]

        scores, ms = unseen(truth, fold, gate)
        line = measure(rows, f"fitted gate, {name}", scores, encoding + ms, part="direct")
        lines += [line, line | {"part": "gate"}] if "reading" in rows[0] else [line]
    return lines


def bits(rows: list[Row], label: str) -> np.ndarray:
    return np.array([int(row[label]) for row in rows])


def unseen(
    truth: np.ndarray, fold: np.ndarray, fit: Callable[[np.ndarray], Any]
) -> tuple[np.ndarray, float]:
    """The score of each row by what `fit` learned from the other folds, and the processor's
    milliseconds; 0, no opinion, where these have fewer than two of a kind."""
    scores, spent = np.zeros(len(truth)), 0.0
    for number in np.unique(fold):
        known, inside = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        if np.bincount(truth[known], minlength=2).min() < 2:
            continue
        score = fit(known)
        start = time.process_time()
        scores[inside] = score(inside)
        spent += time.process_time() - start
    return scores, 1000 * spent / len(truth)


def measure(rows: list[Row], name: str, scores: Any, ms: float, **more: Any) -> Row:
    values = {row["id"]: float(score) for row, score in zip(rows, scores, strict=True)}
    return {"name": name, "scores": values, "ms": ms, **more}


def skr(rows: list[Row], encoder: Encoder) -> tuple[list[float], float]:
    """1 where SKR, taught by the other folds, retrieves; the replies are the recorded ones."""
    replies = {row["question"]: (row["direct"][0], row["reading"][0]) for row in rows}
    world, settings = Recording(replies).world(encoder), SKR.settings()
    found, spent = dict[str, float](), 0.0
    for number in {row["fold"] for row in rows}:
        known = [Question(r["question"], tuple(r["answers"])) for r in rows if r["fold"] != number]
        learned = SKR.taught(known, settings, world)
        inside = [row for row in rows if row["fold"] == number]
        start = time.process_time()
        for row in inside:
            [answer] = run_many([SKR.flow(Question(row["question"]), settings, learned)], world)
            found[row["id"]] = float(bool(answer.passages))
        spent += time.process_time() - start
    return [found[row["id"]] for row in rows], 1000 * spent / len(rows)


def join(options: argparse.Namespace) -> None:
    """One file of all runs."""
    lines = list[Row]()
    for folder in options.folders:
        about, *rows = read(folder / "asked.jsonl")
        scored, measures = digest(folder / "asked.jsonl"), list[Row]()
        for path in sorted(folder.glob("*.jsonl")):
            if path.name != "asked.jsonl":
                measures += (own := read(path))
                if any(line.get("asked") != scored for line in own):
                    sys.exit(f"{path} scores other answers than asked.jsonl has: make it again")
        lines += kept(about, rows, measures)
    write(options.records, lines)


def kept(about: Row, rows: list[Row], measures: list[Row]) -> list[Row]:
    """What stays of a run: what it was, what came of each question, and the scores of each measure
    in the order of the questions."""
    drawn = [sum(reply[4] or 0.0 for reply in row["samples"]) for row in rows]
    names = ("id", "fold", "wrong", "reading_wrong", "differs", "gold", "orders", "right")
    lines = [about | {"samples_ms": round(1000 * float(np.mean(drawn)), 1)}]
    lines += [{name: row[name] for name in names if name in row} for row in rows]
    for line in measures:
        scores = [round(line["scores"][row["id"]], 6) for row in rows]
        lines.append(line | {"scores": scores, "ms": round(line["ms"], 3)})
    return lines


def difference(
    one: np.ndarray, other: np.ndarray, outcomes: np.ndarray, of: Callable[..., float] = auroc
) -> str:
    """What the AUROC (or area) of one is above the other's, on the same resamples of the
    questions."""
    if one is other:
        return "-"

    def above(a: np.ndarray, b: np.ndarray, each: np.ndarray) -> float:
        return of(a, each) - of(b, each)

    found = bootstrap_interval(one, other, outcomes, statistic=above, resamples=RESAMPLES)
    return found.signed


def scored(some: list[Row]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """The scores of each line; and by name, the last of each."""
    scores = [np.array(line["scores"], dtype=float) for line in some]
    return scores, {line["name"]: each for line, each in zip(some, scores, strict=True)}


def ndcg(order: Sequence[int], gold: int) -> float:
    """nDCG@5 of a ranking in which one passage is relevant."""
    relevant, places = [[place == gold for place in order]], [[-i for i in range(len(order))]]
    return float(ndcg_score(np.array(relevant, dtype=int), np.array(places), k=5))


def answers_table(title: str, some: list[Row], wrong: np.ndarray, samples_ms: float) -> None:
    """AUROC of "the answer is wrong", and what it takes beyond the answer itself."""
    each, known = scored(some)
    cells, gate = [], known.get(GATE, known[PLAIN])
    for line, scores in zip(some, each, strict=True):
        area = bootstrap_interval(scores, wrong, statistic=auroc, resamples=RESAMPLES)
        above, below = difference(scores, known[PLAIN], wrong), difference(gate, scores, wrong)
        spent = f"{line['ms'] + samples_ms * line.get('samples', False):.2f}"
        cells.append((line["by"], line["name"], str(area), above, below, spent))
    title = f"{title}, {len(wrong) - wrong.sum()} of {len(wrong)} right"
    print_table(title, ["AUROC of wrong", f"over {PLAIN}", "the gate over it", "ms"], cells)


def gates_table(rows: list[Row], some: list[Row]) -> None:
    """Accuracy above a lottery, mean over all rates; what comes of a choice that is its own, beside
    the gate's for as many questions; calls of the model."""
    direct, reading, cells = 1 - bits(rows, "wrong"), 1 - bits(rows, "reading_wrong"), []
    gain = (reading - direct).astype(float)
    some = [*some, {"by": "best possible", "name": "", "scores": gain, "ms": 0.0}]
    each, known = scored(some)
    gate = known[GATE if GATE in known else PLAIN]
    first = np.argsort(np.argsort(-gate, kind="stable"))
    for line, scores in zip(some, each, strict=True):
        area = bootstrap_interval(scores, gain, statistic=_area, resamples=RESAMPLES)
        over, own, there, calls = difference(gate, scores, gain, _area), "-", "-", "1 + rate"
        if line.get("decides"):
            right = np.where(scores > 0, reading, direct)
            own, calls = f"{right.mean():.3f} at {np.mean(scores > 0):.0%}", "1"
            gated = np.where(first < (scores > 0).sum(), reading, direct)
            there = paired_bootstrap(gated, right, resamples=RESAMPLES).signed
        row = (line["by"], line["name"], area.signed, over, own, there, calls)
        cells.append((*row, f"{line['ms']:.2f}"))
    title = f"whether to retrieve: never {direct.mean():.3f}, always {reading.mean():.3f} right"
    heads = ["area above a lottery", "the gate over it", "decides", "the gate there over it"]
    print_table(title, [*heads, "calls", "ms"], cells)


def rankers_table(rows: list[Row], spent: dict[str, float]) -> None:
    """Where the gold passage stands, and how many answers are right that read the first three."""
    cells = []
    for name, ms in spent.items():
        found = [ndcg(row["orders"][name], row["gold"]) for row in rows]
        first = np.mean([row["orders"][name][0] == row["gold"] for row in rows])
        right = [float(row["right"][name]) for row in rows]
        gain, answers = (str(bootstrap_interval(values)) for values in (found, right))
        cells.append(("ltrag-plugins", name, gain, f"{first:.2f}", answers, f"{ms:.1f}"))
    heads = ["nDCG@5", "gold first", f"right with {READ}", "ms"]
    print_table("which of ten passages to read", heads, cells)


def print_table(title: str, heads: list[str], cells: list[tuple[str, ...]]) -> None:
    """Of each row who made it, its name, and a cell for each heading."""
    rows = [(title, *heads)]
    for i, (by, name, *values) in enumerate(cells):
        if name and (i == 0 or cells[i - 1][0] != by):
            rows.append((by, *[""] * len(heads)))
        rows.append((f"  {name}" if name else by, *values))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print()
    for name, *values in rows:
        line = [f"  {value:>{width}}" for value, width in zip(values, widths[1:], strict=True)]
        print(f"{name:<{widths[0]}}{''.join(line)}".rstrip())


def table(options: argparse.Namespace) -> None:
    """Print the tables of a file of records."""
    lines = read(options.records)
    starts = [i for i, line in enumerate(lines) if "model" in line]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        about, rest = lines[start], lines[start + 1 : end]
        rows, measures = ([x for x in rest if key in x] for key in ("id", "name"))
        print(f"\n# {about['model']}, {len(rows)} questions")
        for peer in sorted({"{by} {version} ({licence})".format(**line) for line in measures}):
            print(peer)
        for part, title, label in (
            ("direct", "closed book", "wrong"),
            ("reading", f"from {READ} passages", "reading_wrong"),
            ("gate", "", ""),
        ):
            if some := [line for line in measures if line["part"] == part]:
                if part == "gate":
                    gates_table(rows, some)
                else:
                    answers_table(title, some, bits(rows, label), about["samples_ms"])
        if about["rankers"]:
            rankers_table(rows, about["rankers"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("ask", help="record what a model answers")
    one.add_argument("--model", default="embedded", help="'embedded', a folder, or a GGUF file")
    one.add_argument("--dtype", default="auto", help="'fast' is bfloat16")
    one.add_argument("--questions", type=int, default=100)
    one.add_argument("--samples", type=int, default=0, help="more answers to each, drawn")
    one.add_argument("--rankers", default="", help="of the passages to read: BM25,MiniLM,DUR")
    one.add_argument("--train", type=int, default=40, help="questions that the head learns from")
    one.set_defaults(run=record)
    two = commands.add_parser("recorded", help="take the recorded answers of an 8B model")
    two.set_defaults(run=recorded)
    three = commands.add_parser("ours", help="add our scores")
    for each in (one, two, three):
        each.add_argument("folder", type=Path)
    three.set_defaults(run=ours)
    four = commands.add_parser("join", help="keep all runs in one file")
    four.add_argument("folders", type=Path, nargs="+")
    four.set_defaults(run=join)
    five = commands.add_parser("table", help="print that file")
    five.set_defaults(run=table)
    for each in (four, five):
        each.add_argument("--records", type=Path, default=RECORDS)
    options = parser.parse_args()
    least = 2 * FOLDS - 1  # of two kinds one is then as many as the folds, however they are right
    if options.run is record and options.questions < least:
        one.error(f"--questions must be at least {least} for {FOLDS} folds")
    options.run(options)


if __name__ == "__main__":
    main()
