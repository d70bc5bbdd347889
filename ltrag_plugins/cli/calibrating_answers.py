"""What `ltrag sgic answer` does. Heavy imports are here, so that `--help` does without them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ltrag_plugins.cli.calibrating import Job, askable, changed
from ltrag_plugins.cli.calibrating_options import Changes
from ltrag_plugins.cli.notes import noted
from ltrag_plugins.cli.output import checked_folder, say, working
from ltrag_plugins.data import read_passages
from ltrag_plugins.errors import InvalidInput, UnreadableArtifact
from ltrag_plugins.flow import World, run_many
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.calibrator import Calibration, Refusal
from ltrag_plugins.sgic.documents import Truth
from ltrag_plugins.sgic.loop import calibrate, checked_question
from ltrag_plugins.sgic.records import write_run
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Question


@dataclass(frozen=True, slots=True)
class Answered:
    """A question and what came of it."""

    question: Question
    answer: CalibratedAnswer
    said: str
    """The answer's text, or the refusal."""
    refused: bool


def answers(
    job: Job,
    asked: str | None,
    folder: Path | None,
    changes: Changes,
    *,
    above: float | None,
    p_wrong_above: float | None,
    records: Path | None = None,
) -> Iterator[Answered]:
    """The answer to each question, as soon as those of its batch are there.

    Args:
        records: where to write what an analysis reads, after the last answer.
    """
    if records is not None:
        checked_folder(records.parent)
    labelled = records is not None
    questions = (
        _one(asked, job.file) if asked is not None else askable(job, require_answers=labelled)
    )
    llm = job.llm("embedded" if folder is None or job.model else _noted(folder))
    fitted = None if folder is None else Calibration.load(folder, llm=llm)
    settings = changed(SGICSettings() if fitted is None else fitted.settings, changes)
    refusal = Refusal(above, p_wrong_above)
    _check_refusal(refusal, fitted)
    _check_fit(fitted, settings)
    scale = None if fitted is None else fitted.scale
    wrongness = None if fitted is None else fitted.wrongness
    world, made = World(llm=llm), list[CalibratedAnswer]()
    for start in range(0, len(questions), job.batch):
        part = questions[start : start + job.batch]
        flows = [calibrate(q.text, q.passages, settings, scale, wrongness=wrongness) for q in part]
        with working(f"answering, {start} of {len(questions)} done"):
            found = run_many(flows, world, batch=job.batch)
        made += found
        for question, one in zip(part, found, strict=True):
            yield Answered(question, one, refusal.said(one), refusal.refuses(one))
    if records is not None:
        truths = [Truth((), question.answers) for question in questions]
        write_run(labelled(made, truths, questions=[q.text for q in questions]), records)


def _one(asked: str, file: Path | None) -> list[Question]:
    try:
        asked.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the question {asked!r} is not UTF-8") from error
    passages = () if file is None else tuple(read_passages(file))
    return [Question(checked_question(asked), passages=passages)]


def _noted(folder: Path) -> str:
    """The MODEL that 'sgic fit' noted."""
    if not (folder / "sgic.json").is_file():
        raise UnreadableArtifact(
            f"there is no calibration in {folder} (no sgic.json); fit one with 'ltrag sgic fit'"
        )
    try:
        model = noted(folder).model
    except UnreadableArtifact:
        model = ""
    if not model:
        raise InvalidInput(f"nothing in {folder} says how to reach its model; add --model")
    return model


def _check_refusal(refusal: Refusal, fitted: Calibration | None) -> None:
    if refusal.p_wrong_above is None or (fitted and fitted.wrongness):
        return
    why = "the calibration has none (too few right or wrong answers)" if fitted else "there is none"
    raise InvalidInput(
        f"--refuse-p-wrong-above needs --calibration with P(wrong), and {why}; refuse by the score "
        "(--refuse-above), or fit on more questions"
    )


def _check_fit(fitted: Calibration | None, settings: SGICSettings) -> None:
    """Refuse another estimator than the scale's; remark what P(wrong) was not fitted with."""
    if fitted is None:
        return
    if settings.estimator != fitted.scale.estimator:
        raise InvalidInput(
            f"the calibration is of the estimator {fitted.scale.estimator!r}; leave --estimator "
            f"out, or fit one with 'ltrag sgic fit --estimator {settings.estimator}'"
        )
    if fitted.wrongness is not None and settings != fitted.settings:
        say("note: P(wrong) was fitted with the calibration's own settings; these are others")
