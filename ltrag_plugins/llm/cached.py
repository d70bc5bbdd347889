"""Any model, its answers kept: nothing is paid for twice.

Any encoder, its vectors kept: no text is encoded twice.
"""

import asyncio
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol, Self, final, overload, runtime_checkable

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

AT_ONCE = 64
"""Prompts that the model is asked for in one call, and so the most that a failure loses."""


@runtime_checkable
class Remembering(Protocol):
    """A model that keeps something of its calls to be faster in later ones; not its answers."""

    def forget(self) -> None:
        """Be as slow as at first; no answer changes."""
        ...


class CachedLLM:
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
        self._llm: Any = llm  # what it can do, `llm` says in each class
        self.store = AnswerStore(path)
        self.hits = 0
        """Answers that were there."""
        self.misses = 0
        """Answers that the model was asked for."""
        self._counting = threading.Lock()

    @property
    def llm(self) -> LLM:
        """The wrapped model."""
        return self._llm

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
        known = self.store.get(keys)
        missing = _missing(prompts, keys, known)
        for part in _parts(missing):
            start = perf_counter()
            fresh = self.llm.generate(part.prompts, settings)
            known |= self._kept(part, _timed(fresh, start))
        return self._counted(keys, known, missing)

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
            fresh = _timed(await self._ask(part.prompts, settings), start)
            known |= await asyncio.to_thread(self._kept, part, fresh)
        return self._counted(keys, known, missing)

    def forget(self) -> None:
        """Let the model forget, where it remembers (`Remembering`); what is in the file stays."""
        if isinstance(self.llm, Remembering):
            self.llm.forget()

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.llm!r}, {str(self.store.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # as what it was made from, where the model travels; open files do not
        return CachedLLM, (self.llm, self.store.path)

    async def _ask(self, prompts: Sequence[str], settings: GenerationSettings) -> list[Generation]:
        if isinstance(self.llm, AsyncLLM):
            return await self.llm.agenerate(prompts, settings)
        return await asyncio.to_thread(self.llm.generate, prompts, settings)

    def _kept(self, missing: "_Missing", fresh: Sequence[Generation]) -> dict[bytes, Generation]:
        if len(fresh) != len(missing.keys):
            raise ModelError(
                f"{self.name} gave {len(fresh)} generations for {len(missing.keys)} prompts; "
                "a model gives one for each. Nothing was kept."
            )
        for generation in fresh:
            for token in generation.tokens or ():
                checked_token(token, self.name)
        answers = dict(zip(missing.keys, fresh, strict=True))
        self.store.put(answers)
        return answers

    def _counted(
        self, keys: Sequence[bytes], known: dict[bytes, Generation], missing: "_Missing | None"
    ) -> list[Generation]:
        asked = len(missing.keys) if missing else 0
        self._count(hits=len(keys) - asked, misses=asked)
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
        return self._llm

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
        known = self.store.get(keys)
        missing = _missing(pairs, keys, known)
        for part in _parts(missing):
            start = perf_counter()
            fresh = self.llm.score(*map(list, zip(*part.prompts, strict=True)))
            known |= self._kept(part, _timed(fresh, start))
        return self._counted(keys, known, missing)


@final
class CachedGradientLLM(CachedScoringLLM):
    """A `CachedLLM` over local weights; gradients are computed each time."""

    @property
    def llm(self) -> GradientLLM:
        """The wrapped model."""
        return self._llm

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


@dataclass(frozen=True, slots=True)
class _Missing:
    keys: list[bytes]
    prompts: list[Any]


def _missing(
    prompts: Sequence[Any], keys: Sequence[bytes], known: dict[bytes, Generation]
) -> _Missing | None:
    # a seeded sampler that is asked for a prompt's third sample alone would give its first:
    # where one is missing, all samples of that prompt are asked for again
    wanted = {prompt for prompt, key in zip(prompts, keys, strict=True) if key not in known}
    asked = {key: p for key, p in zip(keys, prompts, strict=True) if p in wanted}
    return _Missing(list(asked), list(asked.values())) if asked else None


def _parts(missing: _Missing | None) -> Iterator[_Missing]:
    """Asked for, and kept, a call at a time; samples of a prompt have to come in one call."""
    if missing is None:
        return
    samples: dict[Any, list[int]] = {}
    for place, prompt in enumerate(missing.prompts):
        samples.setdefault(prompt, []).append(place)
    part: list[int] = []
    for places in samples.values():
        if part and len(part) + len(places) > AT_ONCE:
            yield _part(missing, part)
            part = []
        part += places
    yield _part(missing, part)


def _part(missing: _Missing, places: Sequence[int]) -> _Missing:
    places = sorted(places)
    return _Missing([missing.keys[i] for i in places], [missing.prompts[i] for i in places])


def _timed(fresh: Sequence[Generation], start: float) -> list[Generation]:
    """With the time that each took: what an answer cost is known when it comes from the file.

    An answer that says so itself, as one from another cache does, keeps its own.
    """
    share = (perf_counter() - start) / max(1, len(fresh))
    return [replace(g, seconds=share if g.seconds is None else g.seconds) for g in fresh]


def _keys(name: str, prompts: Sequence[str], settings: GenerationSettings) -> list[bytes]:
    seen: Counter[str] = Counter()
    keys = []
    for prompt in prompts:
        keys.append(
            _key(
                "generate",
                name,
                prompt,
                settings.max_tokens,
                list(settings.stop),
                float(settings.temperature),
                settings.seed,
                seen[prompt],
            )
        )
        seen[prompt] += settings.temperature > 0
    return keys


def _key(*parts: object) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()


@final
class CachedEncoder:
    """An encoder whose vectors are kept in a SQLite file, by encoder name and text.

    Many threads and processes may share the file; it is never overwritten.

    Args:
        encoder: the encoder; its `name` must tell its weights from others'.
        path: the SQLite file; made, with its folder, where there is none.

    Raises:
        CacheUnreadable: the file is corrupt, no vector cache, or cannot be made.
    """

    def __init__(self, encoder: Encoder, path: str | os.PathLike[str]) -> None:
        self.encoder = encoder
        self.store = VectorStore(path)

    @property
    def name(self) -> str:
        """The wrapped encoder's: their vectors are the same."""
        return self.encoder.name

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """One row per text, in the order of the texts.

        Raises:
            ModelError: the encoder gave more or fewer rows than it was asked for, or NaN.
            CacheUnreadable: the file was damaged, or holds vectors of different lengths.
        """
        if not texts:
            return self.encoder.encode([])
        keys = [_key_cached_encoder(self.name, text) for text in texts]
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

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # travels to worker processes as what it was made from; open files do not
        return CachedEncoder, (self.encoder, self.store.path)

    def __repr__(self) -> str:
        return f"CachedEncoder({self.encoder!r}, {str(self.store.path)!r})"


def _key_cached_encoder(name: str, text: str) -> bytes:
    return hashlib.sha256(json.dumps(["encode", name, text]).encode()).digest()
