"""The loop on real questions: direct, K samples, the ablations of table 5, and SGIC, for K = 1..5.

On `dev_test` (or `--split`) of nq_distractor and hotpotqa, ten passages each, cut to 60 words:
EM, F1, calls, tokens and milliseconds of every way to answer, with its gain over the direct answer
(paired bootstrap). Then `sgic.fit` on `train`, and what it kept, on `dev_test`. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/sgic_loop.py --model embedded
    LTRAG_DATA=/path/to/data python benchmarks/sgic_loop.py --model embedded --adapter FOLDER
    LTRAG_DATA=/path/to/data python benchmarks/sgic_loop.py --limit 0 --samples equal --out FOLDER

Answers are kept in the cache folder, so a run that was stopped goes on, and any part of it can be
run anywhere. The milliseconds are those of the model when it answered, of a batch each prompt's
share.

With `--out` every question's EM, F1 and costs of every row are written to SET_VARIANT.jsonl
(`sgic_compare.py` holds two such files against each other), and all rounds of K to
SET_VARIANT_run.jsonl (`sgic.read_run` and `analyse`). With `--oracle` the rounds are also asked
with scores that know the truth: does the model make use of scores at all?
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from distractors import SETS, Item, items, model, settings
from sgic_compare import Row, table, write

from ltrag_plugins.flow import Ask, Flow, Step, World, run_many
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.embedded import cache_folder, embedded_encoder
from ltrag_plugins.metrics.answer import contains, f1, normalized_exact_match
from ltrag_plugins.prompts.templates import render_question
from ltrag_plugins.sgic import (
    CalibratedAnswer,
    Calibration,
    FitReport,
    ScoreScale,
    SGICSettings,
    Truth,
    calibrate,
    fit,
    labelled,
    sampled,
    write_run,
)
from ltrag_plugins.sgic.answer import plural
from ltrag_plugins.sgic.fitting import every_way
from ltrag_plugins.types import Generation
from ltrag_plugins.uncertainty import sampled_uncertainties

CUTS = (1, 2, 3)

Models = dict[str, Any]
"""What a `World` and `fit` take: the model and, to score passages, an encoder."""


class Progress:
    """Says how many prompts were answered."""

    def __init__(self, label: str) -> None:
        self.label, self.prompts = label, 0

    def __call__(self, step: Step) -> None:
        if step.reply is None or not isinstance(step.request, Ask):
            return
        self.prompts += len(step.reply)
        print(f"\r{self.label}: {self.prompts} prompts", end="", flush=True)


def way(variant: Any, rounds: int, *, line: bool = True, means: int | None = None) -> SGICSettings:
    """A row of table 5, with the prompts of these benchmarks; with `line` they say what to do with
    earlier answers, which the paper's do not; with `means` the scale has at most so many."""
    paper, ours = SGICSettings.paper(variant), settings(rounds=rounds)
    return replace(
        ours,
        templates=ours.templates if line else replace(ours.templates, about_answers=""),
        earlier=paper.earlier,
        documents=paper.documents,
        choose=paper.choose,
        certain_below=0.0,
        least_gain=None,
        means=means,
    )


def asked_for(variant: Any, options: argparse.Namespace) -> SGICSettings:
    """That row, as the options say."""
    line = not options.no_line
    row = way(variant, options.rounds, line=line, means=options.means)
    return replace(row, source=options.source)


def table_5(name: str, found: list[Item], models: Models, options: argparse.Namespace) -> None:
    for variant in options.variants.split(","):
        last, settings = variant == "documents", asked_for(variant, options)
        _, report = fit(
            [item.question for item in found],
            **models,
            settings=settings,
            cut_to=CUTS if last else (),
            samples=options.samples if last else 0,
            observers=[Progress(f"{name}, {variant}")],
            batch=options.batch,
        )
        print(f"\n{name}, {options.split}, {len(found)} questions, {variant}:\n{report}\n")
        for row in report.variants:  # the report itself shows the best few
            print(
                f"{row.name:<40}  {row.em:.3f}  {row.f1:.3f}  {row.calls:6.1f}  {row.gain.signed}"
            )
        if options.out:
            k = sum(row.kind == "samples" for row in report.variants)
            ways = every(found, models, options.batch, settings, CUTS if last else (), k)
            other = drawn(found, models, options.batch, settings, k) if k else ()
            path = options.out / f"{name}_{variant}.jsonl"
            write([*rows(found, ways), *other], path)
            path = options.out / f"{name}_{variant}_run.jsonl"
            kept_run(found, models, options.batch, settings, report, path)


