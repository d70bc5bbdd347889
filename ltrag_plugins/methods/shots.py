"""Solved examples in front of the question: random, nearest by BM25, or ranked by a trained head.

The head is trained in the run: it ranks one part of the labelled questions, the other teaches it.
References: Brown et al., NeurIPS 2020; Yu et al., NAACL 2025 (DUR), table 1 and section 6.1; Lu et
al., ICLR 2023 (PromptPG). Our wording.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import numpy as np

from ltrag_plugins.dur.prompts import Shot
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.dur.shots import Preselector, ShotRanker
from ltrag_plugins.errors import CalibrationError, InvalidInput, checked
from ltrag_plugins.flow import Flow, World, ask, embed
from ltrag_plugins.methods.method import Method, labelled_questions
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.prompts.templates import direct_prompt, filled, render_question
from ltrag_plugins.settings import Count, Holds, Range, Settings, Whole
from ltrag_plugins.types import Answer, Question

_SHOTS_PROMPT = "Answer each question in a few words, as the examples do.\n\n{shots}\n\n{question}"
_MORE = ("Q-A", "QO-A", "SQO-A")  # each shows more than the one before

_Ranks = Callable[[Sequence[Question]], Sequence[Sequence[Question]]]  # a ShotRanker of examples


@dataclass(frozen=True, slots=True)
class BM25ShotsSettings(Settings):
    """How many examples, and how they are shown."""

    shots: Count = 5
    """Examples to show (paper: 5)."""
    template: Annotated[str, Holds("shots", "question")] = _SHOTS_PROMPT
    """`{shots}` and `{question}` are replaced."""
    context_words: Count = 200
    """A question's context is cut to this many words."""
    max_tokens: Count = 24
    """Longest answer, in tokens."""


@dataclass(frozen=True, slots=True)
class RandomShotsSettings(BM25ShotsSettings):
    """How many examples, how they are shown, and how they are drawn."""

    seed: Whole = 0
    """Of the draw; a question draws the same whatever else is asked."""


def _bm25(known: Sequence[Question], settings: BM25ShotsSettings, *_: Any) -> ShotRanker:
    """Fewer examples where fewer share a word with the question."""
    examples = labelled_questions(known, "bm25-shots")
    found = Preselector(examples, how="bm25", size=settings.shots, fill=False, text=_rendered)
    return ShotRanker(found, settings.shots)


def _random(known: Sequence[Question], settings: RandomShotsSettings, *_: Any) -> ShotRanker:
    def draw(question: Question, others: np.ndarray) -> np.ndarray:
        rng = random.Random(f"{settings.seed} {render_question(question)}")
        return np.array(rng.sample(others.tolist(), min(settings.shots, len(others))), dtype=int)

    found = Preselector(labelled_questions(known, "random-shots"), text=_rendered)
    return ShotRanker(found, settings.shots, lambda asked, _, picks: [*map(draw, asked, picks)])


def _rendered(shot: Shot) -> str:
    return render_question(shot) if isinstance(shot, Question) else shot.text


def _answer(question: Question, settings: BM25ShotsSettings, learned: _Ranks) -> Flow[Answer]:
    """One model call: the examples in their order, then the question; without, as in `direct`."""
    [shots], most = learned([question]), settings.context_words
    query, *others = (render_question(one, context_words=most) for one in (question, *shots))
    prompt = direct_prompt(query)
    if shots:
        pairs = zip(others, shots, strict=True)
        solved = "\n\n".join(f"Question: {q}\nAnswer: {shot.answers[0]}" for q, shot in pairs)
        prompt = filled(settings.template, shots=solved, question=f"Question: {query}\nAnswer:")
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(read_reply(reply.text, question.options), trace=(reply,))


@dataclass(frozen=True, slots=True)
class DURShotsSettings(Settings):
    """How the head is trained, and on what."""

    training: DURSettings = field(default_factory=DURSettings)
    """Shots, epochs and all else, save its seed. "Q-A" gives way to a prompt format that shows
    options or context where questions have them."""
    examples: Annotated[float, Range(0.01, 0.99)] = 0.5
    """Share of the labelled questions that are shown; the others train the head."""
    max_calls: Count | None = None
    """Training begins no batch after so many prompts; None: it runs its epochs."""
    seed: int = 0
    """Draws the examples, and is the training's."""
    max_tokens: Count = 24
    """Longest answer, in tokens; the training's are as long as its format says."""

    def _check_together(self) -> None:
        checked(self.training, DURSettings, "training", "DURSettings")


