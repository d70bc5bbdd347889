"""Every error this package raises on purpose; `LtragError` is the root of them all."""

import os
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

_T = TypeVar("_T")
Part = Literal["model", "encoder", "retriever"]
"""What an application hands in, and what its own errors come from."""
# of the extras whose packages are imported within functions
_PACKAGES = {
    "fit": ("scipy", "sklearn"),
    "frequency": ("wordfreq",),
    "evaluate": ("nltk", "rouge_score", "sacrebleu"),
}
# what clients raise at a malformed reply; a failed connection is none of these
_UNREADABLE = (TypeError, ValueError, AttributeError, LookupError, RecursionError)
# what torch says of a device, and of the machine, in a RuntimeError; the words of a client's own
# errors are not read, as they may repeat the prompt
_NO_MEMORY = ("out of memory", "allocate memory")


class LtragError(Exception):
    """The root of all errors raised on purpose by this package."""


class MissingExtra(LtragError, ImportError):
    """A package that this part needs is not installed; the message has the pip command."""


class InvalidInput(LtragError, ValueError):
    """What came in cannot be used."""


class EmptyQuestion(InvalidInput):
    """The question has no words."""


class PromptTooLong(InvalidInput):
    """The prompt has more tokens than the model reads."""


class BadRecord(InvalidInput):
    """A line of a data file is not what it should be; the message names file, line and field."""


class MissingReferences(InvalidInput):
    """A labelled question came without accepted answers."""


class CalibrationError(InvalidInput):
    """Nothing can be fitted on these questions."""


class ModelError(LtragError):
    """The model failed, or sent what cannot be used."""


class ModelFailed(ModelError):
    """The model's or encoder's own call raised (its exception is the cause), or its reply cannot be
    used."""


class ModelUnavailable(ModelFailed):
    """The API key is refused, or many requests in a row failed: a run ends, and asks no more."""


class NoTokenProbabilities(ModelError):
    """The provider reported no token probabilities where they are needed."""


class InvalidLogProbability(ModelError):
    """A log-probability is missing beside a token, NaN, infinite or above 0."""


class NeedsGradients(ModelError):
    """A model without local weights was given to something that needs gradients."""


class RetrievalError(LtragError):
    """Retrieval failed."""


class NoRetriever(RetrievalError):
    """A flow retrieves, and the world it runs in has no retriever."""


class RetrieverFailed(RetrievalError):
    """The retriever's own call raised; the original exception is the cause."""


class UnknownRequest(LtragError, TypeError):
    """A flow yielded something that no driver can answer."""


class CacheUnreadable(LtragError):
    """The answer cache is corrupt, or is not an answer cache; it was left untouched."""


class ArtifactError(LtragError):
    """A saved gate, head or scale cannot be used."""


class UnreadableArtifact(ArtifactError):
    """The saved files are missing, incomplete or tampered with."""


class UnwritableArtifact(ArtifactError):
    """The folder cannot be made or written to."""


class ArtifactMismatch(ArtifactError):
    """The saved files were fitted for another model or tier."""


def provider_error(part: Part, error: Exception) -> LtragError:
    """The error for what a client of a model, encoder or retriever raised, with a remedy."""
    text = str(error).removesuffix(".")
    said = f"the {part} raised {type(error).__name__}: {text}. Its own error is the __cause__"
    if part == "retriever":
        return RetrieverFailed(f"{said}: see whether the store it searches answers, or try again")
    full = isinstance(error, RuntimeError) and any(word in text.lower() for word in _NO_MEMORY)
    if full or isinstance(error, MemoryError):
        remedy = "run fewer questions at once (batch), or load it with a smaller dtype"
        return ModelFailed(f"{said}: its memory is full; {remedy}")
    status = status_of(error)
    if status in (401, 403):
        return ModelFailed(f"{said}: the server refused the API key; set the {part}'s key")
    if status == 404:
        remedy = f"check the {part}'s name and address"
        return ModelFailed(f"{said}: the server knows no such model or address; {remedy}")
    if _is_unreachable(error):
        remedy = f"see that the server runs, or mend the {part}'s set-up, its address first"
        return ModelFailed(f"{said}: nothing answers at {_address_of(error)}; {remedy}")
    if isinstance(error, _UNREADABLE):
        wrong = f"{said}: its reply, or an argument, is not what its client expects"
        remedy = "check its address and settings, and that the server keeps to its protocol"
        return ModelFailed(f"{wrong}; {remedy}")
    why = f"{said}: a time-out or a rate limit passes, so try again or raise the client's retries"
    return ModelFailed(f"{why}; else mend the {part}'s set-up")


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an SDK's error, or its cause, reports."""
    for one in (error, error.__cause__):
        for place in (one, getattr(one, "response", None)):
            if isinstance(status := getattr(place, "status_code", None), int):
                return status
    return None


def _is_unreachable(error: Exception) -> bool:
    """Whether a client got no connection; one that broke, or a time-out, is of the same kind."""
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return False
    kinds = [kind.__name__ for kind in type(error).__mro__]
    lost = any(name.endswith(("ConnectionError", "ConnectError")) for name in kinds)
    return lost and not any("Timeout" in name for name in kinds)


def _address_of(error: Exception) -> str:
    """What an SDK's error asked, without a name, a password or a query, which may be secret."""
    with suppress(RuntimeError, ValueError):  # of httpx, where there is no request
        parts = urlsplit(str(getattr(getattr(error, "request", None), "url", "")))
        if parts.hostname:
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return "its address"


def missing_extra(package: str, extra: str) -> MissingExtra:
    """The error for an absent optional package, with the command that installs it."""
    why = f"this part of ltrag_plugins needs the package {package!r}, which is not installed"
    return MissingExtra(f"{why}. Install it with: pip install 'ltrag-plugins[{extra}]'")


def require(extra: Literal["fit", "frequency", "evaluate"]) -> None:
    """Raise `MissingExtra` where a package of the extra is absent. It imports none, so that it can
    stand before the first thing that costs."""
    for package in _PACKAGES[extra]:
        found = None
        with suppress(ImportError):
            found = find_spec(package)
        if found is None:
            raise missing_extra(package, extra)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InvalidInput:
    """The error for a name that is none of those known; offers the nearest."""
    known = list(known)
    near = get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? There are" if near else "there are"
    return InvalidInput(f"there is no {kind} {name!r}; {hint} {', '.join(known)}")


def checked(value: _T, kind: Any, name: str, wanted: str) -> _T:
    """The value itself, if it is a `kind`; else InvalidInput says what is `wanted` as `name`."""
    if isinstance(value, kind):
        return value
    raise InvalidInput(f"{name} must be {wanted}, got {type(value).__name__} {value!r:.60}.")


def listed(values: Iterable[_T], name: str) -> list[_T]:
    """The values as a list; InvalidInput for what holds none, and for one string, which would be
    taken for its letters."""
    if isinstance(values, str):
        raise InvalidInput(f"{name} came as one string, {values[:40]!r}; put it in a list")
    return [*checked(values, Iterable, name, f"a list of {name}")]


def path_of(path: str | PathLike[str]) -> Path:
    """What a caller names a folder or file by, as a path, "~" being the user's home; `InvalidInput`
    for what is none."""
    wanted = "a path, such as 'fitted'"
    return Path(os.path.expanduser(checked(path, str | PathLike, "a folder or file", wanted)))
