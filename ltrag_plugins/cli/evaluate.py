"""`ltrag evaluate`, `methods`, `settings` and `report`: who answers best, and at what cost."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ltrag_plugins import dur, gece, sgic, training
from ltrag_plugins.cli import io, options
from ltrag_plugins.cli.dur import TrainingBounds
from ltrag_plugins.cli.gate import replies
from ltrag_plugins.cli.options import COMMANDS, PAPER_NAMES, Opt, argument, option
from ltrag_plugins.data import read_questions
from ltrag_plugins.errors import InvalidInput, unknown_name
from ltrag_plugins.settings import Count, Settings, described
from ltrag_plugins.types import Passage, Question

if TYPE_CHECKING:  # numpy behind them would slow --help down
    from ltrag_plugins.evaluate import Cell
    from ltrag_plugins.flow import World

_ALL = "all"  # among the names of methods: every one that has what it needs
_READS_ANSWERS = (
    "+eq2: the largest values of GECE, eq. 2, among these very questions, computed with their\n"
    "accepted answers: an analysis, as no gate at work knows the answers"
)
_LATER: Any = object()  # stands for a part of the world that is not loaded yet


@dataclass(frozen=True, slots=True)
class _RunSettings(Settings):
    """What `--set` takes in a run."""

    search: Literal["bm25", "encoder"] = "bm25"
    """Find passages by words (BM25), or by the encoder's vectors."""
    compare: str | None = None
    """The row that gains are over; None: the first."""
    seeds: Count = 1
    """Run what draws at random so many times."""
    labelled_limit: Count | None = None
    """Learn from the first so many of `--labelled` alone."""
    head: str | None = None
    """Folder of 'ltrag rerank train', for the method dur."""
    filter: str | None = None
    """The model that filters for the method filco, named as `--model` is; None: the same one."""
    recorded: str | None = None
    """Files with the answers of a model elsewhere, with commas, in the place of `--model`."""
    recorded_fields: str = "direct,retrieved"
    """Fields of a line of these: the answer without retrieval and the one with it."""
    batch: Count = 16
    """Questions that run side by side."""
    trace: bool = False
    """Keep all prompts and replies in the records."""
    engine: Literal["here", "ray"] = "here"
    """Answer in this process, or in workers of Ray (extra "ray")."""
    workers: Count = 2
    """Processes of Ray."""


