r"""Algorithm 1, one batch at a time.

For each question: score its candidates, choose shots, ask with 0, 1, ..., k of them, credit each
shot, and go one step along

.. math:: \frac{1}{N} \sum_{i=1}^N \sum_{j=1}^{k_i} A_{ij} \nabla \log \pi(e_i^j \mid p_i)

A is the raw reward in the paper (eq. 9); by default what shot j changed, standardized.

Source: Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", algorithm 1, eq. 6-10, section 6.5 and
figure 8 (shots of a history beside a fixed number of them).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.calibration import softmax
from ltrag_plugins.dur.feedback import Feedback, contextual_calibration, read_feedback, reward
from ltrag_plugins.dur.head import Adam, Head
from ltrag_plugins.dur.policy import chosen_shots, log_probs
from ltrag_plugins.dur.prompts import Shot
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.flow import Observer
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.metrics.cost import Cost, CostCounter
from ltrag_plugins.types import Question

_Row = Float[np.ndarray, " _size"]
_LEAST_TO_CALIBRATE = 5  # questions; the mean of fewer says more of them than of the options


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCase:
    """One question to learn from, with the candidates that are ranked for it."""

    question: Question
    vector: Float[np.ndarray, " dim"]
    candidates: tuple[Shot, ...]
    vectors: Float[np.ndarray, "docs dim"]

    def ladder(self, picks: Int[np.ndarray, " shots"]) -> list[list[Shot]]:
        """The first 0, 1, ..., k of the picked candidates."""
        shots = [self.candidates[i] for i in picks]
        return [shots[:j] for j in range(len(shots) + 1)]


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
    easy: int | None = None
    """Questions that were right without shots; None where that was not asked."""
    easy_right: int | None = None
    hard_right: int | None = None
    """Of the others, how many were right at the last rung."""
    turned_easy: int | None = None
    """Of the easy ones, how many changed between right and wrong on the way."""
    turned_hard: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Ladder:
    """One question's shots, and what the model made of them."""

    case: TrainingCase
    scores: _Row
    picks: Int[np.ndarray, " shots"]
    feedback: Sequence[Feedback]

    @property
    def right(self) -> list[bool]:
        return [found.right for found in self.feedback]

    def sigmas(self) -> list[float]:
        """The threshold after each turn from right to wrong: the best score from there on."""
        scores, right = softmax(self.scores)[self.picks], self.right
        turns = [j for j in range(1, len(right)) if right[j - 1] and not right[j]]
        return [float(scores[j - 1 :].max()) for j in turns]


def trained_batch(
    cases: Sequence[TrainingCase],
    adam: Adam,
    llm: LLM,
    settings: DURSettings,
    start: Head,
    *,
    sigma: float,
    place: tuple[int, int],
    observers: Sequence[Observer] = (),
) -> tuple[Adam, Batch]:
    """One step on the questions of the batch at `place` (epoch, number), and what happened."""
    counter, random = CostCounter(), np.random.default_rng([settings.seed, 1, *place])
    scored = [(case, adam.head.scores(case.vector, case.vectors)) for case in cases]
    # algorithm 1 as printed: a turn moves sigma before the next question is asked
    groups = [[one] for one in scored] if settings.sigma == "immediate" else [scored]
    ladders: list[_Ladder] = []
    for group in groups:
        ladders += _climbed(group, sigma, llm, settings, random, (*observers, counter))
        if settings.sigma == "immediate" and settings.rungs == "all":
            # line 16 runs at each turn of a ladder, and what it set last stays
            sigma = [sigma, *ladders[-1].sigmas()][-1]
    if settings.option_calibration == "batch":
        ladders = _calibrated(ladders)
    rewards = [[reward(f, settings) for f in ladder.feedback] for ladder in ladders]
    loss, gradient = _loss(adam.head, ladders, _credits(rewards, settings), settings)
    if pull := settings.pull:
        weight = gradient.weight + pull * (adam.head.weight - start.weight)
        gradient = Head(weight, gradient.bias + pull * (adam.head.bias - start.bias))
    turned = [one for ladder in ladders for one in ladder.sigmas()[:1]]
    if settings.sigma == "batch" and turned:
        sigma = float(np.mean(turned))
    value = float(np.mean([row[-1] for row in rewards]))
    record = Batch(*place, loss, value, sigma, **_counts(ladders, counter.cost, settings))
    if not (gradient.weight.any() or gradient.bias.any()):
        return adam, record  # nothing was learned, and its momentum alone would move the head
    return adam.step(gradient, settings.learning_rate), record


