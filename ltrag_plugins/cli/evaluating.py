"""What `ltrag evaluate` does. Heavy imports are here, so that `--help` does without them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from ltrag_plugins.cli.bars import bars
from ltrag_plugins.cli.evaluating_gate import Gating, NoGate, loaded_gate
from ltrag_plugins.cli.inputs import pool_of
from ltrag_plugins.cli.models import load_encoder, load_llm
from ltrag_plugins.cli.output import say, working
from ltrag_plugins.data import read_questions
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate import (
    Cell,
    Engine,
    Record,
    Summary,
    cell_of,
    in_process,
    summarize,
)
from ltrag_plugins.evaluate import evaluate as run_cells
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.recorded import RECORDABLE as RECORDABLE
from ltrag_plugins.evaluate.recorded import Recording
from ltrag_plugins.evaluate.run import check_begun, check_distinct, check_questions
from ltrag_plugins.evaluate.spec import metrics_named
from ltrag_plugins.flow import World
from ltrag_plugins.gece.gate import GECEGate
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.methods import METHODS, method_named
from ltrag_plugins.methods.dur import METHOD as DUR
from ltrag_plugins.methods.method import Method
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.retrieval.dense import DenseRetriever
from ltrag_plugins.settings import values_of
from ltrag_plugins.types import Passage, Question

ALL = "all"
"""Among the names of methods: every one that has what it needs."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The files of a run."""

    questions: Path
    labelled: Path | None
    passages: Path | None
    limit: int | None
    labelled_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What a world is made of, by name: this travels to workers, where models do not."""

    model: str
    encoder: str
    search: str
    recorded: tuple[Path, ...] = ()
    recorded_fields: tuple[str, ...] = ()
    pool: Sequence[Passage] = ()

    def check(self, rows: Sequence[Method]) -> None:
        """Whether these methods can be run with it.

        Raises:
            InvalidInput: a part is missing, or answers were recorded and a method asks for more.
        """
        if self.search == "encoder" and self.encoder == "none":
            raise InvalidInput("--search encoder needs an encoder: add --encoder embedded")
        asking = sorted({row.name for row in rows} - RECORDABLE)
        if self.recorded and asking:
            raise InvalidInput(
                f"recorded answers are enough for {', '.join(sorted(RECORDABLE))}; "
                f"{', '.join(asking)} would ask the model for more"
            )

    def cells(self, methods: Sequence[str], labelled: Sequence[Question]) -> list[Cell]:
        """The rows, each once, and in the place of `all` every one that has what it needs.

        Raises:
            InvalidInput: one that is named lacks something.
        """
        found = {word: [cell_of(word)] for word in methods if word != ALL}
        for [cell] in found.values():
            cell.method.check(self._outline(), labelled)
        if ALL in methods:
            found[ALL] = [Cell(row) for row in self._possible(labelled)]
        return [*{cell.name: cell for word in methods for cell in found[word]}.values()]

    def world(self) -> World:
        """Load everything."""
        if self.recorded:
            recording = Recording.read(self.recorded, self.recorded_fields)
            return recording.world(load_encoder(self.encoder))
        encoder = load_encoder(self.encoder)
        llm = load_llm(self.model)
        return World(llm=llm, retriever=self._retriever(encoder), encoder=encoder)

    def _possible(self, labelled: Sequence[Question]) -> list[Method]:
        """Every method that has what it needs; says which have not."""
        found = []
        for row in METHODS.values():
            try:
                self.check([row])
                row.check(self._outline(), labelled)
            except InvalidInput as error:
                say(f"left out: {error}")
            else:
                found.append(row)
        return found

    def _outline(self) -> World:
        """Which parts `world` will have, before any is loaded; they answer nothing."""
        there: Any = object()
        searched = bool(self.recorded or self.pool)
        return World(
            llm=there,
            retriever=there if searched else None,
            encoder=None if self.encoder == "none" else there,
        )

    def _retriever(self, encoder: Encoder | None) -> Retriever | None:
        if not self.pool:
            return None
        if self.search == "bm25" or encoder is None:
            return BM25Retriever(self.pool, engine="auto")
        with working(f"encoding {len(self.pool)} passages"):
            return DenseRetriever(self.pool, encoder)


def evaluate(
    asked: Asked,
    out: Path,
    *,
    methods: Sequence[str],
    gate: str,
    rate: float,
    head: Path | None,
    parts: Parts,
    metrics: Sequence[str],
    compared: str | None,
    seeds: int,
    batch: int,
    trace: bool,
    workers: int = 0,
) -> Summary:
    """Run the methods; what cannot end well is refused before a model is loaded."""
    named = [cell_of(word) for word in methods if word != ALL]
    rows = [cell.method for cell in named]
    metrics_named(metrics)
    _check_head(head, parts.encoder)
    gating = Gating(gate, rate)
    gating.check()
    _check_names(named, gating, seeds, None if ALL in methods else compared)
    every = read_questions(asked.questions, require_answers=True)
    questions = every[: asked.limit]
    check_questions(questions)
    labelled = _labelled(asked.labelled, rows, gate)[: asked.labelled_limit]
    parts.check(rows)
    pool = pool_of(asked.passages, [*every, *labelled])
    parts = replace(parts, pool=pool)
    alone = parts.cells(methods, labelled)
    _check_names(alone, gating, seeds, compared)
    folder = RunFolder(out)
    how = {"metrics": metrics, "labelled": labelled, "trace": trace}
    with folder.held():
        world = parts.world()
        ranker = _ranker(head, world.encoder)
        alone = [_headed(one, ranker) for one in alone]
        cells = _all_cells(alone, gating, seeds)
        check_begun(folder, questions, cells, world, **how)
        found_gate = None
        if any(cell.gate is not None for cell in cells):
            found_gate = gating.made(world, labelled, folder)
            cells = [c if c.gate is None else replace(c, gate=found_gate) for c in cells]
        elif gating.spec != "none":
            say(
                "no gate is put before these methods: they do not retrieve, or are gates themselves"
            )
        with _Bar(len(cells) * len(questions)) as bar:
            records = run_cells(
                questions,
                cells,
                world,
                out=folder,
                batch=batch,
                engine=_engine(parts, workers, gating if found_gate else None, folder),
                on_record=bar,
                told=_told(asked, parts, workers, compared, found_gate),
                **how,
            )
    return summarize(records, compared=compared)


def listed(name: str | None = None) -> list[dict[str, Any]]:
    """The methods, or one, as plain values."""
    rows = METHODS.values() if name is None else [method_named(name)]
    return [
        {
            "method": row.name,
            "summary": row.summary,
            "source": row.source,
            "needs": ", ".join(sorted(row.needs)),
            "settings": values_of(row.settings()),
        }
        for row in rows
    ]


def _told(
    asked: Asked, parts: Parts, workers: int, compared: str | None, gate: GECEGate | None
) -> dict[str, Any]:
    """What a reader of run.json may want to know, and no answer depends on."""
    files = (asked.questions, asked.labelled, asked.passages, *parts.recorded)
    found = {
        "engine": "ray" if workers else "here",
        "workers": workers or 1,
        "compare": compared,
        "files": [path.name for path in files if path is not None],
    }
    if gate is None:
        return found
    report = gate.report
    return found | {"gate": {"scorer": report.scorer, "target": report.target, "tier": report.tier}}


class _Bar:
    """A bar of records on stderr; silent where that is no terminal."""

    def __init__(self, total: int) -> None:
        self._progress = bars("{task.description:>20}")
        self._task = self._progress.add_task("answering", total=total)

    def __call__(self, cell: str, record: Record) -> None:
        self._progress.update(self._task, description=cell, advance=1)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _labelled(path: Path | None, rows: Sequence[Method], gate: str) -> list[Question]:
    if path is not None:
        return read_questions(path, require_answers=True)
    learning = [row.name for row in rows if row.learns]
    if gate == "gece":
        learning.append("--gate gece")
    if learning:
        raise InvalidInput(
            "other questions with answers are needed to learn from, for "
            f"{', '.join(learning)}: add --labelled OTHERS.jsonl"
        )
    return []


def _engine(parts: Parts, workers: int, gating: Gating | None, run: RunFolder) -> Engine:
    """This process for 0 workers, else Ray; the workers' answers are kept with the run's."""
    if not workers:
        return in_process
    from ltrag_plugins.batch import on_ray

    gates = {}
    if gating is not None:
        gates[gating.name] = partial(loaded_gate, gating.folder(run).resolve())
    answers = run.answers.resolve()
    return on_ray(parts.world, workers=workers, answers=answers, gates=gates)


def _check_head(head: Path | None, encoder: str) -> None:
    if head is None:
        return
    if encoder == "none":
        raise InvalidInput("--head needs the encoder it was trained with: add --encoder embedded")
    if not (head / "dur.json").is_file():
        raise InvalidInput(
            f"there is no head in {head} (no dur.json); name a folder that 'ltrag dur train' wrote"
        )


def _ranker(head: Path | None, encoder: Encoder | None) -> DURRanker | None:
    if head is None:
        return None
    if encoder is None:
        raise InvalidInput("a head ranks with an encoder, and there is none")
    return DURRanker.load(head, encoder=encoder)


def _check_names(alone: Sequence[Cell], gating: Gating, seeds: int, compared: str | None) -> None:
    """What can be said of the rows by their names."""
    names = [cell.name for cell in _all_cells(alone, gating, seeds)]
    check_distinct("method", names)
    if compared is not None and compared not in names:
        raise InvalidInput(f"--compare {compared!r} is no row; there will be {', '.join(names)}")


def _headed(cell: Cell, ranker: DURRanker | None) -> Cell:
    """The method `dur` ranks by the head."""
    return replace(cell, settings=replace(cell.set, ranker=ranker)) if cell.method is DUR else cell


def _all_cells(alone: Sequence[Cell], gating: Gating, seeds: int) -> list[Cell]:
    """Each with every seed, and behind a gate that is not there yet."""
    return [cell for one in alone for cell in _cells(one, gating, seeds)]


def _cells(cell: Cell, gating: Gating, seeds: int) -> list[Cell]:
    drawn = seeds > 1 and "seed" in {field.name for field in fields(cell.method.settings)}
    numbers: list[int | None] = [*range(seeds)] if drawn else [None]
    alone = [replace(cell, seed=seed) for seed in numbers]
    if not gating.before(cell.method):
        return alone
    return alone + [replace(one, gate=NoGate(), gate_name=gating.name) for one in alone]
