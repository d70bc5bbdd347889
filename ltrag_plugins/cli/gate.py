"""`ltrag gate ...`: does this question need retrieval at all?"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ltrag_plugins import gece
from ltrag_plugins.cli import io, options
from ltrag_plugins.cli.options import COMMANDS, Opt, argument, option
from ltrag_plugins.data import read_questions
from ltrag_plugins.errors import InvalidInput, MissingReferences
from ltrag_plugins.types import Question

_Gate = Annotated[Path, option("Data", "Folder that 'ltrag gate fit' wrote.", metavar="GATE/")]


@COMMANDS["gate"].command("fit")
def _fit(
    questions: Opt.Questions,
    *,
    passages: Annotated[Path | None, option("Data", "Passages to search for an answer.")] = None,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    encoder: Opt.Encoder = "none",
    rate: Opt.Rate = None,
    k: Annotated[int, option("Method", "Passages shown for an answer.", "--k", min=1)] = 3,
    words: Opt.Set = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    out: Opt.Out,
    as_data: Opt.Json = False,
) -> None:
    """Ask the model every question, learn when its own answers fail, save the gate.

    With --passages questions need no accepted answers: a draft is right that agrees with the
    answer from the passages.

    [dim]ltrag gate fit questions.jsonl --passages pool.jsonl.gz --rate 0.2 --out gate/[/]
    """
    from ltrag_plugins.gece.labels import check_count, check_scorer
    from ltrag_plugins.gece.settings import Targets
    from ltrag_plugins.methods.direct import single_retrieval
    from ltrag_plugins.retrieval.bm25 import BM25Retriever

    settings, targets = options.changed(words, gece.GECESettings(), Targets(), target_rate=rate)
    check_scorer(settings)
    options.checked_out(out, "gate")
    needed = passages is None
    try:
        checks: Any = {"require_answers": needed, "check": _askable(settings)}
        found = read_questions(questions, limit=limit, **checks)
    except MissingReferences as error:
        raise MissingReferences(f"{error}; with --passages it needs none") from error
    check_count(found)
    pool = options.pool_of(passages, found)
    if not pool and (targets.target_accuracy == "always" or targets.budget is not None):
        raise typer.BadParameter(
            "target_accuracy=always and budget compare with retrieval; give --passages"
        )
    llm, vectors = options.load_llm(model, cache=cache), options.load_encoder(encoder)
    parts: dict[str, Any] = {"llm": llm, "encoder": vectors, "settings": settings, "batch": batch}
    if pool:
        parts["retriever"] = BM25Retriever(pool, engine="auto")
        parts["retrieving"] = partial(single_retrieval, k=k)
    totals = replies(len(found), settings, len(found) if pool else 0)
    with io.resumable(cache), io.progress(**totals) as bar:
        gate = gece.GECEGate.fit(found, observers=[bar], **parts, **asdict(targets))
    options.save(gate, "gate", out, model, encoder)
    io.show(gate.report, as_data)


@COMMANDS["gate"].command("score")
def _score(
    questions: Opt.Questions,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    words: Opt.Set = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    as_data: Opt.Json = False,
) -> None:
    """The paper's GECE of each question against its answers, with its ingredients.

    [dim]ltrag gate score questions.jsonl --limit 10[/]
    """
    [settings] = options.changed(words, gece.GECESettings.paper())
    found = read_questions(questions, require_answers=True, limit=limit, check=_askable(settings))
    llm = options.load_llm(model, cache=cache)
    how: dict[str, Any] = {"llm": llm, "settings": settings, "batch": batch}
    with io.resumable(cache), io.progress(**replies(len(found), settings)) as bar:
        scores = gece.score_questions(found, observers=[bar], **how)
    records = []
    for question, score in zip(found, scores, strict=True):
        ingredients = asdict(score)
        # the field is called `meteor`, whatever quality stands in METEOR's place
        value = {"gece": ingredients.pop("value"), "quality": settings.quality}
        records.append({"id": question.id, "question": question.text} | value | ingredients)
    if as_data:
        for record in records:
            io.show(record, as_data, indent=None)
        return
    quality = {"chrf": "chrF", "ter": "1 - TER"}.get(settings.quality, "METEOR")
    columns = {"question": "question", "GECE": "gece:.3g", "*": "mark", quality: "meteor:.3f"}
    columns |= {"mean p": "mean_probability:.3f", "word freq.": "word_frequency:.2e"}
    columns |= {"gradient": "gradient_agreement:.3g"}
    io.show_table(columns, [one | {"mark": "*" * one["opposed"]} for one in records])
    if opposed := sum(record["opposed"] for record in records):
        where = "last; --set floor=1e-9 puts them first" if settings.floor is None else "first"
        io.show(f"* {opposed} of {len(records)} pull against the others, which puts them {where}")


@COMMANDS["gate"].command("explain")
def _explain(
    question: Annotated[str, argument("QUESTION", "One question.")],
    gate: _Gate,
    model: Opt.NotedModel = None,
    encoder: Opt.NotedEncoder = None,
    as_data: Opt.Json = False,
) -> None:
    """Whether one question needs retrieval, and what speaks for it.

    [dim]ltrag gate explain "who wrote Emma?" --gate gate/[/]
    """
    loaded = _load(gate, model, encoder)
    decision = loaded.decide(question)
    told = {"question": decision.question, "answer": decision.answer} | decision.as_metadata()
    io.show(told if as_data else loaded.explanation(decision), as_data)


@COMMANDS["gate"].command("decide")
def _decide(
    questions: Opt.Questions,
    gate: _Gate,
    limit: Opt.Limit = None,
    model: Opt.NotedModel = None,
    encoder: Opt.NotedEncoder = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
) -> None:
    """The decision for each question of a file, as JSON lines, while they come.

    [dim]ltrag gate decide questions.jsonl --gate gate/ > decisions.jsonl[/]
    """
    from ltrag_plugins.prompts.templates import render_question

    loaded, retrieving = _load(gate, model, encoder, cache), 0
    settings = loaded.fitted.settings
    found = read_questions(questions, limit=limit, check=_askable(settings))
    with io.resumable(cache), io.progress(**replies(len(found), settings)) as bar:
        for start in range(0, len(found), batch):
            part = found[start : start + batch]
            decisions = loaded.decide_many([*map(render_question, part)], observers=[bar])
            for one, decision in zip(part, decisions, strict=True):
                told = {"id": one.id, "question": one.text, "answer": decision.answer}
                io.show(told | decision.as_metadata(), as_data=True, indent=None)
                retrieving += decision.retrieve
    io.say(f"{retrieving} of {len(found)} questions retrieve")


@COMMANDS["gate"].command("watch")
def _watch(
    store: Annotated[Path, argument("STORE", "SQLite file of a router: store=.")],
    page: Annotated[Path | None, option("Output", "Write it as one HTML page.", "--out")] = None,
    pictures: Annotated[Path | None, option("Output", "Write PNG and SVG there too.")] = None,
    learning: Annotated[
        bool | None, option("Method", "Go on learning, or stop it.", "--learn/--no-learn")
    ] = None,
    as_data: Opt.Json = False,
) -> None:
    """What a gate at work does, against what its fit promised.

    The drawing needs: pip install 'ltrag-plugins\\[report]'.

    [dim]ltrag gate watch router.sqlite --out watch.html[/]
    """
    from ltrag_plugins.gece.learning import stored_monitor
    from ltrag_plugins.gece.store import DecisionStore

    if not store.exists():  # a router would make it
        raise InvalidInput(f"there is no {store}; name the file that GECERouter(store=...) writes")
    io.checked_page(page, pictures)
    with DecisionStore(store) as kept:
        if learning is not None:
            kept.note("off", "" if learning else "off")
        if page or pictures:
            from ltrag_plugins.report.watch_figures import watch_page

            watch_page(kept, page, pictures)
            io.say(f"the page is {page}" if page else f"the pictures are in {pictures}")
        io.show(stored_monitor(kept), as_data)


def _askable(settings: "gece.GECESettings") -> Callable[[Question], object]:
    """Refuses a question that no draft can be asked for."""
    from ltrag_plugins.gece.signals import askable_question
    from ltrag_plugins.prompts.templates import render_question

    return lambda question: askable_question(render_question(question), settings.max_words)


def _load(
    folder: Path, model: str | None, encoder: str | None, cache: Path | None = None
) -> "gece.GECEGate":
    model, encoder = options.noted("gate", folder, model, encoder)
    llm, vectors = options.load_llm(model, cache=cache), options.load_encoder(encoder)
    with io.working("loading the gate"):
        return gece.GECEGate.load(folder, llm=llm, encoder=vectors)


def replies(count: int, settings: "gece.GECESettings", more: int = 0) -> dict[str, int]:
    """How many come for so many questions, by kind."""
    return {"Ask": count * (1 + settings.samples) + more, "Embed": 2 * count, "Agree": count}
