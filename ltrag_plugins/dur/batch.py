r"""Algorithm 1, one batch at a time.

For each question of a batch: score its candidates, choose shots, ask the model with 0, 1, ...,
k of them, credit each shot, and go one step along

.. math:: \frac{1}{N} \sum_{i=1}^N \sum_{j=1}^{k_i} A_{ij} \nabla \log \pi(e_i^j \mid p_i)

A is the raw reward in the paper (eq. 9); by default it is what shot j changed, standardized
over the batch.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", algorithm 1, eq. 6-10, section 6.5 and
    figure 8 (shots of a history beside a fixed number of them).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from ltrag_plugins.dur.feedback import (
    PROMPTS_AT_ONCE,
    Feedback,
    Wanted,
    contextual_calibration,
    option_prior,
    read_feedback,
    reward,
)
from ltrag_plugins.dur.head import Adam, Gradient, Head
from ltrag_plugins.dur.policy import (
    bounded,
    draw,
    ladder_cost,
    log_prob_gradients,
    log_probs,
    shots_above,
    shots_that_turn,
    top,
    turned_sigma,
)
from ltrag_plugins.dur.prompts import Shot, format_for
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.flow import Flow, Observer, World, run_many
from ltrag_plugins.metrics.cost import Cost, CostCounter
from ltrag_plugins.types import Question

_LEAST_TO_CALIBRATE = 5  # questions; the mean of fewer says more of them than of the options


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCase:
    """One question to learn from, with the candidates that are ranked for it."""

    question: Question
    vector: Float[np.ndarray, " dim"]
    candidates: tuple[Shot, ...]
    vectors: Float[np.ndarray, "docs dim"]


@dataclass(frozen=True, slots=True)
class Batch:
    """What happened in one batch."""

    epoch: int
    number: int
    """Within the epoch, from 0."""
    loss: float
    reward: float
    """Mean reward of the last rungs."""
    sigma: float
    """The threshold after the batch."""
    questions: int
    shots: int
    """In all prompts of the batch together, as the paper counts them."""
    deepest: int
    """Sum of the k_i: shots in the longest prompts alone."""
    calls: int
    """Prompts sent, whether the model or its cache answered."""
    tokens: int | None
    """Read and written; None: the model does not tell."""
    easy: int | None
    """Questions that were right without shots; None where that was not asked."""
    easy_right: int | None
    """Of these, how many were right at the last rung."""
    hard_right: int | None
    """Of the others, how many were right at the last rung."""
    turned_easy: int | None
    """Of the easy ones, how many changed between right and wrong on the way."""
    turned_hard: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """What the model's replies were worth after training, and what follows from it."""

    questions: int
    """Held out: training did not see them."""
    trained: tuple[float, ...]
    """Mean reward with the best 0, 1, ..., K shots by the trained head."""
    start: tuple[float, ...]
    """The same by the head as it was before training."""
    error: float
    """Standard error, over the questions, of the difference between the best of both."""
    everywhere: tuple[float, ...]
    """As `trained`, over all questions, also those that were trained on."""
    calls: int
    """Prompts sent to find out."""
    tokens: int | None
    """Read and written; None: the model does not tell."""

    @property
    def head(self) -> Literal["trained", "start"]:
        """The trained one, unless the one before was better by more than the standard error."""
        lost = max(self.start[1:]) - max(self.trained[1:])
        return "start" if lost > self.error else "trained"

    @property
    def shots(self) -> int:
        """The number of shots, at least 1, that served that head best; the least of equal ones.

        Over all questions; for the head before training, over the held-out ones.
        """
        values = self.start if self.head == "start" else self.everywhere
        return 1 + int(np.argmax(values[1:]))


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All that a run needs to go on: nothing random is left over between batches."""

    head: Head
    adam: Adam
    sigma: float = 0.0
    epoch: int = 0
    batch: int = 0
    history: tuple[Batch, ...] = ()
    choice: Choice | None = None
    """None until the last epoch is over."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRun:
    """What stays the same through a run."""

    world: World
    settings: DURSettings
    wanted: Wanted
    start: Head
    """The head before training, to which `DURSettings.pull` pulls back."""
    observers: Sequence[Observer] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Ladder:
    """One question's shots, and what the model made of them."""

    case: TrainingCase
    scores: Float[np.ndarray, " docs"]
    picks: Int[np.ndarray, " shots"]
    feedback: tuple[Feedback, ...]

    @property
    def right(self) -> list[bool]:
        """Of each rung."""
        return [found.right for found in self.feedback]

    def turned_sigma(self, j: int) -> float:
        """The threshold after a turn at shot j."""
        return turned_sigma(softmax(self.scores)[self.picks], j)


