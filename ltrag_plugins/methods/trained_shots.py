"""Solved examples that a trained head ranks: DUR's own use of it, and PromptPG.

Of the labelled questions one part are the examples, the other part train the head with the model
of the run. So these methods choose from a part of what "random-shots" and "bm25-shots" choose from,
by default from half: nothing is shown that the head has learned on.

References:
    Yu et al., NAACL 2025 (DUR), section 6.1; Lu et al., ICLR 2023 (PromptPG).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ltrag_plugins.dur.prompts import format_for
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.dur.shots import ShotRanker
from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.flow import Flow, Observer, World, ask, embed
from ltrag_plugins.methods.method import Method, labelled_questions
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.settings import Count, Range, Settings
from ltrag_plugins.types import Answer, Question

if TYPE_CHECKING:
    from ltrag_plugins.dur.batch import Batch

_MORE = ("Q-A", "QO-A", "SQO-A")  # each shows more than the one before


@dataclass(frozen=True, slots=True)
class DURShotsSettings(Settings):
    """How the head is trained, and on what."""

    training: DURSettings = field(default_factory=DURSettings)
    """Shots, epochs and all else. Its seed gives way to `seed`, and its prompt format "Q-A" to one
    that shows options or context, where the labelled questions or the one asked have them."""
    examples: Annotated[float, Range(0.01, 0.99)] = 0.5
    """Share of the labelled questions that are shown; the others train the head."""
    max_calls: Count | None = None
    """Training begins no batch after so many prompts; None: it runs its epochs."""
    seed: int = 0
    """Draws the examples, and is the training's."""
    max_tokens: Count = 24
    """Longest answer, in tokens; the training's are as long as its format says."""

    def _check_together(self) -> None:
        if not isinstance(self.training, DURSettings):
            raise InvalidInput(f"training must be DURSettings, got {self.training!r:.60}")


@dataclass(frozen=True, slots=True)
class PromptPGSettings(DURShotsSettings):
    """As `DURShotsSettings`, with PromptPG's training."""

    training: DURSettings = field(default_factory=DURSettings.promptpg)
    """One reward for all K shots, drawn from all examples; no threshold."""


@dataclass(frozen=True, slots=True, eq=False)
class _TrainedShots:
    """A head with the examples that it ranks, and how it was trained."""

    ranker: ShotRanker
    training: DURSettings
    adapts: bool
    """Whether the prompt format gives way to one that shows more, where a question has more."""
    history: "tuple[Batch, ...]"


def trained_shots(
    questions: Sequence[Question],
    settings: DURShotsSettings,
    world: World,
    observers: Iterable[Observer] = (),
) -> _TrainedShots:
    """Train a head on the labelled questions, with the world's model and encoder."""
    from ltrag_plugins.dur.train import DURTrainer  # its rewards bring nltk

    if world.llm is None or world.encoder is None:
        raise InvalidInput("a head is trained with a model and an encoder; the world lacks one")
    known = labelled_questions(questions, "a head")
    if len(known) < 2:
        raise CalibrationError(
            "a head needs at least two labelled questions: one to show, one to learn from"
        )
    order = np.random.default_rng([settings.seed, 5]).permutation(len(known))
    count = min(max(1, round(settings.examples * len(known))), len(known) - 1)
    examples = tuple(known[i] for i in sorted(order[:count]))
    asked = [known[i] for i in sorted(order[count:])]
    adapts = settings.training.format == "Q-A"
    form = _showing(known) if adapts else settings.training.format
    training = replace(settings.training, seed=settings.seed, format=form)
    trainer = DURTrainer(world.encoder, world.llm, settings=training)
    result = trainer.fit(examples, asked, max_calls=settings.max_calls, observers=(*observers,))
    ranker = ShotRanker.learned(result.ranker, examples)
    return _TrainedShots(ranker, training, adapts, result.history)


def _showing(questions: Sequence[Question]) -> str:
    """The prompt format that shows all that the questions have."""
    if any(question.context for question in questions):
        return "SQO-A"
    return "QO-A" if any(question.options for question in questions) else "Q-A"


def _answer(question: Question, settings: DURShotsSettings, learned: _TrainedShots) -> Flow[Answer]:
    """One encoding, one model call, asked as in the training with all that the question has."""
    vectors = yield from embed(question.text)
    form = learned.training.format
    if learned.adapts:
        form = max(str(form), _showing([question]), key=_MORE.index)
    form = format_for(form)
    [best] = learned.ranker([question], np.asarray(vectors, float))
    prompt = form.prompt(best, question)
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(read_reply(reply.text, question.options, lead=form.lead), trace=(reply,))


def _told(learned: _TrainedShots) -> dict[str, Any]:
    """The training as plain values, as far as pictures of it need them."""
    history = [asdict(batch) for batch in learned.history]
    return {"history": history, "settings": {"shots": learned.training.shots}}


def _row(name: str, summary: str, source: str, settings: type[DURShotsSettings]) -> Method:
    return Method(
        name=name,
        summary=f"solved examples {summary}; no retrieval",
        source=source,
        settings=settings,
        answer=_answer,
        most_calls=lambda _: 1,
        needs=frozenset({"encoder", "labelled questions"}),
        train=trained_shots,
        told=_told,
        spells_out=True,
    )


DUR_SHOTS = _row(
    "dur-shots",
    "that help this model first, ranked by a head trained in the run",
    "Yu et al., NAACL 2025",
    DURShotsSettings,
)
PROMPTPG = _row(
    "promptpg",
    "ranked by a head that one reward for all of them trains",
    "Lu et al., ICLR 2023",
    PromptPGSettings,
)
