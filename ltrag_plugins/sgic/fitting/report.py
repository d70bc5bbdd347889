"""What a fit says of itself."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ltrag_plugins.metrics.calibration import Interval


@dataclass(frozen=True, slots=True)
class VariantFigures:
    """One way to answer, over all questions of the fit."""

    name: str
    kind: str
    """"direct", "rounds", "cut" (to the surest documents) or "samples"."""
    em: float
    """Share of answers that match exactly after SQuAD's normalization, 0 to 1."""
    f1: float
    """Mean word F1, 0 to 1."""
    calls: float
    """Mean prompts a question, with the stop rules of the settings."""
    tokens: float | None
    """Mean tokens a question, read and written; None where a reply did not say."""
    milliseconds: float | None = field(compare=False)
    """Mean time of the model a question, as an answer cache measured it when each reply was
    computed (of a batch, its share); None without one."""
    gain: Interval
    """Over direct, in the metric of the fit, -1 to 1; paired bootstrap over the questions."""
    pays: bool
    """Whether the whole interval is above 0."""
    keepable: bool
    """Whether a `Calibration` can express it. Not: samples; nor another estimator where it would
    change what the prompts show, as these are held fixed."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Figures of `fit`. Gains and P(wrong) under `unseen_gain`, `auroc` and `ece` are
    cross-validated; the rows of `variants` are not, as nothing in them was fitted to the labels."""

    questions: int
    metric: str
    """"em" or "f1": what had to rise."""
    level: float
    """Of all intervals, 0 to 1."""
    estimator: str
    kept: str
    """Name of the variant that was kept; "direct" where none paid."""
    variants: tuple[VariantFigures, ...]
    """Direct first."""
    unseen_gain: Interval | None
    """Of the choice itself over direct, on questions that it was not made on."""
    means: tuple[float, ...]
    """Mean uncertainty of the answers of each round, 0 to 1, over all recorded rounds."""
    wrong: float
    """Share of wrong answers of the kept variant, 0 to 1."""
    auroc: float | None
    """Of the kept variant's score for "wrong", 0 to 1; None without a calibration of P(wrong)."""
    ece: float | None
    """Expected calibration error of P(wrong), 0 to 1; None as for `auroc`."""
    estimator_aurocs: Mapping[str, float]
    """Of each estimator's uncertainty of the direct answer for "wrong"; empty where the direct
    answers are all right or all wrong."""
    calls: int
    """Prompts that the fit sent, those that a cache answered included."""
    notes: tuple[str, ...] = ()
    """What a user should know before relying on it."""

    def __getitem__(self, name: str) -> VariantFigures:
        """The figures of a variant by its name.

        Raises:
            KeyError: there is none of that name.
        """
        found = {row.name: row for row in self.variants}
        return found[name]

    @property
    def pays(self) -> bool:
        """Whether anything was better than direct."""
        return self.kept != "direct"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        figures, names = self._figures(), [f"* {row.name}" for row in self.variants]
        wide = 2 + max(map(len, (*names, *(name for name, _ in figures))))
        costs = "".join(f"{name:>9}" for name in self._known())
        head = f"{'':<{wide}}{'EM':>6}{'F1':>7}{'calls':>8}{costs}  gain in {self.metric.upper()}"
        lines = [head, *(self._row(row, wide) for row in self.variants)]
        lines += [f"{name:<{wide}} {text}" for name, text in figures]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    def _row(self, row: VariantFigures, wide: int) -> str:
        name = f"{'*' if row.name == self.kept else ' '} {row.name}"
        figures = f"{name:<{wide}}{row.em:6.3f}{row.f1:7.3f}{row.calls:8.1f}"
        figures += "".join(f"{_whole(_COSTS[cost](row)):>9}" for cost in self._known())
        if row.name == "direct":
            return figures
        return f"{figures}  {_interval(row.gain)}{' pays' if row.pays else ''}" + (
            "" if row.keepable else " (compared only)"
        )

    def _known(self) -> list[str]:
        """The costs that some row knows."""
        return [
            name for name, of in _COSTS.items() if any(of(row) is not None for row in self.variants)
        ]

    def _figures(self) -> list[tuple[str, str]]:
        rows = [
            ("questions, calls of this fit", f"{self.questions}, {self.calls}"),
            ("kept", f"{self.kept} ({self.level:.0%} intervals)"),
            ("mean uncertainty of rounds 0, 1, ...", ", ".join(f"{m:.3f}" for m in self.means)),
            ("wrong answers, kept variant", f"{self.wrong:.3f}"),
        ]
        if self.unseen_gain is not None:
            rows.append(("gain of the choice, cross-validated", _interval(self.unseen_gain)))
        if self.auroc is not None and self.ece is not None:
            rows.append(("P(wrong): AUROC, calibration error", f"{self.auroc:.3f}, {self.ece:.3f}"))
        best = sorted(self.estimator_aurocs.items(), key=lambda item: -item[1])
        rows += [(f"AUROC of {name}, direct answer wrong", f"{value:.3f}") for name, value in best]
        return rows


_COSTS: Mapping[str, Callable[[VariantFigures], float | None]] = {
    "tokens": lambda row: row.tokens,
    "ms": lambda row: row.milliseconds,
}


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _interval(interval: Interval) -> str:
    return f"{interval.value:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"
