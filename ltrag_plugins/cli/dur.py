"""`ltrag rerank ...`: which examples or passages help this model, and how many?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ltrag_plugins import dur
from ltrag_plugins.cli import io, options
from ltrag_plugins.cli.options import COMMANDS, Opt, argument, option
from ltrag_plugins.data import read_candidates, read_passages, read_questions
from ltrag_plugins.settings import Count, Settings
from ltrag_plugins.types import Passage, Question

if TYPE_CHECKING:  # numpy behind them would slow --help down
    from ltrag_plugins.llm.base import Encoder

_Head = Annotated[Path, argument("HEAD/", "Folder that 'ltrag rerank train' wrote.")]
_Files = Annotated[
    list[Path],
    argument(
        "CANDIDATES.jsonl QUESTIONS.jsonl",
        "Solved examples (with 'answers') or passages (with 'text'), and questions with 'answers', "
        "as JSON lines (.gz too). With --own-passages CANDIDATES.jsonl may be left out.",
    ),
]


@dataclass(frozen=True, slots=True)
class TrainingBounds(Settings):
    """What `--set` takes in a training beside the settings of the head."""

    max_calls: Count | None = None
    """Begin no batch after so many prompts."""
    max_tokens: Count | None = None
    """Begin no batch after so many tokens, read and written."""


@COMMANDS["rerank"].command("train")
def _train(
    files: _Files,
    *,
    own_passages: Opt.OwnPassages = False,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    encoder: Opt.Encoder = "embedded",
    preset: Annotated[
        dur.Preset, option("Method", "Ours, the paper's, its authors' code's, or PromptPG's.")
    ] = "default",
    shots: Annotated[int | None, option("Method", "K: most shots in a prompt.")] = None,
    words: Opt.Set = None,
    cache: Opt.Cache = None,
    out: Opt.Out,
    checkpoint: Annotated[
        Path | None, option("Output", "Folder from which the same command goes on, if stopped.")
    ] = None,
    pictures: Annotated[Path | None, option("Output", "Draw shots, loss and turns there.")] = None,
    as_data: Opt.Json = False,
) -> None:
    """Ask the model with more and more shots, learn which ones help, save the head.

    [dim]ltrag rerank train examples.jsonl questions.jsonl --checkpoint run/ --out head/[/]
    """
    start = dur.DURSettings.preset(preset)
    settings, bounds = options.changed(words, start, TrainingBounds(), shots=shots)
    candidates, questions = _read(files, own_passages, limit)
    if not any(word.startswith("format=") for word in words or ()):
        settings = replace(settings, format=_widest_format(candidates))
    # a format that shows nothing of these candidates is refused before a model is loaded
    shots_of_one = (candidates or questions[0].passages)[:1]
    dur.FORMATS[str(settings.format)].prompt(shots_of_one, questions[0])
    options.checked_out(out, "dur")
    for folder in filter(None, (checkpoint, pictures)):
        io.checked_folder(folder)
    draw = None
    if pictures is not None:  # without matplotlib it is refused before the work
        from ltrag_plugins.report.dur_figures import dur_pictures as draw
    llm = options.load_llm(model, cache=cache, chat=False)  # few-shot prompts are text to go on
    trainer = dur.DURTrainer(_vectors(encoder, cache), llm, settings=settings)
    size = settings.epochs, settings.batches(len(questions))
    begun = checkpoint is not None and checkpoint.exists()
    with io.resumable(checkpoint or cache, "--checkpoint"), io.training(*size, begun) as shown:
        more = {**asdict(bounds), **shown}
        result = trainer.fit(candidates, questions, checkpoint=checkpoint, **more)
    options.save(result.ranker, "head", out, model, encoder)
    if draw is not None and pictures is not None:
        draw(result.history, pictures, shots=settings.shots)
    counts = {"candidates": candidates and len(candidates), "questions": len(questions)}
    found = {**counts, **_figures(result)}
    rows = {n: v for n, v in found.items() if n not in ("choice", "settings", "history")}
    kinds = {name: found["settings"][name] for name in ("format", "reward")}
    io.show(found if as_data else {"kept": _verdict(result)} | kinds | rows, as_data)


@COMMANDS["rerank"].command("evaluate")
def _evaluate(
    head: _Head,
    files: _Files,
    own_passages: Opt.OwnPassages = False,
    limit: Opt.Limit = None,
    model: Opt.NotedModel = None,
    encoder: Opt.NotedEncoder = None,
    shots: Annotated[int | None, option("Method", "Shots, if not the head's K.", min=1)] = None,
    cache: Opt.Cache = None,
    as_data: Opt.Json = False,
) -> None:
    """What the model answers with the head's shots, and with those of plain rankers.

    [dim]ltrag rerank evaluate head/ examples.jsonl test.jsonl[/]
    """
    from ltrag_plugins.dur.prompts import format_for
    from ltrag_plugins.evaluate import evaluate, summarize
    from ltrag_plugins.evaluate.shots import shot_cells
    from ltrag_plugins.flow import World
    from ltrag_plugins.llm.base import ScoringLLM
    from ltrag_plugins.metrics.answer import macro_f1

    candidates, questions = _read(files, own_passages, limit)
    model, encoder = options.noted("dur", head, model, encoder)
    with TemporaryDirectory() as folder:  # without a cache, vectors are kept for this command
        vectors = _vectors(encoder, cache or Path(folder) / "kept.sqlite")
        ranker = dur.DURRanker.load(head, encoder=vectors)
        one = (candidates or questions[0].passages)[:1]
        format_for(ranker.settings.format).prompt(one, questions[0])
        llm = options.load_llm(model, cache=cache, chat=False)
        more = {"scores": isinstance(llm, ScoringLLM), "shots": shots or ranker.shots}
        with io.working("ranking"):
            cells, chances, lengths = shot_cells(ranker, candidates, questions, **more)
        with io.resumable(cache), io.answering(len(cells) * len(questions)) as on_record:
            run = {"out": folder, "metrics": ["em", "f1"], "on_record": on_record}
            records = evaluate(questions, cells, World(llm), **run)
    summary, told = summarize(records), {}
    choice = [bool(question.options) for question in questions]
    asked = [*compress(questions, choice)]
    for name, answered in records.items():
        said, known = [one.prediction for one in compress(answered, choice)], chances[name]
        told[name] = {
            "macro_f1": macro_f1(said, asked) if asked else None,
            "p_gold": sum(known.values()) / len(known) if known else None,
            "shots": lengths[name],
        }
    if as_data:
        io.show(summary.as_dict() | {"shots_by": told}, as_data)
    else:
        io.show(f"{summary}\n")
        columns = {"shots by": "name", "macro-F1": "macro_f1:.3f", "p(gold)": "p_gold:.3f"}
        rows = [{"name": name, **found} for name, found in told.items()]
        io.show_table(columns | {"shots": "shots:.2f"}, rows)
    if any(row.failed for row in summary.rows):
        raise typer.Exit(1)


@COMMANDS["rerank"].command("rank")
def _rank(
    head: _Head,
    candidates: Annotated[Path, argument("CANDIDATES.jsonl", "Passages or questions.")],
    query: Annotated[str, option("Data", "The question, in quotes.")],
    encoder: Opt.NotedEncoder = None,
    top_n: Annotated[int | None, option("Output", "Most to show.", min=1)] = None,
    as_data: Opt.Json = False,
) -> None:
    """The passages or examples of a file, the most helpful first.

    [dim]ltrag rerank rank head/ passages.jsonl --query "who wrote Emma?" --top-n 3[/]
    """
    shots = read_candidates(candidates, solved=False)
    _, encoder = options.noted("dur", head, encoder=encoder)
    ranker = dur.DURRanker.load(head, encoder=_vectors(encoder))
    with io.working("ranking"):
        ranked = ranker.rank(query, shots, top_n=top_n)
    records: list[dict[str, Any]] = []
    for place in ranked:
        shot = shots[place.index]
        title = {"title": shot.title} if isinstance(shot, Passage) and shot.title else {}
        placed = {"score": place.score, "index": place.index, "id": shot.id}
        records.append(placed | title | {"text": shot.text})
    if as_data:
        io.show({"query": query, "ranked": records}, as_data)
    else:
        shown = [{"shown": shorten(f"{r.get('title', '')} {r['text']}", 72), **r} for r in records]
        io.show_table({"candidate": "shown", "id": "id", "score": "score:.4f"}, shown)


def _read(
    files: Sequence[Path], own_passages: bool, limit: int | None
) -> "tuple[Sequence[dur.Shot] | None, list[Question]]":
    """Candidates that all questions share (None: each has passages of its own), and questions."""
    if len(files) > 2 or len(files) < (1 if own_passages else 2):
        raise typer.BadParameter("give CANDIDATES.jsonl QUESTIONS.jsonl, or --own-passages")
    *before, path = files
    candidates = None if own_passages else read_candidates(before[0], solved=True)
    pool = read_passages(before[0]) if own_passages and before else ()
    own = {"require_passages": own_passages, "pool": pool, "limit": limit}
    return candidates, read_questions(path, require_answers=True, **own)


def _widest_format(candidates: "Sequence[dur.Shot] | None") -> str:
    """The prompt format that shows all there is in these candidates."""
    examples = [one for one in candidates or () if isinstance(one, Question)]
    if not examples:
        return "passages"
    if not all(example.options for example in examples):
        return "Q-A"
    return "SQO-A" if all(example.context for example in examples) else "QO-A"


def _vectors(spec: str, cache: Path | None = None) -> "Encoder":
    from ltrag_plugins.llm.cached import CachedEncoder

    encoder = options.load_encoder(spec)
    if encoder is None:
        raise typer.BadParameter("a head ranks by vectors; name an encoder, such as embedded")
    if cache is None:
        return encoder
    return CachedEncoder(encoder, cache.with_name(f"{cache.stem}.vectors{cache.suffix}"))


def _verdict(result: "dur.TrainingResult") -> str:
    """Which head with how many shots, and what that is worth where training did not look."""
    choice, shots = result.choice, result.ranker.shots
    if choice is None:
        which = "trained head" if result.history else "head as it was before training"
        return f"the {which} with {shots} shots; none were held out to judge it"
    which = "trained head" if choice.head == "trained" else "head as it was before training"
    own, old = max(choice.trained[1:]), max(choice.start[1:])
    worth = f"{own:.3f} trained, {old:.3f} before, {choice.trained[0]:.3f} without shots"
    if abs(own - old) <= choice.error:  # so few questions seldom tell: docs/results/rankers.md
        near = f"the first two are within a standard error, {choice.error:.3f}"
        worth += f" ({near}: judge them by 'ltrag rerank evaluate')"
    return (
        f"the {which} with {shots} shots; reward on {choice.questions} held-out questions: {worth}"
    )


def _figures(result: "dur.TrainingResult") -> dict[str, Any]:
    """A training as plain values."""
    from ltrag_plugins.dur.batch import by_epoch

    settings, choice = result.ranker.settings, result.choice
    epochs = by_epoch(result.history)  # none, with epochs=0
    tokens = [batch.tokens for batch in result.history] + [choice.tokens if choice else 0]
    return {
        "epochs": len(epochs),
        "batches": len(result.history),
        "calls": result.calls,
        "tokens": None if None in tokens else sum(filter(None, tokens)),
        "first_reward": epochs[0].reward if epochs else None,
        "last_reward": epochs[-1].reward if epochs else None,
        "shots": sum(batch.shots for batch in result.history),
        "fixed_shots": settings.shots * sum(batch.questions for batch in result.history),
        "sigma": result.ranker.sigma,
        "answer_shots": result.ranker.shots,
        "choice": choice and {**asdict(choice), "head": choice.head},
        "stopped": result.stopped,
        "settings": asdict(settings),
        "history": [asdict(batch) for batch in result.history],
    }
