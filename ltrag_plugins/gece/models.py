"""What a fit leaves behind: what the gate learned, applied with numpy, and the fit's figures.

A scorer gives the number that a gate thresholds: the fitted model, the formula, or one signal.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.calibration import ProbabilityMap
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece.decision import Decision, Tier
from ltrag_plugins.gece.savings import Usage
from ltrag_plugins.gece.score import gece_score
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import (
    SIGNALS,
    Evidence,
    Features,
    WordFrequencies,
    features,
    frequencies_for,
)
from ltrag_plugins.metrics.calibration import Interval

_SUREST = 9.0  # log-odds; beyond it a member that fits the questions too well would drown the rest
_FARTHEST = 4.0  # standard deviations of a scalar, in the memory
_SCALARS_APART = 0.7  # mean squared distance from the center, by the scalars
AS_ALWAYS = "as good as always retrieving"
"""The target of who asks for no other: without accepted answers, 95 % agree with it."""
_Vectors = Float[np.ndarray, "rows dims"]
_Scalars = Float[np.ndarray, "rows scalars"]
_Places = Float[np.ndarray, "rows places_and_scalars"]


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear function of standardized columns."""

    mean: Float[np.ndarray, " columns"]
    scale: Float[np.ndarray, " columns"]
    weights: Float[np.ndarray, " columns"]
    intercept: float

    def __call__(self, x: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, " rows"]:
        """The function's value for each row."""
        if x.shape[1] != len(self.weights):
            raise InvalidInput(
                f"this gate was fitted on {len(self.weights)} columns and got {x.shape[1]}. Give "
                "it evidence of the same kind: embeddings (Evidence.vectors) of the same encoder."
            )
        return (x - self.mean) / self.scale @ self.weights + self.intercept


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Boosted regression trees, padded to one size; a leaf points to itself."""

    feature: Int[np.ndarray, "trees nodes"]
    threshold: Float[np.ndarray, "trees nodes"]
    left: Int[np.ndarray, "trees nodes"]
    right: Int[np.ndarray, "trees nodes"]
    value: Float[np.ndarray, "trees nodes"]
    base: float
    depth: int

    def __call__(self, x: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, " rows"]:
        """The sum of the trees for each row: log-odds."""
        single = x.astype(np.float32)  # scikit-learn splits in single precision
        # places in the flattened tables: `take` is quick where there is one row only
        rows = np.arange(len(x))[:, None] * x.shape[1]
        roots = np.arange(len(self.value)) * self.value.shape[1]
        node = np.broadcast_to(roots, (len(x), len(roots)))
        for _ in range(self.depth):
            goes_left = single.take(rows + self.feature.take(node)) <= self.threshold.take(node)
            node = roots + np.where(goes_left, self.left.take(node), self.right.take(node))
        return self.base + self.value.take(node).sum(axis=1)


@dataclass(frozen=True, eq=False)
class _Memory:
    """Kernel ridge regression: what came of the calibration questions that are most alike."""

    mean: Float[np.ndarray, " scalars"]
    scale: Float[np.ndarray, " scalars"]
    center: Float[np.ndarray, " dims"]
    axes: Float[np.ndarray, "dims places"]
    """Main directions of the embeddings."""
    points: Int[np.ndarray, "questions places_and_scalars"]
    """Where the calibration questions lie, in steps: a byte each."""
    step: float
    weights: Float[np.ndarray, " questions"]

    def __call__(self, vectors: _Vectors, scalars: _Scalars) -> Float[np.ndarray, " rows"]:
        """A sum over the calibration questions, by nearness; 0 where none is near."""
        return self.nearness(self.places(vectors, scalars)) @ self.weights

    def places(self, vectors: _Vectors, scalars: _Scalars) -> _Places:
        """Coordinates of questions; within a squared distance of 1, two are near."""
        scalars = np.clip((scalars - self.mean) / self.scale, -_FARTHEST, _FARTHEST)
        scalars *= np.sqrt(_SCALARS_APART / scalars.shape[1])
        return np.hstack([(vectors - self.center) @ self._axes, scalars])

    def nearness(self, places: _Places) -> Float[np.ndarray, "rows questions"]:
        """Of each row to each calibration question, 0 to 1; 1 is the same place."""
        known, squares = self._known
        twice = 2 * places @ known
        return np.exp(np.minimum(0.0, twice - squares - (places**2).sum(axis=1)[:, None]))

    @cached_property
    def _axes(self) -> Float[np.ndarray, "dims places"]:
        return self.axes.astype(float)

    @cached_property
    def _known(
        self,
    ) -> tuple[Float[np.ndarray, "places questions"], Float[np.ndarray, " questions"]]:
        """The calibration questions and their squares."""
        known = self.points.astype(float) * self.step
        return known.T, (known**2).sum(axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class FailureModel:
    """Score, about 0 to 1, for "the direct answer fails"; to be calibrated."""

    signals: Linear
    scalars: Linear
    vectors: Linear | None
    trees: Trees
    consensus: Linear | None
    """The plain mean of the standardized token-probability signals; None without any."""
    single: Linear
    """The standardized plain signals, each with a weight by how well it tells failures alone. (In
    gates of older versions the best one by itself.)"""
    stack: Linear

    def __call__(self, columns: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        return self.stack(self.members(columns))

    def members(self, columns: Features) -> Float[np.ndarray, "questions members"]:
        """What each member of the stack says of each question, as log-odds."""
        signals, scalars = columns.signals, columns.scalars
        found = [self.signals(signals), self.scalars(scalars)]
        found += [self.trees(scalars), self.single(signals)]
        if self.vectors is not None:
            found.append(self.vectors(columns.vectors))
        if self.consensus is not None:
            found.append(self.consensus(signals))
        found += self._further(columns.vectors, scalars)
        return np.clip(np.array(found).T, -_SUREST, _SUREST)

    def _further(self, vectors: _Vectors, scalars: _Scalars) -> list[np.ndarray]:
        return []

    @property
    def plain(self) -> tuple[int, ...]:
        """Where the members that are a mean of plain signals, `single` and `consensus`, stand."""
        return (3,) if self.consensus is None else (3, 4 + (self.vectors is not None))


@dataclass(frozen=True, slots=True, eq=False)
class _MemoryModel(FailureModel):
    """A class of its own, so that gates saved without a memory keep their names."""

    memory: _Memory

    def _further(self, vectors: _Vectors, scalars: _Scalars) -> list[np.ndarray]:
        return [self.memory(vectors, scalars)]


@dataclass(frozen=True, slots=True, eq=False)
class GainModel:
    """Expected change in correctness if the question is answered with retrieval, in [-1, 1]."""

    scalars: Linear
    vectors: Linear | None

    def __call__(self, columns: Features) -> Float[np.ndarray, " questions"]:
        """The expected gain of each question."""
        gain = self.scalars(columns.scalars)
        return gain if self.vectors is None else gain + self.vectors(columns.vectors)


@dataclass(frozen=True, slots=True, eq=False)
class Formula:
    """GECE, eq. 2, at run time: METEOR is estimated from the draft, the rest is known."""

    meteor: Linear
    columns: tuple[int, int, int]
    """Where mean_probability, word_frequency and the gradient signal stand; -1 = not there."""
    settings: GECESettings

    def __call__(self, columns: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        quality = np.clip(self.meteor(columns.scalars), 0.0, 1.0)
        probability, frequency, gradient = self.columns
        scores = [
            gece_score(
                meteor=meteor,
                mean_probability=-signals[probability],
                word_frequency=10.0 ** -signals[frequency],
                gradient_agreement=None if gradient < 0 else -signals[gradient],
                settings=self.settings,
            ).value
            for meteor, signals in zip(quality.tolist(), columns.signals.tolist(), strict=True)
        ]
        return np.array(scores)


@dataclass(frozen=True, slots=True, eq=False)
class OneSignal:
    """One plain signal as it is."""

    column: int

    def __call__(self, columns: Features) -> Float[np.ndarray, " questions"]:
        """The score of each question."""
        return columns.signals[:, self.column]


Scorer = FailureModel | Formula | OneSignal


@dataclass(frozen=True, slots=True, eq=False)
class FittedGate:
    """All that a gate learned; `GECEGate` adds the model that drafts."""

    settings: GECESettings
    tier: Tier
    names: tuple[str, ...]
    frequencies: WordFrequencies | None
    """None where it reads none."""
    failure: Scorer
    """Gives each question a number; larger means retrieve."""
    gain: GainModel | None
    """Thresholded in place of the failure score where the objective is "gain"."""
    calibrator: ProbabilityMap | None
    """None where no answers were judged (`on_signal`)."""
    threshold: float
    """A score from here on retrieves; minus infinity always does, infinity never."""
    quantiles: Float[np.ndarray, "signals points"]
    """Each signal's quantiles on the calibration questions, for explanations."""
    scores: Float[np.ndarray, " questions"]
    """Of the calibration questions, as if they were unseen; sorted."""

    @classmethod
    def on_signal(
        cls,
        evidence: Sequence[Evidence],
        settings: GECESettings,
        *,
        target_rate: float,
        frequencies: WordFrequencies | None = None,
    ) -> "FittedGate":
        """A gate on the one signal `settings.scorer`, from drafts that nobody judged: `target_rate`
        of these questions retrieve, empty drafts first; `Decision.probability` is the share of them
        with a smaller score."""
        frequencies = frequencies_for(settings, frequencies)
        columns = features(evidence, [settings.scorer], frequencies)
        scores, tier = columns.signals[:, 0].copy(), SIGNALS[settings.scorer].tier
        if tier != "text":  # these are read from the draft
            scores[[not item.draft.text.strip() for item in evidence]] = scores.max() + 1.0
        return cls(
            settings=settings,
            tier=tier,
            names=(settings.scorer,),
            frequencies=frequencies,
            failure=OneSignal(0),
            gain=None,
            calibrator=None,
            threshold=rate_threshold(scores, target_rate),
            quantiles=np.quantile(columns.signals, np.linspace(0, 1, 21), axis=0).T,
            scores=np.sort(scores),
        )

    def judge(self, evidence: Evidence) -> Decision:
        """Decide from evidence already at hand: an empty draft is no answer, so it retrieves."""
        columns = features([evidence], self.names, self.frequencies)
        failure = self.failure(columns)
        score = float((failure if self.gain is None else self.gain(columns))[0])
        if self.calibrator is None:
            probability = float(np.mean(self.scores < score))
        else:
            probability = min(1.0, max(0.0, float(self.calibrator(failure)[0])))
        silent = not evidence.draft.text.strip() and not math.isinf(self.threshold)
        return Decision(
            question=evidence.question,
            retrieve=silent or score >= self.threshold,
            score=score,
            probability=probability,
            tier=self.tier,
            reason=self._reason(score, probability, silent),
            draft=evidence.draft,
            ingredients=dict(zip(self.names, columns.signals[0].tolist(), strict=True)),
        )

    def _reason(self, score: float, probability: float, silent: bool) -> str:
        if silent:
            return "the model's own answer is empty, so there is none to give without retrieval"
        fails = f"the direct answer fails with probability {probability:.2f}"
        if math.isinf(self.threshold):
            habit = "always" if self.threshold < 0 else "never"
            return f"{fails}; this gate was fitted to {habit} retrieve"
        objective = "long-tail score" if self.gain is None else "expected gain of retrieval"
        side = "at or above" if score >= self.threshold else "below"
        # the fewest significant digits, 3 at least, that tell the numbers apart
        shown = ((f"{score:.{n}g}", f"{self.threshold:.{n}g}") for n in range(3, 18))
        first, second = next((pair for pair in shown if pair[0] != pair[1]), (f"{score:.17g}",) * 2)
        return f"{fails}; {objective} {first} is {side} the threshold {second}"


