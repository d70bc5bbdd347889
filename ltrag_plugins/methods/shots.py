"""Solved examples in front of the question: random, nearest by BM25, ranked by the model itself
or by a trained head; or read by SuRe, which names the answer itself.

The head is trained in the run: it ranks one part of the labelled questions, the other teaches it.

The baselines "Rerank" and "SuRe" of the DUR paper, section 6.1, are `listwise-shots` and
`sure-shots`. The paper has a few words on each, and its authors' code neither; docs/papers.md says
what we read into them.

References: Brown et al., NeurIPS 2020; Yu et al., NAACL 2025 (DUR), table 1 and section 6.1; Sun
et al., EMNLP 2023; Kim et al., ICLR 2024; Lu et al., ICLR 2023 (PromptPG). Our wording.
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
from ltrag_plugins.dur.train import DURTrainer
from ltrag_plugins.errors import CalibrationError, InvalidInput, checked
from ltrag_plugins.flow import Flow, World, ask, embed, run_many
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.methods.listwise import RANKING_PROMPT, listwise_order, windows
from ltrag_plugins.methods.method import Method
from ltrag_plugins.methods.sure import CandidatesSettings, most_plausible
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.prompts.templates import (
    ReadingTemplate,
    direct_prompt,
    filled,
    passages_block,
    render_question,
)
from ltrag_plugins.settings import Count, Holds, Range, Settings, Whole
from ltrag_plugins.types import Answer, Generation, Passage, Question

_SHOTS_PROMPT = "Answer each question in a few words, as the examples do.\n\n{shots}\n\n{question}"
_RANKING_PROMPT = RANKING_PROMPT.replace("numbered passages", "numbered solved examples")
_RANKED_WORDS = 100  # of a context, in the ranking prompt
_PROMPTS_AT_ONCE = 128
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


@dataclass(frozen=True, slots=True)
class ListwiseShotsSettings(BM25ShotsSettings):
    """How many examples, how they are shown, and of how many the model chooses them."""

    candidates: Count = 20
    """Examples that BM25 finds and the model puts in order, at least `shots` (paper: 20)."""
    max_words: Count = _RANKED_WORDS
    """An example's context is cut to this in the ranking prompt."""
    ranking_template: ReadingTemplate = _RANKING_PROMPT
    """Asks for the order; `{passages}`, which are the examples, and `{question}` are replaced."""

    def _check_together(self) -> None:
        if self.candidates < self.shots:
            least = f"candidates must be at least shots, {self.shots}"
            raise InvalidInput(f"{least}, got {self.candidates}")


@dataclass(frozen=True, slots=True)
class SuReShotsSettings(CandidatesSettings):
    """How many candidate answers, and from how many examples."""

    shots: Count = 5
    """Examples to read (paper: 5)."""
    context_words: Count = 200
    """A question's context is cut to this many words."""


def _bm25(known: Sequence[Question], size: int) -> ShotRanker:
    """Fewer examples where fewer share a word with the question."""
    found = Preselector(known, how="bm25", size=size, fill=False, text=_rendered)
    return ShotRanker(found, size)


def _random(known: Sequence[Question], settings: RandomShotsSettings, *_: Any) -> ShotRanker:
    def draw(question: Question, others: np.ndarray) -> np.ndarray:
        rng = random.Random(f"{settings.seed} {render_question(question)}")
        return np.array(rng.sample(others.tolist(), min(settings.shots, len(others))), dtype=int)

    found = Preselector(known, text=_rendered)
    return ShotRanker(found, settings.shots, lambda asked, _, picks: [*map(draw, asked, picks)])


def _rendered(shot: Shot) -> str:
    return render_question(shot) if isinstance(shot, Question) else shot.text


def listwise_ranker(
    llm: LLM,
    candidates: Sequence[Shot],
    *,
    shots: int,
    preselected: int = 20,
    max_words: int = _RANKED_WORDS,
) -> ShotRanker:
    """BM25's preselection in the model's own order, the DUR paper's baseline "Rerank".

    Args:
        llm: asked when questions are ranked, once each for up to 20 `preselected`.
        shots: most shots a question.
        max_words: an example's context, or a passage, is cut to this in the ranking prompt.
    """

    def order(asked: Sequence[Question], _: Any, picks: Sequence[np.ndarray]) -> list[np.ndarray]:
        flows = [
            _in_order(question, [candidates[i] for i in chosen], max_words, _RANKING_PROMPT)
            for question, chosen in zip(asked, picks, strict=True)
        ]
        orders = run_many(flows, World(llm=llm), batch=_PROMPTS_AT_ONCE)
        return [chosen[order] for chosen, (order, _) in zip(picks, orders, strict=True)]

    return ShotRanker(Preselector(candidates, how="bm25", size=preselected), shots, order)


