"""Gates on what one model answers to real questions, without passages and with two.

`record` asks the model and keeps each question's draft, answer with passages and their labels in
a file of JSON lines; `gradients` adds what eq. 2 takes of the model's weights, for `dev_test`;
`fit` adds what gates that were fitted on `train` say of `dev_test`; `table` prints what is kept:

    LTRAG_DATA=/path/to/data python benchmarks/gate_sets.py record MODEL.gguf
    python benchmarks/gate_sets.py gradients MODEL.gguf
    python benchmarks/gate_sets.py fit
    python benchmarks/gate_sets.py table

Passages are found among those of all questions asked, by MiniLM, and cut to 80 words. An answer is
right that contains an accepted one.
"""

import argparse
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from distractors import model
from recorded_outcomes import mixed, most
from records import FOLDER, read, write
from records import short as kept_digits
from scipy.stats import spearmanr

from ltrag_plugins.data import read_questions
from ltrag_plugins.evaluate import cell_of
from ltrag_plugins.flow import World, run_many
from ltrag_plugins.gece import (
    SIGNALS,
    Evidence,
    GECESettings,
    Outcome,
    WordFrequencies,
    fit_outcomes,
    gece_score,
)
from ltrag_plugins.gece.fit import Labels, _area, _cross_validated
from ltrag_plugins.gece.labels import answers_agree
from ltrag_plugins.gece.score import quality_of, references_like
from ltrag_plugins.gece.signals import (
    available_signals,
    drafting,
    features,
    with_gradient_term,
)
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.cached import CachedEncoder, CachedLLM
from ltrag_plugins.llm.embedded import embedded_encoder
from ltrag_plugins.metrics.answer import contains, normalized_exact_match
from ltrag_plugins.metrics.calibration import auroc, bootstrap_interval, paired_bootstrap
from ltrag_plugins.retrieval.dense import DenseRetriever
from ltrag_plugins.types import Generation, Passage, Question, Token
from ltrag_plugins.uncertainty import mean_probability

PARTS = ("train", "dev_test")
SHARES = (0.2, 0.4, 0.6, 0.8)
SIZES = (100, 400)
EQ_2: dict[str, dict[str, Any]] = {
    "eq. 2": {},
    "eq. 2, opposed largest": {"floor": 1e-9},
    "eq. 2, chrF for METEOR": {"quality": "chrf"},
    "eq. 2, 1-TER for METEOR": {"quality": "ter"},
    "eq. 2, no statistics": {"statistics": False},
    "eq. 2, no semantics": {"semantics": False},
    "its numerator": {"statistics": False, "semantics": False},
}
"""The rows of the paper's table 3, and what neither ablation leaves."""
RECORDS = FOLDER / "gate_sets.jsonl.gz"


def asked(name: str, part: str, limit: int) -> list[Question]:
    """The first questions with passages, in an order of chance that never changes."""
    if not (root := os.environ.get("LTRAG_DATA")):
        sys.exit("set LTRAG_DATA to the folder that holds popqa/, hotpotqa/ and nq_distractor/")
    found = read_questions(Path(root) / name / f"{part}.jsonl.gz", require_answers=True)
    found = [question for question in found if question.passages]
    found.sort(key=lambda question: hashlib.sha256(question.id.encode()).hexdigest())
    return found[:limit]


def short(passage: Passage) -> Passage:
    return Passage(" ".join(passage.text.split()[:80]), title=passage.title)


def record(options: argparse.Namespace) -> None:
    folder = options.answers
    folder.mkdir(parents=True, exist_ok=True)
    llm = CachedLLM(model(options.model, dtype=options.dtype), folder / "answers.sqlite")
    encoder = CachedEncoder(embedded_encoder(), folder / "vectors.sqlite")
    rows = read(options.records) if options.records.exists() else []
    check_model(rows, llm.name, options.records)
    for name in options.data.split(","):
        rows = [row for row in rows if row["set"] != name]
        parts = {part: asked(name, part, options.questions) for part in PARTS}
        found = [short(p) for questions in parts.values() for q in questions for p in q.passages]
        pool = {(passage.title or "", passage.text): passage for passage in found}
        in_order = [pool[key] for key in sorted(pool)]
        world = World(llm=llm, retriever=DenseRetriever(in_order, encoder))
        for part, questions in parts.items():
            for start in range(0, len(questions), 16):
                rows += answered(name, part, questions[start : start + 16], world)
                print(f"{name} {part} {start + 16}", flush=True)
            write(options.records, rows)


