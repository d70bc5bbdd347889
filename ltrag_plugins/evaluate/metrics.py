"""The measures of answers that a run can be asked for, by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ltrag_plugins.errors import InvalidInput, unknown_name
from ltrag_plugins.metrics.answer import accuracy, contains, f1, normalized_exact_match
from ltrag_plugins.metrics.text import bleu, chrf, meteor, rouge_1, rouge_l, ter

Metric = Callable[[str, Sequence[str]], float]
"""From a prediction and the accepted answers to a number, larger is better but for TER."""

METRICS: Mapping[str, Metric] = {
    "em": normalized_exact_match,
    "f1": f1,
    "contains": contains,
    "accuracy": accuracy,
    "rouge1": rouge_1,
    "rougeL": rouge_l,
    "bleu4": bleu,
    "meteor": meteor,
    "chrf": chrf,
    "ter": ter,
}
LOWER_IS_BETTER = frozenset({"ter"})
DEFAULT = ("em", "f1", "rouge1", "bleu4")


def chosen(names: Iterable[str]) -> dict[str, Metric]:
    """The measures of these names.

    Raises:
        InvalidInput: there is none of a name (the nearest are named), or no name at all.
    """
    found = {name: _metric(name) for name in names}
    if not found:
        raise InvalidInput(f"name at least one metric of {', '.join(METRICS)}")
    return found


def _metric(name: str) -> Metric:
    if name in METRICS:
        return METRICS[name]
    raise unknown_name("metric", name, METRICS)