def climb(
    case: TrainingCase, picks: Int[np.ndarray, " shots"], settings: DURSettings, wanted: Wanted
) -> Flow[tuple[Feedback, ...]]:
    """Ask with 0, 1, ..., k of the picks, in their order; or with all of them alone."""
    form = format_for(settings.format)
    shots = [case.candidates[i] for i in picks]
    rungs = [shots[:j] for j in range(len(shots) + 1)] if settings.rungs == "all" else [shots]
    if not settings.stop_at_turn:
        return tuple((yield from read_feedback(case.question, rungs, form, wanted)))
    found: list[Feedback] = []
    for rung in rungs:
        found += yield from read_feedback(case.question, [rung], form, wanted)
        if shots_that_turn([f.right for f in found]):
            break
    return tuple(found)


def trained_batch(state: State, cases: Sequence[TrainingCase], run: TrainingRun) -> State:
    """The state after one batch."""
    settings, counter = run.settings, CostCounter()
    ladders, sigma = _climbed(state, cases, run, counter)
    ladders = _calibrated(ladders, settings)
    rewards = [[reward(f, settings) for f in x.feedback] for x in ladders]
    loss, gradient = _loss(state.head, ladders, _credits(rewards, settings), settings)
    if settings.pull:
        gradient = gradient + Gradient(
            settings.pull * (state.head.weight - run.start.weight),
            settings.pull * (state.head.bias - run.start.bias),
        )
    if settings.sigma == "batch":
        turned = [x.turned_sigma(j) for x in ladders for j in shots_that_turn(x.right)[:1]]
        sigma = float(np.mean(turned)) if turned else sigma
    head, adam = state.adam.step(state.head, gradient, settings.learning_rate)
    record = _recorded(state, ladders, rewards, loss, sigma, counter.cost, settings)
    return replace(
        state,
        head=head,
        adam=adam,
        sigma=sigma,
        batch=state.batch + 1,
        choice=None,
        history=(*state.history, record),
    )


def _climbed(
    state: State, cases: Sequence[TrainingCase], run: TrainingRun, counter: CostCounter
) -> tuple[list[_Ladder], float]:
    """All ladders of a batch, and sigma after them."""
    settings, sigma = run.settings, state.sigma
    random = np.random.default_rng([settings.seed, 1, state.epoch, state.batch])
    scored = [(case, state.head.scores(case.vector, case.vectors)) for case in cases]
    # algorithm 1 as printed: a turn moves sigma before the next question is asked
    at_once = 1 if settings.sigma == "immediate" else len(scored)
    ladders: list[_Ladder] = []
    for first in range(0, len(scored), at_once):
        group = scored[first : first + at_once]
        level = _within(settings, sigma, [scores for _, scores in group])
        picks = [_picked(scores, level, settings, random) for _, scores in group]
        flows = [climb(c, p, settings, run.wanted) for (c, _), p in zip(group, picks, strict=True)]
        watching = (*run.observers, counter)
        found = run_many(flows, run.world, observers=watching, batch=PROMPTS_AT_ONCE)
        ladders += [_Ladder(*g, p, f) for g, p, f in zip(group, picks, found, strict=True)]
        if settings.sigma == "immediate" and settings.rungs == "all":
            # line 16 runs at each turn of a ladder, and what it set last stays
            for j in shots_that_turn(ladders[-1].right)[-1:]:
                sigma = ladders[-1].turned_sigma(j)
    return ladders, sigma


def _within(
    settings: DURSettings, sigma: float, scores: Sequence[Float[np.ndarray, " _docs"]]
) -> float:
    most = None if settings.budget is None else settings.budget * settings.shots * len(scores)
    return bounded(
        sigma,
        [softmax(row) for row in scores],
        settings.shots,
        least_mean=settings.least_shots,
        most_cost=most,
        last=settings.rungs == "last",
    )


def _picked(
    scores: Float[np.ndarray, " docs"],
    sigma: float,
    settings: DURSettings,
    random: np.random.Generator,
) -> Int[np.ndarray, " shots"]:
    k = shots_above(softmax(scores), sigma, settings.shots)
    return top(scores, k) if settings.exploration == "top" else draw(scores, k, random)


def _calibrated(ladders: list[_Ladder], settings: DURSettings) -> list[_Ladder]:
    """The feedback of each rung, less the batch's mean view of the options.

    A rung that only a few of the questions reach has no mean to speak of: it gets that of the
    rung before.
    """
    if settings.option_calibration != "batch":
        return ladders
    columns = [list(x.feedback) for x in ladders]
    prior = None
    for j in range(max(map(len, columns))):
        here = [column for column in columns if j < len(column)]
        rung = [column[j] for column in here]
        if j == 0 or len(here) >= _LEAST_TO_CALIBRATE:
            prior = option_prior(rung)
        for column, found in zip(here, contextual_calibration(rung, prior), strict=True):
            column[j] = found
    return [replace(x, feedback=tuple(c)) for x, c in zip(ladders, columns, strict=True)]


