"""What the ranking commands do. Heavy imports are here, so that `--help` does without them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from ltrag_plugins.cli.candidates import (
    Material,
    check_format,
    format_for,
    read_candidates,
    read_material,
)
from ltrag_plugins.cli.models import load_encoder, load_llm
from ltrag_plugins.cli.notes import Notes, noted, write_notes
from ltrag_plugins.cli.output import checked_folder, say, working
from ltrag_plugins.cli.progress import Stage, StageBars
from ltrag_plugins.dur import DURRanker, DURSettings, DURTrainer, Ranked, TrainingResult
from ltrag_plugins.dur.batch import Choice, by_epoch, total
from ltrag_plugins.dur.evaluating import Scores, answered, summed
from ltrag_plugins.dur.progress import TrainingBar
from ltrag_plugins.dur.prompts import Shot
from ltrag_plugins.dur.shots import (
    ShotRanker,
    learned_shots,
    no_shots,
    preselected_shots,
    random_shots,
)
from ltrag_plugins.dur.train import learned_count
from ltrag_plugins.errors import InvalidInput, UnreadableArtifact
from ltrag_plugins.flow import Ask, Score
from ltrag_plugins.llm.base import LLM, Encoder, ScoringLLM
from ltrag_plugins.llm.cached import CachedEncoder
from ltrag_plugins.types import Passage, Question

PRESETS: dict[str, Callable[[], DURSettings]] = {
    "default": DURSettings,
    "paper": DURSettings.paper,
    "paper-batch": partial(DURSettings.paper, sigma="batch"),
    "promptpg": DURSettings.promptpg,
}


@dataclass(frozen=True, slots=True)
class Job:
    """Questions with their candidates, and how they are asked."""

    files: Sequence[Path]
    own_passages: bool
    limit: int | None
    cache: Path | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What the user wants otherwise than the preset; None: as the preset has it."""

    format: str | None = None
    epochs: int | None = None
    shots: int | None = None
    preselect: str | None = None
    reward: str | None = None
    option_calibration: str | None = None
    held_out: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a training ends before its last epoch."""

    max_calls: int | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Trained:
    """A training and what it was given."""

    material: Material
    result: TrainingResult


def train(
    job: Job,
    out: Path,
    *,
    model: str,
    encoder: str,
    preset: str,
    changes: Changes,
    bounds: Bounds,
    checkpoint: Path | None,
    pictures: Path | None,
) -> Trained:
    """Train a head and save it in `out`; what cannot end well is refused before loading a model."""
    for folder in filter(None, (out, checkpoint, pictures)):
        checked_folder(folder)
    draw = _drawing() if pictures is not None else None
    material = read_material(job.files, own_passages=job.own_passages, limit=job.limit)
    settings = _settings(preset, changes, material)
    llm = load_llm(model, cache=job.cache, chat=False)  # few-shot prompts are text to go on with
    trainer = DURTrainer(_vectors(encoder, job.cache), llm, settings=settings)
    batches = trainer.batches(len(material.questions))
    bar = TrainingBar(epochs=settings.epochs, batches=batches, max_calls=bounds.max_calls)
    try:
        with bar:
            result = trainer.fit(
                material.candidates,
                material.questions,
                checkpoint=checkpoint,
                max_calls=bounds.max_calls,
                max_tokens=bounds.max_tokens,
                on_batch=bar.on_batch,
                observers=[bar.on_step],
            )
    except KeyboardInterrupt:
        say(_how_to_go_on(checkpoint, bar.done, batches * settings.epochs))
        raise
    result.ranker.save(out)
    write_notes(out, model, encoder)
    if draw is not None and pictures is not None:
        draw(result.history, pictures, shots=settings.shots)
    return Trained(material, result)


def train_record(trained: Trained) -> dict[str, Any]:
    """A training as plain values."""
    result, settings = trained.result, trained.result.ranker.settings
    whole = total(result.history, shots=settings.shots)
    epochs = by_epoch(result.history, shots=settings.shots)
    candidates = trained.material.candidates
    return {
        "candidates": None if candidates is None else len(candidates),
        "questions": len(trained.material.questions),
        "epochs": len(epochs),
        "batches": whole.batches,
        "calls": result.calls,
        "tokens": _added(whole.tokens, result.choice),
        "first_reward": epochs[0].reward,
        "last_reward": epochs[-1].reward,
        "shots": whole.shots,
        "fixed_shots": whole.fixed_shots,
        "sigma": result.ranker.sigma,
        "answer_shots": result.ranker.shots,
        "choice": result.choice and {**asdict(result.choice), "head": result.choice.head},
        "stopped": result.stopped,
        "settings": asdict(settings),
        "history": [asdict(batch) for batch in result.history],
    }


def _added(tokens: int | None, more: Choice | None) -> int | None:
    if more is None or tokens is None:
        return tokens
    return None if more.tokens is None else tokens + more.tokens


def train_report(trained: Trained) -> str:
    """A training in a few lines."""
    settings, record = trained.result.ranker.settings, train_record(trained)
    questions = learned_count(record["questions"], settings)
    batches = -(-questions // settings.batch_size) * settings.epochs
    tokens = "unknown" if record["tokens"] is None else record["tokens"]
    share = record["shots"] / record["fixed_shots"]
    fixed = f"{share:.0%} of {record['fixed_shots']} with {settings.shots} in one prompt a question"
    rows = {
        "candidates, questions": trained.material.told,
        "format, reward": f"{settings.format}, {settings.reward}",
        "batches": f"{record['batches']} of {batches}, epoch {record['epochs']} of "
        f"{settings.epochs}",
        "calls, tokens": f"{record['calls']}, {tokens}",
        "mean reward, first epoch": f"{record['first_reward']:.3f}",
        "mean reward, last epoch": f"{record['last_reward']:.3f}",
        "shots in all prompts": f"{record['shots']}, {fixed}",
        "threshold sigma": f"{record['sigma']:.4g}",
        "held-out questions": _told_choice(trained.result.choice),
        "shots to answer with": record["answer_shots"],
        "stopped": record["stopped"] or "after the last epoch",
    }
    return "\n".join(f"{name:<27}{value}" for name, value in rows.items())


def _told_choice(found: Choice | None) -> str:
    if found is None:
        return "none"
    trained, start = max(found.trained[1:]), max(found.start[1:])
    kept = "kept" if found.head == "trained" else "did not pay; the head before it is kept"
    return f"{found.questions}, worth {trained:.3f}; {start:.3f} before training, which {kept}"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the model answers with the shots of each ranker."""

    easy: int
    """Questions that are right without shots."""
    scores: dict[str, Scores]


