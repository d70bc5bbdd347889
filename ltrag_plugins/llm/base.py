"""What models can do; a component names the least it needs, and any object that does it will do."""

import hashlib
import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from ltrag_plugins.errors import InvalidInput, InvalidLogProbability, ModelError
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement, Token

Direction = Mapping[str, np.ndarray]
"""A point in the space of (some of) a model's weights: parameter name -> float32 array."""


@runtime_checkable
class LLM(Protocol):
    """A model that continues text."""

    @property
    def name(self) -> str:
        """Identifies weights and prompt handling: equal names give equal answers."""
        ...

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """One generation per prompt, in the order of the prompts."""
        ...


@runtime_checkable
class AsyncLLM(LLM, Protocol):
    """A model with an async call of its own, awaited instead of moved to a thread."""

    async def agenerate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """As `generate`."""
        ...


@runtime_checkable
class EachLLM(LLM, Protocol):
    """A model that takes settings for each prompt in one call, so that an answer and its samples
    are asked for at once; of any other model each setting is a call. Its async call, if it has
    one, is `agenerate_each`."""

    def generate_each(
        self, prompts: Sequence[str], settings: Sequence[GenerationSettings]
    ) -> list[Generation]:
        """One generation per prompt, in the order of the prompts, each by its own settings."""
        ...


@runtime_checkable
class ScoringLLM(LLM, Protocol):
    """A model that tells how likely a given text is."""

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Generation]:
        """The continuations, each with the log-probabilities of its tokens after its prompt."""
        ...


@runtime_checkable
class GradientLLM(ScoringLLM, Protocol):
    """A model whose weights are at hand. Gradients are of the mean negative log-likelihood of the
    continuation's tokens given the prompt, by the feed-forward weights of the last `layers`
    layers."""

    def mean_gradient(
        self, prompts: Sequence[str], continuations: Sequence[str], *, layers: int = 4
    ) -> Direction:
        """The gradient, averaged over the instances."""
        ...

    def gradient_agreement(
        self,
        prompts: Sequence[str],
        continuations: Sequence[str],
        *,
        along: Direction,
        cosine: bool = False,
        layers: int = 4,
    ) -> list[GradientAgreement]:
        """How each instance's gradient lies to `along`; `cosine` costs a backward pass more."""
        ...


@runtime_checkable
class Encoder(Protocol):
    """A model that turns texts into vectors."""

    @property
    def name(self) -> str:
        """Identifies the weights: equal names give equal vectors."""
        ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """One row per text, float32, shape (texts, dim)."""
        ...


class Shared:
    """What is shared by all that hold it, as weights or connections are: copies are itself."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        name = getattr(self, "name", type(self).__name__)
        told = f"{name} cannot be pickled, or sent to another process"
        raise InvalidInput(f"{told}. Make it there, in a function that the process calls.")


def fixed_arguments(model: object, without: Container[str] = ()) -> dict[str, Any]:
    """What a framework's (pydantic) model was given that `changes_answers`, without defaults."""
    found: dict[str, Any] = {}
    for name, declared in getattr(type(model), "model_fields", {}).items():
        value = getattr(model, name, None)
        # only what has a JSON form; a client or a function does not tell what it answers
        simple = isinstance(value, str | int | float | list | tuple | Mapping)
        fixed = simple and not declared.exclude and name not in without and changes_answers(name)
        if fixed and value not in ("", [], {}, _OPENAI, declared.default):
            found[name] = value
    return found


