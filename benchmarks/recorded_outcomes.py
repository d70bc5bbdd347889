"""Judge gates on recorded answers of Llama-3.1-8B-Instruct, without running it.

Fits on `train`, reports on `dev_test` of adarague_llm_records: answers without retrieval, with one
BM25 retrieval of 15 passages. Then judges each question of both by a gate that was fitted without
it, by data set; with --labels, fits on whether the two answers agree too. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/recorded_outcomes.py
    LTRAG_DATA=/path/to/data python benchmarks/recorded_outcomes.py --labels
"""

import argparse
import gzip
import json
import os
import sys
from pathlib import Path

import numpy as np

from ltrag_plugins.flow import World
from ltrag_plugins.gece import Evidence, GECEGate, GECESettings, Outcome, fit_outcomes
from ltrag_plugins.gece.fit import Labels, _area, _cross_validated, fit_failure
from ltrag_plugins.gece.labels import answers_agree
from ltrag_plugins.gece.signals import Features, available_signals, features
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.embedded import embedded_encoder
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.answer import normalized_exact_match
from ltrag_plugins.metrics.calibration import (
    auroc,
    bootstrap_interval,
    expected_calibration_error,
    paired_bootstrap,
)
from ltrag_plugins.types import Generation

DRAWS = 3
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


def report(title: str, train: list[Outcome], test: list[Outcome]) -> None:
    right = np.array([o.right for o in test])
    mended = np.array([bool(o.right_with_retrieval) for o in test])
    fails = 1 - right.astype(int)
    fitted, fit = fit_outcomes(train, target_rate=0.25)
    gate = GECEGate(fitted, World(llm=ScriptedLLM(lambda prompt: "", name="recorded")), fit)
    decisions = [gate.judge(o.evidence) for o in test]
    probability = np.array([d.probability for d in decisions])
    score = np.array([d.score for d in decisions])
    print(f"\n## {title}: {len(train)} questions to fit, {len(test)} to judge")
    print(
        f"EM never {right.mean():.4f}, always {mended.mean():.4f}, "
        f"either {np.mean(right | mended):.4f}; objective chosen by the fit: {fit.objective}"
    )
    names = list(fitted.names)
    alone = {n: auroc([d.ingredients[n] for d in decisions], fails) for n in names}
    print(
        f"AUROC 'direct fails': fitted {auroc(probability, fails):.4f} "
        f"(cross-validated on train {fit.auroc.value:.4f}), "
        f"ECE {expected_calibration_error(probability, fails):.3f}; alone: "
        + ", ".join(f"{n} {v:.3f}" for n, v in sorted(alone.items(), key=lambda x: -x[1]))
    )
    print(f"{'EM at retrieval rate':<24}" + " ".join(f"{r:>6.0%}" for r in RATES))
    rows = {"gate": score, "fitted P(fails)": probability}
    rows |= {n: np.array([d.ingredients[n] for d in decisions]) for n in names}
    for name, values in rows.items():
        print(f"{name:<24}" + " ".join(f"{gated(values, right, mended, r):.4f}" for r in RATES))
    print(
        f"{'random (expected)':<24}"
        + " ".join(f"{(1 - r) * right.mean() + r * mended.mean():.4f}" for r in RATES)
    )
    curve = np.array(fit.curve).T
    print(
        f"{'gate *':<24}"
        + " ".join(f"{np.interp(r, *curve):.4f}" for r in RATES)
        + f"   (* on train, cross-validated; never {fit.direct_accuracy:.4f}, "
        f"always {fit.retrieval_accuracy:.4f})"
    )
    # both parts together; no question is judged by a gate that has seen it
    shares = np.array([len(train), len(test)]) / (len(train) + len(test))
    print(
        f"{'gate, all questions':<24}"
        + " ".join(
            f"{shares @ [np.interp(r, *curve), gated(score, right, mended, r)]:.4f}" for r in RATES
        )
        + f"   (never {shares @ [fit.direct_accuracy, right.mean()]:.4f}, "
        f"always {shares @ [fit.retrieval_accuracy, mended.mean()]:.4f})"
    )
    signals = features([o.evidence for o in train], names, fitted.frequencies).signals
    known = Labels.of(train)
    for name, values in zip(names, signals.T, strict=True):
        found = " ".join(f"{known.gated_accuracy(values, r):.4f}" for r in RATES)
        print(f"{name + ' *':<24}{found}")
    chosen = np.array([d.retrieve for d in decisions])
    gate_right = np.where(chosen, mended, right)
    versus = paired_bootstrap(gate_right, mended)
    print(
        f"the gate as fitted for 25 %: retrieves {chosen.mean():.1%}, EM {gate_right.mean():.4f}; "
        f"minus always {versus.value:+.4f} "
        f"({versus.low:+.4f} to {versus.high:+.4f})"
    )


