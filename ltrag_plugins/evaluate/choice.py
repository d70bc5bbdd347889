"""Which parts of a pipeline pay: the cheapest way that meets the target, and a table of all.

All ways have answered the same questions. What a way costs is its tokens, where all replies count
them, else its milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.summary import Row, summarize
from ltrag_plugins.metrics.calibration import (
    Interval,
    Reliability,
    bootstrap_interval,
    paired_bootstrap,
)
from ltrag_plugins.metrics.table import table
from ltrag_plugins.settings import Positive, Settings, Share

Retrieves = Literal["never", "gated", "always"]
_Column = Float[np.ndarray, " questions"]
_Rows = Int[np.ndarray, " rows"] | slice
_DISAGREE = 0.05  # of the answers, that may differ from always retrieving's and be as good
_SAME_COST = 1.02  # times the least: a token less is no reason for an encoder's time
_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Goal(Settings):
    """What the kept way is chosen for, one of these; with none it is "always"."""

    target_accuracy: Share | Literal["always"] | None = None
    """The least share of right answers; "always": as many as always retrieving gives (of answers
    without accepted ones: 95 % agree with it). The cheapest way that has them is kept."""
    budget: Positive | None = None
    """Most that a question may cost, as a share of what it costs always retrieving. The most
    accurate way within it is kept."""

    def _check_together(self) -> None:
        if None not in (self.target_accuracy, self.budget):
            raise InvalidInput("give target_accuracy or budget, not both")

    def __str__(self) -> str:
        if self.budget is not None:
            return f"the most accurate within {self.budget:g} of always retrieving's cost"
        if self.target_accuracy in (None, "always"):
            return "the cheapest that is as good as always retrieving"
        return f"the cheapest that is right on {self.target_accuracy:.0%}"

    @property
    def of_gate(self) -> dict[str, Any]:
        """The same for `GECEGate.fit`."""
        if self.budget is None:
            return {"target_accuracy": self.target_accuracy or "always"}
        return {"budget": self.budget} if self.budget <= 1 else {"target_accuracy": "always"}


@dataclass(frozen=True, slots=True)
class Way:
    """Which parts answer."""

    retrieves: Retrieves = "always"
    ranks: bool = False
    """Whether passages are reranked."""
    looks: bool = False
    """Whether the calibrator looks again where an answer is unsure."""

    @property
    def parts(self) -> int:
        """How many there are."""
        return (self.retrieves == "gated") + self.ranks + self.looks

    @property
    def name(self) -> str:
        """As the rows of a table are called."""
        if self.retrieves == "never":
            return "never"
        reading = "-".join(["reranked"] * self.ranks + ["calibrated"] * self.looks) or "always"
        return f"{reading}{'+gate' * (self.retrieves == 'gated')}"


ALWAYS = Way()
PARTS: Mapping[str, Mapping[str, Any]] = {
    "gate": {"retrieves": "gated"},
    "reranker": {"ranks": True},
    "calibrator": {"looks": True},
}
"""What each part sets in a way that has it."""


@dataclass(frozen=True, slots=True)
class WayFigures:
    """One way to answer: means over the questions that all were judged on."""

    name: str
    right: Interval
    """Share of right answers."""
    gain: Interval | None
    """Over always retrieving, paired by question; None for that row itself."""
    calls: float
    searches: float
    tokens: float | None
    """Read and written; None where the model does not say."""
    seconds: float
    """Of waiting for model, search and encoder."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a part was kept, and why."""

    part: str
    kept: bool
    why: str
    adds: Interval | None = None
    """Share of right answers that it adds to the kept way; None where it was not tried."""
    spends: float | None = None
    """What it adds to the cost of a question, in the report's unit."""


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """What a fit of `LongTailRAG` found, on questions that no part was fitted on."""

    fitted: int
    """Questions that the parts were fitted on."""
    judged: int
    """The others, which all figures are of."""
    agreement: float
    """Share of the questions without accepted answers: right means agreement with the answer with
    retrieval."""
    goal: str
    met: bool
    """Whether a way met it; if none did, the most accurate one was kept."""
    kept: str
    """Name of the row that was kept."""
    rows: tuple[WayFigures, ...]
    """All ways."""
    verdicts: tuple[Verdict, ...]
    unit: Literal["tokens", "ms"]
    """What costs are compared in."""
    unseen: Interval | None
    """Right answers that the choice itself adds to always retrieving, cross-validated."""
    p_wrong: Reliability | None
    """Of the kept way; None where it does not know P(wrong) of all answers."""
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> WayFigures:
        """The row of that name."""
        return {row.name: row for row in self.rows}[name]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        agreed, level = self.agreement, self.rows[0].right.level
        labels = "accepted answers" if agreed < 1 else "agreement with always retrieving"
        if 0 < agreed < 1:
            labels += f", for {agreed:.0%} agreement with always retrieving"
        told, rows = {"kept": f"{self.kept}: {self.goal}"}, dict[str, list[str]]()
        told |= {v.part: f"{'kept' if v.kept else 'left out'}: {v.why}" for v in self.verdicts}
        if self.unseen is not None:
            told["the choice"] = f"{self.unseen.signed} right, cross-validated"
        if self.p_wrong is not None:
            area = "-" if self.p_wrong.auroc is None else f"{self.p_wrong.auroc:.2f}"
            told["P(wrong)"] = f"AUROC {area}, calibration error {self.p_wrong.ece:.2f}"
        lines = [f"{name:<12}{text}" for name, text in told.items()]
        lines += [f"note: {note}" for note in self.notes]
        for row in self.rows:
            gain, tokens = (row.gain and row.gain.signed) or "-", row.tokens
            costs = [f"{row.calls:.2f}", f"{row.searches:.2f}"]
            costs += ["-" if tokens is None else f"{tokens:.0f}", f"{row.seconds:.3f}"]
            rows[f"{' *'[row.name == self.kept]} {row.name}"] = [str(row.right), gain, *costs]
        about = f"fitted on {self.fitted} questions, judged on {self.judged} others ({labels})"
        heads = (
            ["right", f"against always ({level:.0%})"],
            ["calls", "searches", "tokens", "seconds"],
        )
        return "\n".join([*lines, "", about, *table(rows.items(), *heads)])


