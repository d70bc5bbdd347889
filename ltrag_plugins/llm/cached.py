"""Any model with its answers kept, any encoder with its vectors: nothing is paid for twice."""

import asyncio
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Self, final, overload

import numpy as np
from jaxtyping import Float32

from ltrag_plugins.errors import CacheUnreadable, InvalidInput, ModelError
from ltrag_plugins.llm.base import (
    LLM,
    AsyncLLM,
    Direction,
    Encoder,
    GradientLLM,
    ScoringLLM,
    checked_token,
)
from ltrag_plugins.llm.store import AnswerStore, VectorStore
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement

_AT_ONCE = 64  # prompts that the model is asked in one call, and so the most a failure loses


class _OverFile:
    """What both caches do with their file; other processes get what they were made from."""

    store: Any
    _model: Any

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, {str(self.store.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._model, self.store.path)


class CachedLLM(_OverFile):
    """A model whose answers are kept in a SQLite file and asked for once.

    What identifies an answer is the model's name, the prompt, and every generation setting.
    A prompt that comes twice in a call is asked once. Sampling stays sampling: with a
    temperature and no seed nothing is kept; with a seed the first, second, ... answer to a
    prompt within a call are kept apart.

    Many threads and processes may share the file. The model is asked for at most 64 prompts at a
    time (with a seed, all samples of a prompt are among them), and what it answered is written at
    once, in one transaction, so that a failure or a killed process loses at most these. Two that
    ask for the same unknown answer at the same moment both ask the model.

    `CachedLLM(llm, path)` can do what `llm` can: over a `ScoringLLM` it is a
    `CachedScoringLLM`, over a `GradientLLM` a `CachedGradientLLM`. It is always an
    `AsyncLLM`; a model that is none is asked in a thread.

    Args:
        llm: the model; its `name` must tell its weights and prompt handling from others'.
        path: the SQLite file; made, with its folder, where there is none.

    Raises:
        CacheUnreadable: the file is corrupt, not an answer cache, of another version, or
            cannot be made. It is never overwritten or deleted.
        InvalidInput: a subclass was named that offers more than the model can do.
    """

    @overload
    def __new__(cls, llm: GradientLLM, path: str | os.PathLike[str]) -> "CachedGradientLLM": ...
    @overload
    def __new__(cls, llm: ScoringLLM, path: str | os.PathLike[str]) -> "CachedScoringLLM": ...
    @overload
    def __new__(cls, llm: LLM, path: str | os.PathLike[str]) -> "CachedLLM": ...
    def __new__(cls, llm: LLM, path: str | os.PathLike[str]) -> "CachedLLM":
        """An object of the class that can do what `llm` can, as `pathlib.Path` does."""
        able: type[CachedLLM] = CachedLLM
        if isinstance(llm, GradientLLM):
            able = CachedGradientLLM
        elif isinstance(llm, ScoringLLM):
            able = CachedScoringLLM
        if not issubclass(able, cls):
            raise InvalidInput(
                f"{cls.__name__} offers more than {llm.name} can do. Write CachedLLM(llm, path): "
                "it offers what the model can do."
            )
        return object.__new__(able)

    def __init__(self, llm: LLM, path: str | os.PathLike[str]) -> None:
        self._model: Any = llm  # what it can do, `llm` says in each class
        self.store: AnswerStore = AnswerStore(path)
        self.hits = 0
        """Answers that were there."""
        self.misses = 0
        """Answers that the model was asked for."""
        self._counting = threading.Lock()

    @property
    def llm(self) -> LLM:
        """The wrapped model."""
        return self._model

    @property
    def name(self) -> str:
        """The wrapped model's: their answers are the same."""
        return self.llm.name

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """As the model's own, or as it was the first time.

        Raises:
            ModelError: the model gave more or fewer generations than it was asked for.
            InvalidLogProbability: a log-probability is NaN or above 0; it is not kept.
            CacheUnreadable: the file was damaged or cannot be written any more.
        """
        if settings.temperature > 0 and settings.seed is None:
            self._count(hits=0, misses=len(prompts))
            return self.llm.generate(prompts, settings)
        keys = _keys(self.name, prompts, settings)
        return self._answered(prompts, keys, lambda some: self.llm.generate(some, settings))

    async def agenerate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """As `generate`; the file is read and written off the event loop."""
        if settings.temperature > 0 and settings.seed is None:
            self._count(hits=0, misses=len(prompts))
            return await self._ask(prompts, settings)
        keys = _keys(self.name, prompts, settings)
        known = await asyncio.to_thread(self.store.get, keys)
        missing = _missing(prompts, keys, known)
        for part in _parts(missing):
            start = perf_counter()
            fresh = await self._ask(list(part.values()), settings)
            known |= await asyncio.to_thread(self._kept, part, fresh, perf_counter() - start)
        return self._counted(keys, known, missing)

    def _answered(
        self,
        asked: Sequence[Any],
        keys: Sequence[bytes],
        ask: Callable[[list[Any]], Sequence[Generation]],
    ) -> list[Generation]:
        known = self.store.get(keys)
        missing = _missing(asked, keys, known)
        for part in _parts(missing):
            start = perf_counter()
            fresh = ask(list(part.values()))
            known |= self._kept(part, fresh, perf_counter() - start)
        return self._counted(keys, known, missing)

    async def _ask(self, prompts: Sequence[str], settings: GenerationSettings) -> list[Generation]:
        if isinstance(self.llm, AsyncLLM):
            return await self.llm.agenerate(prompts, settings)
        return await asyncio.to_thread(self.llm.generate, prompts, settings)

    def _kept(
        self, part: Mapping[bytes, Any], fresh: Sequence[Generation], seconds: float
    ) -> dict[bytes, Generation]:
        if len(fresh) != len(part):
            raise ModelError(
                f"{self.name} gave {len(fresh)} generations for {len(part)} prompts; "
                "a model gives one for each. Nothing was kept."
            )
        answers = {}
        for key, generation in zip(part, fresh, strict=True):
            for token in generation.tokens or ():
                checked_token(token, self.name)
            # an answer that says what it took, as one from another cache does, keeps its own
            took = seconds / len(part) if generation.seconds is None else generation.seconds
            answers[key] = replace(generation, seconds=took)
        self.store.put(answers)
        return answers

    def _counted(
        self, keys: Sequence[bytes], known: Mapping[bytes, Generation], missing: Mapping[bytes, Any]
    ) -> list[Generation]:
        self._count(hits=len(keys) - len(missing), misses=len(missing))
        return [known[key] for key in keys]

    def _count(self, *, hits: int, misses: int) -> None:
        with self._counting:
            self.hits += hits
            self.misses += misses


class CachedScoringLLM(CachedLLM):
    """A `CachedLLM` over a model that scores; scores are kept as well."""

    @property
    def llm(self) -> ScoringLLM:
        """The wrapped model."""
        return self._model

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Generation]:
        """As the model's own, or as it was the first time.

        Raises:
            InvalidInput: there are more prompts than continuations, or fewer.
            ModelError, InvalidLogProbability, CacheUnreadable: as `generate`.
        """
        if len(prompts) != len(continuations):
            raise InvalidInput(
                f"{len(prompts)} prompts came with {len(continuations)} continuations; score() "
                "takes one continuation for each prompt."
            )
        pairs = list(zip(prompts, continuations, strict=True))
        keys = [_key("score", self.name, *pair) for pair in pairs]
        return self._answered(
            pairs, keys, lambda some: self.llm.score(*map(list, zip(*some, strict=True)))
        )