def table(recorded: list[Outcome]) -> tuple[Features, Labels, list[str]]:
    evidence = [outcome.evidence for outcome in recorded]
    names = available_signals(evidence, None)
    return features(evidence, names, None), Labels.of(recorded), names


def areas(title: str, rows: list[dict], recorded: list[Outcome], folds: int) -> None:
    """Each question judged by a gate that was fitted without it."""
    columns, labels, names = table(recorded)
    failure, gain = _cross_validated(columns, labels, names, GECESettings(folds=folds))
    mended = labels.mended
    assert mended is not None
    sets = np.array([row["dataset"] for row in rows])
    print(f"\n## {title}, cross-validated over {len(rows)} questions, {folds} folds")
    print(
        f"{'area above a random choice':<26}{'failure':>27}{'gain':>27}{'perfect':>9}"
        f"{'AUROC':>7}{'never':>7}{'always':>7}"
    )
    for name in ("all", *dict.fromkeys(sets.tolist())):
        some = np.flatnonzero((sets == name) | (name == "all"))
        known = labels[some]
        found = [
            bootstrap_interval(scores[some], known.gain, statistic=_area, resamples=1000)
            for scores in (failure, gain)
            if scores is not None
        ]
        print(
            f"{f'{name} ({len(some)})':<26}"
            + "".join(f"{x.value:>+9.4f} ({x.low:+.4f}, {x.high:+.4f})" for x in found)
            + f"{_area(known.gain, known.gain):>9.4f}{auroc(failure[some], known.fails):>7.3f}"
            f"{1 - known.fails.mean():>7.3f}{mended[some].mean():>7.3f}"
        )


def labels(title: str, rows: list[dict], train: list[Outcome], test: list[Outcome]) -> None:
    """AUROC of "the direct answer fails", and the area above a random choice, with true labels and
    with agreement in their place."""
    (columns, known, _), (new, others, _) = table(train), table(test)
    fails, wrong = known.fails, others.fails
    pairs = [(row["no_retrieval"] or "", row["one_retrieval_bm25_15"] or "") for row in rows]
    differs = np.array([not answers_agree(*pair) for pair in pairs], dtype=int)
    print(
        f"\n## {title}: the two answers agree on {1 - differs.mean():.1%}; as a label right "
        f"on {np.mean(differs == fails):.1%}"
    )
    for size in (100, 400, 1600, len(train)):
        if size > len(train):
            continue
        draws = DRAWS if size < len(train) else 1
        some = [np.random.default_rng(i).permutation(len(train))[:size] for i in range(draws)]
        (by_labels, gain), (by_agreement, other) = (
            np.mean([(auroc(p, wrong), _area(p, others.gain)) for p in scores], axis=0)
            for y in (fails, differs)
            if (scores := [fit_failure(columns[s], y[s], 0)[0](new) for s in some])
        )
        print(
            f"{size:>5} questions, {draws} draws: labels {by_labels:.3f}, agreement "
            f"{by_agreement:.3f} ({by_agreement - by_labels:+.3f}); area {gain:+.4f}, {other:+.4f}"
        )


def gated(values: np.ndarray, right: np.ndarray, mended: np.ndarray, rate: float) -> float:
    retrieve = np.zeros(len(values), dtype=bool)
    retrieve[np.argsort(-values, kind="stable")[: round(rate * len(values))]] = True
    return float(np.where(retrieve, mended, right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=GECESettings().folds)
    parser.add_argument("--labels", action="store_true", help="labels beside agreement, no gates")
    options, encoder = parser.parse_args(), embedded_encoder()
    every = [records("train"), records("dev_test")]
    some = [[r for r in rows if r.get("seakr_direct")] for rows in every]
    for title, parts, how in (
        ("text tier", every, {"recorded": False}),
        ("recorded signals (NQ, TriviaQA, SQuAD)", some, {"recorded": True}),
        ("recorded signals and a second draft", some, {"recorded": True, "second": True}),
    ):
        train, test = (outcomes(rows, encoder, **how) for rows in parts)
        if options.labels:
            labels(title, parts[0], train, test)
            continue
        if "second" not in how:
            report(title, train, test)
        areas(title, parts[0] + parts[1], train + test, options.folds)


if __name__ == "__main__":
    main()
