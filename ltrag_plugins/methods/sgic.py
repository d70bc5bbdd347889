"""SGIC (Chen et al.): answers, measures how unsure answer and passages are, and looks again."""

from dataclasses import dataclass, field

from ltrag_plugins.flow import Flow, fetch
from ltrag_plugins.methods.method import Method
from ltrag_plugins.settings import Count, Settings
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.documents import check_source
from ltrag_plugins.sgic.loop import calibrate
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Answer, Question


@dataclass(frozen=True, slots=True)
class SGICMethodSettings(Settings):
    """What is fetched, and how the answer is calibrated."""

    k: Count = 3
    """Passages to answer from."""
    loop: SGICSettings = field(
        default_factory=lambda: SGICSettings(rounds=5, document_words=200, answer_tokens=24)
    )
    """The rounds; by default they read and write as much as other methods do."""
    scale: ScoreScale | None = None
    """Of a fit; None: the default."""


@dataclass(frozen=True, slots=True)
class SGICAnswer(Answer):
    """An answer with all that SGIC knows of it."""

    calibrated: CalibratedAnswer | None = None


def _answer(question: Question, settings: SGICMethodSettings, _: None) -> Flow[SGICAnswer]:
    """One search, then the loop of SGIC."""
    [found] = yield from fetch(question.text, k=settings.k)
    answer = yield from calibrate(question.text, found, settings.loop, settings.scale)
    trace = tuple(one.generation for one in answer.trace)
    return SGICAnswer(answer.text, answer.uncertainty, tuple(found), trace, answer)


METHOD = Method(
    name="sgic",
    summary="answers, measures how unsure answer and passages are, and looks again",
    source="Chen et al. (SGIC)",
    settings=SGICMethodSettings,
    answer=_answer,
    most_calls=lambda settings: settings.loop.max_calls,
    needs=frozenset({"retriever", "probabilities"}),
    refuses=lambda settings, world: check_source(settings.loop.source, encoder=world.encoder),
)