def check_model(
    rows: Sequence[dict[str, Any]], name: str, path: Path, of: Callable[[str], str] = str
) -> None:
    """Ends the program where rows of a file are of another model; models are one by what `of`
    makes of their names."""
    if others := {row["model"] for row in rows if of(row["model"]) != of(name)}:
        sys.exit(f"{path} has answers of {min(others)}, not of {name}: give --records another file")


def in_any_dtype(name: str) -> str:
    """A model's name without its dtype, and the digest of the weights, which differs with that."""
    return re.sub(r"@\w+/\w+/", "@", name)


def answered(
    name: str, part: str, questions: Sequence[Question], world: World
) -> Iterator[dict[str, Any]]:
    settings, cell = GECESettings(), cell_of("single:k=2")
    evidence = run_many([drafting(q.text, settings) for q in questions], world, batch=16)
    found = run_many([cell.method.flow(q, cell.set) for q in questions], world, batch=16)
    for question, one, answer in zip(questions, evidence, found, strict=True):
        both = {"draft": one.draft.text.strip(), "answer": answer.text}
        yield {
            "model": world.llm.name if world.llm else "",
            "set": name,
            "part": part,
            "question": question.text,
            "accepted": question.answers,
            **both,
            "tokens": [
                asdict(replace(token, alternatives=token.alternatives[:2]))
                for token in one.draft.tokens or ()
            ],
            "search": [passage.score for passage in answer.passages],
            "right": {name: bool(contains(text, question.answers)) for name, text in both.items()},
        }


def gradients(options: argparse.Namespace) -> None:
    """The product of each question's gradient with the mean over all of `dev_test`, of the accepted
    answers: the semantics of eq. 2; by the model that drafted, in any dtype."""
    settings, rows = GECESettings.paper(), read(options.records)
    llm = model(options.model, dtype=options.dtype)
    check_model(rows, llm.name, options.records, of=in_any_dtype)
    for name in options.data.split(","):
        own = [row for row in rows if row["set"] == name and row["part"] == "dev_test"]
        questions = [Question(row["question"], tuple(row["accepted"])) for row in own]
        drafts = [draft_of(row) for row in own]
        prompts, references = references_like(questions, drafts, settings)
        along = llm.mean_gradient(prompts, references, layers=settings.layers)
        known = zip(questions, references, strict=True)
        terms = [
            with_gradient_term(Evidence(q.text, Generation(text)), settings, along)
            for q, text in known
        ]
        for row, found in zip(own, run_many(terms, World(llm=llm), batch=16), strict=True):
            assert found.agreement is not None
            row["agreement"] = kept_digits(found.agreement.dot)
        write(options.records, rows)
        print(f"{name}: {len(own)} gradients", flush=True)


def draft_of(row: dict[str, Any]) -> Generation:
    """As the model wrote it."""
    tokens = tuple(
        Token(**{**token, "alternatives": tuple(map(tuple, token["alternatives"]))})
        for token in row["tokens"]
    )
    return Generation("".join(token.text for token in tokens), tokens)


def outcomes(
    rows: list[dict[str, Any]], encoder: Encoder, *, agreement: bool, search: bool = False
) -> list[Outcome]:
    """With `agreement`, right means that draft and answer agree; with `search`, the retriever's
    best score and its lead are signals."""
    vectors = encoder.encode([text for row in rows for text in (row["question"], row["draft"])])
    made = []
    for row, pair in zip(rows, np.asarray(vectors).reshape(len(rows), 2, -1), strict=True):
        first, second = (*row["search"], 0.0, 0.0)[:2]
        extra = {"search_score": -first, "search_margin": second - first} if search else {}
        right, told = row["right"], answers_agree(row["draft"], row["answer"])
        made.append(
            Outcome(
                Evidence(row["question"], draft_of(row), vectors=pair, extra=extra),
                right=told if agreement else right["draft"],
                right_with_retrieval=True if agreement else right["answer"],
                agreement=agreement,
            )
        )
    return made


def sets(rows: list[dict]) -> Iterator[tuple[str, list[dict], list[dict]]]:
    """Each data set with its questions of `train` and of `dev_test`, where it has both."""
    for name in dict.fromkeys(row["set"] for row in rows):
        own = [row for row in rows if row["set"] == name]
        train, test = ([row for row in own if row["part"] == part] for part in PARTS)
        if train and test:
            yield name, train, test


