"""Any model with its answers kept, any encoder with its vectors: nothing is paid for twice."""

import asyncio
import hashlib
import json
import os
import threading
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, final

import numpy as np
from jaxtyping import Float32

from ltrag_plugins.errors import CacheUnreadable, InvalidInput, ModelError, listed
from ltrag_plugins.llm.base import (
    LLM,
    EachLLM,
    Encoder,
    GradientLLM,
    ScoringLLM,
    checked_prompts,
    checked_token,
    checked_vectors,
)
from ltrag_plugins.llm.openai_format import REFUSABLE
from ltrag_plugins.llm.store import SQLiteFile
from ltrag_plugins.types import Generation, GenerationSettings, Token

_AT_ONCE = 64  # prompts that a model is asked in one call, and so the most a failure loses
_TEXTS_AT_ONCE = 512  # likewise of an encoder, which sorts and batches them itself
_Asked = tuple[str, GenerationSettings]


class _Kept(SQLiteFile, ABC):
    """Values by key; other processes get the model and the path."""

    _schema = "CREATE TABLE answers (key BLOB PRIMARY KEY, answer TEXT NOT NULL);"

    @abstractmethod
    def _encoded(self, value: Any) -> str | bytes: ...

    @abstractmethod
    def _decoded(self, kept: Any) -> Any:
        """The inverse of `_encoded`; a TypeError or ValueError says that the file is corrupt."""

    def __init__(self, model: Any, path: str | os.PathLike[str]) -> None:
        self._model = model
        super().__init__(path)

    @property
    def name(self) -> str:
        """The wrapped model's or encoder's: their answers are the same."""
        return self._model.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, {str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._model, self.path)

    def _get(self, keys: Iterable[bytes]) -> dict[bytes, Any]:
        """The values that are there."""
        query = "SELECT answer FROM answers WHERE key = ?"
        with self._connection() as connection:
            rows = ((key, connection.execute(query, (key,)).fetchone()) for key in keys)
            return {key: self._decoded(row[0]) for key, row in rows if row is not None}

    def _put(self, values: Mapping[bytes, Any]) -> None:
        """Keep these values, all or none; the first one kept under a key stays."""
        rows = [(key, self._encoded(value)) for key, value in values.items()]
        with self._connection() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)


def generation_to_json(value: Generation) -> str:
    """JSON, every float exactly itself."""
    tokens = value.tokens and [(t.text, t.logprob, t.entropy, t.alternatives) for t in value.tokens]
    counts = value.prompt_tokens, value.completion_tokens
    parts = (value.text, tokens, *counts, value.seconds, value.finish_reason)
    return json.dumps(parts, default=float)  # NumPy scalars are no floats to json


def generation_from_json(kept: Any) -> Generation:
    """The inverse; raises TypeError or ValueError for anything else."""
    text, tokens, *others = json.loads(kept)
    if tokens is not None:
        tokens = tuple(
            Token(piece, logprob, entropy, tuple((t, p) for t, p in alternatives))
            for piece, logprob, entropy, alternatives in tokens
        )
    return Generation(text, tokens, *others[:4])


