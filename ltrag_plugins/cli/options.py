"""What commands take, and what becomes of it: settings, questions, models.

What people change most is an option; every other field of a command's settings classes comes in
through ``--set NAME=VALUE``. In MODEL and ENCODER what reaches the network says so.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer
from typer.models import OptionInfo

from ltrag_plugins.cli.io import checked_folder, say, working
from ltrag_plugins.data import read_passages
from ltrag_plugins.errors import InvalidInput, LtragError, UnreadableArtifact, path_of, unknown_name
from ltrag_plugins.settings import described, with_values
from ltrag_plugins.types import Passage, Question

if TYPE_CHECKING:  # numpy behind it would slow --help down
    from ltrag_plugins.llm.base import LLM, Encoder

FITTED = {"gate": "gate fit", "dur": "rerank train", "sgic": "calibrate fit", "longtail": "fit"}
"""The commands that fit what a folder may hold, by the names of its files."""
_NOTES = "command.json"
_SERVER = re.compile(r"openai:(?P<name>[^@]+?)(?:@(?P<url>https?://.+?))?(?:\+name:(?P<alias>.*))?")
_MODEL = (
    "[bold]embedded[/] (SmolLM2-135M); a folder or .gguf file; [bold]hf:ORG/NAME[/] from the hub; "
    "each may end in [bold]+fast[/] (bfloat16 on a CPU that computes in it), then in "
    "[bold]+adapter:DIR[/], a folder of 'ltrag calibrate finetune'; or "
    "[bold]openai:NAME@BASE_URL[/] for any OpenAI-compatible server (its key is read from "
    "OPENAI_API_KEY), which may end in [bold]+name:ALIAS[/], the name that caches and fits know "
    "it by at any address."
)
_ENCODER = (
    "[bold]none[/]; [bold]embedded[/] (all-MiniLM-L6-v2); a folder of sentence-transformers; or "
    "[bold]hf:ORG/NAME[/] from the hub."
)
_QUESTIONS = (
    'One JSON object a line: {"question": ..., "answers": [...], "id": ...}, with '
    '"passages": [{"title": ..., "text": ...}] where they are read; may be gzipped (.gz).'
)
_LISTED = "'ltrag settings' lists what can be set"
_NOTED = "As for the command that wrote the folder; by default what it noted there."


class _Commands(typer.Typer):
    """Commands that read "~" in a path as the user's home: bash leaves it in `--out=~/gate`."""

    def command(self, *names: Any, **more: Any) -> Callable[[Any], Any]:
        """Add a command."""
        add = super().command(*names, **more)

        def adding(function: Any) -> Any:
            @wraps(function)
            def called(**given: Any) -> Any:
                try:
                    return function(**{name: _at_home(value) for name, value in given.items()})
                except _NoSetting as error:
                    if option := _as_option(function, error.word):
                        wrong = f"{error.word!r} is no setting; it is an option: {option}"
                        raise typer.BadParameter(f"{wrong}; leave out --set") from error
                    raise

            add(called)
            return function

        return adding


def _at_home(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_at_home, value)]
    return path_of(value) if isinstance(value, Path) else value


class _NoSetting(typer.BadParameter):
    """No settings of a command have the name in a word of `--set`, or that of an option."""

    def __init__(self, word: str, settings: Sequence[Any], *, by_set: bool) -> None:
        name = word.partition("=")[0]
        known = [one["setting"] for each in settings for one in described(each)]
        within = [path for path in known if path.endswith(f".{name}")]
        every = dict.fromkeys(field.name for one in settings for field in fields(one))
        why = f"{unknown_name('setting', name.partition('.')[0], every)};"
        if within:
            why = f"there is no setting {name!r}; did you mean {' or '.join(within)}?"
        super().__init__(f"{why} {_LISTED}")
        self.word = word if by_set else ""


def _as_option(function: Any, word: str) -> str:
    """How the command takes what a word of `--set` says, if that is one of its options."""
    name, _, value = word.partition("=")
    hint: Any = get_type_hints(function, include_extras=True).get(name.replace("-", "_"))
    [info] = getattr(hint, "__metadata__", [None])
    # flags, and --set itself, are called otherwise than their parameters
    if not isinstance(info, OptionInfo) or hint.__origin__ is bool or name == "words":
        return ""
    return f"--{name.replace('_', '-')} {value}"


COMMANDS = {
    name: _Commands(help=text, no_args_is_help=bool(name), rich_markup_mode="rich")
    for name, text in {
        "": None,
        "gate": "Does this question need retrieval at all? (GECE)",
        "rerank": "Which examples or passages help this model, and how many? (DUR, or: ltrag dur)",
        "calibrate": "How sure is the answer, and can another look mend it? (SGIC, or: ltrag sgic)",
    }.items()
}
"""The groups of commands, by their names; "" stands for those of `ltrag` itself."""
PAPER_NAMES = {"rerank": "dur", "calibrate": "sgic"}
"""Other names of these groups."""