@dataclass(frozen=True)
class Trials:
    """The records of all ways, in one order of the questions; "right" is their score."""

    records: Mapping[Way, Sequence[Record]]
    stands_in: np.ndarray
    """Where right is agreement with always retrieving."""
    goal: Goal
    seed: int = 0

    @cached_property
    def right(self) -> dict[Way, _Column]:
        """1 for right answers."""
        return {
            way: np.array([record.scores["right"] for record in some])
            for way, some in self.records.items()
        }

    @cached_property
    def unit(self) -> Literal["tokens", "ms"]:
        """What costs are compared in."""
        known = (one.tokens is not None for some in self.records.values() for one in some)
        return "tokens" if all(known) else "ms"

    @cached_property
    def spent(self) -> dict[Way, _Column]:
        """What each answer cost."""
        return {
            way: np.array([getattr(record, self.unit) for record in some], dtype=float)
            for way, some in self.records.items()
        }

    def choice(self, rows: _Rows = slice(None)) -> tuple[Way, bool]:
        """The way to keep by these questions, and whether it meets the goal."""
        right = {way: float(column[rows].mean()) for way, column in self.right.items()}
        spent = {way: float(column[rows].mean()) for way, column in self.spent.items()}
        if self.goal.budget is not None:
            most = self.goal.budget * spent[ALWAYS] + 1e-9
            within = [way for way in right if spent[way] <= most]
            if not within:
                return min(right, key=lambda way: spent[way]), False
            return min(within, key=lambda way: (-right[way], spent[way])), True
        wanted = self.goal.target_accuracy
        if wanted in (None, "always"):
            wanted = right[ALWAYS] - _DISAGREE * float(self.stands_in[rows].mean())
        reached = [way for way in right if right[way] >= float(wanted) - 1e-9]
        if not reached:
            return min(right, key=lambda way: (-right[way], spent[way])), False
        least = _SAME_COST * min(spent[way] for way in reached)
        cheap = [way for way in reached if spent[way] <= least]
        return min(cheap, key=lambda way: (way.parts, spent[way], -right[way])), True

    def unseen(self) -> Interval | None:
        """What choosing adds to always retrieving where the other folds chose; None for few."""
        count = len(self.stands_in)
        if count < 2 * _FOLDS:
            return None
        order, gain = np.random.default_rng(self.seed).permutation(count), np.zeros(count)
        for test in np.array_split(order, _FOLDS):
            way, _ = self.choice(np.setdiff1d(order, test))
            gain[test] = (self.right[way] - self.right[ALWAYS])[test]
        return bootstrap_interval(gain, seed=self.seed)

    def report(
        self,
        *,
        fitted: int,
        untried: Mapping[str, str],
        p_wrong: Mapping[Way, Sequence[float | None]],
    ) -> tuple[Way, PipelineReport]:
        """The way to keep, and what is to be said about it."""
        (kept, met), unseen, notes = self.choice(), self.unseen(), list[str]()
        if not met:
            notes.append(f"no way meets the target ({self.goal}): {kept.name} comes nearest")
        always = self.goal == Goal() or self.goal.target_accuracy == "always"
        if always and unseen is not None and unseen.high < 0:
            notes.append(f"{kept.name} is as good here, but choosing so loses on other questions")
            kept = ALWAYS
        if kept == ALWAYS:
            notes.append("always retrieve: nothing of ours pays on these questions")
        told = {way.name: records for way, records in self.records.items()}
        known, reliability = [p for p in p_wrong[kept] if p is not None], None
        if len(known) == len(self.stands_in):
            reliability = Reliability.of(known, 1 - self.right[kept])
        return kept, PipelineReport(
            fitted=fitted,
            judged=len(self.stands_in),
            agreement=float(self.stands_in.mean()),
            goal=str(self.goal),
            met=met,
            kept=kept.name,
            rows=tuple(map(_figures, summarize(told, compared=ALWAYS.name).rows)),
            verdicts=tuple(self._verdict(part, kept, untried.get(part)) for part in PARTS),
            unit=self.unit,
            unseen=unseen,
            p_wrong=reliability,
            notes=tuple(notes),
        )

    def _verdict(self, part: str, kept: Way, untried: str | None) -> Verdict:
        """What the part adds to the kept way, or to always retrieving where that never does."""
        if untried is not None:
            return Verdict(part, False, untried)
        base = ALWAYS if kept.retrieves == "never" else kept
        with_it = replace(base, **PARTS[part])
        without = replace(with_it, **{name: getattr(ALWAYS, name) for name in PARTS[part]})
        adds = paired_bootstrap(self.right[with_it], self.right[without], seed=self.seed)
        spends = float((self.spent[with_it] - self.spent[without]).mean())
        to = "" if kept.retrieves != "never" else ", were it to retrieve"
        why = f"{adds.signed} right, {spends:+.0f} {self.unit}, beside {without.name}{to}"
        return Verdict(part, with_it == kept, why, adds, spends)


def _figures(row: Row) -> WayFigures:
    costs, gain = row.costs, row.gains.get("right")
    counts = costs["calls"] or 0.0, costs["retrievals"] or 0.0, costs["tokens"]
    return WayFigures(row.name, row.scores["right"], gain, *counts, (costs["ms"] or 0.0) / 1000)
