"""`ltrag gate ...`: fit a gate, look at its scores, ask it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ltrag_plugins.cli import options as opt
from ltrag_plugins.cli.output import (
    as_json,
    checked_file,
    say,
    show,
    show_json,
    show_table,
    write_lines,
)
from ltrag_plugins.metrics.answer import Correct

app = typer.Typer(
    help="Does this question need retrieval at all?",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command()
def fit(
    questions: opt.Questions,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="GATE/", help="Folder for the gate; an older gate in it is replaced."
        ),
    ],
    model: opt.Model = "embedded",
    adapter: opt.Adapter = None,
    encoder: opt.Encoder = "none",
    rate: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Share of questions that may retrieve.", show_default="0.2"
        ),
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="In place of --rate: the least share of answers that are right."
        ),
    ] = None,
    passages: Annotated[
        Path | None,
        typer.Option(
            metavar="POOL.jsonl",
            help="Passages to search; the gate then learns where retrieval helps. Without it, the "
            "passages in QUESTIONS.jsonl, if there are any.",
        ),
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Passages shown for an answer.")] = 3,
    correct: Annotated[Correct, typer.Option(help="When an answer counts as right.")] = "contains",
    scorer: Annotated[
        str,
        typer.Option(
            help="What is thresholded: fitted (all signals), gece (the formula), or one signal."
        ),
    ] = "fitted",
    gradients: Annotated[
        opt.Gradients, typer.Option(help="Whether the gate reads the gradient term.")
    ] = "never",
    agreement: Annotated[opt.Agreement, typer.Option(help="How gradients are compared.")] = "dot",
    without_semantics: Annotated[
        bool,
        typer.Option(
            "--without-semantics", help="For --scorer gece: the formula without the gradient term."
        ),
    ] = False,
    tier: Annotated[
        opt.Tier,
        typer.Option(
            help="What may be read of a draft: token probabilities if all have them (auto), "
            "no less than those (probabilities), or its text alone (text)."
        ),
    ] = "auto",
    samples: Annotated[
        int, typer.Option(min=0, help="Further drafts, for models without token probabilities.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of folds, bootstrap and samples.")] = 0,
    limit: opt.Limit = None,
    cache: opt.Cache = None,
    batch: opt.Batch = 16,
    as_data: opt.Json = False,
) -> None:
    """Ask the model every question, learn when its own answers fail, save the gate.

    [dim]ltrag gate fit questions.jsonl --passages pool.jsonl.gz --rate 0.2 --out gate/[/]
    """
    if rate is not None and accuracy is not None:
        raise typer.BadParameter("give --rate or --accuracy, not both")
    from ltrag_plugins.cli import gating

    gate = gating.fit(
        gating.Job(questions, cache, limit, batch),
        out,
        model=model,
        encoder=encoder,
        rate=rate,
        accuracy=accuracy,
        passages=passages,
        k=k,
        settings=gating.GECESettings(
            correct=correct,
            scorer=scorer,
            gradients=gradients,
            agreement=agreement,
            semantics=not without_semantics,
            tier=tier,
            samples=samples,
            seed=seed,
        ),
    )
    say(f"the gate is in {out}")
    if as_data:
        show_json(gate.report.as_dict(), indent=1)
    else:
        show(str(gate.report))


@app.command()
def score(
    questions: opt.Questions,
    model: opt.Model = "embedded",
    adapter: opt.Adapter = None,
    quality: Annotated[opt.Quality, typer.Option(help="The metric in METEOR's place.")] = "meteor",
    without_statistics: Annotated[
        bool, typer.Option("--without-statistics", help="Leave the word frequency out.")
    ] = False,
    without_semantics: Annotated[
        bool,
        typer.Option(
            "--without-semantics", help="Leave the gradients out; needs no local weights then."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.jsonl", help="JSON lines there, nothing on stdout."),
    ] = None,
    limit: opt.Limit = None,
    cache: opt.Cache = None,
    batch: opt.Batch = 16,
    as_data: Annotated[
        bool, typer.Option("--json", help="JSON lines in place of a table.")
    ] = False,
) -> None:
    """The paper's GECE of each question against its answers, with its ingredients.

    [dim]ltrag gate score questions.jsonl --limit 10[/]
    """
    from ltrag_plugins.cli import gating

    if out is not None:
        checked_file(out)
    settings = gating.GECESettings(
        quality=quality, statistics=not without_statistics, semantics=not without_semantics
    )
    scored = gating.score(gating.Job(questions, cache, limit, batch), model, settings)
    records = [gating.score_record(question, found, settings) for question, found in scored]
    if out is not None:
        write_lines(out, map(as_json, records))
        say(f"{len(records)} scores are in {out}")
    elif as_data:
        for record in records:
            show_json(record)
    else:
        columns = ["question", "GECE", QUALITIES[quality], "mean p", "word freq.", "gradient"]
        show_table(columns, map(_row, records))
        floored = sum(record["floored"] for record in records)
        if floored:
            show(
                f"* {floored} of {len(records)}: the denominator is at its floor, so the score "
                "is as large as it gets (the question pulls against the others)"
            )


QUALITIES = {"meteor": "METEOR", "chrf": "chrF", "ter": "1 - TER"}


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


@app.command()
def explain(
    question: Annotated[str, typer.Argument(help="One question, in quotes.", show_default=False)],
    gate: opt.Gate,
    model: opt.GateModel = None,
    adapter: opt.Adapter = None,
    encoder: opt.GateEncoder = None,
    as_data: opt.Json = False,
) -> None:
    """Whether one question needs retrieval, and what speaks for it.

    [dim]ltrag gate explain "who wrote Emma?" --gate gate/[/]
    """
    from ltrag_plugins.cli import gating

    loaded = gating.load_gate(gate, model, encoder)
    decision = gating.decide(loaded, question)
    if as_data:
        record = gating.decision_record(gating.Question(decision.question), decision)
        show_json({name: value for name, value in record.items() if name != "id"}, indent=1)
    else:
        show(gating.explained(loaded, decision))


@app.command()
def decide(
    questions: opt.Questions,
    gate: opt.Gate,
    model: opt.GateModel = None,
    adapter: opt.Adapter = None,
    encoder: opt.GateEncoder = None,
    limit: opt.Limit = None,
    cache: opt.Cache = None,
    batch: opt.Batch = 16,
) -> None:
    """The decision for each question of a file, as JSON lines, while they come.

    [dim]ltrag gate decide questions.jsonl --gate gate/ > decisions.jsonl[/]
    """
    from ltrag_plugins.cli import gating

    job = gating.Job(questions, cache, limit, batch)
    retrieving = []
    for question, decision in gating.decisions(job, gate, model, encoder):
        show_json(gating.decision_record(question, decision))
        retrieving.append(decision.retrieve)
    say(f"{sum(retrieving)} of {len(retrieving)} questions retrieve")
