"""Judge gates on recorded answers of Llama-3.1-8B-Instruct, without running it.

Fits on `train`, reports on `dev_test` of adarague_llm_records: answers without retrieval, with one
BM25 retrieval of 15 passages. Then judges each question of both by a gate that was fitted without
it, by data set; with --labels, fits on whether the two answers agree too. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/recorded_outcomes.py
    LTRAG_DATA=/path/to/data python benchmarks/recorded_outcomes.py --labels
    python benchmarks/recorded_outcomes.py --table

What is judged of each question is kept in the file of records, from which `--table` prints.
"""

import argparse
import gzip
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from records import Row, merged, parsed, read, short

from ltrag_plugins.flow import World
from ltrag_plugins.gece import Evidence, GECEGate, GECESettings, Outcome, fit_outcomes
from ltrag_plugins.gece.fit import Labels, _area, _cross_validated, fit_failure
from ltrag_plugins.gece.labels import answers_agree
from ltrag_plugins.gece.signals import Features, available_signals, features
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.embedded import embedded_encoder
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.answer import contains, f1, normalized_exact_match
from ltrag_plugins.metrics.calibration import (
    auroc,
    bootstrap_interval,
    expected_calibration_error,
    paired_bootstrap,
)
from ltrag_plugins.types import Generation

DRAWS = 3
Answers = Mapping[str, Sequence[np.ndarray]]
"""Of each metric or way, how right the answers without retrieval are, then those with it; these
are what others are held against, if no third is named."""
OTHERS = {"contains": contains, "F1": f1}
RATES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8)


def records(split: str) -> list[dict]:
    root = os.environ.get("LTRAG_DATA")
    if not root:
        sys.exit("set LTRAG_DATA to the folder that holds adarague_llm_records/")
    path = Path(root) / "adarague_llm_records" / f"{split}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def outcomes(
    rows: list[dict], encoder: Encoder, *, recorded: bool, second: bool = False
) -> list[Outcome]:
    """With `second`, the answer of another run of the model is a sampled draft."""
    drafts = [row["no_retrieval"] or "" for row in rows]
    asked, said = encoder.encode([row["question"] for row in rows]), encoder.encode(drafts)
    return [
        Outcome(
            Evidence(
                row["question"],
                Generation(draft),
                samples=(Generation(row["seakr_direct"]["answer"] or ""),) if second else (),
                vectors=np.stack([asked[i], said[i]]),
                extra=extra_signals(row, recorded),
            ),
            right=normalized_exact_match(draft, row["answers"]) == 1,
            right_with_retrieval=normalized_exact_match(
                row["one_retrieval_bm25_15"] or "", row["answers"]
            )
            == 1,
        )
        for i, (row, draft) in enumerate(zip(rows, drafts, strict=True))
    ]


def extra_signals(row: dict, recorded: bool) -> dict[str, float]:
    """How long the model reasoned before its short answer; with `recorded`, its uncertainties."""
    extra = {"reasoning_words": float(np.log1p(len((row["no_retrieval_cot"] or "").split())))}
    if recorded:
        extra |= {k: float(v) for k, v in row["seakr_direct"].items() if k != "answer"}
    return extra


def judged(train: list[Outcome], test: list[Outcome]) -> Row:
    """What a gate that was fitted on `train` says of `test`, and each signal alone."""
    fitted, fit = fit_outcomes(train, target_rate=0.25)
    gate = GECEGate(fitted, World(llm=ScriptedLLM(lambda prompt: "", name="recorded")), fit)
    decisions = [gate.judge(o.evidence) for o in test]
    scores = {"gate": [d.score for d in decisions]}
    scores["fitted P(fails)"] = [d.probability for d in decisions]
    scores |= {name: [d.ingredients[name] for d in decisions] for name in fitted.names}
    return {
        "fit": [len(train), fit.objective, short(fit.auroc.value)],
        "chosen": [int(d.retrieve) for d in decisions],
        **known(test, scores),
    }


def known(some: list[Outcome], scores: Mapping[str, Iterable[float]]) -> Row:
    """Which answers are right, without and with retrieval, and scores, higher: rather retrieve."""
    return {
        "right": [int(o.right) for o in some],
        "mended": [int(bool(o.right_with_retrieval)) for o in some],
        "scores": {name: [float(f"{v:.6g}") for v in values] for name, values in scores.items()},
    }


