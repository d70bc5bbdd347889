"""Which shots a question is asked with: a preselection from a pool, and an order.

A solved example is never shown for its own question, since it would hold the answer.

Source: Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", section 6.1 and algorithm 1, line 8.
"""

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Generic, Self, TypeVar, final
from unicodedata import normalize

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.dur.policy import top
from ltrag_plugins.dur.prompts import Shot, text_of
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.settings import DURSettings, Preselect
from ltrag_plugins.errors import EmptyQuestion, InvalidInput
from ltrag_plugins.flow import World, check_world
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.retrieval.dense import unit_rows
from ltrag_plugins.types import Passage, Question

_T = TypeVar("_T")
# of C++ and C#, or 2 + 3 and 2 - 3, a question asks something else; punctuation tells none apart
_WORD_OR_SIGN = re.compile(r"""\w+|[^\w\s.,;:!?…¿¡'"‘’“”«»、。]""")
_Picks = Int[np.ndarray, " picks"]
_Vector = Float[np.ndarray, " dim"]
_Vectors = Float[np.ndarray, "rows dim"]
_adding = threading.Lock()  # of no pool, as a pool is copied


@final
@dataclass(frozen=True, eq=False)
class Preselector:
    """Chooses C' from one pool of candidates; indexed once, asked often."""

    candidates: Sequence[Shot]
    vectors: _Vectors | None = None
    """Of the candidates; only "encoder" and "both" need them."""
    how: Preselect = "none"
    size: int = 20
    """|C'|."""
    fill: bool = True
    """Whether BM25 fills up with candidates that share no word with the question."""
    text: Callable[[Shot], str] = text_of
    """What of a candidate, and of a question without its answers, is searched and encoded."""

    @classmethod
    def of(cls, settings: DURSettings, candidates: Sequence[Shot], vectors: _Vectors) -> Self:
        """As a head's training chooses."""
        text = partial(text_of, encoded=settings.encoded)
        return cls(candidates, vectors, settings.preselect, settings.preselected, text=text)

    def query(self, question: Question) -> str:
        """What of a question is searched for, and encoded."""
        return self.text(replace(question, answers=()))

    def choose(self, question: Question, vector: _Vector | None = None) -> _Picks:
        """Indices into the pool, best first, without the question itself."""
        key = _key(question)
        allowed = np.array([found != key for found in self._keys], dtype=bool)
        if self.how == "none":
            return np.flatnonzero(allowed)
        everything, orders = np.arange(len(allowed)), []
        if self.how != "encoder":
            spare = int((~allowed).sum())
            [found] = self._bm25.search([self.query(question)], self.size + spare)
            order = np.array([int(p.id) for p in found], dtype=int)
            if self.fill:  # in the order they were handed in
                order = np.concatenate([order, np.setdiff1d(everything, order)])
            orders.append(order)
        if self.how != "bm25":
            assert vector is not None
            orders.append(top(self._unit_vectors @ unit_rows(vector[None])[0], len(allowed)))
        in_turn = np.stack(orders, axis=1).ravel()
        _, first = np.unique(in_turn, return_index=True)
        chosen = in_turn[np.sort(first)]
        return chosen[allowed[chosen]][: self.size]

    @cached_property
    def _keys(self) -> list[str | None]:
        # passages have none: one may well have the question's text
        return [_key(c) if isinstance(c, Question) else None for c in self.candidates]

    @cached_property
    def _bm25(self) -> BM25Retriever:
        pool = [Passage(self.text(c), id=str(i)) for i, c in enumerate(self.candidates)]
        return BM25Retriever(pool, engine="auto")

    @cached_property
    def _unit_vectors(self) -> _Vectors:
        assert self.vectors is not None
        return unit_rows(self.vectors)