def every(
    found: Sequence[Item],
    models: Models,
    batch: int,
    settings: SGICSettings,
    cuts: Sequence[int],
    samples: int,
) -> list[Any]:
    """The rows of the report, question by question, from the answers that are kept."""
    drive = partial(run_many, world=World(**models), batch=batch)
    return every_way([i.question for i in found], drive, settings, cut_to=cuts, samples=samples)


def rows(found: Sequence[Item], ways: Sequence[Any]) -> Iterator[Row]:
    """A line for each question and way."""
    for one in ways:
        columns = one.columns
        for i, item in enumerate(found):
            em, overlap, held, calls = (
                float(columns[name][i]) for name in ("em", "f1", "contains", "calls")
            )
            tokens, ms = (
                float(columns[name][i]) if name in columns else None
                for name in ("tokens", "milliseconds")
            )
            about = one.name, item.question.id, one.answers[i].text
            yield Row(*about, em, overlap, calls, tokens, ms, item.type, held)


def drawn(
    found: Sequence[Item], models: Models, batch: int, settings: SGICSettings, samples: int
) -> Iterator[Row]:
    """Of the same samples the least uncertain by the probabilities of the drawn tokens, the other
    reading of eq. 1."""
    asked = [(render_question(item.question), item.question.passages) for item in found]
    flows = [sampled(*one, samples, settings) for one in asked]
    answers = run_many(flows, World(**models), batch=batch)
    for k in range(1, samples + 1):
        for item, answer in zip(found, answers, strict=True):
            said = [one.generation for one in answer.trace[:k]]
            doubts = sampled_uncertainties(said, "drawn")
            text = answer.trace[doubts.index(min(doubts))].text
            tokens = sum((one.prompt_tokens or 0) + (one.completion_tokens or 0) for one in said)
            best = replace(answer, text=text, calls=len(said), tokens=tokens)
            yield _row(f"{plural(k, 'sample')}, by the drawn tokens", item, best, [None])


def kept_run(
    found: Sequence[Item],
    models: Models,
    batch: int,
    settings: SGICSettings,
    report: FitReport,
    path: Path,
) -> None:
    """All K rounds of every question, for an analysis."""
    scale = ScoreScale(settings.estimator, report.means)
    flows = [calibrate(i.question.text, i.question.passages, settings, scale) for i in found]
    answers = run_many(flows, World(**models), batch=batch)
    truths = [Truth(item.gold, item.question.answers) for item in found]
    write_run(labelled(answers, truths, questions=[i.question.text for i in found]), path)


def fitted(name: str, found: list[Item], models: Models, options: argparse.Namespace) -> None:
    """What a fit on other questions of the type kept, on these."""
    known = [item.question for item in items(name, "train", options.fit, options.type)]
    calibration, report = fit(
        known,
        **models,
        settings=replace(asked_for("documents", options), certain_below=20.0),
        observers=[Progress(f"{name}, fit on train")],
        batch=options.batch,
    )
    print(f"\n{name}, train, {len(known)} questions:\n{report}\n")
    direct = replace(calibration, settings=replace(calibration.settings, rounds=0, cut_to=None))
    plain = answered("direct", found, direct, models, options.batch)
    kept = answered(f"kept: {report.kept}", found, calibration, models, options.batch)
    print(f"\n{name}, {options.split}, {len(found)} questions, A direct, B what was kept")
    print(f"{table([({row.id: row for row in plain}, {row.id: row for row in kept})])}\n")
    if options.out:
        write([*plain, *kept], options.out / f"{name}_kept.jsonl")


def answered(
    label: str, found: list[Item], calibration: Calibration, models: Models, batch: int
) -> list[Row]:
    """Each question's answer with these settings, and what it cost."""
    heard: list[list[Generation]] = [[] for _ in found]
    flows = [
        listening(calibrate(q.text, q.passages, calibration.settings, calibration.scale), replies)
        for q, replies in zip((item.question for item in found), heard, strict=True)
    ]
    answers = run_many(flows, World(**models), observers=[Progress(label)], batch=batch)
    return [
        _row(label, item, answer, [reply.seconds for reply in replies])
        for item, answer, replies in zip(found, answers, heard, strict=True)
    ]