def argument(metavar: str, help: str) -> Any:
    """A positional argument."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def option(
    panel: Literal["Data", "Model", "Method", "Cost", "Output"], help: str, *names: str, **more: Any
) -> Any:
    """An option in a panel of the help page, called after its parameter unless it has names."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def checked_model(spec: str | None) -> str | None:
    """What names a model, or nothing; else wrong usage."""
    if spec is None or _is_model(spec):
        return spec
    raise typer.BadParameter(
        f"{spec!r} is no model; say embedded, a folder or .gguf file that is there, or hf:ORG/NAME "
        "(each with +fast, +adapter:FOLDER, both in this order, or none), or "
        "openai:NAME@BASE_URL (http or https; with +name:ALIAS or without)"
    )


def _checked_encoder(spec: str | None) -> str | None:
    if spec in (None, "none") or _is_weights(spec):
        return spec
    raise typer.BadParameter(f"no encoder {spec!r}: say none, embedded, a folder or hf:ORG/NAME")


class Opt:
    """What several commands take, as types of their parameters."""

    Questions = Annotated[Path, argument("QUESTIONS.jsonl", _QUESTIONS)]
    Pool = Annotated[Path | None, option("Data", "Passages that 'passage_ids' name.", "--pool")]
    OwnPassages = Annotated[bool, option("Data", "Rank each question's own.", "--own-passages")]
    Limit = Annotated[int | None, option("Data", "Only the first so many questions.", min=1)]
    Model = Annotated[str, option("Model", _MODEL, callback=checked_model)]
    NotedModel = Annotated[str | None, option("Model", _NOTED, callback=checked_model)]
    Encoder = Annotated[str, option("Model", _ENCODER, callback=_checked_encoder)]
    NotedEncoder = Annotated[str | None, option("Model", _NOTED, callback=_checked_encoder)]
    Rounds = Annotated[
        int | None, option("Method", "K: most looks after the first answer; fit, build: 5.")
    ]
    Rate = Annotated[float | None, option("Method", "Share that may retrieve.")]
    Set = Annotated[
        list[str] | None, option("Method", "NAME=VALUE; see 'ltrag settings'.", "--set")
    ]
    Cache = Annotated[Path | None, option("Cost", "SQLite file that keeps the model's answers.")]
    Batch = Annotated[int, option("Cost", "Most prompts given to the model at once.", min=1)]
    Json = Annotated[bool, option("Output", "JSON on stdout, and nothing else there.", "--json")]
    Out = Annotated[Path, option("Output", "Folder to write; a fit that is there is replaced.")]


def changed(words: Sequence[str] | None, *settings: Any, **options: object) -> list[Any]:
    """Settings of one or more classes, with what options (None: nothing) and `--set` say; a word
    goes to each class that has its name."""
    known = [(name, value) for name, value in options.items() if value is not None]
    told = [f"{n}={v if isinstance(v, str) else json.dumps(v)}" for n, v in known]
    given: list[list[str]] = [[] for _ in settings]
    for word in (*told, *(words or ())):
        name = re.split("[.=]", word)[0]
        having = [i for i, one in enumerate(settings) if name in {f.name for f in fields(one)}]
        if name and "=" in word and not having:
            raise _NoSetting(word, settings, by_set=word not in told)
        for i in having or [0]:  # the first refuses what is no NAME=VALUE
            given[i].append(word)
    try:
        return [with_values(one, mine) for one, mine in zip(settings, given, strict=True)]
    except InvalidInput as error:
        raise typer.BadParameter(f"{error}; {_LISTED}") from error


def checked_out(folder: Path, kind: str = "") -> Path:
    """The folder, if it can be written to and holds no fit of another kind than this one: they
    would share one note of MODEL and ENCODER."""
    checked_folder(folder)
    if others := [one for one in FITTED if one != kind and (folder / f"{one}.json").is_file()]:
        raise InvalidInput(f"{folder} holds {others[0]}.json of a fit; name another folder")
    return folder


def pool_of(path: Path | None, questions: Sequence[Question]) -> list[Passage]:
    """The passages of a file, or else those of the questions, each once; where an id means several
    texts, as in numbered lists, all but the first get one of their own."""
    if path is not None:
        return read_passages(path)
    every = {(p.id, p.title, p.text): p for question in questions for p in question.passages}
    found, seen = [], Counter[str]()
    for p in every.values():
        seen[p.id] += 1
        found.append(p if seen[p.id] == 1 else replace(p, id=f"{p.id}#{seen[p.id]}"))
    return found