def others(rows: list[dict]) -> Row:
    """By each other metric how right the answers are without retrieval, then with one."""
    ways = ("no_retrieval", "one_retrieval_bm25_15")
    return {
        name: [[round(of(r[way] or "", r["answers"]), 4) for r in rows] for way in ways]
        for name, of in OTHERS.items()
    }


def by_metric(row: Row) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    pairs = {"EM": (row["right"], row["mended"]), **row["others"]}
    return {name: (np.array(never), np.array(always)) for name, (never, always) in pairs.items()}


def report(title: str, row: Row, answers: Answers) -> None:
    """Print what was kept of `dev_test`."""
    right, mended = (np.array(row[key], dtype=bool) for key in ("right", "mended"))
    fails, scores = 1 - right.astype(int), {n: np.array(v) for n, v in row["scores"].items()}
    questions, objective, cross_validated = row["fit"]
    print(f"\n## {title}: {questions} questions to fit, {len(right)} to judge")
    print(
        f"EM never {right.mean():.4f}, always {mended.mean():.4f}, "
        f"either {np.mean(right | mended):.4f}; objective chosen by the fit: {objective}"
    )
    probability = scores["fitted P(fails)"]
    alone = {n: auroc(v, fails) for n, v in list(scores.items())[2:]}
    print(
        f"AUROC 'direct fails': fitted {auroc(probability, fails):.4f} "
        f"(cross-validated on train {cross_validated:.4f}), "
        f"ECE {expected_calibration_error(probability, fails):.3f}; alone: "
        + ", ".join(f"{n} {v:.3f}" for n, v in sorted(alone.items(), key=lambda x: -x[1]))
    )
    print(f"{'EM at retrieval rate':<24}" + " ".join(f"{r:>6.0%}" for r in RATES))
    for name, values in scores.items():
        print(f"{name:<24}" + at_rates(values, right, mended))
    lottery = [(1 - r) * right.mean() + r * mended.mean() for r in RATES]
    print(f"{'random (expected)':<24}" + " ".join(f"{value:.4f}" for value in lottery))
    chosen = np.array(row["chosen"], dtype=bool)
    behind(f"the gate as fitted for 25 %: retrieves {chosen.mean():.1%}", chosen, answers)


def behind(title: str, chosen: np.ndarray, answers: Answers) -> None:
    """Print how right the answers behind a choice are, beside always, never and as many by lot."""
    heads = "".join(f"{f'minus {other}':>28}" for other in ("always", "never", "a lottery"))
    print(f"{title}\n{'':<10}{'never':>7}{'always':>8}{'gate':>7}{heads}")
    for name, (never, always) in answers.items():
        gated, lottery = (mixed(share, never, always) for share in (chosen, chosen.mean()))
        found = [paired_bootstrap(gated, other) for other in (always, never, lottery)]
        print(
            f"{name:<10}{never.mean():>7.3f}{always.mean():>8.3f}{gated.mean():>7.3f}"
            + "".join(f"{x.value:>+10.4f} ({x.low:+.4f}, {x.high:+.4f})" for x in found)
        )


def at_rates(values: np.ndarray, right: np.ndarray, mended: np.ndarray) -> str:
    shares = (most(values, rate) for rate in RATES)
    return " ".join(f"{mixed(share, right, mended).mean():.4f}" for share in shares)


def table(recorded: list[Outcome]) -> tuple[Features, Labels, list[str]]:
    evidence = [outcome.evidence for outcome in recorded]
    names = available_signals(evidence, None)
    return features(evidence, names, None), Labels.of(recorded), names


def cross_validated(rows: list[dict], recorded: list[Outcome], folds: int) -> Row:
    """Each question judged by a gate that was fitted without it."""
    columns, labels, names = table(recorded)
    failure, gain = _cross_validated(columns, labels, names, GECESettings(folds=folds))
    assert gain is not None
    scores = {"failure": failure, "gain": gain}
    ircot = [int(normalized_exact_match(r["ircot_bm25_6"] or "", r["answers"])) for r in rows]
    sets = [row["dataset"] for row in rows]
    kept = {"folds": folds, "sets": sets, "ircot": ircot, "others": others(rows)}
    return kept | {"alone": sampled(rows)} | known(recorded, scores)