def rate_threshold(scores: Float[np.ndarray, " questions"], rate: float) -> float:
    """The threshold whose rate is nearest to `rate`, the lower of two; equal scores go together."""
    ordered = np.sort(scores)
    # how many questions a threshold can leave to the model, most first: ties cannot be parted
    kept = np.append(np.unique(np.searchsorted(ordered, ordered)), len(ordered))[::-1]
    best = int(kept[np.argmin(np.abs(len(scores) - kept - rate * len(scores)))])
    if best in (0, len(ordered)):
        return math.inf if best else -math.inf
    low, high = float(ordered[best - 1]), float(ordered[best])
    middle = low + (high - low) / 2
    return middle if low < middle else high  # between neighbours there is no middle


@dataclass(frozen=True, slots=True)
class FitReport:
    """Figures of a fit, each question's score from a model fitted without it. They meet the
    rate (or the accuracy) that was asked for; other questions come out a few points beside."""

    questions: int
    tier: Tier
    scorer: str
    objective: str
    """"failure": retrieve where the direct answer is likely wrong; "gain": where that may help."""
    target: str
    """What the threshold was set for."""
    threshold: float
    """Minus infinity where everything retrieves, infinity where nothing does."""
    direct_accuracy: float
    """Share of right answers if nothing is ever retrieved, 0 to 1."""
    retrieval_accuracy: float | None
    """Share of right answers if everything is; None when no retrieved answers were given."""
    retrieval_rate: Interval
    """Expected share of questions that retrieve, with its bootstrap interval."""
    accuracy: Interval | None
    """Expected share of right answers behind the gate; None as for `retrieval_accuracy`."""
    kept_accuracy: Interval | None
    """Expected share of right answers among those given directly; None where there are none."""
    auroc: Interval
    """How well the gate tells failing direct answers from right ones; 0.5 is chance."""
    ece: float
    """Expected calibration error of the probabilities, 0 to 1."""
    signal_aurocs: Mapping[str, float] = field(default_factory=dict)
    """AUROC of each plain signal by itself, on the same questions."""
    curve: tuple[tuple[float, float], ...] = ()
    """(retrieval rate, accuracy) from 0 to 1; empty when no retrieved answers were given."""
    against_always: Interval | None = None
    """What the gate changes of the accuracy of always retrieving, below 0 where it costs some."""
    area: Interval | None = None
    """Accuracy above retrieving for as many questions drawn by lot, mean over all retrieval rates:
    the area between `curve` and its chord. 0 is chance; None as for `curve`."""
    agreement: float = 0.0
    """Share of the questions, 0 to 1, without accepted answers: there "right" means agreement with
    the answer with retrieval."""
    gate_cost: Usage | None = None
    """What the gate's calls cost a question; None where retrieval's was not measured."""
    retrieval_cost: Usage | None = None
    """What an answer with retrieval costs."""
    question_words: tuple[float, ...] = ()
    """The 0, 5, ..., 100 % quantiles of the questions' number of words; the monitor watches it."""
    notes: tuple[str, ...] = ()
    """What a user should know before relying on this gate."""

    @property
    def pays(self) -> bool:
        """Whether to gate at all: for certain better than a lottery, and less dear than always
        retrieving, for which 5 % more retrieval is taken where costs are unknown."""
        gate, retrieval = self.gate_cost, self.retrieval_cost
        share = gate.share_of(retrieval) if gate and retrieval else None
        saved = 1 - self.retrieval_rate.value
        return self.auroc.low > 0.5 and saved >= max(0.05, share or 0.0)

    @property
    def _verdict(self) -> str:
        against = self.against_always
        # as good as always is, without accepted answers, 95 %: what is missing was not asked for
        loses = against is not None and against.high < 0 and self.target != AS_ALWAYS
        verdict = ("loses answers" if loses else "pays") if self.pays else "does not pay"
        right, told = "agree" if self.agreement == 1 else "right", ""
        if self.accuracy is not None:
            others = f"always {self.retrieval_accuracy:.3f}, never {self.direct_accuracy:.3f}"
            told = f", {self.accuracy.value:.3f} {right} ({others})"
        elif self.pays:  # nobody tried what retrieval gives, so what it pays is not known
            verdict, kept = "tells failing answers", self.kept_accuracy
            told = "" if kept is None else f", {kept.value:.3f} of the others {right}"
        return f"{verdict}: {self.retrieval_rate.value:.1%} retrieve{told}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite threshold, which JSON cannot say, is None."""
        threshold = self.threshold if math.isfinite(self.threshold) else None
        return asdict(self) | {"threshold": threshold}

    def __str__(self) -> str:
        right, target = ("agreement" if self.agreement == 1 else "accuracy"), self.target
        if self.agreement == 1 and target == AS_ALWAYS:
            target = "95 % agree with always retrieving"
        rows = {
            "questions": f"{self.questions}",
            "tier, scorer, objective": f"{self.tier}, {self.scorer}, {self.objective}",
            "threshold": f"{self.threshold:.4g} ({target})",
            "AUROC, direct answer fails": _interval(self.auroc),
            "calibration error (ECE)": f"{self.ece:.3f}",
            "retrieval rate": _interval(self.retrieval_rate),
            f"{right}, never retrieving": f"{self.direct_accuracy:.3f}",
            f"{right}, answered directly": _interval(self.kept_accuracy),
        }
        if self.accuracy is not None:
            rows[f"{right}, gated"] = _interval(self.accuracy)
            rows[f"{right}, always retrieving"] = f"{self.retrieval_accuracy:.3f}"
        if self.against_always is not None:
            rows[f"{right}, gated - always"] = _interval(self.against_always)
        if self.area is not None:
            rows["area above a random choice"] = _interval(self.area)
        if self.agreement:
            told = f"agreement with retrieval on {self.agreement:.0%} of the questions"
            rows["labels"] = told if self.agreement == 1 else f"accepted answers, {told}"
        if self.gate_cost and self.retrieval_cost:
            avoided = self.retrieval_cost.times(1 - self.retrieval_rate.value)
            rows["a question costs, always"] = str(self.retrieval_cost)
            rows["saved by the gate"] = str(avoided.minus(self.gate_cost))
        for name, value in sorted(self.signal_aurocs.items(), key=lambda item: -item[1]):
            rows[f"  AUROC of {name} alone"] = f"{value:.3f}"
        lines = [self._verdict, *(f"note: {note}" for note in self.notes), ""]
        return "\n".join([*lines, *(f"{name:<34} {value}" for name, value in rows.items())])


def _interval(found: Interval | None) -> str:
    if found is None:
        return "no such questions"
    return f"{found.value:.3f}  ({found.level:.0%} interval {found.low:.3f} to {found.high:.3f})"
