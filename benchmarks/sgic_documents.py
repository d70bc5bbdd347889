"""Does a document's uncertainty tell gold from distractor, and an answer's right from wrong?

On questions of nq_distractor and hotpotqa, ten passages each, one or two of them gold:
AUROC and R@1, R@2, R@5 of the model's uncertainty (eq. 3) beside MiniLM similarity and BM25, and
AUROC of the answer's uncertainty for "the answer from all ten is wrong", with what the accuracy
gains where the least certain fifth is refused, whether the documents' scores add to it, and whether
P(wrong) keeps what it promises. With --attention also of the attention on each document, where the
first answer is written and in one round after it (section 5.8). Usage:

    LTRAG_DATA=/path/to/data python benchmarks/sgic_documents.py --model embedded
    LTRAG_DATA=/path/to/data python benchmarks/sgic_documents.py --model FILE.gguf --answers-only
    LTRAG_DATA=/path/to/data python benchmarks/sgic_documents.py --model FILE.gguf --attention
    python benchmarks/sgic_documents.py --table --records runs/sgic_documents.jsonl.gz
    python benchmarks/sgic_documents.py --table --looks benchmarks/results/cuts_nq.jsonl.gz

Each question's scores are kept in the file of records, from which `--table` prints; `--looks` says
of them whether a wrong answer is told better where it is known how like it a look's answer is, of
a file of `sgic_loop.py` (the same questions; F1 of the two texts). Answers are kept in the cache
folder, so a run that was stopped goes on. A hundred questions of each set take about half an hour
on two cores with SmolLM2.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sgic_compare
from distractors import SETS, Item, items, model, settings
from records import Row, merged, parsed, read, short
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ltrag_plugins.calibration import cross_calibrated
from ltrag_plugins.errors import CalibrationError
from ltrag_plugins.flow import World, run_many
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.embedded import cache_folder, embedded_encoder
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.metrics.answer import contains, f1, normalized_exact_match
from ltrag_plugins.metrics.calibration import (
    Reliability,
    auroc,
    bootstrap_interval,
    expected_calibration_error,
)
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import CalibratedAnswer, ScoreScale, SGICSettings, calibrate
from ltrag_plugins.sgic.attention import round_attention
from ltrag_plugins.types import Passage

AT_ONCE = 4
"""Questions whose prompts go to the model together."""
SAME = 0.98
"""Of the first answers in a file of looks, in whatever precision, as right as those on record."""
ROUNDS = ("first answer", "after a round")


def recall(scores: np.ndarray, gold: np.ndarray, k: int) -> float:
    """Share of the gold passages among the k of the largest scores; ties count in part."""
    return float(np.mean([_chance(scores, score, k) for score in scores[gold]]))


def _chance(scores: np.ndarray, score: float, k: int) -> float:
    above, equal = int((scores > score).sum()), int((scores == score).sum())
    return float(np.clip((k - above) / equal, 0, 1))


def by_meaning(question: str, passages: tuple[Passage, ...], encoder) -> np.ndarray:  # noqa: ANN001
    texts = [f"{p.title}: {p.text}" for p in passages]
    vectors = np.asarray(encoder.encode([question, *texts]), dtype=float)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[1:] @ vectors[0]


def by_words(question: str, passages: tuple[Passage, ...]) -> np.ndarray:
    numbered = [Passage(f"{p.title}: {p.text}", id=str(i)) for i, p in enumerate(passages)]
    [found] = BM25Retriever(numbered).search([question], len(numbered))
    scores = np.zeros(len(passages))
    for place, passage in enumerate(found):
        scores[int(passage.id)] = len(found) - place if passage.score is None else passage.score
    return scores


def ranked(name: str, scores: list[np.ndarray], gold: list[np.ndarray]) -> str:
    # of two passages both may be gold
    each = [auroc(s, g) for s, g in zip(scores, gold, strict=True) if not g.all()]
    figures = [np.mean(each)]
    figures += [
        np.mean([recall(s, g, k) for s, g in zip(scores, gold, strict=True)]) for k in (1, 2, 5)
    ]
    pooled = auroc(np.concatenate(scores), np.concatenate(gold))
    return f"{name:<28}" + "".join(f"{value:8.3f}" for value in [pooled, *figures])


def looked(
    found: list[Item],
    first: list[CalibratedAnswer],
    local: TransformersLLM,
    world: World,
    way: SGICSettings,
) -> tuple[list[CalibratedAnswer], dict[str, list[tuple[float, ...]]]]:
    """The answers with a round after the first, and the attention on each passage in both. Scores
    are on a scale of the mean of the first answers."""
    scale = ScoreScale.of_rounds(way.estimator, [answer.trace for answer in first])
    again = replace(way, rounds=1, certain_below=0.0, keep_prompts=True)
    asked = [item.question for item in found]
    flows = [calibrate(q.text, q.passages, again, scale) for q in asked]
    answers, shares = list[CalibratedAnswer](), [list[tuple[float, ...]](), []]
    for start in range(0, len(flows), AT_ONCE):
        answers += run_many(flows[start : start + AT_ONCE], world)
        for answer in answers[start:]:
            for number, some in enumerate(shares):
                seen = round_attention(local, answer, again, round=number)
                some.append(seen.documents)
        print(f"\ra round of {len(answers)} of {len(found)}", end="", flush=True)
    return answers, {f"attention, {n}": some for n, some in zip(ROUNDS, shares, strict=True)}


def kept(
    found: list[Item],
    answers: list[CalibratedAnswer],
    encoder,  # noqa: ANN001
    attention: dict[str, list[tuple[float, ...]]],
) -> Row:
    """What the tables say of the questions: scores of the passages, higher is better; how unsure
    the answers are, and whether they are right, from all passages and from each alone."""
    asked = [item.question for item in found]
    scores = {
        "MiniLM similarity": [by_meaning(q.text, q.passages, encoder) for q in asked],
        "BM25": [by_words(q.text, q.passages) for q in asked],
    }
    alone = [(d, q.answers) for a, q in zip(answers, asked, strict=True) for d in a.documents]
    if asked_alone := any(d.uncertainty is not None for d, _ in alone):
        of_documents = [[1 - unsure(d.uncertainty) for d in a.documents] for a in answers]
        scores = {"the model's uncertainty": of_documents} | scores
    scores = attention | scores
    ways = {"EM": normalized_exact_match, "contains": contains}
    said = {
        f"{name}, right by {label}": [
            (unsure(a.trace[i].uncertainty), float(right(a.trace[i].text, q.answers)))
            for a, q in zip(answers, asked, strict=True)
        ]
        for i, name in enumerate(["answer from all passages", "answer after a round"])
        if i == 0 or attention
        for label, right in ways.items()
    }
    if asked_alone:
        said["answers from one passage, by contains"] = [
            (unsure(d.uncertainty), contains(d.answer or "", accepted)) for d, accepted in alone
        ]
    return {
        "gold": [[*map(int, item.gold)] for item in found],
        "scores": {name: [[*map(short, each)] for each in some] for name, some in scores.items()},
        "answers": {name: [[*map(short, pair)] for pair in pairs] for name, pairs in said.items()},
    }


def report(row: Row) -> None:
    """Print what was kept of a model and data set."""
    gold = [np.array(each, dtype=bool) for each in row["gold"]]
    print(f"\n{row['model']}\n{row['set']}, {row['split']}: {len(gold)} questions, "
          f"{sum(map(sum, gold)) / len(gold):.1f} gold of "
          f"{np.mean([len(g) for g in gold]):.1f} passages")  # fmt: skip
    print(f"{'':<28}{'AUROC':>8}{'within':>8}{'R@1':>8}{'R@2':>8}{'R@5':>8}")
    for name, scores in row["scores"].items():
        print(ranked(name, [np.array(each) for each in scores], gold))
    print(ranked("chance", [np.zeros(len(g)) for g in gold], gold))
    first, after = (f"attention, {name}" for name in ROUNDS)
    for one, other in ((after, first), (first, "the model's uncertainty"), (first, "BM25")):
        if {one, other} <= row["scores"].keys():
            print(found_more(one, other, row["scores"], gold))
    for label, pairs in row["answers"].items():
        unsure, right = map(np.array, zip(*pairs, strict=True))
        print(wrong(label, unsure, right))
        if label.startswith("answer from all passages") and 5 <= right.sum() <= len(right) - 5:
            print(with_scores(unsure, right, row["scores"]))
            print(promised(unsure, 1 - right))
        if label.startswith("answer after a round"):
            before = row["answers"][label.replace("after a round", "from all passages")]
            print(stayed(np.array(before), np.array(pairs)))


def unsure(value: float | None) -> float:
    """What was not measured counts as no idea."""
    return 1.0 if value is None else value


def wrong(label: str, unsure: np.ndarray, right: np.ndarray) -> str:
    line = f"{label}: {np.mean(right):.3f}"
    try:
        value = bootstrap_interval(unsure, 1 - right, statistic=auroc)
        gain = bootstrap_interval(unsure, right, statistic=lifted)
    except CalibrationError:
        return line
    return (
        f"{line}; AUROC for wrong {value.value:.3f} ({value.low:.3f} to {value.high:.3f}); "
        f"without the unsurest fifth {gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
    )


def promised(unsure: np.ndarray, wrong: np.ndarray) -> str:
    """Whether P(wrong), as a fit without its fifth gives it, comes true: its ECE beside that of
    1,000 draws in which it does to the letter, and the means of up to five bins."""
    said = cross_calibrated(unsure, wrong.astype(int), "platt", folds=5, seed=0)
    drawn = np.random.default_rng(0).random((1000, len(said))) < said
    by_luck = [expected_calibration_error(said, each) for each in drawn]
    bins = [one for one in Reliability.of(said, wrong, bins=5).bins if one.count]
    return (
        f"  P(wrong): ECE {expected_calibration_error(said, wrong):.3f}, by luck alone "
        f"{np.mean(by_luck):.3f} (95 % up to {np.quantile(by_luck, 0.95):.3f}); said "
        f"{' '.join(f'{one.said:.2f}' for one in bins)}, wrong "
        f"{' '.join(f'{one.wrong:.2f}' for one in bins)}"
    )


def found_more(one: str, other: str, scores: Mapping[str, Any], gold: list[np.ndarray]) -> str:
    """How many more of the gold passages are among the first by one score (table 10)."""
    told = []
    for k in (2, 5):
        mine, its = (
            np.array([recall(np.array(s), g, k) for s, g in zip(scores[name], gold, strict=True)])
            for name in (one, other)
        )
        told.append(f"R@{k} {bootstrap_interval(mine - its).signed}")
    return f"  {one}, over {other}: {', '.join(told)}"


def stayed(before: np.ndarray, after: np.ndarray) -> str:
    """What a round mends and spoils, what the uncertainty tells more of wrong answers after it, and
    how uncertain those grow that it turns, or leaves wrong or right (the paper's figures 4, 5)."""
    change = after[:, 1] - before[:, 1]
    told = [f"mended {np.sum(change > 0)}, spoiled {np.sum(change < 0)}, "
            f"{bootstrap_interval(change).signed}"]  # fmt: skip
    with suppress(CalibrationError):
        of_both = bootstrap_interval(*before.T, *after.T, statistic=_tells_more)
        told[0] += f"; AUROC {of_both.signed}"
    kinds = {"wrong in both": (0, 0), "right in both": (1, 1),
             "turned right": (0, 1), "turned wrong": (1, 0)}  # fmt: skip
    for kind, (was, now) in kinds.items():
        first, last = (
            some[(before[:, 1] == was) & (after[:, 1] == now), 0] for some in (before, after)
        )
        if len(last) == 0:
            continue
        told.append(f"{kind} {len(last)}, uncertainty {first.mean():.3f} to "
                    f"{last.mean():.3f}, lower in {np.sum(last < first)}")  # fmt: skip
    return "\n".join(f"  {line}" for line in told)


def _tells_more(unsure: np.ndarray, right: np.ndarray, then: np.ndarray, now: np.ndarray) -> float:
    return auroc(then, 1 - now) - auroc(unsure, 1 - right)


def with_scores(unsure: np.ndarray, right: np.ndarray, scores: Mapping[str, Any]) -> str:
    """The AUROC for wrong of what is learned from the uncertainty alone, and with the two best
    scores of the passages and their mean."""

    def area(*signals: Sequence[float] | np.ndarray) -> float:
        return auroc(learned(right, *signals), 1 - right)

    line = f"  learned from the uncertainty alone {area(unsure):.3f}"
    for name, each in scores.items():
        best = [[*sorted(some)[:-3:-1], np.mean(some)] for some in each]
        line += f"; with {name} {area(unsure, *zip(*best, strict=True)):.3f}"
    return line


def learned(right: np.ndarray, *signals: Sequence[float] | np.ndarray) -> np.ndarray:
    """P(wrong) of each question by a logistic model that was fitted without its fifth."""
    learner = make_pipeline(StandardScaler(), LogisticRegression(solver="newton-cholesky"))
    folds, x = StratifiedKFold(5, shuffle=True, random_state=0), np.column_stack(signals)
    shares: Any = cross_val_predict(learner, x, right, cv=folds, method="predict_proba")
    return shares[:, 0]


def with_looks(rows: Sequence[Row], path: Path) -> str:
    """The AUROC for wrong of what is learned from the first answer's uncertainty alone, and with
    how like it the last answer of each look is.

    Raises:
        SystemExit: no row is of the file's questions.
    """
    looks = sgic_compare.read(path)
    direct = looks.pop("direct", {})
    for row in rows:
        known = row["answers"]["answer from all passages, right by EM"][: len(direct)]
        same = [one.em == em for one, (_, em) in zip(direct.values(), known, strict=False)]
        if len(same) == len(direct) > 0 and np.mean(same) >= SAME:
            break
    else:
        raise SystemExit(f"no record is of the questions of {path}")
    lines = [f"\n{path.name.partition('.')[0]}: {len(direct)} questions of {row['set']}"]
    for way in ("EM", "contains"):
        pairs = row["answers"][f"answer from all passages, right by {way}"][: len(direct)]
        unsure, right = map(np.array, zip(*pairs, strict=True))
        alone, wrong = learned(right, unsure), 1 - right
        lines.append(
            f"right by {way}: learned from the uncertainty alone {auroc(alone, wrong):.3f}"
        )
        for name, look in looks.items():
            if name.endswith("last"):
                like = [f1(look[i].text, [one.text or "-"]) for i, one in direct.items()]
                both = learned(right, unsure, like)
                gain = bootstrap_interval(alone, both, wrong, statistic=_more)
                told = f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
                lines.append(f"  with {name:<16}{auroc(both, wrong):.3f}, {told}")
    return "\n".join(lines)


def _more(before: np.ndarray, after: np.ndarray, wrong: np.ndarray) -> float:
    return auroc(after, wrong) - auroc(before, wrong)


def lifted(unsure: np.ndarray, right: np.ndarray) -> float:
    """What the accuracy gains where the least certain fifth of the answers is refused."""
    kept = np.argsort(unsure, kind="stable")[: round(0.8 * len(unsure))]
    return float(right[kept].mean() - right.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--dtype", default="auto", help='"fast": bfloat16 where the CPU has it')
    parser.add_argument("--answers-only", action="store_true", help="from all passages together")
    parser.add_argument("--attention", action="store_true", help="with one round more")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--split", default="train", help='or "dev_test"')
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--cache", type=Path, default=cache_folder() / "sgic.sqlite")
    parser.add_argument("--looks", type=Path, nargs="+", help="with --table: files of looks")
    options = parsed(parser, "sgic_documents")
    if not options.table:
        run(options)
    rows = read(options.records)
    if options.looks:
        print(*(with_looks(rows, path) for path in options.looks), sep="\n")
        return
    for row in rows:
        report(row)


def run(options: argparse.Namespace) -> None:
    local = model(options.model, dtype=options.dtype)
    llm = CachedLLM(local, options.cache)
    world = World(llm=llm)
    way, encoder = (
        settings(rounds=0, score_documents="needed" if options.answers_only else "always"),
        embedded_encoder(),
    )
    for name in options.sets.split(","):
        found, answers = items(name, options.split, options.limit), []
        for start in range(0, len(found), AT_ONCE):
            asked = [item.question for item in found[start : start + AT_ONCE]]
            flows = [calibrate(q.text, q.passages, way) for q in asked]
            answers += run_many(flows, world)
            print(f"\r{name}: {len(answers)} of {len(found)}", end="", flush=True)
        seen = {}
        if options.attention:
            answers, seen = looked(found, answers, local, world, way)
        about = {"model": llm.name, "set": name, "split": options.split}
        merged(options.records, [about | kept(found, answers, encoder, seen)], *about)


if __name__ == "__main__":
    main()
