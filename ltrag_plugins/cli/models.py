"""MODEL and ENCODER of the command line, and the notes by which a later command finds them.

MODEL is ``embedded``, a folder or ``.gguf`` file, ``hf:ORG/NAME``, or ``openai:NAME@BASE_URL``;
ENCODER is ``none``, ``embedded``, a folder, or ``hf:ORG/NAME``. Local weights may have an adapter,
as in ``embedded+adapter:DIR``. A plain word is never looked up on a hub: what reaches the network
says so.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ltrag_plugins.cli.io import read_object, working
from ltrag_plugins.errors import InvalidInput, LtragError, UnreadableArtifact

if TYPE_CHECKING:  # numpy behind it would slow --help down
    from ltrag_plugins.llm.base import LLM, Encoder

_NOTES = "command.json"
_SERVER = re.compile(r"openai:(?P<name>[^@]+)(?:@(?P<url>https?://.+))?")


def checked_model(spec: str | None) -> str | None:
    """The MODEL itself, if it is one; loads nothing."""
    if spec is None or _is_model(spec):
        return spec
    name, adapter = _apart(spec)
    if adapter is not None and _reaches_server(name):
        raise typer.BadParameter(f"an adapter is for local weights, and {name} is a server")
    if adapter is not None and _is_model(name):
        raise typer.BadParameter(
            f"there is no folder {str(adapter)!r}; name the one that 'ltrag sgic finetune' wrote"
        )
    raise typer.BadParameter(
        f"there is no folder or file {name!r}; say embedded, a folder, a .gguf file, hf:ORG/NAME "
        "or openai:NAME@BASE_URL (http or https)"
    )


def checked_encoder(spec: str | None) -> str | None:
    """The ENCODER itself, if it is one; loads nothing."""
    if spec is None or _is_encoder(spec):
        return spec
    raise typer.BadParameter(
        f"there is no folder {spec!r}; say none, embedded, a folder of sentence-transformers or "
        "hf:ORG/NAME"
    )


def load_llm(spec: str, *, cache: Path | None = None, chat: bool | None = None) -> "LLM":
    """The model that a MODEL names, its answers kept in `cache`.

    Args:
        chat: for local weights: wrap prompts in the chat template; None: where there is one.
    """
    with working(f"loading {spec}"), _explained("model", spec):
        llm = _llm(spec, chat)
    if cache is None:
        return llm
    from ltrag_plugins.llm.cached import CachedLLM

    return CachedLLM(llm, cache)


def load_encoder(spec: str) -> "Encoder | None":
    """The encoder that an ENCODER names; None for "none"."""
    if spec == "none":
        return None
    with working(f"loading encoder {spec}"), _explained("encoder", spec):
        if spec == "embedded":
            from ltrag_plugins.llm.embedded import embedded_encoder

            return embedded_encoder()
        from ltrag_plugins.llm.encoders import SentenceTransformerEncoder

        return SentenceTransformerEncoder.load(_hub_name(spec) or Path(spec).expanduser())


def write_notes(folder: Path, model: str, encoder: str) -> None:
    """Note MODEL and ENCODER in the folder of what was fitted with them.

    A server's address is left out: a folder that came from elsewhere must not choose where the
    key in the environment is sent.
    """
    notes = {"model": "" if _reaches_server(model) else model, "encoder": encoder}
    (folder / _NOTES).write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")


def noted(
    folder: Path,
    file: str,
    command: str,
    model: str | None = "",
    encoder: str | None = "none",
    otherwise: str | None = None,
) -> tuple[str, str]:
    """MODEL and ENCODER of a fitted folder: as the user says, else as they are noted there.

    Args:
        file: what the folder holds in any case.
        command: what writes such a folder.
        model: None: the user says nothing. "": none is needed.
        encoder: None: the user says nothing.
        otherwise: the ENCODER where none is noted.
    """
    if not (folder / file).is_file():
        raise UnreadableArtifact(
            f"there is no {file} in {folder}; name a folder that 'ltrag {command}' wrote"
        )
    fitted, notes = read_object(folder / file), read_object(folder / _NOTES)
    if model is None:
        model = str(notes.get("model"))
        # again no server, whoever wrote the note; and no folder that is not here
        model = model if _is_model(model) and not _reaches_server(model) else None
    if encoder is None:
        known = str(notes.get("encoder"))
        without = "none" if fitted.get("encoder") is None else None
        encoder = known if _is_encoder(known) else otherwise or without
    for what, spec, name in (("model", model, "llm"), ("encoder", encoder, "encoder")):
        if spec is None:
            raise InvalidInput(
                f"nothing in {folder} says how to reach the {what} that it was fitted with "
                f"({fitted.get(name, 'its name is not known')}); add --{what}"
            )
    return model or "", encoder or ""


def _is_model(spec: str) -> bool:
    name, adapter = _apart(spec)
    if adapter is not None and (_reaches_server(name) or not adapter.is_dir()):
        return False
    named = name == "embedded" or _hub_name(name) or _reaches_server(name)
    return bool(named or (name and Path(name).expanduser().exists()))


def _is_encoder(spec: str) -> bool:
    named = spec in ("none", "embedded") or _hub_name(spec)
    return bool(named or (spec and Path(spec).expanduser().is_dir()))


def _reaches_server(spec: str) -> bool:
    return _SERVER.fullmatch(spec) is not None


def _hub_name(spec: str) -> str | None:
    return spec[3:] if spec.startswith("hf:") and len(spec) > 3 else None


def _apart(spec: str) -> tuple[str, Path | None]:
    """A MODEL without its adapter, and the adapter."""
    name, found, folder = spec.partition("+adapter:")
    return name, Path(folder).expanduser() if found else None


def _llm(spec: str, chat: bool | None) -> "LLM":
    spec, adapter = _apart(spec)
    if spec == "embedded":
        from ltrag_plugins.llm.embedded import embedded

        return embedded(chat=chat, adapter=adapter)
    if server := _SERVER.fullmatch(spec):
        from ltrag_plugins.llm.openai import OpenAICompatibleLLM

        return OpenAICompatibleLLM(server["name"], base_url=server["url"])
    from ltrag_plugins.llm.transformers import TransformersLLM

    source = _hub_name(spec) or Path(spec).expanduser()
    return TransformersLLM.load(source, chat=chat, adapter=adapter)


@contextmanager
def _explained(what: str, spec: str) -> Iterator[None]:
    try:
        yield
    except LtragError:
        raise
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        # what transformers and the hub raise for files that are missing, cut off or foreign
        first = str(error).strip().partition("\n")[0]
        raise InvalidInput(
            f"cannot load the {what} {spec!r} ({type(error).__name__}: {first})"
        ) from error
