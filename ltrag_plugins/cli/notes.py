"""What `gate fit` and `dur train` note beside their work: how its model is found again."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ltrag_plugins.cli.models import is_encoder, is_model, reaches_server
from ltrag_plugins.errors import InvalidInput, UnreadableArtifact

FILE = "command.json"


@dataclass(frozen=True, slots=True)
class Notes:
    """MODEL and ENCODER of a gate or a head; empty where they are not known."""

    model: str
    encoder: str


def write_notes(folder: Path, model: str, encoder: str) -> None:
    """Note them in the folder.

    A server's address is left out: a folder that came from elsewhere must not choose
    where the key in the environment is sent.
    """
    notes = Notes("" if reaches_server(model) else model, encoder)
    (folder / FILE).write_text(json.dumps(asdict(notes), indent=1) + "\n", encoding="utf-8")


def chosen(folder: Path, model: str | None, encoder: str | None) -> Notes:
    """What the user said, and where nothing was said, what is noted.

    Raises:
        InvalidInput: nothing was said and nothing usable is noted; the message has the remedy.
        UnreadableArtifact: there is no gate in the folder.
    """
    fitted, known = _read(folder / "gate.json"), noted(folder)
    model = model or known.model
    encoder = encoder or known.encoder or ("none" if fitted.get("encoder") is None else "")
    for option, spec, name in (
        ("model", model, fitted.get("llm")),
        ("encoder", encoder, fitted.get("encoder")),
    ):
        if not spec:
            raise InvalidInput(
                f"the gate in {folder} was fitted with the {option} {name!r}, and nothing here "
                f"says how to reach it; add --{option}"
            )
    return Notes(model, encoder)


def noted(folder: Path) -> Notes:
    """What is noted in the folder and can be reached without the user's word for it.

    Raises:
        UnreadableArtifact: the note is there and cannot be read.
    """
    if not (folder / FILE).is_file():
        return Notes("", "")
    told = _read(folder / FILE)
    model, encoder = str(told.get("model", "")), str(told.get("encoder", ""))
    # again no server, whoever wrote the file; and no folder that is not here
    model = model if model and not reaches_server(model) and is_model(model) else ""
    return Notes(model, encoder if is_encoder(encoder) else "")


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "not JSON"
        raise UnreadableArtifact(
            f"{path.parent} holds no readable gate ({path.name}: {why}); fit one with "
            "'ltrag gate fit'"
        ) from error
    return value if isinstance(value, dict) else {}