@dataclass(frozen=True, slots=True)
class PromptPGSettings(DURShotsSettings):
    """As `DURShotsSettings`, with PromptPG's training."""

    training: DURSettings = field(default_factory=DURSettings.promptpg)
    """One reward for all K shots, drawn from all examples; no threshold."""


@dataclass(frozen=True, slots=True, eq=False)
class _TrainedShots:
    ranker: ShotRanker
    training: DURSettings
    adapts: bool  # to questions with options or context, by a format that shows them
    told: Mapping[str, Any]  # plain values, for pictures


def _trained_shots(
    questions: Sequence[Question], settings: DURShotsSettings, world: World
) -> _TrainedShots:
    """Train a head on the labelled questions, with the world's model and encoder."""
    from ltrag_plugins.dur.train import DURTrainer  # its rewards bring nltk

    if world.llm is None or world.encoder is None:
        raise InvalidInput("a head is trained with a model and an encoder; the world lacks one")
    known = labelled_questions(questions, "a head")
    if len(known) < 2:
        raise CalibrationError("a head needs at least two labelled questions: one is shown")
    order = np.random.default_rng([settings.seed, 5]).permutation(len(known))
    count = min(max(1, round(settings.examples * len(known))), len(known) - 1)
    examples = tuple(known[i] for i in sorted(order[:count]))
    asked = [known[i] for i in sorted(order[count:])]
    adapts = settings.training.format == "Q-A"
    form = _showing(known) if adapts else settings.training.format
    training = replace(settings.training, seed=settings.seed, format=form)
    trainer = DURTrainer(world.encoder, world.llm, settings=training)
    result = trainer.fit(examples, asked, max_calls=settings.max_calls)
    told = {"history": [*map(asdict, result.history)], "settings": {"shots": training.shots}}
    return _TrainedShots(ShotRanker.learned(result.ranker, examples), training, adapts, told)


def _showing(questions: Sequence[Question]) -> str:
    """The prompt format that shows all that the questions have."""
    if any(question.context for question in questions):
        return "SQO-A"
    return "QO-A" if any(question.options for question in questions) else "Q-A"


def _answer_trained(
    question: Question, settings: DURShotsSettings, learned: _TrainedShots
) -> Flow[Answer]:
    """One encoding, one model call, asked as in the training with all that the question has."""
    vectors = yield from embed(learned.ranker.preselector.query(question))
    training = learned.training
    if learned.adapts:
        showing = max(str(training.format), _showing([question]), key=_MORE.index)
        training = replace(training, format=showing)
    form, [best] = training.prompt_format, learned.ranker([question], np.asarray(vectors, float))
    prompt = form.prompt(best, question)
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(read_reply(reply.text, question.options, lead=form.lead), trace=(reply,))


_row = partial(Method, answer=_answer, needs=frozenset({"labelled questions"}), spells_out=True)
_RANDOM = _row(
    "random-shots",
    "solved examples drawn at random in front of the question; no retrieval",
    "Yu et al., NAACL 2025, table 1",
    RandomShotsSettings,
    train=_random,
)
_BM25 = _row(
    "bm25-shots",
    "the solved examples nearest by BM25 in front of the question; no retrieval",
    "Yu et al., NAACL 2025, table 1",
    BM25ShotsSettings,
    train=_bm25,
)
_trained_row = partial(
    _row,
    answer=_answer_trained,
    needs=frozenset({"encoder", "labelled questions"}),
    train=_trained_shots,
    told=lambda learned: learned.told,
)
_DUR = _trained_row(
    "dur-shots",
    "solved examples that help this model first, ranked by a head trained in the run; no retrieval",
    "Yu et al., NAACL 2025",
    DURShotsSettings,
)
_PROMPTPG = _trained_row(
    "promptpg",
    "solved examples ranked by a head that one reward for all of them trains; no retrieval",
    "Lu et al., ICLR 2023",
    PromptPGSettings,
)
SHOTS = (_RANDOM, _BM25, _PROMPTPG, _DUR)
