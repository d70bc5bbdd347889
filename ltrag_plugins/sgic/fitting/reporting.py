"""Draw up the report of a fit."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ltrag_plugins.metrics.calibration import Interval, auroc, paired_bootstrap
from ltrag_plugins.sgic.fitting.recording import Recorded
from ltrag_plugins.sgic.fitting.report import FitReport, VariantFigures
from ltrag_plugins.sgic.fitting.selecting import FEWEST_QUESTIONS
from ltrag_plugins.sgic.fitting.variants import Metric, Variant, estimators
from ltrag_plugins.sgic.scale import FEWEST, WrongnessCalibration
from ltrag_plugins.uncertainty import AGREEMENT, TOKEN_SIGNALS

ENOUGH = 30
"""Right and wrong answers each, below which P(wrong) is called a guess."""


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """All that was compared, and what came of it."""

    direct: Variant
    others: Sequence[Variant]
    kept: Variant
    best: Variant
    """The cheapest that pays; not kept where choosing so does harm on unseen questions."""
    unseen: Interval | None
    wrongness: WrongnessCalibration | None
    recorded: Recorded
    """Of the rounds."""


def report(compared: Compared, *, metric: Metric, level: float, calls: int) -> FitReport:
    """The figures of a fit, and what to make of them."""
    rows = tuple(
        _figures(variant, compared.direct, metric, level)
        for variant in (compared.direct, *compared.others)
    )
    aurocs, wrongness = _aurocs(compared, metric), compared.wrongness
    fails = compared.kept.quality(metric) < 0.5
    return FitReport(
        questions=len(fails),
        metric=metric,
        level=level,
        estimator=compared.recorded.settings.estimator,
        kept=compared.kept.name,
        variants=rows,
        unseen_gain=compared.unseen,
        means=compared.recorded.scale.means,
        wrong=float(fails.mean()),
        auroc=None if wrongness is None else wrongness.auroc,
        ece=None if wrongness is None else wrongness.ece,
        estimator_aurocs=aurocs,
        calls=calls,
        notes=(
            *_about_choice(compared),
            *_about_rivals(compared, rows, metric, level),
            *_about_rounds(compared, metric),
            *_about_estimators(compared, rows, aurocs),
            *_about_wrongness(fails, wrongness),
            *_about_questions(compared),
        ),
    )


def _figures(variant: Variant, direct: Variant, metric: Metric, level: float) -> VariantFigures:
    gain = paired_bootstrap(
        variant.quality(metric), direct.quality(metric), level=level, seed=direct.settings.seed
    ).interval
    return VariantFigures(
        variant.name,
        variant.kind,
        float(variant.em.mean()),
        float(variant.f1.mean()),
        float(variant.calls.mean()),
        None if variant.tokens is None else float(variant.tokens.mean()),
        None if variant.seconds is None else float(1000 * variant.seconds.mean()),
        gain,
        gain.low > 0,
        variant.keepable,
    )


def _aurocs(compared: Compared, metric: Metric) -> dict[str, float]:
    fails = compared.direct.quality(metric) < 0.5
    if fails.all() or not fails.any():
        return {}
    seen = {compared.recorded.settings.estimator: compared.recorded}
    seen |= estimators(compared.recorded)
    return {
        name: auroc([trace[0].uncertainty for trace in one.traces], fails)
        for name, one in seen.items()
    }


def _about_choice(compared: Compared) -> list[str]:
    if compared.kept is not compared.best and len(compared.direct.calls) < FEWEST_QUESTIONS:
        return [f"under {FEWEST_QUESTIONS} questions nothing but the direct answer is kept"]
    if compared.kept is not compared.best:
        return [
            f"{compared.best.name} is above direct on these questions, but choosing so loses on "
            "questions that the choice was not made on: the direct answer is kept"
        ]
    if compared.kept is compared.direct:
        return ["nothing pays with this model: the direct answer is kept"]
    if compared.unseen is not None and compared.unseen.value == 0:
        return [
            "on questions that the choice was not made on it gains nothing: what was kept may be "
            "luck; fit on more questions before relying on it"
        ]
    return []


def _about_rivals(
    compared: Compared, rows: Sequence[VariantFigures], metric: Metric, level: float
) -> list[str]:
    kept, notes = compared.kept, []
    if kept is not compared.direct:
        better = [
            variant
            for variant in compared.others
            if variant.keepable and _figures(variant, kept, metric, level).pays
        ]
        if better:
            best = min(better, key=lambda v: (-v.quality(metric).mean(), v.calls.mean()))
            notes.append(
                f"{best.name} is better still, {best.quality(metric).mean():.3f} in "
                f"{metric.upper()}, at {best.calls.mean():.1f} calls a question"
            )
    own = next(row for row in rows if row.name == kept.name)
    drawn = [row for row in rows if row.kind == "samples" and row.calls <= own.calls]
    best = max(drawn, key=lambda row: row.gain.value, default=None)
    if best is not None and best.gain.value >= own.gain.value and kept is not compared.direct:
        notes.append(f"{best.name}, does as well as what was kept, at no more calls")
    return notes


def _about_rounds(compared: Compared, metric: Metric) -> list[str]:
    settings, traces = compared.recorded.settings, compared.recorded.traces
    looks = [v for v in compared.others if v.recorded is compared.recorded]
    last = next((v for v in reversed(looks) if v.settings.choose == "last"), None)
    if last is None:
        return []
    before, after = (v.quality(metric) >= 0.5 for v in (compared.direct, last))
    mended, spoiled = int((after & ~before).sum()), int((before & ~after).sum())
    notes = [f"the last of {last.name.split(',')[0]} mends {mended} answers and spoils {spoiled}"]
    if compared.kept.kind != "rounds":
        notes.append("the rounds do not pay with this model: fine-tune it, or leave them off")
    if short := sum(len(trace) <= settings.rounds for trace in traces):
        notes.append(
            f"{short} of {len(traces)} questions did not get all {settings.rounds} rounds: a limit "
            "or an error ended them"
        )
    return notes


def _about_estimators(
    compared: Compared, rows: Sequence[VariantFigures], aurocs: dict[str, float]
) -> list[str]:
    own, notes = compared.recorded.settings.estimator, []
    best = max(aurocs, key=lambda name: aurocs[name], default=own)
    if aurocs and aurocs[best] > aurocs[own] + 0.02:
        notes.append(
            f"the estimator {best!r} tells wrong direct answers better than {own!r} "
            f"(AUROC {aurocs[best]:.3f} against {aurocs[own]:.3f})"
        )
    fixed = [row for row in rows if " by " in row.name and not row.keepable]
    if fixed:
        notes.append(
            f"rows 'by' another estimator hold the prompts fixed, with the scores of {own!r} in "
            "them; to have its own, fit again with SGICSettings(estimator=...)"
        )
    return notes + _not_compared(compared)


def _not_compared(compared: Compared) -> list[str]:
    settings, parts = compared.recorded.settings, []
    seen = {settings.estimator, *estimators(compared.recorded)}
    if missing := [name for name in TOKEN_SIGNALS if name not in seen]:
        parts.append(f"{', '.join(missing)}, as the model gives too little for them")
    if AGREEMENT not in seen:
        parts.append(f"{AGREEMENT}, as it asks each prompt {settings.samples} times more")
    return [f"estimators that were not compared: {'; '.join(parts)}"] if parts else []


def _about_wrongness(fails: np.ndarray, wrongness: WrongnessCalibration | None) -> list[str]:
    wrong, right = int(fails.sum()), int((~fails).sum())
    rarer, kind = min((right, "right"), (wrong, "wrong"))
    if wrongness is None:
        return [
            f"only {rarer} {kind} answers: P(wrong) is not calibrated, it needs at least {FEWEST} "
            "right and wrong ones each"
        ]
    notes = []
    if rarer < ENOUGH:
        notes.append(f"only {rarer} {kind} answers: the P(wrong) calibration is a guess")
    if wrongness.auroc <= 0.5:
        notes.append("larger scores do not go with wrong answers here: do not rely on P(wrong)")
    return notes


def _about_questions(compared: Compared) -> list[str]:
    questions = len(compared.direct.calls)
    if questions >= 100:
        return []
    return [f"{questions} questions leave wide intervals; 100 or more are better"]
