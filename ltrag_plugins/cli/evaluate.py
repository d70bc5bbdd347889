"""`ltrag evaluate`: who answers best, at what cost, with and without a gate."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from ltrag_plugins.cli import options as opt
from ltrag_plugins.cli.output import say, show, show_json
from ltrag_plugins.errors import InvalidInput


def _names(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def evaluate(
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="RUN/", help="Folder of the run; a run that was stopped goes on."
        ),
    ],
    questions: Annotated[
        Path | None,
        typer.Argument(
            metavar="QUESTIONS.jsonl",
            help='One JSON object a line: {"question": ..., "answers": [...], "id": ...}; '
            "may be gzipped (.gz).",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="QUESTIONS.jsonl", help="The same file, named by an option."
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, with commas between them; 'ltrag methods' lists them, [bold]all[/] is "
            "every one that what you give is enough for, and may stand among others. "
            "[bold]single:k=5[/] sets what 'ltrag methods single' lists."
        ),
    ] = "direct,single",
    gate: Annotated[
        str,
        typer.Option(
            metavar="none|gece|GATE/",
            help="Run each method behind a gate too: [bold]gece[/] fits one on --labelled, a "
            "folder is one that 'ltrag gate fit' wrote.",
        ),
    ] = "none",
    rate: Annotated[
        float, typer.Option(min=0, max=1, help="For --gate gece: share that may retrieve.")
    ] = 0.2,
    head: Annotated[
        Path | None,
        typer.Option(
            metavar="HEAD/",
            help="For the method dur: a head that 'ltrag dur train' wrote. Without it, the "
            "encoder's own similarity.",
        ),
    ] = None,
    model: opt.Model = "embedded",
    adapter: opt.Adapter = None,
    encoder: opt.Encoder = "none",
    passages: Annotated[
        Path | None,
        typer.Option(
            metavar="POOL.jsonl",
            help="Passages to search. Without it, all that stand in QUESTIONS.jsonl and in "
            "--labelled.",
        ),
    ] = None,
    search: Annotated[
        opt.Search, typer.Option(help="By words (BM25) or by the encoder's vectors.")
    ] = "bm25",
    labelled: Annotated[
        Path | None,
        typer.Option(
            metavar="OTHERS.jsonl",
            help="Other questions with answers, for methods and gates that learn.",
        ),
    ] = None,
    labelled_limit: Annotated[
        int | None, typer.Option(min=1, help="Learn from the first so many of them.")
    ] = None,
    metrics: Annotated[
        str, typer.Option(help="Measures, with commas; the first decides easy and hard.")
    ] = "em,f1,rouge1,bleu4",
    compare: Annotated[
        str | None, typer.Option(help="The row that gains are over; by default the first.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run what draws at random so many times.")] = 1,
    recorded: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="ANSWERS.jsonl",
            help="Answers that a model gave elsewhere, without retrieval and with it, in the place "
            "of --model; may be given several times. For direct, single, gate-frequency, skr and "
            "--gate.",
        ),
    ] = None,
    recorded_fields: Annotated[
        str, typer.Option(help="Their fields in a line, with a comma between them.")
    ] = "direct,retrieved",
    limit: opt.Limit = None,
    batch: Annotated[int, typer.Option(min=1, help="Questions that run side by side.")] = 16,
    engine: Annotated[
        Literal["here", "ray"],
        typer.Option(help="Answer in this process, or in workers of Ray (extra 'ray')."),
    ] = "here",
    workers: Annotated[int, typer.Option(min=1, help="For --engine ray: processes.")] = 2,
    trace: Annotated[
        bool, typer.Option("--trace", help="Keep every prompt and reply in the records.")
    ] = False,
    as_data: opt.Json = False,
) -> None:
    """Answer every question in every way, and show who was right at what cost.

    [dim]ltrag evaluate questions.jsonl --methods direct,single,ircot --out run/[/]
    """
    from ltrag_plugins.cli import evaluating

    given = [path for path in (questions, data) if path is not None]
    if len(given) != 1:
        raise InvalidInput(
            "name the file of questions once: ltrag evaluate QUESTIONS.jsonl ..., or "
            "--data QUESTIONS.jsonl"
        )
    names = _names(methods)
    if not names:
        raise InvalidInput("name at least one method with --methods; 'ltrag methods' lists them")
    out = out.expanduser()
    summary = evaluating.evaluate(
        evaluating.Asked(given[0], labelled, passages, limit, labelled_limit),
        out,
        methods=names,
        gate=gate,
        rate=rate,
        head=head,
        parts=evaluating.Parts(
            model, encoder, search, tuple(recorded or ()), _names(recorded_fields)
        ),
        metrics=_names(metrics),
        compared=compare,
        seeds=seeds,
        batch=batch,
        trace=trace,
        workers=workers if engine == "ray" else 0,
    )
    say(f"the records are in {out}")
    if as_data:
        show_json(summary.as_dict(), indent=1)
    else:
        show(str(summary))
    if any(row.failed for row in summary.rows):
        raise typer.Exit(1)


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="METHOD", help="List the settings of this one.")
    ] = None,
    as_data: opt.Json = False,
) -> None:
    """List the methods that 'ltrag evaluate' runs, or the settings of one.

    [dim]ltrag methods single[/]
    """
    from ltrag_plugins.cli import evaluating

    rows = evaluating.listed(name)
    if as_data:
        show_json(rows, indent=1)
        return
    wide = 2 + max(len(row["method"]) for row in rows)
    for row in rows:
        show(f"{row['method']:<{wide}}{row['summary']} ({row['source']})")
    if name is not None:
        for setting, value in rows[0]["settings"].items():
            show(f"  {setting}={json.dumps(value, ensure_ascii=False)}")
