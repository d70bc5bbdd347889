"""`ltrag evaluate`, `methods`, `settings` and `report`: who answers best, and at what cost."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ltrag_plugins.cli import io
from ltrag_plugins.cli.models import load_encoder, load_llm, noted
from ltrag_plugins.cli.options import Opt, changed, option
from ltrag_plugins.data import read_questions
from ltrag_plugins.errors import InvalidInput, unknown_name
from ltrag_plugins.settings import Count, Settings, declarations, help_of, values_of
from ltrag_plugins.types import Passage, Question

if TYPE_CHECKING:  # numpy behind them would slow --help down
    from ltrag_plugins.evaluate import Cell
    from ltrag_plugins.flow import World
    from ltrag_plugins.methods import Method

run_app = typer.Typer(rich_markup_mode="rich")
_ALL = "all"
"""Among the names of methods: every one that has what it needs."""
_LATER: Any = object()
"""Stands for a part of the world that is not loaded yet."""


@dataclass(frozen=True, slots=True)
class _RunSettings(Settings):
    """What `--set` takes in a run."""

    search: Literal["bm25", "encoder"] = "bm25"
    """Find passages by words (BM25), or by the encoder's vectors."""
    compare: str | None = None
    """The row that gains are over; None: the first."""
    seeds: Count = 1
    """Run what draws at random so many times."""
    recorded_fields: str = "direct,retrieved"
    """Fields of a line of `--recorded`: the answer without retrieval and the one with it."""
    engine: Literal["here", "ray"] = "here"
    """Answer in this process, or in workers of Ray (extra "ray")."""
    workers: Count = 2
    """Processes of Ray."""


@run_app.command("evaluate")
def _evaluate(
    questions: Opt.Questions,
    out: Annotated[Path, option("Output", "Folder of the run; a run that was stopped goes on.")],
    passages: Annotated[Path | None, option("Data", "To search; else all in the files.")] = None,
    limit: Opt.Limit = None,
    labelled: Annotated[Path | None, option("Data", "Answered questions to learn from.")] = None,
    labelled_limit: Annotated[int | None, option("Data", "Only the first so many.", min=1)] = None,
    recorded: Annotated[
        list[Path] | None,
        option(
            "Model", "Answers of a model elsewhere, without retrieval and with it, for --model."
        ),
    ] = None,
    model: Opt.Model = "embedded",
    encoder: Opt.Encoder = "none",
    head: Annotated[Path | None, option("Model", "For dur: of 'ltrag dur train'.")] = None,
    methods: Annotated[
        str,
        option(
            "Method",
            "Names of 'ltrag methods' with commas, with settings as in [bold]single:k=5[/]; "
            "[bold]all[/]: every one that can be run.",
        ),
    ] = "direct,single",
    gate: Annotated[str, option("Method", "gece (fitted on --labelled) or a folder.")] = "none",
    rate: Annotated[float, option("Method", "Share that may retrieve.", min=0, max=1)] = 0.2,
    words: Opt.Set = None,
    batch: Annotated[int, option("Cost", "Questions that run side by side.", min=1)] = 16,
    metrics: Annotated[
        str, option("Output", "Measures, with commas; the first decides easy and hard.")
    ] = "em,f1,rouge1,bleu4",
    trace: Annotated[bool, option("Output", "Keep all prompts and replies.", "--trace")] = False,
    as_data: Opt.Json = False,
) -> None:
    """Answer every question in every way, and show who was right at what cost.

    [dim]ltrag evaluate questions.jsonl --methods direct,single,ircot --out run/[/]
    """
    from ltrag_plugins.dur import DURRanker
    from ltrag_plugins.evaluate import cell_of, evaluate, in_process, summarize
    from ltrag_plugins.evaluate.folder import RunFolder
    from ltrag_plugins.evaluate.gating import RunGate, load_gate
    from ltrag_plugins.evaluate.run import check_begun, check_questions
    from ltrag_plugins.evaluate.spec import metrics_named
    from ltrag_plugins.methods.dur import METHOD as DUR

    # what cannot end well is refused before a model is loaded
    run, gating = changed(_RunSettings(), words), RunGate(gate, rate)
    names, measures = _split(methods), _split(metrics)
    if not names:
        raise InvalidInput("name at least one method with --methods; 'ltrag methods' lists them")
    named = [cell_of(word) for word in names if word != _ALL]
    metrics_named(measures)
    parts = _Parts(model, encoder, run.search, tuple(recorded or ()), run.recorded_fields)
    parts.check([cell.method for cell in named])
    if head is not None and encoder == "none":
        raise InvalidInput("--head needs the encoder it was trained with: add --encoder embedded")
    if head is not None:
        noted(head, "dur.json", "dur train")
    if gate not in ("none", "gece"):
        noted(Path(gate).expanduser(), "gate.json", "gate fit")
    cells = gating.cells(named, run.seeds)
    _check_names(cells, None if _ALL in names else run.compare)
    every = read_questions(questions, require_answers=True)
    found = every[:limit]
    check_questions(found)
    if gate == "gece" and labelled is None:
        raise InvalidInput("--gate gece learns from other questions: add --labelled OTHERS.jsonl")
    others = read_questions(labelled, require_answers=True) if labelled is not None else []
    others = others[:labelled_limit]
    parts = replace(parts, pool=io.pool_of(passages, [*every, *others]))
    alone = _alone(names, parts, others)
    _check_names(gating.cells(alone, run.seeds), run.compare)
    folder = RunFolder(out.expanduser())
    same: dict[str, Any] = {"metrics": measures, "labelled": others, "trace": trace}
    note: dict[str, Any] = {
        "engine": run.engine,
        "workers": run.workers if run.engine == "ray" else 1,
        "compare": run.compare,
        "files": [p.name for p in (questions, labelled, passages, *parts.recorded) if p],
    }
    with folder.held():
        world = parts.world()
        if head is not None and world.encoder is not None:
            ranker = DURRanker.load(head, encoder=world.encoder)
            headed = [cell for cell in alone if cell.method is DUR]
            ranked = {c.name: replace(c, settings=replace(c.set, ranker=ranker)) for c in headed}
            alone = [ranked.get(cell.name, cell) for cell in alone]
        cells, gates = gating.cells(alone, run.seeds), {}
        check_begun(folder, found, cells, world, **same)
        if any(cell.gate is not None for cell in cells):
            fitted = gating.made(world, others, folder)
            cells = [cell if cell.gate is None else replace(cell, gate=fitted) for cell in cells]
            gates = {gating.name: partial(load_gate, gating.folder(folder).resolve())}
            note["gate"] = {n: getattr(fitted.report, n) for n in ("scorer", "target", "tier")}
        elif gate != "none":
            io.say(
                "no gate is put before these methods: they do not retrieve, or are gates themselves"
            )
        engine = in_process
        if run.engine == "ray":
            from ltrag_plugins.batch import on_ray

            answers = folder.answers.resolve()
            engine = on_ray(parts.world, workers=run.workers, answers=answers, gates=gates)
        with io.bars("{task.description:>20}") as bar:
            task = bar.add_task("answering", total=len(cells) * len(found))
            records = evaluate(
                found,
                cells,
                world,
                out=folder,
                batch=batch,
                engine=engine,
                on_record=lambda cell, _: bar.update(task, description=cell, advance=1),
                told=note,
                **same,
            )
    summary = summarize(records, compared=run.compare)
    io.say(f"the records are in {out}")
    io.show(summary.as_dict() if as_data else str(summary))
    if any(row.failed for row in summary.rows):
        raise typer.Exit(1)