def fit(options: argparse.Namespace) -> None:
    rows, encoder = read(options.records), embedded_encoder()
    for name, train, test in sets(rows):
        hows: dict[str, tuple[int, dict[str, bool]]] = {
            "gate, labels": (len(train), {"agreement": False}),
            "gate, agreement": (len(train), {"agreement": True}),
            "gate, labels and search": (len(train), {"agreement": False, "search": True}),
        }
        hows |= {
            f"gate, {size} labels": (size, {"agreement": False})
            for size in SIZES
            if size < len(train)
        }
        for row in test:
            row["gates"] = {}
        for gate, (size, how) in hows.items():
            known = outcomes(train[:size], encoder, **how)
            fitted, found = fit_outcomes(known, target_accuracy="always")
            for row, one in zip(test, outcomes(test, encoder, **how), strict=True):
                judged = fitted.judge(one.evidence)
                row["gates"][gate] = {
                    "objective": found.objective,
                    "score": kept_digits(judged.score),
                    "retrieve": judged.retrieve,
                }
        everything = outcomes(train + test, encoder, agreement=False)
        evidence = [one.evidence for one in everything]
        names, labels = available_signals(evidence, None), Labels.of(everything)
        columns = features(evidence, names, None)
        failure, _ = _cross_validated(columns, labels, names, GECESettings())
        for row, score in zip(train + test, failure, strict=True):
            row["cross-validated"] = kept_digits(float(score))
        write(options.records, rows)
        print(f"{name}: {len(hows)} gates", flush=True)


def table(options: argparse.Namespace) -> None:
    for name, train, test in sets(read(options.records)):
        if "cross-validated" not in test[0]:
            sys.exit(f"{options.records} has no gates: run fit over it")
        report(name, train, test)


def report(name: str, train: list[dict], test: list[dict]) -> None:
    right, mended = (
        np.array([row["right"][key] for row in test], float) for key in ("draft", "answer")
    )
    exact = [
        np.mean([normalized_exact_match(row[key], row["accepted"]) for row in test])
        for key in ("draft", "answer")
    ]
    agree = np.mean([answers_agree(row["draft"], row["answer"]) for row in train])
    print(
        f"\n## {name}: {len(train)} questions to fit, {len(test)} to judge; "
        f"never {right.mean():.3f} (EM {exact[0]:.3f}), "
        f"always {mended.mean():.3f} (EM {exact[1]:.3f}), "
        f"either {np.maximum(right, mended).mean():.3f}; agreement on {agree:.0%}\n"
        f"{'':<26}{'AUROC':>6}{'area above a random choice':>29}"
        + "".join(f"{f'at {share:.0%}':>9}" for share in SHARES)
    )
    gain, fails = mended - right, 1 - right
    scores = dict[str, np.ndarray]()
    for gate in test[0]["gates"]:
        judged = [row["gates"][gate] for row in test]
        scores[gate] = np.array([one["score"] for one in judged])
        chosen = np.array([one["retrieve"] for one in judged])
        gated = np.where(chosen, mended, right)
        less = paired_bootstrap(gated, mended)
        print(
            f"{gate}: {judged[0]['objective']}; asked to be as good as always: "
            f"{chosen.mean():.1%} retrieve, "
            f"{gated.mean():.3f}, {less.value:+.3f} ({less.low:+.3f} to {less.high:+.3f})"
        )
        if gate == "gate, labels":
            scores |= plain_signals(test)
    if all("agreement" in row for row in test):
        scores |= with_reference(test, EQ_2)
    scores |= {"wrong drafts known": fails, "perfect": gain}
    for row, found in scores.items():
        print(line(row, found, fails, gain, right, mended))
    if "eq. 2" in scores:
        told(test, scores, fails)
    rows = train + test
    all_right, all_mended = (
        np.array([row["right"][key] for row in rows], float) for key in ("draft", "answer")
    )
    gate = np.array([row["cross-validated"] for row in rows])
    over_all = {"gate, cross-validated": gate, **plain_signals(rows)}
    parts = {n: EQ_2[n] for n in ("eq. 2, no semantics", "its numerator")}
    over_all |= with_reference(rows, parts)
    all_gain = all_mended - all_right
    for row, found in over_all.items():
        print(line(f"{row} *", found, 1 - all_right, all_gain, all_right, all_mended))
    for signal in plain_signals(rows):
        more = difference(_area, gate, over_all[signal], all_gain)
        print(f"area of the gate, cross-validated *, over that of {signal} *: {more}")
    probable = np.array([mean_probability(draft_of(row)) for row in rows])
    print(
        f"* over all {len(rows)}: never {all_right.mean():.3f}, "
        f"always {all_mended.mean():.3f}; mean token probability of wrong drafts "
        f"{probable[all_right == 0].mean():.3f}, of right ones "
        f"{probable[all_right == 1].mean():.3f}"
    )