def sampled(rows: list[dict]) -> Row:
    """What SeaKR recorded of 20 samples to each question, where there are any."""
    if not all(row.get("seakr_direct") for row in rows):
        return {}
    return {
        name: [float(f"{row['seakr_direct'][name]:.6g}") for row in rows]
        for name in ("eigen_score", "ln_entropy")
    }


def areas(title: str, row: Row) -> None:
    """Print what was kept of all questions, by data set."""
    right, mended, sets = (np.array(row[key]) for key in ("right", "mended", "sets"))
    scores = {name: np.array(values) for name, values in row["scores"].items()}
    gain, fails = (mended - right).astype(float), 1 - right
    folds = row["folds"]
    print(f"\n## {title}, cross-validated over {len(sets)} questions, {folds} folds")
    print(
        f"{'area above a random choice':<26}{'failure':>27}{'gain':>27}{'perfect':>9}"
        f"{'AUROC':>7}{'never':>7}{'always':>7}"
    )
    for name in ("all", *dict.fromkeys(sets.tolist())):
        some = np.flatnonzero((sets == name) | (name == "all"))
        found = [
            bootstrap_interval(values[some], gain[some], statistic=_area, resamples=1000)
            for values in scores.values()
        ]
        print(
            f"{f'{name} ({len(some)})':<26}"
            + "".join(f"{x.value:>+9.4f} ({x.low:+.4f}, {x.high:+.4f})" for x in found)
            + f"{_area(gain[some], gain[some]):>9.4f}"
            f"{auroc(scores['failure'][some], fails[some]):>7.3f}"
            f"{right[some].mean():>7.3f}{mended[some].mean():>7.3f}"
        )
    print(f"{'EM at retrieval rate':<24}" + " ".join(f"{r:>6.0%}" for r in RATES))
    for name, values in scores.items():
        print(f"{name:<24}" + at_rates(values, right.astype(bool), mended.astype(bool)))
    ircot, answers = np.array(row["ircot"]), by_metric(row)
    fifth(sets, scores["gain"], {"one retrieval": (right, mended), "IRCoT": (right, ircot)})
    more = {name: answers[name] for name in OTHERS}
    fifth(sets, scores["gain"], {**more, "EM, over never": (right, mended, right)})
    behind("30% retrieve, by gain", most(scores["gain"], 0.3), answers)
    for name in OTHERS:
        change = answers[name][1] - answers[name][0]
        found = (
            f"{way} {bootstrap_interval(one, change, statistic=_area, resamples=1000).signed}"
            for way, one in scores.items()
        )
        print(f"area in {name}: {', '.join(found)}")
    for name, values in row["alone"].items():
        one = np.array(values)
        area = bootstrap_interval(one, gain, statistic=_area, resamples=1000)
        above = bootstrap_interval(scores["failure"], one, gain, statistic=_over, resamples=1000)
        print(
            f"{name} alone: AUROC {auroc(one, fails):.3f}, area {area.signed}; "
            f"failure above it {above.signed}"
        )


def _over(one: np.ndarray, other: np.ndarray, gain: np.ndarray) -> float:
    return _area(one, gain) - _area(other, gain)


def fifth(sets: np.ndarray, gain: np.ndarray, ways: Answers) -> None:
    """Print what ways to retrieve, or metrics, have where a fifth of the questions does, beside
    all."""
    print(f"{'20% retrieve, by gain':<26}" + "".join(f"{way:<40}" for way in ways).rstrip())
    for name in ("all", *dict.fromkeys(sets.tolist())):
        some = np.flatnonzero((sets == name) | (name == "all"))
        chosen, cells = most(gain[some], 0.2), list[str]()
        for found in ways.values():
            never, always, *_ = each = [one[some] for one in found]
            gated, other = mixed(chosen, never, always), each[-1]
            above = paired_bootstrap(gated, other, resamples=1000)
            cells.append(
                f"{other.mean():.3f} to {gated.mean():.3f}, {above.value:+.3f} "
                f"({above.low:+.3f}, {above.high:+.3f})"
            )
        print(f"{f'{name} ({len(some)})':<26}" + "".join(f"{cell:<40}" for cell in cells).rstrip())