def _climbed(
    group: Sequence[tuple[TrainingCase, _Row]],
    sigma: float,
    llm: LLM,
    settings: DURSettings,
    random: np.random.Generator,
    observers: Sequence[Observer],
) -> list[_Ladder]:
    """Choose shots for each question by its scores, and ask with 0, 1, ..., k of them."""
    picks = chosen_shots([scores for _, scores in group], sigma, settings, random)
    first = 0 if settings.rungs == "all" else -1
    asked = [
        (case.question, case.ladder(chosen)[first:])
        for (case, _), chosen in zip(group, picks, strict=True)
    ]
    found = read_feedback(asked, llm, settings, observers)
    return [_Ladder(*g, p, f) for g, p, f in zip(group, picks, found, strict=True)]


def _calibrated(ladders: Sequence[_Ladder]) -> list[_Ladder]:
    """The feedback of each rung, less the batch's mean view of the options there."""
    columns = [list(ladder.feedback) for ladder in ladders]
    over: list[Feedback] = []
    for j in range(max(map(len, columns))):
        here = [column for column in columns if j < len(column)]
        rung = [column[j] for column in here]
        if j == 0 or len(here) >= _LEAST_TO_CALIBRATE:  # else the mean of the rung before
            over = rung
        for column, found in zip(here, contextual_calibration(rung, over), strict=True):
            column[j] = found
    return [replace(x, feedback=column) for x, column in zip(ladders, columns, strict=True)]


def _credits(rewards: Sequence[Sequence[float]], settings: DURSettings) -> list[_Row]:
    """What each shot is credited with; as advantages, less the mean of its rung, standardized."""
    # rung by rung, because the first shot alone shows the model the form of an answer
    credits = [np.array(row, dtype=float) for row in rewards]
    if settings.rungs == "all":
        credits = [np.diff(row) if settings.credit == "change" else row[1:] for row in credits]
    if not settings.advantage:
        return credits
    deepest = max(map(len, credits), default=0)
    means = [np.mean([row[j] for row in credits if len(row) > j]) for j in range(deepest)]
    centred = [row - np.array(means[: len(row)]) for row in credits]
    everything = np.concatenate(centred)
    spread = everything.std() if len(everything) else 0.0
    return [row / spread if spread > 0 else np.zeros_like(row) for row in centred]


def _loss(
    head: Head, ladders: Sequence[_Ladder], credits: Sequence[_Row], settings: DURSettings
) -> tuple[float, Head]:
    """The loss of eq. 9 and its gradient; a prompt with all shots credits all of them alike."""
    loss, weight, bias = 0.0, np.zeros_like(head.weight), np.zeros_like(head.bias)
    for x, credit in zip(ladders, credits, strict=True):
        picks = x.picks if settings.rungs == "last" else x.picks[: len(credit)]
        if not len(picks):
            continue
        weights = np.broadcast_to(credit, picks.shape) / len(ladders)
        chances, slopes = log_probs(x.scores, picks, replacement=settings.replacement)
        loss -= weights @ chances
        part = head.gradient(x.case.vector, x.case.vectors, -weights @ slopes)
        weight, bias = weight + part.weight, bias + part.bias
    return float(loss), Head(weight, bias)


def _counts(ladders: Sequence[_Ladder], cost: Cost, settings: DURSettings) -> dict[str, Any]:
    """What a `Batch` counts of its ladders; with a single rung nobody knows what turned."""
    asked = {"questions": len(ladders), "calls": cost.calls, "tokens": cost.tokens}
    if settings.rungs == "last":
        return asked | dict.fromkeys(("shots", "deepest"), sum(len(x.picks) for x in ladders))
    right = [ladder.right for ladder in ladders]
    easy, hard = [r for r in right if r[0]], [r for r in right if not r[0]]
    asked |= {"shots": sum(sum(range(len(r))) for r in right), "easy": len(easy)}
    asked |= {"deepest": sum(len(r) - 1 for r in right)}
    for kind, rows in (("easy", easy), ("hard", hard)):
        turned = sum(len(set(r)) > 1 for r in rows)
        asked |= {f"{kind}_right": sum(r[-1] for r in rows), f"turned_{kind}": turned}
    return asked


def total(batches: Sequence[Batch]) -> Batch:
    """Some batches as one: counts added up, the reward a mean, all else as in the last."""
    names, added = [field.name for field in fields(Batch)], {}
    for name in names[names.index("questions") :]:
        column = [getattr(batch, name) for batch in batches]
        added[name] = None if None in column else sum(column)
    rewards = sum(batch.reward * batch.questions for batch in batches)
    return replace(batches[-1], **added, reward=rewards / added["questions"])


def by_epoch(history: Sequence[Batch]) -> list[Batch]:
    """The total of each epoch, in order; the last may be cut short."""
    return [total(list(batches)) for _, batches in groupby(history, key=lambda b: b.epoch)]
