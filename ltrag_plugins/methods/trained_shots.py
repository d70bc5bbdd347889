"""Solved examples that a trained head ranks: DUR's own use of it, and PromptPG.

Of the labelled questions one part are the examples, the other part train the head with the model
of the run. So these methods choose from a part of what "random-shots" and "bm25-shots" choose from,
by default from half: nothing is shown that the head has learned on.

References:
    Yu et al., NAACL 2025 (DUR), section 6.1; Lu et al., ICLR 2023 (PromptPG).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from ltrag_plugins.dur.head import Head
from ltrag_plugins.dur.policy import top
from ltrag_plugins.dur.prompts import PromptFormat, format_for, text_of
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.dur.shots import Preselector
from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.flow import Flow, Observer, World, ask, embed
from ltrag_plugins.methods.labelled import labelled, number
from ltrag_plugins.methods.method import Method, whole
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.types import Answer, Question

_MORE = ("Q-A", "QO-A", "SQO-A")  # each shows more than the one before


@dataclass(frozen=True, slots=True)
class DURShotsSettings:
    """How the head is trained, and on what.

    Raises:
        InvalidInput: a value is out of its range.
    """

    training: DURSettings = field(default_factory=DURSettings)
    """Shots, epochs and all else. Its seed gives way to `seed`, and its prompt format "Q-A" to one
    that shows options or context, where the labelled questions or the one asked have them."""
    examples: float = 0.5
    """Share of the labelled questions, inside (0, 1), that are shown; the others train the head."""
    max_calls: int | None = None
    """Training begins no batch after so many prompts; None: it runs its epochs."""
    seed: int = 0
    """Draws the examples, and is the training's."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1; the training's are as long as its format says."""

    def __post_init__(self) -> None:
        number("examples", self.examples, 0.01, 0.99)
        whole("max_tokens", self.max_tokens)
        if self.max_calls is not None:
            whole("max_calls", self.max_calls)
        if not isinstance(self.training, DURSettings):
            raise InvalidInput(f"training must be DURSettings, got {self.training!r:.60}")


@dataclass(frozen=True, slots=True)
class PromptPGSettings(DURShotsSettings):
    """As `DURShotsSettings`, with PromptPG's training."""

    training: DURSettings = field(default_factory=DURSettings.promptpg)
    """One reward for all K shots, drawn from all examples; no threshold."""


@dataclass(frozen=True, eq=False)
class TrainedShots:
    """A head and the examples that it ranks; holds no model."""

    head: Head
    shots: int
    settings: DURSettings
    examples: tuple[Question, ...]
    vectors: Float[np.ndarray, "examples dim"]
    chooser: Preselector
    adapts: bool = False
    """Whether the prompt format gives way to one that shows more, where a question has more."""
    history: tuple[Any, ...] = ()
    """The training's batches (`dur.batch.Batch`)."""

    def form(self, question: Question) -> PromptFormat:
        """How the question is asked: as in the training, with all that it comes with."""
        if not self.adapts:
            return format_for(self.settings.format)
        return format_for(max(str(self.settings.format), _showing([question]), key=_MORE.index))

    def best(self, question: Question, vector: Float[np.ndarray, " dim"]) -> list[Question]:
        """Its examples, best first; never the question itself."""
        candidates = self.chooser.choose(question, vector)
        scores = self.head.scores(vector, self.vectors[candidates])
        return [self.examples[candidates[i]] for i in top(scores, self.shots)]


def trained_shots(
    questions: Sequence[Question],
    settings: DURShotsSettings,
    world: World,
    observers: Iterable[Observer] = (),
) -> TrainedShots:
    """Train a head on the labelled questions, with the world's model and encoder.

    Raises:
        CalibrationError: fewer than two labelled questions.
        MissingReferences: one has no accepted answer.
        InvalidInput: the world has no model or no encoder.
    """
    from ltrag_plugins.dur.train import DURTrainer  # its rewards bring nltk

    if world.llm is None or world.encoder is None:
        raise InvalidInput("a head is trained with a model and an encoder; the world lacks one")
    known = labelled(questions, "a head")
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
    ranker = result.ranker
    vectors = world.encoder.encode([text_of(e) for e in examples]).astype(float)
    chooser = Preselector(examples, vectors, how=training.preselect, size=training.preselected)
    return TrainedShots(
        ranker.head, ranker.shots, training, examples, vectors, chooser, adapts, result.history
    )


def told(learned: TrainedShots) -> dict[str, Any]:
    """The training as plain values, as far as pictures of it need them."""
    return {
        "history": [asdict(batch) for batch in learned.history],
        "settings": {"shots": learned.settings.shots},
    }


def _showing(questions: Sequence[Question]) -> str:
    """The prompt format that shows all that the questions have."""
    if any(question.context for question in questions):
        return "SQO-A"
    return "QO-A" if any(question.options for question in questions) else "Q-A"


def answer_after_best(
    question: Question, learned: TrainedShots, settings: DURShotsSettings | None = None
) -> Flow[Answer]:
    """One encoding, one model call; its reply is read by `prompts.replies.read_reply`."""
    settings = settings or DURShotsSettings()
    [vector] = yield from embed(question.text)
    form = learned.form(question)
    best = learned.best(question, np.asarray(vector, float))
    prompt = form.prompt(best, question)
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(read_reply(reply.text, question.options, lead=form.lead), trace=(reply,))


def _row(name: str, summary: str, source: str, settings: type[DURShotsSettings]) -> Method:
    return Method(
        name=name,
        summary=summary,
        source=source,
        settings=settings,
        answer=lambda question, settings, learned: answer_after_best(question, learned, settings),
        most_calls=lambda _: 1,
        needs=frozenset({"encoder", "labelled questions"}),
        train=trained_shots,
        told=told,
        spells_out=True,
    )


DUR_SHOTS = _row(
    "dur-shots",
    "solved examples that help this model first, ranked by a head trained in the run; no retrieval",
    "Yu et al., NAACL 2025",
    DURShotsSettings,
)
PROMPTPG = _row(
    "promptpg",
    "solved examples ranked by a head that one reward for all of them trains; no retrieval",
    "Lu et al., ICLR 2023",
    PromptPGSettings,
)
