r"""Algorithm 1, one batch at a time.

For each question of a batch: score its candidates, choose shots, ask the model with 0, 1, ...,
k of them, credit each shot, and go one step along

.. math:: \frac{1}{N} \sum_{i=1}^N \sum_{j=1}^{k_i} A_{ij} \nabla \log \pi(e_i^j \mid p_i)

A is the raw reward in the paper (eq. 9); by default it is what shot j changed, standardized
over the batch.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", algorithm 1, eq. 6-10.

Adam, on the two arrays of a head.

References:
    Kingma & Ba, ICLR 2015, "Adam: A Method for Stochastic Optimization", algorithm 1.

What a training history adds up to, held against a fixed number of shots.

PromptPG asks once for each question, with K shots; DUR asks with 0, 1, ..., k_i of them. The
paper compares the two by the shots in all prompts together.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", section 6.5 and figure 8.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, Self

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from ltrag_plugins.dur.feedback import (
    Reading,
    Wanted,
    is_right,
    levelled,
    option_level,
    reading,
    reward,
)
from ltrag_plugins.dur.head import Gradient, Head, pulled_back
from ltrag_plugins.dur.policy import (
    bounded,
    draw,
    ladder_cost,
    log_prob_gradients,
    log_probs,
    shots_above,
    top,
    turn,
    turned_sigma,
    turns,
)
from ltrag_plugins.dur.prompts import Shot, format_for
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.flow import Flow, Observer, World, run, run_many
from ltrag_plugins.metrics.cost import Cost, CostCounter
from ltrag_plugins.types import Question

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Adam:
    """The running means of the gradient and of its square, after `steps` steps."""

    mean: Gradient
    square: Gradient
    steps: int = 0

    @classmethod
    def start(cls, head: Head) -> Self:
        """Before the first step."""
        zero = Gradient(np.zeros_like(head.weight), np.zeros_like(head.bias))
        return cls(zero, zero)

    def step(self, head: Head, gradient: Gradient, rate: float) -> tuple[Head, "Adam"]:
        """The head one step down the gradient, and the state after it."""
        t = self.steps + 1
        parts = {}
        for name in ("weight", "bias"):
            g = getattr(gradient, name)
            m = _BETA1 * getattr(self.mean, name) + (1 - _BETA1) * g
            v = _BETA2 * getattr(self.square, name) + (1 - _BETA2) * g * g
            spread = np.sqrt(v / (1 - _BETA2**t)) + _EPSILON
            parts[name] = getattr(head, name) - rate * (m / (1 - _BETA1**t)) / spread, m, v
        columns = zip(*parts.values(), strict=True)
        values, means, squares = (dict(zip(parts, x, strict=True)) for x in columns)
        return Head(**values), Adam(Gradient(**means), Gradient(**squares), t)


AT_ONCE = 128
"""Most prompts of one call to the model."""
_LEAST_TO_LEVEL = 5  # questions; the mean of fewer says more of them than of the options


@dataclass(frozen=True, slots=True, eq=False)
class Case:
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
class Job:
    """What stays the same through a run."""

    world: World
    settings: DURSettings
    wanted: Wanted
    start: Head
    """The head before training, to which `DURSettings.pull` pulls back."""
    observers: Sequence[Observer] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Ladder:
    """One question's shots, what was read with them, and what the readings are worth."""

    case: Case
    scores: Float[np.ndarray, " docs"]
    picks: Int[np.ndarray, " shots"]
    readings: tuple[Reading, ...]

    @property
    def softmax(self) -> Float[np.ndarray, " shots"]:
        return softmax(self.scores)[self.picks]


def climb(
    case: Case, picks: Int[np.ndarray, " shots"], settings: DURSettings, wanted: Wanted
) -> Flow[tuple[Reading, ...]]:
    """Ask with 0, 1, ..., k of the picks, in their order; or with all of them alone."""
    form = format_for(settings.format)
    shots = [case.candidates[i] for i in picks]
    rungs = range(len(shots) + 1) if settings.rungs == "all" else [len(shots)]
    prompts = [(shots[:j], case.question) for j in rungs]
    if not settings.stop_at_turn:
        return tuple((yield from reading(prompts, form, wanted)))
    found: list[Reading] = []
    for prompt in prompts:
        found += yield from reading([prompt], form, wanted)
        if turn([is_right(r, case.question) for r in found]) is not None:
            break
    return tuple(found)


def trained_batch(state: State, cases: Sequence[Case], job: Job) -> State:
    """The state after one batch."""
    world, settings, wanted = job.world, job.settings, job.wanted
    random = np.random.default_rng([settings.seed, 1, state.epoch, state.batch])
    counter = CostCounter()
    watching = (*job.observers, counter)
    scores = [state.head.scores(case.vector, case.vectors) for case in cases]
    if settings.sigma == "immediate":
        ladders, sigma = _one_by_one(
            state.sigma,
            cases,
            scores,
            random,
            lambda flow: run(flow, world, observers=watching),
            settings,
            wanted,
        )
    else:
        sigma = state.sigma
        level = _within(settings, sigma, scores)
        picks = [_picked(s, level, settings, random) for s in scores]
        flows = [climb(c, p, settings, wanted) for c, p in zip(cases, picks, strict=True)]
        read = run_many(flows, world, observers=watching, batch=AT_ONCE)
        ladders = [_Ladder(*parts) for parts in zip(cases, scores, picks, read, strict=True)]
    ladders = _calibrated(ladders, settings)
    rewards = [[reward(r, x.case.question, settings) for r in x.readings] for x in ladders]
    loss, gradient = _loss(state.head, ladders, _credits(rewards, settings), settings)
    if settings.pull:
        gradient = gradient + Gradient(
            settings.pull * (state.head.weight - job.start.weight),
            settings.pull * (state.head.bias - job.start.bias),
        )
    if settings.sigma == "batch":
        sigma = _batch_sigma(sigma, ladders)
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


