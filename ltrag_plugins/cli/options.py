"""Arguments and options that commands share, and the choices they offer."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ltrag_plugins.cli.models import (
    checked_encoder,
    checked_model,
    checked_vectors,
    remember_adapter,
)

# the choices of GECESettings, written again: importing them would make --help twice as slow
Gradients = Literal["auto", "always", "never"]
Quality = Literal["meteor", "chrf", "ter"]
Agreement = Literal["dot", "cosine"]
Tier = Literal["auto", "probabilities", "text"]
# and those of DURSettings
Format = Literal["Q-A", "QO-A", "SQO-A", "passages"]
Preset = Literal["default", "paper", "paper-batch", "promptpg"]
Preselect = Literal["bm25", "encoder", "both", "none"]
Reward = Literal["auto", "match", "p_gold", "log_p_gold", "f1", "rouge_l", "bleu"]
# where an evaluation finds passages
Search = Literal["bm25", "encoder"]
OptionCalibration = Literal["none", "content-free", "batch"]

Questions = Annotated[
    Path,
    typer.Argument(
        metavar="QUESTIONS.jsonl",
        help='One JSON object a line: {"question": ..., "answers": [...], "id": ...}; '
        "may be gzipped (.gz).",
        show_default=False,
    ),
]
_MODEL_HELP = (
    "[bold]embedded[/] (SmolLM2-135M, the default); a folder or .gguf file; "
    "[bold]hf:ORG/NAME[/] from the hub; or [bold]openai:NAME@BASE_URL[/] for any "
    "OpenAI-compatible server (its key is read from OPENAI_API_KEY)."
)
_ENCODER_HELP = (
    "[bold]none[/] (the default); [bold]embedded[/] (all-MiniLM-L6-v2); a folder of "
    "sentence-transformers; or [bold]hf:ORG/NAME[/] from the hub."
)
Model = Annotated[
    str, typer.Option("--model", metavar="MODEL", callback=checked_model, help=_MODEL_HELP)
]
Adapter = Annotated[
    Path | None,
    typer.Option(
        "--adapter",
        metavar="ADAPTER/",
        callback=remember_adapter,
        is_eager=True,  # before --model, whose value it becomes a part of
        expose_value=False,
        help="An adapter for --model, which must be local weights: the folder that 'ltrag sgic "
        "finetune' wrote.",
    ),
]
Encoder = Annotated[
    str, typer.Option("--encoder", metavar="ENCODER", callback=checked_encoder, help=_ENCODER_HELP)
]
GateModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        callback=checked_model,
        help="The model the gate was fitted with, as for 'gate fit'; by default what 'gate fit' "
        "noted in the folder.",
    ),
]
GateEncoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="ENCODER",
        callback=checked_encoder,
        help="Its encoder; by default as for --model.",
    ),
]
Gate = Annotated[
    Path, typer.Option("--gate", metavar="GATE/", help="Folder that 'ltrag gate fit' wrote.")
]
TrainingEncoder = Annotated[
    str,
    typer.Option(
        "--encoder",
        metavar="ENCODER",
        callback=checked_vectors,
        help="[bold]embedded[/] (all-MiniLM-L6-v2, the default); a folder of "
        "sentence-transformers; or [bold]hf:ORG/NAME[/] from the hub.",
    ),
]
HeadModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        callback=checked_model,
        help="The model that answers, as for 'dur train'; by default what 'dur train' noted in "
        "the folder.",
    ),
]
HeadEncoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="ENCODER",
        callback=checked_vectors,
        help="The head's encoder, as for 'dur train'; by default what 'dur train' noted in the "
        "folder, else embedded.",
    ),
]
OwnPassages = Annotated[
    bool,
    typer.Option(
        "--own-passages",
        help="Rank for each question the passages that its line holds ('passages'), or names by "
        "'passage_ids' in CANDIDATES.jsonl, which is then a pool.",
    ),
]
HeadCache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="FILE.sqlite",
        help="Keep the model's answers here, and ask nothing twice; the encoder's vectors are "
        "kept beside it, in FILE.vectors.sqlite.",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.sqlite",
        help="Keep the model's answers here, and ask nothing twice; a fit that was stopped goes "
        "on where it was.",
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many questions.")]
Batch = Annotated[int, typer.Option(min=1, help="Most prompts given to the model at once.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else there.")]


def checked_sigma(value: str | None) -> str | None:
    """A number from 0 to 1, or "trained".

    Raises:
        BadParameter: neither.
    """
    if value in (None, "trained"):
        return value
    try:
        if 0 <= float(value) <= 1:
            return value
    except ValueError:
        pass
    raise typer.BadParameter(f"{value!r} is neither a number from 0 to 1 nor 'trained'")
