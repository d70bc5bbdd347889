"""`ltrag dur ...`: which examples or passages help this model, and how many?"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

import typer

from ltrag_plugins.cli import io
from ltrag_plugins.cli.models import load_encoder, load_llm, noted, write_notes
from ltrag_plugins.cli.options import Opt, changed, option, utf8
from ltrag_plugins.data import read_candidates, read_passages, read_questions
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.types import Passage, Question

if TYPE_CHECKING:  # numpy behind them would slow --help down
    import numpy as np

    from ltrag_plugins.dur import DURRanker, DURSettings, Shot, TrainingResult
    from ltrag_plugins.dur.shots import ShotRanker
    from ltrag_plugins.llm.base import Encoder

dur_app = typer.Typer(
    help="Which examples or passages help this model, and how many?",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="CANDIDATES.jsonl QUESTIONS.jsonl",
        help="Solved examples (questions with 'answers') or passages (with 'text') that all "
        "questions share, and questions with 'answers', one JSON object a line; may be gzipped "
        "(.gz). With --own-passages CANDIDATES.jsonl may be left out.",
        show_default=False,
    ),
]


@dur_app.command("train")
def _train(
    files: _Files,
    out: Opt.Out,
    own_passages: Opt.OwnPassages = False,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    encoder: Opt.HeadEncoder = "embedded",
    preset: Annotated[
        Literal["default", "paper", "paper-batch", "promptpg"],
        option("Method", "Ours, the paper's algorithm 1, its authors' code, or PromptPG."),
    ] = "default",
    epochs: Annotated[int | None, option("Method", "Passes over the questions.", min=1)] = None,
    shots: Annotated[int | None, option("Method", "K: most shots in a prompt.", min=1)] = None,
    words: Opt.Set = None,
    seed: Opt.Seed = None,
    max_calls: Annotated[int | None, option("Cost", "Stop after so many prompts.", min=1)] = None,
    max_tokens: Annotated[int | None, option("Cost", "Stop after so many tokens.", min=1)] = None,
    cache: Opt.Cache = None,
    checkpoint: Annotated[
        Path | None,
        option("Output", "Folder written after each batch; the same command goes on from there."),
    ] = None,
    pictures: Annotated[Path | None, option("Output", "Draw shots, loss and turns there.")] = None,
    as_data: Opt.Json = False,
) -> None:
    """Ask the model with more and more shots, learn which ones help, save the head.

    [dim]ltrag dur train examples.jsonl questions.jsonl --checkpoint run/ --out head/[/]
    """
    _check_count(files, own_passages)
    from ltrag_plugins.dur import DURTrainer

    settings = changed(_preset(preset), words, epochs=epochs, shots=shots, seed=seed)
    for folder in filter(None, (out, checkpoint, pictures)):
        io.checked_folder(folder)
    draw = None
    if pictures is not None:  # without matplotlib it is refused before the work
        from ltrag_plugins.report.dur_figures import dur_pictures as draw
    candidates, questions = _read(files, own_passages, limit)
    if not any(word.startswith("format=") for word in words or ()):
        settings = replace(settings, format=_widest_format(candidates))
    _check_format(settings, candidates)
    llm = load_llm(model, cache=cache, chat=False)  # few-shot prompts are text to go on with
    trainer = DURTrainer(_vectors(encoder, cache), llm, settings=settings)
    batches = settings.batches(len(questions))
    bar = io.TrainingBar(epochs=settings.epochs, batches=batches, max_calls=max_calls)
    try:
        with bar:
            result = trainer.fit(
                candidates,
                questions,
                checkpoint=checkpoint,
                max_calls=max_calls,
                max_tokens=max_tokens,
                on_batch=bar.on_batch,
                observers=[bar.on_step],
            )
    except KeyboardInterrupt:
        if checkpoint is None:
            io.say("nothing is kept; with --checkpoint FOLDER a run that is stopped can go on")
        else:  # before a batch ends, nobody here knows how many an earlier run has left
            done = (
                f"{bar.done} of {batches * settings.epochs} batches are" if bar.done else "all is"
            )
            io.say(f"{done} in {checkpoint}; run the same command to go on")
        raise
    result.ranker.save(out)
    write_notes(out, model, encoder or "")
    if draw is not None and pictures is not None:
        draw(result.history, pictures, shots=settings.shots)
    io.say(f"the head is in {out}")
    found = {
        "candidates": None if candidates is None else len(candidates),
        "questions": len(questions),
        **_figures(result),
    }
    if as_data:
        history = [asdict(batch) for batch in result.history]
        io.show(found | {"settings": asdict(result.ranker.settings), "history": history})
    else:
        own = sum(len(question.passages) for question in questions)
        kind = f"{own} passages of their own" if candidates is None else _count(candidates)
        material = {"candidates, questions": f"{kind}, {len(questions)} questions"}
        rows = material | _report(found, result.ranker.settings)
        io.show("\n".join(f"{name:<27}{value}" for name, value in rows.items()))


@dur_app.command("evaluate")
def _evaluate(
    head: Annotated[
        Path,
        typer.Argument(
            metavar="HEAD/", help="Folder that 'ltrag dur train' wrote.", show_default=False
        ),
    ],
    files: _Files,
    own_passages: Opt.OwnPassages = False,
    limit: Opt.Limit = None,
    model: Opt.NotedModel = None,
    encoder: Opt.HeadEncoder = None,
    shots: Annotated[int | None, option("Method", "Shots, if not the head's K.", min=1)] = None,
    seed: Annotated[int, option("Method", "Of the random shots.")] = 0,
    cache: Opt.Cache = None,
    as_data: Opt.Json = False,
) -> None:
    """What the model answers with the head's shots, and with those of plain rankers.

    [dim]ltrag dur evaluate head/ examples.jsonl test.jsonl[/]
    """
    _check_count(files, own_passages)
    from ltrag_plugins.dur.evaluating import answer_with, summed
    from ltrag_plugins.dur.prompts import text_of

    model, encoder = noted(head, "dur.json", "dur train", model, encoder, "embedded")
    candidates, questions = _read(files, own_passages, limit)
    ranker = _load(head, encoder, cache)
    _check_format(ranker.settings, candidates)
    llm = load_llm(model, cache=cache, chat=False)  # few-shot prompts are text to go on with
    shown = candidates or [passage for question in questions for passage in question.passages]
    with io.working("encoding"):  # at once, which is faster than question by question
        ranker.encoder.encode([q.text for q in questions] + [*map(text_of, shown)])
    rankers = _rankers(ranker, shots or ranker.shots, own=candidates is None)
    found: dict[str, Any] = {}
    easy: list[bool] = []
    with io.stages(*_stages(rankers, questions, ranker.settings)) as observer:
        for name, make in rankers.items():
            if candidates is not None:
                ranked = make(candidates, seed)(questions)
            else:  # a seed each: else chance would take the same places of every question's list
                makers = [make(q.passages, seed + i) for i, q in enumerate(questions)]
                ranked = [rank([q])[0] for rank, q in zip(makers, questions, strict=True)]
            given = answer_with(ranked, questions, llm, ranker.settings, observers=[observer])
            easy = easy or [feedback.right for feedback in given]
            found[name] = asdict(summed(given, ranked, easy=easy))
    if as_data:
        io.show({"questions": len(questions), "easy_questions": sum(easy), "rankers": found})
        return
    columns = ["shots by", "accuracy", "macro-F1", "p(gold)", "easy", "hard", "shots"]
    io.show_table(columns, (_row(name, scores) for name, scores in found.items()))
    io.show(
        f"{len(questions)} questions; without shots {sum(easy)} are right (easy), the others wrong "
        "(hard)"
    )


def _checked_sigma(value: str) -> str:
    try:
        if value == "trained" or 0 <= float(value) <= 1:
            return value
    except ValueError:
        pass
    raise typer.BadParameter(f"{value!r} is neither a number from 0 to 1 nor 'trained'")


@dur_app.command("rank")
def _rank(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="HEAD/ CANDIDATES.jsonl",
            help="A folder of 'ltrag dur train' (not with --untrained), and passages or questions.",
            show_default=False,
        ),
    ],
    query: Annotated[str, option("Data", "The question, in quotes.", callback=utf8)],
    encoder: Opt.HeadEncoder = None,
    untrained: Annotated[bool, option("Method", "Plain similarity.", "--untrained")] = False,
    sigma: Annotated[
        str,
        option(
            "Method",
            "Leave out what scores at most this, 0 to 1; 'trained': the training's threshold.",
            callback=_checked_sigma,
        ),
    ] = "0",
    top_n: Annotated[int | None, option("Output", "Most to show.", min=1)] = None,
    as_data: Opt.Json = False,
) -> None:
    """The passages or examples of a file, the most helpful first.

    [dim]ltrag dur rank head/ passages.jsonl --query "who wrote Emma?" --top-n 3[/]
    """
    if len(files) != (1 if untrained else 2):
        raise typer.BadParameter(
            "give CANDIDATES.jsonl alone with --untrained, else HEAD/ CANDIDATES.jsonl"
        )
    candidates = read_candidates(files[-1], solved=False)
    ranker = _load(None if untrained else files[0], encoder)
    least = ranker.sigma if sigma == "trained" else float(sigma)
    with io.working("ranking"):
        ranked = ranker.rank(query, candidates, top_n=top_n, sigma=least)
    records: list[dict[str, Any]] = []
    for place in ranked:
        shot = candidates[place.index]
        title = {"title": shot.title} if isinstance(shot, Passage) and shot.title else {}
        record = {"score": place.score, "index": place.index, "id": shot.id}
        records.append(record | title | {"text": shot.text})
    if as_data:
        io.show({"query": query, "ranked": records})
    else:
        rows = ([_short(one), one["id"], f"{one['score']:.4f}"] for one in records)
        io.show_table(["candidate", "id", "score"], rows)


def _check_count(files: Sequence[Path], own_passages: bool) -> None:
    if len(files) > 2 or len(files) < (1 if own_passages else 2):
        raise typer.BadParameter(
            "give CANDIDATES.jsonl and QUESTIONS.jsonl; with --own-passages QUESTIONS.jsonl alone "
            "will do"
        )


def _read(
    files: Sequence[Path], own_passages: bool, limit: int | None
) -> "tuple[Sequence[Shot] | None, list[Question]]":
    """Candidates that all questions share (None: each has passages of its own), and questions."""
    *before, path = files
    if not own_passages:
        candidates = read_candidates(before[0], solved=True)
        return candidates, read_questions(path, require_answers=True)[:limit]
    pool = read_passages(before[0]) if before else ()
    questions = read_questions(path, require_answers=True, pool=pool)[:limit]
    io.check_records(path, questions, io.check_passages)
    return None, questions


def _preset(name: str) -> "DURSettings":
    from ltrag_plugins.dur import DURSettings

    if name == "promptpg":
        return DURSettings.promptpg()
    if name == "default":
        return DURSettings()
    return DURSettings.paper(sigma="batch" if name == "paper-batch" else "immediate")


def _widest_format(candidates: "Sequence[Shot] | None") -> str:
    """The prompt format that shows all there is in these candidates."""
    examples = [one for one in candidates or () if isinstance(one, Question)]
    if not examples:
        return "passages"
    if not all(example.options for example in examples):
        return "Q-A"
    return "SQO-A" if all(example.context for example in examples) else "QO-A"


def _check_format(settings: "DURSettings", candidates: "Sequence[Shot] | None") -> None:
    widest, wanted = _widest_format(candidates), settings.format
    if isinstance(wanted, str) and (wanted == "passages") != (widest == "passages"):
        raise InvalidInput(
            f"the format {wanted!r} shows nothing of these candidates; use the format {widest!r}, "
            "or other candidates"
        )


def _load(head: Path | None, encoder: str | None, cache: Path | None = None) -> "DURRanker":
    """The head in a folder with its encoder, or plain similarity where there is no folder."""
    from ltrag_plugins.dur import DURRanker

    if head is None:
        return DURRanker.untrained(_vectors(encoder, cache))
    _, encoder = noted(head, "dur.json", "dur train", "", encoder, "embedded")
    return DURRanker.load(head, encoder=_vectors(encoder, cache))


def _vectors(spec: str | None, cache: Path | None) -> "Encoder":
    from ltrag_plugins.llm.cached import CachedEncoder

    encoder = load_encoder(spec or "embedded")
    assert encoder is not None  # the option refuses "none"
    if cache is None:
        return _Remembering(encoder)
    return CachedEncoder(encoder, cache.with_name(f"{cache.stem}.vectors{cache.suffix}"))


@final
class _Remembering:
    """An encoder that encodes no text twice while it lives."""

    def __init__(self, encoder: "Encoder") -> None:
        self.name, self._encoder = encoder.name, encoder
        self._known: dict[str, np.ndarray] = {}

    def encode(self, texts: Sequence[str]) -> "np.ndarray":
        import numpy as np

        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if not texts:
            return self._encoder.encode([])
        self._known |= dict(zip(new, self._encoder.encode(new) if new else (), strict=True))
        return np.stack([self._known[text] for text in texts])


def _figures(result: "TrainingResult") -> dict[str, Any]:
    """A training as plain values."""
    from ltrag_plugins.dur.batch import by_epoch, total

    shots, choice = result.ranker.settings.shots, result.choice
    whole, epochs = total(result.history, shots=shots), by_epoch(result.history, shots=shots)
    tokens = [whole.tokens, 0 if choice is None else choice.tokens]
    return {
        "epochs": len(epochs),
        "batches": whole.batches,
        "calls": result.calls,
        "tokens": None if None in tokens else sum(filter(None, tokens)),
        "first_reward": epochs[0].reward,
        "last_reward": epochs[-1].reward,
        "shots": whole.shots,
        "fixed_shots": whole.fixed_shots,
        "sigma": result.ranker.sigma,
        "answer_shots": result.ranker.shots,
        "choice": choice and {**asdict(choice), "head": choice.head},
        "stopped": result.stopped,
    }


def _report(found: dict[str, Any], settings: "DURSettings") -> dict[str, str]:
    choice, batches = found["choice"], settings.batches(found["questions"]) * settings.epochs
    share = f"{found['shots'] / found['fixed_shots']:.0%} of {found['fixed_shots']}"
    held_out = "none"
    if choice is not None:
        trained, start = max(choice["trained"][1:]), max(choice["start"][1:])
        kept = "kept" if choice["head"] == "trained" else "did not pay; the head before it is kept"
        worth = f"worth {trained:.3f}; {start:.3f} before training, which {kept}"
        held_out = f"{choice['questions']}, {worth}"
    tokens = "unknown" if found["tokens"] is None else found["tokens"]
    progress = f"{found['batches']} of {batches}, epoch {found['epochs']} of {settings.epochs}"
    return {
        "format, reward": f"{settings.format}, {settings.reward}",
        "batches": progress,
        "calls, tokens": f"{found['calls']}, {tokens}",
        "mean reward, first epoch": f"{found['first_reward']:.3f}",
        "mean reward, last epoch": f"{found['last_reward']:.3f}",
        "shots in all prompts": f"{found['shots']}, {share} with {settings.shots} in one prompt a "
        "question",
        "threshold sigma": f"{found['sigma']:.4g}",
        "held-out questions": held_out,
        "shots to answer with": found["answer_shots"],
        "stopped": found["stopped"] or "after the last epoch",
    }


def _count(candidates: "Sequence[Shot]") -> str:
    kind = "solved examples" if isinstance(candidates[0], Question) else "passages"
    return f"{len(candidates)} {kind}"


def _rankers(
    ranker: "DURRanker", shots: int, *, own: bool
) -> "dict[str, Callable[[Sequence[Shot], int], ShotRanker]]":
    """By name, what makes a ranker from candidates and a seed."""
    from ltrag_plugins.dur import DURRanker
    from ltrag_plugins.dur.shots import ShotRanker

    encoder = ranker.encoder
    if own:  # such passages are not preselected in training either
        everything = replace(ranker.settings, preselect="none")
        ranker = DURRanker(ranker.head, ranker.encoder, everything, sigma=ranker.sigma)
    return {
        "zero-shot": lambda pool, seed: ShotRanker.random(pool, shots=0, seed=seed),
        "random": lambda pool, seed: ShotRanker.random(pool, shots=shots, seed=seed),
        "BM25": lambda pool, seed: ShotRanker.bm25(pool, shots=shots),
        "nearest": lambda pool, seed: ShotRanker.nearest(pool, shots=shots, encoder=encoder),
        "head": lambda pool, seed: ShotRanker.learned(ranker, pool, shots=shots),
    }


def _stages(
    names: dict[str, Any], questions: Sequence[Question], settings: "DURSettings"
) -> list[tuple[str, type, int]]:
    """One for each ranker: prompts to score, or for a model that does not score, to answer."""
    from ltrag_plugins.flow import Ask, Score

    each = 2 if settings.option_calibration == "content-free" else 1
    scored = sum(each * len(q.options) if q.options else 1 for q in questions)
    return [
        stage for name in names for stage in ((name, Ask, len(questions)), (name, Score, scored))
    ]


def _row(name: str, scores: dict[str, Any]) -> list[str]:
    shares = [scores[field] for field in ("accuracy", "macro_f1", "p_gold", "easy", "hard")]
    known = ["" if share is None else f"{share:.3f}" for share in shares]
    return [name, *known, f"{scores['shots']:.2f}"]


def _short(record: dict[str, Any], most: int = 72) -> str:
    text = " ".join(f"{record.get('title', '')} {record['text']}".split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