def labels(rows: list[dict], train: list[Outcome], test: list[Outcome]) -> Row:
    """Which answers of `train` are wrong, and which differ from those with retrieval; and the order
    in which gates that were fitted on either, with draws of several sizes, put `dev_test`."""
    (columns, known, _), (new, others, _) = table(train), table(test)
    fails, wrong = known.fails, others.fails
    pairs = [(row["no_retrieval"] or "", row["one_retrieval_bm25_15"] or "") for row in rows]
    differs = np.array([not answers_agree(*pair) for pair in pairs], dtype=int)
    orders: dict[str, list[list[list[int]]]] = {}
    for size in (100, 400, 1600, len(train)):
        if size > len(train):
            continue
        draws = DRAWS if size < len(train) else 1
        some = [np.random.default_rng(i).permutation(len(train))[:size] for i in range(draws)]
        orders[str(size)] = [
            [_places(fit_failure(columns[s], y[s], 0)[0](new)) for s in some]
            for y in (fails, differs)
        ]
    return {
        "train": {"fails": fails.tolist(), "differs": differs.tolist()},
        "wrong": wrong.tolist(),
        "gain": others.gain.astype(int).tolist(),
        "orders": orders,
    }


def _places(scores: np.ndarray) -> list[int]:
    """Each one's place in the order, from the smallest; equal scores share one."""
    return np.unique(scores, return_inverse=True)[1].tolist()


def labels_report(title: str, row: Row) -> None:
    """AUROC of "the direct answer fails", and the area above a random choice, with true labels and
    with agreement in their place."""
    fails, differs, wrong, gain = map(np.array, (*row["train"].values(), row["wrong"], row["gain"]))
    print(
        f"\n## {title}: the two answers agree on {1 - differs.mean():.1%}; as a label right "
        f"on {np.mean(differs == fails):.1%}"
    )
    for size, ways in row["orders"].items():
        (known, above), (agreed, other) = (
            np.mean([(auroc(p, wrong), _area(p, gain)) for p in np.array(way, float)], axis=0)
            for way in ways
        )
        print(
            f"{size:>5} questions, {len(ways[0])} draws: labels {known:.3f}, agreement "
            f"{agreed:.3f} ({agreed - known:+.3f}); area {above:+.4f}, {other:+.4f}"
        )


def most(values: np.ndarray, rate: float) -> np.ndarray:
    """How surely each is among the largest, of which there are so many; equal ones are drawn by
    lot where not all of them are, and those without a score (NaN) come last."""
    values = np.where(np.isnan(values), -np.inf, values)
    count = round(rate * len(values))
    least = np.sort(values)[-max(count, 1)]
    above, tied = values > least, values == least
    return above + tied * (count - above.sum()) / tied.sum()


def mixed(share: np.ndarray, never: np.ndarray, always: np.ndarray) -> np.ndarray:
    """What is expected where answers with retrieval have these shares."""
    return share * always + (1 - share) * never


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=GECESettings().folds)
    parser.add_argument("--labels", action="store_true", help="labels beside agreement, no gates")
    options = parsed(parser, "recorded_outcomes")
    if not options.table:
        run(options)
    for row in read(options.records):
        if options.labels and row["kind"] == "labels":
            labels_report(row["title"], row["labels"])
        if not options.labels and row["kind"] == "gates":
            if "judged" in row:
                count, answers = len(row["judged"]["right"]), by_metric(row["all"])
                own = {name: (a[-count:], b[-count:]) for name, (a, b) in answers.items()}
                report(row["title"], row["judged"], own)
            areas(row["title"], row["all"])


def run(options: argparse.Namespace) -> None:
    encoder = embedded_encoder()
    every = [records("train"), records("dev_test")]
    some = [[r for r in rows if r.get("seakr_direct")] for rows in every]
    for title, parts, how in (
        ("text tier", every, {"recorded": False}),
        ("recorded signals (NQ, TriviaQA, SQuAD)", some, {"recorded": True}),
        ("recorded signals and a second draft", some, {"recorded": True, "second": True}),
    ):
        train, test = (outcomes(rows, encoder, **how) for rows in parts)
        row: Row = {"title": title, "kind": "labels" if options.labels else "gates"}
        if options.labels:
            row["labels"] = labels(parts[0], train, test)
        else:
            if "second" not in how:
                row["judged"] = judged(train, test)
            row["all"] = cross_validated(parts[0] + parts[1], train + test, options.folds)
        merged(options.records, [row], "title", "kind")


if __name__ == "__main__":
    main()