@run_app.command("methods")
def _methods(
    name: Annotated[
        str | None, typer.Argument(metavar="METHOD", help="List the settings of this one.")
    ] = None,
    as_data: Opt.Json = False,
) -> None:
    """List the methods that 'ltrag evaluate' runs, or the settings of one.

    [dim]ltrag methods single[/]
    """
    from ltrag_plugins.methods import METHODS, method_named

    rows = METHODS.values() if name is None else [method_named(name)]
    plain = [
        {"method": row.name, "summary": row.summary, "source": row.source}
        | {"needs": ", ".join(sorted(row.needs)), "settings": values_of(row.settings())}
        for row in rows
    ]
    if as_data:
        io.show(plain)
        return
    wide = 2 + max(len(row.name) for row in rows)
    for row in rows:
        io.show(f"{row.name:<{wide}}{row.summary} ({row.source})")
    if name is not None:
        _show_settings(METHODS[name].settings())


@run_app.command("settings")
def _settings(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of those that are listed without it.")
    ] = None,
    as_data: Opt.Json = False,
) -> None:
    """List what `--set NAME=VALUE` takes: defaults, ranges, choices and meanings.

    [dim]ltrag settings gate[/]
    """
    from ltrag_plugins import dur, gece, sgic, training

    known: dict[str, tuple[str, list[tuple[str, Any]]]] = {
        "gate": ("gate fit, gate score", [("", gece.GECESettings())]),
        "dur": ("dur train", [("", dur.DURSettings())]),
        "sgic": ("sgic fit, sgic answer", [("", sgic.SGICSettings())]),
        "build": (
            "sgic build",
            [("", sgic.SGICSettings.paper()), ("corpus.", training.CorpusSettings())],
        ),
        "finetune": ("sgic finetune", [("", training.FinetuneSettings())]),
        "evaluate": ("evaluate", [("", _RunSettings())]),
    }
    if name is None:
        io.show("\n".join(f"{one:<10}{commands}" for one, (commands, _) in known.items()))
    elif name not in known:
        raise unknown_name("group of settings", name, known)
    elif as_data:
        groups = known[name][1]
        io.show([one for above, settings in groups for one in _declared(settings, above)])
    else:
        for above, settings in known[name][1]:
            _show_settings(settings, above)


