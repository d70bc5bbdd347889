"""Arguments and options that commands share, and how options become settings.

A command has options of its own for what people change most. Every other field of its settings
class comes in through ``--set NAME=VALUE``: ranges and choices stand in the class alone, and
`ltrag settings` prints them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from ltrag_plugins.cli.models import checked_encoder, checked_model
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.settings import split_assignments, with_values

_S = TypeVar("_S")


def option(
    panel: Literal["Data", "Model", "Method", "Cost", "Output"], help: str, *names: str, **more: Any
) -> Any:
    """An option in a panel of the help page, called after its parameter unless it has names."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def utf8(text: str | None) -> str | None:
    """The text, if it is UTF-8; other bytes of a command line reach no model."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f"{text!r} is not UTF-8") from error
    return text


def _vectors(spec: str | None) -> str | None:
    if spec == "none":
        raise typer.BadParameter("a head ranks by vectors; name an encoder, such as embedded")
    return checked_encoder(spec)


_MODEL = (
    "[bold]embedded[/] (SmolLM2-135M); a folder or .gguf file; [bold]hf:ORG/NAME[/] from the hub; "
    "each may end in [bold]+adapter:DIR[/], a folder of 'ltrag sgic finetune'; or "
    "[bold]openai:NAME@BASE_URL[/] for any OpenAI-compatible server (its key is read from "
    "OPENAI_API_KEY)."
)
_ENCODER = (
    "[bold]none[/]; [bold]embedded[/] (all-MiniLM-L6-v2); a folder of sentence-transformers; or "
    "[bold]hf:ORG/NAME[/] from the hub."
)
_NOTED = "As for the command that wrote the folder; by default what it noted there."


class Opt:
    """What several commands take, as types of their parameters."""

    Questions = Annotated[
        Path,
        typer.Argument(
            metavar="QUESTIONS.jsonl",
            help='One JSON object a line: {"question": ..., "answers": [...], "id": ...}, with '
            '"passages": [{"title": ..., "text": ...}] where they are read; may be gzipped (.gz).',
            show_default=False,
        ),
    ]
    Pool = Annotated[
        Path | None, option("Data", "Passages that the questions name by 'passage_ids'.", "--pool")
    ]
    OwnPassages = Annotated[
        bool,
        option(
            "Data", "Rank what each question's line holds, or names in a pool.", "--own-passages"
        ),
    ]
    Limit = Annotated[int | None, option("Data", "Only the first so many questions.", min=1)]
    Model = Annotated[str, option("Model", _MODEL, callback=checked_model)]
    NotedModel = Annotated[str | None, option("Model", _NOTED, callback=checked_model)]
    Encoder = Annotated[str, option("Model", _ENCODER, callback=checked_encoder)]
    NotedEncoder = Annotated[str | None, option("Model", _NOTED, callback=checked_encoder)]
    HeadEncoder = Annotated[str | None, option("Model", _ENCODER, callback=_vectors)]
    Rounds = Annotated[int | None, option("Method", "K: most looks after the first answer.")]
    Seed = Annotated[int | None, option("Method", "Of all that is drawn at random.")]
    Set = Annotated[
        list[str] | None,
        option("Method", "Another setting, NAME=VALUE; 'ltrag settings' lists them.", "--set"),
    ]
    Cache = Annotated[
        Path | None,
        option("Cost", "SQLite file that keeps the model's answers: nothing is asked twice."),
    ]
    Batch = Annotated[int, option("Cost", "Most prompts given to the model at once.", min=1)]
    Json = Annotated[bool, option("Output", "JSON on stdout, and nothing else there.", "--json")]
    Out = Annotated[Path, option("Output", "Folder to write; what was in it is replaced.")]


def changed(settings: _S, words: Sequence[str] | None, **options: object) -> _S:
    """The settings with what options say (None: nothing) and the words of `--set`.

    A setting inside another is an option with two underscores: ``loop__rounds=3``.
    """
    given = {
        name.replace("__", "."): str(value) for name, value in options.items() if value is not None
    }
    try:
        return with_values(settings, given | split_assignments(words or ()))
    except InvalidInput as error:
        raise typer.BadParameter(f"{error}; 'ltrag settings' lists what can be set") from error