@COMMANDS[""].command("evaluate")
def _evaluate(
    questions: Opt.Questions,
    *,
    passages: Annotated[Path | None, option("Data", "To search; else all in the files.")] = None,
    limit: Opt.Limit = None,
    labelled: Annotated[Path | None, option("Data", "Answered questions to learn from.")] = None,
    model: Opt.Model = "embedded",
    encoder: Opt.Encoder = "none",
    methods: Annotated[
        str, option("Method", "Of 'ltrag methods', with commas; single:k=5; all that can be run.")
    ] = "direct,single",
    gate: Annotated[
        str, option("Method", "fit (on --labelled), a folder, or paper (eq. 2, reads the answers).")
    ] = "none",
    rate: Opt.Rate = None,
    words: Opt.Set = None,
    cache: Opt.Cache = None,
    out: Annotated[Path, option("Output", "Folder of the run; a run that was stopped goes on.")],
    metrics: Annotated[
        str, option("Output", "Measures, with commas; the first decides easy and hard.")
    ] = "em,f1,rouge1,bleu4",
    as_data: Opt.Json = False,
) -> None:
    """Answer every question in every way, and show who was right at what cost.

    [dim]ltrag evaluate questions.jsonl --methods direct,single,ircot --out run/[/]
    """
    from ltrag_plugins.evaluate import cell_of, evaluate, in_process, summarize
    from ltrag_plugins.evaluate.folder import RunFolder
    from ltrag_plugins.evaluate.gating import RunGate, gated_cells
    from ltrag_plugins.evaluate.run import check_asked, check_begun
    from ltrag_plugins.evaluate.spec import EQ2, metrics_named
    from ltrag_plugins.flow import World
    from ltrag_plugins.gece.labels import check_count

    # what cannot end well is refused before a model is loaded
    [run] = options.changed(words, _RunSettings())
    words_of_gates, measures = [one for one in _split(gate) if one != "none"], _split(metrics)
    [gating] = options.changed(None, RunGate("fit"), rate=rate)
    gatings = [replace(gating, spec=word) for word in words_of_gates]
    if rate is not None and all(one.is_saved for one in gatings):
        raise InvalidInput("--rate is for --gate fit and --gate paper; add one, or leave it out")
    metrics_named(measures)
    named = [cell_of(word) if word != _ALL else None for word in _split(methods)]
    if not named:
        raise InvalidInput("name at least one method with --methods; 'ltrag methods' lists them")
    if run.filter is not None and all(cell and cell.method.name != "filco" for cell in named):
        raise InvalidInput("filter=MODEL is for the method filco; add it to --methods")
    if run.head is not None and all(cell and cell.method.name != "dur" for cell in named):
        raise InvalidInput("head=FOLDER is for the method dur; add it to --methods")
    options.checked_model(run.filter)
    head = None if run.head is None else Path(run.head).expanduser()
    if encoder == "none" and (head or run.search == "encoder"):
        what = "a head" if head else "search=encoder"
        raise InvalidInput(f"{what} needs its encoder: add --encoder embedded, or another")
    if head is not None:
        options.noted("dur", head)
    if "fit" in words_of_gates and labelled is None:
        raise InvalidInput("--gate fit learns from other questions: add --labelled OTHERS.jsonl")
    for one in gatings:
        if one.is_saved and not (saved := Path(one.spec).expanduser()).is_dir():
            takes = "--gate takes fit, paper, or a folder of 'ltrag gate fit'"
            raise InvalidInput(f"{takes}; there is no folder {saved}")
        if one.is_saved and one.name.partition(":")[0] == EQ2:
            raise InvalidInput(f"{EQ2} is the name of --gate paper; name the folder otherwise")
        if one.is_saved:
            options.noted("gate", Path(one.spec).expanduser())
    folder = RunFolder(options.checked_out(out))
    every = read_questions(questions, require_answers=True)
    found, others = every[:limit], []
    check_asked(found, [cell for cell in named if cell is not None])
    if labelled is not None:
        others = read_questions(labelled, require_answers=True, limit=run.labelled_limit)
        if both := len({one.text for one in found} & {one.text for one in others}):
            io.say(f"note: {both} questions are in --labelled too: learned from, and judged on")
    pool = options.pool_of(passages, [*every, *others])
    vectors = None if encoder == "none" else _LATER
    outline = World(_LATER, _LATER if run.recorded or pool else None, vectors)
    alone = _alone(named, outline, others, recorded=bool(run.recorded))
    rows = gated_cells(alone, gatings, run.seeds)
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            remedy = "give each gate once, and their folders names of their own"
            raise InvalidInput(f"two gates make a row {name}; {remedy}")
    if run.compare is not None and run.compare not in names:
        raise InvalidInput(f"compare={run.compare} is no row; there will be {', '.join(names)}")
    if "fit" in words_of_gates and any(row.gate is not None for row in rows):
        check_count(others)
    load = partial(_world, model, encoder, run, pool, cache)
    same: dict[str, Any] = {"metrics": measures, "labelled": others, "trace": run.trace}
    files = [p.name for p in (questions, labelled, passages, *_recorded(run)) if p]
    workers = run.workers if run.engine == "ray" else 1
    note = {"engine": run.engine, "workers": workers, "compare": run.compare, "files": files}
    with folder.held():
        world = load()
        if head is not None and world.encoder is not None:
            ranker = dur.DURRanker.load(head, encoder=world.encoder)
            for i, row in enumerate(rows):
                if row.method.name == "dur":
                    rows[i] = replace(row, settings=replace(row.set, ranker=ranker))
        check_begun(folder, questions=found, cells=rows, world=world, **same)
        if gatings and all(row.gate is None for row in rows):
            io.say("no gate is put before these methods: none retrieves, or they are gates")
            gatings = []
        made: dict[str, Any] = {}
        for one in gatings:
            learned = others if one.paper is None else found
            searched = len(others) if one.paper is None and world.retriever else 0
            totals = replies(len(learned), gece.GECESettings(), searched)
            fitting = one.spec == "fit" and not (one.folder(folder) / "gate.json").is_file()
            with io.resumable(out), io.progress(**totals) as bar:
                made[one.name] = one.made(world, found, others, folder, [bar])
            if fitting:
                verdict, *notes = str(made[one.name].report).partition("\n\n")[0].splitlines()
                for line in (f"the gate {verdict}", *notes):
                    io.say(line)
        cells = [
            one if one.gate is None else replace(one, gate=made[one.gate_name]) for one in rows
        ]
        fits = {name: gate.report for name, gate in made.items() if hasattr(gate, "report")}
        about = ("scorer", "target", "tier")
        note["gates"] = {n: {part: getattr(fit, part) for part in about} for n, fit in fits.items()}
        engine = in_process
        if run.engine == "ray":
            from ltrag_plugins.batch import on_ray

            answers = folder.answers.resolve()
            gates = {one.name: one.maker(folder) for one in gatings}
            engine = on_ray(load, workers=run.workers, answers=answers, gates=gates)
        done = sum(not one.error for cell in cells for one in folder.records(cell.name))
        with io.resumable(out), io.answering(len(cells) * len(found), done) as on_record:
            how: dict[str, Any] = {"batch": run.batch, "engine": engine, "told": note}
            records = evaluate(found, cells, world, out=folder, on_record=on_record, **how, **same)
    summary = summarize(records, compared=run.compare)
    io.say(f"the records are in {out}")
    for name, some in records.items():
        if errors := [" ".join(one.error.split()) for one in some if one.error]:
            io.say(f"{name} failed on {len(errors)} of {len(some)} questions, first: {errors[0]}")
    io.show(summary, as_data)
    if not as_data and any(one.paper for one in gatings):
        io.show(_READS_ANSWERS)
    if any(row.failed for row in summary.rows):
        raise typer.Exit(1)