def _in_order(
    question: Question, shots: Sequence[Shot], max_words: int, template: str
) -> Flow[tuple[list[int], list[Generation]]]:
    """As `listwise_order`, each example with its answer."""
    asked = render_question(question, context_words=max_words)
    return (yield from listwise_order(asked, _lines(shots, max_words), template))


def _lines(shots: Sequence[Shot], max_words: int) -> list[str]:
    return [" ".join(_shown(shot, max_words).split()) for shot in shots]


def _shown(shot: Shot, max_words: int) -> str:
    if isinstance(shot, Passage):
        return passages_block([shot], max_words=max_words)
    asked, answer = render_question(shot, context_words=max_words), "".join(shot.answers[:1])
    return f"Question: {asked}\nAnswer: {answer}"


def _answer(question: Question, settings: BM25ShotsSettings, learned: _Ranks) -> Flow[Answer]:
    [shots] = learned([question])
    return (yield from _few_shot(question, settings, shots))


def _few_shot(
    question: Question,
    settings: BM25ShotsSettings,
    shots: Sequence[Question],
    trace: Sequence[Generation] = (),
) -> Flow[Answer]:
    """One model call: the examples in their order, then the question; without, as in `direct`."""
    query = render_question(question, context_words=settings.context_words)
    prompt = direct_prompt(query)
    if shots:
        solved = "\n\n".join(_shown(shot, settings.context_words) for shot in shots)
        prompt = filled(settings.template, shots=solved, question=f"Question: {query}\nAnswer:")
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(read_reply(reply.text, question.options), trace=(*trace, reply))


def _answer_listwise(
    question: Question, settings: ListwiseShotsSettings, learned: _Ranks
) -> Flow[Answer]:
    """A call that puts BM25's examples in order, then one with the best of them."""
    [found] = learned([question])
    template = settings.ranking_template
    order, replies = yield from _in_order(question, found, settings.max_words, template)
    best = [found[i] for i in order[: settings.shots]]
    return (yield from _few_shot(question, settings, best, replies))


def _answer_sure(question: Question, settings: SuReShotsSettings, learned: _Ranks) -> Flow[Answer]:
    """The calls of `most_plausible` over BM25's examples; where it names no answer, one more."""
    best, replies = None, list[Generation]()
    [shots] = learned([question])
    most = settings.context_words
    if shots:
        asked, read = render_question(question, context_words=most), "\n".join(_lines(shots, most))
        best, replies = yield from most_plausible(asked, read, settings, question.options)
    if best is None:
        asking = BM25ShotsSettings(context_words=most, max_tokens=settings.max_tokens)
        return (yield from _few_shot(question, asking, shots, replies))
    return Answer(best if question.options else read_reply(best), trace=tuple(replies))


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
    seed: Whole = 0
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
    known: Sequence[Question], settings: DURShotsSettings, world: World
) -> _TrainedShots:
    """Train a head on the labelled questions, with the world's model and encoder."""
    if world.llm is None or world.encoder is None:
        raise InvalidInput("a head is trained with a model and an encoder; the world lacks one")
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
    train=lambda known, settings, _: _bm25(known, settings.shots),
)
_LISTWISE = _row(
    "listwise-shots",
    "of BM25's solved examples those that the model itself puts first; no retrieval",
    'Yu et al., NAACL 2025, table 1, "Rerank"',
    ListwiseShotsSettings,
    answer=_answer_listwise,
    train=lambda known, settings, _: _bm25(known, settings.candidates),
    most_calls=lambda settings: len(windows(settings.candidates)) + 1,
)
_SURE = _row(
    "sure-shots",
    "SuRe over BM25's solved examples: the answer with the most plausible summary; no retrieval",
    'Yu et al., NAACL 2025, table 1, "SuRe"',
    SuReShotsSettings,
    answer=_answer_sure,
    train=lambda known, settings, _: _bm25(known, settings.shots),
    most_calls=lambda settings: settings.most_calls,
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
SHOTS = (_RANDOM, _BM25, _LISTWISE, _SURE, _PROMPTPG, _DUR)
