"""What the demo says of its systems: figures, a table, a few sentences, pictures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo_systems import ALWAYS, CALIBRATED, Meter, Reply, System
from plots import certainty_picture, curve_picture, score_picture
from rich.table import Table

from ltrag_plugins.gece import GECEGate
from ltrag_plugins.metrics.answer import contains, f1, normalized_exact_match
from ltrag_plugins.metrics.calibration import auroc
from ltrag_plugins.types import Question

CAPTION = (
    "Both frameworks send the same prompts. What was asked before is read from the answer cache, "
    "and counts with the tokens and the time that it took then."
)


@dataclass(frozen=True)
class Measured:
    """A system's answers, and what they were worth and cost a question."""

    replies: tuple[Reply, ...]
    figures: dict[str, float]


def measured(
    system: System, questions: Sequence[Question], meter: Meter, done: Callable[[], None]
) -> Measured:
    """Answer one question after the other, as an app would."""
    meter.spent()
    start, replies = time.perf_counter(), []
    for question in questions:
        replies.append(system(question.text))
        done()
    clock, (spent, waited) = time.perf_counter() - start, meter.spent()
    asked = len(questions)
    costs = {
        "retrieval rate": spent.retrievals / asked,
        "model calls": spent.calls / asked,
        "tokens read": (spent.prompt_tokens or 0) / asked,
        "tokens written": (spent.completion_tokens or 0) / asked,
        "ms": 1000 * (clock - waited + spent.model_seconds) / asked,
    }
    return Measured(tuple(replies), qualities(replies, questions) | costs)


def qualities(replies: Sequence[Reply], questions: Sequence[Question]) -> dict[str, float]:
    measures = {"contains": contains, "EM": normalized_exact_match, "F1": f1}
    return {
        name: sum(
            measure(reply.text, question.answers)
            for reply, question in zip(replies, questions, strict=True)
        )
        / len(questions)
        for name, measure in measures.items()
    }


def table(framework: str, run: dict[str, Measured]) -> Table:
    """One row a figure, one column a system."""
    shown = Table(title=f"{framework}, means of a question", caption=CAPTION)
    shown.add_column()
    for name in run:
        shown.add_column(name, justify="right")
    for row in next(iter(run.values())).figures:
        values = [one.figures[row] for one in run.values()]
        shown.add_row(row, *(f"{v:.2f}" if v < 10 else f"{v:.0f}" for v in values))
    return shown


Known = Sequence[tuple[float, bool]]
"""P(wrong) of each answer, and whether it is right."""


def known(replies: Sequence[Reply], questions: Sequence[Question]) -> Known:
    return [
        (reply.p_wrong, contains(reply.text, question.answers) > 0)
        for reply, question in zip(replies, questions, strict=True)
        if reply.p_wrong is not None
    ]


def summary(run: dict[str, Measured], questions: Sequence[Question], limit: float) -> str:
    """What knowing how sure an answer is is good for."""
    replies = run[CALIBRATED].replies
    answers = known(replies, questions)
    if len(answers) < 2:
        return (
            f"P(wrong) is known of {len(answers)} answers only: the calibrator was fitted on too "
            "few right or wrong ones."
        )
    pairs = [(r, q) for r, q in zip(replies, questions, strict=True) if r.score is not None]
    read = known([reply for reply, _ in pairs], [question for _, question in pairs])
    ordered = sorted(answers, key=lambda one: one[0])
    half = len(ordered) // 2
    kept = [ok for p, ok in ordered if p <= limit]
    return "\n".join(
        [
            f"How sure it is, of {len(answers)} answers with P(wrong), from the gate or the "
            "calibrator:",
            f"  AUROC of P(wrong) for answers that are wrong: {ranking(answers)}",
            f"  the same for the {len(read)} that the calibrator gave: {ranking(read)}",
            f"  right in the surer half: {share([ok for _, ok in ordered[:half]])}; "
            f"in the other: {share([ok for _, ok in ordered[half:]])}",
            f"  refusing above {limit:g}: {len(answers) - len(kept)} refused; "
            f"right among the others: {share(kept)}",
        ]
    )


def ranking(answers: Known) -> str:
    kinds = {ok for _, ok in answers}
    if len(kinds) < 2:
        return "none, as they are all right or all wrong"
    return f"{auroc([p for p, _ in answers], [not ok for _, ok in answers]):.2f} (0.5 is chance)"


def share(right: Sequence[bool]) -> str:
    return f"{sum(right)} of {len(right)}"


def pictures(
    gate: GECEGate, run: dict[str, Measured], questions: Sequence[Question], out: Path
) -> list[Path]:
    """Who needs retrieval, what each component buys, and what the uncertainty is worth."""
    paths = [out / name for name in ("gate_scores.png", "accuracy_by_rate.png", "certainty.png")]
    score_picture(gate, paths[0])
    curve_picture(gate, {name: one.figures for name, one in run.items()}, paths[1])
    if answers := known(run[CALIBRATED].replies, questions):
        certainty_picture(answers, run[ALWAYS].figures["contains"], paths[2])
    return [path for path in paths if path.exists()]