@final
class CachedGradientLLM(CachedScoringLLM):
    """A `CachedLLM` over local weights; gradients are computed each time."""

    @property
    def llm(self) -> GradientLLM:
        """The wrapped model."""
        return self._model

    def mean_gradient(
        self, prompts: Sequence[str], continuations: Sequence[str], *, layers: int = 4
    ) -> Direction:
        """The model's own."""
        return self.llm.mean_gradient(prompts, continuations, layers=layers)

    def gradient_agreement(
        self,
        prompts: Sequence[str],
        continuations: Sequence[str],
        *,
        along: Direction,
        cosine: bool = False,
        layers: int = 4,
    ) -> list[GradientAgreement]:
        """The model's own."""
        return self.llm.gradient_agreement(
            prompts, continuations, along=along, cosine=cosine, layers=layers
        )


def _missing(
    prompts: Sequence[Any], keys: Sequence[bytes], known: Mapping[bytes, Generation]
) -> dict[bytes, Any]:
    """What the model has to be asked: the prompt (of scores: and its continuation) of each key."""
    # a seeded sampler that is asked for a prompt's third sample alone would give its first:
    # where one is missing, all samples of that prompt are asked for again
    wanted = {prompt for prompt, key in zip(prompts, keys, strict=True) if key not in known}
    return {key: p for key, p in zip(keys, prompts, strict=True) if p in wanted}


