"""A trained head at work: `DURRanker` ranks passages or examples for a question, without torch: the
encoder gives vectors, the head is a matrix product."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from os import PathLike
from typing import Any, ClassVar, Self, cast, final

import numpy as np
from jaxtyping import Float

from ltrag_plugins import artifacts
from ltrag_plugins.calibration import softmax
from ltrag_plugins.dur.head import Head
from ltrag_plugins.dur.policy import top
from ltrag_plugins.dur.prompts import PromptFormat, Shot, text_of
from ltrag_plugins.dur.settings import Bounds, DURSettings
from ltrag_plugins.errors import EmptyQuestion, InvalidInput, checked, listed, path_of
from ltrag_plugins.flow import World, check_world
from ltrag_plugins.llm.base import Encoder, checked_vectors

_Vector = Float[np.ndarray, " dim"]
_Vectors = Float[np.ndarray, "docs dim"]
_FORMAT = 1
_keeping = threading.Lock()  # of no object: rankers are copied and sent to workers


@dataclass(frozen=True, slots=True)
class Ranked:
    """One candidate's place."""

    index: int
    """Among the candidates as they were handed in."""
    score: float
    """S: the policy's probability of it as the first pick, in [0, 1] (eq. 4)."""


@final
class DURRanker:
    """Ranks candidates by what a head learned. Safe to share between threads.

    Args:
        head: from a `DURTrainer`, or `DURRanker.untrained`.
        encoder: the one the head was trained with.
        settings: those of the training.
        sigma: the threshold at the end of the training.
        shots: how many examples to answer with; None: K of the settings.
        data: what the training saw, as a count and a hash; it is saved with the head.
        cached_texts: candidates, the last seen, whose vectors are kept in memory by their text, so
            that each is encoded once (384 float32 numbers are 1.5 kB); 0: none.
    """

    head: Head
    encoder: Encoder
    settings: DURSettings
    sigma: float
    shots: int
    data: str
    cached_texts: int

    def __init__(
        self,
        head: Head,
        encoder: Encoder,
        settings: DURSettings,
        *,
        sigma: float = 0.0,
        shots: int | None = None,
        data: str = "",
        cached_texts: int = 4096,
    ) -> None:
        self.head, self.encoder, self.settings, self.sigma = head, encoder, settings, float(sigma)
        self.shots, self.data = settings.shots if shots is None else shots, data
        self.cached_texts, self._kept = cached_texts, OrderedDict[bytes, _Vector]()
        Bounds(sigma=self.sigma)
        if cached_texts < 0:
            raise InvalidInput(f"cached_texts must be at least 0, got {cached_texts}")
        if self.shots < 1:
            raise InvalidInput(f"shots must be at least 1, got {shots}")
        if head.weight.ndim != 2 or head.bias.shape != head.weight.shape[:1]:
            raise InvalidInput(f"W of {head.weight.shape} and b of {head.bias.shape} do not fit")

    @classmethod
    def untrained(cls, encoder: Encoder, *, settings: DURSettings | None = None) -> Self:
        """Plain similarity: the dot product of the encoder's own vectors."""
        check_world(World(encoder=encoder))
        size = encoder.encode(["the dimension of a vector"]).shape[1]
        return cls(Head(np.eye(size), np.zeros(size)), encoder, settings or DURSettings())

    @classmethod
    def load(cls, folder: str | PathLike[str], *, encoder: Encoder) -> Self:
        """From a folder that `save` wrote: whole, or `UnreadableArtifact` is raised, and trained
        with this encoder, or `ArtifactMismatch`."""
        check_world(World(encoder=encoder))
        folder, kinds = path_of(folder), (Head, DURSettings, PromptFormat)
        remedy = "Train one with DURTrainer or 'ltrag rerank train', and save it there."
        with artifacts.reading(f"{folder} holds no readable head", remedy):
            known: Any = {"parts": ("encoder", "sigma", "shots", "settings", "head")}
            known |= {"optional": ("data",), "kinds": kinds, "format": _FORMAT}
            parts, _ = artifacts.read(folder, "dur", **known)
            trained_with, head = parts.pop("encoder"), parts["head"]
            ranker = cls(encoder=encoder, **parts)
            if not (isinstance(trained_with, str) and isinstance(ranker.settings, DURSettings)):
                raise ValueError("its encoder or its settings are missing")
            if not (np.isfinite(head.weight).all() and np.isfinite(head.bias).all()):
                raise ValueError("a number of the head is not finite")
        artifacts.check_part(f"the head in {folder}", "encoder", trained_with, encoder.name)
        return ranker

    def save(self, folder: str | PathLike[str]) -> None:
        """Write `dur.json` (readable) and `dur.safetensors` (the head); no pickle. A reward
        function of the user's is left out, as a head needs none to rank."""
        own = not isinstance(self.settings.reward, str)
        settings = replace(self.settings, reward="match") if own else self.settings
        parts: dict[str, Any] = {"encoder": self.encoder.name, "sigma": self.sigma}
        parts |= {"shots": self.shots, "settings": settings, "head": self.head, "data": self.data}
        artifacts.write(folder, "dur", parts, format=_FORMAT)

    @property
    def name(self) -> str:
        """What tells it from rankers that learned something else, or with another encoder."""
        learned = [self.head.weight, self.head.bias, self.sigma]
        return f"{self.encoder.name}/{artifacts.digest(learned)}"

    def without_encoder(self) -> Self:
        """For `rank_vectors` alone, as in workers that have an encoder of their own."""
        parts = self.head, _NoEncoder(self.encoder.name), self.settings
        return type(self)(*parts, sigma=self.sigma, shots=self.shots, data=self.data)

    def rank(
        self,
        question: str,
        candidates: Sequence[Shot],
        *,
        top_n: int | None = None,
        sigma: float = 0.0,
    ) -> list[Ranked]:
        """The best candidates, best first.

        Args:
            top_n: most to return; None: all that are above sigma.
            sigma: leave out what has a score of at most this (eq. 6), 0 to 1; at 0 nothing is.

        Raises:
            EmptyQuestion: the question is blank.
            InvalidInput: top_n below 1 or sigma out of range.
            ArtifactMismatch: the encoder's vectors have another dimension.
            ModelError: the encoder gave more or fewer vectors than texts.
        """
        candidates = listed(candidates, "candidates")
        texts, placed = self._asked(question, candidates, top_n, sigma)
        return placed(self.encoder.encode(texts)) if candidates else []

    async def arank(
        self,
        question: str,
        candidates: Sequence[Shot],
        *,
        top_n: int | None = None,
        sigma: float = 0.0,
    ) -> list[Ranked]:
        """As `rank`; awaits the encoder's `aencode` where it has one, else encodes in a thread."""
        candidates = listed(candidates, "candidates")
        texts, placed = self._asked(question, candidates, top_n, sigma)
        encode: Any = partial(asyncio.to_thread, self.encoder.encode)
        encode = getattr(self.encoder, "aencode", encode)
        return placed(await encode(texts)) if candidates else []

    def _asked(
        self, question: str, candidates: Sequence[Shot], top_n: int | None, sigma: float
    ) -> tuple[list[str], Callable[[_Vectors], list[Ranked]]]:
        """The question and the texts to encode, and what makes a ranking of their vectors; it keeps
        these, unless they cannot be used."""
        if not checked(question, str, "the question", "a string").strip():
            raise EmptyQuestion("the question is empty; there is nothing to rank by")
        texts = [text_of(candidate, self.settings.encoded) for candidate in candidates]
        keys = [sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        with _keeping:
            known = {key: self._kept[key] for key in keys if key in self._kept}
        missing = {k: text for k, text in zip(keys, texts, strict=True) if k not in known}

        def placed(rows: _Vectors) -> list[Ranked]:
            rows = checked_vectors(rows, 1 + len(missing), self.encoder.name)
            vectors = known | {k: row.copy() for k, row in zip(missing, rows[1:], strict=True)}
            offered = np.stack([vectors[key] for key in keys]).astype(float)
            ranked = self.rank_vectors(rows[0].astype(float), offered, top_n=top_n, sigma=sigma)
            with _keeping:
                for key in vectors:
                    self._kept[key] = self._kept.pop(key, vectors[key])
                while len(self._kept) > self.cached_texts:
                    self._kept.popitem(last=False)
            return ranked

        return [question, *missing.values()], placed

    def rank_vectors(
        self,
        question: _Vector,
        candidates: _Vectors,
        *,
        top_n: int | None = None,
        sigma: float = 0.0,
    ) -> list[Ranked]:
        """As `rank`, over vectors that are at hand."""
        Bounds(top_n, sigma)
        if not len(candidates):
            return []
        # each vector once: a matrix product may round equal rows differently
        distinct, places = np.unique(candidates, axis=0, return_inverse=True)
        raw = self.head.scores(question, distinct)[places]
        scores = softmax(raw)
        # a score can be rounded to 0, which is no reason to lose a document or its place
        kept = [i for i in top(raw, top_n or len(raw)) if scores[i] > sigma or sigma == 0]
        return [Ranked(int(i), float(scores[i])) for i in kept]

    def __repr__(self) -> str:
        rows, columns = self.head.weight.shape
        return f"DURRanker({rows}x{columns}, encoder={self.encoder.name!r})"


@dataclass(frozen=True, slots=True)
class _NoEncoder:
    """Stands for an encoder that is elsewhere."""

    name: str

    def encode(self, texts: Sequence[str]) -> _Vectors:
        raise InvalidInput(f"this ranker left its encoder, {self.name}, behind: use rank_vectors")


class HeadHolder:
    """What the rerankers and selectors of the integrations share. `InvalidInput` is raised where
    there is no trained head (the message has the command that trains one), or a value is out of its
    range."""

    ranker: DURRanker
    _encoder_of: ClassVar[Callable[[Any], Encoder]]
    """From the framework's embeddings, or an encoder of ours, to an encoder of ours."""

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike[str],
        *,
        encoder: Any = None,
        top_n: int | None = None,
        sigma: float = 0.0,
    ) -> Self:
        """With the head that `save`, `DURRanker.save` or `ltrag rerank train` wrote.

        Args:
            encoder: the one the head was trained with, ours or the framework's; in LlamaIndex
                None is that of its `Settings`.
            top_n, sigma: as for the class.

        Raises as `DURRanker.load`.
        """
        ranker = DURRanker.load(folder, encoder=cls._encoder_of(encoder))
        return cast(Any, cls)(ranker, top_n=top_n, sigma=sigma)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the head, and nothing else."""
        self.ranker.save(folder)

    @classmethod
    def _chosen(
        cls, ranker: DURRanker | None, encoder: Any, untrained: str | None, **bounds: Any
    ) -> DURRanker:
        """The ranker itself, or plain similarity where that is asked for in so many words."""
        ours = None if encoder is None else cls._encoder_of(encoder)
        if ranker is not None:
            checked(ranker, DURRanker, "ranker", "a DURRanker")
            if ours is not None or untrained is not None:
                raise InvalidInput(
                    "a ranker brings its own encoder: leave encoder and untrained out."
                )
        elif untrained != "encoder" or ours is None:
            raise InvalidInput(
                "there is no trained head to rank with. Train one with 'ltrag rerank train "
                "candidates.jsonl validation.jsonl --model ... --out head/', and load it with "
                "from_pretrained. Or rank by plain similarity, which needs encoder=... and "
                f"untrained='encoder', got {untrained!r}."
            )
        else:
            ranker = DURRanker.untrained(ours, settings=DURSettings(preselect="encoder"))
        Bounds(**bounds)
        return ranker
