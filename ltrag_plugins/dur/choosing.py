"""Whether to answer with the head as it was trained or as it began, and with how many shots.

A head can learn what is true of its training questions alone, and a small model often does better
with one or two shots than with five. The first is found out on questions that training did not
see, which are enough to notice a loss; the second, a smaller matter, takes all questions.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from ltrag_plugins.dur.feedback import Reading, balanced, log_p_gold, reward
from ltrag_plugins.dur.head import Head
from ltrag_plugins.dur.policy import top
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.dur.training import AT_ONCE, Case, Choice, Job, all_tokens, climb
from ltrag_plugins.flow import run_many
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.types import Question

LEAST_HELD_OUT = 10
"""Questions; fewer would choose by chance."""


def learned_count(questions: int, settings: DURSettings) -> int:
    """How many of so many questions are trained on; the others are held out."""
    held_out = round(settings.held_out * questions)
    return questions if held_out < LEAST_HELD_OUT else questions - held_out


def split_cases(
    cases: Sequence[Case], settings: DURSettings
) -> tuple[Sequence[Case], Sequence[Case]]:
    """The cases to train on, and those that are held out; none of these where they are few."""
    count = learned_count(len(cases), settings)
    if count == len(cases):
        return cases, ()
    order = np.random.default_rng([settings.seed, 4]).permutation(len(cases))
    return [cases[i] for i in order[:count]], [cases[i] for i in order[count:]]


def choice(
    learned_from: Sequence[Case], held_out: Sequence[Case], trained: Head, job: Job
) -> Choice:
    """What the trained head and the one before are worth, by the number of shots."""
    counter = CostCounter()
    watching = replace(job, observers=[*job.observers, counter])
    by_trained = _by_shots([*learned_from, *held_out], trained, watching)
    unseen = by_trained[:, len(learned_from) :]
    # where no batch was trained they are one and the same
    by_start = unseen if trained is job.start else _by_shots(held_out, job.start, watching)
    best = [rows[1 + int(np.argmax(rows[1:].mean(axis=1)))] for rows in (unseen, by_start)]
    return Choice(
        questions=len(held_out),
        trained=tuple(unseen.mean(axis=1).tolist()),
        start=tuple(by_start.mean(axis=1).tolist()),
        error=float(np.std(best[0] - best[1], ddof=1) / np.sqrt(len(held_out))),
        everywhere=tuple(by_trained.mean(axis=1).tolist()),
        calls=counter.cost.calls,
        tokens=all_tokens(counter.cost),
    )


def _by_shots(cases: Sequence[Case], head: Head, job: Job) -> Float[np.ndarray, "counts questions"]:
    """What the model's reply to each case is worth with the best 0, 1, ..., K shots.

    By the reward of the settings; "log_p_gold" counts as the probability itself here, as a single
    hopeless question would outweigh many others in a mean of logarithms.
    """
    settings = job.settings
    whole = replace(settings, rungs="all", credit="outcome", stop_at_turn=False)
    ranked = [top(head.scores(c.vector, c.vectors), settings.shots) for c in cases]
    flows = [climb(c, picks, whole, job.wanted) for c, picks in zip(cases, ranked, strict=True)]
    found = run_many(flows, job.world, observers=job.observers, batch=AT_ONCE)
    values = []
    for j in range(max(map(len, found))):
        # where a question has fewer candidates, all of them are its best j
        readings = [row[min(j, len(row) - 1)] for row in found]
        questions = [c.question for c in cases]
        if settings.option_calibration == "batch":
            readings = balanced(readings, questions)
        values.append([_worth(r, q, settings) for r, q in zip(readings, questions, strict=True)])
    return np.array(values)


def _worth(found: Reading, question: Question, settings: DURSettings) -> float:
    if settings.reward == "log_p_gold":
        return math.exp(log_p_gold(found, question))
    return reward(found, question, settings)