def _one_by_one(
    sigma: float,
    cases: Sequence[Case],
    scores: Sequence[Float[np.ndarray, " _docs"]],
    random: np.random.Generator,
    ask: Callable[[Flow[tuple[Reading, ...]]], tuple[Reading, ...]],
    settings: DURSettings,
    wanted: Wanted,
) -> tuple[list[_Ladder], float]:
    """Algorithm 1 as printed: a turn moves sigma before the next question is asked."""
    ladders = []
    for case, row in zip(cases, scores, strict=True):
        picks = _picked(row, _within(settings, sigma, [row]), settings, random)
        read = ask(climb(case, picks, settings, wanted))
        ladders.append(_Ladder(case, row, picks, read))
        found = turns([is_right(r, case.question) for r in read])
        if found and settings.rungs == "all":
            # line 16 runs at each turn of a ladder, and what it set last stays
            sigma = turned_sigma(ladders[-1].softmax, found[-1])
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


def _batch_sigma(sigma: float, ladders: Sequence[_Ladder]) -> float:
    first = [(x, turn([is_right(r, x.case.question) for r in x.readings])) for x in ladders]
    found = [turned_sigma(x.softmax, j) for x, j in first if j is not None]
    return float(np.mean(found)) if found else sigma


def _calibrated(ladders: list[_Ladder], settings: DURSettings) -> list[_Ladder]:
    """The readings of each rung, less the batch's mean view of the options.

    A rung that only a few of the questions reach has no mean to speak of: it gets that of the
    rung before.
    """
    if settings.option_calibration != "batch":
        return ladders
    columns: list[list[Reading]] = [list(x.readings) for x in ladders]
    level = None
    for j in range(max(map(len, columns))):
        here = [i for i, readings in enumerate(columns) if j < len(readings)]
        read = [columns[i][j] for i in here]
        if j == 0 or len(here) >= _LEAST_TO_LEVEL:
            level = option_level(read, [ladders[i].case.question for i in here])
        for i, r in zip(here, levelled(read, level), strict=True):
            columns[i][j] = r
    return [replace(x, readings=tuple(c)) for x, c in zip(ladders, columns, strict=True)]


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
    loss = 0.0
    gradient = Gradient(np.zeros_like(head.weight), np.zeros_like(head.bias))
    for x, credit in zip(ladders, credits, strict=True):
        picks = x.picks if settings.rungs == "last" else x.picks[: len(credit)]
        weights = np.broadcast_to(credit, picks.shape) / len(ladders)
        if not len(picks):
            continue
        loss -= weights @ log_probs(x.scores, picks, replacement=settings.replacement)
        by_score = -weights @ log_prob_gradients(x.scores, picks, replacement=settings.replacement)
        gradient = gradient + pulled_back(head, x.case.vector, x.case.vectors, by_score)
    return float(loss), gradient


def all_tokens(cost: Cost) -> int | None:
    """Read and written; None: the model does not tell."""
    both = cost.prompt_tokens, cost.completion_tokens
    return None if None in both else sum(filter(None, both))


def _recorded(
    state: State,
    ladders: Sequence[_Ladder],
    rewards: Sequence[Sequence[float]],
    loss: float,
    sigma: float,
    cost: Cost,
    settings: DURSettings,
) -> Batch:
    right = [[is_right(r, x.case.question) for r in x.readings] for x in ladders]
    laddered = settings.rungs == "all"
    asked = [len(r) - 1 if laddered else len(x.picks) for r, x in zip(right, ladders, strict=True)]
    shots = sum(ladder_cost(k, last=not laddered) for k in asked)
    tokens = all_tokens(cost)
    easy = [r for r in right if r[0]] if laddered else None
    hard = [r for r in right if not r[0]] if laddered else None
    return Batch(
        epoch=state.epoch,
        number=state.batch,
        loss=loss,
        reward=float(np.mean([r[-1] for r in rewards])),
        sigma=sigma,
        questions=len(ladders),
        shots=shots,
        deepest=sum(asked),
        calls=cost.calls,
        tokens=tokens,
        easy=None if easy is None else len(easy),
        easy_right=None if easy is None else sum(r[-1] for r in easy),
        hard_right=None if hard is None else sum(r[-1] for r in hard),
        turned_easy=None if easy is None else sum(len(set(r)) > 1 for r in easy),
        turned_hard=None if hard is None else sum(len(set(r)) > 1 for r in hard),
    )


@dataclass(frozen=True, slots=True)
class Total:
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
    deepest: float
    """Mean shots in the longest prompt of a question."""
    calls: int
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


def total(batches: Sequence[Batch], *, shots: int) -> Total:
    """At least one batch, added up.

    Args:
        shots: K.
    """
    questions = sum(batch.questions for batch in batches)
    return Total(
        batches=len(batches),
        questions=questions,
        reward=sum(batch.reward * batch.questions for batch in batches) / questions,
        shots=sum(batch.shots for batch in batches),
        fixed_shots=shots * questions,
        deepest=sum(batch.deepest for batch in batches) / questions,
        calls=sum(batch.calls for batch in batches),
        tokens=_sum([batch.tokens for batch in batches]),
        turned_easy=_sum([batch.turned_easy for batch in batches]),
        turned_hard=_sum([batch.turned_hard for batch in batches]),
    )


def by_epoch(history: Sequence[Batch], *, shots: int) -> list[Total]:
    """The total of each epoch, in order; the last may be cut short."""
    epochs = groupby(history, key=lambda batch: batch.epoch)
    return [total(list(batches), shots=shots) for _, batches in epochs]


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