def load_llm(spec: str, *, cache: Path | None = None, chat: bool | None = None) -> "LLM":
    """The model that a MODEL names; None for `chat`: local weights use the template they have."""
    name, fast, adapter = _parts(spec)
    weights: Any = {"dtype": "fast" if fast else "auto", "chat": chat, "adapter": adapter}
    with _loading("model", spec):
        if name == "embedded":
            from ltrag_plugins.llm.embedded import embedded

            llm: LLM = embedded(**weights)
        elif server := _SERVER.fullmatch(name):
            from ltrag_plugins.llm.openai import OpenAICompatibleLLM

            how: Any = {"base_url": server["url"], "name": server["alias"]}
            llm = OpenAICompatibleLLM(server["name"], **how)
        else:
            from ltrag_plugins.llm.transformers import TransformersLLM

            llm = TransformersLLM.load(_source(name), **weights)
    if cache is not None:
        from ltrag_plugins.llm.cached import CachedLLM

        llm = CachedLLM(llm, cache)
    return llm


def load_encoder(spec: str) -> "Encoder | None":
    """The encoder that an ENCODER names; None for "none"."""
    if spec == "none":
        return None
    with _loading("encoder", spec):
        if spec == "embedded":
            from ltrag_plugins.llm.embedded import embedded_encoder

            return embedded_encoder()
        from ltrag_plugins.llm.encoders import SentenceTransformerEncoder

        return SentenceTransformerEncoder.load(_source(spec))


def save(fitted: Any, what: str, folder: Path, model: str, encoder: str) -> None:
    """Save what was fitted, note MODEL and ENCODER beside it, and say where it is. A server is left
    out: a folder that came from elsewhere must not choose where the environment's key is sent."""
    fitted.save(folder)
    notes = {"model": "" if _SERVER.fullmatch(model) else model, "encoder": encoder}
    (folder / _NOTES).write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
    say(f"the {what} is in {folder}")


def noted(
    kind: Literal["gate", "dur", "sgic", "longtail"],
    folder: Path,
    model: str | None = "",
    encoder: str | None = "none",
) -> tuple[str, str]:
    """MODEL and ENCODER of a fitted folder: as the user says (None: not), else as noted there."""
    from ltrag_plugins.artifacts import json_object  # it brings numpy, which no --help needs

    if not (folder / f"{kind}.json").is_file():
        remedy = f"name a folder of 'ltrag {FITTED[kind]}'"
        raise UnreadableArtifact(f"there is no {kind}.json in {folder}; {remedy}")
    fitted, notes = (json_object(folder / name) for name in (f"{kind}.json", _NOTES))
    known, vectors = (str(notes.get(name)) for name in ("model", "encoder"))
    # again no server, whoever wrote the note; and no folder that is not here
    if model is None and _is_model(known) and not _SERVER.match(known):
        model = known
    if encoder is None and (vectors == "none" or _is_weights(vectors)):
        encoder = vectors
    elif encoder is None and (kind == "dur" or not fitted.get("encoder")):
        encoder = "embedded" if kind == "dur" else "none"
    for what, spec, name in (("model", model, "llm"), ("encoder", encoder, "encoder")):
        if spec is None:
            lacks = f"nothing in {folder} says how to reach the {what} that it was fitted with"
            known = fitted.get(name, "its name is not known")
            raise InvalidInput(f"{lacks} ({known}); add --{what}")
    return model or "", encoder or ""


def _is_model(spec: str) -> bool:
    name, fast, adapter = _parts(spec)
    if server := _SERVER.fullmatch(name):
        return not fast and adapter is None and server["alias"] != ""
    return _is_weights(name) and (adapter is None or adapter.is_dir())


def _parts(spec: str) -> tuple[str, bool, Path | None]:
    """What a MODEL names, whether it ends in +fast, and its adapter's folder."""
    name, adapted, folder = spec.partition("+adapter:")
    alone = name.removesuffix("+fast")
    return alone, alone != name, Path(folder).expanduser() if adapted else None


def _is_weights(spec: str) -> bool:
    """Whether this is embedded, a name on the hub, or a path that is there."""
    source = _source(spec)
    return spec == "embedded" or isinstance(source, str) or (spec != "" and source.exists())


def _source(spec: str) -> str | Path:
    return spec[3:] if spec.startswith("hf:") and len(spec) > 3 else Path(spec).expanduser()


@contextmanager
def _loading(what: str, spec: str) -> Iterator[None]:
    from ltrag_plugins.artifacts import DAMAGE  # it brings numpy, which no --help needs

    try:
        with working(f"loading {what} {spec}"):
            yield
    except LtragError:
        raise
    except (*DAMAGE, RuntimeError) as error:
        # what transformers and the hub raise for files that are missing, cut off or foreign
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise InvalidInput(f"cannot load the {what} {spec!r} ({why})") from error
