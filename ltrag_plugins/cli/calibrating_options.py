"""Options of the commands of `ltrag sgic`, and the choices they offer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from ltrag_plugins.cli.models import checked_model

# the choices of the settings, written again: importing them would make --help twice as slow
Estimator = Literal[
    "product",
    "length_normalized",
    "mean_logprob",
    "mean_probability",
    "least_probability",
    "entropy",
    "margin",
    "agreement",
]
Choose = Literal["least uncertain", "last", "repeated"]
Show = Literal["documents", "scores", "answers"]
Metric = Literal["em", "f1"]
Method = Literal["platt", "isotonic"]
Form = Literal["sgic", "direct"]
IncludeDirect = Literal["all", "kept", "none"]

Labelled = Annotated[
    Path,
    typer.Argument(
        metavar="QUESTIONS.jsonl",
        help='One JSON object a line: {"question": ..., "answers": [...], "passages": [{"title": '
        '..., "text": ...}], "id": ...}; "passage_ids" and --pool will do for "passages". May be '
        "gzipped (.gz).",
        show_default=False,
    ),
]
Pool = Annotated[
    Path | None,
    typer.Option(
        "--pool",
        metavar="POOL.jsonl",
        help="Passages that the 'passage_ids' of QUESTIONS.jsonl name.",
    ),
]
ROUNDS_HELP = "K: most looks after the first answer."
Rounds = Annotated[
    int,
    typer.Option("--rounds", min=1, help=f"{ROUNDS_HELP} A question asks up to K more prompts."),
]
ESTIMATOR_HELP = (
    "Where uncertainty comes from; 'agreement' needs no token probabilities, and asks each prompt "
    "five times more."
)
EstimatorOption = Annotated[
    Estimator | None,
    typer.Option("--estimator", help=ESTIMATOR_HELP, show_default="product"),
]
ShowOption = Annotated[
    Show | None,
    typer.Option(
        "--show",
        help="What a look shows: scores of documents and earlier answers (documents), of earlier "
        "answers alone (scores), or those without scores (answers).",
        show_default="documents",
    ),
]
DocumentWords = Annotated[
    int | None,
    typer.Option(
        "--document-words",
        min=1,
        help="Cut each document to so many words, at a sentence end where one comes late enough.",
        show_default="150",
    ),
]
AnswerTokens = Annotated[
    int | None,
    typer.Option("--answer-tokens", min=1, help="Longest answer.", show_default="32"),
]
AnswerModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        callback=checked_model,
        help="As for 'sgic fit'; by default what 'sgic fit' noted in the calibration's folder, "
        "without a calibration [bold]embedded[/].",
    ),
]

QuestionsOrPassages = Annotated[
    Path | None,
    typer.Argument(
        metavar="QUESTIONS.jsonl|PASSAGES.jsonl",
        help='Questions with their "passages", one JSON object a line; with --question the '
        'passages (with "text") for it. May be gzipped (.gz).',
        show_default=False,
    ),
]
CalibrationFolder = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="CALIBRATION/",
        help="Folder that 'ltrag sgic fit' wrote: settings, scale and P(wrong).",
    ),
]
AnswerRounds = Annotated[
    int | None,
    typer.Option("--rounds", min=0, help=ROUNDS_HELP, show_default="the calibration's, else 5"),
]
AnswerEstimator = Annotated[
    Estimator | None,
    typer.Option(
        "--estimator", help=ESTIMATOR_HELP, show_default="the calibration's, else product"
    ),
]
CertainBelow = Annotated[
    float | None,
    typer.Option(
        "--certain-below",
        min=0,
        max=100,
        help="Look no further once an answer's score, 0-100, is under this.",
        show_default="the calibration's, else 20",
    ),
]
ChooseOption = Annotated[
    Choose | None,
    typer.Option("--choose", help="Which answer to give.", show_default="least uncertain"),
]
CutTo = Annotated[
    int | None,
    typer.Option("--cut-to", min=1, help="Show a look only so many documents, the surest."),
]
MaxCalls = Annotated[
    int | None,
    typer.Option(
        "--max-calls", min=1, help="Most prompts that a question may cost.", show_default="128"
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", min=1, help="Most tokens, read and written, that a question may cost."
    ),
]
Records = Annotated[
    Path | None,
    typer.Option(
        "--records",
        metavar="RECORDS.jsonl",
        dir_okay=False,
        help="Also write all rounds and documents of each question, and which answers were right, "
        "for an analysis; needs 'answers' in QUESTIONS.jsonl. An older file is replaced.",
    ),
]
RefuseAbove = Annotated[
    float | None,
    typer.Option(
        "--refuse-above", min=0, max=100, help="Keep back answers with a score above this, 0-100."
    ),
]
RefusePWrongAbove = Annotated[
    float | None,
    typer.Option(
        "--refuse-p-wrong-above",
        min=0,
        max=1,
        help="Keep back answers that are wrong with a probability above this; needs --calibration.",
    ),
]


@dataclass(frozen=True, slots=True)
class Changes:
    """What the user wants otherwise than the settings have it; None: as they have it."""

    rounds: int | None = None
    estimator: str | None = None
    show: Show | None = None
    certain_below: float | None = None
    choose: str | None = None
    cut_to: int | None = None
    document_words: int | None = None
    answer_tokens: int | None = None
    max_calls: int | None = None
    max_tokens: int | None = None
    seed: int | None = None


def checked_counts(value: str) -> str:
    """Whole numbers from 1 on with commas between, or nothing.

    Raises:
        BadParameter: something else.
    """
    try:
        if all(count >= 1 for count in counts(value)):
            return value
    except ValueError:
        pass
    raise typer.BadParameter(f"{value!r} is no list of whole numbers from 1 on, such as 1,2,3")


def counts(value: str) -> tuple[int, ...]:
    """The numbers of such a list."""
    return tuple(int(count) for count in value.split(",")) if value.strip() else ()
