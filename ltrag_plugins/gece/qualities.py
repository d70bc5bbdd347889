"""The metrics that can stand for M in the GECE formula; they bring nltk and sacrebleu."""

from collections.abc import Callable, Sequence

from ltrag_plugins.gece.settings import Quality
from ltrag_plugins.metrics.text import chrf, meteor, ter_quality

QUALITIES: dict[Quality, Callable[[str, Sequence[str]], float]] = {
    "meteor": meteor,
    "chrf": chrf,
    "ter": ter_quality,
}
"""Metrics that can stand for M, each in [0, 1]; TER as 1 - TER, at least 0."""