@final
@dataclass(frozen=True, eq=False)
class ShotRanker:
    """Ranks the shots of one pool for questions: preselected, then put in order."""

    preselector: Preselector
    shots: int
    """Most shots a question."""
    order: Callable[[Sequence[Question], _Vectors, list[_Picks]], list[_Picks]] | None = None
    """From questions, vectors and preselections to the picks, best first; None: as preselected."""
    encoder: Encoder | None = None
    """Encodes the questions, where nobody hands vectors in."""

    @classmethod
    def random(cls, candidates: Sequence[Shot], *, shots: int, seed: int) -> Self:
        """Drawn evenly, for each question anew."""

        def drawn(_: Any, __: Any, picks: list[_Picks]) -> list[_Picks]:
            rng = np.random.default_rng(seed)
            return [rng.permutation(allowed) for allowed in picks]

        return cls(Preselector(candidates), shots, drawn)

    @classmethod
    def bm25(cls, candidates: Sequence[Shot], *, shots: int) -> Self:
        """What shares rare words with the question."""
        return cls(Preselector(candidates, how="bm25", size=shots), shots)

    @classmethod
    def nearest(cls, candidates: Sequence[Shot], *, shots: int, encoder: Encoder) -> Self:
        """The nearest neighbours by the encoder's vectors: the plain rival of any trained head."""
        check_world(World(encoder=encoder))
        vectors = encoder.encode([text_of(c) for c in candidates])
        return cls(Preselector(candidates, vectors, "encoder", shots), shots, encoder=encoder)

    @classmethod
    def learned(
        cls,
        ranker: DURRanker,
        candidates: Sequence[Shot],
        *,
        shots: int | None = None,
        sigma: float = 0.0,
        vectors: _Vectors | None = None,
    ) -> Self:
        """Preselected as in the ranker's training, then ranked by its head.

        Args:
            shots: None: as many as serve the head best.
            sigma: leave out what has a score of at most this, 0 to 1; at 0 nothing is.
            vectors: of the candidates; None: they are encoded.
        """
        if vectors is None:
            encoded = ranker.settings.encoded
            vectors = ranker.encoder.encode([text_of(c, encoded) for c in candidates])
        rows, most = vectors.astype(float), ranker.shots if shots is None else shots

        def best(vector: _Vector, chosen: _Picks) -> _Picks:
            places = ranker.rank_vectors(vector, rows[chosen], top_n=most, sigma=sigma)
            return chosen[[place.index for place in places]]

        found = Preselector.of(ranker.settings, candidates, rows)
        return cls(found, most, lambda _, asked, picks: [*map(best, asked, picks)], ranker.encoder)

    def places(self, asked: Sequence[Question], vectors: _Vectors | None = None) -> list[_Picks]:
        """For each question indices into the pool, best first."""
        if vectors is None and self.encoder is not None:
            vectors = self.encoder.encode([*map(self.preselector.query, asked)])
        rows = np.zeros((len(asked), 0)) if vectors is None else vectors
        if self.preselector.vectors is not None:
            rows = rows.astype(self.preselector.vectors.dtype)
        picks = [*map(self.preselector.choose, asked, rows)]
        if self.order is not None:
            picks = self.order(asked, rows, picks)
        return [chosen[: self.shots] for chosen in picks]

    def __call__(
        self, questions: Sequence[Question], vectors: _Vectors | None = None
    ) -> list[list[Shot]]:
        """For each question its shots, best first."""
        pool = self.preselector.candidates
        return [[pool[i] for i in chosen] for chosen in self.places(questions, vectors)]


@final
class ExamplePool(Generic[_T]):
    """As `ShotRanker.learned`, over examples that may grow while several threads ask."""

    def __init__(self, ranker: DURRanker, *, shots: int | None = None, sigma: float = 0.0) -> None:
        if ranker.settings.encoded == "example":
            told = "the head was trained on whole examples, and is shown their questions"
            raise InvalidInput(f"{told} alone; train one with DURSettings(encoded='question')")
        self._encode = ranker.encoder.encode
        self._ranked = partial(ShotRanker.learned, ranker, shots=shots, sigma=sigma)
        self._held: tuple[tuple[Question, _Vector, _T], ...] = ()
        self._made: tuple[Any, ShotRanker] | None = None  # of which `_held`, made when it is asked

    def add(self, questions: Sequence[str], examples: Sequence[_T]) -> None:
        """Put examples under their questions; nothing but these questions is encoded."""
        if not questions:
            return
        rows = self._encode(list(questions)).astype(float)
        with _adding:
            self._held += (*zip(map(Question, questions), rows, examples, strict=True),)

    def choose(self, question: str) -> list[_T]:
        """The best examples, best first; none whose question is `question` itself."""
        if not question.strip():
            raise EmptyQuestion("the question is empty; there is nothing to choose examples by")
        if not (held := self._held):
            return []
        if (made := self._made) is None or made[0] is not held:
            asked, vectors, _ = zip(*held, strict=True)
            made = self._made = held, self._ranked(asked, vectors=np.stack(vectors))
        [places] = made[1].places([Question(question)])
        return [held[i][2] for i in places]


def _key(question: Question) -> str:
    # with the context: "What does this text say?" may be asked of every text
    text = f"{question.text} {question.context}"
    return " ".join(_WORD_OR_SIGN.findall(normalize("NFKC", text).lower())) or text.strip()