@COMMANDS[""].command("methods")
def _methods(
    name: Annotated[str | None, argument("METHOD", "List the settings of this one.")] = None,
    as_data: Opt.Json = False,
) -> None:
    """List the methods that 'ltrag evaluate' runs, or the settings of one.

    [dim]ltrag methods single[/]
    """
    from ltrag_plugins.methods import METHODS, method_named

    rows, plain = [*METHODS.values()] if name is None else [method_named(name)], []
    for row in rows:
        settings = {one["setting"]: one["default"] for one in described(row.settings())}
        told = {"method": row.name, "summary": row.summary, "source": row.source}
        plain.append(told | {"needs": ", ".join(sorted(row.needs)), "settings": settings})
    sources = {row.name: f" ({row.source})" if row.source != "-" else "" for row in rows}
    io.show(plain if as_data else {r.name: r.summary + sources[r.name] for r in rows}, as_data)
    if name is not None and not as_data:
        _show_settings(rows[0].settings())


@COMMANDS[""].command("settings")
def _settings(
    name: Annotated[str | None, argument("NAME", "One of those listed without it.")] = None,
    as_data: Opt.Json = False,
) -> None:
    """List what `--set NAME=VALUE` takes: defaults, ranges, choices and meanings.

    [dim]ltrag settings gate[/]
    """
    from ltrag_plugins.evaluate import LongTailSettings
    from ltrag_plugins.gece.settings import Targets
    from ltrag_plugins.methods.filco import FilterDataSettings
    from ltrag_plugins.sgic.calibrator import Refusal
    from ltrag_plugins.sgic.fitting import FitOptions

    calibrating = sgic.SGICSettings(), FitOptions(), Refusal()
    known: dict[str, tuple[Any, ...]] = {
        "fit": ("fit", LongTailSettings()),
        "gate": ("gate fit, gate score", gece.GECESettings(), Targets()),
        "rerank": ("rerank train", dur.DURSettings(), TrainingBounds()),
        "calibrate": ("calibrate fit, calibrate answer", *calibrating),
        "build": ("calibrate build", sgic.SGICSettings(rounds=5), training.CorpusSettings()),
        "filter": ("calibrate build --form filter", FilterDataSettings()),
        "finetune": ("calibrate finetune", training.FinetuneSettings()),
        "evaluate": ("evaluate", _RunSettings()),
    }
    name = {paper: ours for ours, paper in PAPER_NAMES.items()}.get(name or "", name)
    if name is not None and name not in known:
        raise unknown_name("group of settings", name, known)
    if name is None:
        io.show({one: commands for one, (commands, *_) in known.items()}, as_data)
    elif as_data:
        io.show([row for settings in known[name][1:] for row in described(settings)], as_data)
    else:
        _show_settings(*known[name][1:])


