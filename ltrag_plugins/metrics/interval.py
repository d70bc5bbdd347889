"""A figure with its doubt."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its percentile bootstrap interval."""

    value: float
    """The statistic on the sample itself."""
    low: float
    high: float
    level: float
    """Share of the resamples between `low` and `high`, 0 to 1."""

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"
