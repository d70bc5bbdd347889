"""`ltrag sgic ...`: does looking again pay, answer with it, build data to tune a model on."""

from pathlib import Path
from typing import Annotated

import typer

from ltrag_plugins.cli import calibrating_options as own
from ltrag_plugins.cli import options as opt
from ltrag_plugins.cli.finetuning import finetune
from ltrag_plugins.cli.output import say, show, show_json

app = typer.Typer(
    help="How sure is the answer, and can another look mend it?",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command()
def fit(
    questions: own.Labelled,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="CALIBRATION/",
            help="Folder for the calibration; an older one in it is replaced.",
        ),
    ],
    model: opt.Model = "embedded",
    adapter: opt.Adapter = None,
    rounds: own.Rounds = 5,
    estimator: own.EstimatorOption = None,
    shown: own.ShowOption = None,
    metric: Annotated[own.Metric, typer.Option(help="What has to rise for a look to pay.")] = "em",
    level: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="Of the intervals; a gain is above 0 in it.")
    ] = 0.9,
    cut_to: Annotated[
        str,
        typer.Option(
            "--cut-to",
            metavar="M,M,...",
            callback=own.checked_counts,
            help="Also try one look at the M surest documents alone; '' for none.",
        ),
    ] = "1,2,3",
    samples: Annotated[
        int, typer.Option(min=0, help="Hold so many sampled answers against them.")
    ] = 0,
    method: Annotated[
        own.Method, typer.Option(help="Of P(wrong); isotonic wants several hundred questions.")
    ] = "platt",
    document_words: own.DocumentWords = None,
    answer_tokens: own.AnswerTokens = None,
    seed: Annotated[int, typer.Option(help="Of folds, bootstrap and samples.")] = 0,
    pool: own.Pool = None,
    limit: opt.Limit = None,
    cache: opt.Cache = None,
    batch: opt.Batch = 16,
    as_data: opt.Json = False,
) -> None:
    """Ask the model in all ways, keep the cheapest that pays (or none), save the calibration.

    [dim]ltrag sgic fit questions.jsonl --cache answers.sqlite --out calibration/[/]
    """
    from ltrag_plugins.cli import calibrating

    report = calibrating.fit(
        calibrating.Job(model, questions, pool, limit, cache, batch),
        out,
        own.Changes(
            rounds=rounds,
            estimator=estimator,
            show=shown,
            document_words=document_words,
            answer_tokens=answer_tokens,
            seed=seed,
        ),
        metric=metric,
        level=level,
        cut_to=own.counts(cut_to),
        samples=samples,
        method=method,
    )
    say(f"the calibration is in {out}")
    if as_data:
        show_json(report.as_dict(), indent=1)
    else:
        show(str(report))