def _credits(
    rewards: Sequence[Sequence[float]], settings: DURSettings
) -> list[Float[np.ndarray, " _shots"]]:
    """What each shot is credited with."""
    if settings.rungs == "last":
        found = [np.array(r, dtype=float) for r in rewards]
    elif settings.credit == "change":
        found = [np.diff(np.array(r, dtype=float)) for r in rewards]
    else:
        found = [np.array(r[1:], dtype=float) for r in rewards]
    return _advantages(found) if settings.advantage else found


def _advantages(
    credits: Sequence[Float[np.ndarray, " _shots"]],
) -> list[Float[np.ndarray, " _shots"]]:
    """Credits less the mean of their rung, over the deviation of all that is left.

    Rung by rung, because the first shot shows the model the form of an answer, which no later
    one does: against a common mean any first shot would look good and any later one bad.
    """
    deepest = max(map(len, credits), default=0)
    means = [np.mean([a[j] for a in credits if len(a) > j]) for j in range(deepest)]
    centred = [a - np.array(means[: len(a)]) for a in credits]
    everything = np.concatenate(centred) if centred else np.zeros(0)
    spread = everything.std() if len(everything) else 0.0
    return [a / spread if spread > 0 else np.zeros_like(a) for a in centred]


def _loss(
    head: Head,
    ladders: Sequence[_Ladder],
    credits: Sequence[Float[np.ndarray, " _shots"]],
    settings: DURSettings,
) -> tuple[float, Gradient]:
    """The loss of eq. 9 and its gradient; a prompt with all shots credits all of them alike."""
    loss, gradient = 0.0, Gradient.zero(head)
    for x, credit in zip(ladders, credits, strict=True):
        picks = x.picks if settings.rungs == "last" else x.picks[: len(credit)]
        weights = np.broadcast_to(credit, picks.shape) / len(ladders)
        if not len(picks):
            continue
        loss -= weights @ log_probs(x.scores, picks, replacement=settings.replacement)
        by_score = -weights @ log_prob_gradients(x.scores, picks, replacement=settings.replacement)
        gradient = gradient + head.gradient(x.case.vector, x.case.vectors, by_score)
    return float(loss), gradient


def _recorded(
    state: State,
    ladders: Sequence[_Ladder],
    rewards: Sequence[Sequence[float]],
    loss: float,
    sigma: float,
    cost: Cost,
    settings: DURSettings,
) -> Batch:
    laddered = settings.rungs == "all"
    right = [x.right for x in ladders]
    asked = [len(x.feedback) - 1 if laddered else len(x.picks) for x in ladders]
    easy, hard = [r for r in right if r[0]], [r for r in right if not r[0]]
    return Batch(
        epoch=state.epoch,
        number=state.batch,
        loss=loss,
        reward=float(np.mean([r[-1] for r in rewards])),
        sigma=sigma,
        questions=len(ladders),
        shots=sum(ladder_cost(k, last=not laddered) for k in asked),
        deepest=sum(asked),
        calls=cost.calls,
        tokens=cost.tokens,
        easy=len(easy) if laddered else None,
        easy_right=sum(r[-1] for r in easy) if laddered else None,
        hard_right=sum(r[-1] for r in hard) if laddered else None,
        turned_easy=sum(len(set(r)) > 1 for r in easy) if laddered else None,
        turned_hard=sum(len(set(r)) > 1 for r in hard) if laddered else None,
    )


@dataclass(frozen=True, slots=True)
class _Total:
    """Some batches together."""

    batches: int
    questions: int
    """Asked about; a question counts once for each of its batches."""
    reward: float
    """Mean reward of the last rungs, over questions."""
    shots: int
    """In all prompts together."""
    fixed_shots: int
    """In the prompts of a method that asks about the same questions once each, with K shots."""
    tokens: int | None
    """None: the model does not tell."""
    turned_easy: int | None
    """Questions that were right without shots, and did not stay so; None: not asked."""
    turned_hard: int | None
    """Questions that were wrong without shots, and did not stay so."""

    @property
    def share(self) -> float:
        """Shots for each shot of the fixed method."""
        return self.shots / self.fixed_shots


def total(batches: Sequence[Batch], *, shots: int) -> _Total:
    """At least one batch, added up.

    Args:
        shots: K.
    """
    questions = sum(batch.questions for batch in batches)
    return _Total(
        batches=len(batches),
        questions=questions,
        reward=sum(batch.reward * batch.questions for batch in batches) / questions,
        shots=sum(batch.shots for batch in batches),
        fixed_shots=shots * questions,
        tokens=_sum([batch.tokens for batch in batches]),
        turned_easy=_sum([batch.turned_easy for batch in batches]),
        turned_hard=_sum([batch.turned_hard for batch in batches]),
    )


def by_epoch(history: Sequence[Batch], *, shots: int) -> list[_Total]:
    """The total of each epoch, in order; the last may be cut short."""
    epochs = groupby(history, key=lambda batch: batch.epoch)
    return [total(list(batches), shots=shots) for _, batches in epochs]


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