@final
class CachedLLM(_Kept):
    """A model whose answers are kept in a SQLite file and asked for once.

    An answer is known by the model's name, the prompt, and every generation setting. With a
    temperature and no seed nothing is kept; with a seed the first, second, ... answer to a prompt
    within a call are kept apart.

    Many threads and processes may share the file. Of a model that is sent each prompt in a request
    of its own (`RequestLLM`), each answer is written when it comes. Any other model is asked for at
    most 64 prompts at a time (all seeded samples of a prompt together), written in one transaction.

    It is a `ScoringLLM` over a `ScoringLLM`, whose scores are kept as well, and a `GradientLLM`
    over a `GradientLLM`, whose gradients are not. A model that is no `AsyncLLM` is asked in a
    thread by `agenerate`.

    Args:
        llm: the model; its `name` must tell its weights and prompt handling from others'.
        path: the SQLite file; made, with its folder, where there is none.

    Raises:
        CacheUnreadable: the file is corrupt, not an answer cache, of another version, or
            cannot be made. It is never overwritten or deleted.
    """

    _kind, _mark = "answer cache", 0x4C545241  # "LTRA"

    def __init__(self, llm: LLM, path: str | os.PathLike[str]) -> None:
        super().__init__(llm, path)
        self.llm = llm
        self.hits = self.misses = 0
        """Answers that were there when they were asked for; those that the model gave."""
        self._counting = threading.Lock()
        self._one_by_one = bool(getattr(llm, "one_by_one", False))
        # of the object, not the class: it claims what its model can do, and no more
        if isinstance(llm, EachLLM):
            self.generate_each, self.agenerate_each = self._generate_each, self._agenerate_each
        if isinstance(llm, ScoringLLM):
            self.score = self._score
        if isinstance(llm, GradientLLM):
            self.mean_gradient = llm.mean_gradient
            self.gradient_agreement = llm.gradient_agreement

    @property
    def refused(self) -> Set[str]:
        """What the model's server refuses (see `RequestLLM`), in this run or the one before."""
        now = getattr(self.llm, "refused", frozenset())
        if now:
            self._put({_key("refused", self.name, one): Generation(one) for one in now})
        keys = [_key("refused", self.name)]  # of earlier versions: one row for all
        kept = self._get(keys + [_key("refused", self.name, one) for one in REFUSABLE])
        return {*now, *(setting for row in kept.values() for setting in row.text.split())}

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """As the model's own, or as it was the first time.

        Raises:
            ModelError: the model gave more or fewer generations than it was asked for.
            InvalidLogProbability: a log-probability is NaN or above 0; it is not kept.
            CacheUnreadable: the file was damaged or cannot be written any more.
        """
        asked = [(prompt, settings) for prompt in checked_prompts(prompts)]
        return self._asked(asked, _for_all(self._model.generate))

    def _generate_each(
        self, prompts: Sequence[str], settings: Sequence[GenerationSettings]
    ) -> list[Generation]:
        """See `EachLLM`."""
        asked = [*zip(checked_prompts(prompts), settings, strict=True)]
        return self._asked(asked, _for_each(self._model.generate_each))

    def _asked(self, asked: Sequence[_Asked], ask: Any) -> list[Generation]:
        if all(map(_is_kept, asked)):
            return self._answered(asked, _keys(self.name, asked), ask, self._one_by_one)
        found = ask(asked)
        self._count(misses=len(found))
        return found

    async def agenerate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """As `generate`; the file is read and written off the event loop."""
        asked = [(prompt, settings) for prompt in checked_prompts(prompts)]
        return await self._aasked(asked, _for_all(self._awaited("generate")))

    async def _agenerate_each(
        self, prompts: Sequence[str], settings: Sequence[GenerationSettings]
    ) -> list[Generation]:
        asked = [*zip(checked_prompts(prompts), settings, strict=True)]
        return await self._aasked(asked, _for_each(self._awaited("generate_each")))

    def _awaited(self, call: str) -> Callable[..., Any]:
        """The model's own async call, or its call in a thread."""
        own = getattr(self.llm, f"a{call}", None)
        return own or partial(asyncio.to_thread, getattr(self.llm, call))

    async def _aasked(self, asked: Sequence[_Asked], ask: Any) -> list[Generation]:
        if not all(map(_is_kept, asked)):
            found = await ask(asked)
            self._count(misses=len(found))
            return found
        keys = _keys(self.name, asked)
        known, parts = await asyncio.to_thread(self._known, asked, keys, self._one_by_one)
        for part in parts:
            start, some = perf_counter(), list(part.values())
            if self._one_by_one:
                await ask(some, done=partial(self._keep_one, list(part), known))
                continue
            fresh = await ask(some)
            known |= await asyncio.to_thread(self._keep, part, fresh, perf_counter() - start)
        return [known[key] for key in keys]

    def _score(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Generation]:
        """As the model's own, or as it was the first time; raises what `generate` raises."""
        if len(checked_prompts(prompts)) != len(continuations):
            why = f"{len(prompts)} prompts came with {len(continuations)} continuations"
            raise InvalidInput(f"{why}; score() takes one continuation for each prompt.")
        pairs = list(zip(prompts, continuations, strict=True))
        keys = [_key("score", self.name, *pair) for pair in pairs]
        score = self._model.score
        return self._answered(pairs, keys, lambda some: score(*map(list, zip(*some, strict=True))))

    def _encoded(self, value: Generation) -> str:
        return generation_to_json(value)

    def _decoded(self, kept: Any) -> Generation:
        return generation_from_json(kept)

    def _answered(
        self,
        asked: Sequence[Any],
        keys: Sequence[bytes],
        ask: Callable[..., Sequence[Generation]],
        one_by_one: bool = False,
    ) -> list[Generation]:
        known, parts = self._known(asked, keys, one_by_one)
        for part in parts:
            start, some = perf_counter(), list(part.values())
            if one_by_one:
                ask(some, done=partial(self._keep_one, list(part), known))
                continue
            known |= self._keep(part, ask(some), perf_counter() - start)
        return [known[key] for key in keys]

    def _known(
        self, asked: Sequence[Any], keys: Sequence[bytes], one_by_one: bool
    ) -> tuple[dict[bytes, Generation], list[dict[bytes, Any]]]:
        """What is there, and the calls to make for the rest, each what to ask by key. A seeded
        sampler that is asked for a prompt's third sample alone would give its first: where one is
        missing, all of that prompt are asked for again, if not `one_by_one`."""
        known, by_key = self._get(keys), dict(zip(keys, asked, strict=True))
        most = len(keys) if one_by_one else _AT_ONCE
        samples, calls = defaultdict[Any, set[bytes]](set), list[set[bytes]]()
        for key, one in by_key.items():
            samples[key if one_by_one else one].add(key)
        for some in (own for own in samples.values() if not own <= known.keys()):
            if not calls or len(calls[-1]) + len(some) > most:
                calls.append(set())
            calls[-1] |= some
        self._count(hits=len(keys) - sum(map(len, calls)))
        return known, [{key: by_key[key] for key in by_key if key in call} for call in calls]

    def _keep_one(
        self, keys: Sequence[bytes], known: dict, i: int, fresh: Generation, seconds: float
    ) -> None:
        known.update(self._keep([keys[i]], [fresh], seconds))

    def _keep(
        self, part: Collection[bytes], fresh: Sequence[Generation], seconds: float
    ) -> dict[bytes, Generation]:
        self._count(misses=len(fresh))
        if len(fresh) != len(part):
            why = f"{self.name} gave {len(fresh)} generations for {len(part)} prompts"
            raise ModelError(f"{why}; a model gives one for each. Nothing was kept.")
        answers = {}
        for key, generation in zip(part, fresh, strict=True):
            for token in generation.tokens or ():
                checked_token(token, self.name)
            # an answer that says what it took, as one from another cache does, keeps its own
            took = seconds / len(part) if generation.seconds is None else generation.seconds
            answers[key] = replace(generation, seconds=took)
        self._put(answers)
        return answers | self._get(answers)  # another's, where that came first, as ever after

    def _count(self, hits: int = 0, misses: int = 0) -> None:
        with self._counting:
            self.hits += hits
            self.misses += misses