def _parts(missing: Mapping[bytes, Any]) -> Iterator[dict[bytes, Any]]:
    """Asked for, and kept, a call at a time; samples of a prompt have to come in one call."""
    samples: dict[Any, set[bytes]] = {}
    for key, prompt in missing.items():
        samples.setdefault(prompt, set()).add(key)
    part = set[bytes]()
    for keys in (*samples.values(), None):
        if part and (keys is None or len(part) + len(keys) > _AT_ONCE):
            yield {key: prompt for key, prompt in missing.items() if key in part}
            part = set[bytes]()
        part |= keys or set()


def _keys(name: str, prompts: Sequence[str], settings: GenerationSettings) -> list[bytes]:
    how = (settings.max_tokens, list(settings.stop), float(settings.temperature), settings.seed)
    seen: Counter[str] = Counter()
    keys = []
    for prompt in prompts:
        keys.append(_key("generate", name, prompt, *how, seen[prompt]))
        seen[prompt] += settings.temperature > 0
    return keys


def _key(*parts: object) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()


@final
class CachedEncoder(_OverFile):
    """An encoder whose vectors are kept in a SQLite file, by encoder name and text.

    Many threads and processes may share the file; it is never overwritten.

    Args:
        encoder: the encoder; its `name` must tell its weights from others'.
        path: the SQLite file; made, with its folder, where there is none.
    """

    def __init__(self, encoder: Encoder, path: str | os.PathLike[str]) -> None:
        self.encoder = self._model = encoder
        self.store: VectorStore = VectorStore(path)

    @property
    def name(self) -> str:
        """The wrapped encoder's: their vectors are the same."""
        return self.encoder.name

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """One row per text, in the order of the texts."""
        if not texts:
            return self.encoder.encode([])
        keys = [_key("encode", self.name, text) for text in texts]
        known = self.store.get(keys)
        missing = {k: text for k, text in zip(keys, texts, strict=True) if k not in known}
        self._check_lengths(known.values())
        if missing:
            fresh = dict(zip(missing, self._encoded(list(missing.values())), strict=True))
            self._check_lengths([*known.values(), *fresh.values()])
            self.store.put(fresh)
            known |= fresh
        return np.stack([known[key] for key in keys])

    def _encoded(self, texts: list[str]) -> Float32[np.ndarray, "texts dim"]:
        rows = np.asarray(self.encoder.encode(texts), dtype=np.float32)
        if len(rows) != len(texts):
            raise ModelError(f"{self.name} gave {len(rows)} vectors for {len(texts)} texts")
        for text, row in zip(texts, rows, strict=True):
            if not np.isfinite(row).all():
                raise ModelError(
                    f"{self.name} gave NaN or infinity for {text[:40]!r}; nothing was kept"
                )
        return rows

    def _check_lengths(self, vectors: Iterable[np.ndarray]) -> None:
        lengths = {len(vector) for vector in vectors}
        if len(lengths) > 1:
            raise CacheUnreadable(
                f"the vectors of {self.name} in {self.store.path} are of different lengths "
                f"({sorted(lengths)}): the file is corrupt, or the encoder has changed under its "
                "name. It was left as it is; choose another path."
            )