def evaluate(
    job: Job,
    head: Path,
    *,
    model: str | None,
    encoder: str | None,
    shots: int | None,
    seed: int,
) -> Evaluation:
    """Zero-shot, random, BM25, nearest neighbours and the head, on the same questions."""
    model = model or _noted(_checked(head)).model
    if not model:
        raise InvalidInput(f"nothing in {head} says how to reach a model; add --model")
    material = read_material(job.files, own_passages=job.own_passages, limit=job.limit)
    ranker = load_ranker(head, encoder, job.cache)
    settings = ranker.settings
    check_format(settings.format, material.candidates)
    llm = load_llm(model, cache=job.cache, chat=False)  # few-shot prompts are text to go on with
    with working("encoding"):  # at once, which is faster than question by question
        ranker.encoder.encode(material.texts)
    makers = _makers(ranker, shots or ranker.shots, own=material.candidates is None)
    kind, count = _prompts(material.questions, llm, settings)
    stages = [Stage(name, kind, count) for name in makers]
    scores: dict[str, Scores] = {}
    easy: list[bool] = []
    with StageBars(*stages) as bars:
        for name, maker in makers.items():
            ranked = _ranked(maker, material, seed)
            results = answered(ranked, material.questions, llm, settings, observers=[bars])
            easy = easy or [result.right for result in results]
            scores[name] = summed(results, easy=easy)
    return Evaluation(sum(easy), scores)


def evaluation_record(found: Evaluation) -> dict[str, Any]:
    """An evaluation as plain values."""
    return {
        "questions": found.scores["head"].questions,
        "easy_questions": found.easy,
        "rankers": {name: asdict(scores) for name, scores in found.scores.items()},
    }


def rank(
    head: Path | None,
    path: Path,
    query: str,
    *,
    encoder: str | None,
    top_n: int | None,
    sigma: str | None,
) -> list[tuple[Ranked, Shot]]:
    """The candidates of a file, best first; plain similarity where there is no head.

    Raises:
        InvalidInput: the query is not text, or sigma neither a number nor "trained".
    """
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the query {query!r} is not UTF-8") from error
    candidates = read_candidates(path, solved=False)
    ranker = load_ranker(head, encoder)
    least = ranker.sigma if sigma == "trained" else float(sigma or 0)
    with working("ranking"):
        ranked = ranker.rank(query, candidates, top_n=top_n, sigma=least)
    return [(place, candidates[place.index]) for place in ranked]