@COMMANDS[""].command("report")
def _report(
    run: Annotated[Path, argument("RUN/", "Folder that 'ltrag evaluate --out' wrote.")],
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

    io.checked_page(out, pictures)
    with io.working("drawing"):
        written = write_report(run, out, pictures_to=pictures, compared=compare)
    if written.run.missing:
        io.say(f"the run is not finished: {', '.join(written.run.missing)}")
    if pictures is not None:
        io.say(f"{len(written.pictures)} pictures are in {pictures}")
    io.say(f"the page has {size_of(written.size)}")
    io.show(written.page)


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _recorded(run: _RunSettings) -> list[Path]:
    return [Path(name).expanduser() for name in _split(run.recorded or "")]


def _show_settings(*settings: Any) -> None:
    for one in chain(*map(described, settings)):
        io.show(f"  {one['setting']}={json.dumps(one['default'], ensure_ascii=False)}")
        for text in filter(None, (one["takes"], one["meaning"])):
            io.show(fill(text, 80, initial_indent=" " * 6, subsequent_indent=" " * 6))


def _world(
    model: str, encoder: str, run: _RunSettings, pool: Sequence[Passage], cache: Path | None
) -> "World":
    """All that a run needs, loaded: here, or in a worker, to which models do not travel."""
    from ltrag_plugins.evaluate import Recording
    from ltrag_plugins.flow import World
    from ltrag_plugins.retrieval.bm25 import BM25Retriever
    from ltrag_plugins.retrieval.dense import DenseRetriever

    vectors = options.load_encoder(encoder)
    if files := _recorded(run):
        return Recording.read(files, _split(run.recorded_fields)).world(vectors)
    llm, retriever = options.load_llm(model, cache=cache), None
    if pool and run.search == "encoder" and vectors is not None:
        with io.working(f"encoding {len(pool)} passages"):
            retriever = DenseRetriever(pool, vectors)
    elif pool:
        retriever = BM25Retriever(pool, engine="auto")
    own = None if run.filter is None else options.load_llm(run.filter, cache=cache)
    return World(llm=llm, retriever=retriever, encoder=vectors, filter=own)


def _and(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _alone(
    named: "Sequence[Cell | None]", outline: "World", labelled: Sequence[Question], recorded: bool
) -> "list[Cell]":
    """The rows without gates, each once; in the place of None every one that can be run."""
    from ltrag_plugins.evaluate import Cell, Recording
    from ltrag_plugins.methods import METHODS

    parts = (
        ("retriever", "a retriever", "--passages", outline.retriever is not None),
        ("encoder", "an encoder", "--encoder", outline.encoder is not None),
        ("labelled questions", "labelled questions", "--labelled", bool(labelled)),
    )
    cells: dict[str, Cell] = {}
    left_out: dict[str, list[str]] = {}
    for one in named:
        for cell in map(Cell, METHODS.values()) if one is None else [one]:
            name, needs = cell.method.name, cell.method.needs
            lacks = [
                (what, remedy) for need, what, remedy, there in parts if need in needs and not there
            ]
            if recorded and name not in Recording.METHODS:
                enough = f"recorded answers are enough for {_and(sorted(Recording.METHODS))}"
                why, refusal = f"as {enough}", f"{enough}; {name} would ask the model for more"
            elif lacks:
                whats, remedies = map(_and, zip(*lacks, strict=True))
                why = f"for want of {whats} (add {remedies})"
                refusal = f"the method {name} needs {whats}; add {remedies}"
            else:
                cells.setdefault(cell.name, cell)
                continue
            if one is not None:
                raise InvalidInput(refusal)
            left_out.setdefault(why, []).append(name)
    for why, names in left_out.items():
        io.say(f"left out: {', '.join(names)}, {why}")
    return [*cells.values()]
