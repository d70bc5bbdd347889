"""How many shots to answer with: as many as the validation questions were best served with.

A trained head says which shots help; how many of them a model can take is another question, and a
small model often does better with one or two than with five.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ltrag_plugins.dur.feedback import Reading, Wanted, balanced, log_p_gold, reward
from ltrag_plugins.dur.head import Head
from ltrag_plugins.dur.policy import top
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.dur.training import AT_ONCE, ByShots, Case, all_tokens, climb
from ltrag_plugins.flow import Observer, World, run_many
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.types import Question


def value_by_shots(
    cases: Sequence[Case],
    head: Head,
    world: World,
    settings: DURSettings,
    wanted: Wanted,
    observers: Sequence[Observer] = (),
) -> ByShots:
    """What the model's replies are worth with the best 0, 1, ..., K shots: means over the cases.

    By the reward of the settings; "log_p_gold" counts as the probability itself here, as a single
    hopeless question would outweigh many others in a mean of logarithms.
    """
    whole = replace(settings, rungs="all", credit="outcome", stop_at_turn=False)
    ranked = [top(head.scores(c.vector, c.vectors), settings.shots) for c in cases]
    flows = [climb(c, picks, whole, wanted) for c, picks in zip(cases, ranked, strict=True)]
    counter = CostCounter()
    found = run_many(flows, world, observers=[*observers, counter], batch=AT_ONCE)
    values = []
    for j in range(max(map(len, found))):
        # where a question has fewer candidates, all of them are its best j
        readings = [row[min(j, len(row) - 1)] for row in found]
        questions = [c.question for c in cases]
        if settings.option_calibration == "batch":
            readings = balanced(readings, questions)
        worth = [_worth(r, q, settings) for r, q in zip(readings, questions, strict=True)]
        values.append(float(np.mean(worth)))
    return ByShots(tuple(values), counter.cost.calls, all_tokens(counter.cost))


def _worth(found: Reading, question: Question, settings: DURSettings) -> float:
    if settings.reward == "log_p_gold":
        return math.exp(log_p_gold(found, question))
    return reward(found, question, settings)
