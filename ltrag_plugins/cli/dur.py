"""`ltrag dur ...`: train a ranking head, hold it against other rankers, rank with it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ltrag_plugins.cli import options as opt
from ltrag_plugins.cli.output import say, show, show_json, show_table

app = typer.Typer(
    help="Which examples or passages help this model, and how many?",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_FILES = (
    "CANDIDATES.jsonl are solved examples (questions with 'answers') or passages (with 'text') "
    "that all questions share; QUESTIONS.jsonl are questions with 'answers', one JSON object a "
    "line. Both may be gzipped (.gz). With --own-passages CANDIDATES.jsonl may be left out."
)


@app.command()
def train(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="CANDIDATES.jsonl QUESTIONS.jsonl", help=_FILES, show_default=False),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="HEAD/", help="Folder for the head; an older head in it is replaced."
        ),
    ],
    model: opt.Model = "embedded",
    adapter: opt.Adapter = None,
    encoder: opt.TrainingEncoder = "embedded",
    own_passages: opt.OwnPassages = False,
    prompts: Annotated[
        opt.Format | None,
        typer.Option(
            "--format",
            help="What a prompt shows: Q question, O options, S statement (the context), A answer; "
            "or passages.",
            show_default="all that the candidates have",
        ),
    ] = None,
    preset: Annotated[
        opt.Preset,
        typer.Option(
            help="Settings to begin with: ours, the paper's algorithm 1, its authors' code "
            "(paper-batch), or PromptPG."
        ),
    ] = "default",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the questions.", show_default="10")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(min=1, help="K: most shots in a prompt.", show_default="5")
    ] = None,
    preselect: Annotated[
        opt.Preselect | None,
        typer.Option(
            help="Who chooses the 20 candidates that are ranked for a question; none: all are.",
            show_default="the preset's",
        ),
    ] = None,
    reward: Annotated[
        opt.Reward | None,
        typer.Option(help="What the model's reply is worth.", show_default="the preset's"),
    ] = None,
    option_calibration: Annotated[
        opt.OptionCalibration | None,
        typer.Option(
            help="Take out what the model thinks of the options whatever the question.",
            show_default="none",
        ),
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.9,
            help="Share of the questions that choose head and number of shots; 0: nothing does.",
            show_default="the preset's",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the head, the order and the draws.", show_default="0")
    ] = None,
    max_calls: Annotated[
        int | None,
        typer.Option(min=1, help="Begin no batch once so many prompts were sent."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Begin no batch once so many tokens were read and written."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Written after each batch; the same command goes on from what is there.",
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Draw shots, loss and turns of the training there."),
    ] = None,
    limit: opt.Limit = None,
    cache: opt.HeadCache = None,
    as_data: opt.Json = False,
) -> None:
    """Ask the model with more and more shots, learn which ones help, save the head.

    [dim]ltrag dur train examples.jsonl questions.jsonl --checkpoint run/ --out head/[/]
    """
    _check_count(files, own_passages)
    from ltrag_plugins.cli import ranking

    trained = ranking.train(
        ranking.Job(files, own_passages, limit, cache),
        out,
        model=model,
        encoder=encoder,
        preset=preset,
        changes=ranking.Changes(
            format=prompts,
            epochs=epochs,
            shots=shots,
            preselect=preselect,
            reward=reward,
            option_calibration=option_calibration,
            held_out=held_out,
            seed=seed,
        ),
        bounds=ranking.Bounds(max_calls, max_tokens),
        checkpoint=checkpoint,
        pictures=pictures,
    )
    say(f"the head is in {out}")
    if as_data:
        show_json(ranking.train_record(trained), indent=1)
    else:
        show(ranking.train_report(trained))


@app.command()
def evaluate(
    head: Annotated[
        Path,
        typer.Argument(
            metavar="HEAD/", help="Folder that 'ltrag dur train' wrote.", show_default=False
        ),
    ],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="CANDIDATES.jsonl QUESTIONS.jsonl", help=_FILES, show_default=False),
    ],
    model: opt.HeadModel = None,
    adapter: opt.Adapter = None,
    encoder: opt.HeadEncoder = None,
    own_passages: opt.OwnPassages = False,
    shots: Annotated[
        int | None, typer.Option(min=1, help="Shots in a prompt.", show_default="the head's K")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random shots.")] = 0,
    limit: opt.Limit = None,
    cache: opt.HeadCache = None,
    as_data: opt.Json = False,
) -> None:
    """What the model answers with the head's shots, and with those of plain rankers.

    [dim]ltrag dur evaluate head/ examples.jsonl test.jsonl[/]
    """
    _check_count(files, own_passages)
    from ltrag_plugins.cli import ranking

    found = ranking.evaluate(
        ranking.Job(files, own_passages, limit, cache),
        head,
        model=model,
        encoder=encoder,
        shots=shots,
        seed=seed,
    )
    record = ranking.evaluation_record(found)
    if as_data:
        show_json(record, indent=1)
        return
    columns = ["shots by", "accuracy", "macro-F1", "p(gold)", "easy", "hard", "shots"]
    show_table(columns, (_row(name, scores) for name, scores in record["rankers"].items()))
    show(
        f"{record['questions']} questions; without shots {record['easy_questions']} are right "
        "(easy), the others wrong (hard)"
    )


def _row(name: str, scores: dict[str, Any]) -> list[str]:
    shares = [scores[field] for field in ("accuracy", "macro_f1", "p_gold", "easy", "hard")]
    told = ["" if share is None else f"{share:.3f}" for share in shares]
    return [name, *told, f"{scores['shots']:.2f}"]


@app.command()
def rank(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="HEAD/ CANDIDATES.jsonl",
            help="The folder that 'ltrag dur train' wrote (not with --untrained), and what is to "
            "be ranked: passages (with 'text') or questions, one JSON object a line.",
            show_default=False,
        ),
    ],
    query: Annotated[str, typer.Option("--query", help="The question, in quotes.")],
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Plain similarity of the encoder's vectors.")
    ] = False,
    top_n: Annotated[
        int | None, typer.Option("--top-n", min=1, help="Most to show.", show_default="all")
    ] = None,
    sigma: Annotated[
        str | None,
        typer.Option(
            metavar="0..1|trained",
            callback=opt.checked_sigma,
            help="Leave out what scores at most this; 'trained' is the threshold at the end of "
            "the training.",
            show_default="0",
        ),
    ] = None,
    encoder: opt.HeadEncoder = None,
    as_data: opt.Json = False,
) -> None:
    """The passages or examples of a file, the most helpful first.

    [dim]ltrag dur rank head/ passages.jsonl --query "who wrote Emma?" --top-n 3[/]
    """
    if len(files) != (1 if untrained else 2):
        raise typer.BadParameter(
            "give CANDIDATES.jsonl alone with --untrained, else HEAD/ CANDIDATES.jsonl"
        )
    from ltrag_plugins.cli import ranking

    ranked = ranking.rank(
        None if untrained else files[0],
        files[-1],
        query,
        encoder=encoder,
        top_n=top_n,
        sigma=sigma,
    )
    records = [ranking.ranked_record(*pair) for pair in ranked]
    if as_data:
        show_json({"query": query, "ranked": records}, indent=1)
        return
    rows = ([_short(r), r["id"], f"{r['score']:.4f}"] for r in records)
    show_table(["candidate", "id", "score"], rows)


def _short(record: dict[str, Any], most: int = 72) -> str:
    text = " ".join(f"{record.get('title', '')} {record['text']}".split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _check_count(files: list[Path], own_passages: bool) -> None:
    if len(files) > 2 or len(files) < (1 if own_passages else 2):
        raise typer.BadParameter(
            "give CANDIDATES.jsonl and QUESTIONS.jsonl; with --own-passages QUESTIONS.jsonl alone "
            "will do"
        )
