"""`ltrag gate ...`: does this question need retrieval at all?"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ltrag_plugins.cli import io
from ltrag_plugins.cli.models import load_encoder, load_llm, noted, write_notes
from ltrag_plugins.cli.options import Opt, changed, option, utf8
from ltrag_plugins.data import read_questions
from ltrag_plugins.types import Question

if TYPE_CHECKING:  # numpy behind them would slow --help down
    from contextlib import AbstractContextManager

    from ltrag_plugins.flow import Observer
    from ltrag_plugins.gece import GECEGate, GECESettings

gate_app = typer.Typer(
    help="Does this question need retrieval at all?",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_Gate = Annotated[Path, option("Data", "Folder that 'ltrag gate fit' wrote.", metavar="GATE/")]


@gate_app.command("fit")
def _fit(
    questions: Opt.Questions,
    out: Opt.Out,
    passages: Annotated[Path | None, option("Data", "Passages to search for an answer.")] = None,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    encoder: Opt.Encoder = "none",
    rate: Annotated[
        float | None,
        option("Method", "Share of questions that may retrieve (0.2).", min=0, max=1),
    ] = None,
    accuracy: Annotated[
        float | None,
        option("Method", "In place of --rate: the least share of right answers.", min=0, max=1),
    ] = None,
    k: Annotated[int, option("Method", "Passages shown for an answer.", "--k", min=1)] = 3,
    words: Opt.Set = None,
    seed: Opt.Seed = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    as_data: Opt.Json = False,
) -> None:
    """Ask the model every question, learn when its own answers fail, save the gate.

    [dim]ltrag gate fit questions.jsonl --passages pool.jsonl.gz --rate 0.2 --out gate/[/]
    """
    if rate is not None and accuracy is not None:
        raise typer.BadParameter("give --rate or --accuracy, not both")
    from ltrag_plugins.flow import Ask
    from ltrag_plugins.gece import GECEGate, GECESettings
    from ltrag_plugins.gece.fit import check_count
    from ltrag_plugins.methods.single import single_retrieval
    from ltrag_plugins.retrieval.bm25 import BM25Retriever

    settings = changed(GECESettings(), words, seed=seed)
    io.checked_folder(out)
    found = _labelled(questions, settings, limit)
    check_count(len(found))
    pool = io.pool_of(passages, found)
    llm, vectors = load_llm(model, cache=cache), load_encoder(encoder)
    with _progress(len(found), settings, ("with retrieval", Ask, len(found))) as observer:
        gate = GECEGate.fit(
            found,
            llm=llm,
            encoder=vectors,
            target_rate=rate,
            target_accuracy=accuracy,
            retriever=BM25Retriever(pool, engine="auto") if pool else None,
            retrieving=partial(single_retrieval, k=k) if pool else None,
            settings=settings,
            observers=[observer],
            batch=batch,
        )
    gate.save(out)
    write_notes(out, model, encoder)
    io.say(f"the gate is in {out}")
    io.show(gate.report.as_dict() if as_data else str(gate.report))


@gate_app.command("score")
def _score(
    questions: Opt.Questions,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    words: Opt.Set = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    out: Annotated[Path | None, option("Output", "JSON lines, in place of stdout.")] = None,
    as_data: Opt.Json = False,
) -> None:
    """The paper's GECE of each question against its answers, with its ingredients.

    [dim]ltrag gate score questions.jsonl --limit 10[/]
    """
    from ltrag_plugins.artifacts import replace_file
    from ltrag_plugins.gece import GECESettings, score_questions
    from ltrag_plugins.gece.score import gradient_llm

    settings = changed(GECESettings(), words)
    if out is not None:
        io.checked_file(out)
    found = _labelled(questions, settings, limit)
    llm = load_llm(model, cache=cache)
    if settings.semantics:
        gradient_llm(llm)  # refused before a draft is paid for
    with _progress(len(found), settings) as observer:
        scores = score_questions(
            found, llm=llm, settings=settings, observers=[observer], batch=batch
        )
    records = []
    for question, score in zip(found, scores, strict=True):
        ingredients = asdict(score)
        # the field is called `meteor`, whatever quality stands in METEOR's place
        value = {"gece": ingredients.pop("value"), "quality": settings.quality}
        records.append({"id": question.id, "question": question.text} | value | ingredients)
    if out is not None:
        lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records]
        replace_file(out, "".join(f"{line}\n" for line in lines).encode())
        io.say(f"{len(records)} scores are in {out}")
    elif as_data:
        for record in records:
            io.show(record, indent=None)
    else:
        quality = {"chrf": "chrF", "ter": "1 - TER"}.get(settings.quality, "METEOR")
        columns = ["question", "GECE", quality, "mean p", "word freq.", "gradient"]
        io.show_table(columns, map(_row, records))
        if floored := sum(record["floored"] for record in records):
            io.show(
                f"* {floored} of {len(records)}: the denominator is at its floor, so the score "
                "is as large as it gets (the question pulls against the others)"
            )


@gate_app.command("explain")
def _explain(
    question: Annotated[
        str, typer.Argument(callback=utf8, help="One question.", show_default=False)
    ],
    gate: _Gate,
    model: Opt.NotedModel = None,
    encoder: Opt.NotedEncoder = None,
    as_data: Opt.Json = False,
) -> None:
    """Whether one question needs retrieval, and what speaks for it.

    [dim]ltrag gate explain "who wrote Emma?" --gate gate/[/]
    """
    loaded = _load(gate, model, encoder)
    decision = loaded.decide(question)
    if as_data:
        asked = {"question": decision.question, "answer": decision.answer}
        io.show(asked | decision.as_metadata())
    else:
        io.show(loaded.explanation(decision))


@gate_app.command("decide")
def _decide(
    questions: Opt.Questions,
    gate: _Gate,
    limit: Opt.Limit = None,
    model: Opt.NotedModel = None,
    encoder: Opt.NotedEncoder = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
) -> None:
    """The decision for each question of a file, as JSON lines, while they come.

    [dim]ltrag gate decide questions.jsonl --gate gate/ > decisions.jsonl[/]
    """
    from ltrag_plugins.prompts.question import render_question

    found = read_questions(questions)[:limit]
    loaded = _load(gate, model, encoder, cache)
    settings, retrieving = loaded.fitted.settings, 0
    _check_askable(questions, found, settings)
    with _progress(len(found), settings) as observer:
        for start in range(0, len(found), batch):
            part = found[start : start + batch]
            decisions = loaded.decide_many([*map(render_question, part)], observers=[observer])
            for one, decision in zip(part, decisions, strict=True):
                asked = {"id": one.id, "question": one.text, "answer": decision.answer}
                io.show(asked | decision.as_metadata(), indent=None)
                retrieving += decision.retrieve
    io.say(f"{retrieving} of {len(found)} questions retrieve")


def _labelled(path: Path, settings: "GECESettings", limit: int | None) -> list[Question]:
    questions = read_questions(path, require_answers=True)[:limit]
    _check_askable(path, questions, settings)
    return questions


def _check_askable(path: Path, questions: Sequence[Question], settings: "GECESettings") -> None:
    from ltrag_plugins.gece.draft import askable_question
    from ltrag_plugins.prompts.question import render_question

    def check(question: Question) -> object:
        return askable_question(render_question(question), settings.max_words)

    io.check_records(path, questions, check)


def _load(
    folder: Path, model: str | None, encoder: str | None, cache: Path | None = None
) -> "GECEGate":
    from ltrag_plugins.gece import GECEGate

    model, encoder = noted(folder, "gate.json", "gate fit", model, encoder)
    llm, vectors = load_llm(model, cache=cache), load_encoder(encoder)
    with io.working("loading the gate"):
        return GECEGate.load(folder, llm=llm, encoder=vectors)


def _progress(
    count: int, settings: "GECESettings", *more: tuple[str, type, int]
) -> "AbstractContextManager[Observer]":
    from ltrag_plugins.flow import Agree, Ask, Embed

    drafts = ("drafts", Ask, count * (1 + settings.samples))
    return io.stages(drafts, ("embeddings", Embed, 2 * count), ("gradients", Agree, count), *more)


def _row(record: dict[str, Any]) -> list[str]:
    gradient = record["gradient_agreement"]
    return [
        record["question"],
        f"{record['gece']:.3g}{'*' if record['floored'] else ' '}",
        f"{record['meteor']:.3f}",
        f"{record['mean_probability']:.3f}",
        f"{record['word_frequency']:.2e}",
        "" if gradient is None else f"{gradient:.3g}",
    ]