def listening(flow: Flow[CalibratedAnswer], heard: list[Generation]) -> Flow[CalibratedAnswer]:
    """The flow; each reply of the model is added to `heard`."""
    try:
        request = next(flow)
        while True:
            reply = yield request
            if isinstance(request, Ask):
                heard += reply
            request = flow.send(reply)
    except StopIteration as done:
        return done.value


def _row(label: str, item: Item, answer: CalibratedAnswer, seconds: Sequence[float | None]) -> Row:
    accepted = item.question.answers
    em, overlap, held = (
        right(answer.text, accepted) for right in (normalized_exact_match, f1, contains)
    )
    known = [one for one in seconds if one is not None]
    ms = 1000 * sum(known) if len(known) == len(seconds) else None
    cost = (answer.calls, answer.tokens, ms)
    return Row(label, item.question.id, answer.text, em, overlap, *cost, item.type, held)


def told_the_truth(
    name: str, found: list[Item], models: Models, options: argparse.Namespace
) -> None:
    """Answers of each round where the scores that the model is shown are true (table 6)."""
    settings = replace(asked_for("documents", options), source="oracle", choose="last")
    questions = [item.question for item in found]
    flows = [
        calibrate(q.text, q.passages, settings, truth=Truth(item.gold, q.answers))
        for item, q in zip(found, questions, strict=True)
    ]
    seen = [Progress(f"{name}, oracle")]
    answers = run_many(flows, World(**models), observers=seen, batch=options.batch)
    ways = [
        [
            _row(
                f"true scores, round {n}",
                i,
                replace(a, text=a.trace[n].text, calls=n + 1, tokens=None),
                [None],
            )
            for i, a in zip(found, answers, strict=True)
        ]
        for n in range(options.rounds + 1)
    ]
    print(
        f"\n{name}, {options.split}, {len(found)} questions, true scores; F1 of each round:", end=""
    )
    print("".join(f" {np.mean([row.f1 for row in way]):.3f}" for way in ways))
    first, *others = [{row.id: row for row in way} for way in ways]
    print(table([(first, other) for other in others]))
    same = [r.text == a.trace[0].text for a in answers for r in a.trace[1:]]
    print(f"rounds that repeat the first answer: {np.mean(same):.3f}\n")
    if options.out:
        write((row for way in ways for row in way), options.out / f"{name}_oracle.jsonl")


def how_many(value: str) -> int | Literal["equal"]:
    """K samples, or "equal"."""
    return "equal" if value == "equal" else int(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--adapter")
    parser.add_argument("--dtype", default="auto", help='"fast": bfloat16 where the CPU has it')
    parser.add_argument("--no-line", action="store_true", help="on earlier answers, as the paper")
    parser.add_argument("--means", type=int, help="most means of the scale; the paper has 1")
    sources, which = ("uncertainty", "encoder"), "of document scores; encoder: MiniLM"
    parser.add_argument("--source", choices=sources, default="uncertainty", help=which)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--split", default="dev_test", help="or train")
    parser.add_argument("--type", default="", help="only questions of this type: bridge, ...")
    parser.add_argument("--variants", default="documents,scores,answers")
    parser.add_argument("--limit", type=int, default=100, help="questions of each set; 0: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--samples", type=how_many, help="K, or 'equal' calls to the dearest row; default: --rounds"
    )
    parser.add_argument("--batch", type=int, default=8, help="prompts of a model call")
    parser.add_argument("--out", type=Path, help="folder for each question's figures")
    parser.add_argument("--fit", type=int, default=100, help="questions of train; 0: leave it out")
    parser.add_argument("--oracle", action="store_true", help="also rounds with true scores")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "sgic.sqlite")
    options = parser.parse_args()
    if options.oracle and options.rounds < 1:
        parser.error(f"--oracle is about rounds; give --rounds 1 or more, not {options.rounds}")
    if options.split == "train" and options.fit:
        parser.error("a fit on train is not judged there: give --fit 0, or leave --split out")
    if options.samples is None:
        options.samples = options.rounds
    local = model(options.model, adapter=options.adapter, dtype=options.dtype)
    encoder = embedded_encoder() if options.source == "encoder" else None
    models: Models = {"llm": CachedLLM(local, options.cache), "encoder": encoder}
    for name in options.sets.split(","):
        found = items(name, options.split, options.limit, options.type)
        if options.variants:
            table_5(name, found, models, options)
        if options.oracle:
            told_the_truth(name, found, models, options)
        if options.fit:
            fitted(name, found, models, options)


if __name__ == "__main__":
    main()
