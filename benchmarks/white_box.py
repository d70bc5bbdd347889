"""GECE and every plain signal against "the direct answer fails", with the model's weights at hand.

Tables of AUROCs on `dev_test`, with the rank correlation with PopQA's page views. First, every
plain signal that a draft gives, and the gate that was fitted on `train`. Then what costs gradients:
GECE with the reference and its ablations, the gradient terms of the draft, and the gates again;
with `--gradients` below `--limit` on the first questions alone. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/white_box.py --model embedded
    LTRAG_DATA=/path/to/data python benchmarks/white_box.py --model FILE.gguf --dtype fast
    python benchmarks/white_box.py --table

Each question's values are kept in the file of records, from which `--table` prints. Answers and
gradient terms are kept in the cache folder, so a run that was stopped goes on. The
first run of a model over three data sets takes about an hour on one core; `--gradients 0` spares
most of it.
"""

import argparse
import gzip
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from distractors import model
from records import Row, merged, parsed, read, short
from scipy.stats import spearmanr

from ltrag_plugins.errors import CalibrationError
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
from ltrag_plugins.gece.score import mean_gradients, quality_of, references_like
from ltrag_plugins.gece.signals import drafting, with_gradient_term
from ltrag_plugins.llm.base import Direction, GradientLLM
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.embedded import embedded_encoder
from ltrag_plugins.metrics.answer import is_right
from ltrag_plugins.metrics.calibration import auroc, bootstrap_interval
from ltrag_plugins.types import GradientAgreement, Question
from ltrag_plugins.uncertainty import mean_probability

