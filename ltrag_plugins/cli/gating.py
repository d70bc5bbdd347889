"""What the gate commands do. Heavy imports are here, so that `--help` does without them."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ltrag_plugins.cli.inputs import check_askable, retriever_of
from ltrag_plugins.cli.models import load_encoder, load_llm
from ltrag_plugins.cli.notes import chosen, write_notes
from ltrag_plugins.cli.output import checked_folder, working
from ltrag_plugins.cli.progress import Stage, StageBars
from ltrag_plugins.data import read_questions
from ltrag_plugins.errors import InvalidInput, NeedsGradients
from ltrag_plugins.flow import Agree, Ask, Embed
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.fit import check_count
from ltrag_plugins.gece.gate import GECEGate
from ltrag_plugins.gece.score import GECEScore, score_questions
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.llm.base import LLM, GradientLLM
from ltrag_plugins.methods.single import single_retrieval
from ltrag_plugins.prompts.question import render_question
from ltrag_plugins.types import Question


@dataclass(frozen=True, slots=True)
class Job:
    """Questions, and how they are asked."""

    questions: Path
    cache: Path | None
    limit: int | None
    batch: int


def fit(
    job: Job,
    out: Path,
    *,
    model: str,
    encoder: str,
    rate: float | None,
    accuracy: float | None,
    passages: Path | None,
    k: int,
    settings: GECESettings,
) -> GECEGate:
    """Fit a gate and save it in `out`; what cannot end well is refused before a model is loaded."""
    checked_folder(out)
    questions = _labelled(job, settings)
    check_count(len(questions))
    retriever = retriever_of(passages, questions)
    llm = load_llm(model, cache=job.cache)
    if settings.gradients == "always":
        _check_gradients(llm, "--gradients never")
    vectors = load_encoder(encoder)
    count = len(questions)
    local = settings.gradients != "never" and isinstance(llm, GradientLLM)
    with StageBars(
        *_draft_stages(count, settings, vectors=vectors is not None, gradients=local),
        Stage("with retrieval", Ask, count if retriever else 0),
    ) as bars:
        gate = GECEGate.fit(
            questions,
            llm=llm,
            encoder=vectors,
            target_rate=rate,
            target_accuracy=accuracy,
            retriever=retriever,
            retrieving=partial(single_retrieval, k=k) if retriever else None,
            settings=settings,
            observers=[bars],
            batch=job.batch,
        )
    gate.save(out)
    write_notes(out, model, encoder)
    return gate


def score(job: Job, model: str, settings: GECESettings) -> list[tuple[Question, GECEScore]]:
    """GECE of each question against its own accepted answers."""
    questions = _labelled(job, settings)
    llm = load_llm(model, cache=job.cache)
    if settings.semantics:
        _check_gradients(llm, "--without-semantics")
    count = len(questions)
    stages = _draft_stages(count, settings, vectors=False, gradients=settings.semantics)
    with StageBars(*stages) as bars:
        scores = score_questions(
            questions, llm=llm, settings=settings, observers=[bars], batch=job.batch
        )
    return list(zip(questions, scores, strict=True))


def score_record(question: Question, found: GECEScore, settings: GECESettings) -> dict[str, Any]:
    """A scored question as plain values; `quality` tells what stands in METEOR's place."""
    ingredients = asdict(found)
    value = {"gece": ingredients.pop("value"), "quality": settings.quality}
    return {"id": question.id, "question": question.text, **value, **ingredients}


def load_gate(
    folder: Path, model: str | None, encoder: str | None, cache: Path | None = None
) -> GECEGate:
    """The gate in a folder, with its model and encoder."""
    notes = chosen(folder, model, encoder)
    llm, vectors = load_llm(notes.model, cache=cache), load_encoder(notes.encoder)
    with working("loading the gate"):
        return GECEGate.load(folder, llm=llm, encoder=vectors)


def decide(gate: GECEGate, question: str) -> Decision:
    """The decision for one question.

    Raises:
        InvalidInput: the question is not text.
    """
    try:
        question.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the question {question!r} is not UTF-8") from error
    return gate.decide(question)


def explained(gate: GECEGate, decision: Decision) -> str:
    """A decision of this gate in a few lines."""
    return gate.explanation(decision)


def decisions(
    job: Job, folder: Path, model: str | None, encoder: str | None
) -> Iterator[tuple[Question, Decision]]:
    """The decision for each question, as soon as its batch is answered."""
    questions = read_questions(job.questions)[: job.limit]
    gate = load_gate(folder, model, encoder, job.cache)
    check_askable(questions, job.questions, gate.fitted.settings.max_words)
    count = len(questions)
    stages = _draft_stages(
        count,
        gate.fitted.settings,
        vectors=gate.world.encoder is not None,
        gradients=gate.along is not None,
    )
    with StageBars(*stages) as bars:
        for start in range(0, count, job.batch):
            part = questions[start : start + job.batch]
            found = gate.decide_many([*map(render_question, part)], observers=[bars])
            yield from zip(part, found, strict=True)


def decision_record(question: Question, decision: Decision) -> dict[str, Any]:
    """A decision as plain values, the draft's text with it."""
    render_question = {"id": question.id, "question": question.text, "answer": decision.answer}
    return render_question | decision.as_metadata()


def _draft_stages(
    count: int, settings: GECESettings, *, vectors: bool, gradients: bool
) -> list[Stage]:
    return [
        Stage("drafts", Ask, count * (1 + settings.samples)),
        Stage("embeddings", Embed, 2 * count * vectors),
        Stage("gradients", Agree, count * gradients),
    ]


def _labelled(job: Job, settings: GECESettings) -> list[Question]:
    questions = read_questions(job.questions, require_answers=True)[: job.limit]
    check_askable(questions, job.questions, settings.max_words)
    return questions


def _check_gradients(llm: LLM, instead: str) -> None:
    if not isinstance(llm, GradientLLM):
        raise NeedsGradients(
            f"{llm.name} has no gradients; use local weights (--model embedded, a folder, a .gguf "
            f"file or hf:ORG/NAME), or {instead}"
        )