def fixed_digest(fixed: Mapping[str, Any]) -> str:
    """Twelve digits that tell these arguments from others. A value without a JSON form counts by
    its type alone: its repr may hold a memory address."""
    readable = json.dumps(fixed, sort_keys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(readable.encode()).hexdigest()[:12]


def encoder_name(embeddings: object, name: str) -> str:
    """`name`, and a digest of what else a framework's embeddings were given that changes vectors
    (address, dimensions, ...), where there is any."""
    # an address that came from the environment is in no field
    asked = getattr(getattr(embeddings, "client", None), "_client", None)
    address = str(getattr(asked, "base_url", "")).rstrip("/")
    fixed: dict[str, Any] = {} if address in ("", _OPENAI) else {"address": address}
    for argument, value in fixed_arguments(embeddings, without=_NOT_OF_VECTORS).items():
        if isinstance(value, Mapping):
            kept = (key for key in value if key not in _NOT_OF_VECTORS and changes_answers(key))
            value = {key: value[key] for key in kept}
        if value and str(value).rstrip("/") != address:
            fixed[argument] = value
    return f"{name}:fixed={fixed_digest(fixed)}" if fixed else name


def texts_to_embed(texts: Sequence[str]) -> list[str]:
    """What a provider is sent of them: none that is blank, which OpenAI refuses; where all are, one
    in their place that tells how long a vector is."""
    return [text for text in texts if text.strip()] or ["-"][: len(texts)]


def embedded_rows(texts: Sequence[str], found: Sequence[Sequence[float]]) -> np.ndarray:
    """A row for each text, float32, from what came for `texts_to_embed`; zeros for a blank one."""
    rows = np.asarray(found, dtype=np.float32).reshape(len(found), -1 if len(found) else 0)
    blank = [i for i, text in enumerate(texts) if not text.strip()]
    if len(blank) == len(texts):
        rows = rows[:0]
    return np.insert(rows, [i - before for before, i in enumerate(blank)], 0.0, axis=0)


def changes_answers(argument: str) -> bool:
    """False for what a client is given for its connection alone, by name: keys, time-outs, ..."""
    return not _CONNECTION.search(argument)


_OPENAI = "https://api.openai.com/v1"
_NOT_OF_VECTORS = {"model", "model_name", "chunk_size", "num_workers", "show_progress"}
_NOT_OF_VECTORS |= {"show_progress_bar", "multi_process", "device"}
_CONNECTION = re.compile(
    "stream|time_?out|retr(y|ies)|callback|cache|verbose|^tags$|metadata|profile|headers|client|"
    "proxy|key$|token$|secret|password|organization|project|concurrency|rate_limit|batch|"
    "tokenizer|tiktoken|context_window|num_output|function_calling|structured|output_version|^name$|^i$"
)  # `i`: where LangChain's fakes count their replies


def checked_prompts(prompts: Sequence[str]) -> Sequence[str]:
    """The prompts themselves, unless they are a single text, of which each letter would be one."""
    if not isinstance(prompts, str):
        return prompts
    raise InvalidInput(f"the prompts are a single text, {prompts!r:.60}; give a list: [prompt].")


def checked_token(token: Token, model: str) -> Token:
    """The token itself, if its log-probability and those of its alternatives can be ones."""
    for text, logprob in ((token.text, token.logprob), *token.alternatives):
        if logprob <= 1e-4:
            continue  # NaN does not come here
        raise InvalidLogProbability(
            f"{model} reported log-probability {logprob} for token {text!r}; a log-probability is "
            "a finite number of at most 0. Check that the server sends natural logarithms of "
            "probabilities, or read texts alone (gate: tier='text'; SGIC: estimator='agreement')."
        )
    return token


def checked_vectors(vectors: Any, texts: int, encoder: str) -> np.ndarray:
    """What an encoder gave, if it has a row for each of so many texts."""
    rows = np.asarray(vectors)
    if rows.ndim == 2 and len(rows) == texts:
        return rows
    told = f"gave an array of shape {rows.shape} for {texts} texts"
    raise ModelError(f"the encoder {encoder} {told}; it gives one row for each, in their order")


def stopped(generation: Generation, stop: Sequence[str]) -> Generation:
    """The generation ended before the first stop string, its tokens joining to its text. Tokens
    that spell another text are left alone. The token counts stay what was paid for; what had run
    on to its most tokens ended at "stop"."""
    ends = [generation.text.find(string) for string in stop if string]
    text = generation.text[: min((end for end in ends if end >= 0), default=None)]
    if text != generation.text and generation.finish_reason != "content_filter":
        generation = replace(generation, finish_reason="stop")
    tokens = generation.tokens
    spelled = "".join(token.text for token in tokens or ())
    if tokens is None or spelled == text or not spelled.startswith(text):
        return replace(generation, text=text)
    starts = accumulate((len(token.text) for token in tokens), initial=0)
    placed = [(token, len(text) - at) for token, at in zip(tokens, starts, strict=False)]
    kept = tuple(replace(token, text=token.text[:left]) for token, left in placed if left > 0)
    return replace(generation, text=text, tokens=kept)