def plain_signals(rows: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    drafts = [Evidence(row["question"], draft_of(row)) for row in rows]
    names = ("mean_logprob", "product", "least_probability")
    return {n: np.array([SIGNALS[n].read(one, None) for one in drafts]) for n in names}


def difference(statistic: Any, scores: Any, others: Any, outcomes: Any) -> str:
    """What a statistic of scores is above that of others, paired over the questions."""
    found = bootstrap_interval(
        scores, others, outcomes, statistic=lambda a, b, y: statistic(a, y) - statistic(b, y)
    )
    return f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def told(rows: Sequence[dict[str, Any]], scores: dict[str, np.ndarray], fails: np.ndarray) -> None:
    """What eq. 2 goes by: its parts, the questions whose gradient pulls against the mean, and how
    far its readings are apart."""
    whole, numerator = scores["eq. 2"], scores["its numerator"]
    products = np.array([row["agreement"] for row in rows])
    by = [spearmanr(whole, part)[0] for part in (numerator, products)]
    print(f"eq. 2: rank correlation with its numerator {by[0]:+.3f}, gradients {by[1]:+.3f}")
    print(largest(whole, numerator))
    opposed, wrong = products < 0, fails == 1
    print(
        f"opposed are {opposed.mean():.1%}, of which {1 - fails[opposed].mean():.0%} are right; "
        f"numerator of wrong drafts {numerator[wrong].mean():.3f}, "
        f"of right ones {numerator[~wrong].mean():.3f}"
    )
    for other in (name for name in EQ_2 if name != "eq. 2"):
        print(f"AUROC of eq. 2 over {other}: {difference(auroc, whole, scores[other], fails)}")
    alike = products > 0
    some = [auroc(scores[n][alike], fails[alike]) for n in ("eq. 2", "eq. 2, no semantics")]
    print("AUROC where the product is above 0: eq. 2 {:.3f}, no semantics {:.3f}".format(*some))


def largest(whole: np.ndarray, numerator: np.ndarray) -> str:
    """How far the fifth with the largest values stands out from the others, as in the paper's
    figure 2, and whether its numerators do too."""
    top = np.zeros(len(whole), dtype=bool)
    top[np.argsort(-whole, kind="stable")[: round(len(whole) / 5)]] = True
    middle = [np.median(part[of]) for part in (whole, numerator) for of in (top, ~top)]
    return (
        "eq. 2: median of the largest fifth {:.3f}, of the others {:.3f}; their numerators "
        "{:.3f} and {:.3f}"
    ).format(*middle)


def with_reference(
    rows: Sequence[dict[str, Any]], kinds: Mapping[str, dict[str, Any]]
) -> dict[str, np.ndarray]:
    """GECE (eq. 2) by the accepted answers, with the settings of each kind."""
    frequencies, drafts = WordFrequencies(), [draft_of(row) for row in rows]
    scores = {}
    for name, changes in kinds.items():
        settings = replace(GECESettings.paper(), **changes)
        scores[name] = np.array(
            [
                gece_score(
                    meteor=quality_of(row["draft"], row["accepted"], settings.quality),
                    mean_probability=mean_probability(draft),
                    word_frequency=frequencies.mean(row["question"]),
                    gradient_agreement=row["agreement"] if settings.semantics else None,
                    settings=settings,
                ).value
                for row, draft in zip(rows, drafts, strict=True)
            ]
        )
    return scores


def line(row: str, scores: Any, fails: Any, gain: Any, right: Any, mended: Any) -> str:
    """AUROC of "the direct answer fails", the area, and accuracy at each share that retrieves."""
    area = bootstrap_interval(scores, gain, statistic=_area, resamples=1000)
    told = f"{row:<26}{auroc(scores, fails):>6.3f}"
    told += f"{area.value:>+9.4f} ({area.low:+.4f}, {area.high:+.4f})"
    for share in SHARES:
        told += f"{mixed(most(scores, share), right, mended).mean():>9.3f}"
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "gradients", "fit", "table"))
    parser.add_argument("model", nargs="?", help="'embedded', a GGUF file, or a folder")
    parser.add_argument("--records", type=Path, help="file of records")
    parser.add_argument("--answers", type=Path, default=Path("runs/gate_sets"))
    parser.add_argument("--questions", type=int, default=200, help="of each part of a data set")
    parser.add_argument("--data", default="nq_distractor,popqa,hotpotqa")
    parser.add_argument("--dtype", default="fast", help='"fast": bfloat16 where the CPU has it')
    options = parser.parse_args()
    if options.what in ("record", "gradients") and not options.model:
        parser.error(f"{options.what} needs a model")
    if options.records is None:
        options.records = RECORDS if options.what == "table" else Path("runs") / RECORDS.name
    {"record": record, "gradients": gradients, "fit": fit, "table": table}[options.what](options)


if __name__ == "__main__":
    main()
