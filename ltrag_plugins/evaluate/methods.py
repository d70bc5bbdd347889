"""All methods that a run can name: the baselines, and the components of this package.

A gate stands before any of them (`Cell.gate`); "dur" reads the passages that its head ranks first,
"dur-shots" and "promptpg" show the solved examples that theirs do, "sgic" answers from what was
found and looks again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ltrag_plugins.baselines.direct import direct
from ltrag_plugins.baselines.method import Method, whole
from ltrag_plugins.baselines.single import PROMPT, reading_prompt
from ltrag_plugins.baselines.table import BASELINES
from ltrag_plugins.dur.prompts import text_of
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate.trained_shots import DUR_SHOTS, PROMPTPG
from ltrag_plugins.flow import Flow, ask, embed, fetch
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.loop import calibrate
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Answer, Passage, Question


@dataclass(frozen=True, slots=True)
class DURMethodSettings:
    """How passages are reranked and read.

    Raises:
        InvalidInput: a value is out of its range.
    """

    ranker: DURRanker | None = None
    """A trained head; None: the encoder's own similarity."""
    found: int = 20
    """Passages to rerank, at least 1."""
    k: int = 3
    """Of them, those to read, at least 1."""
    template: str = PROMPT
    """`{passages}` and `{question}` are replaced."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1."""

    def __post_init__(self) -> None:
        for name in ("found", "k", "max_tokens"):
            whole(name, getattr(self, name))
        reading_prompt("", (), self.template)
        if not isinstance(self.ranker, DURRanker | None):
            raise InvalidInput(f"ranker must be a DURRanker or None, got {self.ranker!r:.60}")
        if self.ranker is not None:  # vectors come from the run's encoder; settings travel
            object.__setattr__(self, "ranker", self.ranker.without_encoder())


@dataclass(frozen=True, slots=True)
class SGICMethodSettings:
    """What is fetched, and how the answer is calibrated.

    Raises:
        InvalidInput: a value is out of its range.
    """

    k: int = 3
    """Passages to answer from, at least 1."""
    loop: SGICSettings = field(
        default_factory=lambda: SGICSettings(document_words=200, answer_tokens=24)
    )
    """The rounds; by default they read and write as much as other methods do."""
    scale: ScoreScale | None = None
    """Of a fit; None: the default."""

    def __post_init__(self) -> None:
        whole("k", self.k)


def reranked(question: str, settings: DURMethodSettings) -> Flow[Answer]:
    """One search, one encoding, one answer from the passages ranked first."""
    [found] = yield from fetch(question, k=settings.found)
    if not found:
        return (yield from direct(question, max_tokens=settings.max_tokens))
    vectors = yield from embed(question, *map(text_of, found))
    best = _ranked(np.asarray(vectors, float), found, settings)
    prompt = reading_prompt(question, best, settings.template)
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), passages=tuple(best), trace=(reply,))


@dataclass(frozen=True, slots=True)
class SGICAnswer(Answer):
    """An answer with all that SGIC knows of it."""

    calibrated: CalibratedAnswer | None = None


def calibrated(question: str, settings: SGICMethodSettings) -> Flow[SGICAnswer]:
    """One search, then the loop of SGIC."""
    [found] = yield from fetch(question, k=settings.k)
    answer = yield from calibrate(question, found, settings.loop, settings.scale)
    trace = tuple(one.generation for one in answer.trace)
    return SGICAnswer(answer.text, answer.uncertainty, tuple(found), trace, answer)


def _ranked(
    vectors: np.ndarray, found: Sequence[Passage], settings: DURMethodSettings
) -> list[Passage]:
    if settings.ranker is None:
        scores = vectors[1:] @ vectors[0]
        order = np.argsort(-scores, kind="stable")[: settings.k]
        return [replace(found[i], score=float(scores[i])) for i in order]
    ranked = settings.ranker.rank_vectors(vectors[0], vectors[1:], top_n=settings.k)
    return [replace(found[one.index], score=one.score) for one in ranked]


def _most_calls(settings: SGICMethodSettings) -> int:
    return settings.loop.max_calls


def _rerank(question: Question, settings: DURMethodSettings, _: None) -> Flow[Answer]:
    return reranked(question.text, settings)


def _calibrate(question: Question, settings: SGICMethodSettings, _: None) -> Flow[Answer]:
    return calibrated(question.text, settings)


DUR = Method(
    name="dur",
    summary="passages that help this model first: reranked by a trained head, else by similarity",
    source="Yu et al., NAACL 2025",
    settings=DURMethodSettings,
    answer=_rerank,
    most_calls=lambda _: 1,
    needs=frozenset({"retriever", "encoder"}),
)
SGIC = Method(
    name="sgic",
    summary="answers, measures how unsure answer and passages are, and looks again",
    source="Chen et al. (SGIC)",
    settings=SGICMethodSettings,
    answer=_calibrate,
    most_calls=_most_calls,
    needs=frozenset({"retriever", "probabilities"}),
)
METHODS: Mapping[str, Method] = {
    **BASELINES,
    **{row.name: row for row in (PROMPTPG, DUR, DUR_SHOTS, SGIC)},
}