DOT = "reference gradient, dot, negated"
ABLATIONS = {
    "GECE, eq. 2 (dot)": {},
    "GECE, opposed largest": {"floor": 1e-9},
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
    """Questions of one split with what was measured on them."""

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

    def first(self, count: int) -> "Part":
        """The same for the first `count` of them."""
        part = copy(self)
        for name in ("rows", "questions", "evidence", "right", "prompts", "references"):
            setattr(part, name, getattr(self, name)[:count])
        return part

    def outcomes(self, evidence: list[Evidence]) -> list[Outcome]:
        return [
            Outcome(e, right=bool(r), quality=quality_of(e.draft.text, q.answers))
            for e, r, q in zip(evidence, self.right, self.questions, strict=True)
        ]


def reference_scores(
    part: Part, agreements: list, frequencies: WordFrequencies
) -> dict[str, np.ndarray]:
    scores = {}
    for name, changes in ABLATIONS.items():
        settings = replace(GECESettings.paper(), **changes)
        scores[name] = np.array(
            [
                gece_score(
                    meteor=quality_of(e.draft.text, q.answers, settings.quality),
                    mean_probability=mean_probability(e.draft),
                    word_frequency=frequencies.mean(q.text),
                    gradient_agreement=getattr(a, settings.agreement),
                    settings=settings,
                ).value
                for e, q, a in zip(part.evidence, part.questions, agreements, strict=True)
            ]
        )
    scores[DOT] = np.array([-a.dot for a in agreements])
    scores["reference gradient, cosine, negated"] = np.array([-a.cosine for a in agreements])
    return scores


def record(title: str, scores: dict[str, np.ndarray], part: Part) -> Row:
    """What is kept of the questions of a part."""
    return {
        "part": title,
        "fails": [int(not right) for right in part.right],
        "views": [float(r.get("s_pop") or 0) for r in part.rows],
        "scores": {
            name: [*map(short, np.asarray(values, dtype=float))] for name, values in scores.items()
        },
    }


def table(rows: list[Row]) -> None:
    """For each model and kind of score: AUROCs, a column a data set."""
    for llm, title in dict.fromkeys((row["model"], row["part"]) for row in rows):
        some = [row for row in rows if (row["model"], row["part"]) == (llm, title)]
        heads = [f"{r['set']}, {len(r['fails']) - sum(r['fails'])} of {len(r['fails'])} right"
                 for r in some]  # fmt: skip
        print(f"\n{llm}\n{title:<40}{''.join(f'{head:>30}' for head in heads)}   page views")
        for name in dict.fromkeys(name for row in some for name in row["scores"]):
            print(
                f"{name:<40}{''.join(f'{cell(row, name):>30}' for row in some)}{views(some, name)}"
            )
        if agreements := [r["scores"][DOT] for r in some if DOT in r["scores"]]:
            shares = (f"{np.mean(np.array(values) < 0):.0%}" for values in agreements)
            print(
                f"{'reference gradient products above 0':<40}{''.join(f'{s:>30}' for s in shares)}"
            )
        for row in some:
            for name, other in pairs(row):
                print(f"{row['set']}: {name} over {other}: {gain(row, name, other)}")


def pairs(row: Row) -> Iterator[tuple[str, str]]:
    """Rows whose difference is shown: gates over the best signal, and with gradients over without;
    eq. 2 over its other reading and its parts."""
    scores, fails = row["scores"], np.array(row["fails"])
    if fails.min() == fails.max():  # no signal tells right from wrong
        return
    plain = {n: auroc(v, fails) for n, v in scores.items() if n in SIGNALS and "grad" not in n}
    if plain:
        best = max(plain, key=lambda name: plain[name])
        yield from ((gate, best) for gate in scores if gate.startswith("fitted gate"))
    if (gated := "fitted gate, with gradients") in scores:
        yield gated, "fitted gate, without gradients"
    if (letter := next(iter(ABLATIONS))) in scores:
        others = ("opposed largest", "chrF for METEOR", "1-TER for METEOR")
        others += ("without semantics", "numerator alone")
        yield from ((letter, f"GECE, {other}") for other in others)


def gain(row: Row, name: str, other: str) -> str:
    """What the AUROC of one is above that of the other, paired over the questions."""
    scores = row["scores"]

    def above(a: np.ndarray, b: np.ndarray, fails: np.ndarray) -> float:
        return auroc(a, fails) - auroc(b, fails)

    return shown("+.3f", scores[name], scores[other], row["fails"], statistic=above)


def cell(row: Row, name: str) -> str:
    """AUROC of "the direct answer fails", with its interval; empty where it was not measured."""
    if name not in row["scores"]:
        return ""
    return shown(".3f", row["scores"][name], row["fails"], statistic=auroc, resamples=500)


def shown(digits: str, *columns: Sequence[float], **how: Any) -> str:
    """A statistic with its interval; "-" where there are too few right or wrong answers."""
    try:
        found = bootstrap_interval(*columns, **how)
    except CalibrationError:
        return "-"
    value, low, high = (f"{each:{digits}}" for each in (found.value, found.low, found.high))
    return f"{value} ({low} to {high})"


def views(some: list[Row], name: str) -> str:
    """The rank correlation with page views, where a data set has them."""
    measured = [row for row in some if name in row["scores"] and any(row["views"])]
    found = [spearmanr(row["scores"][name], row["views"])[0] for row in measured]
    return "".join(f"{value:>+13.2f}" for value in found)


def judged(
    train: Part, evidence: tuple[list, list], settings: GECESettings, llm: GradientLLM
) -> list[Decision]:
    fitted, report = fit_outcomes(train.outcomes(evidence[0]), settings=settings)
    gate = GECEGate(fitted, World(llm=llm), report)
    return [gate.judge(e) for e in evidence[1]]


def kept(file: Path, compute: Callable[[], list[GradientAgreement]]) -> list[GradientAgreement]:
    """What the file holds, or what is computed and then kept there."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([asdict(a) for a in compute()]))
    return [GradientAgreement(**a) for a in json.loads(file.read_text())]


def plain_signals(evidence: list[Evidence], names: list[str]) -> dict[str, np.ndarray]:
    frequencies = WordFrequencies()
    return {n: np.array([SIGNALS[n].read(e, frequencies) for e in evidence]) for n in names}


def unembedded(evidence: list[Evidence]) -> list[Evidence]:
    return [replace(e, vectors=None) for e in evidence]


def without_gradients(train: Part, test: Part, settings: GECESettings, llm: GradientLLM) -> Row:
    names = [n for n, s in SIGNALS.items() if s.tier != "gradients" and n != "disagreement"]
    scores = plain_signals(test.evidence, names)
    gates = {
        "fitted gate, with MiniLM": (train.evidence, test.evidence),
        "fitted gate, no encoder": (unembedded(train.evidence), unembedded(test.evidence)),
    }
    try:
        for name, pair in gates.items():
            scores[name] = np.array([d.probability for d in judged(train, pair, settings, llm)])
    except CalibrationError as error:
        print(f"  no gate on these alone: {error}")
    return record("at run time", scores, test)


def with_gradients(
    train: Part, test: Part, settings: GECESettings, llm: GradientLLM, folder: Path
) -> list[Row]:
    means = cache(lambda: mean_gradients(train.prompts, train.references, llm, settings))
    reference = kept(
        folder / "reference.json",
        lambda: llm.gradient_agreement(
            test.prompts, test.references, along=means()[0], cosine=True
        ),
    )
    asking = replace(settings, agreement="cosine")

    def agreements(part: Part, along: Sequence[Direction]) -> list[GradientAgreement]:
        terms = [
            with_gradient_term(e, asking, a) for e, a in zip(part.evidence, along, strict=True)
        ]
        found = [e.agreement for e in run_many(terms, World(llm=llm))]
        return [agreement for agreement in found if agreement is not None]

    held = []
    for name, part in (("train", train), ("test", test)):
        found = kept(
            folder / f"{name}.json",
            lambda part=part: agreements(
                part, means()[1] if part is train else [means()[0]] * len(part.rows)
            ),
        )
        held.append([replace(e, agreement=a) for e, a in zip(part.evidence, found, strict=True)])
    with_reference = reference_scores(test, reference, WordFrequencies())
    names = [n for n, signal in SIGNALS.items() if signal.tier == "gradients"]
    scores = plain_signals(held[1], names)
    pairs = (train.evidence, test.evidence), (held[0], held[1])
    formula = replace(settings, scorer="gece", calibration="isotonic")
    try:
        decided = [judged(train, pair, settings, llm) for pair in pairs]
        online = [
            judged(train, pairs[1], replace(formula, floor=floor), llm) for floor in (None, 1e-9)
        ]
    except CalibrationError as error:
        print(f"  no gate on these alone: {error}")
    else:
        scores |= {
            "fitted gate, without gradients": np.array([d.probability for d in decided[0]]),
            "fitted gate, with gradients": np.array([d.probability for d in decided[1]]),
            "GECE, online form (METEOR estimated)": np.array([d.score for d in online[0]]),
            "GECE, online form, opposed largest": np.array([d.score for d in online[1]]),
        }
    kinds = {"with gradients": scores, "with the reference": with_reference}
    return [record(title, some, test) for title, some in kinds.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded", help="'embedded', or a folder or hub name")
    parser.add_argument("--dtype", default="auto", help='"fast": bfloat16 where the CPU has it')
    parser.add_argument("--limit", type=int, default=500, help="questions per split")
    parser.add_argument("--gradients", type=int, default=500, help="of these, with gradients")
    parser.add_argument("--data", default="popqa,triviaqa,nq_open")
    parser.add_argument("--cache", type=Path, default=Path("runs/white_box"))
    arguments = parsed(parser, "white_box")
    if not arguments.table:
        run(arguments)
    table(read(arguments.records))


def run(arguments: argparse.Namespace) -> None:
    llm = model(arguments.model, dtype=arguments.dtype)
    settings = GECESettings()
    world = World(
        llm=CachedLLM(llm, arguments.cache / "answers.sqlite"), encoder=embedded_encoder()
    )
    print(f"model {llm.name}")
    for name in arguments.data.split(","):
        train, test = (
            Part(rows(name, split, arguments.limit), world, settings)
            for split in ("train", "dev_test")
        )
        print(
            f"\n# {name}: {len(train.rows)} train, {len(test.rows)} dev_test; closed book right "
            f"{train.right.mean():.3f}, {test.right.mean():.3f}",
            flush=True,
        )
        found = [without_gradients(train, test, settings, llm)]
        count = min(arguments.gradients, arguments.limit)
        folder = arguments.cache / f"{llm.name.replace('/', '-')}-{name}-{count}"
        if count:
            firsts = train.first(count), test.first(count)
            found += with_gradients(*firsts, settings, llm, folder)
        about = {"model": llm.name, "set": name}
        merged(arguments.records, (about | one for one in found), "model", "set", "part")


if __name__ == "__main__":
    main()