def ranked_record(place: Ranked, candidate: Shot) -> dict[str, Any]:
    """A candidate and its score as plain values."""
    title = candidate.title if isinstance(candidate, Passage) else ""
    text = {"title": title, "text": candidate.text} if title else {"text": candidate.text}
    return {"score": place.score, "index": place.index, "id": candidate.id, **text}


def load_ranker(head: Path | None, encoder: str | None, cache: Path | None = None) -> DURRanker:
    """The head in a folder with its encoder, or plain similarity where there is no folder."""
    if head is None:
        return DURRanker.untrained(_vectors(encoder or "embedded", cache))
    return DURRanker.load(head, encoder=_vectors(encoder or _noted(_checked(head)).encoder, cache))


def _drawing() -> Callable[..., list[Path]]:
    from ltrag_plugins.report.dur_figures import dur_pictures

    return dur_pictures


def _settings(preset: str, changes: Changes, material: Material) -> DURSettings:
    wanted = {"format": format_for(material.candidates)} | _wanted(changes)
    settings = replace(PRESETS[preset](), **wanted)
    check_format(settings.format, material.candidates)
    return settings


def _wanted(changes: Changes) -> dict[str, Any]:
    told = {field.name: getattr(changes, field.name) for field in fields(changes)}
    return {name: value for name, value in told.items() if value is not None}


def _checked(head: Path) -> Path:
    if not (head / "dur.json").is_file():
        raise UnreadableArtifact(
            f"there is no head in {head} (no dur.json); train one with 'ltrag dur train'"
        )
    return head


def _noted(head: Path) -> Notes:
    try:
        notes = noted(head)
    except UnreadableArtifact:
        notes = Notes("", "")
    return Notes(notes.model, notes.encoder or "embedded")


def _vectors(spec: str, cache: Path | None) -> Encoder:
    encoder = load_encoder(spec)
    if encoder is None:
        raise InvalidInput("a head ranks by vectors; name an encoder, such as embedded")
    if cache is None:
        return _Remembering(encoder)
    return CachedEncoder(encoder, cache.with_name(f"{cache.stem}.vectors{cache.suffix}"))


@final
class _Remembering:
    """An encoder that encodes no text twice while it lives."""

    def __init__(self, encoder: Encoder) -> None:
        self.name = encoder.name
        self._encoder = encoder
        self._known: dict[str, np.ndarray] = {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """One row per text."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new or not texts:
            rows = self._encoder.encode(new)
            if not texts:
                return rows
            self._known |= dict(zip(new, rows, strict=True))
        return np.stack([self._known[text] for text in texts])


def _how_to_go_on(checkpoint: Path | None, done: int, batches: int) -> str:
    if checkpoint is None:
        return "nothing is kept; with --checkpoint FOLDER a run that is stopped can go on"
    if not done:
        return f"no batch ended; run the same command to begin or go on from {checkpoint}"
    return f"{done} of {batches} batches are in {checkpoint}; run the same command to go on"


Maker = Callable[[Sequence[Shot], int], ShotRanker]
"""From candidates and a seed to a ranker over them."""


def _makers(ranker: DURRanker, shots: int, *, own: bool) -> dict[str, Maker]:
    first = partial(preselected_shots, shots=shots, encoder=ranker.encoder)
    if own:  # such passages are not preselected in training either
        everything = replace(ranker.settings, preselect="none")
        ranker = DURRanker(ranker.head, ranker.encoder, everything, sigma=ranker.sigma)
    return {
        "zero-shot": lambda pool, seed: no_shots(),
        "random": lambda pool, seed: random_shots(pool, shots=shots, seed=seed),
        "BM25": lambda pool, seed: first(pool, how="bm25"),
        "nearest": lambda pool, seed: first(pool, how="encoder"),
        "head": lambda pool, seed: learned_shots(ranker, pool, shots=shots),
    }


def _ranked(maker: Maker, material: Material, seed: int) -> list[list[Shot]]:
    if material.candidates is not None:
        return maker(material.candidates, seed)(material.questions)
    # a seed each: else chance would take the same places of every question's list
    return [
        shots
        for i, question in enumerate(material.questions)
        for shots in maker(question.passages, seed + i)([question])
    ]


def _prompts(
    questions: Sequence[Question], llm: LLM, settings: DURSettings
) -> tuple[type[Ask | Score], int]:
    """What kind of request the questions are asked with, and for how many prompts."""
    if not isinstance(llm, ScoringLLM):
        return Ask, len(questions)
    each = 2 if settings.option_calibration == "content-free" else 1
    return Score, sum(each * len(q.options) if q.options else 1 for q in questions)