@app.command()
def answer(
    file: own.QuestionsOrPassages = None,
    question: Annotated[
        str | None, typer.Option("--question", help="One question, in quotes.")
    ] = None,
    calibration: own.CalibrationFolder = None,
    model: own.AnswerModel = None,
    adapter: opt.Adapter = None,
    rounds: own.AnswerRounds = None,
    estimator: own.AnswerEstimator = None,
    shown: own.ShowOption = None,
    certain_below: own.CertainBelow = None,
    choose: own.ChooseOption = None,
    cut_to: own.CutTo = None,
    document_words: own.DocumentWords = None,
    answer_tokens: own.AnswerTokens = None,
    max_calls: own.MaxCalls = None,
    max_tokens: own.MaxTokens = None,
    refuse_above: own.RefuseAbove = None,
    refuse_p_wrong_above: own.RefusePWrongAbove = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the samples of 'agreement'.", show_default="0")
    ] = None,
    pool: own.Pool = None,
    limit: opt.Limit = None,
    cache: opt.Cache = None,
    batch: opt.Batch = 16,
    records: own.Records = None,
    as_data: Annotated[
        bool, typer.Option("--json", help="JSON lines in place of text, one for each question.")
    ] = False,
) -> None:
    """Answer from passages, say how sure that is, and look again where it is not.

    [dim]ltrag sgic answer passages.jsonl --question "who wrote Emma?"[/]
    [dim]ltrag sgic answer questions.jsonl --calibration calibration/ --json > answers.jsonl[/]
    """
    if file is None and question is None:
        raise typer.BadParameter("give QUESTIONS.jsonl, or --question and PASSAGES.jsonl")
    if question is not None and (pool is not None or limit is not None):
        raise typer.BadParameter("--pool and --limit are for QUESTIONS.jsonl, not for --question")
    if question is not None and records is not None:
        raise typer.BadParameter("--records is for QUESTIONS.jsonl, not for --question")
    from ltrag_plugins.cli import calibrating, calibrating_answers, calibrating_output

    answers = calibrating_answers.answers(
        calibrating.Job(model, file, pool, limit, cache, batch),
        question,
        calibration,
        own.Changes(
            rounds=rounds,
            estimator=estimator,
            show=shown,
            certain_below=certain_below,
            choose=choose,
            cut_to=cut_to,
            document_words=document_words,
            answer_tokens=answer_tokens,
            max_calls=max_calls,
            max_tokens=max_tokens,
            seed=seed,
        ),
        above=refuse_above,
        p_wrong_above=refuse_p_wrong_above,
        records=records,
    )
    refused: list[bool] = []
    for one in answers:
        if as_data:
            show_json(calibrating_output.answer_record(one))
        else:
            show(("\n" if refused else "") + calibrating_output.answer_text(one))
        refused.append(one.refused)
    if any(refused):
        say(f"{sum(refused)} of {len(refused)} answers were kept back")
    if records is not None:
        say(f"the records are in {records}")


@app.command()
def build(
    questions: own.Labelled,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DATA/", help="Folder for train.jsonl and manifest.json."),
    ],
    model: opt.Model = "embedded",
    adapter: opt.Adapter = None,
    form: Annotated[
        own.Form,
        typer.Option(
            help="sgic: prompts of the looks. direct: plain prompts with the accepted answers, for "
            "the baseline; no model is asked."
        ),
    ] = "sgic",
    include_direct: Annotated[
        own.IncludeDirect,
        typer.Option(
            help="Add the plain prompts of all questions, of those that got right, or none (the "
            "paper)."
        ),
    ] = "all",
    keep_wrong: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of the questions that never got right that stay, with their accepted "
            "answers.",
        ),
    ] = 0.0,
    right: Annotated[own.Metric, typer.Option(help="When an answer is right.")] = "em",
    right_from: Annotated[
        float, typer.Option(min=0.01, max=1, help="With '--right f1': the least F1 that is right.")
    ] = 0.8,
    rounds: own.Rounds = 5,
    estimator: own.EstimatorOption = None,
    shown: own.ShowOption = None,
    document_words: own.DocumentWords = None,
    answer_tokens: own.AnswerTokens = None,
    seed: Annotated[int, typer.Option(help="Of samples and of --keep-wrong.")] = 0,
    pool: own.Pool = None,
    limit: opt.Limit = None,
    cache: opt.Cache = None,
    batch: opt.Batch = 16,
    as_data: opt.Json = False,
) -> None:
    """Ask each question in all rounds, and write the prompts that a model can learn from.

    The prompt of a question's first right answer is learned.

    What was stopped goes on with the same command.

    [dim]ltrag sgic build train.jsonl --model hf:ORG/NAME --out data/[/]
    """
    from ltrag_plugins.cli import calibrating, calibrating_output

    dataset = calibrating.build(
        calibrating.Job(model, questions, pool, limit, cache, batch),
        out,
        own.Changes(
            rounds=rounds,
            estimator=estimator,
            show=shown,
            document_words=document_words,
            answer_tokens=answer_tokens,
            seed=seed,
        ),
        calibrating.CorpusSettings(
            form=form,
            include_direct=include_direct,
            keep_wrong=keep_wrong,
            right=right,
            right_from=right_from,
            seed=seed,
        ),
    )
    say(f"the training data is in {out}")
    if as_data:
        show_json(dict(dataset.manifest), indent=1)
    else:
        show(calibrating_output.dataset_report(dataset))


app.command()(finetune)
