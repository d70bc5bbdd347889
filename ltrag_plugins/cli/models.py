"""MODEL and ENCODER of the command line.

MODEL is ``embedded``, a folder or ``.gguf`` file, ``hf:ORG/NAME``, or
``openai:NAME@BASE_URL``; ENCODER is ``none``, ``embedded``, a folder, or ``hf:ORG/NAME``.
A plain word is never looked up on a hub: what reaches the network says so.

``--adapter DIR`` becomes part of MODEL, as in ``embedded+adapter:DIR``: so it is noted beside
what was fitted with it, and found again.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ltrag_plugins.cli.output import working
from ltrag_plugins.errors import InvalidInput, LtragError

if TYPE_CHECKING:  # numpy behind it would slow --help down
    from ltrag_plugins.llm.base import LLM, Encoder

ADAPTER = "+adapter:"
"""Between a MODEL of local weights and the folder of an adapter for it."""
_GIVEN = "ltrag.adapter"
_SERVER = re.compile(r"openai:(?P<name>[^@]+)(?:@(?P<url>https?://.+))?")


def is_model(spec: str) -> bool:
    """Whether this is a MODEL, its folder or file being there; loads nothing."""
    spec, adapter = _apart(spec)
    if adapter is not None and (reaches_server(spec) or not adapter.is_dir()):
        return False
    named = spec == "embedded" or _hub_name(spec) or reaches_server(spec)
    return bool(named or (spec and Path(spec).expanduser().exists()))


def is_encoder(spec: str) -> bool:
    """Whether this is an ENCODER, its folder being there; loads nothing."""
    named = spec in ("none", "embedded") or _hub_name(spec)
    return bool(named or (spec and Path(spec).expanduser().is_dir()))


def remember_adapter(ctx: typer.Context, folder: Path | None) -> Path | None:
    """Keep `--adapter` where `checked_model` finds it."""
    if folder is not None:
        ctx.meta[_GIVEN] = folder
    return folder


def checked_model(ctx: typer.Context, spec: str | None) -> str | None:
    """The MODEL itself, with the adapter that `--adapter` names.

    Raises:
        BadParameter: it is none, or cannot have an adapter.
    """
    folder = ctx.meta.get(_GIVEN)
    if folder is not None:
        if spec is None or reaches_server(spec):
            raise typer.BadParameter(
                "--adapter is for local weights; name them with --model (embedded, a folder, a "
                ".gguf file or hf:ORG/NAME)"
            )
        spec = f"{spec}{ADAPTER}{folder}"
    if spec is None or is_model(spec):
        return spec
    name, adapter = _apart(spec)
    if adapter is not None and is_model(name):
        raise typer.BadParameter(
            f"there is no folder {str(adapter)!r}; name the one that 'ltrag sgic finetune' wrote"
        )
    raise typer.BadParameter(
        f"there is no folder or file {name!r}; say embedded, a folder, a .gguf file, hf:ORG/NAME "
        "or openai:NAME@BASE_URL (http or https)"
    )


def checked_encoder(spec: str | None) -> str | None:
    """The ENCODER itself.

    Raises:
        BadParameter: it is none.
    """
    if spec is None or is_encoder(spec):
        return spec
    raise typer.BadParameter(
        f"there is no folder {spec!r}; say none, embedded, a folder of sentence-transformers or "
        "hf:ORG/NAME"
    )


def checked_vectors(spec: str | None) -> str | None:
    """The ENCODER itself, for what cannot do without one.

    Raises:
        BadParameter: it is none.
    """
    if spec == "none":
        raise typer.BadParameter("a head ranks by vectors; name an encoder, such as embedded")
    return checked_encoder(spec)


def reaches_server(spec: str) -> bool:
    """Whether this MODEL is behind an address."""
    return _SERVER.fullmatch(spec) is not None


def load_llm(spec: str, *, cache: Path | None = None, chat: bool | None = None) -> "LLM":
    """The model a MODEL names, its answers kept in `cache`.

    Args:
        chat: for local weights: wrap prompts in the chat template; None: where there is one.

    Raises:
        InvalidInput: it cannot be loaded.
        MissingExtra: a package it needs is not installed.
        CacheUnreadable: there is something else in the cache file.
    """
    with working(f"loading {spec}"), _explained("model", spec):
        llm = _llm(spec, chat)
    if cache is None:
        return llm
    from ltrag_plugins.llm.cached import CachedLLM

    return CachedLLM(llm, cache)


def load_encoder(spec: str) -> "Encoder | None":
    """The encoder an ENCODER names; None for "none".

    Raises:
        InvalidInput: it cannot be loaded.
        MissingExtra: a package it needs is not installed.
    """
    if spec == "none":
        return None
    with working(f"loading encoder {spec}"), _explained("encoder", spec):
        if spec == "embedded":
            from ltrag_plugins.llm.embedded import embedded_encoder

            return embedded_encoder()
        from ltrag_plugins.llm.encoders import SentenceTransformerEncoder

        return SentenceTransformerEncoder.load(_hub_name(spec) or Path(spec).expanduser())


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


def _apart(spec: str) -> tuple[str, Path | None]:
    """A MODEL without its adapter, and the adapter."""
    name, found, folder = spec.partition(ADAPTER)
    return name, Path(folder).expanduser() if found else None


def _hub_name(spec: str) -> str | None:
    return spec[3:] if spec.startswith("hf:") and len(spec) > 3 else None


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
