"""What the SGIC commands do. Heavy imports are here, so that `--help` does without them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ltrag_plugins.cli.calibrating_options import Changes
from ltrag_plugins.cli.models import load_llm
from ltrag_plugins.cli.notes import write_notes
from ltrag_plugins.cli.output import checked_folder, say
from ltrag_plugins.cli.progress import Stage, StageBars
from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Ask
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.sgic.fitting.fit import fit as fitted_calibration
from ltrag_plugins.sgic.fitting.report import FitReport
from ltrag_plugins.sgic.loop import checked_question
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.training.dataset import build as build_dataset
from ltrag_plugins.training.examples import Dataset
from ltrag_plugins.training.settings import CorpusSettings
from ltrag_plugins.types import Question
from ltrag_plugins.uncertainty import calls_for

_SHOWN: dict[str | None, dict[str, Any]] = {
    "documents": {"documents": "scores", "earlier": "scores"},
    "scores": {"documents": "none", "earlier": "scores"},
    "answers": {"documents": "none", "earlier": "text", "choose": "repeated"},
}
"""What a look shows (the rows of the paper's table 5), as settings."""


@dataclass(frozen=True, slots=True)
class Job:
    """A model, questions, and how they are asked."""

    model: str | None
    file: Path | None
    """Questions, or the passages of one question."""
    pool: Path | None
    limit: int | None
    cache: Path | None
    batch: int

    def llm(self, otherwise: str = "embedded") -> LLM:
        """The model, loaded."""
        return load_llm(self.model or otherwise, cache=self.cache)


def fit(
    job: Job,
    out: Path,
    changes: Changes,
    *,
    metric: Any,
    level: float,
    cut_to: Sequence[int],
    samples: int,
    method: Any,
) -> FitReport:
    """Fit a calibration and save it in `out`; what cannot end well is refused before the work."""
    checked_folder(out)
    settings = changed(SGICSettings(), changes)
    questions = labelled(job)
    llm = job.llm()
    useful = [m for m in cut_to if m < max(len(q.passages) for q in questions)]
    looks = settings.rounds + len(useful)
    with StageBars(*_stages(questions, settings, looks, samples)) as bars:
        calibration, report = fitted_calibration(
            questions,
            llm,
            settings=settings,
            metric=metric,
            level=level,
            cut_to=cut_to,
            samples=samples,
            method=method,
            observers=[bars],
            batch=job.batch,
        )
    calibration.save(out, llm=llm)
    write_notes(out, job.model or "", "none")
    return report


def build(job: Job, out: Path, changes: Changes, corpus: CorpusSettings) -> Dataset:
    """Build training data in `out`; a plain prompt needs no model, and none is loaded for it."""
    checked_folder(out)
    settings = changed(SGICSettings.paper(), changes)
    questions = labelled(job)
    llm = job.llm() if corpus.form == "sgic" else None
    try:
        with StageBars(*_stages(questions, settings, settings.rounds, 0)) as bars:
            return build_dataset(
                questions,
                llm,
                out=out,
                settings=settings,
                corpus=corpus,
                observers=[bars],
                batch=job.batch,
            )
    except KeyboardInterrupt:
        say(f"the answers so far are in {job.cache or out}; run the same command to go on")
        raise


def changed(settings: SGICSettings, changes: Changes) -> SGICSettings:
    """The settings with what the user wants otherwise."""
    told = {field.name: getattr(changes, field.name) for field in fields(changes)}
    shown = _SHOWN.get(told.pop("show"), {})
    wanted = {name: value for name, value in told.items() if value is not None}
    return replace(settings, **(shown | wanted))


def labelled(job: Job) -> list[Question]:
    """The questions, each with answers, passages and words to ask.

    Raises:
        InvalidInput: the file cannot be read, or one lacks them; the message names the record.
    """
    questions = askable(job, require_answers=True)
    for number, question in enumerate(questions, start=1):
        if not question.passages:
            raise InvalidInput(
                f"{job.file}, record {number} (id {question.id!r}): no passages of its own; add "
                "'passages', or 'passage_ids' and the pool as --pool"
            )
    return questions


def askable(job: Job, *, require_answers: bool = False) -> list[Question]:
    """The questions, each with words to ask; they need no passages.

    Raises:
        InvalidInput: as `labelled`.
    """
    assert job.file is not None  # the command refuses to go on without
    pool = read_passages(job.pool) if job.pool is not None else ()
    questions = read_questions(job.file, require_answers=require_answers, pool=pool)[: job.limit]
    for number, question in enumerate(questions, start=1):
        try:
            checked_question(question.text)
        except InvalidInput as error:
            where = f"{job.file}, record {number} (id {question.id!r})"
            raise type(error)(f"{where}: {error}") from error
    return questions


def _stages(
    questions: Sequence[Question], settings: SGICSettings, looks: int, samples: int
) -> list[Stage]:
    each = calls_for(1, settings.estimator, settings.samples)
    count = len(questions)
    documents = sum(_asked_alone(question) for question in questions)
    return [
        Stage("first answers", Ask, count * each),
        Stage(
            "documents",
            Ask,
            documents * each * (settings.scores_documents or looks > settings.rounds),
        ),
        Stage("looking again", Ask, count * looks * each),
        Stage("samples", Ask, count * samples),
    ]


def _asked_alone(question: Question) -> int:
    """Passages that a prompt each goes to: the same ones once, a single one not again."""
    different = {(passage.title, passage.text) for passage in question.passages}
    return len(different) if len(question.passages) > 1 else 0