@run_app.command("report")
def _report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN/", help="Folder that 'ltrag evaluate --out' wrote.", show_default=False
        ),
    ],
    compare: Annotated[str | None, option("Data", "The row that gains are over.")] = None,
    out: Annotated[Path | None, option("Output", "The page; else RUN/report.html.")] = None,
    pictures: Annotated[Path | None, option("Output", "Write PNG and SVG there too.")] = None,
) -> None:
    """Show a run as one page that needs no network: table, pictures, every question.

    Prints the path of the page. Needs: pip install 'ltrag-plugins\\[report]'.

    [dim]ltrag report run/ --pictures run/pictures/[/]
    """
    from ltrag_plugins.report import write_report
    from ltrag_plugins.report.escaping import size_of

    if out is not None:
        io.checked_file(out)
    if pictures is not None:
        io.checked_folder(pictures)
    with io.working("drawing"):
        written = write_report(run, out, pictures_to=pictures, compared=compare)
    if written.run.missing:
        io.say(f"the run is not finished: {', '.join(written.run.missing)}")
    if pictures is not None:
        io.say(f"{len(written.pictures)} pictures are in {pictures}")
    io.say(f"the page has {size_of(written.size)}")
    io.show(str(written.page))


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _declared(settings: Any, above: str) -> Iterator[dict[str, Any]]:
    """Every setting that a word can give, nested ones by dots."""
    meanings = help_of(type(settings))
    for one in declarations(type(settings)):
        value, name = getattr(settings, one.name), above + one.name
        if is_dataclass(value):
            yield from _declared(value, f"{name}.")
        elif one.kinds:
            meaning = meanings.get(one.name, "")
            yield {"setting": name, "default": value, "takes": one.wanted(), "meaning": meaning}


def _show_settings(settings: Any, above: str = "") -> None:
    for one in _declared(settings, above):
        io.show(f"  {one['setting']}={json.dumps(one['default'], ensure_ascii=False)}")
        for text in filter(None, (one["takes"], one["meaning"])):
            io.show(fill(text, 96, initial_indent=" " * 6, subsequent_indent=" " * 6))


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a world is made of, by name: this travels to workers, where models do not."""

    model: str
    encoder: str
    search: str
    recorded: tuple[Path, ...]
    recorded_fields: str
    pool: Sequence[Passage] = ()

    def check(self, rows: "Sequence[Method]") -> None:
        """Refuse methods that cannot be run with it."""
        from ltrag_plugins.evaluate.recorded import RECORDABLE

        if self.search == "encoder" and self.encoder == "none":
            raise InvalidInput("search=encoder needs an encoder: add --encoder embedded")
        asking = sorted({row.name for row in rows} - RECORDABLE)
        if self.recorded and asking:
            raise InvalidInput(
                f"recorded answers are enough for {', '.join(sorted(RECORDABLE))}; "
                f"{', '.join(asking)} would ask the model for more"
            )

    def world(self) -> "World":
        """Load everything."""
        from ltrag_plugins.evaluate import Recording
        from ltrag_plugins.flow import World
        from ltrag_plugins.retrieval.bm25 import BM25Retriever
        from ltrag_plugins.retrieval.dense import DenseRetriever

        encoder = load_encoder(self.encoder)
        if self.recorded:
            return Recording.read(self.recorded, _split(self.recorded_fields)).world(encoder)
        llm = load_llm(self.model)
        retriever = None
        if self.pool and self.search == "encoder" and encoder is not None:
            with io.working(f"encoding {len(self.pool)} passages"):
                retriever = DenseRetriever(self.pool, encoder)
        elif self.pool:
            retriever = BM25Retriever(self.pool, engine="auto")
        return World(llm=llm, retriever=retriever, encoder=encoder)


def _alone(names: Sequence[str], parts: _Parts, labelled: Sequence[Question]) -> "list[Cell]":
    """The rows without gates, each once; in the place of `all` every one that can be run."""
    from ltrag_plugins.evaluate import Cell, cell_of
    from ltrag_plugins.flow import World
    from ltrag_plugins.methods import METHODS

    outline = World(
        llm=_LATER,
        retriever=_LATER if parts.recorded or parts.pool else None,
        encoder=None if parts.encoder == "none" else _LATER,
    )

    def check(row: "Method") -> None:
        parts.check([row])
        try:
            row.check(outline, labelled)
        except InvalidInput as error:
            hint = "add --labelled, --passages or --encoder, whichever it is"
            raise type(error)(f"{error}; {hint}") from error

    cells: dict[str, Cell] = {}
    for name in names:
        if name != _ALL:
            cell = cell_of(name)
            check(cell.method)
            cells.setdefault(cell.name, cell)
            continue
        for row in METHODS.values():
            try:
                check(row)
            except InvalidInput as error:
                io.say(f"left out: {error}")
            else:
                cells.setdefault(row.name, Cell(row))
    return [*cells.values()]


def _check_names(cells: "Sequence[Cell]", compare: str | None) -> None:
    from ltrag_plugins.evaluate.run import check_distinct

    names = [cell.name for cell in cells]
    check_distinct("method", names)
    if compare is not None and compare not in names:
        raise InvalidInput(f"compare={compare} is no row; there will be {', '.join(names)}")
