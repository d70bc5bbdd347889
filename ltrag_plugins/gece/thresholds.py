"""Where to cut: a target rate, or a target accuracy at the lowest rate that reaches it."""

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.gece.labels import Labels

DEFAULT_RATE = 0.2
"""Share of questions that may retrieve where no target is given (paper: the top 20 %)."""


def check_targets(target_rate: float | None, target_accuracy: float | None) -> None:
    """Whether the targets can be such.

    Raises:
        InvalidInput: both were given, or one lies outside [0, 1].
    """
    if target_rate is not None and target_accuracy is not None:
        raise InvalidInput("give target_rate or target_accuracy, not both")
    for name, value in (("target_rate", target_rate), ("target_accuracy", target_accuracy)):
        if value is not None and not 0 <= value <= 1:
            raise InvalidInput(f"{name} must lie in [0, 1], got {value}; 0.2 means one in five")


def rate_threshold(scores: Float[np.ndarray, " questions"], rate: float) -> float:
    """The threshold whose retrieval rate is nearest to `rate`; of two, the lower rate.

    Equal scores go together, so that the rate of a score with many ties may be off.
    """
    ordered = np.sort(scores)
    kept = _possible(ordered)
    off = np.abs((len(scores) - kept) - rate * len(scores))
    return _cut(ordered, int(kept[::-1][np.argmin(off[::-1])]))


def accuracy_threshold(
    scores: Float[np.ndarray, " questions"], labels: Labels, target: float
) -> float:
    """The threshold with the lowest retrieval rate at which `target` of the answers are right.

    Of all answers where those with retrieval are known, else of those given directly.

    Raises:
        CalibrationError: no rate reaches it; the message has the best.
    """
    ordered = np.sort(scores)
    kept = _possible(ordered)
    accuracy = _accuracies(np.argsort(scores, kind="stable"), labels)[kept]
    reached = kept[accuracy >= target]
    if not reached.size:
        best = int(np.flatnonzero(accuracy == accuracy.max())[-1])
        rate = 1 - kept[best] / len(scores)
        raise CalibrationError(
            f"target_accuracy={target:g} is out of reach on these {len(scores)} questions: the "
            f"best at any retrieval rate is {accuracy[best]:.3f}, at {rate:.0%}. Ask for less, use "
            "target_rate, or look at the retriever and the prompts."
        )
    return _cut(ordered, int(reached[-1]))


def gated_accuracy(scores: Float[np.ndarray, " questions"], labels: Labels, rate: float) -> float:
    """Share of right answers when the `rate` of questions with the largest scores retrieve."""
    assert labels.mended is not None
    retrieve = np.zeros(len(scores), dtype=bool)
    retrieve[np.argsort(-scores, kind="stable")[: round(rate * len(scores))]] = True
    return float(np.where(retrieve, labels.mended, 1 - labels.fails).mean())


def _accuracies(
    order: Int[np.ndarray, " questions"], labels: Labels
) -> Float[np.ndarray, " questions_and_one"]:
    """Accuracy where the first 0, 1, ..., all questions in `order` are answered directly.

    Where only direct answers are known and there are none, it is 0.
    """
    direct = np.concatenate([[0], np.cumsum(1 - labels.fails[order])])
    if labels.mended is None:
        return direct / np.maximum(1, np.arange(len(direct)))
    mended = np.concatenate([[0], np.cumsum(labels.mended[order])])
    return (direct + mended[-1] - mended) / len(order)


def _possible(ordered: Float[np.ndarray, " questions"]) -> Int[np.ndarray, " cuts"]:
    """How many questions a threshold can leave to the model: ties cannot be parted."""
    inner = 1 + np.flatnonzero(ordered[:-1] < ordered[1:])
    return np.concatenate([[0], inner, [len(ordered)]])


def _cut(ordered: Float[np.ndarray, " questions"], kept: int) -> float:
    """A threshold under which `kept` of the scores lie."""
    if kept == 0:
        return -np.inf
    if kept == len(ordered):
        return np.inf
    low, high = float(ordered[kept - 1]), float(ordered[kept])
    middle = low + (high - low) / 2
    return middle if low < middle else high  # between neighbours there is no middle