def _for_all(call: Callable[..., Any]) -> Callable[..., Any]:
    """Asks for prompts that have the same settings."""
    return lambda asked, **more: call([one for one, _ in asked], settings=asked[0][1], **more)


def _for_each(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda asked, **more: call(*map(list, zip(*asked, strict=True)), **more)


def _is_kept(asked: _Asked) -> bool:
    return asked[1].temperature == 0 or asked[1].seed is not None


def _keys(name: str, asked: Sequence[_Asked]) -> list[bytes]:
    seen, keys = Counter[_Asked](), list[bytes]()
    for one in asked:
        prompt, how = one
        parts = how.max_tokens, list(how.stop), float(how.temperature), how.seed, seen[one]
        keys.append(_key("generate", name, prompt, *parts))
        seen[one] += how.temperature > 0
    return keys


def _key(*parts: object) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()


@final
class CachedEncoder(_Kept):
    """An encoder whose vectors are kept in a SQLite file, by encoder name and text. Many threads
    and processes may share the file; it is never overwritten.

    The encoder is asked for at most 512 texts at a time, written in one transaction. Where it has
    an async call (`aencode`), so has this.

    Args:
        encoder: the encoder; its `name` must tell its weights from others'.
        path: the SQLite file; made, with its folder, where there is none.
    """

    _kind, _mark = "vector cache", 0x4C545256  # "LTRV"

    def __init__(self, encoder: Encoder, path: str | os.PathLike[str]) -> None:
        super().__init__(encoder, path)
        self.encoder = encoder
        if hasattr(encoder, "aencode"):
            self.aencode = self._aencode

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """One row per text, in the order of the texts."""
        if not texts:
            return self.encoder.encode([])
        keys, known, parts = self._known(texts)
        for part in parts:
            known = self._keep(part, self.encoder.encode(list(part.values())), known)
        return np.stack([known[key] for key in keys])

    async def _aencode(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """As `encode`, by the encoder's own async call; the file is used off the event loop."""
        if not texts:
            return await self._model.aencode([])
        keys, known, parts = await asyncio.to_thread(self._known, texts)
        for part in parts:
            rows = await self._model.aencode(list(part.values()))
            known = await asyncio.to_thread(self._keep, part, rows, known)
        return np.stack([known[key] for key in keys])

    def _known(
        self, texts: Sequence[str]
    ) -> tuple[list[bytes], dict[bytes, np.ndarray], list[dict[bytes, str]]]:
        """The texts' keys, the vectors that are there, and the calls to make for the rest."""
        texts = listed(texts, "texts")
        keys = [_key("encode", self.name, text) for text in texts]
        known = self._alike(self._get(keys))
        missing = {k: text for k, text in zip(keys, texts, strict=True) if k not in known}
        rest, starts = [*missing.items()], range(0, len(missing), _TEXTS_AT_ONCE)
        return keys, known, [dict(rest[start : start + _TEXTS_AT_ONCE]) for start in starts]

    def _keep(
        self, part: Mapping[bytes, str], given: Any, known: dict[bytes, np.ndarray]
    ) -> dict[bytes, np.ndarray]:
        """The vectors that are there once these are."""
        asked = list(part.values())
        rows = checked_vectors(given, len(asked), self.name).astype(np.float32, copy=False)
        if not (sound := np.isfinite(rows).all(axis=1)).all():
            text = asked[int(sound.argmin())]
            raise ModelError(f"{self.name} gave NaN or infinity for {text[:40]!r}; none kept")
        fresh = dict(zip(part, rows, strict=True))
        known = self._alike(known | fresh)
        self._put(fresh)
        return known

    def _alike(self, known: dict[bytes, np.ndarray]) -> dict[bytes, np.ndarray]:
        if len(lengths := set(map(len, known.values()))) > 1:
            raise CacheUnreadable(
                f"the vectors of {self.name} in {self.path} are of different lengths "
                f"({sorted(lengths)}): the file is corrupt, or the encoder has changed under its "
                "name. It was left as it is; choose another path."
            )
        return known

    def _encoded(self, value: np.ndarray) -> bytes:
        """Its bytes as float32, the least significant first."""
        return value.astype("<f4").tobytes()

    def _decoded(self, kept: Any) -> np.ndarray:
        return np.frombuffer(kept, dtype="<f4").astype(np.float32)
